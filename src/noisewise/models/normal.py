"""Normal records."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.hyperparameters import column_name, positive, real
from noisewise.typing import Innovations, Key, Records, Theta


class Normal(Model):
    """Records ``x ~ N(mean, sd^2)`` with ``mean ~ N(m, s^2)``, ``mean_prior = (m, s)``."""

    prior_mean: Float[Array, ""]
    prior_sd: Float[Array, ""]
    sd: Float[Array, ""]
    column: str = eqx.field(static=True)

    def __init__(
        self, mean_prior: tuple[ArrayLike, ArrayLike] = (0.0, 2.0), *, sd: ArrayLike = 1.0, column: str = "x"
    ) -> None:
        self.prior_mean = real(mean_prior[0], "mean_prior[0], the prior mean,")
        self.prior_sd = positive(mean_prior[1], "mean_prior[1], the prior standard deviation,")
        self.sd = positive(sd, "sd")
        self.column = column_name(column, "column")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"mean": Parameter()}

    def sample_prior(self, key: Key) -> Theta:
        return {"mean": self.prior_mean + self.prior_sd * jax.random.normal(key, ())}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return stats.norm.logpdf(theta["mean"], self.prior_mean, self.prior_sd)

    def innovations(self, key: Key, n: int) -> Innovations:
        return jax.random.normal(key, (n,), dtype=float)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: theta["mean"] + self.sd * u}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return (records[self.column] - theta["mean"]) / self.sd

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        x = records[self.column]
        precision = 1 / self.prior_sd**2 + x.size / self.sd**2
        centre = (self.prior_mean / self.prior_sd**2 + jnp.sum(x) / self.sd**2) / precision
        return {"mean": centre + jax.random.normal(key, ()) / jnp.sqrt(precision)}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return stats.norm.logpdf(records[self.column], theta["mean"], self.sd)
