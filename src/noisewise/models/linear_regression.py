"""Linear regression with random covariates."""

from __future__ import annotations

from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import triangular
from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.hyperparameters import column_name, column_names, covariance, positive, real
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.typing import Innovations, Key, Records, Theta


class LinearRegression(Model):
    r"""Regression of a response on normal covariates (Ju et al. 2022, section 5), any number of them.

    ``x ~ N(covariate_mean, covariate_cov)`` and ``y | x ~ N(beta_0 + x' beta_{1..p}, variance)``, with the intercept first in
    ``beta ~ N(0, coef_scale^2 I)``. Each of the other three is a constant if it is given as numbers, or an unknown
    parameter if it is given as a prior: ``variance=InverseGamma(a, b)``, ``covariate_mean=NormalPrior(mean, cov)``,
    ``covariate_cov=InverseWishart(df, scale)``, all independent.

    :meth:`update` draws ``variance | beta``, ``beta | variance``, ``covariate_cov | covariate_mean``, ``covariate_mean |
    covariate_cov``, those of them that are unknown: a fresh exact draw (``conjugate``) unless both of a pair are unknown, and
    then a Gibbs cycle. Innovations are standard normal, one for each column: ``x = mean + L u_x`` with ``L L' =
    covariate_cov``, ``y = (1, x)' beta + sqrt(variance) u_y``.

    >>> import noisewise as nw
    >>> model = nw.models.LinearRegression(("age", "dose"), "relief", covariate_mean=[0, 0], covariate_cov=[[1, 0], [0, 1]])
    >>> model.parameters["beta"].coords
    (('coefficient', ('intercept', 'age', 'dose')),)
    """

    coef_scale: Float[Array, ""]
    variance: Float[Array, ""] | InverseGamma
    covariate_mean: Float[Array, " p"] | NormalPrior
    covariate_cov: Float[Array, "p p"] | InverseWishart
    predictors: tuple[str, ...] = eqx.field(static=True)
    response: str = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str] = ("x1", "x2"),
        response: str = "y",
        *,
        coef_scale: ArrayLike = 2.0,
        variance: ArrayLike | InverseGamma = 2.0,
        covariate_mean: ArrayLike | NormalPrior,
        covariate_cov: ArrayLike | InverseWishart,
    ) -> None:
        self.predictors = column_names(predictors, "predictors")
        self.response = column_name(response, "response")
        if self.response in self.predictors:
            raise ValueError(f"response must not be one of the predictors {self.predictors}; got {response!r}.")
        self.coef_scale = positive(coef_scale, "coef_scale")
        self.variance = variance if isinstance(variance, InverseGamma) else positive(variance, "variance")
        p = len(self.predictors)
        if isinstance(covariate_mean, NormalPrior):
            _check_size(covariate_mean.mean.size, p, "covariate_mean")
            self.covariate_mean = covariate_mean
        else:
            self.covariate_mean = real(covariate_mean, "covariate_mean", (p,))
        if isinstance(covariate_cov, InverseWishart):
            _check_size(covariate_cov.scale.shape[0], p, "covariate_cov")
            self.covariate_cov = covariate_cov
        else:
            self.covariate_cov = covariance(covariate_cov, "covariate_cov", p)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.predictors, self.response)

    @property
    def parameters(self) -> dict[str, Parameter]:
        p, names = len(self.predictors), ("intercept", *self.predictors)
        by_predictor = ("predictor", self.predictors)
        found = {"beta": Parameter((p + 1,), "real", ("coefficient",), (("coefficient", names),))}
        if isinstance(self.variance, InverseGamma):
            found["variance"] = Parameter(support="positive")
        if isinstance(self.covariate_mean, NormalPrior):
            found["covariate_mean"] = Parameter((p,), "real", ("predictor",), (by_predictor,))
        if isinstance(self.covariate_cov, InverseWishart):
            other = ("other_predictor", self.predictors)
            found["covariate_cov"] = Parameter((p, p), "covariance", (by_predictor[0], other[0]), (by_predictor, other))
        return found

    def sample_prior(self, key: Key) -> Theta:
        keys = jax.random.split(key, 4)
        theta = {"beta": self.coef_scale * jax.random.normal(keys[0], (len(self.predictors) + 1,))}
        if isinstance(self.variance, InverseGamma):
            theta["variance"] = self.variance.sample(keys[1])
        if isinstance(self.covariate_mean, NormalPrior):
            theta["covariate_mean"] = self.covariate_mean.sample(keys[2])
        if isinstance(self.covariate_cov, InverseWishart):
            theta["covariate_cov"] = self.covariate_cov.sample(keys[3])
        return theta

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        density = jnp.sum(stats.norm.logpdf(theta["beta"], 0.0, self.coef_scale))
        if isinstance(self.variance, InverseGamma):
            density = density + self.variance.log_prob(theta["variance"])
        if isinstance(self.covariate_mean, NormalPrior):
            density = density + self.covariate_mean.log_prob(theta["covariate_mean"])
        if isinstance(self.covariate_cov, InverseWishart):
            density = density + self.covariate_cov.log_prob(theta["covariate_cov"])
        return density

    def innovations(self, key: Key, n: int) -> Innovations:
        return dict(zip(self.columns, jax.random.normal(key, (len(self.columns), n)), strict=True))

    def transform(self, theta: Theta, u: Innovations) -> Records:
        spread = triangular.apply(self._factor(theta), [u[name] for name in self.predictors])
        x = [value + centre for value, centre in zip(spread, self._mean(theta), strict=True)]
        y = _line(theta["beta"], x) + jnp.sqrt(self._variance(theta)) * u[self.response]
        return dict(zip(self.columns, [*x, y], strict=True))

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return self._standardise(theta, records)

    @property
    def conjugate(self) -> bool:
        both = isinstance(self.covariate_mean, NormalPrior) and isinstance(self.covariate_cov, InverseWishart)
        return not (both or isinstance(self.variance, InverseGamma))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        keys = jax.random.split(key, 4)
        x, y = [records[name] for name in self.predictors], records[self.response]
        drawn: Theta = {}
        if isinstance(self.variance, InverseGamma):
            squares = jnp.sum((y - _line(theta["beta"], x)) ** 2)
            drawn["variance"] = self.variance.sample(keys[0], count=y.size, squares=squares)
        drawn["beta"] = self._draw_beta(keys[1], self._variance(drawn), x, y)
        if isinstance(self.covariate_cov, InverseWishart):
            centred = [value - centre for value, centre in zip(x, self._mean(theta), strict=True)]
            products = triangular.gram(centred)
            drawn["covariate_cov"] = self.covariate_cov.sample(keys[2], count=y.size, products=products)
        if isinstance(self.covariate_mean, NormalPrior):
            cov = triangular.matrix(self._cov(drawn))
            totals = [jnp.sum(value) for value in x]
            drawn["covariate_mean"] = self.covariate_mean.sample_given(keys[3], cov=cov, count=y.size, total=totals)
        return {name: drawn[name] for name in theta}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        squares = triangular.total([value**2 for value in self._standardise(theta, records).values()])
        log_det = triangular.half_log_det(self._factor(theta)) + 0.5 * jnp.log(self._variance(theta))
        return -0.5 * squares - log_det - 0.5 * len(self.columns) * jnp.log(2 * jnp.pi)

    def _draw_beta(self, key: Key, variance: Array, x: list[Array], y: Array) -> Array:
        size = len(x) + 1
        products = triangular.gram([jnp.ones_like(y), *x])
        linear = [jnp.sum(y) / variance, *[jnp.sum(value * y) / variance for value in x]]
        precision = triangular.combine(1 / variance, products, 1 / self.coef_scale**2, triangular.matrix(jnp.eye(size)))
        return triangular.normal_from_precision(key, precision, linear)

    def _standardise(self, theta: Theta, records: Records) -> Records:
        x = [records[name] for name in self.predictors]
        centred = [value - centre for value, centre in zip(x, self._mean(theta), strict=True)]
        residual = (records[self.response] - _line(theta["beta"], x)) / jnp.sqrt(self._variance(theta))
        return dict(zip(self.columns, [*triangular.solve(self._factor(theta), centred), residual], strict=True))

    def _variance(self, theta: Theta) -> Array:
        return theta["variance"] if isinstance(self.variance, InverseGamma) else self.variance

    def _mean(self, theta: Theta) -> list[Array]:
        mean = theta["covariate_mean"] if isinstance(self.covariate_mean, NormalPrior) else self.covariate_mean
        return [mean[i] for i in range(len(self.predictors))]

    def _cov(self, theta: Theta) -> Array:
        return theta["covariate_cov"] if isinstance(self.covariate_cov, InverseWishart) else self.covariate_cov

    def _factor(self, theta: Theta) -> triangular.Matrix:
        return triangular.cholesky(triangular.matrix(self._cov(theta)))


def _line(beta: Array, x: list[Array]) -> Array:
    return beta[0] + triangular.dot([beta[i + 1] for i in range(len(x))], x)


def _check_size(size: int, expected: int, name: str) -> None:
    if size != expected:
        raise ValueError(
            f"{name} must have a prior of dimension {expected}, one for each predictor; got dimension {size}."
        )
