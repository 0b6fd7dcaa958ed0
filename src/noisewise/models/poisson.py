"""Counts with a gamma prior."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import poisson_law
from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.gamma import log_gamma
from noisewise.models.hyperparameters import column_name, positive
from noisewise.typing import Innovations, Key, Records, Theta


class Poisson(Model):
    """Counts ``x ~ Poisson(rate)`` with ``rate ~ Gamma(shape, rate)``, density proportional to ``t^(a-1) exp(-b t)``.

    Innovations are logistic: a record is the smallest count whose log-odds ``log F(k) / (1 - F(k))`` reach its innovation.

    >>> import noisewise as nw
    >>> list(nw.models.Poisson(shape=2, rate=0.5, column="visits").parameters)
    ['rate']
    """

    shape: Float[Array, ""]
    rate: Float[Array, ""]
    column: str = eqx.field(static=True)

    def __init__(self, shape: ArrayLike, rate: ArrayLike, *, column: str = "x") -> None:
        self.shape = positive(shape, "shape")
        self.rate = positive(rate, "rate")
        self.column = column_name(column, "column")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"rate": Parameter(support="positive")}

    def sample_prior(self, key: Key) -> Theta:
        return {"rate": jnp.exp(log_gamma(key, self.shape)) / self.rate}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        rate = theta["rate"]
        normaliser = self.shape * jnp.log(self.rate) - gammaln(self.shape)
        return normaliser + (self.shape - 1) * jnp.log(rate) - self.rate * rate

    def innovations(self, key: Key, n: int) -> Innovations:
        return poisson_law.innovations(key, n)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: poisson_law.find(poisson_law.tabulate(theta["rate"]), u)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return poisson_law.retrace(poisson_law.tabulate(theta["rate"]), records[self.column], key)

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        x = records[self.column]
        return {"rate": jnp.exp(log_gamma(key, self.shape + jnp.sum(x))) / (self.rate + x.size)}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return poisson_law.log_mass(records[self.column], theta["rate"])
