r"""Half-line masses and quantiles of the normal law, on the real line and on a lattice, relative to their nearer end.

Plain differences of distribution functions cancel to zero in the tails. Everything here is written relative to the density at the
inner end ``a >= 0`` of the interval, with Mills' ratio R(a) = (1 - Phi(a)) / phi(a):

    int_a^c exp(-(t^2 - a^2)/2) dt = R(a) - exp(-(c - a)(c + a)/2) R(c),

by Gauss-Legendre quadrature where the two terms nearly agree. The lattice sums  sum_{j<m} exp(-((a + j)^2 - a^2) / 2 s^2)  are
summed term by term while that takes few terms and by the Euler-Maclaurin formula with midpoints otherwise.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial, log, pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfcx
from jaxtyping import Array

_LEGENDRE = np.polynomial.legendre.leggauss(10)
_NODES, _NODE_WEIGHTS = 0.5 * (_LEGENDRE[0] + 1), 0.5 * _LEGENDRE[1]
_TERMS = 80
_NEGLIGIBLE = 40.0
_BERNOULLI = (
    Fraction(1, 6),
    Fraction(-1, 30),
    Fraction(1, 42),
    Fraction(-1, 30),
    Fraction(5, 66),
    Fraction(-691, 2730),
)
_MIDPOINT = tuple(
    float((Fraction(1, 2 ** (2 * j - 1)) - 1) * number / factorial(2 * j)) for j, number in enumerate(_BERNOULLI, 1)
)
_NEWTON_STEPS = 6
TINY = 1e-300


def log1mexp(x: Array) -> Array:
    """``log(1 - exp(-x))`` for ``x >= 0``, accurate at both ends."""
    return jnp.where(x < 0.7, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


def mills(a: Array) -> Array:
    """Mills' ratio of the standard normal law, ``(1 - Phi(a)) / phi(a)``, for ``a >= -5``."""
    # erfcx of JAX 0.10 is zero between 26.54 and 26.64, so the asymptotic series takes over before
    square = 1 / jnp.maximum(a, 20.0) ** 2
    series = jnp.ones_like(square)
    for k in range(8, 0, -1):
        series = 1 - (2 * k - 1) * square * series
    return jnp.where(a > 20.0, series / jnp.maximum(a, 20.0), sqrt(pi / 2) * erfcx(jnp.minimum(a, 20.0) / sqrt(2.0)))


def relative_mass(a: Array, c: Array) -> Array:
    """``int_a^c exp(-(t^2 - a^2) / 2) dt`` for ``-5 <= a <= c <= inf``."""
    a, c = jnp.broadcast_arrays(a, c)
    width = c - a
    fall = width * (0.5 * (c + a))
    close = fall < 1.0
    span = jnp.where(close, width, 0.0)
    t = span[..., None] * _NODES
    near = jnp.sum(_NODE_WEIGHTS * jnp.exp(-t * (a[..., None] + 0.5 * t)), axis=-1)
    return jnp.where(close, span * near, mills(a) - jnp.exp(-fall) * mills(c))


def normal_log_mass(a: Array, c: Array) -> Array:
    """``log(Phi(c) - Phi(a))`` for ``0 <= a <= c <= inf``."""
    return -0.5 * a * a - 0.5 * jnp.log(2 * jnp.pi) + jnp.log(relative_mass(a, c))


def _descend(a: Array, ratio: Array, level: Array) -> Array:
    """The ``d >= 0`` with log[(1 - Phi(a + d)) / (1 - Phi(a))] = ``level``, for ``a >= 0`` and its Mills' ratio.

    Newton's method descends to the root because the left side is concave in d and the start is beyond the root.
    """

    def newton(_: int, d: Array) -> Array:
        there = mills(a + d)
        return jnp.maximum(d + there * (jnp.log(there / ratio) - d * (a + 0.5 * d) - level), 0.0)

    start = jnp.minimum(-2 * level / jnp.maximum(jnp.sqrt(a * a - 2 * level) + a, TINY), -level * ratio)
    return jax.lax.fori_loop(0, _NEWTON_STEPS, newton, start)


def normal_quantile(v: Array, a: Array, c: Array) -> Array:
    """The ``v`` quantile of a standard normal variable restricted to ``[a, c]``, ``0 <= a <= c <= inf``."""
    ratio = mills(a)
    level = jnp.log1p(-v * jnp.minimum(relative_mass(a, c) / ratio, 1.0))
    return jnp.minimum(a + _descend(a, ratio, level), c)


