r"""Which normal law the totals of a release have under a model, or the reason why the ``sufficient`` engine knows none.

It is found from the model's exponential-family form and the release's rows r(x) on the family's support, which decide between

| the released row r(x) | totals J | law |
|---|---|---|
| affine in t(x) wherever x can be | sum t | :class:`~noisewise.engines.truncation.SupportLaw` |
| anything else, x at finitely many levels | (sum t, sum r) | :class:`~noisewise.engines.truncation.LevelsLaw` |
| affine in t on [a, b], constant outside | (sum t, sum r) | :class:`~noisewise.engines.truncation.TruncatedLaw` |
| moments of a linear regression | sums of products | :class:`~noisewise.engines.sufficient_regression.RegressionLaw` |
"""

from __future__ import annotations

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.sufficient_regression import regression_law
from noisewise.engines.truncation import LevelsLaw, SupportLaw, TruncatedLaw
from noisewise.kernels.statistics import NoiseShape, StatisticLaw
from noisewise.models.base import Model
from noisewise.models.exponential_family import exponential_form
from noisewise.models.form import ExponentialForm
from noisewise.models.linear_regression import LinearRegression
from noisewise.release.document import Release
from noisewise.release.mechanism import AdditiveNoise
from noisewise.release.moments import Moments
from noisewise.release.queries import Custom
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum

Clt = Literal["joint", "independent"]

_AFFINE = 1e-9
_TYPICAL = 0.1
_POINTS = 80
_REACH = 28.0
"""Points of an endless side go as far as sinh of this, 7e11: incomes and their bounds are among them."""


def statistic_law(model: Model, release: Release, *, clt: Clt = "joint") -> StatisticLaw | str:
    """The law of the totals that a release speaks of, or the reason why there is none."""
    measurements = [m for m in release.measurements if not isinstance(m.mechanism, PrivateQuantile)]
    strange = [m for m in measurements if not isinstance(m.mechanism, AdditiveNoise)]
    if strange or not measurements:
        return "the release is not noise added to sums over the records"
    if isinstance(model, LinearRegression):
        return (
            "the independent theorem is for truncated sums" if clt == "independent" else regression_law(model, release)
        )
    form = exponential_form(model)
    if form is None:
        return f"{type(model).__name__} has no exponential-family form"
    if release.columns != model.columns:
        return f"the release must read the column {model.columns[0]!r} and no other"
    if form.levels is not None:
        return _levels_law(form, release)
    return _truncated_law(form, release, model.columns[0], independent=clt == "independent")


def observed(release: Release) -> tuple[Array, NoiseShape]:
    """The noisy totals of a release as one vector, with their noise as normal laws and Laplace mixtures."""
    values, scales, laplace = [], [], []
    for measurement in release.measurements:
        if not isinstance(measurement.mechanism, AdditiveNoise):
            continue
        law, size = measurement.mechanism.noise, measurement.mechanism.size
        mixed = law.name in ("laplace", "discrete_laplace")
        scale = jnp.sqrt(law.variance / 2 if mixed else law.variance)
        values.append(measurement.value)
        scales.append(jnp.broadcast_to(scale, (size,)))
        laplace.append(jnp.full(size, mixed))
    return jnp.concatenate(values), NoiseShape(jnp.concatenate(scales), jnp.concatenate(laplace))


def quantiles(release: Release) -> bool:
    """Whether bounds of the release were chosen privately."""
    return any(isinstance(m.mechanism, PrivateQuantile) for m in release.measurements)


def _rows(release: Release, column: str, x: np.ndarray) -> np.ndarray:
    """The released row of each x, all added-noise measurements side by side."""
    records = {column: jnp.asarray(x)}
    parts = [m.query.statistics(records) for m in release.measurements if m.query is not None]
    return np.asarray(jnp.concatenate(parts, axis=-1), dtype=float)


