r"""The DP penalty algorithm (Yildirim and Ermis 2019; Section 3.1 of the thesis), on all records.

Target: ``pi(theta) ∝ p(theta) prod_i f(x_i|theta)^T``. One iteration proposes ``theta'``, releases the log-likelihood ratio
``lambda`` with noise ``N(0, sigma^2)``, and accepts with probability ``min(1, exp(lambda + noise + log
p(theta')/p(theta) - sigma^2/2))``:

    sigma = T tau sqrt(n) c,   c = 2 b ||theta' - theta||,

b the clip bound of one record. Averaged over the noise, the acceptance probability a(l) satisfies ``a(l) = e^l a(-l)``
whatever sigma is, and sigma is the same for the move and its reverse, so pi is left invariant exactly when no ratio is
clipped (``test_penalty_acceptance_satisfies_detailed_balance``,
``test_each_sampler_reaches_the_closed_form_posterior``). Relative to its sensitivity the noise is ``tau sqrt(n)`` in
every iteration: a cost of ``mu = 1/(2 tau^2 n)`` each.

Moves: ``"all"`` components by a normal step; ``"one"`` component, chosen uniformly; ``"guided"``: one component, in the
direction it last moved; the direction is kept when the proposal is accepted and turned when it is not (Gustafson 1998),
which leaves ``pi(theta) x uniform(directions)`` invariant.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from noisewise.private.clipping import clip_ratios, clipped_ratio, unit_bits
from noisewise.private.ledger import GaussianStep, Step
from noisewise.private.mechanism import Noisy, noisy
from noisewise.private.records import Summand
from noisewise.private.target import Target
from noisewise.typing import Key, Records

Components = Literal["all", "one", "guided"]


class Summable(Protocol):
    """What a full-data sampler needs of the records: their number and exact sums over them."""

    @property
    def n(self) -> int: ...
    def total(self, function: Summand) -> Any: ...


def setting(value: Any, name: str, *, vector: bool = False) -> Array | None:
    """A sampler's setting: None, or a positive finite number (``vector``: or one for each component)."""
    if value is None or isinstance(value, jax.core.Tracer):
        return value
    number = np.asarray(value, dtype=float)
    if number.size == 0 or not np.all(np.isfinite(number)) or np.any(number <= 0):
        raise ValueError(f"{name} must be positive and finite; got {value!r}.")
    if number.ndim > vector:
        raise ValueError(f"{name} must be one number{', or one for each component' if vector else ''}; got {value!r}.")
    return jnp.asarray(number)


def for_each(value: Array, size: int, name: str) -> Float[Array, " d"]:
    """A setting as one number for each component."""
    if value.ndim and value.shape != (size,):
        raise ValueError(
            f"{name} has {value.shape[0]} numbers and the target {size} parameters: give one, or one for each."
        )
    return jnp.broadcast_to(value, (size,))


def known(value: Array | None, name: str) -> Array:
    """A setting that must be there by now."""
    if value is None:
        finder = "plan" if name in ("noise", "gradient_noise") else "tune"
        raise ValueError(f"the sampler has no {name}: give {name}=..., or let nw.private.{finder} find it.")
    return value


def clip_or_lipschitz(clip: Array | None, target: Target, name: str = "clip") -> Array:
    """The clip bound given, or the model's Lipschitz bound, or a sentence."""
    if clip is not None:
        return clip
    bound = target.lipschitz
    if bound is None:
        raise ValueError(
            f"the sampler has no {name} bound and {type(target).__name__} declares no Lipschitz bound, so one record could move the "
            f"output without limit. Give {name}=... (nw.private.tune finds one on synthetic records), or the model's public bounds."
        )
    return bound


