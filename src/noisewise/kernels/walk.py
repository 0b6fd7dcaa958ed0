r"""The adaptive Gaussian random walk and the elliptical slice move on unconstrained vectors.

Both leave a density ``exp(log_target(z))`` invariant for any fixed :class:`Walk`; the walk (mean, covariance factor,
scales) changes only in the tuning phase.

- *Random walk*: ``z* = z + scale L e``, ``e ~ N(0, I)``, accepted with ``min(1, target(z*) / target(z))``.
- *Elliptical slice* (Murray, Adams and MacKay 2010) with the reference ``N(mean, L L')`` in place of a Gaussian prior: the
  target is the reference times ``target / reference``, so the move is valid for any target and needs no tuning.
- *Jump* (Adler 1981, with a Metropolis test): ``z* = mean - c (z - mean) + sqrt(1 - c^2) L e`` leaves the reference
  ``N(mean, L L')`` invariant and is reversible for it, so accepting with ``min(1, (target / reference)(z*) / (target / reference)(z))``
  leaves the target invariant. Where the reference is close to the target it crosses it in one move, to the other side: successive
  means are negatively correlated and average out sooner than independent draws.

Checked by ``tests/kernels/test_walk.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from noisewise.kernels.lanes import across_chains_maximum
from noisewise.models import triangular
from noisewise.typing import Key

LogTarget = Callable[[Float[Array, " d"]], Float[Array, ""]]
Correction = Callable[[Key, Float[Array, " d"], Float[Array, " d"]], Float[Array, ""]]
"""``(key, position, candidate)`` to what the log acceptance ratio holds beside the log target (an exchange step's part)."""

RANDOM_WALK, HAMILTONIAN = 0.3, 0.7
"""The acceptance rates that scales are tuned to."""
_COVARIANCE_FLOOR = 1e-10
_MOST_SHRINKS = 100
_OVERRELAXATION = 0.7


class Walk(eqx.Module):
    """What the tuning phase learns of a target: mean, covariance and its factor, and the scale of a random walk."""

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    factor: Float[Array, "d d"]
    log_scale: Float[Array, ""]
    seen: Float[Array, ""]

    @classmethod
    def start(cls, mean: Float[Array, " d"], covariance: Float[Array, "d d"], weight: float = 10.0) -> Walk:
        """A walk that trusts the given moments like ``weight`` draws."""
        d = mean.shape[0]
        return cls(
            mean=mean,
            covariance=covariance,
            factor=cholesky(covariance),
            log_scale=jnp.log(2.38 / jnp.sqrt(d)),
            seen=jnp.asarray(weight),
        )

    def learn(self, position: Float[Array, " d"], acceptance: Float[Array, ""], target: float = RANDOM_WALK) -> Walk:
        """The walk after one more tuning position (Haario, Saksman and Tamminen 2001; Andrieu and Thoms 2008).

        Weights decrease like 3/t so that the start of the tuning phase is forgotten.
        """
        rate = jnp.minimum(0.5, 3.0 / (self.seen + 3.0))
        step = position - self.mean
        mean = self.mean + rate * step
        covariance = (1 - rate) * (self.covariance + rate * jnp.outer(step, step))
        log_scale = self.log_scale + (acceptance - target) * 3.0 * (self.seen + 1.0) ** -0.6
        return Walk(mean, covariance, cholesky(covariance), log_scale, self.seen + 1.0)


def cholesky(covariance: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The Cholesky factor, with a relative floor on the pivots so that a degenerate covariance still gives a proposal.

    Written out for the small matrices of a walk.
    """
    d = covariance.shape[0]
    if d > 8:
        floor = _COVARIANCE_FLOOR * jnp.diag(covariance) + 1e-300
        return triangular.factorised(covariance + jnp.diag(floor))
    factor = [[jnp.zeros(())] * d for _ in range(d)]
    for i in range(d):
        for j in range(i + 1):
            rest = covariance[i, j]
            for k in range(j):
                rest = rest - factor[i][k] * factor[j][k]
            if i == j:
                factor[i][i] = jnp.sqrt(jnp.maximum(rest, _COVARIANCE_FLOOR * covariance[i, i] + 1e-300))
            else:
                factor[i][j] = rest / factor[j][j]
    return jnp.stack([jnp.stack(row) for row in factor])


class Walked(NamedTuple):
    """A position after several moves, its log target, and the mean acceptance probability."""

    position: Float[Array, " d"]
    log_target: Float[Array, ""]
    acceptance: Float[Array, ""]


def random_walk(
    key: Key,
    log_target: LogTarget,
    position: Float[Array, " d"],
    walk: Walk,
    *,
    moves: int,
    count: Int[Array, ""] | None = None,
    current: Float[Array, ""] | None = None,
    correction: Correction | None = None,
) -> Walked:
    """``moves`` steps of the random walk, or the first ``count`` (at least one) of them; ``current`` is the log target, if known."""
    step_key, accept_key, correction_key = jax.random.split(key, 3)
    normals = jax.random.normal(step_key, (moves, position.shape[0]), dtype=float)
    steps = jnp.exp(walk.log_scale) * jnp.sum(walk.factor * normals[:, None, :], axis=-1)
    log_uniform = -jax.random.exponential(accept_key, (moves,), dtype=float)

    mine = jnp.asarray(moves) if count is None else jnp.minimum(count, moves)
    turns = moves if count is None else across_chains_maximum(mine)

    def move(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        position, current, summed = carry
        candidate = position + steps[j]
        value = log_target(candidate)
        # NaN compares false, so a candidate outside the target's domain is rejected
        log_ratio = value - current
        if correction is not None:
            log_ratio = log_ratio + correction(jax.random.fold_in(correction_key, j), position, candidate)
        accept = (j < mine) & (log_uniform[j] < log_ratio)
        summed = summed + jnp.where(j < mine, _probability(log_ratio), 0.0)
        return jnp.where(accept, candidate, position), jnp.where(accept, value, current), summed

    start = (position, log_target(position) if current is None else current, jnp.zeros(()))
    position, value, summed = lax.fori_loop(0, turns, move, start)
    return Walked(position, value, summed / mine)


def jump(key: Key, log_target: LogTarget, position: Float[Array, " d"], walk: Walk) -> Walked:
    """One jump to the other side of the walk's mean, with the walk's mean and covariance as the reference."""
    step_key, accept_key = jax.random.split(key)
    white = _whiten(walk.factor, position - walk.mean)
    normals = jax.random.normal(step_key, position.shape, dtype=float)
    jumped = jnp.sqrt(1 - _OVERRELAXATION**2) * normals - _OVERRELAXATION * white
    candidate = walk.mean + jnp.sum(walk.factor * jumped, axis=-1)
    # one evaluation at both points costs little more than one at either
    current, value = jax.vmap(log_target)(jnp.stack([position, candidate]))
    log_ratio = value - current + 0.5 * (jnp.sum(jumped**2) - jnp.sum(white**2))
    accept = -jax.random.exponential(accept_key, dtype=float) < log_ratio
    moved = jnp.where(accept, candidate, position)
    return Walked(moved, jnp.where(accept, value, current), _probability(log_ratio))


def _probability(log_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """The acceptance probability of a log ratio; none outside the target's domain."""
    return jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))


