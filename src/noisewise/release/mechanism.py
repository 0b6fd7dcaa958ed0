r"""What an engine needs to know of how a value was released.

A mechanism is *record additive* (Ju, Awan, Gong and Rao 2022, Assumption 2) when its density depends on the records
only through a sum: ``eta(s | x) = g(s, sum_i t_i(x_i, s))``. :meth:`Mechanism.statistics` gives the rows ``t_i`` and
:meth:`Mechanism.log_density` gives ``log g``. Noise added to a query is the common case: ``t_i`` is the query's row and
``g`` the product of the noise densities at ``s - total``.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.release.noise import Noise
from noisewise.release.queries import Query
from noisewise.typing import Key, Records


class Mechanism(eqx.Module):
    """A record-additive mechanism, known in public down to its last constant."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that the mechanism reads."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The length of one record's statistic."""

    @abstractmethod
    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        """The rows ``t_i(x_i, s)``, one for each record."""

    @abstractmethod
    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        """``log g(s, total)``; ``-inf`` where the released value is impossible."""

    @abstractmethod
    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        """A simulated release given the total, for predictions and tests (never for publishing)."""


class AdditiveNoise(Mechanism):
    """Independent noise added to the total of a query: ``s = sum_i t(x_i) + noise``."""

    query: Query
    noise: Noise

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return self.query.size

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return self.query.statistics(records)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        return jnp.sum(self.noise.log_prob(released - total))

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        return total + self.noise.sample(key, total.shape)
