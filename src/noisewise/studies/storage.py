"""The folder of a study: parts that are whole or not there, and what is made of them.

Each task leaves one Parquet file ``parts/CELL-FIRST-END.parquet`` with the rows of replicates FIRST to END - 1 of a cell,
written under another name, flushed to the disk and renamed: a process killed at any moment leaves only whole parts, and a
rerun asks which replicates of which cells are still missing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.studies.base import Cell, Rows, name_of

_PART = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)\.parquet")


class Folder:
    """The results of one study with one seed by one version of noisewise."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.parts = path, path / "parts"
        self.parts.mkdir(parents=True, exist_ok=True)
        mark = path / "study.json"
        if mark.exists():
            found = json.loads(mark.read_text(encoding="utf-8"))
            if found != identity:
                raise ValueError(
                    f"The folder {str(path)!r} holds results of {_words(found)}, not of {_words(identity)}; name another "
                    "folder, or delete it to start afresh."
                )
        else:
            replace_text(mark, json.dumps(identity, indent=2) + "\n")

    def missing(self, cell: Cell, replicates: int, batch: int) -> list[range]:
        """The replicates of a cell that are not there yet, in ranges that lie within one batch."""
        there = np.zeros(replicates, dtype=bool)
        for part in self._parts_of(cell):
            there[part[0].start : part[0].stop] = True
        found: list[range] = []
        for r in np.flatnonzero(~there).tolist():
            if found and found[-1].stop == r and r % batch:
                found[-1] = range(found[-1].start, r + 1)
            else:
                found.append(range(r, r + 1))
        return found

    def save(self, cell: Cell, replicates: range, rows: Rows, seconds: Mapping[str, float]) -> None:
        """Write a part with what it cost."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: pa.array(values) for name, values in rows.items()})
        table = table.replace_schema_metadata({name: repr(value) for name, value in seconds.items()})
        path = self.parts / f"{name_of(cell)}-{replicates.start}-{replicates.stop}.parquet"
        with replacing(path) as partial, open(partial, "wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())

    def collect(self, cells: Sequence[Cell], replicates: int) -> tuple[Rows, dict[str, float]]:
        """All rows of these cells and replicates, in their order, and what they cost in seconds."""
        import pyarrow.parquet as pq

        found: list[dict[str, np.ndarray]] = []
        cost: dict[str, float] = {}
        for cell in cells:
            taken = np.zeros(replicates, dtype=bool)
            for _, path in self._parts_of(cell):
                table = pq.read_table(path)
                for name, value in (table.schema.metadata or {}).items():
                    cost[name.decode()] = cost.get(name.decode(), 0.0) + float(value)
                part = {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
                # parts overlap if two clients wrote to one folder
                keep = np.array([r < replicates and not taken[r] for r in part["replicate"]], dtype=bool)
                taken[part["replicate"][keep]] = True
                found.append({name: values[keep] for name, values in part.items()})
        names = list(dict.fromkeys(name for part in found for name in part))
        sizes = [part["replicate"].size for part in found]
        rows = {
            name: np.concatenate(
                [part.get(name, np.full(size, np.nan)) for part, size in zip(found, sizes, strict=True)]
            )
            for name in names
        }
        return rows, cost

    def write_results(self, rows: Rows, attrs: Mapping[str, Any]) -> list[Path]:
        """All rows as one Parquet file and one NetCDF file."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        import xarray as xr

        parquet, netcdf = self.path / "results.parquet", self.path / "results.nc"
        said = {name: str(value) for name, value in attrs.items()}
        table = pa.table({name: pa.array(values) for name, values in rows.items()}).replace_schema_metadata(said)
        with replacing(parquet) as partial:
            pq.write_table(table, partial)
        dataset = xr.Dataset({name: ("row", values) for name, values in rows.items()}, attrs=dict(attrs))
        with replacing(netcdf) as partial:
            dataset.to_netcdf(partial, engine="h5netcdf")
        return [parquet, netcdf]

    def _parts_of(self, cell: Cell) -> list[tuple[range, Path]]:
        found = []
        for path in self.parts.glob(f"{name_of(cell)}-*.parquet"):
            if matched := _PART.fullmatch(path.name):
                found.append((range(int(matched[2]), int(matched[3])), path))
        return sorted(found, key=lambda part: part[0].start)


class replacing:
    """A path to write to, which is renamed to the real one if nothing went wrong."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        return self.partial

    def __exit__(self, kind: type | None, *rest: object) -> None:
        if kind is None:
            os.replace(self.partial, self.path)
        self.partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _words(identity: Mapping[str, Any]) -> str:
    return f"{identity.get('study')} (seed {identity.get('seed')}, noisewise {identity.get('version')})"
