r"""Base laws g of a weighted density: probabilities of intervals and draws within them, from the nearer tail.

``as_base`` turns a noise law of :mod:`noisewise.release.noise` into its base; ``Uniform`` and ``CustomBase`` are bases of
their own. A symmetric law is cut at zero into two half-lines, each written relative to its inner end a >= 0 (``q`` stands for
exp(-1/b)):

| law | log P(a <= x <= c) | quantile v on [a, c] |
|---|---|---|
| Laplace b | -a/b - log 2 + log(1 - e^(-(c-a)/b)) | a - b log(1 - v (1 - e^(-(c-a)/b))) |
| discrete Laplace b, m integers from a | -a/b - log(1 + q) + log(1 - q^m) | a + floor(-b log(1 - v (1 - q^m))) |
| Gaussian s | Mills' ratio (:mod:`.tails`) | Newton on the log survival function |
| discrete Gaussian s | sum or Euler-Maclaurin (:mod:`.tails`) | bisection on integers |

so that no probability is a difference of two numbers near one.
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

from noisewise.direct.functions import call, check_function
from noisewise.direct.tails import (
    lattice_log_mass,
    lattice_quantile,
    log1mexp,
    normal_log_mass,
    normal_quantile,
)
from noisewise.direct.weights import Pair, parameter
from noisewise.release import noise

Uniforms = tuple[Array, Array]
_SHARES = np.array([0.13, 0.31, 0.57, 0.79, 0.93])
_CLOSE = 1e-3
_FAR = 1e6


class Base(eqx.Module):
    """A law with probabilities of open intervals and draws from it restricted to them."""

    sloped: ClassVar[bool] = False
    """Whether ``slope`` and ``landmarks`` are known; the log density is then concave."""

    @property
    def discrete(self) -> bool:
        """Whether the law lives on the integers."""
        return False

    @abstractmethod
    def log_interval(self, lower: Array, upper: Array) -> Array:
        """``log P(lower < x < upper)``."""

    @abstractmethod
    def truncated(self, uniforms: Uniforms, lower: Array, upper: Array) -> Array:
        """A draw from the law restricted to ``lower < x < upper``, made of two independent uniforms."""

    @abstractmethod
    def log_prob(self, x: Array) -> Array:
        """The log density or log mass."""

    def log_shape(self, x: Array) -> Array:
        """``log_prob`` up to a constant, at points of the support."""
        return self.log_prob(x)

    def slope(self, x: Array, side: Array) -> Array:
        """The derivative of ``log_prob`` at ``x`` as seen from ``side`` (-1 or +1) of the centre."""
        raise NotImplementedError(f"{type(self).__name__} has no known slope.")

    def landmarks(self) -> Array:
        """The centre and points around it at the law's scale, along the last axis."""
        raise NotImplementedError(f"{type(self).__name__} has no known scale.")

    def support(self) -> Pair:
        """The ends of the support."""
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)


class SymmetricBase(Base):
    """A law symmetric about zero, known by its half-line."""

    scale: Float[Array, "..."]
    sloped: ClassVar[bool] = True

    @abstractmethod
    def _log_mass(self, a: Array, end: Array) -> Array:
        """Log probability of ``[a, end]`` (continuous) or of ``end`` integers from ``a`` (discrete), ``a >= 0``."""

    @abstractmethod
    def _quantile(self, v: Array, a: Array, end: Array) -> Array:
        """The ``v`` quantile of the same piece."""

    def _halves(self, lower: Array, upper: Array) -> tuple[Array, Array, Array]:
        """Inner ends and extents of the right and of the mirrored left half, stacked, and whether each is there."""
        if self.discrete:
            first, last = jnp.floor(lower) + 1, jnp.ceil(upper) - 1
            right, left = jnp.maximum(first, 0.0), jnp.maximum(-last, 1.0)
            right_end, left_end = last - right + 1, -first - left + 1
            has_right, has_left = right_end > 0, left_end > 0
        else:
            right, left = jnp.maximum(lower, 0.0), jnp.maximum(-upper, 0.0)
            right_end, left_end = upper, -lower
            has_right, has_left = right_end > right, left_end > left
        has_right, has_left = has_right & jnp.isfinite(right), has_left & jnp.isfinite(left)
        there = jnp.stack([has_right, has_left])
        return (
            jnp.where(there, jnp.stack([right, left]), 0.0),
            jnp.where(there, jnp.stack([right_end, left_end]), 1.0),
            there,
        )

    def _log_halves(self, inner: Array, end: Array, there: Array) -> Array:
        return jnp.where(there, self._log_mass(inner, end), -jnp.inf)

    def log_interval(self, lower: Array, upper: Array) -> Array:
        log_right, log_left = self._log_halves(*self._halves(lower, upper))
        return jnp.logaddexp(log_right, log_left)

    def truncated(self, uniforms: Uniforms, lower: Array, upper: Array) -> Array:
        side, v = uniforms
        inner, end, present = self._halves(lower, upper)
        log_right, log_left = self._log_halves(inner, end, present)
        on_right = side < jax.nn.sigmoid(log_right - log_left)
        draw = self._quantile(v, jnp.where(on_right, inner[0], inner[1]), jnp.where(on_right, end[0], end[1]))
        there = jnp.isfinite(jnp.maximum(log_right, log_left))
        return jnp.where(there, jnp.where(on_right, draw, -draw), jnp.nan)


