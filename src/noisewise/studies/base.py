"""What a study is: an experiment of a paper in cells and replicates, with a table of what the paper says and what is seen here.

**To add a study**, write a module in this folder that ends in ``STUDIES = (Study(...), ...)`` and add its name to ``MODULES``
in ``noisewise/studies/__init__.py``; nothing else. A study is a frozen object made of plain module-level functions:

- ``cells(settings)`` gives the independent pieces of the experiment, one for each combination (epsilon, engine, n, ...), as
  flat dicts of strings, numbers and booleans. Whatever changes the numbers must be in the cell: it is all that ``run`` gets of
  the settings, it names the file of the results, and it becomes columns of the rows.
- ``run(cell, replicates, seed)`` makes the replicates of a ``range`` (at most ``batch`` of them, in one vectorised program if
  that is quicker) and returns tidy rows: a list of dicts, or a dict of equally long arrays (scalars are repeated). One column
  is ``replicate``, NaN means missing, and each replicate asked for has one row or more. *The numbers of a replicate depend on
  the cell, its number and the study's seed, on nothing else*: take randomness from :func:`generator` or :func:`key_of`, of
  the cell itself, or of a smaller dict for what several cells share (``generator(seed, {"data": n}, r)``). A vectorised
  program of a single lane sums in another order than one of many: run at least two lanes.
- ``table(rows)`` gives :class:`Line` objects: a quantity, the paper's value (None if it prints none), the value here and its
  Monte-Carlo standard error. ``rows`` is a dict of equally long arrays with the cells' columns; :func:`group` splits it.
  Only what was run is there: settings may have left cells out, and replicates may be two.
- ``plots(rows, folder)`` writes figures as PNG files (no pyplot: ``matplotlib.figure.Figure``) and returns their paths.

``tiny`` are the settings and ``tiny_replicates`` the number with which the whole study takes a few seconds (``--tiny``); ``make
studies-smoke`` runs every study so. The runner does the rest: tasks of at most ``batch`` replicates on one process or many, files,
resumption, retries, progress.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from noisewise.typing import Key

Value = str | int | float | bool
Cell = Mapping[str, Value]
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Line:
    """One line of a study's table: what the paper says, what is seen here, and its Monte-Carlo standard error (NaN: none)."""

    quantity: str
    paper: float | str | None
    here: float
    error: float


@dataclass(frozen=True)
class Study:
    """An experiment of a paper by name; the module's docstring says what its functions owe."""

    name: str
    paper: str
    shows: str
    cost: str
    replicates: int
    settings: Mapping[str, Any]
    cells: Callable[[Mapping[str, Any]], Sequence[Cell]]
    run: Callable[[Cell, range, int], Sequence[Mapping[str, Any]] | Mapping[str, Any]]
    table: Callable[[Rows], Sequence[Line]]
    plots: Callable[[Rows, Path], Sequence[Path]]
    batch: int = 25
    tiny: Mapping[str, Any] = field(default_factory=dict)
    tiny_replicates: int = 2

    def with_settings(self, changes: Mapping[str, Any] | None) -> dict[str, Any]:
        """The settings with some of them changed; an unknown name and a value of another kind are refused."""
        unknown = [name for name in changes or {} if name not in self.settings]
        if unknown:
            raise ValueError(
                f"The study {self.name} has no setting {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(self.settings) or 'none'}."
            )
        for name, value in (changes or {}).items():
            if not _like(value, self.settings[name]):
                raise ValueError(
                    f"The setting {name} of {self.name} must be like {json.dumps(self.settings[name])}; got {value!r}."
                )
        return {**self.settings, **(changes or {})}

    def rows_of(self, cell: Cell, replicates: range, seed: int) -> Rows:
        """Run replicates of a cell, and hold the rows to what a study owes."""
        made = columns(self.run(cell, replicates, seed))
        if "replicate" not in made or set(made["replicate"].tolist()) != set(replicates):
            raise RuntimeError(
                f"{self.name} must return rows for the replicates {replicates}, by the column 'replicate'."
            )
        if clash := set(made) & set(cell):
            raise RuntimeError(f"{self.name} returns columns {sorted(clash)} that its cells have already.")
        size = made["replicate"].size
        return {**{name: np.full(size, value) for name, value in cell.items()}, **made}


def _like(value: Any, example: Any) -> bool:
    """Whether a value is of the kind of the example: a list of such things, a table, a text, a truth value, a number."""
    if isinstance(example, list | tuple):
        return isinstance(value, list | tuple) and (not example or all(_like(one, example[0]) for one in value))
    for kind in (Mapping, str, bool, int):
        if isinstance(example, kind):
            return isinstance(value, kind) and isinstance(value, bool) == isinstance(example, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Rows:
    """Rows as equally long one-dimensional arrays, by name."""
    if not isinstance(rows, Mapping):
        rows = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}
    found = {name: np.asarray(values) for name, values in rows.items()}
    size = max((values.size for values in found.values()), default=0)
    return {name: np.broadcast_to(values, (size,)) for name, values in found.items()}


def group(rows: Rows, *names: str) -> Iterator[tuple[tuple[Any, ...], Rows]]:
    """The rows of each combination of the named columns, in the order in which they first occur."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, values in enumerate(zip(*(rows[name].tolist() for name in names), strict=True)):
        places.setdefault(values, []).append(place)
    for values, where in places.items():
        yield values, {name: column[where] for name, column in rows.items()}


def name_of(cell: Cell) -> str:
    """A short digest of a cell, the same on every machine."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in cell.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def seed_of(seed: int, cell: Cell, replicate: int) -> int:
    """A seed for one replicate of a cell, from 0 to 2^63 - 1."""
    digest = hashlib.sha256(f"{seed}/{name_of(cell)}/{replicate}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, cell: Cell, replicate: int) -> np.random.Generator:
    """NumPy's randomness for one replicate of a cell."""
    return np.random.default_rng(seed_of(seed, cell, replicate))


def key_of(seed: int, cell: Cell, replicates: range) -> Key:
    """JAX's randomness for replicates of a cell: an array of keys, one for each."""
    return jax.vmap(jax.random.key)(np.array([seed_of(seed, cell, r) for r in replicates]))
