r"""What an engine needs to know of how a value was released.

A mechanism is *record additive* (Ju, Awan, Gong and Rao 2022, Assumption 2) when its density depends on the records
only through a sum: ``eta(s | x) = g(s, sum_i t_i(x_i, s))``. :meth:`Mechanism.statistics` gives the rows ``t_i`` and
:meth:`Mechanism.log_density` gives ``log g``. Noise added to a query is the common case: ``t_i`` is the query's row and
``g`` the product of the noise densities at ``s - total``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.noise import Noise
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours, Query, as_numbers
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

    def respond(self, key: Key, records: Records, released: Array) -> Array:
        """A simulated release of these records; ``released`` only says where a mechanism's rows would be evaluated."""
        return self.simulate(key, jnp.sum(self.statistics(records, released), axis=0))

    @property
    def simulates(self) -> bool:
        """Whether :meth:`respond` can simulate a release."""
        return True

    @property
    def simulates_from_total(self) -> bool:
        """Whether :meth:`simulate` can, without the records behind the total."""
        return True

    @property
    def needs_n(self) -> bool:
        """Whether ``log g`` lacks a factor that depends on the number of records, which must then be known."""
        return False

    @property
    def unnormalised(self) -> bool:
        """Whether ``log g`` lacks a normaliser that depends on the records, so that engines must take exchange steps."""
        return False

    @property
    def per_record(self) -> bool:
        """Whether the released value has a part for each record, so that rows need all records, in their order."""
        return False

    @property
    def noise_variance(self) -> Array | None:
        """The variance of each released number around its total, roughly; for starting values, never for results."""
        return None

    def check(self, value: Any) -> Array:
        """A released value as an array of the mechanism's shape, or a sentence on what is wrong with it."""
        if isinstance(value, jax.core.Tracer):
            return value
        array = as_numbers(value)
        if not np.all(np.isfinite(array)):
            raise ValueError(f"The released value must be finite; got {_offenders(array, ~np.isfinite(array))}.")
        return jnp.asarray(array)

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """The guarantee that one release by this mechanism gives, where it can be computed."""
        return None


class AdditiveNoise(Mechanism):
    """Independent noise added to the total of a query: ``s = sum_i t(x_i) + noise``."""

    query: Query
    noise: Noise

    def __check_init__(self) -> None:
        if not isinstance(self.query, Query):
            raise ValueError(f"The query of a measurement must be one of nw.queries; got {self.query!r}.")
        if not isinstance(self.noise, Noise):
            raise ValueError(f"The noise of a measurement must be one of nw.noise; got {self.noise!r}.")
        shape = np.shape(self.noise.scale)
        if shape not in ((), (1,), (self.query.size,)):
            raise ValueError(
                f"The noise scale must be one number or one for each of the {self.query.size} numbers that the query "
                f"releases; got shape {shape}."
            )
        if self.noise.discrete and not self.query.admits_integers:
            raise ValueError(
                f"{type(self.noise).__name__} is noise on the integers, but this query does not release integers; "
                "give the continuous law that was used, or integer bounds without rescale."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return self.query.size

    def check(self, value: Any) -> Array:
        array = super().check(self.query.flatten(value))
        if self.noise.discrete and not isinstance(array, jax.core.Tracer):
            fractional = np.asarray(array) != np.round(np.asarray(array))
            if np.any(fractional):
                raise ValueError(
                    f"{type(self.noise).__name__} releases integers, but the value has {_offenders(array, fractional)}; "
                    "give the values as they were released, before any rounding or scaling."
                )
        return array

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        return self.privacy_at(neighbours, np.zeros(self.size))

    def privacy_at(self, neighbours: Neighbours, slack: np.ndarray) -> Privacy | None:
        """The guarantee when each number of the total may change by ``slack`` more than the query says.

        ``None`` for a query that does not know its sensitivity.
        """
        with np.errstate(over="ignore"):
            weights = 1 / np.broadcast_to(np.asarray(self.noise.scale), (self.size,))
            try:
                bound = self.query.sensitivity(self.noise.norm, neighbours, weights=weights)
            except ValueError:
                return None
            if self.noise.norm == "l1":
                return Privacy("pure", bound + np.sum(weights * slack))
            return Privacy("zcdp", np.square(bound + np.linalg.norm(weights * slack)) / 2)

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return self.query.statistics(records)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        return jnp.sum(self.noise.log_prob(released - total))

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        return total + self.noise.sample(key, total.shape)

    @property
    def noise_variance(self) -> Array:
        return jnp.broadcast_to(self.noise.variance, (self.size,))


def _offenders(array: Array | np.ndarray, bad: np.ndarray) -> str:
    """The first few bad numbers with their positions."""
    where = np.argwhere(np.atleast_1d(bad))[:3]
    values = np.atleast_1d(np.asarray(array))
    return ", ".join(f"{values[tuple(at)]:g} at position {', '.join(map(str, at.tolist()))}" for at in where)