def log_mills(a: Array) -> Array:
    """The log of Mills' ratio at any real ``a``."""
    away = jnp.abs(a)
    density = jnp.exp(-0.5 * away * away) / sqrt(2 * pi)
    ratio = mills(away)
    return jnp.where(a < 0, 0.5 * a * a + 0.5 * log(2 * pi) + jnp.log1p(-density * ratio), jnp.log(ratio))


def normal_excess(v: Array, a: Array) -> Array:
    """``t - a`` for ``t`` the ``v`` quantile of a standard normal variable restricted to ``t > a``, at any real ``a``."""
    start = jnp.maximum(a, 0.0)
    below = jnp.exp(-0.5 * a * a) / sqrt(2 * pi) * mills(jnp.abs(a))
    upper = (1 - v) * (1 - below)
    lower = v + (1 - v) * below
    level = jnp.where(a >= 0, jnp.log1p(-v), jnp.log(2 * jnp.minimum(jnp.minimum(upper, lower), 0.5)))
    d = _descend(start, mills(start), level)
    return jnp.where(a >= 0, d, jnp.where(upper <= lower, d, -d) - a)


def lattice_relative_mass(a: Array, count: Array, scale: Array) -> Array:
    """``sum_{j=0}^{count-1} exp(-((a + j)^2 - a^2) / (2 scale^2))`` for ``a >= 0`` and ``0 <= count <= inf``."""
    a, count, scale = jnp.broadcast_arrays(a, count, scale)
    precision = 1 / (scale * scale)
    few = (count <= _TERMS) | (precision * _TERMS * (a + 0.5 * _TERMS) >= _NEGLIGIBLE)
    j = jnp.arange(_TERMS, dtype=float)
    terms = jnp.where(few, count, 0.0)[..., None]
    exponent = -precision[..., None] * j * (a[..., None] + 0.5 * j)
    direct = jnp.sum(jnp.where(j < terms, jnp.exp(exponent), 0.0), axis=-1)

    wide = jnp.where(few, 100.0, scale)
    first = (jnp.where(few, 0.0, a) - 0.5) / wide
    last = first + jnp.where(few, 100.0, count) / wide
    fall = (last - first) * (0.5 * (last + first))
    far = jnp.minimum(last, 100.0)
    # f^(n)(x) = (-1)^n scale^-n He_n(x/scale) f(x), He_n by its recursion
    total = wide * relative_mass(first, last)
    at = jnp.stack([first, far])
    before, hermite, last_share = jnp.ones_like(at), at, jnp.exp(-fall)
    for term, coefficient in enumerate(_MIDPOINT, 1):
        degree = 2 * term - 1
        total = total + coefficient * (hermite[0] - last_share * hermite[1]) / wide**degree
        before = at * hermite - degree * before
        before, hermite = before, at * before - (degree + 1) * hermite
    smooth = total * jnp.exp((jnp.where(few, 0.0, a) - 0.25) / (2 * wide * wide))
    return jnp.where(few, direct, smooth)


def lattice_log_mass(a: Array, count: Array, scale: Array) -> Array:
    """``log sum_{j=0}^{count-1} exp(-(a + j)^2 / (2 scale^2))`` for ``a >= 0``."""
    return -0.5 * (a / scale) ** 2 + jnp.log(lattice_relative_mass(a, count, scale))


def lattice_quantile(v: Array, a: Array, count: Array, scale: Array) -> Array:
    """The smallest ``j`` whose first ``j + 1`` terms of the lattice sum reach the share ``v`` of ``count`` terms, by bisection."""
    goal = v * lattice_relative_mass(a, count, scale)
    precision = 1 / (scale * scale)
    slope = a * precision
    reach = 2 * _NEGLIGIBLE / (slope + jnp.sqrt(slope * slope + 2 * _NEGLIGIBLE * precision))
    above = jnp.maximum(jnp.minimum(jnp.ceil(reach) + 1, count - 1), 0.0)
    below = jnp.full_like(above, -1.0)

    def halve(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        below, above = bracket
        middle = jnp.floor(0.5 * (below + above))
        enough = lattice_relative_mass(a, middle + 1, scale) >= goal
        open_ = above - below > 1
        return jnp.where(open_ & ~enough, middle, below), jnp.where(open_ & enough, middle, above)

    below, above = jnp.broadcast_arrays(below + 0 * goal, above + 0 * goal)
    return jax.lax.while_loop(lambda bracket: jnp.any(bracket[1] - bracket[0] > 1), halve, (below, above))[1]
