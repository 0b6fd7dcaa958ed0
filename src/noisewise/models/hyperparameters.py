"""Checks of what a model is built from: every bad hyperparameter is refused with a sentence that names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array


def real(value: ArrayLike, name: str, shape: tuple[int, ...] = ()) -> Array:
    """An array of finite numbers of the given shape; a single number will do where the shape holds a single one."""
    if isinstance(value, jax.core.Tracer):
        return jnp.asarray(value, dtype=float)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise TypeError
        array = array.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {_kind(shape)}; got {value!r}.") from None
    if array.shape == () and np.prod(shape) == 1:
        array = array.reshape(shape)
    if array.shape != shape:
        raise ValueError(f"{name} must be {_kind(shape)}; got shape {array.shape}: {value!r}.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite; got {value!r}.")
    return jnp.asarray(array)


def positive(value: ArrayLike, name: str, shape: tuple[int, ...] = ()) -> Array:
    """An array of positive finite numbers of the given shape."""
    array = real(value, name, shape)
    if not isinstance(array, jax.core.Tracer) and not np.all(np.asarray(array) > 0):
        raise ValueError(f"{name} must be positive; got {value!r}.")
    return array


def positive_vector(value: ArrayLike, name: str) -> Array:
    """A vector of at least two positive finite numbers."""
    if np.ndim(value) != 1 or np.shape(value)[0] < 2:
        raise ValueError(
            f"{name} must be a vector with one positive number for each of two or more levels; got {value!r}."
        )
    return positive(value, name, np.shape(value))


def covariance(value: ArrayLike, name: str, size: int) -> Array:
    """A symmetric positive definite matrix."""
    array = real(value, name, (size, size))
    if isinstance(array, jax.core.Tracer):
        return array
    matrix = np.asarray(array)
    if not np.allclose(matrix, matrix.T, rtol=1e-12, atol=0):
        raise ValueError(f"{name} must be symmetric; got {value!r}.")
    matrix = (matrix + matrix.T) / 2
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} must be positive definite; got {value!r}.") from None
    return jnp.asarray(matrix)


def pair(value: object, name: str, meaning: str) -> tuple[ArrayLike, ArrayLike]:
    """Two numbers."""
    if not isinstance(value, Sequence | np.ndarray | jax.Array) or isinstance(value, str) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, {meaning}; got {value!r}.")
    return value[0], value[1]


def column_name(value: object, name: str) -> str:
    """The name of a column."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be the name of a column, a non-empty text; got {value!r}.")
    return value


def column_names(values: Iterable[str], name: str) -> tuple[str, ...]:
    """Distinct names of one or more columns."""
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be one or more different column names; got {values!r}.")
    names = tuple(column_name(value, name) for value in ([values] if isinstance(values, str) else values))
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{name} must be one or more different column names; got {values!r}.")
    return names


def level_count(value: object, name: str) -> int:
    """A number of levels: an integer of at least two."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 2:
        raise ValueError(f"{name} must be a whole number of levels, two or more; got {value!r}.")
    return int(value)


def _kind(shape: tuple[int, ...]) -> str:
    return "a number" if shape == () else f"an array of numbers of shape {shape}"
