r"""The Fourier engine: exact independent draws from the posterior given one released sum, at the same cost for any n.

Target: ``p(theta | s) ∝ p(theta) p(s | theta)`` with ``s = sum_i t(x_i) + noise``. The likelihood is a Fourier integral
(:mod:`noisewise.engines.fourier_density`) over the law of one record's clamped statistic
(:mod:`noisewise.engines.fourier_laws`); the posterior is put on adaptive panels in the model's unconstrained coordinates
(:mod:`noisewise.engines.fourier_panels`; boxes for two parameters, :mod:`noisewise.engines.fourier_plane`), integrated for
moments and the marginal likelihood, and inverted for draws.

Checked against sums over databases and direct quadrature by ``tests/engines/test_fourier.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import betaln, expit, log_expit

from noisewise.engines.base import Engine, Exact, Sampler, Support
from noisewise.engines.fourier_custom import Unsupported
from noisewise.engines.fourier_density import NotConverged, approximate_log_density, log_density
from noisewise.engines.fourier_laws import Problem, problem
from noisewise.engines.fourier_panels import Inverse, Panels, PanelSampler, adapt, brackets
from noisewise.engines.fourier_plane import Boxes, PlaneSampler, Ridge, Rough, adapt_boxes, find_ridge
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.custom import Custom
from noisewise.models.exponential import Exponential
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.release.document import Release
from noisewise.typing import Key

_BATCH = 64
_NEGLIGIBLE = 40.0
_REACH = 36.0
_LARGEST_LOGIT = 700.0
_SDS = 200.0
_TRIAL = 33
_PRIOR_DRAWS = 2000
_WIDER = 12.0


class Fourier(Engine):
    """Exact likelihoods of one released sum by Fourier integrals, and independent draws from a posterior on panels.

    >>> import noisewise as nw
    >>> from noisewise.engines.fourier import Fourier
    >>> query = nw.queries.Moments(columns={"x": nw.Column(-4, 4)}, terms=[{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(8.0), [30.0])], n=100)
    >>> sampler = Fourier().build(nw.models.Normal(mean_prior=(0, 2)), release, None)
    >>> round(float(sampler.exact().means["mean"]), 3)
    0.298
    """

    name: ClassVar[str] = "fourier"
    exact: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def supports(self, model: Model, release: Release) -> Support:
        try:
            given = problem(model, release)
            if given.released.lattice is None:
                Posterior(model, given).try_out()
        except Unsupported as reason:
            return Support(False, str(reason))
        return Support(
            True,
            "one released sum has an exact likelihood by a Fourier integral, so the posterior is tabulated and draws are "
            "independent",
            "a fraction of a second at any n, then microseconds a draw",
        )

    def build(self, model: Model, release: Release, key: Key) -> Sampler:
        return Posterior(model, problem(model, release)).sampler()


class Posterior:
    """The posterior density of one or two parameters in their free coordinates, where it matters and how high it is."""

    def __init__(self, model: Model, given: Problem) -> None:
        self.model, self.given = model, given
        if model.free_size > 2:
            raise Unsupported(f"it tabulates one or two parameters, and the model has {model.free_size}")
        intervals = prior_interval(model)
        self.ridge: Ridge | None = None
        if model.free_size == 1:
            self.intervals = brackets(self.approximate, *intervals[0])
            trial = _places(self.intervals, 2 * _BATCH + 1)
        else:
            self.ridge = find_ridge(self.approximate, *intervals)
            w = np.linspace(self.ridge.low, self.ridge.high, _TRIAL)
            grid = np.meshgrid(w, np.linspace(-self.ridge.reach, self.ridge.reach, _TRIAL), indexing="ij")
            trial = self.ridge.free(*(axis.ravel() for axis in grid))[0]
        self.top = float(np.max(self.approximate(trial)))

    def approximate(self, free: np.ndarray) -> np.ndarray:
        """The log density by the saddle-point approximation, within about three units."""
        return batched(self._approximate, free)

    def exact(self, free: np.ndarray) -> np.ndarray:
        """The log density; the approximation where the density is below exp(-40) of its largest value."""
        values = self.approximate(free)
        matters = np.flatnonzero(values > self.top - _NEGLIGIBLE)
        if matters.size:
            try:
                values[matters] = batched(self._exact, free[matters])
            except NotConverged:
                raise Unsupported(
                    "the sum is nearly discrete under parameters that matter (few records, or few of them between the "
                    "bounds) and the noise is not smooth, so that the Fourier integral does not converge"
                ) from None
        return values

    def try_out(self) -> None:
        """Refuse a posterior for which the integrals do not converge, before any long work."""
        if self.ridge is None:
            self.exact(_places(self.intervals, _TRIAL))
            return
        w, r = np.linspace(self.ridge.low, self.ridge.high, 7), np.linspace(-self.ridge.reach, self.ridge.reach, 7)
        grid = np.meshgrid(w, r, indexing="ij")
        self.exact(self.ridge.free(*(axis.ravel() for axis in grid))[0])

    def sampler(self) -> Sampler:
        """Exact moments and a sampler, from panels or boxes."""
        tables: Panels | Boxes
        if self.ridge is None:
            tables = adapt(self.exact, self.intervals, self.top)
        else:
            try:
                tables = adapt_boxes(self.exact, self.ridge, self.top)
            except Rough:
                raise ValueError(
                    'The posterior density is too rough for the Fourier engine\'s boxes; use method="augmentation" instead.'
                ) from None
        masses = tables.masses.ravel()
        theta = constrained(self.model, tables.nodes.reshape(masses.size, -1))
        means, sds = {}, {}
        for name in self.model.parameters:
            weight = masses.reshape(-1, *(1,) * (theta[name].ndim - 1))
            mean = np.sum(weight * theta[name], axis=0)
            means[name] = jnp.asarray(mean)
            sds[name] = jnp.asarray(np.sqrt(np.sum(weight * (theta[name] - mean) ** 2, axis=0)))
        known = Exact(means, sds, tables.log_total - log_prior_total(self.model))
        if isinstance(tables, Panels):
            return PanelSampler(self.model, Inverse(tables), known)
        return PlaneSampler(self.model, tables, known)

    def _approximate(self, free: np.ndarray) -> np.ndarray:
        theta = constrained(self.model, free)
        return _log_prior(self.model, free) + approximate_log_density(self.given.law, theta, self.given.released)

    def _exact(self, free: np.ndarray) -> np.ndarray:
        theta = constrained(self.model, free)
        if self.given.trusted is not None and not np.all(self.given.trusted(theta)):
            raise Unsupported(
                "the density of a record does not integrate to one on the quadrature: it has kinks or jumps, or "
                "log_likelihood is not a normalised density of one real number"
            )
        return _log_prior(self.model, free) + log_density(
            self.given.law, theta, self.given.released, self.given.between
        )


def log_prior_total(model: Model) -> float:
    """The log of the integral of the prior: 0, but for a prior that the user wrote without its constant."""
    if not isinstance(model, Custom):
        return 0.0

    def log_prior(free: np.ndarray) -> np.ndarray:
        return batched(lambda some: _log_prior(model, some), free)

    intervals = prior_interval(model)
    if model.free_size == 1:
        found = brackets(log_prior, *intervals[0])
        return adapt(log_prior, found, float(np.max(log_prior(_places(found, 2 * _BATCH + 1))))).log_total
    ridge = find_ridge(log_prior, *intervals)
    along = ridge.free(np.linspace(ridge.low, ridge.high, 2 * _BATCH + 1), np.zeros(2 * _BATCH + 1))[0]
    return adapt_boxes(log_prior, ridge, float(np.max(log_prior(along)))).log_total


def prior_interval(model: Model) -> tuple[tuple[float, float], ...]:
    """Intervals of the free coordinates that hold the posterior of any release."""
    if isinstance(model, Bernoulli):
        reach = min(_REACH + _NEGLIGIBLE / float(min(model.a, model.b)), _LARGEST_LOGIT)
        return ((-reach, reach),)
    if isinstance(model, Normal):
        middle, spread = float(model.prior_mean), float(model.prior_sd)
        mean = (middle - _SDS * spread, middle + _SDS * spread)
        if not isinstance(model.variance, InverseGamma):
            return (mean,)
        shape = float(model.variance.shape)
        centre = float(np.log(model.variance.scale / shape))
        return mean, (centre - _REACH, centre + min(_REACH + _NEGLIGIBLE / shape, _LARGEST_LOGIT))
    if isinstance(model, Custom):
        keys = jax.random.split(jax.random.key(0), _PRIOR_DRAWS)
        draws = np.asarray(_unconstrained(model, keys))
        low, high = np.quantile(draws, [0.01, 0.99], axis=0)
        return tuple((float(a - _WIDER * (b - a)), float(b + _WIDER * (b - a))) for a, b in zip(low, high, strict=True))
    assert isinstance(model, Exponential | Poisson)
    middle = float(np.log(model.shape / model.rate))
    return ((middle - min(_REACH + _NEGLIGIBLE / float(model.shape), _LARGEST_LOGIT), middle + _REACH),)


def _places(intervals: list[tuple[float, float]], count: int) -> np.ndarray:
    return np.concatenate([np.linspace(low, high, count) for low, high in intervals])


@eqx.filter_jit
def _unconstrained(model: Model, keys: Key) -> Array:
    return jax.vmap(lambda key: model.unconstrain(model.sample_prior(key)))(keys)


def batched(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    """The function of all points, a fixed number at a time: one compiled shape, and bounded memory."""
    short = -points.shape[0] % _BATCH
    padded = np.concatenate([points, np.repeat(points[-1:], short, axis=0)])
    parts = [function(padded[at : at + _BATCH]) for at in range(0, padded.shape[0], _BATCH)]
    return np.concatenate(parts)[: points.shape[0]]


@eqx.filter_jit
def _map(model: Model, free: Array) -> dict[str, Array]:
    return jax.vmap(model.constrain)(free)


@eqx.filter_jit
def _log_prior_free(model: Model, free: Array) -> Array:
    return jax.vmap(model.log_prior_free)(free)


def constrained(model: Model, free: np.ndarray) -> dict[str, np.ndarray]:
    """Parameters at rows of free coordinates, as the laws of records take them."""
    if isinstance(model, Bernoulli):
        # near one, 1 - p would have lost the digits that decide how many records are zero
        return {"p": expit(free).reshape(-1), "not p": expit(-free).reshape(-1)}
    rows = jnp.asarray(free).reshape(free.shape[0], -1)
    return {name: np.asarray(value) for name, value in _map(model, rows).items()}


def _log_prior(model: Model, free: np.ndarray) -> np.ndarray:
    if isinstance(model, Bernoulli):
        a, b = float(model.a), float(model.b)
        return np.reshape(a * log_expit(free) + b * log_expit(-free), -1) - betaln(a, b)
    value = np.asarray(_log_prior_free(model, jnp.asarray(free).reshape(free.shape[0], -1)))
    return np.where(np.isnan(value), -np.inf, value)
