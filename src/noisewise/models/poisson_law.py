r"""The Poisson law by its log-odds ``Z(k) = log F(k) / (1 - F(k))``, inverted without losing digits in either tail.

With ``s = -1`` above the mean (``k + 1 > rate``) and ``s = +1`` below, the smaller tail is

    mass(k) rate ∫_0^∞ exp(-|k + 1 - rate| r - rate (exp(s r) - 1 - s r)) dr,

which is ``1 - F(k)`` above and ``F(k)`` below (put ``t = rate exp(s r)`` in the incomplete gamma integral). The integrand
falls from 1 like something between an exponential and a normal density of known width, and the trapezoid rule after
``r = width exp(t - exp(-t))`` gives all digits, at any rate and any distance from it.

Few records need that integral: the log-odds of the 512 counts around the mean are tabulated once for each rate, from sums
of positive terms, and a record outside the table (none, at most rates) goes the long way in a loop that otherwise ends
before it begins.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlogy
from jaxtyping import Array, Float, Int

from noisewise.typing import Key

_TABLE = 512
_SMALLEST = 1e-280
_FURTHEST = 2.0**52
_STEP = 1 / 16
_NODES = np.arange(-3.75, 4.0, _STEP)
_ABSCISSAE = np.exp(_NODES - np.exp(-_NODES))
_WEIGHTS = _STEP * _ABSCISSAE * (1 + np.exp(-_NODES))


class Table(NamedTuple):
    """Log-odds of consecutive counts: ``odds[j]`` is ``Z(start + j)``, good from index ``first`` to ``last``."""

    rate: Float[Array, ""]
    start: Int[Array, ""]
    odds: Float[Array, " table"]
    first: Int[Array, ""]
    last: Int[Array, ""]


def log_mass(count: Array, rate: Array) -> Array:
    """The log probability of a count, by Loader's (2000) saddle point form, which does not cancel at large rates."""
    k = jnp.asarray(count, dtype=float)
    large = jnp.maximum(k, 16.0)
    inverse = 1 / large**2
    series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188)))) / large
    saddle = -rate * _deviance((large - rate) / rate) - series - 0.5 * jnp.log(2 * jnp.pi * large)
    small = jnp.minimum(k, 16.0)
    return jnp.where(k < 16, xlogy(small, rate) - rate - gammaln(small + 1), saddle)


def _deviance(d: Array) -> Array:
    """``(1 + d) log(1 + d) - d``, with all its digits at small d."""
    near = jnp.abs(d) < 0.05
    small = jnp.where(near, d, 0.0)
    series = jnp.zeros_like(small)
    for power in range(13, 1, -1):
        series = (-1) ** power / (power * (power - 1)) + small * series
    return jnp.where(near, small**2 * series, (1 + d) * jnp.log(1 + d) - d)


def log_tail(count: Array, rate: Array) -> Array:
    """The log of ``1 - F(k)`` where ``k + 1 > rate`` and of ``F(k)`` elsewhere."""
    sign = jnp.where(count + 1 > rate, -1.0, 1.0)[..., None]
    distance = jnp.abs(count + 1 - rate)[..., None]
    width = 2 / (distance + jnp.sqrt(distance**2 + 2 * rate))
    r = width * _ABSCISSAE
    turn = sign * r
    short = turn**2 / 2 * (1 + turn / 3 * (1 + turn / 4 * (1 + turn / 5 * (1 + turn / 6 * (1 + turn / 7)))))
    bend = jnp.where(r < 1e-2, short, jnp.expm1(turn) - turn)
    integral = jnp.sum(jnp.exp(-distance * r - rate * bend) * _WEIGHTS, axis=-1)
    return log_mass(count, rate) + jnp.log(rate) + jnp.log(integral * width[..., 0])


def log_odds(count: Array, rate: Array) -> Array:
    """``log F(k) / (1 - F(k))`` by the integral; ``-inf`` below zero."""
    tail = jnp.minimum(log_tail(jnp.maximum(count, 0.0), rate), -1e-300)
    below = _logit(tail)
    return jnp.where(count < 0, -jnp.inf, jnp.where(count + 1 > rate, -below, below))