def _whiten(factor: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """``L^-1 v``, written out where the factor is small, as in :func:`cholesky`."""
    d = vector.shape[0]
    if d > 8:
        return triangular.forward(factor, vector)
    solved: list[Array] = []
    for i in range(d):
        rest = vector[i]
        for k in range(i):
            rest = rest - factor[i, k] * solved[k]
        solved.append(rest / factor[i, i])
    return jnp.stack(solved)


def elliptical_slice(key: Key, log_target: LogTarget, position: Float[Array, " d"], walk: Walk) -> Walked:
    """One elliptical slice move with the walk's mean and covariance as the reference."""
    normal_key, level_key, angle_key, shrink_key = jax.random.split(key, 4)
    here = _whiten(walk.factor, position - walk.mean)
    other = jax.random.normal(normal_key, here.shape, dtype=float)

    def log_ratio(white: Array) -> Array:
        return log_target(walk.mean + walk.factor @ white) + 0.5 * jnp.sum(white**2)

    def point(angle: Array) -> Array:
        return here * jnp.cos(angle) + other * jnp.sin(angle)

    def shrink(carry: Any) -> Any:
        angle, low, high, _, tries = carry
        low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
        angle = low + (high - low) * jax.random.uniform(jax.random.fold_in(shrink_key, tries), dtype=float)
        return angle, low, high, log_ratio(point(angle)), tries + 1

    current = log_ratio(here)
    level = current - jax.random.exponential(level_key, dtype=float)
    angle = jax.random.uniform(angle_key, dtype=float, maxval=2 * jnp.pi)
    start = (angle, angle - 2 * jnp.pi, angle, log_ratio(point(angle)), jnp.zeros((), dtype=int))
    angle, _, _, value, tries = lax.while_loop(
        lambda carry: ~(carry[3] > level) & (carry[4] < _MOST_SHRINKS), shrink, start
    )
    found = value > level  # the bracket closes on the current point, where the ratio is above the level
    landed = jnp.where(found, point(angle), here)
    value = jnp.where(found, value, current)
    return Walked(walk.mean + walk.factor @ landed, value - 0.5 * jnp.sum(landed**2), 1.0 / (1.0 + tries.astype(float)))
