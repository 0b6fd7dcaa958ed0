"""Reading the confidential records: a dict of arrays, or a pandas, polars or Arrow table, none of them imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def column_names(records: Any) -> list[str]:
    """The names of the columns of a table of records."""
    if isinstance(records, Mapping):
        return [str(name) for name in records]
    if callable(getattr(records, "collect_schema", None)) and not hasattr(records, "to_numpy"):
        raise ValueError("The records are a lazy table, whose values are not there yet; give records.collect().")
    for attribute in ("column_names", "columns"):
        names = getattr(records, attribute, None)
        if isinstance(names, Iterable) and not isinstance(names, str) and not callable(names):
            return [name if isinstance(name, str) else str(name) for name in names]
    raise ValueError(
        f"Records must be a dict of arrays or a pandas, polars or Arrow table; got {type(records).__name__}. "
        "Name each column, as in {'x': values}."
    )


def read_columns(records: Any, names: Iterable[str], *, missing: bool = False) -> dict[str, np.ndarray]:
    """The named columns as arrays of float64 (integers and booleans exactly), all finite and equally long.

    With ``missing`` a value may be NaN (or None, or a null of the table).
    """
    present = column_names(records)
    wanted = tuple(dict.fromkeys(names))
    absent = [name for name in wanted if name not in present]
    if absent:
        raise ValueError(
            f"The records have no column {', '.join(map(repr, absent))}; they have {', '.join(map(repr, present)) or 'none'}. "
            "Rename the columns of the records, or those of the query."
        )
    twice = [name for name in wanted if present.count(name) > 1]
    if twice:
        raise ValueError(
            f"The records have {present.count(twice[0])} columns named {twice[0]!r}; give each a name of its own."
        )
    columns = {name: _numbers(name, _raw(records, name), missing=missing) for name in wanted}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of the records differ in length: {lengths}. Give one value for each record.")
    if 0 in lengths.values():
        raise ValueError("The records have no rows; there is nothing to release. Give at least one record.")
    return columns


def _raw(records: Any, name: str) -> Any:
    if (
        not isinstance(records, Mapping)
        and hasattr(records, "column_names")
        and callable(getattr(records, "column", None))
    ):
        return records.column(name)
    return records[name]


def _array(name: str, values: Any) -> np.ndarray:
    """The values of a column as an array, with NaN where a masked array hides them."""
    if isinstance(values, np.ma.MaskedArray) and np.any(values.mask) and values.dtype.kind in "biuf":
        return np.asarray(np.ma.filled(values.astype(float), np.nan))
    if callable(getattr(values, "to_pylist", None)):
        # an Arrow array, which copies nulls and booleans only where it is told to
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if callable(getattr(values, "to_numpy", None)):
        return np.asarray(values.to_numpy())
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"Column {name!r} of the records must have one value for each record; got {str(values)[:80]!r}."
        ) from None


def _numbers(name: str, values: Any, *, missing: bool) -> np.ndarray:
    array = _array(name, values)
    if missing and array.dtype.kind == "O":
        empty = np.asarray([value is None for value in array], dtype=bool)
        array = np.where(empty, np.nan, array).astype(float) if np.any(empty) else array
    if array.ndim != 1:
        raise ValueError(
            f"Column {name!r} of the records must have one value for each record; got shape {array.shape}."
        )
    if array.size == 0:
        return np.zeros(0)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"Column {name!r} of the records is not numeric (its type is {array.dtype}); "
            "code it as numbers and remove or impute missing values."
        )
    numbers = array.astype(float)
    if not np.all(np.isfinite(numbers) | (missing & np.isnan(numbers))):
        bad = int(np.sum(~np.isfinite(numbers)))
        raise ValueError(
            f"Column {name!r} of the records has {bad} value(s) that are missing, NaN or infinite; "
            "remove or impute them before publishing, by a rule that looks at one record at a time."
        )
    if array.dtype.kind in "iu" and np.any(np.abs(numbers) > 2.0**53):
        raise ValueError(f"Column {name!r} has integers beyond 2^53, which float64 cannot hold exactly; rescale it.")
    return numbers
