r"""The exponential-family forms of the library's own models.

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

import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.scipy.special import gammainc, gammaincc, gammaln, log_ndtr, xlogy
from jaxtyping import Array, Bool, Float

from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.form import ExponentialForm, log_difference, log_probability
from noisewise.models.gamma import dirichlet, log_gamma
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.typing import Key, Theta


class BernoulliForm(ExponentialForm):
    """x itself, at two levels."""

    model: Bernoulli

    @property
    def discrete(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return 1

    @property
    def support(self) -> tuple[float, float]:
        return (0.0, 1.0)

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

    @property
    def discrete(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return int(self.model.alpha.size)

    @property
    def support(self) -> tuple[float, float]:
        return (0.0, self.size - 1.0)

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


class GammaPriorForm(ExponentialForm):
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


class PoissonForm(GammaPriorForm):
    """Counts, with ``1/x!`` as base measure."""

    model: Poisson

    @property
    def discrete(self) -> bool:
        return True

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return jnp.log(theta["rate"])[None]

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.exp(eta[0])

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return -gammaln(jnp.asarray(x, dtype=float) + 1)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        return {"rate": jnp.exp(log_gamma(key, self.model.shape + total[0])) / (self.model.rate + n)}

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        below = gammaincc(jnp.maximum(jnp.ceil(x), 1.0), jnp.exp(eta[0]))
        return log_probability(jnp.where(jnp.ceil(x) > 0, below, 0.0))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_probability(gammainc(jnp.floor(x) + 1, jnp.exp(eta[0])))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        rate, first, last = jnp.exp(eta[0]), jnp.maximum(jnp.ceil(low), 0.0), jnp.floor(high) + 1
        start = jnp.maximum(first, 1.0)
        from_below = gammaincc(last, rate) - jnp.where(first > 0, gammaincc(start, rate), 0.0)
        from_above = jnp.where(first > 0, gammainc(start, rate), 1.0) - gammainc(last, rate)
        return log_probability(jnp.where(rate > last, from_below, from_above))


class ExponentialFormOf(GammaPriorForm):
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


class GammaKnownShapeForm(GammaPriorForm):
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
        return log_probability(self._below(eta, x))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_probability(self._above(eta, x))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        from_below = self._below(eta, high) - self._below(eta, low)
        from_above = self._above(eta, low) - self._above(eta, high)
        return log_probability(jnp.where(-eta[0] * high < self.model.known, from_below, from_above))

    def _below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        # at zero the incomplete gamma function has no second derivative that could be computed
        inside = x > 0
        return jnp.where(inside, gammainc(self.model.known, -eta[0] * jnp.where(inside, x, 1.0)), 0.0)

    def _above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        inside = x > 0
        return jnp.where(inside, gammaincc(self.model.known, -eta[0] * jnp.where(inside, x, 1.0)), 1.0)


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
