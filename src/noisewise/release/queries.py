r"""What was asked of the records: sums over records of a bounded row per record.

A query maps one record to a row ``t(x)`` of fixed length and its exact answer is the sum of the rows. The rows, computed
by :meth:`Query.statistics`, are what engines work with; calling the query on a table of records is the data holder's side.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.typing import Records

Norm = Literal["l1", "l2"]
Neighbours = Literal["replace_one", "add_remove_one"]


class Column(eqx.Module):
    """A numeric column with public clamping bounds; ``rescale=(-1, 1)`` maps the bounds affinely to that interval."""

    lower: float = eqx.field(static=True, converter=float)
    upper: float = eqx.field(static=True, converter=float)
    rescale: tuple[float, float] | None = eqx.field(
        static=True, default=None, converter=lambda ends: None if ends is None else (float(ends[0]), float(ends[1]))
    )

    def __check_init__(self) -> None:
        if not (np.isfinite(self.lower) and np.isfinite(self.upper) and self.lower < self.upper):
            raise ValueError(
                f"Column bounds must be finite with lower < upper; got lower={self.lower}, upper={self.upper}. "
                "Give public bounds that do not come from the confidential records."
            )
        if self.rescale is not None and not self.rescale[0] < self.rescale[1]:
            raise ValueError(f"rescale must be an increasing pair such as (-1, 1); got {self.rescale}.")

    def clamp(self, values: Array) -> Array:
        """The values clamped to the bounds and, where asked for, mapped to the ``rescale`` interval."""
        clamped = jnp.clip(values, self.lower, self.upper)
        if self.rescale is None:
            return clamped
        low, high = self.rescale
        return low + (clamped - self.lower) * ((high - low) / (self.upper - self.lower))

    @property
    def range(self) -> tuple[float, float]:
        """The interval of clamped (and mapped) values."""
        return (self.lower, self.upper) if self.rescale is None else self.rescale


class Query(eqx.Module):
    """A sum over records of a row per record."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that the query reads."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The length of a row, and of the flattened total."""

    @property
    def integer(self) -> bool:
        """Whether every row is made of integers."""
        return False

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """A readable name for each number of the flattened total."""

    @abstractmethod
    def statistics(self, records: Records) -> Float[Array, "n size"]:
        """The rows, one for each record."""

    def __call__(self, records: Mapping[str, Any]) -> Any:
        """The exact total over the records, in the form in which it is published. Confidential: add noise first."""
        columns = {name: jnp.asarray(np.asarray(records[name])) for name in self.columns}
        return self.unflatten(np.asarray(jnp.sum(self.statistics(columns), axis=0)))

    def flatten(self, value: Any) -> np.ndarray:
        """A published value as one vector."""
        return np.asarray(value, dtype=float).reshape(-1)

    def unflatten(self, flat: np.ndarray) -> Any:
        """A vector in the published form: the inverse of :meth:`flatten`."""
        return flat

    @abstractmethod
    def sensitivity(self, norm: Norm = "l1", neighbours: Neighbours = "replace_one") -> float:
        """The largest change of the total, in the given norm, between neighbouring tables of records."""


class Moments(Query):
    """Sums of monomials of clamped columns: ``terms=[{"x": 1}, {"x": 1, "y": 1}]`` releases sum x and sum x y."""

    bounds: tuple[tuple[str, Column], ...] = eqx.field(static=True)
    terms: tuple[tuple[tuple[str, int], ...], ...] = eqx.field(static=True)
    l1: float | None = eqx.field(static=True, default=None)

    def __init__(
        self, columns: Mapping[str, Column], terms: Sequence[Mapping[str, int]], l1: float | None = None
    ) -> None:
        self.bounds = tuple(columns.items())
        self.terms = tuple(tuple(sorted(term.items())) for term in terms)
        self.l1 = l1

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.bounds)

    @property
    def size(self) -> int:
        return len(self.terms)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(
            " ".join(name if power == 1 else f"{name}^{power}" for name, power in term) or "1" for term in self.terms
        )

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        clamped = {name: column.clamp(records[name]) for name, column in self.bounds}
        ones = jnp.ones_like(next(iter(clamped.values())))
        rows = []
        for term in self.terms:
            product = ones
            for name, power in term:
                product = product * clamped[name] ** power
            rows.append(product)
        return jnp.stack(rows, axis=-1)

    def sensitivity(self, norm: Norm = "l1", neighbours: Neighbours = "replace_one") -> float:
        if norm == "l1" and neighbours == "replace_one" and self.l1 is not None:
            return self.l1
        bounds = dict(self.bounds)
        widths = []
        for term in self.terms:
            ends = [[e**power for e in bounds[name].range] for name, power in term]
            zeros = [
                [0.0] if power % 2 == 0 and bounds[n].range[0] < 0 < bounds[n].range[1] else [] for n, power in term
            ]
            corners = [float(np.prod(c)) for c in itertools.product(*(e + z for e, z in zip(ends, zeros, strict=True)))]
            low, high = min(corners), max(corners)
            widths.append(high - low if neighbours == "replace_one" else max(abs(low), abs(high)))
        return float(np.sum(widths) if norm == "l1" else np.sqrt(np.sum(np.square(widths))))


def regression_moments(predictors: Mapping[str, Column], response: Mapping[str, Column]) -> Moments:
    """The moments a linear regression needs, in the order x'y (intercept first), y'y, then the unique entries of x'x
    row by row without the constant."""
    (target, target_column), *extra = response.items()
    if extra:
        raise ValueError(f"A regression has one response; got {tuple(response)}.")
    names = tuple(predictors)
    terms: list[dict[str, int]] = [{target: 1}]
    terms += [{name: 1, target: 1} for name in names]
    terms += [{target: 2}]
    terms += [{name: 1} for name in names]
    for i, first in enumerate(names):
        terms += [{first: 2} if other == first else {first: 1, other: 1} for other in names[i:]]
    p = len(names)
    return Moments({**predictors, target: target_column}, terms, l1=float(p * p + 3 * p + 3))


class Counts(Query):
    """Contingency tables of coded columns (codes 0, 1, ..., levels - 1); the value is a list of arrays of counts."""

    levels: tuple[tuple[str, int], ...] = eqx.field(static=True)
    tables: tuple[tuple[str, ...], ...] = eqx.field(static=True)

    def __init__(self, levels: Mapping[str, int], tables: Sequence[Sequence[str]]) -> None:
        self.levels = tuple((name, int(count)) for name, count in levels.items())
        self.tables = tuple(tuple(table) for table in tables)

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
        return sum(int(np.prod(shape)) for shape in self.shapes)

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

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        rows = []
        for table, shape in zip(self.tables, self.shapes, strict=True):
            cell = jnp.zeros_like(records[table[0]], dtype=int)
            for name, count in zip(table, shape, strict=True):
                cell = cell * count + records[name].astype(int)
            rows.append((cell[..., None] == jnp.arange(int(np.prod(shape)))).astype(float))
        return jnp.concatenate(rows, axis=-1)

    def flatten(self, value: Any) -> np.ndarray:
        tables = [value] if len(self.tables) == 1 and np.shape(value) == self.shapes[0] else list(value)
        return np.concatenate([np.asarray(table, dtype=float).reshape(-1) for table in tables])

    def unflatten(self, flat: np.ndarray) -> Any:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), self.shapes, strict=True)]

    def sensitivity(self, norm: Norm = "l1", neighbours: Neighbours = "replace_one") -> float:
        moved = len(self.tables) * (2 if neighbours == "replace_one" else 1)
        return float(moved if norm == "l1" else np.sqrt(moved))


class Custom(Query):
    """A query from a plain function of one record (a dict of columns) that returns ``size`` numbers."""

    function: Callable[[Records], Array] = eqx.field(static=True)
    reads: tuple[str, ...] = eqx.field(static=True)
    length: int = eqx.field(static=True)
    l1: float | None = eqx.field(static=True, default=None)
    l2: float | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        function: Callable[[Records], Array],
        size: int,
        l1: float | None = None,
        l2: float | None = None,
        columns: Sequence[str] = ("x",),
    ) -> None:
        self.function, self.length, self.l1, self.l2, self.reads = function, int(size), l1, l2, tuple(columns)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.reads

    @property
    def size(self) -> int:
        return self.length

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"t{j}" for j in range(self.length))

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        return eqx.filter_vmap(lambda record: jnp.reshape(self.function(record), (self.length,)))(records)

    def sensitivity(self, norm: Norm = "l1", neighbours: Neighbours = "replace_one") -> float:
        known = self.l1 if norm == "l1" else self.l2
        if known is None:
            raise ValueError(f"A Custom query does not know its {norm} sensitivity; construct it with {norm}=... .")
        return float(known)
