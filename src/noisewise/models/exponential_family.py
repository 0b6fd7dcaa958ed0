r"""Exponential families: ``p(x | eta) = h(x) exp(eta't(x) - A(eta))``, the moments of t by automatic differentiation.

An :class:`ExponentialForm` is what engines that work on sufficient statistics need of a model of one column: the natural
parameter, the statistic, the log-partition and base measure, the conjugate draw of theta from the total of t, and the law of x
on half-lines (for statistics that were truncated or clamped). ``E t = A'(eta)`` and ``Var t = A''(eta)`` follow.
:func:`exponential_form` gives the form of the library's own models, and :class:`ExponentialFamily` is a model written as its form.

| model | t(x) | eta | A(eta) |
|---|---|---|---|
| ``Bernoulli`` | x | logit p | log(1 + e^eta) |
| ``Categorical`` | indicators | log p | log sum e^eta |
| ``Poisson`` | x | log rate | e^eta |
| ``Exponential`` | x | -rate | -log(-eta) |
| ``GammaKnownShape(k)`` | x | -rate | -k log(-eta) |
| ``Normal``, variance v known | x | mean/v | v eta^2/2 |
| ``Normal`` | x, x^2 | mean/v, -1/2v | -eta_1^2/4 eta_2 - log(-2 eta_2)/2 |
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.scipy.special import gammainc, gammaincc, gammaln, log_ndtr, xlogy
from jaxtyping import Array, Bool, Float

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.bijections import Parameter, Support
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.gamma import dirichlet, log_gamma
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.hyperparameters import column_name
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.typing import Innovations, Key, Records, Theta

_LEAST_LOG = -600.0


class ExponentialForm(eqx.Module):
    """The exponential-family form of a model of one column."""

    discrete: ClassVar[bool] = False

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
        return None

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


class BernoulliForm(ExponentialForm):
    """x itself, at two levels."""

    model: Bernoulli
    discrete: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return 1

    @property
    def support(self) -> tuple[float, float]:
        return (0.0, 1.0)

    @property
    def levels(self) -> int:
        return 2

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return (jnp.log(theta["p"]) - jnp.log1p(-theta["p"]))[None]

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        return jnp.asarray(x, dtype=float)[:, None]

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jax.nn.softplus(eta[0])

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(x, dtype=float)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        draws = log_gamma(key, jnp.stack([self.model.a + total[0], self.model.b + n - total[0]]))
        return {"p": jax.nn.sigmoid(draws[0] - draws[1])}

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return (total[0] >= 0) & (total[0] <= n)


class CategoricalForm(ExponentialForm):
    """The indicators of the levels; their covariance is singular, because they sum to one."""

    model: Categorical
    discrete: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return int(self.model.alpha.size)

    @property
    def support(self) -> tuple[float, float]:
        return (0.0, self.size - 1.0)

    @property
    def levels(self) -> int:
        return self.size

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return jnp.log(theta["p"])

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        return (jnp.asarray(x)[:, None] == jnp.arange(self.size)).astype(float)

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(eta)

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(x, dtype=float)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        return {"p": dirichlet(key, self.model.alpha + total)}

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        # a level without variance is zero up to rounding
        return jnp.all(total > -1e-9 * jnp.min(self.model.alpha))


class _GammaPriorForm(ExponentialForm):
    """x itself, non-negative, with a gamma prior on a rate."""

    @property
    def size(self) -> int:
        return 1

    @property
    def support(self) -> tuple[float, float]:
        return (0.0, math.inf)

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        return jnp.asarray(x, dtype=float)[:, None]

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return total[0] >= 0


class PoissonForm(_GammaPriorForm):
    """Counts, with ``1/x!`` as base measure."""

    model: Poisson
    discrete: ClassVar[bool] = True

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return jnp.log(theta["rate"])[None]

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.exp(eta[0])

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return -gammaln(jnp.asarray(x, dtype=float) + 1)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        return {"rate": jnp.exp(log_gamma(key, self.model.shape + total[0])) / (self.model.rate + n)}

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(gammaincc(jnp.maximum(jnp.ceil(x), 1.0), jnp.exp(eta[0])))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(gammainc(jnp.floor(x) + 1, jnp.exp(eta[0])))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        rate, first, last = jnp.exp(eta[0]), jnp.maximum(jnp.ceil(low), 0.0), jnp.floor(high) + 1
        start = jnp.maximum(first, 1.0)
        from_below = gammaincc(last, rate) - jnp.where(first > 0, gammaincc(start, rate), 0.0)
        from_above = jnp.where(first > 0, gammainc(start, rate), 1.0) - gammainc(last, rate)
        return _log_probability(jnp.where(rate > last, from_below, from_above))


class ExponentialFormOf(_GammaPriorForm):
    """Waiting times: all probabilities are elementary."""

    model: Exponential

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return -theta["rate"][None]

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return -jnp.log(-eta[0])

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.where(jnp.asarray(x) >= 0, 0.0, -jnp.inf)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        return {"rate": jnp.exp(log_gamma(key, self.model.shape + n)) / (self.model.rate + total[0])}

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_difference(jnp.zeros(()), eta[0] * jnp.maximum(x, 0.0))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return eta[0] * jnp.maximum(x, 0.0)

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        start = jnp.maximum(low, 0.0)
        return eta[0] * start + log_difference(jnp.zeros(()), eta[0] * (high - start))


class GammaKnownShapeForm(_GammaPriorForm):
    """Gamma records, whose base measure carries the known shape."""

    model: GammaKnownShape

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return -theta["rate"][None]

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return -self.model.known * jnp.log(-eta[0])

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        inside = xlogy(self.model.known - 1, x) - gammaln(self.model.known)
        return jnp.where(jnp.asarray(x) >= 0, inside, -jnp.inf)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        shape = self.model.shape + self.model.known * n
        return {"rate": jnp.exp(log_gamma(key, shape)) / (self.model.rate + total[0])}

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(gammainc(self.model.known, -eta[0] * x))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(gammaincc(self.model.known, -eta[0] * x))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        known, start, end = self.model.known, -eta[0] * jnp.maximum(low, 0.0), -eta[0] * high
        from_below = gammainc(known, end) - gammainc(known, start)
        from_above = gammaincc(known, start) - gammaincc(known, end)
        return _log_probability(jnp.where(end < known, from_below, from_above))


class NormalForm(ExponentialForm):
    """x with a known variance, x and x^2 with an unknown one."""

    model: Normal

    @property
    def size(self) -> int:
        return 2 if isinstance(self.model.variance, InverseGamma) else 1

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        if isinstance(self.model.variance, InverseGamma):
            return jnp.stack([theta["mean"] / theta["variance"], -0.5 / theta["variance"]])
        return (theta["mean"] / self.model.variance)[None]

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        x = jnp.asarray(x, dtype=float)
        return jnp.stack([x, x**2][: self.size], axis=-1)

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        if isinstance(self.model.variance, InverseGamma):
            return -0.25 * eta[0] ** 2 / eta[1] - 0.5 * jnp.log(-2 * eta[1])
        return 0.5 * self.model.variance * eta[0] ** 2

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        if isinstance(self.model.variance, InverseGamma):
            return jnp.full_like(x, -0.5 * math.log(2 * math.pi), dtype=float)
        return stats.norm.logpdf(x, 0.0, jnp.sqrt(self.model.variance))

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        first, second = jax.random.split(key)
        drawn: Theta = {}
        centre = total[0] / n
        if isinstance(self.model.variance, InverseGamma):
            squares = total[1] - total[0] * centre + n * (centre - theta["mean"]) ** 2
            drawn["variance"] = self.model.variance.sample(first, count=n, squares=squares)
            variance = drawn["variance"]
        else:
            variance = self.model.variance
        prior = 1 / self.model.prior_sd**2
        precision = prior + n / variance
        mean = (self.model.prior_mean * prior + total[0] / variance) / precision
        return {"mean": mean + jax.random.normal(second, (), dtype=float) / jnp.sqrt(precision), **drawn}

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        if isinstance(self.model.variance, InverseGamma):
            return n * total[1] >= total[0] ** 2
        return jnp.asarray(True)

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_ndtr(self._standardise(eta, x))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_ndtr(-self._standardise(eta, x))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        start, end = self._standardise(eta, low), self._standardise(eta, high)
        flip = start + end > 0
        start, end = jnp.where(flip, -end, start), jnp.where(flip, -start, end)
        return log_difference(log_ndtr(end), log_ndtr(start))

    def _standardise(self, eta: Float[Array, " d"], x: Array) -> Array:
        if isinstance(self.model.variance, InverseGamma):
            return (x + 0.5 * eta[0] / eta[1]) * jnp.sqrt(-2 * eta[1])
        return (x - eta[0] * self.model.variance) / jnp.sqrt(self.model.variance)


def _log_probability(probability: Array) -> Array:
    least = math.exp(_LEAST_LOG)
    return jnp.log(jnp.where(probability > least, probability, least))


class ExponentialFamily(Model):
    r"""A model of one column written as an exponential family, in a few lines.

    ``natural(theta)`` is eta and ``statistic(x)`` is t (of an array of x; a column, or a tuple of columns), each a number or a tuple of
    numbers; ``log_partition(eta)`` is A; ``update(key, total, n)`` draws theta from its conjugate law given the total of t over n records,
    so that ``update(key, zeros, 0)`` is the prior, whose log density is ``log_prior(theta)``. ``quantile(theta, u)`` makes a record
    from a uniform number; ``cdf(x, eta)`` is P(X <= x), wanted for truncated or clamped statistics and for the ``augmentation``
    engine. ``possible(total, n)`` says which totals ``update`` accepts. Write them with ``jax.numpy``.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> import noisewise as nw
    >>> from noisewise.models.exponential_family import ExponentialFamily
    >>> waiting = ExponentialFamily(
    ...     parameters={"rate": "positive"},
    ...     natural=lambda theta: -theta["rate"],
    ...     statistic=lambda x: x,
    ...     log_partition=lambda eta: -jnp.log(-eta),
    ...     update=lambda key, total, n: {"rate": random.gamma(key, 2.0 + n) / (1.0 + total)},
    ...     log_prior=lambda theta: jnp.log(theta["rate"]) - theta["rate"],
    ...     quantile=lambda theta, u: -jnp.log1p(-u) / theta["rate"],
    ...     support=(0.0, float("inf")),
    ... )
    >>> waiting.form.mean(jnp.asarray([-4.0])).tolist()
    [0.25]
    """

    natural: Callable[[Theta], Array | tuple[Array, ...]] = eqx.field(static=True)
    statistic: Callable[[Array], Array | tuple[Array, ...]] = eqx.field(static=True)
    log_partition: Callable[..., Array] = eqx.field(static=True)
    draw: Callable[..., Theta] = eqx.field(static=True)
    prior: Callable[[Theta], Array] = eqx.field(static=True)
    quantile: Callable[[Theta, Array], Array] = eqx.field(static=True)
    base: Callable[[Array], Array] | None = eqx.field(static=True)
    cdf: Callable[..., Array] | None = eqx.field(static=True)
    allowed: Callable[..., Array] | None = eqx.field(static=True)
    named: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    support: tuple[float, float] = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)
    column: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        parameters: Mapping[str, Support | Parameter],
        natural: Callable[[Theta], Array | tuple[Array, ...]],
        statistic: Callable[[Array], Array | tuple[Array, ...]],
        log_partition: Callable[..., Array],
        update: Callable[..., Theta],
        log_prior: Callable[[Theta], Array],
        quantile: Callable[[Theta, Array], Array],
        log_base: Callable[[Array], Array] | None = None,
        cdf: Callable[..., Array] | None = None,
        possible: Callable[..., Array] | None = None,
        support: tuple[float, float] = (-math.inf, math.inf),
        discrete: bool = False,
        column: str = "x",
    ) -> None:
        if not parameters:
            raise ValueError("parameters must name at least one parameter, as in {'rate': 'positive'}; got none.")
        given = {"natural": natural, "statistic": statistic, "log_partition": log_partition, "update": update}
        for name, function in (given | {"log_prior": log_prior, "quantile": quantile}).items():
            if not callable(function):
                raise ValueError(f"{name} of an ExponentialFamily must be a function; got {function!r}.")
        if not support[0] < support[1]:
            raise ValueError(f"support must be an increasing pair of numbers; got {support!r}.")
        self.natural, self.statistic, self.log_partition = natural, statistic, log_partition
        self.draw, self.prior, self.quantile = update, log_prior, quantile
        self.base, self.cdf, self.allowed = log_base, cdf, possible
        self.named = tuple(
            (name, law if isinstance(law, Parameter) else Parameter(support=law)) for name, law in parameters.items()
        )
        self.support = (float(support[0]), float(support[1]))
        self.discrete = discrete
        self.column = column_name(column, "column")

    @property
    def form(self) -> CustomForm:
        """The form of the family."""
        return CustomForm(self)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return dict(self.named)

    def sample_prior(self, key: Key) -> Theta:
        return self.form.update(key, {}, jnp.zeros(self.form.size), jnp.zeros(()))

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return jnp.asarray(self.prior(theta), dtype=float)

    def innovations(self, key: Key, n: int) -> Innovations:
        return jax.random.uniform(key, (n,), dtype=float)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: self.quantile(theta, u)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        if self.cdf is None:
            raise ValueError(
                "This ExponentialFamily has no cdf, which is needed to find the innovations of its records; give cdf=..., or "
                "use nw.engines.Augmentation(interweave=False)."
            )
        x, eta = records[self.column], self.natural(theta)
        upper = self.cdf(x, eta)
        if not self.discrete:
            return upper
        lower = self.cdf(x - 1, eta)
        return lower + (upper - lower) * (1 - jax.random.uniform(key, upper.shape, dtype=float))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        rows = self.form.statistic(records[self.column])
        return self.form.update(key, theta, jnp.sum(rows, axis=0), jnp.asarray(float(rows.shape[0])))

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return self.form.log_density(records[self.column], self.form.natural(theta))


class CustomForm(ExponentialForm):
    """The form of an :class:`ExponentialFamily`: its functions, with eta and t as vectors."""

    model: ExponentialFamily

    @property
    def size(self) -> int:
        theta = {name: jnp.zeros(parameter.shape) for name, parameter in self.model.named}
        return int(jax.eval_shape(self.natural, theta).shape[0])

    @property
    def support(self) -> tuple[float, float]:
        return self.model.support

    @property
    def truncates(self) -> bool:
        return self.model.cdf is not None

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return _vector(self.model.natural(theta))

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        found = self.model.statistic(jnp.asarray(x, dtype=float))
        return jnp.stack(found, axis=-1) if isinstance(found, tuple) else found.reshape(x.shape[0], -1)

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.asarray(self.model.log_partition(self._shaped(eta)), dtype=float)

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        inside = (x >= self.model.support[0]) & (x <= self.model.support[1])
        base = jnp.zeros_like(x, dtype=float) if self.model.base is None else self.model.base(x)
        return jnp.where(inside, base, -jnp.inf)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        drawn = self.model.draw(key, self._shaped(total), n)
        return {name: jnp.asarray(drawn[name], dtype=float) for name, _ in self.model.named}

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return jnp.asarray(True) if self.model.allowed is None else self.model.allowed(self._shaped(total), n)

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(self._cdf(self._before(x), eta))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return _log_probability(1 - self._cdf(x, eta))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        return _log_probability(self._cdf(high, eta) - self._cdf(self._before(low), eta))

    def _before(self, x: Array) -> Array:
        return jnp.ceil(x) - 1 if self.model.discrete else x

    def _cdf(self, x: Array, eta: Float[Array, " d"]) -> Array:
        assert self.model.cdf is not None
        inside = jnp.maximum(x, self.model.support[0])
        return jnp.where(x < self.model.support[0], 0.0, self.model.cdf(inside, self._shaped(eta)))

    def _shaped(self, vector: Float[Array, " d"]) -> Array | tuple[Array, ...]:
        return vector[0] if vector.shape[0] == 1 else tuple(vector[i] for i in range(vector.shape[0]))


def _vector(value: Array | tuple[Array, ...]) -> Float[Array, " d"]:
    return jnp.stack(value) if isinstance(value, tuple) else jnp.atleast_1d(jnp.asarray(value, dtype=float))


_FORMS: dict[type[Model], Callable[..., ExponentialForm]] = {
    Bernoulli: BernoulliForm,
    Categorical: CategoricalForm,
    Poisson: PoissonForm,
    Exponential: ExponentialFormOf,
    GammaKnownShape: GammaKnownShapeForm,
    Normal: NormalForm,
    ExponentialFamily: CustomForm,
}


def exponential_form(model: Model) -> ExponentialForm | None:
    """The exponential-family form of a model of one column, or ``None`` where it has none.

    >>> import noisewise as nw
    >>> form = exponential_form(nw.models.Poisson(2, 1))
    >>> form.covariance(form.natural({"rate": jnp.asarray(3.0)})).round(12).tolist()
    [[3.0]]
    """
    found = _FORMS.get(type(model))
    return None if found is None else found(model)
