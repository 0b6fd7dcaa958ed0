"""The confidential records as a table that is only ever summed over, and from which batches are drawn.

Samplers ask a table for the exact sum of integers, one (or a vector of them) for each record: sums of integers below
2^53 are exact in float64 in any order, so the answer is the same for any block size, any number of devices, in memory or
streamed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from noisewise.private.accounting import checked_whole
from noisewise.typing import Key, Records

BLOCK = 1024
_HALVINGS = 7
Summand = Callable[[Records], Any]
"""A function of a block of records: a pytree of arrays with the records along their first axis."""


class Table(eqx.Module):
    """Records in memory, as columns with the records along the first axis, visited in blocks that fit the processor's cache."""

    columns: Records
    n: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def total(self, function: Summand) -> Any:
        """The sum over all records of ``function(records)``."""
        rows = _length(self.columns)
        if self.block >= rows:
            return _sum_rows(function(self.columns), jnp.arange(rows) < self.n if rows > self.n else None)

        def one(index: Array) -> Any:
            start = index * self.block
            part = {name: jax.lax.dynamic_slice_in_dim(v, start, self.block) for name, v in self.columns.items()}
            return _sum_block(function(part), start + jnp.arange(self.block) < self.n)

        return _sum_blocks(one, rows // self.block)

    def __len__(self) -> int:
        return self.n

    def take(self, rows: Int[Array, " b"]) -> Records:
        """The records of these row numbers."""
        return {name: column[rows] for name, column in self.columns.items()}


class _Source:
    """Arrays on disk (or anywhere NumPy can slice), compared by identity because they are never copied."""

    def __init__(self, columns: Mapping[str, np.ndarray], block: int) -> None:
        self.columns, self.block = dict(columns), block
        self.n = _length(self.columns)

    def read(self, index: Any) -> dict[str, np.ndarray]:
        start = int(index) * self.block
        return {name: self._padded(column[start : start + self.block]) for name, column in self.columns.items()}

    def rows(self, rows: Any) -> dict[str, np.ndarray]:
        order = np.asarray(rows)
        return {name: np.asarray(column[order], dtype=float) for name, column in self.columns.items()}

    def _padded(self, part: np.ndarray) -> np.ndarray:
        short = self.block - len(part)
        return (
            np.pad(np.asarray(part, dtype=float), [(0, short)] + [(0, 0)] * (part.ndim - 1))
            if short
            else np.asarray(part, dtype=float)
        )


class Stream(eqx.Module):
    """Records larger than memory: columns are NumPy memory maps, read in blocks inside the compiled run.

    >>> table = Stream({"x": np.arange(10.0)[:, None]}, block=4)
    >>> float(table.total(lambda records: records["x"][:, 0]))
    45.0
    """

    source: _Source = eqx.field(static=True)

    def __init__(self, columns: Mapping[str, np.ndarray], *, block: int = 65_536) -> None:
        if not hasattr(columns, "keys"):
            raise ValueError(f"a Stream takes columns by name, a dict of arrays; got {type(columns).__name__}.")
        named = {name: column if hasattr(column, "shape") else np.asarray(column) for name, column in columns.items()}
        for name, column in named.items():
            as_column(
                column[:0] if len(column.shape) else column, name
            )  # the kind and shape; the values are read later
        self.source = _Source(_checked(named), checked_whole(block, "block"))

    @property
    def n(self) -> int:
        """The number of records."""
        return self.source.n

    def __len__(self) -> int:
        return self.n

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """The records, a block at a time."""
        for start in range(0, self.n, self.source.block):
            yield {
                name: as_numbers(column[start : start + self.source.block], f"the column {name!r}")
                for name, column in self.source.columns.items()
            }

    def total(self, function: Summand) -> Any:
        """The sum over all records of ``function(records)``, one block in memory at a time."""
        source = self.source
        shapes = _shapes(source.columns, source.block)

        def one(index: Array) -> Any:
            part = jax.pure_callback(source.read, shapes, index, vmap_method="sequential")
            return _sum_block(function(part), index * source.block + jnp.arange(source.block) < source.n)

        return _sum_blocks(one, math.ceil(source.n / source.block))

    def take(self, rows: Int[Array, " b"]) -> Records:
        """The records of these row numbers, read from disk."""
        shapes = _shapes(self.source.columns, rows.shape[0])
        return jax.pure_callback(self.source.rows, shapes, rows, vmap_method="sequential")


def _shapes(columns: Mapping[str, np.ndarray], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((rows, *column.shape[1:]), jnp.float64) for name, column in columns.items()}


def _sum_rows(values: Any, keep: Bool[Array, " n"] | None) -> Any:
    def total(value: Array) -> Array:
        if keep is None:
            return jnp.sum(value, axis=0)
        mask = keep.reshape(keep.shape + (1,) * (value.ndim - 1))
        return jnp.sum(jnp.where(mask, value, 0), axis=0)

    return jax.tree.map(total, values)


def _sum_block(values: Any, keep: Bool[Array, " n"]) -> Any:
    """As :func:`_sum_rows`, halves added to halves first: a compiler must keep the order of additions, and one after the other they
    cannot be made several at a time. Of whole numbers the sum is the same, several times sooner.
    """

    def halved(value: Array) -> Array:
        value = jnp.where(keep.reshape(keep.shape + (1,) * (value.ndim - 1)), value, 0)
        for _ in range(_HALVINGS):
            if value.shape[0] % 2:
                break
            half = value.shape[0] // 2
            value = value[:half] + value[half:]
        return jnp.sum(value, axis=0)

    return jax.tree.map(halved, values)


def _sum_blocks(one: Callable[[Array], Any], blocks: int) -> Any:
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, jnp.asarray(0)))
    return jax.lax.fori_loop(0, blocks, lambda i, total: jax.tree.map(jnp.add, total, one(jnp.asarray(i))), start)


