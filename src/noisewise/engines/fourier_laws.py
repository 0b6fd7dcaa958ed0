r"""The law of one record's clamped statistic, as finitely many values with probabilities.

Clamping at L and U leaves atoms ``P(x <= L)`` and ``P(x >= U)``, kept exactly; the density between them is carried by a
Gauss-Legendre rule on the part of [L, U] that holds mass, in which ``E exp(zeta t)`` is exact to rounding for all frequencies
the order can follow. Discrete records have their atoms alone, those of a Poisson law out to where exp(-42) is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, ndtr
from scipy.stats import expon, norm, poisson

from noisewise.engines.fourier_custom import Unsupported, check_density, custom_law, density_integrates
from noisewise.engines.fourier_density import Law, ReleasedSum
from noisewise.engines.fourier_few import Between
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.custom import Custom
from noisewise.models.exponential import Exponential
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.release.document import Release
from noisewise.release.mechanism import AdditiveNoise
from noisewise.release.noise import LAWS
from noisewise.release.queries import Column, Moments, Query

_REACH = 9.5
_LIFETIMES = 44.0
_MOST_ATOMS = 20_000
_LATTICE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Problem:
    """What the Fourier engine integrates: the law of a record's statistic, and what was released.

    ``trusted`` says for which parameters a law by quadrature is exact to rounding; None where it always is. ``between`` describes
    the records between the bounds, where the statistic is linear in them.
    """

    law: Law
    released: ReleasedSum
    trusted: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None
    between: Between | None = None


def problem(model: Model, release: Release) -> Problem:
    """The one released sum and the law of its terms, or :class:`Unsupported` with the reason."""
    if release.n is None:
        raise Unsupported("the number of records is unknown")
    if release.size != 1:
        raise Unsupported(f"it needs one released sum, and the release has {release.size} numbers")
    mechanism = release.measurements[0].mechanism
    if not isinstance(mechanism, AdditiveNoise):
        raise Unsupported("the release is not noise added to a sum")
    noise = mechanism.noise
    if type(noise) not in LAWS.values():
        raise Unsupported(f"the transform of {type(noise).__name__} noise is not known")
    law, lattice = _record_law(model, mechanism.query)
    if lattice is None and noise.discrete:
        raise Unsupported("integer noise leaves the fractional part of a real-valued sum exposed, which has no density")
    trusted = density_integrates(model) if isinstance(model, Custom) else None
    value, scale = float(release.measurements[0].value[0]), float(np.reshape(noise.scale, -1)[0])
    between = _between(model, mechanism.query) if lattice is None else None
    return Problem(law, ReleasedSum(value, release.n, noise.name, scale, lattice), trusted, between)


def _record_law(model: Model, query: Query) -> tuple[Law, tuple[float, float] | None]:
    if isinstance(model, Bernoulli):
        levels = np.array([0.0, 1.0])
        values = _statistic(query, model.column, levels)
        return _bernoulli(values), lattice_of(values)
    if isinstance(model, Custom):
        check_density(model)
        return custom_law(
            model, _single_column(query, model.columns[0]), functools.partial(_statistic, query, model.columns[0])
        ), None
    if not isinstance(model, Normal | Exponential | Poisson):
        raise Unsupported(
            f"{type(model).__name__} is not one of the models whose clamped sums it can transform (Bernoulli, Custom, "
            "Exponential, Normal, Poisson)"
        )
    column = _single_column(query, model.column)
    if isinstance(model, Poisson):
        low, high = max(0.0, np.ceil(column.lower)), np.floor(column.upper)
        if high - low > _MOST_ATOMS:
            raise Unsupported(f"there are {high - low:.6g} counts between the bounds, more than {_MOST_ATOMS}")
        corners = [column.lower] * (column.lower > 0) + [column.upper]
        near = np.unique(np.concatenate([corners, np.arange(low, min(high, low + 50) + 1)]))
        lattice = lattice_of(_statistic(query, model.column, near))
        return _poisson(query, model.column, column), lattice
    if isinstance(model, Normal):
        return _normal(query, model, column), None
    return _exponential(query, model, column), None


def _between(model: Model, query: Query) -> Between | None:
    """The density between the bounds of a first power of a real column of one of the library's models."""
    if isinstance(model, Custom) or not isinstance(query, Moments) or query.terms[0][0][1] != 1:
        return None
    ((name, column),) = query.bounds
    low = max(column.lower, 0.0) if isinstance(model, Exponential) else column.lower
    if not low < column.upper:
        return None
    width = column.upper - low

    def density(theta: dict[str, np.ndarray], u: np.ndarray) -> np.ndarray:
        x = low + width * u
        if isinstance(model, Exponential):
            return width * np.asarray(expon.pdf(x, scale=1 / theta["rate"][:, None]))
        assert isinstance(model, Normal)
        known = model.variance
        variance = theta["variance"] if isinstance(known, InverseGamma) else np.full(theta["mean"].size, float(known))
        return width * np.asarray(norm.pdf(x, theta["mean"][:, None], np.sqrt(variance)[:, None]))

    lower, upper = _statistic(query, name, np.array([low, column.upper]))
    return Between(float(lower), float(upper), density)


