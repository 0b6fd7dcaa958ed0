r"""The exponential-family form of a model of one column: ``p(x | eta) = h(x) exp(eta't(x) - A(eta))``.

An :class:`ExponentialForm` is what engines that work on sufficient statistics need of a model: the natural parameter, the statistic,
the log-partition and base measure, the conjugate draw of theta from the total of t, and the law of x on half-lines (for statistics
that were truncated or clamped). ``E t = A'(eta)`` and ``Var t = A''(eta)`` follow by automatic differentiation.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from noisewise.typing import Key, Theta

_LEAST_LOG = -600.0
_MOST_LEVELS = 1024


class ExponentialForm(eqx.Module):
    """The exponential-family form of a model of one column."""

    @property
    def discrete(self) -> bool:
        """Whether x is an integer."""
        return False

    @property
    @abstractmethod
    def size(self) -> int:
        """The length of t(x)."""

    @property
    def support(self) -> tuple[float, float]:
        """The closed interval x lives on."""
        return (-math.inf, math.inf)

    @property
    def levels(self) -> int | None:
        """How many values 0, 1, ... x can take, where they are few."""
        first, last = self.support
        return int(last) + 1 if self.discrete and first == 0 and last < _MOST_LEVELS else None

    @abstractmethod
    def natural(self, theta: Theta) -> Float[Array, " d"]:
        """The natural parameter eta of theta."""

    @abstractmethod
    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        """The rows t(x_i)."""

    @abstractmethod
    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        """``A(eta)``."""

    @abstractmethod
    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """``log h(x_i)``."""

    @abstractmethod
    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        """Theta from a kernel that leaves ``p(theta | total of t over n records)`` invariant: an exact draw where conjugate."""

    @abstractmethod
    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the conjugate draw is defined at this total, which need not be an integer."""

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        """``log P(X < x)``."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function.")

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        """``log P(X > x)``."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function.")

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        """``log P(low <= X <= high)``."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function.")

    @property
    def truncates(self) -> bool:
        """Whether the distribution function is known, so that the statistic can have been truncated or clamped."""
        return type(self).log_between is not ExponentialForm.log_between

    def mean(self, eta: Float[Array, " d"]) -> Float[Array, " d"]:
        """``E t(x) = A'(eta)``."""
        return jax.grad(self.log_partition)(eta)

    def covariance(self, eta: Float[Array, " d"]) -> Float[Array, "d d"]:
        """``Var t(x) = A''(eta)``."""
        return jax.hessian(self.log_partition)(eta)

    def log_density(self, x: Float[Array, " n"], eta: Float[Array, " d"]) -> Float[Array, " n"]:
        """``log p(x_i | eta)``."""
        return self.log_base(x) + self.statistic(x) @ eta - self.log_partition(eta)


def log_difference(larger: Array, smaller: Array) -> Array:
    """``log(e^larger - e^smaller)`` without cancellation; a difference of nothing is e^-600, to keep derivatives finite."""
    gap = larger - smaller
    empty = ~(gap > 0) | ~(larger > _LEAST_LOG)
    gap = jnp.where(empty, 1.0, gap)
    small = gap < math.log(2.0)
    tail = jnp.where(
        small,
        jnp.log(-jnp.expm1(-jnp.where(small, gap, 0.5))),
        jnp.log1p(-jnp.exp(-jnp.where(small, 1.0, gap))),
    )
    return jnp.where(empty, _LEAST_LOG, jnp.where(empty, 0.0, larger) + tail)


def log_probability(probability: Array) -> Array:
    """``log probability``; a probability of nothing is e^-600, to keep derivatives finite."""
    least = math.exp(_LEAST_LOG)
    return jnp.log(jnp.where(probability > least, probability, least))
