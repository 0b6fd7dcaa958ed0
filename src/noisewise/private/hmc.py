r"""DP-HMC (Algorithm 4 of the thesis): Hamiltonian proposals from noisy clipped gradients, penalty acceptance.

With ``G(theta) = T (sum_i clip(grad log f(x_i|theta)) + noise) + grad log p(theta)``, every gradient a release with
fresh noise, one iteration draws ``p ~ N(0, M)`` and makes L leapfrog steps

    p += step/2 G(theta);   theta += step M^-1 p;   p += step/2 G(theta)

sharing the gradient between neighbouring half steps: L + 1 gradients. It accepts with the penalty test on the noisy
clipped log-likelihood ratio plus ``log p(theta')/p(theta) + p'M^-1p/2 - p''M^-1p''/2``. (The printed algorithm leaves
the step size out of the position update, and compares u where it means log u.)

*Why it leaves the posterior invariant.* Given its noise a trajectory with its final momentum turned is a composition,
symmetric in reading order, of involutions that preserve volume; the noises of the way back are those of the way there in
the opposite order, and have the same law. So the proposal is reversible with respect to Lebesgue measure whatever the
gradients are, noisy and clipped or not: only clipped RATIOS bias it
(``test_hmc_proposal_is_reversible_to_machine_precision_given_its_noise``). The step may be jittered: drawn anew for each
iteration, it is the same both ways.

Cost of an iteration: ``mu = 1/(2 tau^2 n) + (L + 1)/(2 tau_g^2 n)``; the noise of a gradient has sd ``2 tau_g sqrt(n) b_g`` in every entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.private.accounting import checked_whole
from noisewise.private.clipping import clip_gradients, clipped_gradient, unit_bits
from noisewise.private.ledger import GaussianStep, Step
from noisewise.private.mechanism import noisy
from noisewise.private.penalty import Summable, clip_or_lipschitz, for_each, known, penalised, private_ratio, setting
from noisewise.private.target import Target
from noisewise.typing import Key, Records


class State(NamedTuple):
    """Theta; momentum is drawn afresh in every iteration."""

    theta: Float[Array, " d"]


class Phase(NamedTuple):
    """A point of a trajectory: position and momentum."""

    theta: Float[Array, " d"]
    momentum: Float[Array, " d"]


class Mass(NamedTuple):
    """What a trajectory needs of M: a root, to draw momenta, and the inverse; both diagonal or both matrices."""

    root: Float[Array, "..."]
    inverse: Float[Array, "..."]

    def momentum(self, key: Key, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """A momentum ``N(0, M)``."""
        draw = jax.random.normal(key, theta.shape)
        return self.root @ draw if self.root.ndim == 2 else self.root * draw

    def velocity(self, momentum: Float[Array, " d"]) -> Float[Array, " d"]:
        """``M^-1 p``."""
        return self.inverse @ momentum if self.inverse.ndim == 2 else self.inverse * momentum


def split_mass(mass: Float[Array, "..."]) -> Mass:
    """The root and inverse of a mass."""
    if mass.ndim == 2:
        return Mass(jnp.linalg.cholesky(mass), jnp.linalg.inv(mass))
    return Mass(jnp.sqrt(mass), 1 / mass)


class HMC(eqx.Module):
    """DP-HMC: ``noise`` and ``clip`` for the ratio, ``gradient_noise`` and ``gradient_clip`` for the gradients.

    ``step`` is the leapfrog step, ``leapfrog`` its number L, ``mass`` a number, a diagonal or a matrix (default one),
    and ``jitter`` j draws the step of each iteration from ``step (1 +- j)``.

    >>> method = HMC(noise=0.1, gradient_noise=0.4, clip=2.0, gradient_clip=1.0, step=0.0005, leapfrog=10)
    >>> [step.count for step in method.steps(100_000)]
    [1, 11]
    """

    noise: Array | None
    gradient_noise: Array | None
    clip: Array | None
    gradient_clip: Array | None
    step_size: Array | None
    mass: Array
    split: Mass
    jitter: Array
    leapfrog: int = eqx.field(static=True)

    def __init__(
        self,
        noise: Any = None,
        *,
        gradient_noise: Any = None,
        clip: Any = None,
        gradient_clip: Any = None,
        step: Any = None,
        leapfrog: int = 10,
        mass: Any = 1.0,
        jitter: Any = 0.0,
    ) -> None:
        if not isinstance(jitter, jax.core.Tracer) and not (np.ndim(jitter) == 0 and 0 <= jitter < 1):
            raise ValueError(f"jitter must be a number in [0, 1); got {jitter!r}.")
        self.noise, self.gradient_noise = setting(noise, "noise"), setting(gradient_noise, "gradient_noise")
        self.clip, self.gradient_clip = setting(clip, "clip"), setting(gradient_clip, "gradient_clip")
        self.step_size, self.leapfrog = setting(step, "step"), checked_whole(leapfrog, "leapfrog")
        self.mass, self.jitter = checked_mass(mass), jnp.asarray(jitter, dtype=float)
        self.split = split_mass(self.mass)

    @property
    def name(self) -> str:
        return f"HMC, leapfrog={self.leapfrog}"

    def steps(self, n: int) -> list[Step]:
        """What one iteration releases, in units of the clip bounds: neighbours replace_one."""
        root = math.sqrt(n)
        ratio = GaussianStep(sensitivity=2.0, scale=2.0 * float(known(self.noise, "noise")) * root)
        scale = 2.0 * float(known(self.gradient_noise, "gradient_noise")) * root
        return [ratio, GaussianStep(sensitivity=2.0, scale=scale, count=self.leapfrog + 1)]

    def with_noise(self, noise: float) -> HMC:
        """The same sampler with this tau for the ratio and, unless it was given, the same one for the gradients."""
        gradient = noise if self.gradient_noise is None else self.gradient_noise
        return self._with(noise=noise, gradient_noise=gradient)

    def ready(self, target: Target, n: int) -> HMC:
        """The sampler with every setting in place for this target, or a sentence."""
        known(self.noise, "noise"), known(self.gradient_noise, "gradient_noise"), known(self.step_size, "step")
        if self.mass.ndim == 2 and self.mass.shape != (target.size, target.size):
            raise ValueError(f"mass has shape {self.mass.shape} and the target {target.size} parameters.")
        mass = self.mass if self.mass.ndim == 2 else for_each(self.mass, target.size, "mass")
        return self._with(
            clip=clip_or_lipschitz(self.clip, target),
            gradient_clip=clip_or_lipschitz(self.gradient_clip, target, "gradient_clip"),
            mass=mass,
        )

    def _with(self, **changes: Any) -> HMC:
        settings = {
            "noise": self.noise,
            "gradient_noise": self.gradient_noise,
            "clip": self.clip,
            "gradient_clip": self.gradient_clip,
            "step": self.step_size,
            "leapfrog": self.leapfrog,
            "mass": self.mass,
            "jitter": self.jitter,
        }
        return HMC(**(settings | changes))

    def init(self, theta: Float[Array, " d"]) -> State:
        return State(theta)

    def step(
        self, key: Key, state: State, target: Target, table: Summable, *, probe: bool = False
    ) -> tuple[State, dict[str, Array]]:
        """One iteration. ``probe`` adds what only a test may see."""
        pushing, jittering, gradients, releasing, deciding = jax.random.split(key, 5)
        keys = jax.random.split(gradients, self.leapfrog + 1)

        def gradient(theta: Array, index: Array) -> tuple[Array, Array]:
            return private_gradient(keys[index], theta, target, table, self, probe=probe)

        start = Phase(state.theta, self.split.momentum(pushing, state.theta))
        stride = known(self.step_size, "step") * (1 + self.jitter * jax.random.uniform(jittering, minval=-1.0))
        end, clipped = trajectory(start, gradient, stride, self.split, self.leapfrog)
        ratio = private_ratio(releasing, start.theta, end.theta, target, table, self, probe=probe)
        kinetic = 0.5 * (
            jnp.dot(start.momentum, self.split.velocity(start.momentum))
            - jnp.dot(end.momentum, self.split.velocity(end.momentum))
        )
        log_ratio = ratio.value + target.log_prior(end.theta) - target.log_prior(start.theta) + kinetic
        accepted = penalised(deciding, log_ratio, ratio.variance)
        info = {"accepted": accepted}
        if probe:
            info |= {"log_ratio": log_ratio, "gradient_clip_fraction": clipped} | ratio.probe
        return State(jnp.where(accepted, end.theta, start.theta)), info


def checked_mass(mass: Any) -> Float[Array, "..."]:
    """A mass: positive numbers, or a symmetric positive definite matrix."""
    if isinstance(mass, jax.core.Tracer):
        return mass
    value = np.asarray(mass, dtype=float)
    if value.ndim == 2:
        right = np.allclose(value, value.T) and bool(np.all(np.linalg.eigvalsh(value) > 0))
    else:
        right = value.ndim <= 1 and bool(np.all(np.isfinite(value) & (value > 0)))
    if not right:
        raise ValueError(f"mass must be positive, or a symmetric positive definite matrix; got {mass!r}.")
    return jnp.asarray(value)


def trajectory(
    start: Phase,
    gradient: Callable[[Array, Array], tuple[Array, Array]],
    stride: Float[Array, ""],
    mass: Mass,
    leapfrog: int,
) -> tuple[Phase, Float[Array, ""]]:
    """The leapfrog's end, its momentum turned; ``gradient(theta, j)`` is the j-th released gradient and what a test sees of it."""
    first, seen = gradient(start.theta, jnp.asarray(0))

    def leap(carry: tuple[Phase, Array], index: Array) -> tuple[tuple[Phase, Array], Array]:
        (theta, momentum), slope = carry
        momentum = momentum + 0.5 * stride * slope
        theta = theta + stride * mass.velocity(momentum)
        slope, seen = gradient(theta, index)
        return (Phase(theta, momentum + 0.5 * stride * slope), slope), seen

    (end, _), more = jax.lax.scan(leap, (start, first), jnp.arange(1, leapfrog + 1))
    return Phase(end.theta, -end.momentum), (seen + jnp.sum(more)) / (leapfrog + 1)


def private_gradient(
    key: Key, theta: Float[Array, " d"], target: Target, table: Summable, method: HMC, *, probe: bool = False
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """``T sum_i clip(grad log f(x_i|theta)) + noise + grad log p(theta)``: one Gaussian release of all records."""
    bits = unit_bits(table.n)
    bound = known(method.gradient_clip, "gradient_clip")

    def summand(records: Records) -> Any:
        gradients = target.gradients(theta, records)
        units = clip_gradients(gradients, bound, bits)
        return (units, clipped_gradient(gradients, bound)) if probe else units

    summed = table.total(summand)
    total = summed[0] if probe else summed
    scale = known(method.gradient_noise, "gradient_noise") * math.sqrt(table.n) * 2.0 ** (bits + 1)
    value = target.temper * bound / 2.0**bits * noisy(key, total, scale).value
    clipped = summed[1] / table.n if probe else jnp.zeros(())
    return value + jax.grad(target.log_prior)(theta), clipped
