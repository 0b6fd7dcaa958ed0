r"""Gamma and Dirichlet draws that stay cheap inside compiled loops.

Marsaglia and Tsang (2000): with ``d = a - 1/3`` and ``c = 1 / sqrt(9 d)``, a standard normal z is turned into
``d v``, ``v = (1 + c z)^3``, accepted with probability ``min(1, exp(z^2/2 + d (1 - v + log v)))``; at least 95% are.
For ``a < 1`` a draw with shape ``a + 1`` is multiplied by ``U^(1/a)``. A few candidates are drawn for every element in
one call, and a loop finishes the elements (about one in 10^5) none of whose candidates was accepted. Everything stays
in logs, because at small shapes a draw underflows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.typing import Key

_CANDIDATES = 4


def log_gamma(key: Key, shape: Array) -> Array:
    """The logarithm of gamma draws with unit rate, one for each element of ``shape``."""
    boosted = jnp.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    c = 1 / jnp.sqrt(9 * d)
    # a shape that is no shape gives NaN and never an endless loop
    hopeless = ~((shape > 0) & (shape < jnp.inf))
    again, key, boost = jax.random.split(key, 3)

    def propose(key: Key) -> tuple[Array, Array]:
        first, second = jax.random.split(key)
        z = jax.random.normal(first, (_CANDIDATES, *shape.shape))
        tilt = -jax.random.exponential(second, (_CANDIDATES, *shape.shape))
        t = c * z
        inside = t > -1
        log_root = jnp.log1p(jnp.where(inside, t, 0.0))
        # z^2/2 + d (1 - v + log v) with v = (1 + t)^3, arranged to keep its digits at large shapes
        accept = inside & (tilt < d * (3 * (log_root - t) + t**2 * (1.5 - t)))
        first_accepted = jnp.argmax(accept, axis=0)
        chosen = jnp.take_along_axis(log_root, first_accepted[None], axis=0)[0]
        return jnp.any(accept, axis=0) | hopeless, jnp.where(hopeless, jnp.nan, chosen)

    def unfinished(carry: tuple[Key, Array, Array]) -> Array:
        return ~jnp.all(carry[1])

    def retry(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, done, log_root = carry
        key, now = jax.random.split(key)
        accepted, candidate = propose(now)
        return key, done | accepted, jnp.where(done, log_root, candidate)

    _, _, log_root = jax.lax.while_loop(unfinished, retry, (again, *propose(key)))
    power = jnp.where(shape < 1, -jax.random.exponential(boost, shape.shape) / shape, 0.0)
    return jnp.log(d) + 3 * log_root + power


def dirichlet(key: Key, weights: Array) -> Array:
    """Dirichlet draws along the last axis."""
    return jax.nn.softmax(log_gamma(key, weights), axis=-1)


def log_dirichlet(probabilities: Array, weights: Array) -> Array:
    """The log density of Dirichlet laws, one for each row of the last axis."""
    normaliser = jax.scipy.special.gammaln(jnp.sum(weights, axis=-1)) - jnp.sum(
        jax.scipy.special.gammaln(weights), axis=-1
    )
    return normaliser + jnp.sum(jax.scipy.special.xlogy(weights - 1, probabilities), axis=-1)
