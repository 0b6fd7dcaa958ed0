r"""When the normal approximation of the ``sufficient`` engine is not to be trusted for a release.

Where an exact engine without Markov chains can do the pair, both posteriors are drawn from and compared: the largest
Kolmogorov-Smirnov distance over the parameters, less what two samples of the same law show by chance. Where none can, records are
simulated at draws from the approximate posterior, and the first Edgeworth term says how far the law of each released number lies from
the normal one: with the skewness g of a record's row, the variance V of the total and W of its noise,

    distance = (|g| / sqrt n) (V / (V + W))^(3/2) E|z^3 - 3z| / 12,   z ~ N(0, 1),

in total variation (noise that is wide against the total hides the skewness). Rare cells have a large g. Records outside
their bounds are counted as well: the bulk of a heavily cut column is not seen through its totals, and the regression law ignores cutting.
Checked by ``tests/engines/test_sufficient_trust.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.base import Engine, Sampler
from noisewise.engines.choose import choose
from noisewise.engines.sufficient import Sufficient, observed
from noisewise.kernels.base import Kernel
from noisewise.kernels.statistics import StatisticsKernel, StatisticsState
from noisewise.models.base import Model
from noisewise.models.exponential_family import exponential_form
from noisewise.release.document import Release
from noisewise.release.moments import Moments
from noisewise.release.truncated_sum import TruncatedSum
from noisewise.typing import Key, Theta

_ABSOLUTE_CUBIC = math.sqrt(2 / math.pi) * (1 + 4 * math.exp(-1.5))
"""E |z^3 - 3 z| for a standard normal z."""
_FAR = 0.03
_MANY_CUT = 0.2
_RECORDS = 4096
_THETAS = 64
_SAMPLE = 4000
_CHANCE = 1.63
_STEPS = 300


@dataclass(frozen=True)
class Trust:
    """Whether to trust the normal approximation, how far off it is judged to be, by what means, and every doubt."""

    ok: bool
    distance: float
    how: str
    doubts: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "The normal approximation can be trusted" if self.ok else "Do not trust the normal approximation"
        return ". ".join([f"{verdict} (distance {self.distance:.3f}, {self.how})", *self.doubts]) + "."


def check_normality(model: Model, release: Release, *, random_seed: int = 0, compare: bool = True) -> Trust:
    """Judge the ``sufficient`` engine for one pair of model and release; ``compare=False`` leaves the exact engines out.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> few = nw.Release([nw.Measurement(query, nw.noise.Laplace(0.5), [[9.3, 0.8]])], n=10)
    >>> check_normality(nw.models.Bernoulli(), few, compare=False).ok
    False
    """
    engine = Sufficient()
    choice = choose(model, release, engine)
    assert release.n is not None
    first, second, third = jax.random.split(jax.random.key(random_seed), 3)
    thetas = _draws(engine, model, release, first)
    few = jax.tree.map(lambda value: value[:: max(1, value.shape[0] // _THETAS)][:_THETAS], thetas)
    skewness, share, cut = map(np.asarray, _simulated(model, release, few, second))
    weight = float(_ABSOLUTE_CUBIC / 12)
    distance = float(np.max(np.mean(weight * skewness / math.sqrt(release.n) * share**1.5, axis=0)))
    how = "first Edgeworth term of the released totals"
    doubts = []
    exact = [c.engine for c in choice.candidates if c.support.ok and c.engine.exact]
    if compare:
        for other in exact:
            source = other.build(model, release, third)
            if isinstance(source, Sampler):
                reference = _sample(source, third)
                distance, how = _largest_distance(thetas, reference), f"compared with the {other.name} engine"
                break
    if distance > _FAR:
        doubts.append(
            f"the total of {release.n:,} records is not near normal: a distance of {distance:.2f} where {_FAR} is allowed"
        )
    for name, part in zip(_cut_columns(release), cut, strict=True):
        if part > _MANY_CUT:
            doubts.append(f"{part:.0%} of the records are expected to lie outside the bounds of {name!r}")
    return Trust(not doubts, distance, how, tuple(doubts))


def _draws(engine: Engine, model: Model, release: Release, key: Key) -> Theta:
    source = engine.build(model, release, key)
    if isinstance(source, Sampler):
        return _sample(source, key)
    assert isinstance(source, StatisticsKernel)
    return _run(source, jax.random.split(key, 32))


@eqx.filter_jit
def _sample(sampler: Sampler, key: Key) -> Theta:
    return jax.vmap(lambda k: sampler.draw(k).theta)(jax.random.split(key, _SAMPLE))


@eqx.filter_jit
def _run(kernel: Kernel, keys: Key) -> Theta:
    assert isinstance(kernel, StatisticsKernel)

    def one(key: Key) -> Theta:
        start, begin, later = jax.random.split(key, 3)
        state = kernel.init(begin, kernel.model.sample_prior(start))

        def step(carry: tuple[StatisticsState, Array], key: Key) -> tuple[tuple[StatisticsState, Array], Theta]:
            state, info = kernel.step(key, carry[0])
            state = jax.lax.cond(carry[1] < _STEPS // 2, lambda s: kernel.adapt(s, info), lambda s: s, state)
            return (state, carry[1] + 1), kernel.theta(state)

        return jax.lax.scan(step, (state, jnp.zeros((), dtype=int)), jax.random.split(later, _STEPS))[1]

    return jax.tree.map(lambda v: v[:, _STEPS // 2 :].reshape(-1, *v.shape[2:]), jax.vmap(one)(keys))


@eqx.filter_jit
def _simulated(model: Model, release: Release, thetas: Theta, key: Key) -> tuple[Array, Array, Array]:
    """For each theta and released number the skewness of a record's row, and V/(V + W); the share of records cut, by column."""
    form = exponential_form(model)
    # a rare level would not be seen among simulated records, so levels are weighted by their probabilities
    levels = None if form is None or form.levels is None else {model.columns[0]: jnp.arange(form.levels)}
    u = model.innovations(key, _RECORDS)
    noise = observed(release)[1]
    wide = noise.scale**2 * jnp.where(noise.laplace, 2.0, 1.0)
    assert release.n is not None
    n = float(release.n)

    def one(theta: Theta) -> tuple[Array, Array, Array]:
        records = model.transform(theta, u) if levels is None else levels
        size = next(iter(records.values())).shape[0]
        weights = jnp.full(size, 1 / size) if levels is None else jnp.exp(model.log_likelihood(theta, records))
        rows = jnp.concatenate(
            [m.query.statistics(records) for m in release.measurements if m.query is not None], axis=-1
        )
        centred = rows - weights @ rows
        variance = weights @ centred**2
        safe = jnp.where(variance > 0, variance, 1.0)
        skewness = jnp.abs(weights @ centred**3) / safe**1.5
        total = n * variance
        outside = [
            weights @ ((records[name] < low) | (records[name] > high)).astype(float)
            for name, (low, high) in _cut_columns(release).items()
        ]
        return skewness, total / (total + wide), jnp.asarray(outside)

    skewness, share, outside = jax.vmap(one)(thetas)
    return skewness, share, jnp.mean(outside, axis=0)


def _cut_columns(release: Release) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for measurement in release.measurements:
        query = measurement.query
        if isinstance(query, Moments):
            found |= {name: (column.lower, column.upper) for name, column in query.bounds}
        elif isinstance(query, TruncatedSum):
            found[query.column] = (query.lower, query.upper)
    return found


def _largest_distance(left: Theta, right: Theta) -> float:
    """The largest two-sample Kolmogorov-Smirnov distance over the parameters, less its 1% point under equality."""
    worst = 0.0
    for name in left:
        a, b = (np.asarray(side[name]).reshape(np.asarray(side[name]).shape[0], -1) for side in (left, right))
        for j in range(a.shape[1]):
            x, y = np.sort(a[:, j]), np.sort(b[:, j])
            both = np.concatenate([x, y])
            gap = np.abs(np.searchsorted(x, both, "right") / x.size - np.searchsorted(y, both, "right") / y.size)
            worst = max(worst, float(np.max(gap)) - _CHANCE * math.sqrt(1 / x.size + 1 / y.size))
    return max(worst, 0.0)
