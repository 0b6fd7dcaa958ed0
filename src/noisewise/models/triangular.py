"""Cholesky factors, triangular solves and normal draws, written out entry by entry in few dimensions.

Inside a compiled loop a LAPACK call on a 3 by 3 matrix costs more than everything around it; arithmetic written entry by entry is fused
into its neighbours and is vectorised over chains. Matrices here are lists of rows of scalar arrays; from dimension 6 on they are
stacked and LAPACK does the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.typing import Key

Entries = list[list[Array]]
"""The rows of a matrix; of a symmetric or lower triangular one only the entries up to the diagonal are read."""

_LARGEST_UNROLLED = 5


def lower_entries(matrix: Float[Array, "d d"]) -> Entries:
    """The entries of a matrix up to its diagonal."""
    return [[matrix[i, j] for j in range(i + 1)] for i in range(matrix.shape[0])]


def symmetric(entries: Entries) -> Float[Array, "d d"]:
    """The symmetric matrix of its entries up to the diagonal."""
    d = len(entries)
    return jnp.stack([entries[max(i, j)][min(i, j)] for i in range(d) for j in range(d)]).reshape(d, d)


def cholesky(entries: Entries) -> Entries:
    """The lower factor L with ``L L' = A``."""
    d = len(entries)
    if d > _LARGEST_UNROLLED:
        return lower_entries(jnp.linalg.cholesky(symmetric(entries)))
    factor: Entries = []
    for i in range(d):
        row: list[Array] = []
        for j in range(i):
            row.append((entries[i][j] - dot(row, factor[j][:j])) / factor[j][j])
        row.append(jnp.sqrt(entries[i][i] - dot(row, row)))
        factor.append(row)
    return factor


def solve_lower(factor: Entries, right: Sequence[Array]) -> list[Array]:
    """The z with ``L z = right``."""
    z: list[Array] = []
    for i, value in enumerate(right):
        z.append((value - dot(factor[i][:i], z)) / factor[i][i])
    return z


def solve_upper(factor: Entries, right: Sequence[Array]) -> list[Array]:
    """The z with ``L' z = right``."""
    d = len(right)
    z: list[Array] = [right[-1] / factor[-1][-1]] * d
    for i in range(d - 2, -1, -1):
        z[i] = (right[i] - dot([factor[k][i] for k in range(i + 1, d)], z[i + 1 :])) / factor[i][i]
    return z


def dot(left: Sequence[Array], right: Sequence[Array]) -> Array:
    """The sum of products of two sequences of arrays (zero of none)."""
    total = jnp.zeros(())
    for k, (a, b) in enumerate(zip(left, right, strict=False)):
        total = a * b if k == 0 else total + a * b
    return total


def normal_from_precision(key: Key, precision: Entries, linear: Sequence[Array]) -> Float[Array, " d"]:
    """A draw from ``N(P^-1 h, P^-1)``: with ``P = L L'``, the solution of ``L' z = L^-1 h + e``, e standard normal."""
    factor = cholesky(precision)
    noise = jax.random.normal(key, (len(linear),))
    shifted = [value + noise[i] for i, value in enumerate(solve_lower(factor, linear))]
    return jnp.stack(solve_upper(factor, shifted))
