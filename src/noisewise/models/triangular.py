"""Cholesky factors, triangular solves and normal draws, written out entry by entry in few dimensions.

Inside a compiled loop a LAPACK call on a 3 by 3 matrix costs more than everything around it; arithmetic written entry by
entry is fused into its neighbours and is vectorised over chains and records. A small matrix is a list of its rows up to the
diagonal, of scalar arrays; from dimension 6 on it is one array, and loops over its columns do the work. Vectors are lists of
arrays of any one shape, for example one column of records each.

LAPACK is not asked, in any dimension: the jaxlib of JAX 0.10 splits a large batch of its calls over the threads of a pool and waits
inside that pool, so that a vectorised program with two such batches can wait for itself for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from noisewise.typing import Key

Matrix: TypeAlias = list[list[Array]] | Array
"""A symmetric or a lower triangular matrix, by its rows up to the diagonal or whole."""

_LARGEST_UNROLLED = 5


def matrix(value: Float[Array, "d d"]) -> Matrix:
    """A symmetric or lower triangular array as a matrix of this module."""
    if value.shape[0] > _LARGEST_UNROLLED:
        return value
    return [[value[i, j] for j in range(i + 1)] for i in range(value.shape[0])]


def symmetric(value: Matrix) -> Float[Array, "d d"]:
    """The array of a symmetric matrix."""
    if not isinstance(value, list):
        return value
    d = len(value)
    return jnp.stack([value[max(i, j)][min(i, j)] for i in range(d) for j in range(d)]).reshape(d, d)


def combine(a: Array | float, left: Matrix, b: Array | float, right: Matrix) -> Matrix:
    """``a left + b right``."""
    if not isinstance(left, list) or not isinstance(right, list):
        return a * symmetric(left) + b * symmetric(right)
    return [[a * x + b * y for x, y in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


def gram(vectors: Sequence[Array]) -> Matrix:
    """The sums over records of the products of the columns."""
    if len(vectors) > _LARGEST_UNROLLED:
        stacked = jnp.stack(vectors)
        return stacked @ stacked.T
    return [[jnp.sum(left * right) for right in vectors[: i + 1]] for i, left in enumerate(vectors)]


def cholesky(value: Matrix) -> Matrix:
    """The lower factor L with ``L L' = A``."""
    if not isinstance(value, list):
        return factorised(value)
    factor: list[list[Array]] = []
    for i, given in enumerate(value):
        row: list[Array] = []
        for j in range(i):
            row.append((given[j] - dot(row, factor[j][:j])) / factor[j][j])
        row.append(jnp.sqrt(given[i] - dot(row, row)))
        factor.append(row)
    return factor


def factorised(value: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The lower Cholesky factor of an array, column by column; NaN where there is none."""
    rows = jnp.arange(value.shape[0])

    def column(j: Array, factor: Array) -> Array:
        rest = value[:, j] - jnp.sum(factor * factor[j], axis=1)
        return factor.at[:, j].set(jnp.where(rows < j, 0.0, rest / jnp.sqrt(rest[j])))

    return lax.fori_loop(0, value.shape[0], column, jnp.zeros_like(value))


def forward(factor: Float[Array, "d d"], right: Float[Array, "d ..."]) -> Float[Array, "d ..."]:
    """``L^-1 right``."""

    def entry(i: Array, z: Array) -> Array:
        return z.at[i].set((right[i] - jnp.tensordot(factor[i], z, axes=1)) / factor[i, i])

    return lax.fori_loop(0, factor.shape[0], entry, jnp.zeros_like(right))


def backward(factor: Float[Array, "d d"], right: Float[Array, "d ..."]) -> Float[Array, "d ..."]:
    """``L'^-1 right``."""
    d = factor.shape[0]

    def entry(k: Array, z: Array) -> Array:
        i = d - 1 - k
        return z.at[i].set((right[i] - jnp.tensordot(factor[:, i], z, axes=1)) / factor[i, i])

    return lax.fori_loop(0, d, entry, jnp.zeros_like(right))


def apply(factor: Matrix, vector: Sequence[Array]) -> list[Array]:
    """``L z``."""
    if not isinstance(factor, list):
        return list(jnp.tensordot(factor, jnp.stack(vector), axes=1))
    return [dot(row, vector[: i + 1]) for i, row in enumerate(factor)]


def solve(factor: Matrix, right: Sequence[Array]) -> list[Array]:
    """The z with ``L z = right``."""
    if not isinstance(factor, list):
        return list(forward(factor, jnp.stack(right)))
    z: list[Array] = []
    for row, value in zip(factor, right, strict=True):
        z.append((value - dot(row[:-1], z)) / row[-1])
    return z


def solve_transposed(factor: Matrix, right: Sequence[Array]) -> list[Array]:
    """The z with ``L' z = right``."""
    if not isinstance(factor, list):
        return list(backward(factor, jnp.stack(right)))
    z: list[Array] = []
    for i in range(len(right) - 1, -1, -1):
        below = [factor[k][i] for k in range(i + 1, len(right))]
        z.insert(0, (right[i] - dot(below, z)) / factor[i][i])
    return z


def inverse(factor: Matrix) -> Matrix:
    """``(L L')^-1``."""
    if not isinstance(factor, list):
        root = forward(factor, jnp.eye(factor.shape[0]))
        return root.T @ root
    d = len(factor)
    unit = [[jnp.asarray(float(i == j)) for i in range(d)] for j in range(d)]
    roots = [solve(factor, column) for column in unit]
    return [[dot(roots[i][i:], roots[j][i:]) for j in range(i + 1)] for i in range(d)]


def multiply(value: Matrix, vector: Sequence[Array]) -> list[Array]:
    """``A z`` of a symmetric A."""
    if not isinstance(value, list):
        return list(jnp.tensordot(value, jnp.stack(vector), axes=1))
    d = len(value)
    return [dot([value[max(i, j)][min(i, j)] for j in range(d)], vector) for i in range(d)]


def rows(factor: Matrix) -> list[list[Array]]:
    """The rows of a lower triangular matrix, with the zeros above the diagonal."""
    if not isinstance(factor, list):
        return [list(row) for row in factor]
    return [[*row, *[jnp.zeros(())] * (len(factor) - len(row))] for row in factor]


def columns(factor: Matrix) -> list[list[Array]]:
    """The columns of a lower triangular matrix, with the zeros above the diagonal."""
    return [list(column) for column in zip(*rows(factor), strict=True)]


def half_log_det(factor: Matrix) -> Array:
    """``log |L|``, half the log determinant of ``L L'``."""
    if not isinstance(factor, list):
        return jnp.sum(jnp.log(jnp.diag(factor)))
    return total([jnp.log(row[-1]) for row in factor])


def dot(left: Sequence[Array], right: Sequence[Array]) -> Array:
    """The sum of products of two vectors (zero of none)."""
    return total([a * b for a, b in zip(left, right, strict=True)]) if left else jnp.zeros(())


def total(values: Sequence[Array]) -> Array:
    """The sum of the values."""
    return sum(values[1:], start=values[0])


def normal_from_precision(key: Key, precision: Matrix, linear: Sequence[Array]) -> Float[Array, " d"]:
    """A draw from ``N(P^-1 h, P^-1)``: with ``P = L L'``, the solution of ``L' z = L^-1 h + e``, e standard normal."""
    factor = cholesky(precision)
    noise = jax.random.normal(key, (len(linear),))
    shifted = [value + noise[i] for i, value in enumerate(solve(factor, linear))]
    return jnp.stack(solve_transposed(factor, shifted))
