r"""Weights w(x) of a weighted density w(x) g(x), on the log scale and relative to their largest value c.

A weight is unimodal, so that A_u = {x : w(x) > u c} is an interval for every 0 < u < 1. In every formula ``log_weight`` is
log(w(x)/c) <= 0 and ``roots`` gives the ends of A_u (Raim 2021, section 3):

| weight | log w(x)/c | ends of A_u |
|---|---|---|
| ``NormalWeight(mu, sigma2)`` | -(x - mu)^2 / 2 sigma2 | mu -+ r, r = sqrt(-2 sigma2 log u) |
| ``TransformedNormalWeight(mu, sigma2, h, h^-1)`` | -(h(x) - mu)^2 / 2 sigma2 | h^-1(mu -+ r) |
| ``LognormalWeight(mu, sigma2)`` | -(log x - mu + sigma2)^2 / 2 sigma2, x > 0 | exp(mu - sigma2 -+ r) |
| ``StudentTWeight(nu, mu, sigma2)`` | -(nu+1)/2 log(1 + (x - mu)^2 / nu sigma2) | mu -+ sigma sqrt(nu (u^(-2/(nu+1)) - 1)) |
| ``UnimodalWeight(log_weight)`` | the user's, less its maximum | bisection |

The lognormal density carries its factor 1/x, which completes the square: its mode is exp(mu - sigma2) and, as a function of
log x, the weight is a normal one. With the paper's c = exp(-(mu - sigma2/2)) its ends are the corrected roots
exp((mu - sigma2) -+ sqrt(sigma2^2 - 2 mu sigma2 - 2 sigma2 log(c u))).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.direct.functions import call, check_function, check_onto

Pair = tuple[Array, Array]
_GOLDEN = 0.6180339887498949
_GOLDEN_STEPS = 90
_BISECTIONS = 64
_FARTHEST = 1e299
_HIDDEN, _ROUNDING = -700.0, 1e-6


def as_numbers(value: object) -> np.ndarray:
    """The value as an array of floats; what is no number is NaN."""
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return np.asarray(np.nan)


def parameter(name: str, positive: bool = False) -> Callable[[object], Array]:
    """A converter that checks a parameter is finite (and positive) and makes it a float64 array."""

    def convert(value: object) -> Array:
        if isinstance(value, jax.core.Tracer):
            return jnp.asarray(value, dtype=float)
        number = as_numbers(value)
        if number.size == 0 or not np.all(np.isfinite(number)) or (positive and np.any(number <= 0)):
            wanted = "positive and finite" if positive else "finite"
            raise ValueError(f"{name} must be {wanted}; got {value!r}. Give the weight's own {name}.")
        return jnp.asarray(number)

    return convert


class Weight(eqx.Module):
    """A unimodal weight function of one real variable."""

    curved: ClassVar[bool] = False
    """Whether ``slope``, ``concave`` and ``landmarks`` are known, so that log-linear envelopes can be drawn."""

    @abstractmethod
    def log_weight(self, x: Array) -> Array:
        """``log(w(x) / c)``, elementwise; ``-inf`` where the weight is zero."""

    @abstractmethod
    def roots(self, log_u: Array) -> Pair:
        """The ends of ``{x : w(x) > u c}``."""

    def support(self) -> Pair:
        """The ends of where the weight is positive."""
        return self.roots(jnp.asarray(-jnp.inf))

    def resolved(self) -> Weight:
        """The same weight once whatever has to be found numerically has been found."""
        return self

    def check(self) -> None:
        """A ``ValueError`` if values show that this is no unimodal function."""

    def slope(self, x: Array) -> Array:
        """The derivative of ``log_weight``."""
        raise NotImplementedError(f"{type(self).__name__} has no known slope.")

    def concave(self, x: Array) -> Array:
        """Whether ``log_weight`` is concave around ``x``."""
        raise NotImplementedError(f"{type(self).__name__} has no known curvature.")

    @abstractmethod
    def landmarks(self) -> Array:
        """Mode, points of inflection and the scale around them, along the last axis."""

    def between(self, a: Array, b: Array) -> Array:
        """A point that halves ``(a, b)`` on the weight's own scale."""
        return 0.5 * (a + b)


