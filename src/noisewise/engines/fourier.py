r"""The Fourier engine: exact independent draws from the posterior given one released sum, at the same cost for any n.

Target: ``p(theta | s) ∝ p(theta) p(s | theta)`` with ``s = sum_i t(x_i) + noise``. The likelihood is a Fourier integral
(:mod:`noisewise.engines.fourier_density`) over the law of one record's clamped statistic
(:mod:`noisewise.engines.fourier_laws`); the posterior is put on adaptive panels in the model's unconstrained coordinates
(:mod:`noisewise.engines.fourier_panels`), integrated for moments and the marginal likelihood, and inverted for draws.

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
from noisewise.engines.fourier_density import NotConverged, approximate_log_density, log_density
from noisewise.engines.fourier_laws import Problem, Unsupported, problem
from noisewise.engines.fourier_panels import Inverse, PanelSampler, adapt, bracket
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.exponential import Exponential
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.release.document import Release
from noisewise.typing import Key

_BATCH = 64
_NEGLIGIBLE = 40.0
_REACH = 36.0
_LARGEST_LOGIT = 700.0
_SDS = 200.0


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
    """The posterior density of one parameter in its free coordinate, where it matters and how high it is."""

    def __init__(self, model: Model, given: Problem) -> None:
        self.model, self.given = model, given
        if model.free_size != 1:
            raise Unsupported(f"it tabulates one parameter, and the model has {model.free_size}")
        self.low, self.high = bracket(self.approximate, *_start(model))
        self.top = float(np.max(self.approximate(np.linspace(self.low, self.high, 2 * _BATCH + 1))))

    def approximate(self, free: np.ndarray) -> np.ndarray:
        """The log density by the saddle-point approximation, within about three units."""
        return _batched(self._approximate, free)

    def exact(self, free: np.ndarray) -> np.ndarray:
        """The log density; the approximation where the density is below exp(-40) of its largest value."""
        values = self.approximate(free)
        matters = np.flatnonzero(values > self.top - _NEGLIGIBLE)
        if matters.size:
            try:
                values[matters] = _batched(self._exact, free[matters])
            except NotConverged:
                raise Unsupported(
                    "the sum is nearly discrete under parameters that matter (few records, or few of them between the "
                    "bounds) and the noise is not smooth, so that the Fourier integral does not converge"
                ) from None
        return values

    def try_out(self) -> None:
        """Refuse a posterior for which the integrals do not converge, before any long work."""
        self.exact(np.linspace(self.low, self.high, 33))

    def sampler(self) -> PanelSampler:
        """Exact moments and a sampler, from panels."""
        (name,) = self.model.parameters
        panels = adapt(self.exact, self.low, self.high, self.top)
        value = _theta(self.model, panels.nodes.ravel())[name].reshape(panels.masses.shape)
        mean = np.sum(panels.masses * value)
        sd = np.sqrt(np.sum(panels.masses * (value - mean) ** 2))
        known = Exact({name: jnp.asarray(mean)}, {name: jnp.asarray(sd)}, panels.log_total)
        return PanelSampler(self.model, Inverse(panels), known)

    def _approximate(self, free: np.ndarray) -> np.ndarray:
        theta = _theta(self.model, free)
        return _log_prior(self.model, free) + approximate_log_density(self.given.law, theta, self.given.released)

    def _exact(self, free: np.ndarray) -> np.ndarray:
        theta = _theta(self.model, free)
        return _log_prior(self.model, free) + log_density(self.given.law, theta, self.given.released)


def _start(model: Model) -> tuple[float, float]:
    """An interval of the free coordinate that holds the posterior of any release."""
    if isinstance(model, Bernoulli):
        reach = min(_REACH + _NEGLIGIBLE / float(min(model.a, model.b)), _LARGEST_LOGIT)
        return -reach, reach
    if isinstance(model, Normal):
        middle, spread = float(model.prior_mean), float(model.prior_sd)
        return middle - _SDS * spread, middle + _SDS * spread
    assert isinstance(model, Exponential | Poisson)
    middle = float(np.log(model.shape / model.rate))
    return middle - min(_REACH + _NEGLIGIBLE / float(model.shape), _LARGEST_LOGIT), middle + _REACH


def _batched(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    """The function of all points, a fixed number at a time: one compiled shape, and bounded memory."""
    short = -points.shape[0] % _BATCH
    padded = np.concatenate([points, np.repeat(points[-1:], short, axis=0)])
    parts = [function(padded[at : at + _BATCH]) for at in range(0, padded.shape[0], _BATCH)]
    return np.concatenate(parts)[: points.shape[0]]


@eqx.filter_jit
def _constrained(model: Model, free: Array) -> dict[str, Array]:
    return jax.vmap(model.constrain)(free)


@eqx.filter_jit
def _log_prior_free(model: Model, free: Array) -> Array:
    return jax.vmap(model.log_prior_free)(free)


def _theta(model: Model, free: np.ndarray) -> dict[str, np.ndarray]:
    if isinstance(model, Bernoulli):
        # near one, 1 - p would have lost the digits that decide how many records are zero
        return {"p": expit(free), "not p": expit(-free)}
    return {name: np.asarray(value) for name, value in _constrained(model, jnp.asarray(free)[:, None]).items()}


def _log_prior(model: Model, free: np.ndarray) -> np.ndarray:
    if isinstance(model, Bernoulli):
        a, b = float(model.a), float(model.b)
        return a * log_expit(free) + b * log_expit(-free) - betaln(a, b)
    return np.asarray(_log_prior_free(model, jnp.asarray(free)[:, None]))
