r"""The likelihood of one released sum along the one free coordinate of a model, with its highest point.

``log p(s | theta)`` is the integral of :mod:`noisewise.engines.fourier_density`, at any n. The curve is scanned by the saddle-point
approximation, climbed by Brent's method where it is highest, and differentiated by differences of fourth order at steps of a
few tenths of a standard error, which keep about seven digits. Checked by ``tests/test_likelihood.py``.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

from noisewise.engines.fourier import batched, constrained, prior_interval
from noisewise.engines.fourier_custom import Unsupported
from noisewise.engines.fourier_density import NotConverged, approximate_log_density, log_density
from noisewise.engines.fourier_laws import problem
from noisewise.engines.fourier_panels import brackets
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.custom import Custom
from noisewise.models.exponential import Exponential
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.release.document import Release
from noisewise.release.queries import Moments

_NATS = 20.0
_SCAN = 257
_SDS = 12.0
_LOGITS = 45.0
_LOG_RATES = 36.0
_STEP = 0.1
_FALL = 0.5
_DOUBLINGS = 60
_POLISH = 3
_FLAT = 1e-6


class Curve:
    """``z -> log p(s | theta(z))`` and the place ``top`` of its highest point, which may be an end of where it was looked for.

    Beyond the ends the likelihood is taken as flat: there every record is clamped, or none is above zero. ``height`` is its value at
    the top, None at an end where the integral does not converge (the transform of Laplace noise falls slowly, and that of
    clamped records not at all); derivatives are known where ``interior``.
    """

    def __init__(self, model: Model, release: Release) -> None:
        self.given = problem(model, release)
        if model.free_size != 1:
            raise Unsupported(f"a curve has one parameter, and the model has {model.free_size}")
        self.model = model
        self.ends = low, high = _interval(model, release)
        found = brackets(lambda z: batched(self._approximate, z), low, high, _NATS)
        grid = np.concatenate([np.linspace(*interval, _SCAN) for interval in found])
        heights = batched(self._approximate, grid)
        self.height: float | None = None
        try:
            best = self._best(grid, int(np.argmax(heights)))
        except Unsupported:
            at_ends = batched(self._approximate, np.array(self.ends))
            if np.max(heights) - np.max(at_ends) > _FLAT:
                raise
            self.top, self.interior = self.ends[int(np.argmax(at_ends))], False
            return
        ends = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
        climbed = optimize.minimize_scalar(
            lambda z: -self.value(z), bounds=ends, method="bounded", options={"xatol": 1e-6 * (ends[1] - ends[0])}
        )
        self.top = float(climbed.x)
        self.interior = min(self.top - low, high - self.top) > _FLAT * (high - low)
        self.height = self.value(self.top)
        if not self.interior:
            return
        self.step = self._width()
        for _ in range(_POLISH):
            slope, bend = self.derivatives(self.top)
            if bend < 0 and abs(slope / bend) < self.step:
                self.top = float(np.clip(self.top - slope / bend, low, high))
        self.height = self.value(self.top)

    def value(self, z: float) -> float:
        """The log likelihood."""
        return float(self._exact(np.array([z]))[0])

    def derivatives(self, z: float) -> tuple[float, float]:
        """Slope and bend at z."""
        h = self.step
        a, b, c, d, e = self._exact(z + h * np.arange(-2.0, 3.0))
        return float(a - 8 * b + 8 * d - e) / (12 * h), float(-a + 16 * b - 30 * c + 16 * d - e) / (12 * h**2)

    def _best(self, grid: np.ndarray, best: int) -> int:
        """The highest point of the scan by the exact likelihood, near where the approximation has it."""
        near = np.arange(max(best - 8, 0), min(best + 9, grid.size))
        return int(near[np.argmax(self._exact(grid[near]))])

    def _width(self) -> float:
        """A tenth of the distance at which the likelihood has fallen by half a unit on either side, roughly."""
        here, distance = self.value(self.top), 1e-8
        for _ in range(_DOUBLINGS):
            if here - max(self.value(self.top - distance), self.value(self.top + distance)) > _FALL:
                break
            distance *= 2
        return _STEP * distance

    def _approximate(self, z: np.ndarray) -> np.ndarray:
        return approximate_log_density(self.given.law, constrained(self.model, z), self.given.released)

    def _exact(self, z: np.ndarray) -> np.ndarray:
        def some(z: np.ndarray) -> np.ndarray:
            theta = constrained(self.model, z)
            if self.given.trusted is not None and not np.all(self.given.trusted(theta)):
                raise Unsupported("the density of a record does not integrate to one on the quadrature")
            return log_density(self.given.law, theta, self.given.released)

        try:
            return batched(some, np.clip(np.asarray(z, dtype=float), *self.ends))
        except NotConverged:
            raise Unsupported("the Fourier integral of the released sum does not converge") from None


def likelihood_curve(model: Model, release: Release) -> Curve:
    """The curve of a pair of model and release, or :class:`Unsupported` with the reason."""
    return Curve(model, release)


def _interval(model: Model, release: Release) -> tuple[float, float]:
    """Where a maximum may lie, whatever the prior: parameters that put records between or around the bounds."""
    if isinstance(model, Bernoulli):
        return -_LOGITS, _LOGITS
    if isinstance(model, Custom):
        return prior_interval(model)[0]
    query = release.measurements[0].query
    assert isinstance(model, Normal | Exponential | Poisson)
    assert isinstance(query, Moments)
    column = dict(query.bounds)[model.column]
    if isinstance(model, Normal):
        assert not isinstance(model.variance, InverseGamma)
        reach = _SDS * float(np.sqrt(model.variance))
        return column.lower - reach, column.upper + reach
    middle = np.log(max(abs(column.upper), abs(column.lower)))
    middle = float(middle if isinstance(model, Poisson) else -middle)
    return middle - _LOG_RATES, middle + _LOG_RATES