class NormalWeight(Weight):
    """The weight ``exp(-(x - mu)^2 / (2 sigma2))``.

    >>> import noisewise as nw
    >>> float(nw.direct.NormalWeight(1.0, 4.0).log_weight(3.0))
    -0.5
    """

    mu: Float[Array, "..."] = eqx.field(converter=parameter("mu"))
    sigma2: Float[Array, "..."] = eqx.field(converter=parameter("sigma2", positive=True))
    curved: ClassVar[bool] = True

    def log_weight(self, x: Array) -> Array:
        return -0.5 * (x - self.mu) ** 2 / self.sigma2

    def roots(self, log_u: Array) -> Pair:
        reach = jnp.sqrt(-2 * self.sigma2 * log_u)
        return self.mu - reach, self.mu + reach

    def slope(self, x: Array) -> Array:
        return (self.mu - x) / self.sigma2

    def concave(self, x: Array) -> Array:
        return jnp.ones_like(x, dtype=bool)

    def landmarks(self) -> Array:
        return self.mu[..., None] + jnp.sqrt(self.sigma2)[..., None] * jnp.array([-4.0, -1.5, 0.0, 1.5, 4.0])


class TransformedNormalWeight(Weight):
    """The weight ``exp(-(transform(x) - mu)^2 / (2 sigma2))`` on ``lower < x < upper``; no Jacobian.

    ``transform`` maps (lower, upper) one to one onto the real line, increasing or decreasing, and ``inverse`` is its inverse;
    both are elementwise and written with ``jax.numpy``. This is the weight of a noisy covariate that enters a regression
    through a transform (Raim 2021, Remark 5.2).

    >>> import jax.numpy as jnp, noisewise as nw
    >>> weight = nw.direct.TransformedNormalWeight(0.0, 1.0, jnp.log, jnp.exp, lower=0.0)
    >>> [round(float(end), 3) for end in weight.roots(jnp.array(-0.5))]
    [0.368, 2.718]
    """

    mu: Float[Array, "..."] = eqx.field(converter=parameter("mu"))
    sigma2: Float[Array, "..."] = eqx.field(converter=parameter("sigma2", positive=True))
    transform: Callable[[Array], Array] = eqx.field(static=True)
    inverse: Callable[[Array], Array] = eqx.field(static=True)
    lower: float = eqx.field(static=True, default=-np.inf)
    upper: float = eqx.field(static=True, default=np.inf)

    def __check_init__(self) -> None:
        check_function(self.transform, "The transform of a weight")
        check_function(self.inverse, "The inverse of a weight's transform")
        check_onto(self.inverse, self.lower, self.upper)

    def log_weight(self, x: Array) -> Array:
        inside = (x > self.lower) & (x < self.upper)
        safe = jnp.where(inside, x, self.inverse(self.mu))
        return jnp.where(inside, -0.5 * (self.transform(safe) - self.mu) ** 2 / self.sigma2, -jnp.inf)

    def roots(self, log_u: Array) -> Pair:
        reach = jnp.sqrt(-2 * self.sigma2 * log_u)
        ends = self.inverse(self.mu - reach), self.inverse(self.mu + reach)
        return jnp.minimum(*ends), jnp.maximum(*ends)

    def landmarks(self) -> Array:
        steps = jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0])
        return self.inverse(self.mu[..., None] + jnp.sqrt(self.sigma2)[..., None] * steps)

    def between(self, a: Array, b: Array) -> Array:
        middle = self.inverse(0.5 * (self.transform(a) + self.transform(b)))
        return jnp.where((middle > a) & (middle < b), middle, 0.5 * (a + b))