class Penalty(eqx.Module):
    """DP penalty on all records.

    ``noise`` is tau, ``clip`` b (a record's log ratio per unit of distance), ``proposal`` the sd of a step, one or one each.

    >>> Penalty(noise=0.1, clip=2.0, proposal=0.008).steps(100_000)
    [GaussianStep(sensitivity=2.0, scale=63.24555320336759, count=1)]
    """

    noise: Array | None
    clip: Array | None
    proposal: Array | None
    components: Components = eqx.field(static=True)

    def __init__(
        self, noise: Any = None, *, clip: Any = None, proposal: Any = None, components: Components = "all"
    ) -> None:
        if components not in ("all", "one", "guided"):
            raise ValueError(f"components must be 'all', 'one' or 'guided'; got {components!r}.")
        self.noise, self.clip = setting(noise, "noise"), setting(clip, "clip")
        self.proposal, self.components = setting(proposal, "proposal", vector=True), components

    @property
    def name(self) -> str:
        return f"penalty, components={self.components}"

    def steps(self, n: int) -> list[Step]:
        """What one iteration releases, in units of the clip bound: neighbours replace_one."""
        return [GaussianStep(sensitivity=2.0, scale=2.0 * float(known(self.noise, "noise")) * math.sqrt(n))]

    def with_noise(self, noise: float) -> Penalty:
        """The same sampler with this tau."""
        return Penalty(noise, clip=self.clip, proposal=self.proposal, components=self.components)

    def ready(self, target: Target, n: int) -> Penalty:
        """The sampler with every setting in place for this target, or a sentence."""
        clip = clip_or_lipschitz(self.clip, target)
        proposal = for_each(known(self.proposal, "proposal"), target.size, "proposal")
        return Penalty(known(self.noise, "noise"), clip=clip, proposal=proposal, components=self.components)

    def init(self, theta: Float[Array, " d"]) -> State:
        return State(theta, jnp.ones_like(theta))

    def step(
        self, key: Key, state: State, target: Target, table: Summable, *, probe: bool = False
    ) -> tuple[State, dict[str, Array]]:
        """One iteration. ``probe`` adds what only a test may see."""
        moving, releasing, deciding = jax.random.split(key, 3)
        new, chosen = propose(moving, state, known(self.proposal, "proposal"), self.components)
        ratio = private_ratio(releasing, state.theta, new, target, table, self, probe=probe)
        log_ratio = ratio.value + target.log_prior(new) - target.log_prior(state.theta)
        accepted = penalised(deciding, log_ratio, ratio.variance)
        info = {"accepted": accepted} | ({"log_ratio": log_ratio, "proposal": new} | ratio.probe if probe else {})
        return settle(state, new, chosen, accepted, self.components), info


class State(NamedTuple):
    """Theta, and the direction each component last moved in (all ones unless guided)."""

    theta: Float[Array, " d"]
    direction: Float[Array, " d"]


def propose(
    key: Key, state: State, sd: Float[Array, " d"], components: Components
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """A proposal, and a vector that is one at the components it moves."""
    one, two = jax.random.split(key)
    if components == "all":
        return state.theta + sd * jax.random.normal(one, state.theta.shape), jnp.ones_like(state.theta)
    chosen = jax.nn.one_hot(jax.random.randint(two, (), 0, state.theta.shape[0]), state.theta.shape[0])
    size = jax.random.normal(one)
    stride = state.direction * jnp.abs(size) if components == "guided" else size
    return state.theta + sd * stride * chosen, chosen


def settle(
    state: State, new: Float[Array, " d"], chosen: Float[Array, " d"], accepted: Bool[Array, ""], components: Components
) -> State:
    """The next state: a rejected guided move turns the direction of its component."""
    turned = jnp.where(accepted | (components != "guided"), state.direction, state.direction * (1 - 2 * chosen))
    return State(jnp.where(accepted, new, state.theta), turned)


class Ratio(NamedTuple):
    """A released tempered log-likelihood ratio, the variance of its noise, and what only a test may see."""

    value: Float[Array, ""]
    variance: Float[Array, ""]
    probe: dict[str, Array]


class Noised(Protocol):
    """A sampler with a noise tau and a clip bound."""

    @property
    def noise(self) -> Array | None: ...
    @property
    def clip(self) -> Array | None: ...


def private_ratio(
    key: Key,
    theta: Float[Array, " d"],
    new: Float[Array, " d"],
    target: Target,
    table: Summable,
    method: Noised,
    *,
    probe: bool = False,
) -> Ratio:
    """``T sum_i clip(log f(x_i|new)/f(x_i|theta))`` with its noise: one Gaussian release of all records."""
    bits = unit_bits(table.n)
    bound = known(method.clip, "clip") * jnp.sqrt(jnp.sum((new - theta) ** 2))

    def summand(records: Records) -> Any:
        ratios = target.log_ratios(theta, new, records)
        units = clip_ratios(ratios, bound, bits)
        return (units, clipped_ratio(ratios, bound)) if probe else units

    summed = table.total(summand)
    total = summed[0] if probe else summed
    unit = target.temper * bound / 2.0**bits
    released: Noisy = noisy(key, total, known(method.noise, "noise") * math.sqrt(table.n) * 2.0 ** (bits + 1))
    seen = (
        {"clip_fraction": summed[1] / table.n, "exact_ratio": unit * total, "noisy_ratio": unit * released.value}
        if probe
        else {}
    )
    return Ratio(unit * released.value, unit**2 * released.variance, seen)


def penalised(key: Key, log_ratio: Float[Array, ""], variance: Float[Array, ""]) -> Bool[Array, ""]:
    """The penalty acceptance test: ``log u < log_ratio - variance/2``."""
    return jnp.log(jax.random.uniform(key)) < log_ratio - 0.5 * variance
