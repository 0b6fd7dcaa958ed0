"""The query that asks for every record: microdata, where each record carries its own noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np


class RecordColumns(eqx.Module):
    """The query ``nw.queries.Records(columns=("y", "x1"))``: these columns of every record, each with its own noise.

    >>> import noisewise as nw
    >>> query = nw.queries.Records(columns=("x",))
    >>> nw.Measurement(query, nw.noise.RandomisedResponse(0.2), [[1.0], [0.0], [1.0]]).value.shape
    (3, 1)
    """

    columns: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, columns: Sequence[str]) -> None:
        if isinstance(columns, str) or not columns or len(set(columns)) < len(tuple(columns)):
            raise ValueError(f"columns must be distinct names such as ('y', 'x1'); got {columns!r}.")
        self.columns = tuple(columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The column names."""
        return self.columns

    def flatten(self, value: Any) -> np.ndarray:
        """A released table, given as a mapping of columns or as an array (n, columns), as an array (n, columns)."""
        if isinstance(value, Mapping):
            missing = [name for name in self.columns if name not in value]
            if missing:
                raise ValueError(f"The released records lack the columns {missing}; got {list(value)}.")
            parts = [np.asarray(value[name], dtype=float) for name in self.columns]
            if any(part.ndim != 1 or part.shape != parts[0].shape for part in parts):
                raise ValueError(
                    f"The released columns must be rows of numbers of one length; got the shapes {[p.shape for p in parts]}."
                )
            return np.stack(parts, axis=-1)
        table = np.asarray(value, dtype=float)
        if table.ndim != 2 or table.shape[1] != len(self.columns):
            raise ValueError(
                f"Released records are a table with a row a record and the columns {self.columns}; got shape {table.shape}."
            )
        return table

    def unflatten(self, table: np.ndarray) -> dict[str, np.ndarray]:
        """The released table by column."""
        return dict(zip(self.columns, np.asarray(table).T, strict=True))
