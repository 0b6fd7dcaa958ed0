r"""Maps between a parameter's natural space and unconstrained vectors, with their Jacobians.

| support | free vector z | log Jacobian of z -> value |
|---|---|---|
| real | the value | 0 |
| positive | log value | sum z |
| unit | logit value | sum log v (1 - v) |
| simplex (last axis, K) | log v_k / v_K, k < K | sum over all k of log v_k |
| covariance (d, d) | lower Cholesky factor, log on its diagonal, row by row | d log 2 + sum_i (d - i + 2) log L_ii, i =
1..d |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.models import triangular

Support = Literal["real", "positive", "unit", "simplex", "covariance"]


@dataclass(frozen=True)
class Parameter:
    """The shape, support and dimension names of one parameter of a model."""

    shape: tuple[int, ...] = ()
    support: Support = "real"
    dims: tuple[str, ...] = ()
    coords: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def free_size(self) -> int:
        """The length of the unconstrained vector."""
        if self.support == "simplex":
            return math.prod(self.shape[:-1]) * (self.shape[-1] - 1)
        if self.support == "covariance":
            return self.shape[-1] * (self.shape[-1] + 1) // 2
        return math.prod(self.shape)

    def unconstrain(self, value: Array) -> Float[Array, " free"]:
        """The unconstrained vector of a value."""
        if self.support == "positive":
            return jnp.log(value).reshape(-1)
        if self.support == "unit":
            return (jnp.log(value) - jnp.log1p(-value)).reshape(-1)
        if self.support == "simplex":
            return (jnp.log(value[..., :-1]) - jnp.log(value[..., -1:])).reshape(-1)
        if self.support == "covariance":
            factor = triangular.factorised(value)
            rows, cols = np.tril_indices(self.shape[-1])
            return jnp.where(rows == cols, jnp.log(jnp.abs(factor[rows, cols])), factor[rows, cols])
        return value.reshape(-1)

    def constrain(self, free: Float[Array, " free"]) -> Array:
        """The value of an unconstrained vector."""
        if self.support == "positive":
            return jnp.exp(free).reshape(self.shape)
        if self.support == "unit":
            return jax.nn.sigmoid(free).reshape(self.shape)
        if self.support == "simplex":
            return jax.nn.softmax(self._logits(free), axis=-1)
        if self.support == "covariance":
            factor = self._factor(free)
            return factor @ factor.T
        return free.reshape(self.shape)

    def log_jacobian(self, free: Float[Array, " free"]) -> Float[Array, ""]:
        """``log |d value / d free|``."""
        if self.support == "positive":
            return jnp.sum(free)
        if self.support == "unit":
            return jnp.sum(jax.nn.log_sigmoid(free) + jax.nn.log_sigmoid(-free))
        if self.support == "simplex":
            return jnp.sum(jax.nn.log_softmax(self._logits(free), axis=-1))
        if self.support == "covariance":
            d = self.shape[-1]
            return d * jnp.log(2.0) + jnp.sum((d - np.arange(d) + 1) * jnp.log(jnp.diag(self._factor(free))))
        return jnp.zeros(())

    def _logits(self, free: Array) -> Array:
        logits = free.reshape((*self.shape[:-1], self.shape[-1] - 1))
        return jnp.concatenate([logits, jnp.zeros((*self.shape[:-1], 1))], axis=-1)

    def _factor(self, free: Array) -> Array:
        d = self.shape[-1]
        rows, cols = np.tril_indices(d)
        entries = jnp.where(rows == cols, jnp.exp(free), free)
        return jnp.zeros((d, d)).at[rows, cols].set(entries)
