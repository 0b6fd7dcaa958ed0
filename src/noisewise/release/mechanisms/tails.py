r"""Tail and interval probabilities of the noise laws, on the log scale and from the nearer tail.

Differences of distribution functions cancel to zero a few dozen scales from the centre, and a record sweep does go there; with
``log P(noise > a)`` at hand an interval's log probability is ``log P(> low) + log(1 - P(> high) / P(> low))``.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special, stats
from jaxtyping import Array

from noisewise.release.noise import DiscreteLaplace, Laplace, Noise
from noisewise.typing import Key

MOST_INTEGERS = 100_000
"""The longest sum over integers that one released number may need."""
_LOG_2 = math.log(2.0)
_FAR_TAIL = -30.0
_NEWTON_STEPS = 6
_SIMULATED_REACH, _BISECTIONS = 45.0, 60
_REACH = 9.0
"""Standard deviations beyond which the rest of a discrete Gaussian tail is below double precision."""


def log_tail(noise: Noise, at: Array) -> Array:
    """``log P(noise > at)`` for Laplace and Gaussian noise, elementwise and accurate in both tails."""
    if isinstance(noise, Laplace):
        far = -jnp.abs(at) / noise.scale - _LOG_2
        return jnp.where(at > 0, far, jnp.log1p(-jnp.exp(far)))
    return stats.norm.logsf(at / noise.scale)


def log_interval(noise: Noise, low: Array, high: Array) -> Array:
    """``log P(low < noise <= high)`` for Laplace and Gaussian noise, from the nearer tail."""
    flip = low + high < 0  # by symmetry, work in the upper tail
    near, far = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    above, beyond = log_tail(noise, near), log_tail(noise, far)
    return above + jnp.log(-jnp.expm1(beyond - above))


def quantile_of_log_tail(noise: Noise, log_probability: Array) -> Array:
    """The number that Laplace or Gaussian noise exceeds with this log probability."""
    if isinstance(noise, Laplace):
        upper = -(log_probability + _LOG_2)
        lower = _LOG_2 + jnp.log(-jnp.expm1(log_probability))
        return noise.scale * jnp.where(log_probability < -_LOG_2, upper, lower)
    far = jnp.minimum(log_probability, _FAR_TAIL)

    def newton(_: int, at: Array) -> Array:
        tail = stats.norm.logsf(at)
        return at + (tail - far) * jnp.exp(tail - stats.norm.logpdf(at))

    beyond = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, jnp.sqrt(-2 * far))
    near = -special.ndtri(jnp.exp(jnp.maximum(log_probability, _FAR_TAIL)))
    return noise.scale * jnp.where(log_probability < _FAR_TAIL, beyond, near)


def terms_of_tail(noise: Noise) -> int:
    """How many terms of a discrete Gaussian tail count; the next power of two, so that few programs are compiled."""
    if isinstance(noise, DiscreteLaplace):
        return 0
    needed = math.ceil(_REACH * float(np.max(np.asarray(noise.scale)))) + 8
    if needed > MOST_INTEGERS:
        raise ValueError(
            f"The tail of discrete Gaussian noise of scale {float(np.max(np.asarray(noise.scale))):g} needs a sum of {needed} "
            f"terms; the most is {MOST_INTEGERS}."
        )
    return int(2 ** math.ceil(math.log2(needed)))


def integer_log_tail(noise: Noise, at: Array, terms: int) -> Array:
    """``log P(noise >= at)`` for a discrete law at integers, elementwise and accurate in both tails."""
    far = jnp.maximum(at, 1 - at)  # at least 1, where the tail holds less than one half
    if isinstance(noise, DiscreteLaplace):
        log_far = -far / noise.scale - jnp.log1p(jnp.exp(-1 / noise.scale))
    else:
        masses = noise.log_prob(far + jnp.arange(float(terms)).reshape(-1, *(1,) * jnp.ndim(far)))
        log_far = jax.nn.logsumexp(masses, axis=0)
    return jnp.where(at >= 1, log_far, jnp.log1p(-jnp.exp(log_far)))


def sample_integer_tail(key: Key, noise: Noise, least: Array, terms: int) -> Array:
    """A draw of a discrete law given that it is at least ``least``, elementwise, by bisection of its tail."""
    target = integer_log_tail(noise, least, terms) + jnp.log1p(-jax.random.uniform(key, least.shape, dtype=float))
    beyond = jnp.maximum(least, 0.0) + jnp.ceil(_SIMULATED_REACH * noise.scale) + 2

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = jnp.floor(0.5 * (low + high))
        there = integer_log_tail(noise, middle, terms) >= target
        return jnp.where(there, middle, low), jnp.where(there, high, middle)

    return jax.lax.fori_loop(0, _BISECTIONS, halve, (least, jnp.broadcast_to(beyond, least.shape)))[0]
