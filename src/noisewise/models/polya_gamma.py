r"""Draws from the Polya-Gamma law PG(1, c), which make a logistic regression conditionally normal.

    exp(psi y) / (1 + exp(psi))  is proportional to  exp((y - 1/2) psi) E exp(-w psi^2 / 2),     w ~ PG(1, 0),

so given ``w ~ PG(1, psi)`` a binary response is a normal one, ``(y - 1/2) / w ~ N(psi, 1 / w)`` (Polson, Scott and Windle
2013). The sampler is Devroye's (2009): ``w = X / 4`` with X drawn from the series law J*(1, |c| / 2), left of 0.64 by rejection from
an inverse Gaussian law, right of it by an exponential one, and accepted on the alternating series, which happens in all but
one of 1,000 proposals. Exact; all elements are drawn at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jaxtyping import Array

from noisewise.typing import Key

_CUT = 0.64
_TERMS = 8


def polya_gamma(key: Key, c: Array) -> Array:
    """A draw of PG(1, c) for every element of ``c``.

    >>> import jax, jax.numpy as jnp
    >>> draws = polya_gamma(jax.random.key(0), jnp.full((10_000,), 2.0))
    >>> abs(float(draws.mean()) - float(jnp.tanh(1.0) / 4)) < 0.01
    True
    """
    z = 0.5 * jnp.abs(c)
    rate = jnp.pi**2 / 8 + 0.5 * z**2
    root = jnp.sqrt(_CUT)
    log_right = jnp.log(jnp.pi / 2) - jnp.log(rate) - rate * _CUT
    log_left = jnp.log(2.0) + jnp.logaddexp(log_ndtr((_CUT * z - 1) / root) - z, log_ndtr(-(_CUT * z + 1) / root) + z)
    share = jax.nn.sigmoid(log_right - log_left)

    def attempt(state: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, value, done = state
        key, side, tail, bulk, accept = jax.random.split(key, 5)
        on_right = jax.random.uniform(side, z.shape, dtype=float) < share
        right = _CUT + jax.random.exponential(tail, z.shape, dtype=float) / rate
        candidate = jnp.where(on_right, right, _truncated_inverse_gaussian(bulk, z, done | on_right))
        accepted = _accepted(candidate, jax.random.uniform(accept, z.shape, dtype=float))
        return key, jnp.where(done, value, candidate), done | accepted

    # a number that is none gives NaN and never an endless loop
    start = (key, jnp.full(z.shape, jnp.nan), ~jnp.isfinite(z))
    return lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)[1] / 4


def _truncated_inverse_gaussian(key: Key, z: Array, skip: Array) -> Array:
    """A draw of the inverse Gaussian law of mean 1/z and shape 1 on (0, 0.64), where it is not to be skipped."""
    narrow = z > 1 / _CUT
    mean = 1 / jnp.where(narrow, z, 1.0)

    def attempt(state: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, value, done = state
        key, first, second = jax.random.split(key, 3)
        u, v = jax.random.uniform(first, (2, *z.shape), dtype=float)
        # a mean beyond the cut: 1 / N^2 below the cut, tilted by exp(-z^2 x / 2)
        wide = 1 / ndtri((1 - u) * ndtr(-1 / jnp.sqrt(_CUT))) ** 2
        # a mean below it: the law of Michael, Schucany and Haas, until it falls below the cut
        square = mean * jax.random.normal(second, z.shape, dtype=float) ** 2
        # the smaller root, without cancellation
        small = mean / (1 + 0.5 * square + jnp.sqrt(square + 0.25 * square**2))
        root = jnp.where(v * (mean + small) <= mean, small, mean * (mean / small))
        candidate = jnp.where(narrow, root, wide)
        accepted = jnp.where(narrow, root < _CUT, jnp.log1p(-v) < -0.5 * z**2 * wide)
        return key, jnp.where(done, value, candidate), done | accepted

    return lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, (key, jnp.full(z.shape, 0.5 * _CUT), skip))[1]


def _accepted(x: Array, u: Array) -> Array:
    """Whether ``u a_0(x)`` lies below the alternating series ``a_0 - a_1 + a_2 - ...``, all relative to a_0."""
    left = x <= _CUT
    partial, verdict, decided = jnp.ones_like(x), jnp.ones_like(x, dtype=bool), jnp.zeros_like(x, dtype=bool)
    for n in range(1, _TERMS):
        odd = 2 * n + 1
        exponent = jnp.where(left, -2 * (n * (n + 1)) / x, -0.5 * n * (n + 1) * jnp.pi**2 * x)
        term = odd * jnp.exp(exponent)
        partial = partial - term if n % 2 else partial + term
        now = (u < partial) if n % 2 else (u > partial)
        verdict = jnp.where(now & ~decided, bool(n % 2), verdict)
        decided = decided | now
    return verdict
