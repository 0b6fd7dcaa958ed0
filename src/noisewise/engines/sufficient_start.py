r"""Where chains of the ``sufficient`` engine start: at modes of the normal model's posterior, found by climbing from the prior.

The noise is taken as normal with its own variance for this, so that ``p(theta) N(y; n (H m + c), n H C H' + W)`` is smooth. From
draws of the prior it is climbed by damped Fisher scoring (Levenberg 1944; Marquardt 1963) with the information of the mean and
the prior's own precision. Chains at large n started from the prior would sit far from the posterior for a whole
run, because Laplace noise explains any residual at a price that is only linear.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from noisewise.kernels.statistics import StatisticsKernel
from noisewise.kernels.tangent import Tangent
from noisewise.typing import Key

_CLIMBERS = 32
_PRIOR_DRAWS = 256
_STEPS = 60
_RIDGE = 1e-6
_LEAST_NOISE = 1e-11
_LEAST_DAMPING, _MOST_DAMPING = 1e-12, 1e12


class Summit(NamedTuple):
    """Climbers' ends, drawn in proportion to their posterior densities, the highest one with the covariance about it, and its tangent."""

    modes: Float[Array, "climbers d"]
    best: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    tangent: Tangent


@eqx.filter_jit
def climb(key: Key, kernel: StatisticsKernel) -> Summit:
    """Modes of theta in unconstrained space, with the noise taken as normal."""
    model, variances = kernel.model, kernel.noise.variances(jnp.full_like(kernel.value, 2.0))
    prior_key, choice_key = jax.random.split(key)
    draws = jax.vmap(lambda k: model.unconstrain(model.sample_prior(k)))(jax.random.split(prior_key, _PRIOR_DRAWS))
    d = draws.shape[1]
    spread = jnp.atleast_2d(jnp.cov(draws, rowvar=False))
    precision = jnp.linalg.inv(spread + _RIDGE * jnp.diag(jnp.diag(spread)) + 1e-30 * jnp.eye(d))

    def tangent(free: Array) -> Tangent:
        def released(free: Array) -> Array:
            return kernel.law.released(kernel.n * kernel.law.moments(model.constrain(free)).mean, kernel.n)

        slope = jax.jacfwd(released)(free)
        covariance = kernel.n * kernel.law.moments(model.constrain(free)).covariance
        spread = kernel.law.matrix @ covariance @ kernel.law.matrix.T
        spread = spread + _LEAST_NOISE * jnp.diag(jnp.diag(spread))
        return Tangent(free, released(free), slope, spread, jax.grad(model.log_prior_free)(free), precision)

    def information(free: Array) -> Array:
        found = tangent(free)
        return found.slope.T @ jnp.linalg.solve(found.spread + jnp.diag(variances), found.slope) + precision

    def height(free: Array) -> Array:
        return kernel.log_target(free, variances)

    def one(free: Array) -> tuple[Array, Array]:
        def step(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            free, value, damping = carry
            known = information(free)
            damped = known + damping * jnp.diag(jnp.diag(known))
            candidate = free + jnp.linalg.solve(damped, jax.grad(height)(free))
            found = height(candidate)
            # NaN compares false, so a candidate outside the domain is given up
            higher = found > value
            damping = jnp.clip(jnp.where(higher, 0.2 * damping, 8.0 * damping), _LEAST_DAMPING, _MOST_DAMPING)
            return jnp.where(higher, candidate, free), jnp.where(higher, found, value), damping

        value = height(free)
        begun = (free, jnp.where(jnp.isnan(value), -jnp.inf, value), jnp.ones(()))
        return lax.fori_loop(0, _STEPS, step, begun)[:2]

    ends, heights = jax.vmap(one)(draws[:_CLIMBERS])
    chosen = jax.random.categorical(choice_key, heights, shape=(_CLIMBERS,))
    best = ends[jnp.argmax(heights)]
    return Summit(ends[chosen], best, jnp.linalg.inv(information(best)), tangent(best))
