r"""How far the totals of a release are from normal, by the first Edgeworth term, and whether their bounds cut too much.

With the skewness g of a record's row, the variance V of the total and W of its noise, the law of each released number lies from the
normal one by about

    distance = (|g| / sqrt n) (V / (V + W))^(3/2) E|z^3 - 3z| / 12,   z ~ N(0, 1),

in total variation (noise that is wide against the total hides the skewness). Rare levels have a large g. Records are simulated
at draws from the posterior; where there are few levels they are weighted by their probabilities instead, because a rare one
would not be seen. Records outside their bounds are counted as well: the bulk of a heavily cut column is
not seen through its totals. The regression law leaves clamping out, so there the released sums of the simulated records are compared
with and without it: a sum moved by ``delta`` of its standard deviations lies ``2 Phi(delta/2) - 1`` from where it is taken to be.
A released number that lies many standard deviations from its expectation even under the posterior is in a tail that the normal law has
wrong: a noisy count far below zero, for one.
Checked by ``tests/engines/test_sufficient_trust.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.sufficient_laws import observed, statistic_law
from noisewise.engines.sufficient_regression import RegressionLaw, regression_law
from noisewise.kernels.statistics import StatisticLaw
from noisewise.models.base import Model
from noisewise.models.exponential_family import exponential_form
from noisewise.models.linear_regression import LinearRegression
from noisewise.release.document import Release
from noisewise.release.moments import Moments
from noisewise.release.query import Query
from noisewise.release.truncated_sum import TruncatedSum
from noisewise.typing import Key, Theta

ABSOLUTE_CUBIC = math.sqrt(2 / math.pi) * (1 + 4 * math.exp(-1.5))
"""E |z^3 - 3 z| for a standard normal z."""
FAR = 0.03
"""The largest distance that is passed over."""
_MANY_CUT = 0.2
_REMOTE = 6.0
_RECORDS = 4096
_THETAS = 64


def doubts_of(model: Model, release: Release, thetas: Mapping[str, Any], key: Key) -> tuple[float, tuple[str, ...]]:
    """The Edgeworth distance of a release, averaged over draws of theta (first axis), and every doubt in words."""
    assert release.n is not None
    if not model.has_transform and _levels(model) is None:
        unchecked = "the model cannot simulate records, so the normal approximation was not checked; give a quantile"
        return math.nan, (unchecked,)
    few = {name: jnp.asarray(value)[:: max(1, value.shape[0] // _THETAS)][:_THETAS] for name, value in thetas.items()}
    queries = tuple(m.query for m in release.measurements if m.query is not None)
    value, noise = observed(release)
    wide = noise.scale**2 * jnp.where(noise.laplace, 2.0, 1.0)
    skewness, share, cut = map(np.asarray, _simulated(model, queries, wide, jnp.asarray(float(release.n)), few, key))
    distance = float(np.max(np.mean(ABSOLUTE_CUBIC / 12 * skewness / math.sqrt(release.n) * share**1.5, axis=0)))
    doubts = [too_far(release.n, distance)] if distance > FAR else []
    doubts += [
        f"{part:.0%} of the records are expected to lie outside the bounds of {name!r}"
        for name, part in zip(_cut_columns(queries), cut, strict=True)
        if part > _MANY_CUT
    ]
    totals = statistic_law(model, release)
    if isinstance(totals, StatisticLaw):
        remote = float(_remoteness(totals, value, wide, jnp.asarray(float(release.n)), few))
        if remote > _REMOTE:
            doubts.append(f"a released number lies {remote:.3g} standard deviations from where the model expects it")
    law = regression_law(model, release) if isinstance(model, LinearRegression) else None
    if isinstance(law, RegressionLaw):
        moved = float(_moved_by_clamping(law, queries, wide, jnp.asarray(float(release.n)), few, key))
        missed = math.erf(moved / math.sqrt(8))
        distance = max(distance, missed)
        if missed > FAR:
            doubts.append(
                f"clamping, which is left out here, moves a released sum by {moved:.2g} of its standard deviations"
            )
    return distance, tuple(doubts)


def too_far(n: int, distance: float) -> str:
    """The doubt of a total that is not near normal."""
    return f"the total of {n:,} records is not near normal: a distance of {distance:.2f} where {FAR} is allowed"


def _levels(model: Model) -> int | None:
    form = exponential_form(model)
    return None if form is None else form.levels


@eqx.filter_jit
def _simulated(
    model: Model, queries: tuple[Query, ...], wide: Array, n: Array, thetas: Theta, key: Key
) -> tuple[Array, Array, Array]:
    """For each theta and released number the skewness of a record's row, and V/(V + W); the share of records cut, by column."""
    count = _levels(model)
    levels = None if count is None else {model.columns[0]: jnp.arange(count)}
    u = model.innovations(key, _RECORDS) if levels is None else None

    def one(theta: Theta) -> tuple[Array, Array, Array]:
        records = model.transform(theta, u) if levels is None else levels
        size = next(iter(records.values())).shape[0]
        weights = jnp.full(size, 1 / size) if levels is None else jnp.exp(model.log_likelihood(theta, records))
        rows = jnp.concatenate([query.statistics(records) for query in queries], axis=-1)
        centred = rows - weights @ rows
        variance = weights @ centred**2
        safe = jnp.where(variance > 0, variance, 1.0)
        skewness = jnp.abs(weights @ centred**3) / safe**1.5
        total = n * variance
        outside = [
            weights @ ((records[name] < low) | (records[name] > high)).astype(float)
            for name, (low, high) in _cut_columns(queries).items()
        ]
        return skewness, total / (total + wide), jnp.asarray(outside)

    skewness, share, outside = jax.vmap(one)(thetas)
    return skewness, share, jnp.mean(outside, axis=0)


@eqx.filter_jit
def _remoteness(law: StatisticLaw, value: Array, wide: Array, n: Array, thetas: Theta) -> Array:
    """How far a released number is from its expectation, in standard deviations, on average over theta; the largest."""

    def one(theta: Theta) -> Array:
        mean, covariance = law.moments(theta)
        spread = n * jnp.diag(law.matrix @ covariance @ law.matrix.T) + wide
        return jnp.abs(value - law.released(n * mean, n)) / jnp.sqrt(spread)

    return jnp.max(jnp.mean(jax.vmap(one)(thetas), axis=0))


@eqx.filter_jit
def _moved_by_clamping(
    law: RegressionLaw, queries: tuple[Query, ...], wide: Array, n: Array, thetas: Theta, key: Key
) -> Array:
    """How far clamping moves the expectation of a released sum, in standard deviations of that sum; the largest."""
    u = law.model.innovations(key, _RECORDS)

    def one(theta: Theta) -> tuple[Array, Array]:
        records = law.model.transform(theta, u)
        rows = jnp.concatenate([query.statistics(records) for query in queries], axis=-1)
        return jnp.mean(rows - law.unclamped(records), axis=0), jnp.var(rows, axis=0)

    shifts, variances = jax.vmap(one)(thetas)
    spread = jnp.sqrt(n * jnp.mean(variances, axis=0) + wide)
    return jnp.max(n * jnp.abs(jnp.mean(shifts, axis=0)) / spread)


def _cut_columns(queries: tuple[Query, ...]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for query in queries:
        if isinstance(query, Moments):
            found |= {name: (column.lower, column.upper) for name, column in query.bounds}
        elif isinstance(query, TruncatedSum):
            found[query.column] = (query.lower, query.upper)
    return found
