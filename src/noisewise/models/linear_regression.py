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
from noisewise.typing import Innovations, Key, Records, Theta


class LinearRegression(Model):
    r"""Regression of a response on normal covariates (Ju et al. 2022, section 5).

    ``x ~ N(covariate_mean, covariate_cov)``, ``y | x ~ N(beta_0 + x' beta_{1..p}, variance)``,
    ``beta ~ N(0, coef_scale^2 I)``, intercept first.
    """

    coef_scale: Float[Array, ""]
    variance: Float[Array, ""]
    covariate_mean: Float[Array, " p"]
    covariate_cov: Float[Array, "p p"]
    predictors: tuple[str, ...] = eqx.field(static=True)
    response: str = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str] = ("x1", "x2"),
        response: str = "y",
        *,
        coef_scale: ArrayLike = 2.0,
        variance: ArrayLike = 2.0,
        covariate_mean: ArrayLike,
        covariate_cov: ArrayLike,
    ) -> None:
        self.predictors = column_names(predictors, "predictors")
        self.response = column_name(response, "response")
        if self.response in self.predictors:
            raise ValueError(f"response must not be one of the predictors {self.predictors}; got {response!r}.")
        self.coef_scale = positive(coef_scale, "coef_scale")
        self.variance = positive(variance, "variance")
        p = len(self.predictors)
        self.covariate_mean = real(covariate_mean, "covariate_mean", (p,))
        self.covariate_cov = covariance(covariate_cov, "covariate_cov", p)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.predictors, self.response)

    @property
    def parameters(self) -> dict[str, Parameter]:
        names = ("intercept", *self.predictors)
        return {"beta": Parameter((len(names),), "real", ("coefficient",), (("coefficient", names),))}

    def sample_prior(self, key: Key) -> Theta:
        return {"beta": self.coef_scale * jax.random.normal(key, (len(self.predictors) + 1,))}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return jnp.sum(stats.norm.logpdf(theta["beta"], 0.0, self.coef_scale))

    def innovations(self, key: Key, n: int) -> Innovations:
        return dict(zip(self.columns, jax.random.normal(key, (len(self.columns), n)), strict=True))

    def transform(self, theta: Theta, u: Innovations) -> Records:
        factor = self._factor(theta)
        z = [u[name] for name in self.predictors]
        x = [self.covariate_mean[i] + triangular.dot(row, z) for i, row in enumerate(factor)]
        y = self._line(theta, x) + jnp.sqrt(self.variance) * u[self.response]
        return dict(zip(self.columns, [*x, y], strict=True))

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        x = [records[name] for name in self.predictors]
        z = triangular.solve_lower(self._factor(theta), [value - self.covariate_mean[i] for i, value in enumerate(x)])
        residual = (records[self.response] - self._line(theta, x)) / jnp.sqrt(self.variance)
        return dict(zip(self.columns, [*z, residual], strict=True))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        x = [records[name] for name in self.predictors]
        y = records[self.response]
        rows: triangular.Entries = [[jnp.asarray(float(y.size))]]
        for i, left in enumerate(x):
            rows.append([jnp.sum(left), *[jnp.sum(left * right) for right in x[: i + 1]]])
        linear = [jnp.sum(y), *[jnp.sum(value * y) for value in x]]
        ridge = 1 / self.coef_scale**2
        precision = [
            [entry / self.variance + (ridge if i == j else 0.0) for j, entry in enumerate(row)]
            for i, row in enumerate(rows)
        ]
        return {"beta": triangular.normal_from_precision(key, precision, [value / self.variance for value in linear])}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        factor = self._factor(theta)
        u = self.inverse(theta, records, jax.random.key(0))
        log_det = jnp.log(self.variance) / 2 + sum((jnp.log(row[-1]) for row in factor), start=jnp.zeros(()))
        return sum((stats.norm.logpdf(value) for value in u.values()), start=-log_det)

    def _factor(self, theta: Theta) -> triangular.Entries:
        return triangular.cholesky(triangular.lower_entries(self.covariate_cov))

    def _line(self, theta: Theta, x: list[Array]) -> Array:
        return theta["beta"][0] + triangular.dot([theta["beta"][i + 1] for i in range(len(x))], x)
