"""Logistic regression of a binary response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.lognormal_regression import noisy_columns
from noisewise.models.polya_gamma import polya_gamma
from noisewise.models.priors import InverseWishart, NormalPrior
from noisewise.models.transforms import Transform
from noisewise.typing import Innovations, Key, Records, Theta


class LogisticRegression(Model):
    r"""A response of 0 or 1 with ``P(y = 1) = 1 / (1 + exp(-x' beta))`` and ``beta ~ N(0, coef_scale^2 I)``, the intercept first.

    Covariates are given and without a law (for releases of every record), or normal with ``covariate_mean`` and
    ``covariate_cov``, which are numbers or priors as in :class:`LinearRegression`; with them any engine for general models can be
    used. :meth:`update` draws Polya-Gamma variables given beta and then beta given them: a Gibbs cycle, exact but not fresh.
    Innovations: standard normal for the covariates, logistic e for the response, ``y = 1[x' beta + e > 0]``. ``noisy``,
    ``intercept`` and ``transforms`` as in :class:`LognormalRegression`.

    >>> import noisewise as nw
    >>> nw.models.LogisticRegression(("age",), "ill").parameters["beta"].coords
    (('coefficient', ('intercept', 'age')),)
    """

    linear: LinearRegression
    noisy: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str] = ("x1", "x2"),
        response: str = "y",
        *,
        noisy: Iterable[str] | None = None,
        coef_scale: ArrayLike = 2.0,
        intercept: bool = True,
        transforms: Mapping[str, str | Transform] | None = None,
        covariate_mean: ArrayLike | NormalPrior | None = None,
        covariate_cov: ArrayLike | InverseWishart | None = None,
    ) -> None:
        # the latent scale of the logistic law is known; only covariates and coefficients are taken from the linear model
        self.linear = LinearRegression(
            predictors,
            response,
            coef_scale=coef_scale,
            variance=1.0,
            covariate_mean=covariate_mean,
            covariate_cov=covariate_cov,
            intercept=intercept,
            transforms=transforms,
        )
        self.noisy = noisy_columns(noisy, self.linear)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.linear.columns

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.linear.parameters

    def sample_prior(self, key: Key) -> Theta:
        return self.linear.sample_prior(key)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return self.linear.log_prior(theta)

    @property
    def has_transform(self) -> bool:
        return self.linear.has_transform

    def innovations(self, key: Key, n: int) -> Innovations:
        first, second = jax.random.split(key)
        return {
            **self.linear.innovations(first, n),
            self.linear.response: jax.random.logistic(second, (n,), dtype=float),
        }

    def transform(self, theta: Theta, u: Innovations) -> Records:
        response = self.linear.response
        records = self.linear.transform(theta, u)
        return {**records, response: (self.linear.line(theta["beta"], records) + u[response] > 0).astype(float)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        response = self.linear.response
        side = 2 * records[response] - 1
        edge = -side * self.linear.line(theta["beta"], records)
        # P(e > t) = 1 / (1 + e^t), scaled to the tail beyond the edge
        log_tail = jnp.log1p(-jax.random.uniform(key, edge.shape, dtype=float)) + jax.nn.log_sigmoid(-edge)
        beyond = jnp.log(-jnp.expm1(log_tail)) - log_tail
        return {**self.linear.standardise_covariates(theta, records), response: side * beyond}

    @property
    def conjugate(self) -> bool:
        return False

    @property
    def update_forgets(self) -> bool:
        # the latent weights remember beta: successive draws correlate by 0.2 to 0.9 at any number of records
        return False

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        keys = jax.random.split(key, 4)
        weight = polya_gamma(keys[0], self.linear.line(theta["beta"], records))
        centre = (records[self.linear.response] - 0.5) / weight
        drawn = {"beta": self.linear.draw_beta(keys[1], weight, records, centre)}
        drawn |= self.linear.update_covariates(keys[2], keys[3], theta, records)
        return {name: drawn[name] for name in theta}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        side = 2 * records[self.linear.response] - 1
        given = jax.nn.log_sigmoid(side * self.linear.line(theta["beta"], records))
        return given + self.linear.log_covariates(theta, records)
