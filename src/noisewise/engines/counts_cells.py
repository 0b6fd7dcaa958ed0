r"""What a release says of each count: cells with Dirichlet weights and a likelihood that is a product over cells.

Records that fall into cells with Dirichlet(a) probabilities have counts with

    p(c) = n! Gamma(A) / Gamma(n + A) prod_j Gamma(c_j + a_j) / (Gamma(a_j) c_j!),   A = sum_j a_j,

so everything the counts engine sums is made of the factors ``f_j(c) = Gamma(c + a_j) / (Gamma(a_j) c!) L_j(c)``, where
``L_j`` is the density of all released numbers that look at cell j alone. A released number is ``s = u n + v c_j + noise``
(``v = 1, u = 0`` for a table of counts; a sum of clamped 0/1 values is an affine count in disguise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import gammaln

from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.release.document import Measurement, Release
from noisewise.release.mechanism import AdditiveNoise
from noisewise.release.noise import LAWS, Noise
from noisewise.release.queries import Counts

_SERIES_FROM = 32.0
_AFFINE_TOLERANCE = 1e-12


class Unsupported(ValueError):
    """A release that does not look at cells one by one, with the reason."""


@dataclass(frozen=True)
class Layer:
    """Released numbers of which each cell has at most one: arrays over cells; ``slope`` is 0 where there is none."""

    noise: Noise
    target: np.ndarray
    slope: np.ndarray


class Factors(Protocol):
    """Factors of cells, as the sums need them; ``log f_j(c) - log Gamma(c + a_j) / (Gamma(a_j) c!)`` is concave in c."""

    @property
    def weights(self) -> np.ndarray:
        """The Dirichlet weights."""
        ...

    def log_likelihood(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """``log L_j(c)`` for rows of counts, one row for each of ``cells``."""
        ...

    def log_factors(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """``log f_j(c)`` for rows of counts, one row for each of ``cells``."""
        ...


@dataclass(frozen=True)
class Cells:
    """Cells, their Dirichlet weights, what was released of them, and what was released of the number of records alone.

    The exact total behind released number j is ``offset[j] n + slope[j] * counts[cell[j]]``, in the order of the release.
    ``sizes`` holds ``(noise, target, slope)`` of numbers that look at n alone, ``target - slope n`` being the noise.
    """

    weights: np.ndarray
    layers: tuple[Layer, ...]
    sizes: tuple[tuple[Noise, float, float], ...]
    cell: np.ndarray
    offset: np.ndarray
    slope: np.ndarray

    def log_size(self, n: np.ndarray | float) -> np.ndarray:
        """The log density of what was released of the number of records alone."""
        size = np.asarray(n, dtype=float)
        total = np.zeros(size.shape)
        for noise, target, slope in self.sizes:
            total += np.asarray(noise.log_prob(jnp.asarray(target - slope * size)))
        return total

    def log_likelihood(self, counts: np.ndarray, cells: np.ndarray | slice = slice(None)) -> np.ndarray:
        """``log L_j(c)`` for rows of counts, one row for each of ``cells``."""
        total = np.zeros(counts.shape)
        for layer in self.layers:
            noise = eqx.tree_at(lambda law: law.scale, layer.noise, np.asarray(layer.noise.scale)[cells, None])
            total += np.asarray(_log_density(noise, layer.target[cells, None], layer.slope[cells, None], counts))
        return total

    def log_factors(self, counts: np.ndarray, cells: np.ndarray | slice = slice(None)) -> np.ndarray:
        """``log f_j(c)`` for rows of counts, one row for each of ``cells``."""
        return log_rising(counts, self.weights[cells, None]) + self.log_likelihood(counts, cells)


@jax.jit
def _log_density(noise: Noise, target: Array, slope: Array, counts: Array) -> Array:
    return jnp.where(slope == 0, 0.0, noise.log_prob(target - slope * counts))


def log_rising(count: np.ndarray | float, weight: np.ndarray | float) -> np.ndarray:
    r"""``log Gamma(c + a) / (Gamma(a) c!)``, with its digits at counts of 3e8 (the difference of Stirling's series)."""
    c, a = np.broadcast_arrays(np.asarray(count, dtype=float), np.asarray(weight, dtype=float))
    many, heavy = c >= _SERIES_FROM, a >= _SERIES_FROM
    by_count = _log_gamma_ratio(np.where(many, c + 1, _SERIES_FROM), a - 1) - gammaln(a)
    by_weight = _log_gamma_ratio(np.where(heavy, a, _SERIES_FROM), np.where(many, 0.0, c)) - gammaln(c + 1)
    few = np.where(many, 0.0, c)
    light = np.where(heavy, 1.0, a)
    direct = gammaln(few + light) - gammaln(light) - gammaln(few + 1)
    return np.where(many, by_count, np.where(heavy, by_weight, direct))


def _log_gamma_ratio(z: np.ndarray, d: np.ndarray) -> np.ndarray:
    """``log Gamma(z + d) / Gamma(z)`` for large z."""
    return (z + d - 0.5) * np.log1p(d / z) + d * (np.log(z) - 1) + _stirling(z + d) - _stirling(z)


def _stirling(z: np.ndarray) -> np.ndarray:
    w = 1 / z**2
    return (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w * (1 / 1188 - w * 691 / 360360))))) / z


