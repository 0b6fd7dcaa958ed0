"""A model of a table whose number of records is not public."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.typing import Innovations, Key, Records, Theta


class UnknownSize(Model):
    r"""Any model of the records, with a prior on how many there are: ``lower <= n <= upper``.

    ``prior`` holds the prior weights of ``n = lower, ..., upper`` (any scale); left out, all are equally likely. For a release
    with ``n=None``, one of whose measurements counts the records. The posterior has the model's parameters and ``n``.

    Unconstrained vectors hold the model's parameters alone.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [21.3, 6.2])], n=None, neighbours="add_remove_one")
    >>> model = nw.models.UnknownSize(nw.models.Bernoulli(), upper=60)
    >>> list(model.parameters)
    ['p', 'n']
    """

    model: Model
    log_weights: Float[Array, " sizes"]
    lower: int = eqx.field(static=True)
    upper: int = eqx.field(static=True)

    def __init__(self, model: Model, upper: int, *, lower: int = 1, prior: Any = None) -> None:
        if not isinstance(model, Model) or isinstance(model, UnknownSize):
            raise ValueError(f"model must be a noisewise model of the records; got {model!r}.")
        for name, value in (("lower", lower), ("upper", upper)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ValueError(f"{name} must be a whole number of records; got {value!r}.")
        if not 0 <= lower < upper:
            raise ValueError(f"The number of records needs 0 <= lower < upper; got lower={lower}, upper={upper}.")
        if "n" in model.parameters:
            raise ValueError("The model has a parameter n of its own; rename it, because n is the number of records.")
        try:
            weights = np.ones(upper - lower + 1) if prior is None else np.asarray(prior, dtype=float)
        except (TypeError, ValueError):
            weights = np.zeros(0)
        if weights.shape != (upper - lower + 1,) or not np.all(np.isfinite(weights)) or np.any(weights < 0):
            raise ValueError(
                f"prior must hold {upper - lower + 1} weights, none negative, for n = {lower} to {upper}; got {prior!r}."
            )
        if weights.sum() <= 0:
            raise ValueError("prior must give some number of records a positive weight; all are zero.")
        self.model, self.lower, self.upper = model, int(lower), int(upper)
        with np.errstate(divide="ignore"):
            self.log_weights = jnp.asarray(np.log(weights / weights.sum()))

    @property
    def columns(self) -> tuple[str, ...]:
        return self.model.columns

    @property
    def level_counts(self) -> dict[str, int]:
        return self.model.level_counts

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {**self.model.parameters, "n": Parameter()}

    @property
    def conjugate(self) -> bool:
        return self.model.conjugate

    @property
    def has_update(self) -> bool:
        return self.model.has_update

    @property
    def has_log_prior(self) -> bool:
        return self.model.has_log_prior

    @property
    def has_log_likelihood(self) -> bool:
        return self.model.has_log_likelihood

    @property
    def has_inverse(self) -> bool:
        return self.model.has_inverse

    def sample_prior(self, key: Key) -> Theta:
        theta_key, size_key = jax.random.split(key)
        n = self.lower + jax.random.categorical(size_key, self.log_weights)
        return {**self.model.sample_prior(theta_key), "n": n.astype(float)}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        at = jnp.round(theta["n"]).astype(int) - self.lower
        known = (at >= 0) & (at <= self.upper - self.lower)
        log_weight = jnp.where(known, self.log_weights[jnp.clip(at, 0, self.upper - self.lower)], -jnp.inf)
        return self.model.log_prior(theta) + log_weight

    def innovations(self, key: Key, n: int) -> Innovations:
        return self.model.innovations(key, n)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return self.model.transform(theta, u)

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return self.model.inverse(theta, records, key)

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        return {**self.model.update(key, theta, records), "n": theta["n"]}

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return self.model.log_likelihood(theta, records)

    @property
    def free_size(self) -> int:
        return self.model.free_size

    def unconstrain(self, theta: Theta) -> Float[Array, " free"]:
        return self.model.unconstrain(theta)

    def constrain(self, free: Float[Array, " free"]) -> Theta:
        return self.model.constrain(free)

    def log_prior_free(self, free: Float[Array, " free"]) -> Float[Array, ""]:
        return self.model.log_prior_free(free)