class LaplaceBase(SymmetricBase):
    def log_prob(self, x: Array) -> Array:
        return noise.Laplace(self.scale).log_prob(x)

    def _log_mass(self, a: Array, end: Array) -> Array:
        return -a / self.scale - jnp.log(2.0) + log1mexp((end - a) / self.scale)

    def _quantile(self, v: Array, a: Array, end: Array) -> Array:
        return jnp.minimum(a - self.scale * jnp.log1p(v * jnp.expm1(-(end - a) / self.scale)), end)

    def log_shape(self, x: Array) -> Array:
        return -jnp.abs(x) / self.scale

    def slope(self, x: Array, side: Array) -> Array:
        return -side / self.scale

    def landmarks(self) -> Array:
        return self.scale[..., None] * jnp.array([-4.0, 0.0, 4.0])


class DiscreteLaplaceBase(LaplaceBase):
    @property
    def discrete(self) -> bool:
        return True

    def log_prob(self, x: Array) -> Array:
        return noise.DiscreteLaplace(self.scale).log_prob(x)

    def _log_mass(self, a: Array, end: Array) -> Array:
        return -a / self.scale - jnp.log1p(jnp.exp(-1 / self.scale)) + log1mexp(end / self.scale)

    def _quantile(self, v: Array, a: Array, end: Array) -> Array:
        steps = jnp.floor(-self.scale * jnp.log1p(v * jnp.expm1(-end / self.scale)))
        return a + jnp.minimum(steps, end - 1)


class GaussianBase(SymmetricBase):
    def log_prob(self, x: Array) -> Array:
        return noise.Gaussian(self.scale).log_prob(x)

    def _log_mass(self, a: Array, end: Array) -> Array:
        return normal_log_mass(a / self.scale, end / self.scale)

    def _quantile(self, v: Array, a: Array, end: Array) -> Array:
        return jnp.clip(self.scale * normal_quantile(v, a / self.scale, end / self.scale), a, end)

    def log_shape(self, x: Array) -> Array:
        return -0.5 * (x / self.scale) ** 2

    def slope(self, x: Array, side: Array) -> Array:
        return -x / self.scale**2

    def landmarks(self) -> Array:
        return self.scale[..., None] * jnp.array([-3.0, -1.0, 0.0, 1.0, 3.0])


class DiscreteGaussianBase(GaussianBase):
    @property
    def discrete(self) -> bool:
        return True

    def log_prob(self, x: Array) -> Array:
        return noise.DiscreteGaussian(self.scale).log_prob(x)

    def _log_mass(self, a: Array, end: Array) -> Array:
        return lattice_log_mass(a, end, self.scale) - noise.DiscreteGaussian(self.scale).log_normaliser()

    def _quantile(self, v: Array, a: Array, end: Array) -> Array:
        return a + lattice_quantile(v, a, end, self.scale)


