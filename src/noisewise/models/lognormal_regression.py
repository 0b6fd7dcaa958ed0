"""Regression of the logarithm of a positive response: the model of Raim (2021)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.hyperparameters import column_names, pair
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.models.transforms import Transform
from noisewise.typing import Innovations, Key, Records, Theta


class LognormalRegression(Model):
    r"""Responses with ``log y ~ N(x' beta, variance)`` (Raim 2021, model 13), for releases in which every record has its own noise.

    ``beta ~ N(0, coef_scale^2 I)`` and ``variance ~ InverseGamma(a, b)``, ``variance_prior = (a, b)``. There is no intercept
    unless ``intercept=True`` puts it first. Covariates are given, public or released with noise of their own, and without a law;
    or normal with ``covariate_mean`` and ``covariate_cov``, as in :class:`LinearRegression`. ``noisy`` names the predictors that
    are released with noise; leave it out to take what the release says. ``transforms`` as in :class:`LinearRegression`.

    >>> import noisewise as nw
    >>> model = nw.models.LognormalRegression(("x1", "x2"), "y", noisy=("x1",), coef_scale=10, variance_prior=(2, 10))
    >>> list(model.parameters), model.parameters["beta"].shape
    (['beta', 'variance'], (2,))
    """

    linear: LinearRegression
    noisy: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str] = ("x1", "x2"),
        response: str = "y",
        *,
        noisy: Iterable[str] | None = None,
        coef_scale: ArrayLike = 10.0,
        variance_prior: tuple[ArrayLike, ArrayLike] | InverseGamma = (2.0, 10.0),
        intercept: bool = False,
        transforms: Mapping[str, str | Transform] | None = None,
        covariate_mean: ArrayLike | NormalPrior | None = None,
        covariate_cov: ArrayLike | InverseWishart | None = None,
    ) -> None:
        if not isinstance(variance_prior, InverseGamma):
            variance_prior = InverseGamma(*pair(variance_prior, "variance_prior", "the inverse gamma shape and scale"))
        self.linear = LinearRegression(
            predictors,
            response,
            coef_scale=coef_scale,
            variance=variance_prior,
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
        return self.linear.innovations(key, n)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        records = self.linear.transform(theta, u)
        return {**records, self.linear.response: jnp.exp(records[self.linear.response])}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return self.linear.inverse(theta, self.in_logs(records), key)

    @property
    def conjugate(self) -> bool:
        return self.linear.conjugate

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        return self.linear.update(key, theta, self.in_logs(records))

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        y = records[self.linear.response]
        positive = {**records, self.linear.response: jnp.where(y > 0, y, 1.0)}
        density = self.linear.log_likelihood(theta, self.in_logs(positive)) - jnp.log(positive[self.linear.response])
        return jnp.where(y > 0, density, -jnp.inf)

    def in_logs(self, records: Records) -> Records:
        """The records with the logarithm of the response in its place."""
        return {**records, self.linear.response: jnp.log(records[self.linear.response])}


def noisy_columns(noisy: Iterable[str] | None, linear: LinearRegression) -> tuple[str, ...] | None:
    """The predictors said to be released with noise, checked; the response may be named with them."""
    if noisy is None:
        return None
    names = (noisy,) if isinstance(noisy, str) else tuple(noisy)
    if not names:
        return ()
    unknown = [name for name in column_names(names, "noisy") if name not in linear.columns]
    if unknown:
        raise ValueError(f"noisy names {unknown}, which the model does not have; its columns are {linear.columns}.")
    return tuple(name for name in column_names(names, "noisy") if name != linear.response)
