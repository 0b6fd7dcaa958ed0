"""Checks that the mechanisms share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.release.mechanisms.refused import REASONS


def refuse_function(name: str, value: Any, reason: str = "data_dependent_scale") -> None:
    """Refuse a scale or bound that is given as a function (of the records), and say why."""
    if callable(value):
        raise ValueError(
            f"{name} must be public, not a function such as {value!r}. A mechanism with such a {name} cannot be analysed: "
            f"{REASONS[reason]}."
        )


def numbers(value: Any) -> np.ndarray:
    """An array of what was given; one NaN where that is not made of numbers."""
    try:
        array = np.asarray(value)
        return array.astype(float) if array.dtype.kind in "iuf" else np.asarray(np.nan)
    except (TypeError, ValueError):
        return np.asarray(np.nan)


def positive_number(name: str, value: Any, *, or_zero: bool = False) -> Array:
    """A positive finite number as an array leaf."""
    if isinstance(value, jax.core.Tracer):
        return value
    refuse_function(name, value)
    array = numbers(value)
    if array.shape != () or not np.isfinite(array) or array < 0 or (array == 0 and not or_zero):
        raise ValueError(
            f"{name} must be one {'finite number, 0 or more' if or_zero else 'positive finite number'}; got {value!r}."
        )
    return jnp.asarray(array)


def whole_number(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return int(value)


def column_names(columns: Any) -> tuple[str, ...]:
    """The columns that a function of a record reads."""
    names = () if isinstance(columns, str) or not isinstance(columns, Sequence) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns must be distinct names such as ('y', 'x1'); got {columns!r}.")
    return names


def function_of_record(name: str, function: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        raise ValueError(f"{name} must be a function of a record; got {function!r}.")


def check_scalar(name: str, function: Callable, records: dict[str, Array], other: Array) -> None:
    """A function of one record and a vector must give one number and read no column but those announced."""
    record = {column: jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)) for column, x in records.items()}
    try:
        shape = jnp.shape(jax.eval_shape(function, record, other))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise ValueError(
            f"{name} must be written with jax.numpy, without numpy functions, float(), int() or if on the record: it is "
            "evaluated for all records at once."
        ) from None
    except KeyError as missing:
        raise ValueError(
            f"{name} reads the column {missing}, but the mechanism was given columns={tuple(records)}; name all it reads."
        ) from None
    if shape != ():
        raise ValueError(f"{name} must give one number for one record; it gives an array of shape {shape}.")


def interval(lower: float | None, upper: float | None) -> tuple[float, float]:
    """An interval of released values; ``None`` is an end that does not exist."""
    refuse_function("lower", lower, "data_dependent_bounds")
    refuse_function("upper", upper, "data_dependent_bounds")
    low = numbers(-np.inf if lower is None else lower)
    high = numbers(np.inf if upper is None else upper)
    if low.shape != () or high.shape != () or not low < high:
        raise ValueError(
            f"The interval of released values needs two numbers, lower < upper; got lower={lower!r}, upper={upper!r}."
        )
    return float(low), float(high)