class Uniform(Base):
    """The uniform base on ``lower < x < upper``.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> float(jnp.exp(nw.direct.Uniform(0.0, 4.0).log_interval(jnp.array(-1.0), jnp.array(1.0))))
    0.25
    """

    lower: Float[Array, "..."] = eqx.field(converter=parameter("lower"))
    upper: Float[Array, "..."] = eqx.field(converter=parameter("upper"))
    sloped: ClassVar[bool] = True

    def __check_init__(self) -> None:
        ends = self.lower, self.upper
        if not any(isinstance(end, jax.core.Tracer) for end in ends) and not np.all(np.less(*ends)):
            raise ValueError(
                f"lower must be below upper; got {self.lower} and {self.upper}. Give the ends of the interval."
            )

    def log_interval(self, lower: Array, upper: Array) -> Array:
        inside = jnp.minimum(upper, self.upper) - jnp.maximum(lower, self.lower)
        return jnp.log(jnp.maximum(inside, 0.0)) - jnp.log(self.upper - self.lower)

    def truncated(self, uniforms: Uniforms, lower: Array, upper: Array) -> Array:
        low, high = jnp.maximum(lower, self.lower), jnp.minimum(upper, self.upper)
        return jnp.where(high > low, low + uniforms[1] * (high - low), jnp.nan)

    def log_prob(self, x: Array) -> Array:
        inside = (x > self.lower) & (x < self.upper)
        return jnp.where(inside, -jnp.log(self.upper - self.lower), -jnp.inf)

    def slope(self, x: Array, side: Array) -> Array:
        return jnp.zeros_like(x)

    def landmarks(self) -> Array:
        share = jnp.array([0.0, 0.5, 1.0])
        return self.lower[..., None] + (self.upper - self.lower)[..., None] * share

    def support(self) -> Pair:
        return self.lower, self.upper


