"""OpenDP over Polars: the table of noises that ``query.summarize()`` prints, and the table of values that was released.

``summarize`` says of each released column what it aggregates, the noise law and its scale. It does not say the clamping
interval of a sum, which must be given. A column of unsigned integers was moved up to zero where it came out negative (the
default of ``dp.len()`` in OpenDP 0.16), and is imported as such. Columns that ``summarize`` does not name are the keys of a
``group_by``: with them only counts are read, as one ``Counts`` table over the keys, whose code k is the k-th label to appear in the
values. Groups that were kept because their noisy count passed a threshold are refused.

A query says more than its summary: the neighbouring relation, the guarantee, and its steps. The records are the rows that
it keeps, so that after a ``filter`` the number of records is not the table's, and queries of different filters are not one release.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import bounds_of, count_query, measurement, needed, sum_query
from noisewise.release.importers.opendp_nodes import promise_of
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise
from noisewise.release.privacy import Privacy, compose
from noisewise.release.queries import Counts
from noisewise.release.query import Neighbours, Query
from noisewise.release.tables import column_names

_LAWS: dict[str, type[Noise]] = {
    "Integer Laplace": DiscreteLaplace,
    "Integer Gaussian": DiscreteGaussian,
    "Float Laplace": Laplace,
    "Float Gaussian": Gaussian,
}
_COUNTS = ("Frame Length", "Length")
_UNSAID: Neighbours = "add_remove_one"
"""The neighbouring relation of a summary, which does not say it, and of a privacy unit of contributions."""
_HEADINGS = ("column", "aggregate", "distribution", "scale")


def is_polars(made: Any) -> bool:
    """Whether this is a Polars query of OpenDP, a table that ``summarize`` made, or a part of one."""
    if hasattr(made, "summarize"):
        return True
    try:
        return {"aggregate", "distribution"} <= set(column_names(made))
    except ValueError:
        return False


def from_polars(
    made: Sequence[Any],
    values: Sequence[Any],
    columns: Sequence[str],
    *,
    n: int | None,
    bounds: Mapping[str, Sequence[float]] | None,
    neighbours: Neighbours | None,
) -> Release:
    """The release of Polars queries (or of their summaries) and the tables that they released."""
    if not all(is_polars(one) for one in made) or len(values) != len(made):
        raise ValueError(
            f"Polars queries of OpenDP, {len(made)} here, are read with one released table for each, and without other "
            f"measurements; got {len(values)} value(s)."
        )
    summaries = [_summary(one) for one in made]
    # a count reads no column, and must not ask for one that no sum reads
    counted = next((str(row["column"]) for rows in summaries for row in rows if row["aggregate"] == "Sum"), columns[0])
    found = [
        measurement
        for rows, value in zip(summaries, values, strict=True)
        for measurement in _measurements(rows, value, bounds, counted)
    ]
    said = [_said(one) for one in made if hasattr(one, "summarize")]
    kept = {filters for _, _, filters in said}
    if len(kept) > 1:
        raise ValueError(
            f"The Polars queries keep different rows ({'; '.join(' and '.join(one) or 'all' for one in sorted(kept))}), so they "
            "are not of the same records; import each as a release of its own."
        )
    if n is not None and any(kept):
        raise ValueError(
            f"The Polars query keeps only the rows that pass {' and '.join(*kept)}, and n={n} would be their number, which the "
            "tool does not publish: leave n out and release dp.len() in the same query; or give query.summarize() instead of the "
            "query if that number is public."
        )
    relations = {relation for relation, _, _ in said} or {_UNSAID}
    if neighbours is None and len(relations) > 1:
        raise needed("The neighbouring relation", "the Polars queries have different ones", "Give neighbours=.")
    stated = [privacy for _, privacy, _ in said if privacy is not None]
    promise = compose(stated) if neighbours is None and len(stated) == len(made) else None
    return Release(found, n, neighbours=neighbours or relations.pop(), stated=promise)


def _said(query: Any) -> tuple[Neighbours, Privacy | None, tuple[str, ...]]:
    """What a query says beside its summary: the neighbouring relation, the guarantee, the conditions that rows must pass."""
    made = query.resolve()
    plan = query.polars_plan.explain(optimized=False).splitlines()
    filters = [line.strip().removeprefix("FILTER ") for line in plan if line.strip().startswith("FILTER ")]
    relation: Neighbours = "replace_one" if str(made.input_metric) == "ChangeOneDistance()" else _UNSAID
    return relation, promise_of(made), tuple(filters)


def _summary(made: Any) -> list[dict[str, Any]]:
    """The rows of a summary, or of that of a query."""
    if hasattr(made, "summarize"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            made = made.summarize()
    missing = [name for name in _HEADINGS if name not in column_names(made)]
    if missing:
        raise needed(
            f"The column {missing[0]!r} of the summary", "it is not the table that summarize() gives", "Give that."
        )
    _check_threshold(made)
    return [dict(zip(_HEADINGS, row, strict=True)) for row in zip(*(_listed(made, h) for h in _HEADINGS), strict=True)]


def _measurements(
    rows: Sequence[Mapping[str, Any]], value: Any, bounds: Mapping[str, Sequence[float]] | None, counted: str
) -> list[Measurement]:
    """One measurement for each released column of one query."""
    names = [row["column"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"The released column {twice[0]!r} was computed from several noisy numbers (a mean is a noisy sum over a noisy "
            "count), which were not released; release dp.sum and dp.len() instead."
        )
    absent = [name for name in names if name not in column_names(value)]
    if absent:
        raise needed(f"The released column {absent[0]!r}", "the values do not have it", "Give the collected release.")
    keys = [name for name in column_names(value) if name not in names]
    return [_row(row, value, keys, bounds, counted) for row in rows]


def _check_threshold(summary: Any) -> None:
    if "threshold" in column_names(summary) and any(least is not None for least in _listed(summary, "threshold")):
        raise ValueError(
            "The summary has a threshold: groups whose noisy count was below it were left out, which is a statement about the "
            "records that cannot be read here. Release with public keys (.with_keys(...), or a margin with invariant='keys')."
        )


def _row(
    row: Mapping[str, Any],
    value: Any,
    keys: Sequence[str],
    bounds: Mapping[str, Sequence[float]] | None,
    counted: str,
) -> Measurement:
    column, aggregate, law = str(row["column"]), str(row["aggregate"]), str(row["distribution"])
    if law not in _LAWS:
        raise ValueError(f"The noise {law!r} of {column!r} is not one of {', '.join(_LAWS)}, which are read here.")
    released = _listed(value, column)
    if aggregate in _COUNTS:
        levels, cells = _cells(value, keys)
        asked: Query = Counts(levels, [tuple(keys)]) if keys else count_query(counted, "OpenDP")
        released = [released[place] for place in cells] if keys else released
    elif aggregate == "Sum" and not keys:
        limits = bounds_of(bounds, column, "summarize() does not show the interval that dp.sum clamped to")
        asked = sum_query(column, limits, "clamped by OpenDP")
    else:
        raise ValueError(
            f"{aggregate} of {column!r}{' by ' + ', '.join(keys) if keys else ''} is not read here; numbers of rows (dp.len()) are, "
            "and sums of the whole table."
        )
    lower = 0.0 if _unsigned(value, column) else None
    return measurement(asked, _LAWS[law](float(row["scale"])), released, lower=lower, name=column)


def _cells(value: Any, keys: Sequence[str]) -> tuple[dict[str, int], list[int]]:
    """The levels of the keys, coded by first appearance, and the rows of the values in the order of the table's cells."""
    held = {key: _listed(value, key) for key in keys}
    codes = {key: list(dict.fromkeys(labels)) for key, labels in held.items()}
    rows = list(zip(*held.values(), strict=True))
    full = list(itertools.product(*codes.values()))
    if keys and (len(set(rows)) < len(rows) or set(rows) != set(full)):
        raise ValueError(
            f"The released groups must be every combination of {list(keys)} once; {len(set(full) - set(rows))} of {len(full)} "
            "are not there. Give the counts of all of them, the empty ones too."
        )
    return {key: len(labels) for key, labels in codes.items()}, [rows.index(cell) for cell in full] if keys else []


def _listed(table: Any, column: str) -> list[Any]:
    found = table[column]
    found = (
        found.to_list() if hasattr(found, "to_list") else found.to_pylist() if hasattr(found, "to_pylist") else found
    )
    return list(found)


def _unsigned(table: Any, column: str) -> bool:
    """Whether the column holds unsigned integers, in Polars, Arrow, pandas or NumPy."""
    found = table[column]
    return str(getattr(found, "dtype", getattr(found, "type", ""))).lower().startswith("uint")