def _single_column(query: Query, name: str) -> Column:
    if not isinstance(query, Moments) or query.columns != (name,) or len(query.terms[0]) != 1:
        raise Unsupported(f"the released sum is not a power of the clamped column {name!r}")
    return dict(query.bounds)[name]


def _statistic(query: Query, column: str, x: np.ndarray) -> np.ndarray:
    """The statistic of records with these values; in NumPy for a clamped power, whose nodes come in many shapes."""
    if isinstance(query, Moments) and query.columns == (column,) and len(query.terms[0]) == 1:
        bounds, power = dict(query.bounds)[column], query.terms[0][0][1]
        clamped = np.clip(x, bounds.lower, bounds.upper)
        if bounds.rescale is not None:
            low, high = bounds.rescale
            clamped = low + (clamped - bounds.lower) * ((high - low) / (bounds.upper - bounds.lower))
        return clamped**power
    return np.asarray(query.statistics({column: jnp.asarray(x)}), dtype=float)[:, 0]


def lattice_of(values: np.ndarray) -> tuple[float, float]:
    """Origin and step of the coarsest lattice found to hold the values, which must be few and different."""
    steps = np.diff(np.unique(values))
    if steps.size == 0:
        raise Unsupported("the clamped statistic is constant, so the release says nothing about the parameters")
    step = float(np.min(steps))
    multiples = steps / step
    if np.any(np.abs(multiples - np.round(multiples)) > _LATTICE_TOLERANCE * multiples):
        raise Unsupported("the values of the statistic do not lie on a lattice; integer bounds would put them on one")
    return float(values[0]), step


def _bernoulli(values: np.ndarray) -> Law:
    def law(theta: dict[str, np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
        p = theta["p"]
        return np.broadcast_to(values, (p.size, 2)), np.stack([theta["not p"], p], axis=1)

    return law


def _poisson(query: Query, name: str, column: Column) -> Law:
    def law(theta: dict[str, np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
        rate = theta["rate"]
        low, high = max(np.ceil(column.lower), 0.0), np.floor(column.upper)
        least, most = float(np.min(rate)), float(np.max(rate))
        # beyond these a Poisson count has less than exp(-42), by Chernoff's and Bernstein's bounds
        first = float(np.clip(np.floor(least - np.sqrt(84 * least)), low, high))
        last = float(np.clip(np.ceil(most + 14 + np.sqrt(196 + 84 * most)), low, high))
        x = np.arange(first, last + 1)
        mass = np.exp(x * np.log(rate[:, None]) - rate[:, None] - gammaln(x + 1))
        below, above = poisson.cdf(first - 1, rate), poisson.sf(last, rate)
        nodes = _statistic(query, name, np.concatenate([[column.lower], x, [column.upper]]))
        weights = np.concatenate([below[:, None], mass, above[:, None]], axis=1)
        return np.broadcast_to(nodes, weights.shape), weights

    return law


def _normal(query: Query, model: Normal, column: Column) -> Law:
    known = np.nan if isinstance(model.variance, InverseGamma) else float(model.variance)

    def law(theta: dict[str, np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
        mean = theta["mean"]
        sd = np.sqrt(theta.get("variance", np.full(mean.shape, known)))
        low, high = (column.lower - mean) / sd, (column.upper - mean) / sd
        begin, end = np.clip(low, -_REACH, _REACH), np.clip(high, -_REACH, _REACH)
        x, share = _rule(begin, end, order)
        interior = share * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
        nodes = _with_ends(query, model.column, column, mean[:, None] + sd[:, None] * x)
        return nodes, _normalised(ndtr(low), interior, ndtr(-high))

    return law


def _exponential(query: Query, model: Exponential, column: Column) -> Law:
    def law(theta: dict[str, np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
        rate = theta["rate"]
        low, high = max(column.lower, 0.0) * rate, np.maximum(column.upper, 0.0) * rate
        x, share = _rule(low, np.minimum(high, low + _LIFETIMES), order)
        nodes = _with_ends(query, model.column, column, x / rate[:, None])
        return nodes, _normalised(-np.expm1(-low), share * np.exp(-x), np.exp(-high))

    return law


@functools.cache
def _legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return nodes, weights


def _rule(begin: np.ndarray, end: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = _legendre(order)
    half = 0.5 * (end - begin)[:, None]
    return 0.5 * (begin + end)[:, None] + half * nodes, half * weights


def _with_ends(query: Query, name: str, column: Column, x: np.ndarray) -> np.ndarray:
    ends = np.ones((x.shape[0], 1))
    # rounding must not push a node inside the bounds onto an atom's side: clamping does nothing to the others
    return _statistic(query, name, np.concatenate([column.lower * ends, x, column.upper * ends], axis=1))


def _normalised(below: np.ndarray, interior: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Probabilities with the atoms kept and what is between them scaled to the rest, where that is more than rounding."""
    rest, found = 1 - below - above, np.sum(interior, axis=1)
    scale = np.where((rest > 1e-3) & (found > 0), rest / np.where(found > 0, found, 1.0), 1.0)
    return np.concatenate([below[:, None], interior * scale[:, None], above[:, None]], axis=1)
