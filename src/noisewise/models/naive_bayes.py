"""Classes and features that are independent given the class."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import levels
from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.gamma import dirichlet, log_dirichlet
from noisewise.models.hyperparameters import column_name, level_count, positive
from noisewise.typing import Innovations, Key, Records, Theta


class NaiveBayes(Model):
    r"""A class ``y`` and features ``x1, x2, ...`` that are independent given the class (Ju et al. 2022, section 4).

    ``y ~ Categorical(class_probs)`` and ``xk | y = i ~ Categorical(feature_probs_k[i])``, codes counted from 0;
    ``class_probs`` and every row of every ``feature_probs_k`` have a Dirichlet prior with all weights equal to ``prior``.

    >>> import noisewise as nw
    >>> list(nw.models.NaiveBayes(classes=5, features=[3, 3]).parameters)
    ['class_probs', 'feature_probs_1', 'feature_probs_2']
    """

    prior: Float[Array, ""]
    classes: int = eqx.field(static=True)
    features: tuple[int, ...] = eqx.field(static=True)
    target: str = eqx.field(static=True)

    def __init__(self, classes: int, features: Sequence[int], *, prior: ArrayLike = 2.0, target: str = "y") -> None:
        self.classes = level_count(classes, "classes")
        if not isinstance(features, Sequence | np.ndarray) or isinstance(features, str):
            raise ValueError(
                f"features must give the number of levels of each feature, as in [3, 3]; got {features!r}."
            )
        self.features = tuple(level_count(size, f"features[{k}]") for k, size in enumerate(features))
        if not self.features:
            raise ValueError("features must give the number of levels of one or more features; got none.")
        self.prior = positive(prior, "prior")
        self.target = column_name(target, "target")
        if self.target in self._features:
            raise ValueError(f"target must differ from the features' columns {self._features}; got {target!r}.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.target, *self._features)

    @property
    def _features(self) -> tuple[str, ...]:
        return tuple(f"x{k}" for k in range(1, len(self.features) + 1))

    @property
    def level_counts(self) -> dict[str, int]:
        return dict(zip(self.columns, (self.classes, *self.features), strict=True))

    @property
    def parameters(self) -> dict[str, Parameter]:
        found = {"class_probs": Parameter((self.classes,), "simplex", ("class",))}
        for k, size in enumerate(self.features, start=1):
            found[f"feature_probs_{k}"] = Parameter((self.classes, size), "simplex", ("class", f"level_{k}"))
        return found

    def sample_prior(self, key: Key) -> Theta:
        return self._draw(key, {name: jnp.zeros(parameter.shape) for name, parameter in self.parameters.items()})

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        parts = [jnp.sum(log_dirichlet(value, jnp.full(value.shape, self.prior))) for value in theta.values()]
        return jnp.sum(jnp.stack(parts))

    def innovations(self, key: Key, n: int) -> Innovations:
        tosses = levels.innovations(key, n, [self.classes, *self.features])
        return dict(zip(self.columns, tosses, strict=True))

    def transform(self, theta: Theta, u: Innovations) -> Records:
        y = levels.find(levels.masses(theta["class_probs"]), u[self.target])
        records = {self.target: y}
        for k, name in enumerate(self._features, start=1):
            records[name] = levels.find(levels.masses(theta[f"feature_probs_{k}"]), u[name], y)
        return records

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        y = records[self.target]
        keys = jax.random.split(key, len(self.features) + 1)
        u = {self.target: levels.retrace(levels.masses(theta["class_probs"]), y, keys[0])}
        for k, name in enumerate(self._features, start=1):
            u[name] = levels.retrace(levels.masses(theta[f"feature_probs_{k}"]), records[name], keys[k], y)
        return u

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        y = records[self.target]
        tables = {"class_probs": levels.counts(y, self.classes)}
        for k, (name, size) in enumerate(zip(self._features, self.features, strict=True), start=1):
            cells = levels.counts(y * size + records[name], self.classes * size)
            tables[f"feature_probs_{k}"] = cells.reshape(self.classes, size)
        return self._draw(key, tables)

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        y = records[self.target]
        total = jnp.log(theta["class_probs"])[y]
        for k, name in enumerate(self._features, start=1):
            total = total + jnp.log(theta[f"feature_probs_{k}"])[y, records[name]]
        return total

    def _draw(self, key: Key, tables: Theta) -> Theta:
        keys = jax.random.split(key, len(tables))
        return {
            name: dirichlet(key, self.prior + table) for key, (name, table) in zip(keys, tables.items(), strict=True)
        }