def tabulate(rate: Float[Array, ""]) -> Table:
    """The table for one rate."""
    start = jnp.maximum(jnp.floor(jnp.minimum(rate, _FURTHEST)) - _TABLE // 2, 0.0)
    k = start + jnp.arange(_TABLE)
    steps = jnp.log(rate / jnp.maximum(k, 1.0)).at[0].set(log_mass(start, rate))
    mass = jnp.exp(jnp.cumsum(steps))
    ends = jnp.exp(log_tail(jnp.stack([start - 1, k[-1]]), rate))
    below = jnp.where(start > 0, ends[0], 0.0) + jnp.cumsum(mass)
    above = jnp.cumsum(jnp.concatenate([ends[1:], mass[:0:-1]]))[::-1]
    good = (below > _SMALLEST) & (above > _SMALLEST)
    odds = jnp.where(good, jnp.log(below / above), jnp.where(below > above, jnp.inf, -jnp.inf))
    first = jnp.argmax(good)
    last = jnp.where(jnp.any(good), _TABLE - 1 - jnp.argmax(good[::-1]), -1)
    return Table(rate, start.astype(int), odds, first, last)


def innovations(key: Key, n: int) -> Float[Array, " n"]:
    """Logistic numbers: the log-odds of uniform ones."""
    return jax.random.logistic(key, (n,), dtype=float)


def find(table: Table, z: Float[Array, " n"]) -> Int[Array, " n"]:
    """The counts with ``Z(k - 1) < z <= Z(k)``."""
    index = jnp.searchsorted(table.odds, z)
    first, last = table.odds[table.first], table.odds[table.last]
    whole = (table.last >= 0) & (table.start == 0) & (table.first == 0)
    known = (table.last >= 0) & (z <= last) & (whole | (z > first))
    inside = (table.start + index).astype(float)
    lower = jnp.where(known, inside - 1, jnp.where((table.last >= 0) & (z > last), table.start + table.last, -1.0))
    upper = jnp.where(known, inside, jnp.where((table.last >= 0) & (z <= first), table.start + table.first, jnp.inf))

    def narrow(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        lower, upper = bracket
        middle = jnp.where(jnp.isinf(upper), 2 * (lower + 1), jnp.floor((lower + upper) / 2))
        middle = jnp.minimum(middle, _FURTHEST)
        reached = (log_odds(middle, table.rate) >= z) | (middle >= _FURTHEST)
        open_ = upper - lower > 1
        return jnp.where(open_ & ~reached, middle, lower), jnp.where(open_ & reached, middle, upper)

    def unfinished(bracket: tuple[Array, Array]) -> Array:
        return jnp.any(bracket[1] - bracket[0] > 1)

    return jax.lax.while_loop(unfinished, narrow, (lower, upper))[1].astype(int)


def retrace(table: Table, count: Int[Array, " n"], key: Key) -> Float[Array, " n"]:
    """Innovations drawn from their law given that they lead to ``count``."""
    lower, upper = _odds(table, count - 1), _odds(table, count)
    w = jax.random.uniform(key, count.shape, dtype=float)
    rising = upper <= 0
    # the log of the tail that is small here, at its larger and at its smaller end
    larger = jnp.where(rising, jax.nn.log_sigmoid(upper), jax.nn.log_sigmoid(-lower))
    smaller = jnp.where(rising, jax.nn.log_sigmoid(lower), jax.nn.log_sigmoid(-upper))
    log_tail = larger + jnp.log1p(w * jnp.expm1(smaller - larger))
    logit = _logit(jnp.minimum(log_tail, -1e-300))
    z = jnp.where(rising, logit, -logit)
    return jnp.where((z > lower) & (z <= upper), z, upper)


def _odds(table: Table, count: Array) -> Array:
    """``Z(k)``, from the table where it is there."""
    index = count - table.start
    known = (index >= table.first) & (index <= table.last)
    values = jnp.where(count < 0, -jnp.inf, table.odds[jnp.clip(index, 0, _TABLE - 1)])

    def integrate(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        known, values, asked = state
        # the counts change, or the compiler would take their integrals out of the loop and always compute them
        return jnp.ones_like(known), jnp.where(known, values, log_odds(asked, table.rate)), -jnp.ones_like(asked)

    start = (known | (count < 0), values, count.astype(float))
    return jax.lax.while_loop(lambda state: ~jnp.all(state[0]), integrate, start)[1]


def _logit(log_probability: Array) -> Array:
    return log_probability - jnp.log(-jnp.expm1(log_probability))