def _affine(t: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """``slope, constant`` with ``rows = t @ slope.T + constant`` at every point where t is finite, if there are any.

    The points of an endless side cover many scales, so a column is fitted and judged by the errors' shares of what it is there.
    """
    usable = np.all(np.isfinite(t), axis=1)  # at the edge of a support log x is not
    t, rows = t[usable], rows[usable]
    if not (len(t) and np.all(np.isfinite(rows))):
        return None
    fitted = []
    for row in rows.T:
        size = np.abs(row)
        weights = 1 / (np.quantile(size[size > 0], _TYPICAL) + size) if np.any(row) else np.ones(len(row))
        design = np.column_stack([t, np.ones(len(t))]) * weights[:, None]
        spread = np.maximum(np.max(np.abs(design), axis=0), 1e-300)
        solution = np.linalg.lstsq(design / spread, weights * row, rcond=1e-12)[0]
        if np.max(np.abs(design / spread @ solution - weights * row)) > _AFFINE:
            return None
        fitted.append(np.where(np.abs(solution) > 1e-11 * np.max(np.abs(solution)), solution, 0.0) / spread)
    found = np.stack(fitted)
    return found[:, :-1], found[:, -1]


def _levels_law(form: ExponentialForm, release: Release) -> StatisticLaw:
    assert form.levels is not None
    x = np.arange(form.levels)
    rows = _rows(release, release.columns[0], x)
    t = np.asarray(form.statistic(jnp.asarray(x)))
    if np.array_equal(t, np.eye(form.levels)):
        return SupportLaw(jnp.asarray(rows.T), jnp.zeros(rows.shape[1]), form)
    found = _affine(t, rows)
    if found is not None:
        slope, constant = found
        return SupportLaw(jnp.asarray(slope), jnp.asarray(constant), form)
    matrix, offset = _released(t.shape[1], rows.shape[1])
    return LevelsLaw(matrix, offset, form, jnp.asarray(rows))


def _released(d: int, m: int) -> tuple[Array, Array]:
    """The matrix and the offset that take the released totals out of ``(sum t, sum r)``."""
    return jnp.concatenate([jnp.zeros((m, d)), jnp.eye(m)], axis=1), jnp.zeros(m)


def _truncated_law(form: ExponentialForm, release: Release, column: str, *, independent: bool) -> StatisticLaw | str:
    bounds = {
        _bounds(measurement.query, column) for measurement in release.measurements if measurement.query is not None
    }
    if None in bounds:
        return "of an unbounded column only Moments, TruncatedSum and Custom queries can be read"
    if len(bounds) > 1:
        return f"the measurements have different bounds for the column: {sorted(b for b in bounds if b is not None)}"
    bound = bounds.pop()
    assert bound is not None
    lower, upper = bound
    low, high = max(lower, form.support[0]), min(upper, form.support[1])
    empty = form.discrete and math.isfinite(high - low) and math.ceil(low) > math.floor(high)
    if not low < high or empty:
        return f"the bounds [{lower:g}, {upper:g}] leave nothing of the model's support {form.support}"
    reaches_below, reaches_above = lower > form.support[0], upper < form.support[1]
    if (reaches_below or reaches_above) and not form.truncates:
        return "the model's distribution function is unknown, so its statistic cannot be cut at bounds; give a cdf"
    x = _inside(low, high, discrete=form.discrete)
    rows = _rows(release, column, x)
    found = _affine(np.asarray(form.statistic(jnp.asarray(x))), rows)
    if found is None:
        return "the released statistic is not a linear function of the family's sufficient statistic"
    slope, constant = found
    if not (reaches_below or reaches_above):
        return SupportLaw(jnp.asarray(slope), jnp.asarray(constant), form)
    span = high - low if math.isfinite(high - low) else 1.0
    below, above = _rows(release, column, np.asarray([lower - span - 1, upper + span + 1]))
    if independent and (np.any(constant != 0) or np.any(below != 0) or np.any(above != 0)):
        return "the independent theorem is for truncated sums of the family's statistic"
    m, d = slope.shape
    matrix, offset = _released(d, m)
    return TruncatedLaw(
        matrix=matrix,
        offset=offset,
        form=form,
        lower=jnp.asarray(lower),
        upper=jnp.asarray(upper),
        slope=jnp.asarray(slope),
        constant=jnp.asarray(constant),
        below=jnp.asarray(below),
        above=jnp.asarray(above),
        reaches_below=reaches_below,
        reaches_above=reaches_above,
        flat=bool(np.all(below == above)),
        independent=independent,
    )


def _inside(low: float, high: float, *, discrete: bool) -> np.ndarray:
    """Points of the centre at which rows are compared; an endless side is covered over many scales."""
    if math.isinf(low) or math.isinf(high):
        outward = np.sinh(np.linspace(0.0, _REACH, _POINTS))
        endless = {
            (True, True): np.sinh(np.linspace(-_REACH, _REACH, _POINTS)),
            (False, True): low + outward,
            (True, False): high - outward,
        }[math.isinf(low), math.isinf(high)]
        return np.unique(np.round(endless)) if discrete else endless[np.isfinite(endless)]
    if discrete:
        first, last = np.ceil(low), np.floor(high)
        return np.unique(np.round(np.linspace(first, last, int(min(_POINTS, last - first + 1)))))
    return low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS))


def _bounds(query: object, column: str) -> tuple[float, float] | None:
    if isinstance(query, TruncatedSum):
        return (query.lower, query.upper)
    if isinstance(query, Moments):
        found = dict(query.bounds)[column]
        return (found.lower, found.upper)
    return (-math.inf, math.inf) if isinstance(query, Custom) else None
