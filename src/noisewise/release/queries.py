r"""The queries: what can be asked of the records.

| query | row of a record | sensitivity (``replace_one``) |
|---|---|---|
| :class:`Moments` | monomials of clamped columns | norm of the monomials' ranges |
| :func:`regression_moments` | y, x y, y^2, x, x x | the paper's p^2 + 3p + 3, or the exact (p + 1)(p + 3)^2 / 2(p + 2) |
| :class:`Counts` | indicators of the cells of contingency tables | 2 a table in L1, sqrt 2 for one table in L2 |
| :class:`TruncatedSum` | statistics of the records inside public bounds, zero outside | norm of the ranges with zero in them |
| :class:`Custom` | a function you write | what you say it is |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.moments import Moments, regression_moments
from noisewise.release.query import (
    UNIT,
    Column,
    Neighbours,
    Norm,
    Query,
    as_numbers,
    check_neighbours,
    check_norm,
    length,
    positive_sensitivity,
)
from noisewise.release.record_columns import RecordColumns as Records
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum, private_bounds
from noisewise.typing import Records as Table

_LARGEST_ROW = 1024.0
_MOST_CELLS = 2**31
_NOT_TRACEABLE = (
    "The function of a Custom query must be written with jax.numpy, without Python's if and without numpy on its columns, so that "
    "JAX can trace it: {}."
)


class Counts(Query):
    """Contingency tables of coded columns (codes 0, 1, ..., levels - 1); the value is a list of arrays of counts.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"y": 2, "x": 3}, tables=[("y", "x")])
    >>> query({"y": [0, 1, 1], "x": [2, 0, 0]})
    [array([[0., 0., 1.],
           [2., 0., 0.]])]
    >>> query.sensitivity("l1"), query.sensitivity("l1", "add_remove_one")
    (2.0, 1.0)
    """

    levels: tuple[tuple[str, int], ...] = eqx.field(static=True)
    tables: tuple[tuple[str, ...], ...] = eqx.field(static=True)

    def __init__(self, levels: Mapping[str, int], tables: Sequence[Sequence[str]]) -> None:
        if not isinstance(levels, Mapping):
            raise ValueError(f"levels must say how many levels each column has, as in {{'y': 2}}; got {levels!r}.")
        for name, count in levels.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"The name of a column must be a text; got {name!r}.")
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
                raise ValueError(f"The number of levels of {name!r} must be a positive integer; got {count!r}.")
        if not isinstance(tables, Sequence) or not all(isinstance(table, list | tuple) for table in tables):
            raise ValueError(f"tables must be a list of tuples of columns such as [('y', 'x1')]; got {tables!r}.")
        if not tables or not all(tables):
            raise ValueError(f"Counts needs at least one table, each with at least one column; got {tables!r}.")
        for table in tables:
            unknown = [name for name in table if name not in levels]
            if unknown or len(set(table)) != len(table):
                raise ValueError(
                    f"The table {tuple(table)} must name distinct columns that have levels; "
                    f"columns with levels: {', '.join(map(repr, levels))}."
                )
        self.levels = tuple((str(name), int(count)) for name, count in levels.items())
        self.tables = tuple(tuple(map(str, table)) for table in tables)
        if self.size > _MOST_CELLS:
            raise ValueError(f"Counts can have at most {_MOST_CELLS} cells; the tables {self.tables} have {self.size}.")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.levels)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each table."""
        levels = dict(self.levels)
        return tuple(tuple(levels[name] for name in table) for table in self.tables)

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def integer(self) -> bool:
        return True

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(
            ",".join(f"{name}={code}" for name, code in zip(table, cell, strict=True))
            for table, shape in zip(self.tables, self.shapes, strict=True)
            for cell in np.ndindex(*shape)
        )

    def statistics(self, records: Table) -> Float[Array, "n size"]:
        rows = []
        for table, shape in zip(self.tables, self.shapes, strict=True):
            cell = jnp.zeros_like(records[table[0]], dtype=int)
            for name, count in zip(table, shape, strict=True):
                code = records[name].astype(int)
                # a code outside its levels belongs to no cell, and stays there
                outside = (cell < 0) | (code < 0) | (code >= count)
                cell = jnp.where(outside, -1, cell * count + code)
            rows.append((cell[..., None] == jnp.arange(math.prod(shape))).astype(float))
        return jnp.concatenate(rows, axis=-1)

    def total(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The counts of the cells; a code outside ``0..levels - 1`` or not an integer is refused."""
        codes = {}
        for name, count in self.levels:
            values = columns[name]
            bad = (values != np.floor(values)) | (values < 0) | (values >= count)
            if np.any(bad):
                raise ValueError(
                    f"Column {name!r} of the records must hold codes 0, 1, ..., {count - 1}; {int(np.sum(bad))} value(s) are "
                    "something else. Recode them, or say the right number of levels."
                )
            codes[name] = values.astype(np.int64)
        cells = [
            np.bincount(np.ravel_multi_index([codes[name] for name in table], shape), minlength=math.prod(shape))
            for table, shape in zip(self.tables, self.shapes, strict=True)
        ]
        return np.concatenate(cells).astype(float)

    def flatten(self, value: Any) -> np.ndarray | Array:
        shape = _shape(value)
        several = isinstance(value, list | tuple) or (shape is not None and shape[:1] == (len(self.tables),))
        tables = list(value) if several else [value]
        found = [_shape(table) for table in tables]
        if found == list(self.shapes):
            if any(isinstance(table, jax.core.Tracer) for table in tables):
                return jnp.concatenate([jnp.ravel(table) for table in tables])
            return np.concatenate([as_numbers(table).reshape(-1) for table in tables])
        if shape == (self.size,):
            return super().flatten(value)
        if len(self.tables) == 1 and shape == self.shapes[0]:
            return as_numbers(value).reshape(-1)
        raise ValueError(
            f"The query releases tables of shapes {list(self.shapes)} for {list(self.tables)}; "
            f"got {found}. Give one array for each table, in that order."
        )

    def unflatten(self, flat: np.ndarray) -> Any:
        return [part.reshape(shape) for part, shape in zip(self._split(flat), self.shapes, strict=True)]

    def sensitivity(
        self,
        norm: Norm = "l1",
        neighbours: Neighbours = "replace_one",
        *,
        weights: np.ndarray | None = None,
    ) -> float:
        """Replacing one record moves two counts of every table by one, adding or removing one moves a single count."""
        check_norm(norm)
        moved = 2 if check_neighbours(neighbours) == "replace_one" else 1
        scaled = np.ones(self.size) if weights is None else np.asarray(weights, dtype=float)
        still = moved == 2
        parts = [np.sort(part)[::-1][:moved] for part in self._split(scaled) if not (still and part.size == 1)]
        return length(np.concatenate(parts), norm) if parts else 0.0

    def rounding(self, n: int) -> np.ndarray:
        return np.zeros(self.size)

    @property
    def counts_of_records(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        positions = self._split(np.arange(self.size))
        return tuple(
            (f"the table of {', '.join(table)}", tuple(part.tolist()))
            for table, part in zip(self.tables, positions, strict=True)
        )

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum([math.prod(shape) for shape in self.shapes])[:-1])


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or of nested lists; ``None`` for ragged ones and for lists of traced arrays."""
    try:
        return tuple(np.shape(value))
    except (ValueError, TypeError):
        return None


class Custom(Query):
    """A query from a plain JAX function of one record (a dict of columns) that returns ``size`` numbers.

    ``l1`` and ``l2`` are the sensitivities you have proved for it: how far replacing one record can move the total. A bound on the
    size of a row is only half of that; it is the sensitivity under ``neighbours="add_remove_one"``, which says so.
    ``columns`` are those the function reads, found by tracing it where they are left out. ``integer=True`` says that the function
    returns integers.

    >>> import jax.numpy as jnp
    >>> import noisewise as nw
    >>> query = nw.queries.Custom(lambda r: jnp.tanh(r["x"] - r["y"]), 1, l1=2.0)
    >>> query.columns, query.sensitivity("l1")
    (('x', 'y'), 2.0)
    """

    function: Callable[[Table], Array] = eqx.field(static=True)
    reads: tuple[str, ...] = eqx.field(static=True)
    length: int = eqx.field(static=True)
    l1: float | None = eqx.field(static=True, default=None)
    l2: float | None = eqx.field(static=True, default=None)
    neighbours: Neighbours = eqx.field(static=True, default="replace_one")
    whole: bool = eqx.field(static=True, default=False)

    def __init__(
        self,
        function: Callable[[Table], Array],
        size: int,
        l1: float | None = None,
        l2: float | None = None,
        columns: Sequence[str] | None = None,
        *,
        neighbours: Neighbours = "replace_one",
        integer: bool = False,
    ) -> None:
        if not callable(function):
            raise ValueError(f"A Custom query needs a function of one record; got {function!r}.")
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"The size of a Custom query must be a positive integer; got {size!r}.")
        columns = _columns_read(function) if columns is None else columns
        if isinstance(columns, str) or not columns:
            raise ValueError(f"columns must be a non-empty list of the columns the function reads; got {columns!r}.")
        self.function, self.length, self.reads = function, int(size), tuple(columns)
        self.l1 = None if l1 is None else positive_sensitivity(l1, "The l1 sensitivity of a Custom query")
        self.l2 = None if l2 is None else positive_sensitivity(l2, "The l2 sensitivity of a Custom query")
        self.neighbours = check_neighbours(neighbours)
        self.whole = bool(integer)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.reads

    @property
    def size(self) -> int:
        return self.length

    @property
    def integer(self) -> bool:
        return self.whole

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"t{j}" for j in range(self.length))

    def statistics(self, records: Table) -> Float[Array, "n size"]:
        try:
            return eqx.filter_vmap(self._row)({name: records[name] for name in self.reads})
        except jax.errors.JAXTypeError as problem:
            raise ValueError(_NOT_TRACEABLE.format(str(problem).splitlines()[0].split(". ")[0].rstrip("."))) from None

    def _row(self, record: Table) -> Float[Array, " size"]:
        row = jnp.asarray(self.function(record))
        if row.size != self.length:
            raise ValueError(
                f"The function of a Custom query must return size={self.length} numbers for a record; it returned shape "
                f"{row.shape}. Stack them with jnp.stack, or say the right size."
            )
        return jnp.reshape(row, (self.length,))

    def total(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The sum of the rows; a row that contradicts the stated sensitivity is refused."""
        known = [bound for bound in (self.l1, self.l2) if bound is not None]
        rows = np.asarray(self.statistics({name: jnp.asarray(columns[name]) for name in self.reads}))
        if self.whole and np.any(rows != np.round(rows)):
            raise ValueError(
                "A Custom query with integer=True returned numbers that are not integers; round inside it."
            )
        if known:
            reach = np.ptp(rows, axis=0) if self.neighbours == "replace_one" else np.abs(rows)
            if np.max(reach) > min(known) * (1 + 1e-9):
                raise ValueError(
                    f"The rows of the Custom query vary by more than its stated sensitivity {min(known):.6g}; "
                    "prove a larger bound, or clamp inside the function."
                )
            if np.max(np.abs(rows)) > _LARGEST_ROW * max(known):
                raise ValueError(
                    f"The rows of the Custom query are more than {_LARGEST_ROW:.0f} times as large as its sensitivity, which "
                    "leaves too few digits for the noise; subtract a public centre inside the function."
                )
        return super().total(columns)

    def sensitivity(
        self,
        norm: Norm = "l1",
        neighbours: Neighbours = "replace_one",
        *,
        weights: np.ndarray | None = None,
    ) -> float:
        """The stated sensitivity; for ``add_remove_one`` bounds, twice it under ``replace_one``."""
        check_neighbours(neighbours)
        known = self.l1 if check_norm(norm) == "l1" else self.l2
        if known is None:
            raise ValueError(f"This Custom query does not know its {norm} sensitivity; construct it with {norm}=... .")
        if neighbours == "add_remove_one" and self.neighbours == "replace_one":
            raise ValueError(
                f"This Custom query knows its {norm} sensitivity under 'replace_one' only, which bounds nothing under "
                "'add_remove_one'; construct it with neighbours='add_remove_one' and the largest norm of a row."
            )
        factor = 2.0 if self.neighbours != neighbours else 1.0
        return factor * known * (1.0 if weights is None else float(np.max(weights)))

    def rounding(self, n: int) -> np.ndarray:
        if self.whole:
            return np.zeros(self.length)
        known = [bound for bound in (self.l1, self.l2) if bound is not None]
        return np.full(self.length, 2 * UNIT * (n + 1) * _LARGEST_ROW * max(known, default=0.0))

    @property
    def counts_of_records(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return ()


class _Seen(dict[str, Array]):
    """A record that makes up its columns as they are read, and remembers them."""

    def __init__(self, value: Array) -> None:
        super().__init__()
        self._value = value

    def __missing__(self, name: str) -> Array:
        self[name] = self._value
        return self._value


def _columns_read(function: Callable[[Table], Array]) -> tuple[str, ...]:
    """The columns that a function of a record reads, in the order in which it first does."""
    found: tuple[str, ...] = ()
    for kind in (float, int):
        record: list[_Seen] = []

        def trace(value: Array, record: list[_Seen] = record) -> Any:
            record.append(_Seen(value))
            return function(record[0])

        try:
            jax.eval_shape(trace, jax.ShapeDtypeStruct((), kind))
        except jax.errors.TracerIntegerConversionError:
            continue
        except jax.errors.JAXTypeError as problem:
            raise ValueError(_NOT_TRACEABLE.format(str(problem).splitlines()[0].split(". ")[0].rstrip("."))) from None
        except Exception:
            continue
        found = tuple(record[0])
        break
    if not found:
        raise ValueError(
            "The columns that the function of a Custom query reads could not be found by tracing it; name them, as in "
            "columns=('x', 'y')."
        )
    return found


__all__ = [
    "Column",
    "Counts",
    "Custom",
    "Moments",
    "Neighbours",
    "Norm",
    "PrivateQuantile",
    "Query",
    "Records",
    "TruncatedSum",
    "private_bounds",
    "regression_moments",
]
