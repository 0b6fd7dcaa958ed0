"""Pictures of calibrations and designs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from noisewise.calibration.uniformity import band, below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from noisewise.calibration.design import Design

_COLUMNS = 3
_BAND, _LINE, _ALARM = "#d9d9d9", "#1f5a93", "#b3261e"


def _save(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def plot_ranks(
    labels: tuple[str, ...],
    ranks: np.ndarray,
    largest: int,
    p_values: np.ndarray,
    path: str | Path | None,
    *,
    level: float,
) -> Figure:
    """Empirical distributions of ranks less the uniform one, each in the band that all of it stays in with probability ``level``."""
    from matplotlib.figure import Figure

    rows = -(-len(labels) // _COLUMNS)
    figure = Figure(figsize=(3.2 * min(_COLUMNS, len(labels)), 2.2 * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, min(_COLUMNS, len(labels)), sharex=True, squeeze=False)).ravel()
    z, low, high = band(len(ranks), largest, level)
    for axis, label, column, p in zip(axes, labels, ranks.T, p_values, strict=False):
        axis.fill_between(z, low - z, high - z, step="mid", color=_BAND)
        colour = _LINE if p > 1 - level else _ALARM
        axis.step(z, below(column, largest) / len(column) - z, where="mid", color=colour)
        axis.set_title(f"{label} (p = {p:.2g})", fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes[len(labels) :]:
        axis.set_axis_off()
    figure.supxlabel("share of draws below", fontsize=8)
    figure.supylabel("ECDF of ranks - uniform", fontsize=8)
    return _save(figure, path)


def plot_design(made: Design, parameter: str, path: str | Path | None) -> Figure:
    """Interval width and equivalent records against epsilon, a line for every other choice."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    lines: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for row in made.rows:
        if row["parameter"] == parameter:
            lines.setdefault((row["query"], row["noise"], row["split"]), []).append(row)
    for names, rows in lines.items():
        epsilons = [row["epsilon"] for row in rows]
        label = ", ".join(name for name in names if name)
        for axis, what in ((left, "width"), (right, "equivalent_n")):
            heights = np.array([row[what] for row in rows], dtype=float)
            errors = np.array([row[f"{what}_error"] for row in rows], dtype=float)
            axis.errorbar(epsilons, heights, errors, marker="o", markersize=3, capsize=2, label=label)
    left.set_ylabel(f"expected width of the {made.level:.0%} interval")
    right.set_ylabel(f"equivalent records in the clear, of {made.n:,}")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("epsilon")
    left.legend(fontsize=7)
    figure.suptitle(parameter, fontsize=10)
    return _save(figure, path)
