r"""US Census 2020 noisy measurement files: Parquet rows of geography, query, shape, values and variance.

| column of the file | holds |
|---|---|
| ``geocode`` | the geographic unit; the code of a unit begins with the code of the unit it is part of |
| ``query_name`` | ``total_dpq``, ``detailed_dpq``, or the crossed attributes, as ``votingage * cenrace_dpq`` |
| ``query_shape`` | the levels of every attribute of the schema, 1 for those that the query sums over |
| ``value`` | the noisy counts, row by row, discrete Gaussian noise added to each |
| ``variance`` | the variance of the noise of each number |

Records are the people (or housing units) of the units asked for. Units of one length are one column of codes, in the order asked;
units of two lengths are two columns, the larger unit and, within it, the smaller one, when every larger unit has
equally many smaller ones. Attributes are columns with their levels. The files are read by ``pyarrow.dataset`` with the filter
pushed down to them: what was not asked for is not loaded.

The stated variance is that of the discrete law; its scale is found from it. Invariants, published without noise, are exact:
the total of everything asked for is the release's ``n``, the total of one unit a number with noise of scale
:data:`~noisewise.release.importers.known.EXACT`, which puts all its mass, to the last bit, on that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import EXACT, count_query, needed
from noisewise.release.noise import DiscreteGaussian
from noisewise.release.queries import Counts
from noisewise.release.query import Query

_COLUMNS = ("geocode", "query_name", "query_shape", "value", "variance")
_SUFFIX = "_dpq"


class _Row(NamedTuple):
    geocode: str
    query: str
    shape: tuple[int, ...]
    values: np.ndarray
    scale: float


def from_census_nmf(
    path: str | Path | Sequence[str | Path],
    geocodes: Sequence[str],
    *,
    queries: Sequence[str] = ("total",),
    attributes: Sequence[str] = (),
    level: str | None = None,
    parent: str | None = None,
    invariants: Mapping[str, int] | None = None,
    geography: Sequence[str] | None = None,
    filesystem: Any = None,
) -> Release:
    """A release from noisy measurement files (see :meth:`noisewise.Release.from_census_nmf`)."""
    asked = _texts("geocodes", geocodes, "geographic units, whose codes are text and may begin with zeros")
    layers = _layers(asked)
    wanted = [name.removesuffix(_SUFFIX) for name in _texts("queries", queries, "names of queries")]
    attributes = _texts("attributes", attributes, "names of attributes") if attributes else ()
    if invariants is not None and not isinstance(invariants, Mapping):
        raise ValueError(f"invariants must give exact totals by unit, as in {{'45001': 120}}; got {invariants!r}.")
    codes = asked if parent is None else [*asked, str(parent)]
    rows = _rows(path, codes, wanted, level, filesystem)
    names = _geography(geography, len(layers))
    exact = {str(code): _whole(code, count) for code, count in (invariants or {}).items()}
    root = _common(asked) if parent is None else str(parent)
    n = exact.pop(root, None)
    measurements = []
    if parent is not None and n is None:
        measurements += [_total(rows, root, name, names) for name in wanted if name == "total"]
    for depth in range(len(layers)):
        for name in wanted:
            found = _table(rows, layers, depth, name, attributes, names)
            measurements += [] if found is None else [found]
    _check_levels(measurements)
    measurements += _invariants(exact, layers, names)
    return Release(measurements, n, neighbours="replace_one")


def _texts(name: str, given: Any, what: str) -> list[str]:
    """A list of different names; one name may stand for the list of it."""
    found = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple | np.ndarray) else []
    if not found or len(set(found)) < len(found) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{name} must be a non-empty list of different {what}; got {given!r}.")
    return [str(one) for one in found]


def _check_levels(measurements: Iterable[Measurement]) -> None:
    """A query may have recoded an attribute: two codings of one column are not one column."""
    seen: dict[str, tuple[int, str | None]] = {}
    for found in measurements:
        for column, size in found.query.levels if isinstance(found.query, Counts) else ():
            other, name = seen.setdefault(column, (size, found.name))
            if other != size:
                raise ValueError(
                    f"{column!r} has {other} levels in {name!r} and {size} in {found.name!r}, which recodes it; ask for the queries "
                    "of one coding."
                )


def _layers(asked: Sequence[str]) -> list[list[str]]:
    """The units by length of code, larger units first; two lengths must be a rectangle."""
    lengths = sorted({len(code) for code in asked})
    if len(lengths) > 2:
        raise ValueError(f"geocodes have {len(lengths)} different lengths; ask for one level of geography, or two.")
    layers = [[code for code in asked if len(code) == length] for length in lengths]
    if len(layers) == 1:
        return layers
    inside = {top: [code for code in layers[1] if code.startswith(top)] for top in layers[0]}
    counts = {len(units) for units in inside.values()}
    if sum(map(len, inside.values())) < len(layers[1]) or len(counts) != 1:
        raise ValueError(
            "Two levels need every larger unit with equally many smaller ones, whose codes begin with its code; got "
            f"{ {top: len(units) for top, units in inside.items()} }. Ask for one larger unit at a time, by parent=."
        )
    return [layers[0], [code for top in layers[0] for code in inside[top]]]


def _common(asked: Sequence[str]) -> str:
    """The code of the unit that holds all others, if it is among them."""
    shortest = min(asked, key=len)
    return shortest if len(asked) == 1 else ""


def _geography(names: Sequence[str] | None, depth: int) -> tuple[str, ...]:
    found = ("geocode", "x1")[:depth] if names is None else tuple(names)
    if len(found) != depth:
        raise ValueError(f"geography must name {depth} column(s), larger units first; got {found}.")
    return found


def _whole(code: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise ValueError(f"The invariant of {code!r} must be a whole number of at least 0; got {count!r}.")
    return int(count)


def _rows(
    path: Any, codes: Sequence[str], wanted: Sequence[str], level: str | None, filesystem: Any
) -> dict[tuple[str, str], _Row]:
    """The rows of these units and queries, and no others."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    several = isinstance(path, list | tuple)
    if (not several and not isinstance(path, str | Path)) or not path:
        raise ValueError(f"path must be a Parquet file, a folder of them, or a list of files; got {path!r}.")
    source: Any = [str(one) for one in path] if several else str(path)
    try:
        files = ds.dataset(source, format="parquet", partitioning="hive", filesystem=filesystem)
    except (pa.ArrowInvalid, OSError) as problem:
        raise ValueError(f"The noisy measurement files at {source!r} cannot be read as Parquet: {problem}.") from None
    missing = [name for name in _COLUMNS if name not in files.schema.names]
    if missing:
        raise needed(
            f"The column {', '.join(map(repr, missing))}",
            f"the file has the columns {files.schema.names}",
            "Noisy measurement files have geocode, query_name, query_shape, value and variance.",
        )
    chosen = ds.field("geocode").isin(list(codes)) & ds.field("query_name").isin([name + _SUFFIX for name in wanted])
    if level is not None:
        if "geolevel" not in files.schema.names:
            raise needed(
                "The column 'geolevel'", "the files do not tell levels apart", "Leave level out and ask by geocodes."
            )
        chosen = chosen & (ds.field("geolevel") == level)
    found: dict[tuple[str, str], _Row] = {}
    for row in files.to_table(columns=list(_COLUMNS), filter=chosen).to_pylist():
        read = _row(row)
        if (read.geocode, read.query) in found:
            raise ValueError(
                f"The files have {read.query!r} of {read.geocode!r} twice; give one table's files, or level=."
            )
        found[read.geocode, read.query] = read
    absent = [(code, name) for code in codes for name in wanted if (code, name) not in found]
    anywhere = {name for _, name in found}
    unknown = [name for name in wanted if name not in anywhere]
    if unknown:
        raise needed(
            f"The query {unknown[0]!r}", f"the files have it for none of the {len(codes)} units", "Correct it."
        )
    if absent:
        raise needed(
            f"{absent[0][1]!r} of {absent[0][0]!r}", "the files have no such row", "Leave that unit or query out."
        )
    return found


