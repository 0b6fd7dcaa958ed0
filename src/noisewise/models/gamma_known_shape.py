"""Gamma records with a known shape and a gamma prior on the rate."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import gammaln, xlogy
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.gamma import log_gamma
from noisewise.models.hyperparameters import column_name, positive
from noisewise.typing import Innovations, Key, Records, Theta


class GammaKnownShape(Model):
    """Records with density ``rate^k x^(k-1) exp(-rate x) / Gamma(k)``, k = ``known``, and ``rate ~ Gamma(shape, rate)``.

    Innovations are gamma draws with rate 1, divided by ``rate`` to make records.

    >>> import noisewise as nw
    >>> from noisewise.models.gamma_known_shape import GammaKnownShape
    >>> GammaKnownShape(3, shape=2, rate=1, column="hours").columns
    ('hours',)
    """

    known: Float[Array, ""]
    shape: Float[Array, ""]
    rate: Float[Array, ""]
    column: str = eqx.field(static=True)

    def __init__(self, known: ArrayLike, *, shape: ArrayLike, rate: ArrayLike, column: str = "x") -> None:
        self.known = positive(known, "known")
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
        return jnp.exp(log_gamma(key, jnp.broadcast_to(self.known, (n,))))

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: u / theta["rate"]}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return records[self.column] * theta["rate"]

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        x = records[self.column]
        return {"rate": jnp.exp(log_gamma(key, self.shape + self.known * x.size)) / (self.rate + jnp.sum(x))}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        x, rate, known = records[self.column], theta["rate"], self.known
        inside = known * jnp.log(rate) + xlogy(known - 1, x) - rate * x - gammaln(known)
        return jnp.where(x >= 0, inside, -jnp.inf)
