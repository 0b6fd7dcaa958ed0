"""Figures 6.1 to 6.8 of Räisä's thesis, from the rows of the studies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.private.experiments import ALGORITHMS, NAMES, experiment
from noisewise.studies.base import Rows, group

_EASY = ("easy-2d", "easy-10d", "tempered-2d", "tempered-10d")
_HARD = ("gauss-30d", "hard-2d", "hard-gauss-2d")
FIGURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "6_3": (_EASY, ("discrepancy",)),
    "6_4": (_HARD, ("discrepancy",)),
    "6_5": (_EASY, ("clip_fraction",)),
    "6_6": (_HARD, ("clip_fraction",)),
    "6_7": (("circle",), ("discrepancy", "clip_fraction")),
    "6_8": (NAMES, ("gradient_clip_fraction",)),
}
_SAYS = {
    "discrepancy": "MMD to the posterior",
    "clip_fraction": "fraction of ratios clipped",
    "gradient_clip_fraction": "fraction of gradients clipped",
}
_COLOURS = {name: f"C{place}" for place, name in enumerate((*ALGORITHMS, "oneshot"))}


def panels(path: Path, count: int, draw: Callable[[int, Any], None], *, columns: int = 4) -> Path:
    """A figure of panels, each drawn by ``draw(place, axes)``, with one legend for all."""
    from matplotlib.figure import Figure

    across = min(columns, count)
    down = -(-count // across)
    figure = Figure(figsize=(3.1 * across + 0.4, 2.7 * down + 0.7), dpi=90)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for place, axis in enumerate(axes):
        if place < count:
            draw(place, axis)
            axis.tick_params(labelsize=7)
        else:
            axis.set_axis_off()
    entries = {text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    below = 0.2 * -(-len(entries) // across) + 0.1
    figure.legend(entries.values(), entries.keys(), loc="lower center", ncols=across, fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, below / figure.get_figheight(), 1, 1))
    figure.savefig(path)
    return path


def band(axis: Any, x: Sequence[float], values: Sequence[np.ndarray], **style: Any) -> None:
    """The median of each set of values, and the band of its quartiles."""
    low, middle, high = np.transpose([np.quantile(some, (0.25, 0.5, 0.75)) for some in values])
    axis.plot(x, middle, marker="o", markersize=3, linewidth=1, **style)
    axis.fill_between(x, low, high, alpha=0.2, linewidth=0, color=style.get("color"))


def from_zero(axis: Any) -> None:
    """Start at zero, and leave room above what was drawn: a level line would lie on the frame."""
    axis.set_ylim(0, 1.08 * axis.dataLim.ymax)


def plot_accountants(rows: Rows, folder: Path) -> list[Path]:
    """Figure 6.1: iterations by epsilon, a panel for each sampler, a line for each accountant."""
    parts = list(group(rows, "algorithm"))
    colours = {accountant: f"C{place}" for place, ((accountant,), _) in enumerate(group(rows, "accountant"))}

    def draw(place: int, axis: Any) -> None:
        (algorithm,), part = parts[place]
        for (accountant,), line in group(part, "accountant"):
            style = {"color": colours[accountant], "marker": "o", "markersize": 3, "linewidth": 1}
            axis.plot(line["epsilon"], line["iterations"], label=accountant, **style)
        axis.set_title(ALGORITHMS[algorithm], fontsize=8)
        axis.set_xlabel("epsilon", fontsize=8)
        axis.set_ylabel("iterations allowed", fontsize=8)

    return [panels(folder / "figure_6_1.png", len(parts), draw)]


def plot_clipping(rows: Rows, folder: Path) -> list[Path]:
    """Figure 6.2: discrepancy by clip bound and by the fraction clipped, a column for each dimension."""
    parts = list(group(rows, "d"))

    def draw(place: int, axis: Any) -> None:
        (d,), part = parts[place % len(parts)]
        by_fraction = place >= len(parts)
        for (sampler,), some in group(part, "sampler"):
            said = {
                "label": "random walk" if sampler == "walk" else "HMC",
                "color": "C0" if sampler == "walk" else "C1",
            }
            if by_fraction:
                axis.plot(some["clip_fraction"], some["discrepancy"], ".", markersize=3, **said)
            else:
                cells = list(group(some, "bound"))
                band(axis, [bound for (bound,), _ in cells], [cell["discrepancy"] for _, cell in cells], **said)
                axis.set_xscale("log")
        axis.set_title(f"flat banana, d = {d}", fontsize=8)
        axis.set_xlabel("fraction of ratios clipped" if by_fraction else "clip bound", fontsize=8)
        axis.set_ylabel(_SAYS["discrepancy"], fontsize=8)
        from_zero(axis)

    return [panels(folder / "figure_6_2.png", 2 * len(parts), draw, columns=len(parts))]


def plot_samplers(rows: Rows, folder: Path) -> list[Path]:
    """Figures 6.3 to 6.8, those of which something was run."""
    made = []
    for figure, (names, variables) in FIGURES.items():
        wanted = [(name, variable) for variable in variables for name in names if seen(rows, name, variable)]
        if wanted:
            made.append(panels(folder / f"figure_{figure}.png", len(wanted), functools.partial(panel, rows, wanted)))
    return made


def seen(rows: Rows, name: str, variable: str) -> bool:
    """Whether a sampler was run on this experiment that shows this."""
    here = (rows["experiment"] == name) & ~np.isin(rows["algorithm"], ("exact", "oneshot"))
    return bool(np.any(np.isfinite(rows[variable][here])))


def panel(rows: Rows, wanted: Sequence[tuple[str, str]], place: int, axis: Any) -> None:
    """One experiment: a line for each sampler, and the level of exact draws."""
    name, variable = wanted[place]
    here = {
        column: values[(rows["experiment"] == name) & np.isfinite(rows[variable])] for column, values in rows.items()
    }
    for (algorithm,), part in group(here, "algorithm"):
        cells = list(group(part, "epsilon"))
        if algorithm == "exact":
            axis.axhline(float(np.median(part[variable])), color="black", linewidth=0.8, label="exact draws")
        else:
            style = {"label": ALGORITHMS.get(algorithm, "one shot"), "color": _COLOURS[algorithm]}
            band(axis, [epsilon for (epsilon,), _ in cells], [cell[variable] for _, cell in cells], **style)
    axis.set_title(experiment(name).name, fontsize=8)
    axis.set_xlabel("epsilon", fontsize=8)
    circle = name == "circle" and variable == "discrepancy"
    axis.set_ylabel("distance of the mean from 0" if circle else _SAYS[variable], fontsize=8)
    from_zero(axis)