def _row(row: Mapping[str, Any]) -> _Row:
    what = f"{row['query_name']!r} of {row['geocode']!r}"
    empty = [name for name in _COLUMNS if row[name] is None]
    if empty:
        raise needed(f"{empty[0]!r} in {what}", "the row is incomplete", "Get the file again.")
    shape, values = tuple(int(size) for size in row["query_shape"]), np.asarray(row["value"], dtype=float)
    if values.size != int(np.prod(shape)):
        raise ValueError(
            f"{what} has {values.size} values, but its shape {list(shape)} asks for {int(np.prod(shape))}."
        )
    variance = float(row["variance"])
    if not (np.isfinite(variance) and variance >= 0):
        raise ValueError(f"{what} has the variance {variance}; it must be a number of at least 0.")
    return _Row(str(row["geocode"]), str(row["query_name"]).removesuffix(_SUFFIX), shape, values, scale_of(variance))


def scale_of(variance: float) -> float:
    """The scale of the discrete Gaussian law with this variance; a variance of zero is an exact number."""
    if variance < 1e-12:
        return EXACT
    guess = np.sqrt(variance)
    if variance > 4.0:  # beyond, the two agree to the last bits
        return float(guess)

    def gap(scale: float) -> float:
        return float(DiscreteGaussian(scale).variance) - variance

    return float(optimize.brentq(gap, 0.1 * guess, 10 * guess + 1, xtol=1e-14))


