r"""A short Hamiltonian move on unconstrained vectors, by automatic differentiation.

Target ``exp(log_target(z))``; momentum ``p ~ N(0, M)`` with ``M^-1`` the covariance learnt in the tuning phase; ``leaps``
leapfrog steps, then the Metropolis test on ``H = -log_target + p' M^-1 p / 2``. The leapfrog map is reversible and keeps
volume, so the test makes the target invariant. Checked by ``tests/kernels/test_walk.py``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from noisewise.kernels.walk import LogTarget, Walk, Walked
from noisewise.typing import Key


def hamiltonian(key: Key, log_target: LogTarget, position: Float[Array, " d"], walk: Walk, *, leaps: int = 5) -> Walked:
    """One Hamiltonian move with step size ``exp(walk.log_scale)`` in the metric of the walk's covariance."""
    momentum_key, accept_key, jitter_key = jax.random.split(key, 3)
    value_and_slope = jax.value_and_grad(log_target)
    normals = jax.random.normal(momentum_key, position.shape, dtype=float)
    # in white coordinates z = L q the mass is the identity, and the slope is L' times the slope in z
    step = jnp.exp(walk.log_scale) * jax.random.uniform(jitter_key, minval=0.8, maxval=1.2, dtype=float)
    value, slope = value_and_slope(position)

    def leap(carry: Any, _: None) -> tuple[Any, None]:
        position, momentum, slope = carry[:3]
        momentum = momentum + 0.5 * step * walk.factor.T @ slope
        position = position + step * walk.factor @ momentum
        value, slope = value_and_slope(position)
        return (position, momentum + 0.5 * step * walk.factor.T @ slope, slope, value), None

    (moved, momentum, _, moved_value), _ = lax.scan(leap, (position, normals, slope, value), None, length=leaps)
    log_accept = moved_value - value + 0.5 * (jnp.sum(normals**2) - jnp.sum(momentum**2))
    accept = -jax.random.exponential(accept_key, dtype=float) < log_accept
    probability = jnp.where(jnp.isnan(log_accept), 0.0, jnp.exp(jnp.minimum(log_accept, 0.0)))
    return Walked(jnp.where(accept, moved, position), jnp.where(accept, moved_value, value), probability)
