r"""A release read as if it had no noise: the statistics it seems to state, moved to the nearest possible ones.

Clamping is ignored with the noise: a sum of clamped and mapped values is mapped back to the column's own units and taken for the
sum of the records. A statistic that several measurements hold is averaged, weighted by one over the variance of its noise. What no
``n`` records could give (a negative count, a sum beyond the bounds, a moment matrix that is not positive semidefinite) is moved
to the nearest possible value, and every such move is noted.
"""

from __future__ import annotations

import numpy as np

from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.release.moments import Moments
from noisewise.release.queries import Counts
from noisewise.release.query import Column

_ROUNDS = 20_000
_TOLERANCE = 1e-11


class NotHeld(Exception):
    """The release does not hold a statistic that the update needs; the message says which."""


class Reading:
    """The statistics of one release, taken as exact, with notes on what had to be moved."""

    def __init__(self, model: Model, release: Release) -> None:
        self._model = type(model).__name__
        self.notes: list[str] = []
        self._sums: dict[tuple[tuple[str, int], ...], list[tuple[float, float]]] = {}
        self._tables: list[tuple[tuple[str, ...], np.ndarray, np.ndarray]] = []
        self._columns: dict[str, Column] = {}
        for measurement in release.measurements:
            query, noise = measurement.query, measurement.noise
            if query is None or noise is None:
                continue
            variances = np.broadcast_to(np.asarray(noise.variance), (query.size,))
            if isinstance(query, Moments):
                self._read_moments(query, np.asarray(measurement.value), variances)
            elif isinstance(query, Counts):
                tables = zip(query.tables, measurement.published, query.unflatten(variances), strict=True)
                self._tables += [(names, np.asarray(value), np.asarray(spread)) for names, value, spread in tables]
        self.n = float(release.n) if release.n is not None else self._released_count()

    def total(self, name: str, support: tuple[float, float] = (-np.inf, np.inf)) -> float:
        """The sum of a column over the records, in its own units; ``support`` is what the model allows for one record."""
        column = self._column(name)
        shift, slope = _affine(column)
        value = shift * self.n + slope * self._sum(((name, 1),))
        low, high = max(support[0], column.lower) * self.n, min(support[1], column.upper) * self.n
        nearest = float(np.clip(value, low, high))
        if nearest != value:
            self.notes.append(
                f"the sum of {name}, {value:.6g}, is impossible for {self.n:g} records; taken as {nearest:.6g}"
            )
        return nearest

    def moment_matrix(self, names: tuple[str, ...]) -> np.ndarray:
        """The sums of the products of ``(1, *names)`` in the columns' own units: the nearest positive semidefinite matrix.

        Nearness is Frobenius distance in the released units, with the count fixed and every entry within what its bounds
        allow: the projection on the intersection of the two convex sets, by Dykstra's algorithm (Boyle and Dykstra 1986).
        """
        matrix, low, high = self._matrix(names, names)
        nearest = nearest_moment_matrix(matrix, low, high)
        distance = float(np.linalg.norm(nearest - matrix))
        if distance > 0:
            self.notes.append(
                f"the moments of {', '.join(names)} are those of no {self.n:g} records; taken as the nearest positive "
                f"semidefinite matrix within the bounds, at distance {distance:.3g} in released units"
            )
        change = self._to_own(names)
        return change @ nearest @ change.T

    def cross_moments(self, names: tuple[str, ...], other: str, margin: np.ndarray) -> np.ndarray:
        """The sums of ``(1, *names) * other`` in the columns' own units, each within what its bounds allow.

        ``margin`` holds the sums of ``(1, *names)`` in their own units, which a shift of ``other`` brings in.
        """
        matrix, low, high = (ends[:, 1] for ends in self._matrix(names, (other,)))
        nearest = np.clip(matrix, low, high)
        if np.any(nearest != matrix):
            self.notes.append(f"{int(np.sum(nearest != matrix))} sum(s) with {other} moved to what the bounds allow")
        shift, slope = _affine(self._column(other))
        return shift * margin + slope * (self._to_own(names) @ nearest)

    def table(self, names: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        """The counts of the cells of one table, averaged over the released tables that hold it; negative ones become zero."""
        found = []
        for table, counts, variances in self._tables:
            if set(names) <= set(table):
                kept = [table.index(name) for name in names]
                rest = tuple(axis for axis in range(len(table)) if axis not in kept)
                order = np.argsort(np.argsort(kept))
                margin = np.transpose(counts.sum(axis=rest), order)
                found.append((margin, np.transpose(variances.sum(axis=rest), order)))
        if not found:
            raise NotHeld(
                f"the update of {self._model} needs the counts of {' by '.join(names)}, which are not released"
            )
        if found[0][0].shape != shape:
            raise NotHeld(
                f"the model has {' by '.join(map(str, shape))} levels of {' by '.join(names)} and the release "
                f"{' by '.join(map(str, found[0][0].shape))}"
            )
        weights = np.asarray([1 / variance for _, variance in found])
        mean = np.sum(weights * np.asarray([counts for counts, _ in found]), axis=0) / np.sum(weights, axis=0)
        if np.any(mean < 0):
            self.notes.append(f"{int(np.sum(mean < 0))} negative count(s) of {' by '.join(names)} taken as zero")
        return np.maximum(mean, 0.0)

    def holds_table(self, names: tuple[str, ...]) -> bool:
        """Whether some released table counts these columns."""
        return any(set(names) <= set(table) for table, _, _ in self._tables)

    def _read_moments(self, query: Moments, values: np.ndarray, variances: np.ndarray) -> None:
        bounds = dict(query.bounds)
        for name, column in bounds.items():
            self._columns.setdefault(name, column)
        for term, value, variance in zip(query.terms, values, variances, strict=True):
            if all(_same_bounds(bounds[name], self._columns[name]) for name, _ in term):
                self._sums.setdefault(term, []).append((float(value), float(variance)))
            else:
                label = " ".join(f"{name}^{power}" for name, power in term)
                self.notes.append(f"a second sum of {label}, clamped to other bounds, left aside")

    def _released_count(self) -> float:
        counted = [(float(value.sum()), float(spread.sum())) for _, value, spread in self._tables]
        counted += self._sums.get((), [])
        if not counted:
            raise NotHeld(f"the update of {self._model} needs the number of records, which is not released")
        count = _average(counted)
        if count < 1:
            self.notes.append(f"the released number of records, {count:.6g}, taken as 1")
        return max(count, 1.0)

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            raise NotHeld(f"the update of {self._model} needs sums of {name}, which are not released")
        return self._columns[name]

    def _sum(self, term: tuple[tuple[str, int], ...]) -> float:
        key = tuple(sorted(term))
        if key not in self._sums:
            label = " ".join(name if power == 1 else f"{name}^{power}" for name, power in key)
            raise NotHeld(f"the update of {self._model} needs the sum of {label}, which is not released")
        return _average(self._sums[key])

    def _matrix(self, rows: tuple[str, ...], cols: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums of products of (1, rows) and (1, cols) in released units, with the ends of what the bounds allow."""
        matrix, low, high = (np.empty((len(rows) + 1, len(cols) + 1)) for _ in range(3))
        for i, first in enumerate((None, *rows)):
            for j, second in enumerate((None, *cols)):
                powers: dict[str, int] = {}
                for name in (first, second):
                    if name is not None:
                        powers[name] = powers.get(name, 0) + 1
                ends = [self._column(name).range for name in (first, second) if name is not None]
                products = [
                    a * b for a in (ends[0] if ends else (1.0,)) for b in (ends[1] if len(ends) == 2 else (1.0,))
                ]
                if first is not None and first == second:
                    products = [end**2 for end in ends[0]] + ([0.0] if ends[0][0] < 0 < ends[0][1] else [])
                low[i, j], high[i, j] = self.n * min(products), self.n * max(products)
                matrix[i, j] = self._sum(tuple(powers.items())) if powers else self.n
        return matrix, low, high

    def _to_own(self, names: tuple[str, ...]) -> np.ndarray:
        change = np.eye(len(names) + 1)
        for i, name in enumerate(names, start=1):
            change[i, 0], change[i, i] = _affine(self._column(name))
        return change


def nearest_moment_matrix(matrix: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The positive semidefinite matrix with entries between ``low`` and ``high`` that is nearest in Frobenius norm."""
    size = max(1.0, float(np.max(np.abs(high))))
    possible = np.all((matrix >= low) & (matrix <= high)) and np.linalg.eigvalsh(matrix)[0] >= -_TOLERANCE * size
    if possible:
        return matrix
    nearest, box_rest, cone_rest = matrix, np.zeros_like(matrix), np.zeros_like(matrix)
    for _ in range(_ROUNDS):
        boxed = np.clip(nearest + box_rest, low, high)
        box_rest = nearest + box_rest - boxed
        values, vectors = np.linalg.eigh(boxed + cone_rest)
        nearest = (vectors * np.maximum(values, 0.0)) @ vectors.T
        cone_rest = boxed + cone_rest - nearest
        if np.max(np.abs(nearest - boxed)) <= _TOLERANCE * size:
            break
    return nearest


def _affine(column: Column) -> tuple[float, float]:
    """``(shift, slope)`` with ``own value = shift + slope * released value``."""
    if column.rescale is None:
        return 0.0, 1.0
    low, high = column.rescale
    slope = (column.upper - column.lower) / (high - low)
    return column.lower - slope * low, slope


def _same_bounds(one: Column, other: Column) -> bool:
    return (one.lower, one.upper, one.rescale) == (other.lower, other.upper, other.rescale)


def _average(found: list[tuple[float, float]]) -> float:
    values, variances = np.asarray(found).T
    return float(np.sum(values / variances) / np.sum(1 / variances))
