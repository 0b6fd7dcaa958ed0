r"""Clipping per record, in whole numbers: what bounds the influence of one record, exactly.

A clipped log-likelihood ratio is a whole number of units ``bound 2^-bits`` between ``-2^bits`` and ``2^bits``; a clipped
gradient is a vector of them with norm at most ``2^bits``. ``bits`` is chosen so that n of them sum below 2^53: the sum
is exact in float64, and the sensitivity of the computed sum is exactly ``2^(bits+1)`` under replace_one, free of the
rounding of a floating-point sum.

A value that is not a number, for whatever reason, counts as zero: it is a function of one record and theta like any
other, and must not reach the output. Where the model gives a Lipschitz bound and the records keep it, clipping at that
bound changes nothing.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

_ROOM = 1 - 1e-9
"""More than the rounding of a squared length of a million entries."""


def unit_bits(n: int) -> int:
    """The bits of a unit such that n clipped values sum exactly: at most 40, ``n 2^bits <= 2^52``."""
    return min(40, 52 - math.ceil(math.log2(max(n, 2))))


def square_bits(n: int) -> int:
    """As :func:`unit_bits` for values whose squares are summed too: ``n 4^bits <= 2^52``."""
    return min(24, (52 - math.ceil(math.log2(max(n, 2)))) // 2)


def clip_ratios(ratios: Float[Array, " n"], bound: Float[Array, ""], bits: int) -> Float[Array, " n"]:
    """Each ratio clipped to ``[-bound, bound]``, to the nearest whole number of units ``bound 2^-bits``."""
    if ratios.ndim != 1:
        raise ValueError(
            f"a log-likelihood ratio must be one number for each record; got an array of shape {ratios.shape}. Several numbers for a "
            "record, each clipped by itself, would tell more than the ledger charges for."
        )
    scaled = jnp.clip(ratios / bound, -1.0, 1.0)
    return jnp.where(jnp.isnan(scaled), 0.0, jnp.floor(scaled * 2.0**bits + 0.5))


def clip_gradients(gradients: Float[Array, "n d"], bound: Float[Array, ""], bits: int) -> Float[Array, "n d"]:
    """Each gradient scaled down to norm at most ``bound``, its entries cut towards zero to whole numbers of units ``bound 2^-bits``.

    Lengths are taken in units of the bound, so that no square that matters can underflow: a length that was rounded to
    zero would let its record pass unclipped. Cutting towards zero never lengthens a vector; the factor is taken a hair
    smaller so that its own rounding cannot either.
    """
    if gradients.ndim != 2:
        raise ValueError(f"gradients must be one vector for each record; got an array of shape {gradients.shape}.")
    scaled = gradients * (1 / bound)
    squared = jnp.sum(scaled * scaled, axis=-1, keepdims=True)
    units = scaled * (_ROOM * 2.0**bits / jnp.maximum(1.0, jnp.sqrt(squared)))
    return jnp.where(jnp.isfinite(squared) & jnp.isfinite(units), jnp.trunc(units), 0.0)


def clipped_ratio(ratios: Float[Array, " n"], bound: Float[Array, ""]) -> Float[Array, " n"]:
    """One where a ratio lies beyond its bound: for testing only, a count of them is not private."""
    return (jnp.abs(ratios) > bound).astype(float)


def clipped_gradient(gradients: Float[Array, "n d"], bound: Float[Array, ""]) -> Float[Array, " n"]:
    """One where a gradient is longer than its bound: for testing only, a count of them is not private."""
    return (jnp.sum(gradients * gradients, axis=-1) > bound**2).astype(float)