def _total(rows: Mapping[tuple[str, str], _Row], code: str, name: str, geography: Sequence[str]) -> Measurement:
    row = rows[code, name]
    noise = DiscreteGaussian(row.scale)
    return Measurement(count_query(geography[0], "noisy measurement file"), noise, row.values, name=f"{code} {name}")


def _table(
    rows: Mapping[tuple[str, str], _Row],
    layers: Sequence[Sequence[str]],
    depth: int,
    name: str,
    attributes: Sequence[str],
    geography: Sequence[str],
) -> Measurement | None:
    """One query of all units of a layer as one table: geography first, then the attributes of the query."""
    units = [rows[code, name] for code in layers[depth]]
    shapes = {row.shape for row in units}
    if len(shapes) > 1:
        raise ValueError(f"{name!r} has different shapes in different units: {sorted(shapes)}.")
    shape = units[0].shape
    crossed = _attributes(name, shape, attributes)
    widths = [len(layers[0])] if depth == 0 else [len(layers[0]), len(layers[1]) // len(layers[0])]
    levels = dict(zip(geography, widths, strict=False)) | crossed
    query = Counts(levels, [tuple(levels)])
    values = np.concatenate([row.values for row in units]).reshape(query.shapes[0])
    scale = np.concatenate([np.full(row.values.size, row.scale) for row in units])
    return Measurement(query, DiscreteGaussian(scale), [values], name=f"{geography[depth]} {name}")


def _attributes(name: str, shape: Sequence[int], attributes: Sequence[str]) -> dict[str, int]:
    """The attributes of a query with their numbers of levels, in the order of its values."""
    places = [place for place, size in enumerate(shape) if size > 1]
    if attributes:
        if len(attributes) != len(shape):
            raise ValueError(f"attributes must name all {len(shape)} attributes of the schema; got {list(attributes)}.")
        return {attributes[place]: shape[place] for place in places}
    names = [] if name == "total" else [part.strip() for part in name.split(" * ")]
    if len(places) > 1 or name == "detailed" or len(names) != len(places):
        raise needed(
            f"The order of the attributes of {name!r}",
            f"its shape {list(shape)} does not say which attribute is where",
            "Give attributes=, all of the schema's in the order of query_shape, such as ('hhgq', 'votingage', ...).",
        )
    return {names[0]: shape[places[0]]} if names else {}


def _invariants(
    exact: Mapping[str, int], layers: Sequence[Sequence[str]], geography: Sequence[str]
) -> Iterable[Measurement]:
    """Exact totals of units: all of a layer, because a table has no holes."""
    unknown = [code for code in exact if not any(code in layer for layer in layers)]
    if unknown:
        raise ValueError(f"invariants names {unknown}, which are not among the units asked for.")
    for depth, layer in enumerate(layers):
        given = [exact[code] for code in layer if code in exact]
        if not given:
            continue
        if len(given) < len(layer):
            raise needed(
                "The invariant of " + ", ".join(repr(code) for code in layer if code not in exact),
                "the exact totals of a level are one table",
                "Give the exact totals of all its units, or of none.",
            )
        widths = [len(layers[0])] if depth == 0 else [len(layers[0]), len(layers[1]) // len(layers[0])]
        query: Query = Counts(dict(zip(geography, widths, strict=False)), [tuple(geography[: depth + 1])])
        values = np.asarray(given, dtype=float).reshape(widths)
        yield Measurement(query, DiscreteGaussian(EXACT), [values], name=f"{geography[depth]} invariant")