class LognormalWeight(Weight):
    """The lognormal density as a weight, ``exp(-(log x - mu)^2 / (2 sigma2)) / x`` for ``x > 0``.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> weight = nw.direct.LognormalWeight(1.0, 1.0)
    >>> [float(end) for end in weight.roots(jnp.array(0.0))]      # at u = 1 both ends are the mode exp(mu - sigma2)
    [1.0, 1.0]
    """

    mu: Float[Array, "..."] = eqx.field(converter=parameter("mu"))
    sigma2: Float[Array, "..."] = eqx.field(converter=parameter("sigma2", positive=True))
    curved: ClassVar[bool] = True

    def _deviation(self, x: Array) -> Array:
        return jnp.log(jnp.where(x > 0, x, 1.0)) - self.mu + self.sigma2

    def log_weight(self, x: Array) -> Array:
        return jnp.where(x > 0, -0.5 * self._deviation(x) ** 2 / self.sigma2, -jnp.inf)

    def roots(self, log_u: Array) -> Pair:
        centre = self.mu - self.sigma2
        reach = jnp.sqrt(-2 * self.sigma2 * log_u)
        return jnp.exp(centre - reach), jnp.exp(centre + reach)

    def slope(self, x: Array) -> Array:
        return -self._deviation(x) / (self.sigma2 * jnp.where(x > 0, x, 1.0))

    def concave(self, x: Array) -> Array:
        return x < jnp.exp(self.mu - self.sigma2 + 1)

    def landmarks(self) -> Array:
        # the mode and the inflection are one unit of log x apart; half the weight's area lies below exp(mu)
        centre, sigma = self.mu - self.sigma2, jnp.sqrt(self.sigma2)
        around = centre[..., None] + sigma[..., None] * jnp.array([-3.0, -1.0, 0.0, 2.0])
        beyond = jnp.stack([centre + 1, centre + jnp.maximum(1.5, 4 * sigma), self.mu + 2 * sigma], axis=-1)
        return jnp.exp(jnp.concatenate([around, beyond], axis=-1))

    def between(self, a: Array, b: Array) -> Array:
        return jnp.where(a > 0, jnp.sqrt(jnp.maximum(a, 0.0)) * jnp.sqrt(jnp.maximum(b, 0.0)), 0.25 * b)


class StudentTWeight(Weight):
    """The weight ``(1 + (x - mu)^2 / (nu sigma2))^(-(nu + 1) / 2)`` of Student's t with ``nu`` degrees of freedom.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> weight = nw.direct.StudentTWeight(3.0, 0.0, 1.0)
    >>> [round(float(end), 12) for end in weight.roots(2 * jnp.log(0.5))]
    [-1.732050807569, 1.732050807569]
    """

    nu: Float[Array, "..."] = eqx.field(converter=parameter("nu", positive=True))
    mu: Float[Array, "..."] = eqx.field(converter=parameter("mu"))
    sigma2: Float[Array, "..."] = eqx.field(converter=parameter("sigma2", positive=True))
    curved: ClassVar[bool] = True

    def log_weight(self, x: Array) -> Array:
        return -0.5 * (self.nu + 1) * jnp.log1p((x - self.mu) ** 2 / (self.nu * self.sigma2))

    def roots(self, log_u: Array) -> Pair:
        reach = jnp.sqrt(self.nu * self.sigma2 * jnp.expm1(-2 * log_u / (self.nu + 1)))
        return self.mu - reach, self.mu + reach

    def slope(self, x: Array) -> Array:
        away = x - self.mu
        return -(self.nu + 1) * away / (self.nu * self.sigma2 + away * away)

    def concave(self, x: Array) -> Array:
        return (x - self.mu) ** 2 < self.nu * self.sigma2

    def landmarks(self) -> Array:
        bend = jnp.sqrt(self.nu * self.sigma2)[..., None]
        spread = jnp.sqrt(self.sigma2 * jnp.minimum(self.nu, 4.0))[..., None]
        core = jnp.array([-1.0, -0.5, 0.0, 0.5, 1.0]) * spread
        shoulders = jnp.array([-4.0, -1.0, 1.0, 4.0]) * bend
        return self.mu[..., None] + jnp.concatenate([core, shoulders], axis=-1)


