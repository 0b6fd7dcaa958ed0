"""Records at one of several levels, with a Dirichlet prior."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import levels
from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.gamma import dirichlet, log_dirichlet
from noisewise.models.hyperparameters import column_name, positive_vector
from noisewise.typing import Innovations, Key, Records, Theta


class Categorical(Model):
    """Records at levels 0, ..., K-1 with probabilities ``p ~ Dirichlet(alpha)``.

    Innovations are odds of uniform numbers, a few for each record: see :mod:`noisewise.models.levels`.

    >>> import noisewise as nw
    >>> nw.models.Categorical([2, 1, 1], column="answer").parameters["p"].shape
    (3,)
    """

    alpha: Float[Array, " levels"]
    column: str = eqx.field(static=True)

    def __init__(self, alpha: ArrayLike, column: str = "x") -> None:
        self.alpha = positive_vector(alpha, "alpha")
        self.column = column_name(column, "column")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def level_counts(self) -> dict[str, int]:
        return {self.column: self.alpha.size}

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"p": Parameter(self.alpha.shape, "simplex", ("level",))}

    def sample_prior(self, key: Key) -> Theta:
        return {"p": dirichlet(key, self.alpha)}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return log_dirichlet(theta["p"], self.alpha)

    def innovations(self, key: Key, n: int) -> Innovations:
        return levels.innovations(key, n, [self.alpha.size])[0]

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {self.column: levels.find(levels.masses(theta["p"]), u)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return levels.retrace(levels.masses(theta["p"]), records[self.column], key)

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        return {"p": dirichlet(key, self.alpha + levels.counts(records[self.column], self.alpha.size))}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return jnp.log(theta["p"])[records[self.column]]
