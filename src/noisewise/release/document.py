"""The release: what was published, with the complete public description of how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.noise import Noise
from noisewise.release.queries import Neighbours, Query
from noisewise.typing import Key, Records


class Measurement(eqx.Module):
    """One published value and the mechanism that made it: a query with added noise, or any :class:`Mechanism`."""

    mechanism: Mechanism
    value: Array
    name: str | None = eqx.field(static=True)

    def __init__(
        self,
        query: Query | None = None,
        noise: Noise | None = None,
        value: Any = None,
        *,
        mechanism: Mechanism | None = None,
        name: str | None = None,
    ) -> None:
        if mechanism is None:
            if query is None or noise is None:
                raise ValueError("A Measurement needs a query and its noise, or a mechanism; got neither.")
            mechanism = AdditiveNoise(query, noise)
            value = query.flatten(value)
        self.mechanism = mechanism
        self.value = jnp.asarray(value, dtype=float)
        self.name = name

    @property
    def query(self) -> Query | None:
        """The query, where the mechanism is noise added to one."""
        return self.mechanism.query if isinstance(self.mechanism, AdditiveNoise) else None

    @property
    def noise(self) -> Noise | None:
        """The noise, where the mechanism is noise added to a query."""
        return self.mechanism.noise if isinstance(self.mechanism, AdditiveNoise) else None


class Release(eqx.Module):
    """Everything the analyst holds: the measurements, all of the same ``n`` records (``n=None``: unknown)."""

    measurements: tuple[Measurement, ...]
    n: int | None = eqx.field(static=True)
    neighbours: Neighbours = eqx.field(static=True)

    def __init__(
        self, measurements: Sequence[Measurement], n: int | None = None, *, neighbours: Neighbours = "replace_one"
    ) -> None:
        self.measurements = tuple(measurements)
        self.n = n
        self.neighbours = neighbours

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that any measurement reads, in order of appearance."""
        return tuple(dict.fromkeys(name for m in self.measurements for name in m.mechanism.columns))

    @property
    def size(self) -> int:
        """The length of the statistics of all measurements together."""
        return sum(m.mechanism.size for m in self.measurements)

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        """The rows of all measurements side by side."""
        rows = [m.mechanism.statistics(records, m.value) for m in self.measurements]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=-1)

    def log_density(self, total: Float[Array, " size"]) -> Float[Array, ""]:
        """``log g(s, total)`` summed over the measurements, whose noises are independent."""
        parts = self.split(total)
        return sum(
            (m.mechanism.log_density(m.value, part) for m, part in zip(self.measurements, parts, strict=True)),
            start=jnp.zeros(()),
        )

    def simulate(self, key: Key, total: Float[Array, " size"]) -> tuple[Array, ...]:
        """A simulated release given the totals."""
        keys = jax.random.split(key, len(self.measurements))
        return tuple(
            m.mechanism.simulate(k, part) for m, k, part in zip(self.measurements, keys, self.split(total), strict=True)
        )

    def split(self, total: Array) -> list[Array]:
        """The totals of each measurement, from all of them together (last axis)."""
        ends = np.cumsum([m.mechanism.size for m in self.measurements])
        return [total[..., end - m.mechanism.size : end] for end, m in zip(ends, self.measurements, strict=True)]
