r"""Noisy sufficient statistics: a posterior whose cost does not depend on n, approximate through the central limit theorem.

The totals of the records are taken as normal given theta (Bernstein and Sheldon 2018), so the engine is *approximate*: it is never
chosen by itself, and :func:`noisewise.engines.trust.check_normality` says when not to trust it. What it can do is found from
the model's exponential-family form and the release's rows on the family's support:

| the released row r(x) | totals J | law |
|---|---|---|
| any, x at finitely many levels | sum t | :class:`~noisewise.engines.truncation.SupportLaw` |
| affine in t on [a, b], constant outside | (sum t, sum r) | :class:`~noisewise.engines.truncation.TruncatedLaw` |
| moments of a linear regression | sums of products | :class:`~noisewise.engines.sufficient_regression.RegressionLaw` |

The sampler is :class:`~noisewise.kernels.statistics.StatisticsKernel`. With one parameter and one released number the posterior
of the normal model needs no Markov chain (:mod:`noisewise.engines.sufficient_direct`); it can be bimodal, because
the expectation of a truncated sum is not monotone in theta, and then the chain could stay in one mode. Discrete noise is replaced by
the continuous law of the same kind and the same variance.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.base import Engine, Sampler, Support
from noisewise.engines.sufficient_direct import direct_sampler
from noisewise.engines.sufficient_regression import regression_law
from noisewise.engines.truncation import SupportLaw, TruncatedLaw
from noisewise.kernels.base import Kernel
from noisewise.kernels.statistics import NoiseShape, StatisticLaw, StatisticsKernel, impossible
from noisewise.models.base import Model
from noisewise.models.exponential_family import exponential_form
from noisewise.models.form import ExponentialForm
from noisewise.models.linear_regression import LinearRegression
from noisewise.release.document import Release
from noisewise.release.mechanism import AdditiveNoise
from noisewise.release.moments import Moments
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum
from noisewise.typing import Key, Theta

Clt = Literal["joint", "independent"]
Scheme = Literal["auto", "gibbs", "direct"]

_AFFINE = 1e-9
_POINTS = 40
_PILOTS = 8


class Sufficient(Engine):
    """Noisy sufficient statistics (approximate: central limit theorem; cost independent of n).

    ``scheme`` is ``"gibbs"``, ``"direct"`` (one parameter, one released number) or ``"auto"``: direct where it applies. ``moves`` is the
    number of random-walk moves of theta with the totals integrated out, in every step; 0 is the paper's algorithm.
    ``clt="independent"`` is the paper's treatment of a truncated statistic, kept for comparison: it is miscalibrated.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [[69_980.0, 30_011.0]])], n=100_000)
    >>> dt = nw.sample(nw.models.Bernoulli(), release, method=Sufficient(), tune=200, random_seed=1, progressbar=False)
    >>> abs(float(dt.posterior["p"].mean()) - 0.3) < 0.001
    True
    """

    name: ClassVar[str] = "sufficient"
    exact: ClassVar[bool] = False

    scheme: Scheme = eqx.field(static=True, default="auto")
    clt: Clt = eqx.field(static=True, default="joint")
    moves: int = eqx.field(static=True, default=2)
    tries: int = eqx.field(static=True, default=1000)

    def __check_init__(self) -> None:
        if self.scheme not in ("auto", "gibbs", "direct"):
            raise ValueError(f"scheme must be 'auto', 'gibbs' or 'direct'; got {self.scheme!r}.")
        if self.clt not in ("joint", "independent"):
            raise ValueError(f"clt must be 'joint' or 'independent' (the paper's); got {self.clt!r}.")
        for name, value, least in (("moves", self.moves, 0), ("tries", self.tries, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")

    def supports(self, model: Model, release: Release) -> Support:
        if release.n is None:
            return Support(False, "the number of records is unknown")
        law = statistic_law(model, release, clt=self.clt)
        if isinstance(law, str):
            return Support(False, law)
        if self.scheme == "direct" and not _one_dimensional(model, law):
            return Support(False, "the direct scheme needs one parameter and one released number")
        given = " and takes the privately chosen bounds as given" if _quantiles(release) else ""
        reason = f"approximates the totals by a normal law{given}"
        return Support(True, reason, f"does not depend on n; {law.offset.shape[0]} released numbers")

    def build(self, model: Model, release: Release, key: Key) -> Kernel | Sampler:
        law = statistic_law(model, release, clt=self.clt)
        assert not isinstance(law, str)
        assert release.n is not None
        value, noise = observed(release)
        n = jnp.asarray(float(release.n))
        direct = self.scheme == "direct" or (
            self.scheme == "auto" and self.clt == "joint" and _one_dimensional(model, law)
        )
        if direct:
            return direct_sampler(key, model, law, value, noise, n)
        kernel = StatisticsKernel(
            model, law, value, noise, n, None if _quantiles(release) else release, self.moves, self.tries, strict=True
        )
        _try_out(kernel, key)
        return kernel

    def start(self, kernel: Kernel, key: Key) -> Theta:
        assert isinstance(kernel, StatisticsKernel)
        return kernel.model.sample_prior(key)


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
        return _support_law(form, release)
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


def _quantiles(release: Release) -> bool:
    return any(isinstance(m.mechanism, PrivateQuantile) for m in release.measurements)


def _one_dimensional(model: Model, law: StatisticLaw) -> bool:
    return model.free_size == 1 and law.offset.shape[0] == 1


def _rows(release: Release, column: str, x: np.ndarray) -> np.ndarray:
    """The released row of each x, all added-noise measurements side by side."""
    records = {column: jnp.asarray(x)}
    parts = [m.query.statistics(records) for m in release.measurements if m.query is not None]
    return np.asarray(jnp.concatenate(parts, axis=-1), dtype=float)


def _affine(t: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """``slope, constant`` with ``rows = t @ slope.T + constant``, if there are any."""
    spread = np.maximum(np.max(np.abs(t), axis=0), 1e-300)
    design = np.column_stack([t / spread, np.ones(len(t))])
    solution = np.linalg.lstsq(design, rows, rcond=1e-12)[0]
    if np.max(np.abs(design @ solution - rows)) > _AFFINE * max(np.max(np.abs(rows)), 1e-300):
        return None
    solution = np.where(np.abs(solution) > 1e-11 * np.max(np.abs(solution), initial=1e-300), solution, 0.0)
    return (solution[:-1] / spread[:, None]).T, solution[-1]


def _support_law(form: ExponentialForm, release: Release) -> SupportLaw:
    assert form.levels is not None
    x = np.arange(form.levels)
    rows = _rows(release, release.columns[0], x)
    if form.size == form.levels:
        return SupportLaw(jnp.asarray(rows.T), jnp.zeros(rows.shape[1]), form)
    return SupportLaw(jnp.asarray(rows[1:] - rows[0]).T, jnp.asarray(rows[0]), form)


def _truncated_law(form: ExponentialForm, release: Release, column: str, *, independent: bool) -> StatisticLaw | str:
    bounds = {
        _bounds(measurement.query, column) for measurement in release.measurements if measurement.query is not None
    }
    if None in bounds:
        return "only Moments and TruncatedSum queries say where a continuous column is cut"
    if len(bounds) > 1:
        return f"the measurements have different bounds for the column: {sorted(b for b in bounds if b is not None)}"
    bound = bounds.pop()
    assert bound is not None
    lower, upper = bound
    low, high = max(lower, form.support[0]), min(upper, form.support[1])
    if not form.truncates:
        return "the model's distribution function is unknown, so its statistic cannot be cut at bounds; give a cdf"
    if not low < high:
        return f"the bounds [{lower:g}, {upper:g}] leave nothing of the model's support {form.support}"
    x = _inside(low, high, discrete=form.discrete)
    rows = _rows(release, column, x)
    found = _affine(np.asarray(form.statistic(jnp.asarray(x))), rows)
    if found is None:
        return "the released statistic is not a linear function of the family's sufficient statistic"
    slope, constant = found
    reaches_below, reaches_above = lower > form.support[0], upper < form.support[1]
    span = high - low
    below, above = _rows(release, column, np.asarray([lower - span - 1, upper + span + 1]))
    if independent and (np.any(constant != 0) or np.any(below != 0) or np.any(above != 0)):
        return "the independent theorem is for truncated sums of the family's statistic"
    m, d = slope.shape
    return TruncatedLaw(
        matrix=jnp.concatenate([jnp.zeros((m, d)), jnp.eye(m)], axis=1),
        offset=jnp.zeros(m),
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
    """Points of the centre at which rows are compared."""
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
    return None


@eqx.filter_jit
def _settled(kernel: StatisticsKernel, keys: Key) -> Array:
    def one(key: Key) -> Array:
        first, second = jax.random.split(key)
        return kernel.init(first, kernel.model.sample_prior(second)).found

    return jax.vmap(one)(keys)


def _try_out(kernel: StatisticsKernel, key: Key) -> None:
    """Refuse, before any long work, a release whose totals cannot be drawn."""
    if not np.all(
        np.asarray(
            _settled(
                eqx.tree_at(lambda k: k.release, kernel, None, is_leaf=lambda x: x is None),
                jax.random.split(key, _PILOTS),
            )
        )
    ):
        raise ValueError(impossible(kernel.tries))