def _length(columns: Mapping[str, Any]) -> int:
    return int(next(iter(columns.values())).shape[0])


def _checked(columns: Mapping[str, Any]) -> dict[str, Any]:
    if not columns:
        raise ValueError("the records have no columns; give a dict of arrays with the records along the first axis.")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the columns of the records have different lengths: {lengths}.")
    return dict(columns)


def make_table(
    records: Mapping[str, Any] | Table | Stream, *, block: int = BLOCK, devices: Sequence[Any] | None = None
) -> Table | Stream:
    """A table of these records; with ``devices``, the records are spread over them and each sums its own."""
    if isinstance(records, Table | Stream):
        if devices is not None:
            raise ValueError(
                f"a {type(records).__name__} stays where it is: leave out devices, or give the columns as arrays."
            )
        return records
    columns = {name: checked_finite(as_column(column, name), name) for name, column in _checked(records).items()}
    n = _length(columns)
    if devices is not None:
        if not len(devices):
            raise ValueError("devices must name at least one JAX device, such as jax.devices(); got none.")
        mesh = jax.sharding.Mesh(np.asarray(devices), ("records",))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("records"))
        spread = {name: jax.device_put(_pad(column, len(devices)), place) for name, column in columns.items()}
        return Table(spread, n, _length(spread))
    if n > 2 * block:
        return Table({name: jnp.asarray(_pad(column, block)) for name, column in columns.items()}, n, block)
    return Table({name: jnp.asarray(column) for name, column in columns.items()}, n, n)


def as_numbers(values: Any, what: str) -> np.ndarray:
    """Real numbers of any type as float64, with NaN where a masked array hides one."""
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
        values = np.ma.filled(values.astype(float), np.nan)
    numbers = np.asarray(values)
    if numbers.dtype.kind == "O":
        with contextlib.suppress(TypeError, ValueError):
            numbers = numbers.astype(float)
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold real numbers; got the type {numbers.dtype}. Recode it first.")
    return numbers.astype(float)


def as_column(values: Any, name: str) -> np.ndarray:
    """A column of real numbers, one or an array of them for each record."""
    column = as_numbers(values, f"the column {name!r}")
    if column.ndim == 0:
        raise ValueError(
            f"the column {name!r} must have the records along its first axis; got the single number {values!r}."
        )
    return column


def checked_finite(column: np.ndarray, name: str) -> np.ndarray:
    """The column, if every number in it is finite."""
    if not np.all(np.isfinite(column)):
        raise ValueError(f"the column {name!r} holds NaN or infinite values. Decide what they mean before sampling.")
    return column


def _pad(column: np.ndarray, multiple: int) -> np.ndarray:
    return np.pad(column, [(0, -len(column) % multiple)] + [(0, 0)] * (column.ndim - 1))


def draw_batch(key: Key, n: int, batch: int) -> Int[Array, " b"]:
    """Row numbers of a uniform batch without replacement, in O(batch log batch): no permutation of all records.

    Row numbers are drawn with replacement, some more than needed, and the first ``batch`` distinct ones are kept; a draw
    with too few distinct ones is made again. Both rules treat all rows alike, so every batch has the same probability.
    Batches of more than a quarter of the records are the head of a permutation.
    """
    if 4 * batch > n:
        return jax.random.permutation(key, n)[:batch]
    drawn = batch + math.ceil(batch * batch / n) + 8 * math.ceil(math.sqrt(1 + batch * batch / n)) + 8
    shift = drawn.bit_length()

    def first_distinct(rows: Array) -> tuple[Array, Array]:
        ranked = jnp.sort((rows << shift) + jnp.arange(drawn))  # row and place in one number: one sort of whole numbers
        place = ranked & ((1 << shift) - 1)
        ranked = ranked >> shift
        new = jnp.concatenate([jnp.ones(1, bool), ranked[1:] != ranked[:-1]])
        new = jnp.zeros(drawn, bool).at[place].set(new, unique_indices=True)
        rank = jnp.cumsum(new) - 1
        kept = jnp.zeros(batch, rows.dtype).at[jnp.where(new, rank, batch)].set(rows, mode="drop")
        return kept, rank[-1] >= batch - 1

    def again(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, _, _ = carry
        key, one = jax.random.split(key)
        return key, *first_distinct(jax.random.randint(one, (drawn,), 0, n))

    start = (key, jnp.zeros(batch, int), jnp.asarray(False))
    return jax.lax.while_loop(lambda carry: ~carry[2], again, start)[1]