def multinomial_cells(model: Bernoulli | Categorical, release: Release) -> Cells:
    """The cells of a release about one coded column: the levels of the column."""
    weights = np.asarray([model.b, model.a] if isinstance(model, Bernoulli) else model.alpha, dtype=float)
    size = weights.size
    records = {model.column: jnp.arange(size)}
    parts = []
    for name, measurement in zip(release.names, release.measurements, strict=True):
        rows = np.asarray(_additive(measurement, name).statistics(records, measurement.value), dtype=float)
        for j in range(rows.shape[1]):
            cell, offset, slope = _single_cell(rows[:, j], name, alone=release.n is None)
            parts.append(Part(measurement, j, cell, offset, slope))
    return _collect(weights, parts, release.n)


def naive_bayes_cells(model: NaiveBayes, release: Release) -> tuple[Cells, list[np.ndarray]]:
    """The cells of a naive Bayes release, and where they are: index arrays (class,), then (class, level) for each feature."""
    sizes = {model.target: model.classes, **{f"x{k}": size for k, size in enumerate(model.features, start=1)}}
    where: list[np.ndarray] = [np.arange(model.classes)]
    for size in model.features:
        begin = 1 + int(where[-1].max())
        where.append(begin + np.arange(model.classes * size).reshape(model.classes, size))
    weights = np.full(1 + int(where[-1].max()), float(model.prior))
    place: dict[tuple[str, ...], np.ndarray] = {(model.target,): where[0]}
    for k in range(1, len(model.features) + 1):
        place[model.target, f"x{k}"] = where[k]
        place[f"x{k}", model.target] = where[k].T
    parts = []
    for name, measurement in zip(release.names, release.measurements, strict=True):
        query = _additive(measurement, name).query
        if not isinstance(query, Counts):
            raise Unsupported(f"{name} is not a Counts query, and naive Bayes needs tables of counts")
        wrong = [f"{c} has {s}, the model {sizes[c]}" for c, s in query.levels if c in sizes and s != sizes[c]]
        if wrong:
            raise Unsupported(f"{name} and the model disagree on numbers of levels: {'; '.join(wrong)}")
        coordinate = 0
        for table in query.tables:
            if table not in place:
                raise Unsupported(
                    f"{name} has a table of {table}; only tables of {model.target!r}, alone or with one feature, leave the "
                    "classes independent"
                )
            for cell in place[table].ravel():
                parts.append(Part(measurement, coordinate, int(cell), 0.0, 1.0))
                coordinate += 1
    return _collect(weights, parts, release.n), where


@dataclass(frozen=True)
class Part:
    """One released number: ``value[coordinate] = offset n + slope c_cell + noise`` (``cell`` None: it counts all)."""

    measurement: Measurement
    coordinate: int
    cell: int | None
    offset: float
    slope: float


def known_n(release: Release) -> int:
    """The number of records, which the counts engine needs to know."""
    if release.n is None:
        raise Unsupported("the number of records is unknown")
    return release.n


def _additive(measurement: Measurement, name: str) -> AdditiveNoise:
    mechanism = measurement.mechanism
    if not isinstance(mechanism, AdditiveNoise):
        raise Unsupported(f"{name} is not noise added to a query")
    if type(mechanism.noise) not in LAWS.values():
        raise Unsupported(
            f"{name} has noise of law {type(mechanism.noise).__name__}, not known to be independent over cells"
        )
    return mechanism


def _single_cell(row: np.ndarray, name: str, *, alone: bool) -> tuple[int | None, float, float]:
    """Which one cell a number looks at, when a record in cell k adds ``row[k]`` to it.

    With ``alone`` the other cells should add nothing, where that can be had.
    """
    slack = _AFFINE_TOLERANCE * max(1.0, float(np.max(np.abs(row))))
    cells = list(reversed(range(row.size)))
    if alone:
        cells.sort(key=lambda cell: float(np.max(np.abs(np.delete(row, cell)))) > slack)
    for cell in cells:
        others = np.delete(row, cell)
        if np.ptp(others) <= slack:
            slope = float(row[cell] - others[0])
            return (cell, float(others[0]), slope) if abs(slope) > slack else (None, float(others[0]), 0.0)
    raise Unsupported(f"{name} has a sum that mixes several levels of the column")


def _collect(weights: np.ndarray, parts: Sequence[Part], n: int | None) -> Cells:
    """Stack released numbers into layers in which a cell occurs at most once and the noise law is one."""
    sizes = []
    stacks: list[tuple[type[Noise], np.ndarray, np.ndarray, np.ndarray]] = []
    for part in parts:
        mechanism = part.measurement.mechanism
        assert isinstance(mechanism, AdditiveNoise)
        law = type(mechanism.noise)
        scale = float(
            np.broadcast_to(np.asarray(mechanism.noise.scale).reshape(-1), (mechanism.size,))[part.coordinate]
        )
        target = float(part.measurement.value[part.coordinate])
        if part.cell is None:
            sizes.append((law(scale), target, part.offset))
            continue
        if n is None and part.offset:
            raise Unsupported("a released sum moves with the unknown number of records and with a count at once")
        target -= part.offset * (n or 0)
        for stack in stacks:
            if stack[0] is law and stack[2][part.cell] == 0:
                break
        else:
            stack = (law, np.zeros(weights.size), np.zeros(weights.size), np.ones(weights.size))
            stacks.append(stack)
        _, targets, slopes, scales = stack
        targets[part.cell], slopes[part.cell], scales[part.cell] = target, part.slope, scale
    layers = tuple(Layer(law(scales), targets, slopes) for law, targets, slopes, scales in stacks)
    return Cells(
        weights,
        layers,
        tuple(sizes),
        cell=np.array([part.cell or 0 for part in parts]),
        offset=np.array([part.offset for part in parts]),
        slope=np.array([part.slope for part in parts]),
    )
