"""Normal records, with a known or an unknown variance."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.hyperparameters import column_name, pair, positive, real
from noisewise.models.priors import InverseGamma
from noisewise.typing import Innovations, Key, Records, Theta


class Normal(Model):
    """Records ``x ~ N(mean, variance)`` with ``mean ~ N(m, s^2)``, ``mean_prior = (m, s)``.

    The variance is ``sd^2``, known, or has the prior ``InverseGamma(a, b)``, ``variance_prior = (a, b)``, independent of
    the mean's. With both unknown :meth:`update` is a Gibbs cycle, ``variance | mean, x`` then ``mean | variance, x``, and the
    model is not ``conjugate``. Innovations are standard normal, ``x = mean + sd u``.

    >>> import noisewise as nw
    >>> list(nw.models.Normal(mean_prior=(0, 10), variance_prior=(2, 1)).parameters)
    ['mean', 'variance']
    """

    prior_mean: Float[Array, ""]
    prior_sd: Float[Array, ""]
    variance: Float[Array, ""] | InverseGamma
    column: str = eqx.field(static=True)

    def __init__(
        self,
        mean_prior: tuple[ArrayLike, ArrayLike] = (0.0, 2.0),
        *,
        sd: ArrayLike | None = None,
        variance_prior: tuple[ArrayLike, ArrayLike] | InverseGamma | None = None,
        column: str = "x",
    ) -> None:
        mean, deviation = pair(mean_prior, "mean_prior", "the prior mean and standard deviation")
        self.prior_mean = real(mean, "mean_prior[0], the prior mean,")
        self.prior_sd = positive(deviation, "mean_prior[1], the prior standard deviation,")
        if variance_prior is None:
            self.variance = positive(1.0 if sd is None else sd, "sd") ** 2
        elif sd is not None:
            raise ValueError("sd and variance_prior exclude each other; give sd if it is known, else variance_prior.")
        elif isinstance(variance_prior, InverseGamma):
            self.variance = variance_prior
        else:
            self.variance = InverseGamma(*pair(variance_prior, "variance_prior", "the inverse gamma shape and scale"))
        self.column = column_name(column, "column")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> dict[str, Parameter]:
        unknown = {"variance": Parameter(support="positive")} if isinstance(self.variance, InverseGamma) else {}
        return {"mean": Parameter(), **unknown}

    def sample_prior(self, key: Key) -> Theta:
        first, second = jax.random.split(key)
        theta = {"mean": self.prior_mean + self.prior_sd * jax.random.normal(first, ())}
        if isinstance(self.variance, InverseGamma):
            theta["variance"] = self.variance.sample(second)
        return theta

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        density = stats.norm.logpdf(theta["mean"], self.prior_mean, self.prior_sd)
        if isinstance(self.variance, InverseGamma):
            density = density + self.variance.log_prob(theta["variance"])
        return density

    def innovations(self, key: Key, n: int) -> Innovations:
        return jax.random.normal(key, (n,), dtype=float)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: theta["mean"] + jnp.sqrt(self._variance(theta)) * u}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return (records[self.column] - theta["mean"]) / jnp.sqrt(self._variance(theta))

    @property
    def conjugate(self) -> bool:
        return not isinstance(self.variance, InverseGamma)

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        x = records[self.column]
        first, second = jax.random.split(key)
        drawn = {}
        if isinstance(self.variance, InverseGamma):
            drawn["variance"] = self.variance.sample(first, count=x.size, squares=jnp.sum((x - theta["mean"]) ** 2))
        variance = self._variance(drawn)
        precision = 1 / self.prior_sd**2 + x.size / variance
        centre = (self.prior_mean / self.prior_sd**2 + jnp.sum(x) / variance) / precision
        return {"mean": centre + jax.random.normal(second, ()) / jnp.sqrt(precision), **drawn}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return stats.norm.logpdf(records[self.column], theta["mean"], jnp.sqrt(self._variance(theta)))

    def _variance(self, theta: Theta) -> Array:
        return theta["variance"] if isinstance(self.variance, InverseGamma) else self.variance
