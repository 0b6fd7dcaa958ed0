r"""The weights of gamma records and of Poisson counts.

| weight | log w(x)/c |
|---|---|
| ``GammaWeight(shape, rate)`` | (a - 1) (log t + 1 - t), t = x / mode, mode = (a - 1) / rate; -rate x if a = 1 |
| ``PoissonWeight(rate)`` | x log rate - log Gamma(x + 1), less its value at floor(rate) |

Both are log-concave for a >= 1. The ends of A_u are found by bisection on either side of the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float

from noisewise.direct.weights import Pair, Weight, parameter

_BISECTIONS = 200


def _end(log_weight: Callable[[Array], Array], goal: Array, inside: Array, outside: Array) -> Array:
    """The point between ``inside`` and ``outside`` where the weight falls to ``goal``."""

    def halve(_: int, ends: Pair) -> Pair:
        near, far = ends
        middle = 0.5 * (near + far)
        high = log_weight(middle) >= goal
        return jnp.where(high, middle, near), jnp.where(high, far, middle)

    return jax.lax.fori_loop(0, _BISECTIONS, halve, tuple(jnp.broadcast_arrays(inside, outside + 0 * goal)))[1]


def _beyond(log_weight: Callable[[Array], Array], goal: Array, mode: Array, step: Array) -> Array:
    """A point above the mode where the weight is below ``goal``; infinite if there is none."""

    def grow(state: Array) -> Array:
        return 2 * state

    def short(step: Array) -> Array:
        return jnp.any((log_weight(mode + step) >= goal) & jnp.isfinite(step))

    return mode + jax.lax.while_loop(short, grow, step + 0 * goal)


class GammaWeight(Weight):
    """The weight ``x^(shape - 1) exp(-rate x)`` for ``x > 0`` and ``shape >= 1``, that of a gamma or an exponential law.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> [round(float(end), 6) for end in nw.direct.GammaWeight(1.0, 2.0).roots(jnp.array(-3.0))]
    [0.0, 1.5]
    """

    shape: Float[Array, "..."] = eqx.field(converter=parameter("shape", positive=True))
    rate: Float[Array, "..."] = eqx.field(converter=parameter("rate", positive=True))
    curved: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not isinstance(self.shape, jax.core.Tracer) and bool(jnp.any(self.shape < 1)):
            raise ValueError(f"shape must be at least 1, or the weight is infinite at zero; got {self.shape}.")

    def log_weight(self, x: Array) -> Array:
        power = self.shape - 1
        mode = jnp.where(power > 0, power, 1.0) / self.rate
        t = jnp.where(x > 0, x, mode) / mode
        bent = power * (jnp.log(t) - (t - 1))
        return jnp.where(x > 0, jnp.where(power > 0, bent, -self.rate * x), -jnp.inf)

    def roots(self, log_u: Array) -> Pair:
        mode = (self.shape - 1) / self.rate
        low = _end(self.log_weight, log_u, mode, jnp.zeros_like(mode))
        high = _end(self.log_weight, log_u, mode, _beyond(self.log_weight, log_u, mode, 1 / self.rate))
        whole = jnp.isneginf(log_u)
        return jnp.where(whole | (self.shape == 1), 0.0, low), jnp.where(whole, jnp.inf, high)

    def support(self) -> Pair:
        return jnp.zeros(()), jnp.asarray(jnp.inf)

    def slope(self, x: Array) -> Array:
        return (self.shape - 1) / jnp.where(x > 0, x, 1.0) - self.rate

    def concave(self, x: Array) -> Array:
        return jnp.ones_like(x, dtype=bool)

    def landmarks(self) -> Array:
        mode, spread = (self.shape - 1) / self.rate, jnp.sqrt(self.shape) / self.rate
        around = mode[..., None] + spread[..., None] * jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0, 5.0])
        return jnp.maximum(around, 0.0)


class PoissonWeight(Weight):
    """The weight ``rate^x / Gamma(x + 1)`` for ``x > -1``, that of a Poisson law on the counts 0, 1, 2, ...

    >>> import jax.numpy as jnp, noisewise as nw
    >>> round(float(jnp.exp(nw.direct.PoissonWeight(3.0).log_weight(jnp.array(4.0)))), 12)
    0.75
    """

    rate: Float[Array, "..."] = eqx.field(converter=parameter("rate", positive=True))
    curved: ClassVar[bool] = True

    def _height(self, x: Array) -> Array:
        return x * jnp.log(self.rate) - gammaln(x + 1)

    def log_weight(self, x: Array) -> Array:
        inside = x > -1
        return jnp.where(inside, self._height(jnp.where(inside, x, 0.0)) - self._height(jnp.floor(self.rate)), -jnp.inf)

    def roots(self, log_u: Array) -> Pair:
        mode = jnp.floor(self.rate)
        low = _end(self.log_weight, log_u, mode, jnp.full_like(mode, -1.0))
        high = _end(self.log_weight, log_u, mode, _beyond(self.log_weight, log_u, mode, 1 + jnp.sqrt(self.rate)))
        whole = jnp.isneginf(log_u)
        return jnp.where(whole, -1.0, low), jnp.where(whole, jnp.inf, high)

    def support(self) -> Pair:
        return -jnp.ones(()), jnp.asarray(jnp.inf)

    def slope(self, x: Array) -> Array:
        return jnp.log(self.rate) - digamma(jnp.where(x > -1, x, 0.0) + 1)

    def concave(self, x: Array) -> Array:
        return jnp.ones_like(x, dtype=bool)

    def landmarks(self) -> Array:
        steps = jnp.array([-4.0, -1.5, 0.0, 1.5, 4.0])
        return jnp.maximum(self.rate[..., None] + jnp.sqrt(self.rate)[..., None] * steps, -0.5)
