r"""Leaps of theta to a draw from a normal law that knows how wide the noise is at this moment.

The normal model's target given the noise variances D is ``p(theta) N(y; n (H m + c), n H C H' + D)``. With the released mean and its
covariance taken at one point a (unconstrained), ``r(theta) = r + G (theta - a)`` and S, and with ``log p`` of slope g and
curvature -Q there, it is the normal law of

    precision  P = Q + G' (S + D)^-1 G,   mean  a + P^-1 (g + G' (S + D)^-1 (y - r)).

A *leap* proposes a draw of it, whatever theta was, and accepts with ``min(1, (target / normal)(new) / (target / normal)(old))``, which
leaves the target invariant for any a, G, S, g and Q that do not depend on theta. Where the posterior is narrow nearly every leap
is accepted, for noise of any width; where it is not, leaps fail and a random walk has to do the work.
Checked by ``tests/engines/test_sufficient_leaps.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.kernels.walk import LogTarget, Walked
from noisewise.models import triangular
from noisewise.typing import Key


class Reference(NamedTuple):
    """A normal law: its mean, and the Cholesky factor of its precision."""

    mean: Float[Array, " d"]
    factor: triangular.Matrix


class Tangent(eqx.Module):
    """The released mean, its slope and covariance, and the slope and curvature of the log prior, all at ``anchor``."""

    anchor: Float[Array, " d"]
    released: Float[Array, " m"]
    slope: Float[Array, "m d"]
    spread: Float[Array, "m m"]
    pull: Float[Array, " d"]
    curvature: Float[Array, "d d"]

    def reference(self, value: Float[Array, " m"], variances: Float[Array, " m"]) -> Reference:
        """The normal law of theta given a release and the variances of its noise."""
        outer = triangular.cholesky(triangular.matrix(self.spread + jnp.diag(variances)))
        gap = value - self.released
        white = jnp.stack(triangular.solve(outer, list(gap)))
        slopes = jnp.stack(triangular.solve(outer, list(self.slope)))
        precision = self.curvature + jnp.sum(slopes[:, :, None] * slopes[:, None, :], axis=0)
        right = self.pull + jnp.sum(slopes * white[:, None], axis=0)
        factor = triangular.cholesky(triangular.matrix(precision))
        step = triangular.solve_transposed(factor, triangular.solve(factor, list(right)))
        return Reference(self.anchor + jnp.stack(step), factor)


def leap(key: Key, log_target: LogTarget, position: Float[Array, " d"], reference: Reference) -> Walked:
    """One draw from the reference, accepted with the ratio of the target to it."""
    step_key, accept_key = jax.random.split(key)
    normals = jax.random.normal(step_key, position.shape, dtype=float)
    candidate = reference.mean + jnp.stack(triangular.solve_transposed(reference.factor, list(normals)))
    white = _whitened(reference.factor, position - reference.mean)
    # one evaluation at both points costs little more than one at either
    current, value = jax.vmap(log_target)(jnp.stack([position, candidate]))
    log_ratio = value - current + 0.5 * (jnp.sum(normals**2) - jnp.sum(white**2))
    # NaN compares false, so a candidate outside the target's domain is rejected
    accept = -jax.random.exponential(accept_key, dtype=float) < log_ratio
    probability = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return Walked(jnp.where(accept, candidate, position), jnp.where(accept, value, current), probability)


def _whitened(factor: triangular.Matrix, gap: Float[Array, " d"]) -> Float[Array, " d"]:
    """``L' gap``."""
    if not isinstance(factor, list):
        return factor.T @ gap
    return jnp.stack([triangular.dot([row[j] for row in factor[j:]], list(gap[j:])) for j in range(len(factor))])
