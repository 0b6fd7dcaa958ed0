r"""Noise on every record: microdata, local privacy.

The released value has a row for each record, in an order that says nothing, and
``eta(s | x) = prod_i prod_j p(s_ij | x_ij)`` factorises over the records: n independent problems that share theta. A record's
row ``t_i`` is its log likelihood, and ``log g`` is their sum. Public columns are known exactly; missing values say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.noise import Noise
from noisewise.release.privacy import Privacy, compose
from noisewise.release.query import Neighbours
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.record_columns import RecordColumns
from noisewise.typing import Key, Records

Law: TypeAlias = Noise | RandomisedResponse


class RecordNoise(Mechanism):
    """Independent noise on columns of every record.

    ``noise`` is one law for all of them, whose scale is one number, one a column, or one a cell (for a single column, one a
    record); or a law for each column by name, ``{"y": DiscreteLaplace(3.0), "x1": Laplace(scales)}``, whose scale is one number
    or one a record.
    """

    query: RecordColumns
    noise: Law | tuple[Law, ...]

    def __init__(self, query: RecordColumns, noise: Law | tuple[Law, ...] | Mapping[str, Law]) -> None:
        if not isinstance(query, RecordColumns):
            raise ValueError(f"The query of noise on records must be nw.queries.Records; got {query!r}.")
        if isinstance(noise, Mapping):
            if set(noise) != set(query.columns):
                raise ValueError(
                    f"The noise must have a law for each of the columns {query.columns}; got {tuple(noise)}. "
                    "Columns without noise are named in public."
                )
            noise = tuple(noise[name] for name in query.columns)
        laws = noise if isinstance(noise, tuple) else (noise,)
        for law in laws:
            if not isinstance(law, Noise | RandomisedResponse):
                raise ValueError(f"The noise on records must be one of nw.noise; got {law!r}.")
        self.query = query
        self.noise = _by_record(noise) if isinstance(noise, Noise) and len(query.columns) == 1 else noise

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.all_columns

    @property
    def size(self) -> int:
        return 1

    @property
    def per_record(self) -> bool:
        return True

    @property
    def laws(self) -> dict[str, Law]:
        """The law of each noisy column, its scale one number or one a record."""
        if isinstance(self.noise, tuple):
            return dict(zip(self.query.columns, self.noise, strict=True))
        return {name: _of_column(self.noise, j) for j, name in enumerate(self.query.columns)}

    def check(self, value: Any) -> Array:
        if isinstance(value, jax.core.Tracer):
            return value
        flat = self.query.flatten(value)
        there = ~np.isnan(flat) | (not self.query.missing)
        if not np.all(there):
            super().check(np.where(there, flat, 0.0))
            table = jnp.asarray(flat)
        else:
            try:
                table = super().check(flat)
            except ValueError as problem:
                if np.any(np.isnan(flat)):
                    raise ValueError(
                        f"{problem} If values are missing, say so: nw.queries.Records(..., missing=True)."
                    ) from None
                raise
        shape = (table.shape[0], len(self.query.columns))
        for j, (name, law) in enumerate(self.laws.items()):
            if isinstance(law, RandomisedResponse):
                codes = np.asarray(table)[:, j][there[:, j]]
                bad = (codes != np.round(codes)) | (codes < 0) | (codes >= law.levels)
                if np.any(bad):
                    raise ValueError(f"Randomised response reports codes 0 to {law.levels - 1}; got {codes[bad][0]:g}.")
            elif isinstance(self.noise, tuple) and np.shape(law.scale) not in ((), shape[:1]):
                raise ValueError(
                    f"The noise scale of {name!r} must be one number or one for each of the {shape[0]} records; "
                    f"got shape {np.shape(law.scale)}."
                )
        if isinstance(self.noise, Noise) and not _fits(np.shape(self.noise.scale), shape):
            raise ValueError(
                f"The noise scale must be one number, one a column or one a cell of the table {shape}; "
                f"got shape {np.shape(self.noise.scale)}. Scales by record are given by column, "
                f'{{"{self.query.columns[0]}": law}}.'
            )
        return table

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """The loss of one record's codes together; none for numbers, whose columns have no bounds here.

        There is none either beside public columns or missing values, which are published as they are, nor under
        ``add_remove_one``: the number of reports is the number of records.
        """
        laws = list(self.laws.values())
        if self.query.public or self.query.missing or neighbours != "replace_one":
            return None
        parts = [law.privacy() for law in laws if isinstance(law, RandomisedResponse)]
        return compose(parts) if parts and len(parts) == len(laws) else None

    def statistics(self, records: Records, released: Array) -> Float[Array, "n 1"]:
        total = jnp.zeros(released.shape[:1])
        for j, (name, law) in enumerate(self.laws.items()):
            there = ~jnp.isnan(released[:, j])
            value = jnp.where(there, released[:, j], 0.0)
            total = total + jnp.where(there, log_likelihood(law, value, records[name].astype(float)), 0.0)
        for j, name in enumerate(self.query.public, start=len(self.query.columns)):
            fits = jnp.isnan(released[:, j]) | (records[name] == released[:, j])
            total = jnp.where(fits, total, -jnp.inf)
        return total[:, None]

    def log_density(self, released: Array, total: Float[Array, " 1"]) -> Float[Array, ""]:
        return total[0]

    def simulate(self, key: Key, total: Float[Array, " 1"]) -> Array:
        raise ValueError("Noise on every record is simulated from records, not from a total; use respond.")

    def respond(self, key: Key, records: Records, released: Array) -> Array:
        columns = []
        for j, (name, law) in enumerate(self.laws.items()):
            exact, now = records[name].astype(float), jax.random.fold_in(key, j)
            if isinstance(law, RandomisedResponse):
                columns.append(law.respond(now, exact))
            else:
                columns.append(exact + law.sample(now, exact.shape))
        columns += [records[name].astype(float) for name in self.query.public]
        return jnp.where(jnp.isnan(released), jnp.nan, jnp.stack(columns, axis=-1))


def log_likelihood(law: Law, released: Array, exact: Array) -> Array:
    """``log p(released | exact)``, elementwise."""
    if isinstance(law, RandomisedResponse):
        return law.log_likelihood(released, exact)
    return law.log_prob(released - exact)


def _by_record(law: Noise) -> Noise:
    """The law of a table of one column: a list of scales is one a record."""
    if np.ndim(law.scale) != 1 or np.size(law.scale) < 2:
        return law
    by_record: Noise = eqx.tree_at(lambda noise: noise.scale, law, law.scale[:, None])
    return by_record


def _of_column(law: Law, j: int) -> Law:
    """The law of column j of a table that has one law; its scale may be one number, one a column or one a cell."""
    if isinstance(law, RandomisedResponse) or jnp.ndim(law.scale) == 0:
        return law
    scale = law.scale[..., j if law.scale.shape[-1] > 1 else 0]
    if scale.ndim and scale.shape[0] == 1:
        scale = scale[0]
    return eqx.tree_at(lambda noise: noise.scale, law, scale)


def _fits(scale: tuple[int, ...], table: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(scale, table) == table
    except ValueError:
        return False
