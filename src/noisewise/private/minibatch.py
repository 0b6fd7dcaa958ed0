r"""The penalty algorithm on a batch (Section 3.4 of the thesis): approximate, by the normal law of a batch's error.

One iteration draws a batch B of b records without replacement and releases ``lambda* - s^2/2`` with noise ``N(0, sigma^2)``:

    u_j = (n T / b) clip(log f(x_j|theta')/f(x_j|theta)),   lambda* = sum_j u_j,   s^2 = sum_j u_j^2 - (sum_j u_j)^2 / b,

and accepts with probability ``min(1, exp(released + log p(theta')/p(theta) - sigma^2/2))``: the penalty for the privacy
noise and for the batch's, whose variance is estimated by ``s^2``. With clip bound L and ``d = ||theta' - theta||``, ``A
= n T L d / b``, the sensitivity of what is released, under substitution of one record of the batch, is exactly

    c = 2A + 2(1 - 1/b) A^2

*Proof.* Substituting w for u changes ``lambda* - s^2/2`` by ``(w-u)(1 + R/b) - (1 - 1/b)(w^2 - u^2)/2``, R the sum of
the other ``b - 1`` terms, at most ``(b-1)A``. At ``R = (b-1)A`` the derivative in w is ``1 + (1-1/b)(A - w) > 0``, and
the same in ``-u``, so the largest change is at ``w = A, u = -A``. (The thesis adds two separate bounds, up to 1.5 times
larger.) The noise has ``sigma^2 = tau c^2``. Checked by ``test_minibatch_sensitivity_is_attained_and_never_exceeded``.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from noisewise.private.accounting import checked_whole
from noisewise.private.clipping import clip_ratios, clipped_ratio, square_bits
from noisewise.private.ledger import BatchGaussianStep, Step
from noisewise.private.mechanism import noisy_real, power_of_two
from noisewise.private.penalty import (
    Components,
    State,
    clip_or_lipschitz,
    for_each,
    known,
    penalised,
    propose,
    setting,
    settle,
)
from noisewise.private.records import draw_batch
from noisewise.private.target import Target
from noisewise.typing import Key, Records


class Batched(Protocol):
    """What a batch sampler needs of the records: their number, and rows of them."""

    @property
    def n(self) -> int: ...
    def take(self, rows: Int[Array, " b"]) -> Records: ...


class MinibatchPenalty(eqx.Module):
    """DP penalty on batches: noise variance ``noise`` times the squared sensitivity (the thesis's tau), ``batch`` records an iteration.

    >>> MinibatchPenalty(noise=0.49, batch=1000, clip=1.0, proposal=0.001).steps(100_000)
    [BatchGaussianStep(sensitivity=1.0, scale=0.7, batch=1000, n=100000, count=1)]
    """

    noise: Array | None
    clip: Array | None
    proposal: Array | None
    batch: int = eqx.field(static=True)
    components: Components = eqx.field(static=True)

    def __init__(
        self, noise: Any = None, *, batch: int, clip: Any = None, proposal: Any = None, components: Components = "all"
    ) -> None:
        if components not in ("all", "one", "guided"):
            raise ValueError(f"components must be 'all', 'one' or 'guided'; got {components!r}.")
        self.noise, self.clip = setting(noise, "noise"), setting(clip, "clip")
        self.proposal, self.components = setting(proposal, "proposal", vector=True), components
        self.batch = checked_whole(batch, "batch", 2)

    @property
    def name(self) -> str:
        return f"minibatch penalty, batch={self.batch}, components={self.components}"

    def steps(self, n: int) -> list[Step]:
        """What one iteration releases, in units of its sensitivity: neighbours replace_one, batches without replacement."""
        scale = math.sqrt(float(known(self.noise, "noise")))
        return [BatchGaussianStep(sensitivity=1.0, scale=scale, batch=self.batch, n=n)]

    def with_noise(self, noise: float) -> MinibatchPenalty:
        """The same sampler with this tau."""
        return MinibatchPenalty(
            noise, batch=self.batch, clip=self.clip, proposal=self.proposal, components=self.components
        )

    def ready(self, target: Target, n: int) -> MinibatchPenalty:
        """The sampler with every setting in place for this target, or a sentence."""
        clip = clip_or_lipschitz(self.clip, target)
        proposal = for_each(known(self.proposal, "proposal"), target.size, "proposal")
        return MinibatchPenalty(
            known(self.noise, "noise"), batch=self.batch, clip=clip, proposal=proposal, components=self.components
        )

    def init(self, theta: Float[Array, " d"]) -> State:
        return State(theta, jnp.ones_like(theta))

    def step(
        self, key: Key, state: State, target: Target, table: Batched, *, probe: bool = False
    ) -> tuple[State, dict[str, Array]]:
        """One iteration. ``probe`` adds what only a test may see."""
        moving, drawing, releasing, deciding = jax.random.split(key, 4)
        new, chosen = propose(moving, state, known(self.proposal, "proposal"), self.components)
        batch = table.take(draw_batch(drawing, table.n, self.batch))
        bound = known(self.clip, "clip") * jnp.sqrt(jnp.sum((new - state.theta) ** 2))
        ratios = target.log_ratios(state.theta, new, batch)
        most = table.n * target.temper * bound / self.batch
        value = penalised_sum(ratios, bound, most)
        sensitivity = joint_sensitivity(most, self.batch)
        scale = jnp.sqrt(known(self.noise, "noise"))
        released = noisy_real(releasing, value / sensitivity, scale, power_of_two(scale / 1024))
        log_ratio = sensitivity * released.value + target.log_prior(new) - target.log_prior(state.theta)
        accepted = penalised(deciding, log_ratio, sensitivity**2 * released.variance)
        info = {"accepted": accepted}
        if probe:
            info |= {"log_ratio": log_ratio, "proposal": new, "clip_fraction": jnp.mean(clipped_ratio(ratios, bound))}
        return settle(state, new, chosen, accepted, self.components), info


def penalised_sum(ratios: Float[Array, " b"], bound: Float[Array, ""], most: Float[Array, ""]) -> Float[Array, ""]:
    """``lambda* - s^2/2`` of a batch: each clipped ratio scaled so that its bound is ``most``; sums of whole numbers, exact."""
    batch = ratios.shape[0]
    bits = square_bits(batch)
    units = clip_ratios(ratios, bound, bits)
    total, squares = jnp.sum(units), jnp.sum(units * units)
    unit = most / 2.0**bits
    return unit * total - 0.5 * unit**2 * (squares - total**2 / batch)


def joint_sensitivity(most: Float[Array, ""], batch: int) -> Float[Array, ""]:
    """``2A + 2(1 - 1/b) A^2`` (see the module)."""
    return 2 * most + 2 * (1 - 1 / batch) * most**2
