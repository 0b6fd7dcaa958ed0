"""The query that asks for every record: microdata, where each record carries its own noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from noisewise.release.tables import column_names, read_columns


class RecordColumns(eqx.Module):
    """The query ``nw.queries.Records(columns=("y", "x1"))``: these columns of every record, each number with its own noise.

    ``public`` names columns that are released beside them as they are, without noise. ``missing=True`` says that values may be
    missing (NaN), and that which ones are is public.

    >>> import noisewise as nw
    >>> query = nw.queries.Records(columns=("x",), public=("region",))
    >>> nw.Measurement(query, nw.noise.RandomisedResponse(0.2), {"x": [1, 0, 1], "region": [3, 3, 4]}).value.shape
    (3, 2)
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    public: tuple[str, ...] = eqx.field(static=True)
    missing: bool = eqx.field(static=True)

    def __init__(self, columns: Sequence[str], public: Sequence[str] = (), *, missing: bool = False) -> None:
        if isinstance(columns, str) or isinstance(public, str):
            raise ValueError(
                f"columns and public must be lists of names such as ('y', 'x1'); got {columns!r}, {public!r}."
            )
        names = (*columns, *public)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"columns and public must be distinct names such as ('y', 'x1'); got {names!r}.")
        self.columns, self.public, self.missing = tuple(columns), tuple(public), bool(missing)

    @property
    def all_columns(self) -> tuple[str, ...]:
        """The columns of the released table: the noisy ones, then the public ones."""
        return (*self.columns, *self.public)

    @property
    def labels(self) -> tuple[str, ...]:
        """The column names."""
        return self.all_columns

    def flatten(self, value: Any) -> np.ndarray:
        """A released table, by column or as an array (n, columns) with the public columns last, as such an array.

        One column alone may be given as a plain list.
        """
        names = self.all_columns
        if isinstance(value, Mapping) or hasattr(value, "columns") or hasattr(value, "column_names"):
            extra = [name for name in column_names(value) if name not in names]
            if extra:
                raise ValueError(
                    f"The released records hold the columns {extra}, which the query does not name; add them to public if they are "
                    "released without noise, or leave them out."
                )
            found = read_columns(value, names, missing=True)
            return np.stack([found[name] for name in names], axis=-1)
        table = np.asarray(value, dtype=float)
        table = table[:, None] if table.ndim == 1 and len(names) == 1 else table
        if table.ndim != 2 or table.shape[1] != len(names):
            raise ValueError(
                f"Released records are a table with a row a record and the columns {names}; got shape {table.shape}."
            )
        return table

    def unflatten(self, table: np.ndarray) -> dict[str, np.ndarray]:
        """The released table by column."""
        return dict(zip(self.all_columns, np.asarray(table).T, strict=True))
