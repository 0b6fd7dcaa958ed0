"""Figure 1 of Bernstein and Sheldon (2018), and the ranks of trials with bounds fixed in advance, from the rows of the studies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.studies.base import Rows, group

_COLOURS = {"gibbs": "C0", "paper": "C1", "non-private": "black", "naive": "C3", "ops": "C2"}
_BAND = 1.358
_SHOWN_N, _SHOWN_EPSILON = 1000, 0.01


def ks_distance(ranks: np.ndarray) -> float:
    """The largest distance between the empirical distribution of the ranks and the uniform one."""
    ordered, m = np.sort(ranks), len(ranks)
    return float(max(np.max(np.arange(1, m + 1) / m - ordered), np.max(ordered - np.arange(m) / m)))


def band(trials: int) -> float:
    """What that distance stays below in 95% of studies of a calibrated method (asymptotically)."""
    return _BAND / math.sqrt(trials)


def plot_calibration(rows: Rows, folder: Path) -> list[Path]:
    """Figure 1a: KS distance against n; 1b: distributions of the ranks; 1c: discrepancy to the non-private posterior."""
    epsilons, sizes = np.unique(rows["epsilon"]), np.unique(rows["n"])
    n = int(sizes[np.argmin(np.abs(np.log(sizes / _SHOWN_N)))])
    epsilon = float(epsilons[np.argmin(np.abs(epsilons - _SHOWN_EPSILON))])
    shown = {name: values[(rows["n"] == n) & (rows["epsilon"] == epsilon)] for name, values in rows.items()}
    return [
        _panels(folder / "figure_1a.png", rows, ("epsilon", "model"), _distances),
        _panels(folder / "figure_1b.png", shown, ("n", "epsilon", "model"), _ranks),
        _panels(folder / "figure_1c.png", rows, ("epsilon", "model"), _discrepancies),
    ]


def plot_bounds(rows: Rows, folder: Path) -> list[Path]:
    """The distribution of the ranks, less the uniform one, by method, a panel for each length of the chains."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=90, layout="constrained")
    axis = figure.subplots()
    for (method, draws), part in group(rows, "method", "draws"):
        ordered = np.sort(part["rank"])
        gap = np.arange(1, ordered.size + 1) / ordered.size - ordered
        axis.plot(ordered, gap, linewidth=1, label=method if draws == 0 else f"{method}, {draws:,} draws")
    edge = band(int(np.unique(rows["replicate"]).size))
    axis.axhspan(-edge, edge, color="grey", alpha=0.2, linewidth=0, label="95% band")
    axis.set(xlabel="u", ylabel="share of ranks below u, less u")
    axis.legend(fontsize=7)
    figure.savefig(folder / "ranks.png")
    return [folder / "ranks.png"]


def _panels(path: Path, rows: Rows, by: tuple[str, ...], draw: Any) -> Path:
    """A grid of panels, a column for each value of the last name."""
    from matplotlib.figure import Figure

    parts = list(group(rows, *by))
    across = np.unique(rows[by[-1]]).size
    down = -(-len(parts) // across)
    figure = Figure(figsize=(2.9 * across + 0.2, 2.5 * down + 0.3), dpi=90)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, (values, part) in zip(axes, parts, strict=False):
        draw(axis, part)
        said = [f"{name} = {value:g}" for name, value in zip(by[:-1], values[:-1], strict=True)]
        axis.set_title(", ".join([str(values[-1]), *said]), fontsize=8)
        axis.tick_params(labelsize=7)
    entries = {text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="lower center", ncols=len(entries), fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.3 / figure.get_figheight(), 1, 1))
    figure.savefig(path)
    return path


def _distances(axis: Any, part: Rows) -> None:
    for (method,), some in group(part, "method"):
        cells = list(group(some, "n"))
        _line(axis, method, [n for (n,), _ in cells], [ks_distance(cell["rank"]) for _, cell in cells])
    axis.axhline(band(np.unique(part["replicate"]).size), color="grey", linestyle=":", linewidth=1, label="95% band")
    axis.set_xscale("log")
    axis.set_ylim(0, 1)
    axis.set_xlabel("n", fontsize=8)
    axis.set_ylabel("KS distance", fontsize=8)


def _discrepancies(axis: Any, part: Rows) -> None:
    for (method,), some in group(part, "method"):
        if not np.all(np.isnan(some["discrepancy"])):
            cells = list(group(some, "n"))
            _line(axis, method, [n for (n,), _ in cells], [np.mean(cell["discrepancy"]) for _, cell in cells])
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=1e-5)
    axis.set_xlabel("n", fontsize=8)
    axis.set_ylabel("MMD$^2$ to non-private", fontsize=8)


def _ranks(axis: Any, part: Rows) -> None:
    for (method,), some in group(part, "method"):
        axis.ecdf(some["rank"], color=_COLOURS[method], linewidth=1, label=method)
    axis.axline((0, 0), slope=1, color="grey", linestyle=":", linewidth=1)
    axis.set_xlabel("U", fontsize=8)
    axis.set_ylabel("share of trials", fontsize=8)


def _line(axis: Any, method: str, x: list[Any], y: list[Any]) -> None:
    axis.plot(x, y, marker="o", markersize=3, linewidth=1, color=_COLOURS[method], label=method)