def ordinal(x: Array) -> Array:
    """An integer that increases with ``x``: the floats in order, every second one."""
    bits = jax.lax.bitcast_convert_type(jnp.asarray(x, dtype=float), jnp.int64)
    return jnp.where(bits >= 0, bits, jnp.iinfo(jnp.int64).min - bits) >> 1


def from_ordinal(number: Array) -> Array:
    """The float of an ordinal."""
    bits = number << 1
    return jax.lax.bitcast_convert_type(jnp.where(bits >= 0, bits, jnp.iinfo(jnp.int64).min - bits), jnp.float64)


class UnimodalWeight(Weight):
    """A user's own weight, given by its logarithm: any function that rises to one mode and falls.

    ``log_weight(x, parameters)`` is elementwise and written with ``jax.numpy``; ``parameters`` is a pytree of arrays, one
    target per element, passed on to it; without it ``log_weight(x)`` will do. The weight is positive on ``lower < x < upper``
    and zero elsewhere; ``start`` is a point where its logarithm is a finite number (needed only if it underflows to minus
    infinity near the default: 0, or inside the bounds). The mode is found by golden section and the ends of A_u by bisection,
    both over the ordered floating-point numbers, so that no scale has to be guessed.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> weight = nw.direct.UnimodalWeight(lambda x, m: -jnp.abs(x - m) ** 3, parameters=jnp.array(2.0)).resolved()
    >>> [round(float(end), 6) for end in weight.roots(jnp.array(-8.0))]
    [0.0, 4.0]
    """

    function: Callable[[Array, Any], Array] = eqx.field(static=True)
    parameters: Any = ()
    lower: float = eqx.field(static=True, default=-np.inf)
    upper: float = eqx.field(static=True, default=np.inf)
    start: float | None = eqx.field(static=True, default=None)
    mode: Float[Array, "..."] | None = None
    log_peak: Float[Array, "..."] | None = None

    def __check_init__(self) -> None:
        check_function(self.function, "The logarithm of the weight", self.parameters)
        if not self.lower < self.upper:
            raise ValueError(
                f"lower must be below upper; got {self.lower} and {self.upper}. Give the weight's support."
            )

    def _raw(self, x: Array) -> Array:
        inside = (x > self.lower) & (x < self.upper)
        value = call(self.function, jnp.where(inside, x, self._inside()), self.parameters)
        return jnp.where(inside & ~jnp.isnan(value), value, -jnp.inf)

    def _inside(self) -> float:
        if self.start is not None:
            return self.start
        if np.isfinite(self.lower) and np.isfinite(self.upper):
            return 0.5 * (self.lower + self.upper)
        if np.isfinite(self.lower):
            return self.lower + 1
        return self.upper - 1 if np.isfinite(self.upper) else 0.0

    def _grid(self) -> np.ndarray:
        """Points at every scale from the starting point and from the finite bounds, one of which is next to the mode."""
        offsets = 2.0 ** np.arange(-120, 996, 4)
        centres = [centre for centre in (self._inside(), self.lower, self.upper) if np.isfinite(centre)]
        points = np.concatenate([[centre, *(centre + offsets), *(centre - offsets)] for centre in centres])
        inside = np.unique(points[(points > self.lower) & (points < self.upper)])
        return np.concatenate([[max(self.lower, -1e300)], inside, [min(self.upper, 1e300)]])

    def check(self) -> None:
        first = jax.tree.map(lambda leaf: jnp.ravel(jnp.asarray(leaf))[0], self.parameters)
        weight = UnimodalWeight(self.function, first, self.lower, self.upper, self.start).resolved()
        mode, peak = weight._found()
        endless = jnp.abs(mode) >= _FARTHEST and weight._raw(1e-6 * mode) < peak - 1
        if not jnp.isfinite(peak) or endless:
            raise ValueError(
                f"The weight must have a largest value; the largest found of its logarithm is {peak:g}, at {mode:g}. Give its "
                "support by lower and upper, and by start a point where the logarithm is a finite number."
            )
        offsets = 2.0 ** np.arange(-40, 100, 0.25)
        x = np.unique(
            np.concatenate([centre + side * offsets for centre in (self._inside(), mode) for side in (-1, 1)])
        )
        height = np.asarray(weight.log_weight(jnp.asarray(x)))
        x, height = x[height > _HIDDEN], height[height > _HIDDEN]
        rises = np.where(x[:-1] < float(mode), -1, 1) * np.diff(height) > _ROUNDING
        rises &= (x[1:] <= float(mode)) | (x[:-1] >= float(mode))
        if np.any(rises):
            place = int(np.argmax(rises))
            raise ValueError(
                f"The weight must rise to one mode and fall; from {float(mode):g}, where it is largest, its logarithm falls and rises "
                f"again between {x[place]:g} and {x[place + 1]:g}. Draw from each of its modes by lower and upper."
            )

    def resolved(self) -> UnimodalWeight:
        if self.mode is not None:
            return self
        grid = jnp.asarray(self._grid())
        shape = self._raw(jnp.asarray(self._inside())).shape
        heights = self._raw(grid.reshape(-1, *[1] * len(shape)))
        top = jnp.argmax(heights, axis=0)
        last = grid.shape[0] - 1
        start: Pair = (grid[jnp.maximum(top - 1, 0)], grid[jnp.minimum(top + 1, last)])

        def narrow(_: int, ends: Pair) -> Pair:
            low, high = ends
            step = _GOLDEN * (high - low)
            left, right = high - step, low + step
            descending = self._raw(left) >= self._raw(right)
            return jnp.where(descending, low, left), jnp.where(descending, right, high)

        low, high = jax.lax.fori_loop(0, _GOLDEN_STEPS, narrow, start)
        nearest = grid[top]
        candidates = jnp.stack([nearest, 0.5 * (low + high), high], axis=-1)
        values = jnp.stack([self._raw(candidates[..., i]) for i in range(3)], axis=-1)
        best = jnp.argmax(values, axis=-1)[..., None]
        mode = jnp.take_along_axis(candidates, best, axis=-1)[..., 0]
        peak = jnp.take_along_axis(values, best, axis=-1)[..., 0]
        return eqx.tree_at(
            lambda weight: (weight.mode, weight.log_peak), self, (mode, peak), is_leaf=lambda leaf: leaf is None
        )

    def _found(self) -> Pair:
        if self.mode is None or self.log_peak is None:
            found = self.resolved()
            return found._found()
        return self.mode, self.log_peak

    def log_weight(self, x: Array) -> Array:
        return self._raw(x) - self._found()[1]

    def roots(self, log_u: Array) -> Pair:
        mode, peak = self._found()
        level = peak + log_u
        centre = ordinal(mode)

        def halve(_: int, ends: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            out_left, in_left, in_right, out_right = ends
            left, right = (out_left + in_left) >> 1, (out_right + in_right) >> 1
            left_in, right_in = self._raw(from_ordinal(left)) > level, self._raw(from_ordinal(right)) > level
            return (
                jnp.where(left_in, out_left, left),
                jnp.where(left_in, left, in_left),
                jnp.where(right_in, right, in_right),
                jnp.where(right_in, out_right, right),
            )

        lower, upper = (ordinal(jnp.asarray(end)) for end in (max(self.lower, -1e300), min(self.upper, 1e300)))
        inside = centre + jnp.zeros_like(log_u, dtype=jnp.int64)
        ends = (jnp.full_like(inside, lower), inside, inside, jnp.full_like(inside, upper))
        found = jax.lax.fori_loop(0, _BISECTIONS, halve, ends)
        return from_ordinal(found[0]), from_ordinal(found[3])

    def landmarks(self) -> Array:
        mode = self._found()[0]
        left, right = self.roots(jnp.asarray(-0.5))
        return jnp.stack([left, mode, right], axis=-1)
