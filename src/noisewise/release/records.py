r"""Noise on every record: microdata, local privacy.

The released value has a row for each record, in an order that says nothing, and
``eta(s | x) = prod_i prod_j p(s_ij | x_ij)`` factorises over the records: n independent problems that share theta. A record's
row ``t_i`` is its log likelihood, and ``log g`` is their sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.noise import Noise
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.record_columns import RecordColumns
from noisewise.typing import Key, Records


class RecordNoise(Mechanism):
    """Independent noise on columns of every record; the scale is one number, one a column, or one a cell."""

    query: RecordColumns
    noise: Noise | RandomisedResponse

    def __check_init__(self) -> None:
        if not isinstance(self.query, RecordColumns):
            raise ValueError(f"The query of noise on records must be nw.queries.Records; got {self.query!r}.")
        if not isinstance(self.noise, Noise | RandomisedResponse):
            raise ValueError(f"The noise on records must be one of nw.noise; got {self.noise!r}.")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return 1

    @property
    def per_record(self) -> bool:
        return True

    def check(self, value: Any) -> Array:
        if isinstance(value, jax.core.Tracer):
            return value
        table = super().check(self.query.flatten(value))
        if isinstance(self.noise, RandomisedResponse):
            codes = np.asarray(table)
            bad = (codes != np.round(codes)) | (codes < 0) | (codes >= self.noise.levels)
            if np.any(bad):
                raise ValueError(
                    f"Randomised response reports codes 0 to {self.noise.levels - 1}; got {codes[bad][0]:g}."
                )
        elif not _fits(np.shape(self.noise.scale), table.shape):
            raise ValueError(
                f"The noise scale must be one number, one a column or one a cell of the table {table.shape}; "
                f"got shape {np.shape(self.noise.scale)}."
            )
        return table

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """The loss of one record's codes together; none for numbers, whose columns have no bounds here.

        Under ``add_remove_one`` there is none either: the number of reports is the number of records.
        """
        if isinstance(self.noise, RandomisedResponse) and neighbours == "replace_one":
            return Privacy("pure", len(self.columns) * self.noise.privacy().loss)
        return None

    def statistics(self, records: Records, released: Array) -> Float[Array, "n 1"]:
        exact = jnp.stack([records[name].astype(float) for name in self.columns], axis=-1)
        law = self.noise
        each = (
            law.log_likelihood(released, exact)
            if isinstance(law, RandomisedResponse)
            else law.log_prob(released - exact)
        )
        return jnp.sum(each, axis=-1, keepdims=True)

    def log_density(self, released: Array, total: Float[Array, " 1"]) -> Float[Array, ""]:
        return total[0]

    def simulate(self, key: Key, total: Float[Array, " 1"]) -> Array:
        raise ValueError("Noise on every record is simulated from records, not from a total; use respond.")

    def respond(self, key: Key, records: Records, released: Array) -> Array:
        exact = jnp.stack([records[name].astype(float) for name in self.columns], axis=-1)
        if isinstance(self.noise, RandomisedResponse):
            return self.noise.respond(key, exact)
        return exact + self.noise.sample(key, exact.shape)


def _fits(scale: tuple[int, ...], table: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(scale, table) == table
    except ValueError:
        return False
