r"""The Gaussian mechanism as a computer can run it: an exact whole number, noise, and rounding to a public grid.

``value = grid round((total + scale Z) / grid)`` with ``total`` a sum of whole numbers computed exactly
(:mod:`noisewise.private.clipping`), Z a standard normal and ``grid`` a power of two near ``scale/1024`` that depends on
public numbers only. With a real normal this is a post-processing of the Gaussian mechanism, so its accounting holds as
it stands. In floating point the value still lies on the same grid whatever the records are, so its low-order bits, the
channel of Mironov (2012), say nothing; what remains is that Z takes 2^52 values: a grid cell holds about ``2^42 phi(z)``
of them, which changes its probability by a relative 2^-40 in the bulk and by less than 1e-4 at ``|z| = 6``, and ``|Z|``
stops at 8.2 (mass 2e-16). ``docs/private/threat_model.md`` says what this covers.

Rounding adds ``grid^2/12`` to the variance, 8e-8 of it; the acceptance tests use the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.typing import Key

_CELLS = 1024


class Noisy(NamedTuple):
    """A released value, in the units it was summed in, and the variance of its noise."""

    value: Float[Array, "..."]
    variance: Float[Array, ""]


def noisy(key: Key, total: Float[Array, "..."], scale: Float[Array, ""]) -> Noisy:
    """``total`` with noise ``N(0, scale^2)`` in every entry, on a grid of whole units."""
    grid = jnp.maximum(1.0, power_of_two(scale / _CELLS))
    value = grid * jnp.round((total + scale * jax.random.normal(key, total.shape)) / grid)
    return Noisy(value, scale**2 + grid**2 / 12)


def noisy_real(key: Key, value: Float[Array, ""], scale: Float[Array, ""], grid: Float[Array, ""]) -> Noisy:
    """A real number with noise, on a public grid that must not depend on the records (``scale`` may)."""
    rounded = grid * jnp.round((value + scale * jax.random.normal(key, value.shape)) / grid)
    return Noisy(rounded, scale**2 + grid**2 / 12)


def power_of_two(value: Float[Array, ""]) -> Float[Array, ""]:
    """The largest power of two that is at most ``value``, exactly."""
    _, exponent = jnp.frexp(value)
    return jnp.ldexp(jnp.ones_like(value), exponent - 1)
