r"""Draws the counts engine makes after its sums are done: gammas, Dirichlets, and counts from cumulative tables.

Gammas follow Marsaglia and Tsang (2000): with ``d = a - 1/3`` and ``c = 1 / sqrt(9 d)`` a standard normal z becomes
``d v``, ``v = (1 + c z)^3``, accepted with probability ``min(1, exp(z^2/2 + d (1 - v + log v)))``; for ``a < 1`` a draw of
shape ``a + 1`` is multiplied by ``U^(1/a)``. Every element gets one candidate; the few refused ones (2% at a = 2) take
fresh candidates from a small common pool, each its own, until none is left: exact, and a fifth of the cost of drawing
several candidates for everyone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from noisewise.typing import Key


def log_gammas(key: Key, shape: Float[Array, " m"]) -> Float[Array, " m"]:
    """The logarithms of independent gamma draws with unit rate, one for each element of ``shape``."""
    boosted = jnp.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    c = 1 / jnp.sqrt(9 * d)
    size = shape.shape[0]
    pool = min(size, 4 + size // 16)
    first, again, boost = jax.random.split(key, 3)

    def candidates(key: Key, count: int) -> tuple[Array, Array]:
        normal_key, exponential_key = jax.random.split(key)
        return (
            jax.random.normal(normal_key, (count,), dtype=float),
            jax.random.exponential(exponential_key, (count,), dtype=float),
        )

    def test(z: Array, threshold: Array) -> tuple[Array, Array]:
        t = c * z
        inside = t > -1
        log_root = jnp.log1p(jnp.where(inside, t, 0.0))
        # z^2/2 + d (1 - v + log v) with v = (1 + t)^3, arranged to keep its digits at large shapes
        return inside & (-threshold < d * (3 * (log_root - t) + t**2 * (1.5 - t))), log_root

    def retry(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, done, log_root = carry
        key, now = jax.random.split(key)
        z, threshold = candidates(now, pool)
        place = jnp.cumsum(~done) - 1
        mine = ~done & (place < pool)
        place = jnp.clip(place, 0, pool - 1)
        accepted, candidate = test(z[place], threshold[place])
        accepted = accepted & mine
        return key, done | accepted, jnp.where(accepted, candidate, log_root)

    start = (again, *test(*candidates(first, size)))
    _, _, log_root = jax.lax.while_loop(lambda carry: ~jnp.all(carry[1]), retry, start)
    power = jnp.where(shape < 1, jax.random.exponential(boost, shape.shape, dtype=float) / shape, 0.0)
    return jnp.log(d) + 3 * log_root - power


def search(tables: Float[Array, "*tables width"], index: tuple[Array, ...], u: Float[Array, "*m"]) -> Int[Array, "*m"]:
    """The first position at which row ``tables[index]`` of a cumulative table exceeds ``u``, by bisection."""
    width = tables.shape[-1]
    found = jnp.zeros(u.shape, dtype=int)
    for step in reversed(range((width - 1).bit_length())):
        ahead = found + 2**step
        below = tables[(*index, jnp.minimum(ahead, width) - 1)] <= u
        found = jnp.where(below & (ahead < width), ahead, found)
    return found