class CustomBase(Base):
    """A user's own base law, given by its distribution and quantile functions (and better its survival function too).

    ``cdf(x, parameters)`` and ``quantile(p, parameters)`` are elementwise and written with ``jax.numpy``; ``parameters`` is a
    pytree of arrays, one target per element, and without it they are functions of ``x`` alone. Without ``survival(x,
    parameters) = P(X > x)`` and ``upper_quantile(p, parameters)``, its inverse, probabilities in the upper tail are differences
    of numbers near one: an interval they cannot resolve counts as empty, and a target that lives there is refused. For an
    integer law (``integers=True``) the functions are the usual right-continuous ones. ``log_density`` is for
    ``log_target`` and plots, and may be left out. The method ``strips`` needs a base of known slope.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> base = nw.direct.CustomBase(lambda x, b: -jnp.expm1(-jnp.maximum(x, 0) / b), lambda p, b: -b * jnp.log1p(-p),
    ...                             parameters=jnp.array(2.0), survival=lambda x, b: jnp.exp(-jnp.maximum(x, 0) / b),
    ...                             upper_quantile=lambda p, b: -b * jnp.log(p))
    >>> round(float(base.log_interval(jnp.array(1000.0), jnp.array(jnp.inf))), 6)
    -500.0
    """

    cdf: Callable[[Array, Any], Array] = eqx.field(static=True)
    quantile: Callable[[Array, Any], Array] = eqx.field(static=True)
    parameters: Any = ()
    survival: Callable[[Array, Any], Array] | None = eqx.field(static=True, default=None)
    upper_quantile: Callable[[Array, Any], Array] | None = eqx.field(static=True, default=None)
    log_density: Callable[[Array, Any], Array] | None = eqx.field(static=True, default=None)
    integers: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_function(self.cdf, "The cdf of a base", self.parameters)
        check_function(self.quantile, "The quantile function of a base", self.parameters)
        if (self.survival is None) != (self.upper_quantile is None):
            raise ValueError("survival and upper_quantile go together; got one of them. Give both, or neither.")
        for name in ("survival", "upper_quantile", "log_density"):
            if getattr(self, name) is not None:
                check_function(getattr(self, name), f"The {name} of a base", self.parameters)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self.parameters)):
            self._check_inverses()

    def _check_inverses(self) -> None:
        """That the quantiles are those of the distribution function, at the first target."""
        first = jax.tree.map(lambda leaf: jnp.ravel(jnp.asarray(leaf))[0], self.parameters)
        p = jnp.asarray(_SHARES)
        with jax.ensure_compile_time_eval():
            at = call(self.quantile, p, first)
            reached, far = call(self.cdf, at, first), call(self.cdf, jnp.array([-_FAR, _FAR]), first)
            if not bool(jnp.all((far > -_CLOSE) & (far < 1 + _CLOSE) & (far[0] <= far[1]))):
                raise ValueError(f"cdf must rise from 0 to 1; got {np.asarray(far)} at {-_FAR:g} and {_FAR:g}.")
            before = call(self.cdf, at - 1, first) if self.integers else reached
            if not bool(jnp.all((reached > p - _CLOSE) & (before < p + _CLOSE) & (at[0] <= at[-1]))):
                raise ValueError(
                    f"quantile must be the inverse of an increasing cdf; the quantiles {np.asarray(at)} of {np.asarray(p)} are at "
                    f"{np.asarray(reached)} of the distribution function."
                )
            if self.survival is not None and self.upper_quantile is not None:
                above, high = call(self.survival, at, first), call(self.upper_quantile, 1 - p, first)
                apart = jnp.abs(call(self.cdf, high, first) - reached)
                if not bool(jnp.all(jnp.abs(above + reached - 1) < _CLOSE) & (self.integers | jnp.all(apart < _CLOSE))):
                    raise ValueError(
                        "survival must be 1 - cdf, and upper_quantile its inverse; at the quantiles of "
                        f"{np.asarray(p)} survival is {np.asarray(above)}."
                    )

    @property
    def discrete(self) -> bool:
        return self.integers

    def _ends(self, lower: Array, upper: Array) -> tuple[Array, Array, Array, Array, Array]:
        if self.integers:
            lower, upper = jnp.floor(lower), jnp.ceil(upper) - 1
        low, high = (_at(self.cdf, end, self.parameters, 1.0) for end in (lower, upper))
        if self.survival is None:
            return low, high, low, high, jnp.zeros_like(low, dtype=bool)
        above, below = (_at(self.survival, end, self.parameters, 0.0) for end in (upper, lower))
        return low, high, above, below, low > 0.5

    def log_interval(self, lower: Array, upper: Array) -> Array:
        low, high, above, below, in_tail = self._ends(lower, upper)
        mass = jnp.where(in_tail, below - above, high - low)
        return jnp.where(upper > lower, jnp.log(jnp.maximum(mass, 0.0)), -jnp.inf)

    def truncated(self, uniforms: Uniforms, lower: Array, upper: Array) -> Array:
        v = uniforms[1]
        low, high, above, below, in_tail = self._ends(lower, upper)
        draw = call(self.quantile, low + v * (high - low), self.parameters)
        if self.upper_quantile is not None:
            draw = jnp.where(in_tail, call(self.upper_quantile, above + v * (below - above), self.parameters), draw)
        first, last = (jnp.floor(lower) + 1, jnp.ceil(upper) - 1) if self.integers else (lower, upper)
        return jnp.where(self.log_interval(lower, upper) > -jnp.inf, jnp.clip(draw, first, last), jnp.nan)

    def log_prob(self, x: Array) -> Array:
        if self.log_density is None:
            raise ValueError(
                "This base has no log_density. Give CustomBase(..., log_density=...) to evaluate the target."
            )
        return call(self.log_density, x, self.parameters)


def _at(function: Callable[..., Array], x: Array, parameters: Any, at_infinity: float) -> Array:
    """A distribution or survival function of the user's, which need not know its values at infinite arguments."""
    ends = jnp.where(x > 0, at_infinity, 1 - at_infinity)
    return jnp.where(jnp.isinf(x), ends, call(function, x, parameters))


_BASES: dict[type[noise.Noise], type[SymmetricBase]] = {
    noise.Laplace: LaplaceBase,
    noise.Gaussian: GaussianBase,
    noise.DiscreteLaplace: DiscreteLaplaceBase,
    noise.DiscreteGaussian: DiscreteGaussianBase,
}


def as_base(law: noise.Noise | Base) -> Base:
    """The base of a noise law; a base is returned as it is."""
    if isinstance(law, Base):
        return law
    for known, base in _BASES.items():
        if type(law) is known:
            return base(law.scale)
    names = ", ".join(known.__name__ for known in _BASES)
    raise ValueError(
        f"{type(law).__name__} is not a base law known here. Use {names}, Uniform or CustomBase(cdf, quantile)."
    )


__all__ = ["Base", "CustomBase", "Uniform", "as_base"]
