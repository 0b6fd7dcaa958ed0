"""Yes-or-no records with a beta prior."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, xlog1py, xlogy
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.gamma import log_gamma
from noisewise.models.hyperparameters import column_name, positive
from noisewise.typing import Innovations, Key, Records, Theta


class Bernoulli(Model):
    """Records that are 1 with probability ``p`` and 0 otherwise, ``p ~ Beta(a, b)``.

    Innovations are uniform on [0, 1) and a record is 1 when its innovation is below ``p``.

    >>> import noisewise as nw
    >>> nw.models.Bernoulli(a=2, b=3, column="smokes").columns
    ('smokes',)
    """

    a: Float[Array, ""]
    b: Float[Array, ""]
    column: str = eqx.field(static=True)

    def __init__(self, a: ArrayLike = 1.0, b: ArrayLike = 1.0, *, column: str = "x") -> None:
        self.a = positive(a, "a")
        self.b = positive(b, "b")
        self.column = column_name(column, "column")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def level_counts(self) -> dict[str, int]:
        return {self.column: 2}

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"p": Parameter(support="unit")}

    def sample_prior(self, key: Key) -> Theta:
        return {"p": _beta(key, self.a, self.b)}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        p = theta["p"]
        return xlogy(self.a - 1, p) + xlog1py(self.b - 1, -p) - betaln(self.a, self.b)

    def innovations(self, key: Key, n: int) -> Innovations:
        return jax.random.uniform(key, (n,), dtype=float)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: (u < theta["p"]).astype(int)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        p = theta["p"]
        v = jax.random.uniform(key, records[self.column].shape, dtype=float)
        # v <= 1 - 2^-53, so that v p < p in floating point too
        return jnp.where(records[self.column] == 1, v * p, p + v * (1 - p))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        ones = jnp.sum(records[self.column])
        return {"p": _beta(key, self.a + ones, self.b + records[self.column].size - ones)}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return jnp.where(records[self.column] == 1, jnp.log(theta["p"]), jnp.log1p(-theta["p"]))


def _beta(key: Key, a: Array, b: Array) -> Array:
    draws = log_gamma(key, jnp.stack([a, b]))
    return jax.nn.sigmoid(draws[0] - draws[1])
