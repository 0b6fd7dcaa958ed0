"""How the plots look, and a figure as inline SVG for a page that is read on light and on dark.

Text and axes are drawn in one ink that the page replaces by its own text colour (``currentColor``). A figure's label (``set_label``) is
its alternative text.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"posterior": "#2f7fe0", "naive": "#e8730c", "prior": "#8a94a0"}
CHAINS = ("#2f7fe0", "#e8730c", "#1f9e77", "#b455c8", "#c2a017", "#d6456b")
INK = "#010203"
_LEAST_DENSITY = 30


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, np.ndarray]:
    """A transparent figure of ``rows`` by ``columns`` plain axes, and the axes as an array of that shape."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(INK)
        axes.tick_params(colors=INK, labelsize=9)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
    return figure, grid


def density(axes: Axes, draws: np.ndarray, kind: str, low: float, high: float) -> None:
    """A smoothed density of draws between two ends, in the colour of its kind."""
    inside = draws[(draws >= low) & (draws <= high)]
    if np.ptp(draws) == 0:
        axes.axvline(float(draws.flat[0]), color=COLOURS[kind])
        return
    if inside.size < _LEAST_DENSITY:
        return
    from arviz_stats.base import array_stats

    grid, heights, _ = array_stats.kde(inside.reshape(-1))
    share = inside.size / draws.size
    axes.plot(grid, share * heights, color=COLOURS[kind], linewidth=1.8, linestyle="--" if kind == "prior" else "-")
    if kind == "posterior":
        axes.fill_between(grid, share * heights, color=COLOURS[kind], alpha=0.18, linewidth=0)


def window(groups: list[np.ndarray]) -> tuple[float, float]:
    """From the smallest 0.2% to the largest 99.8% quantile of the groups, a little widened."""
    low = min(float(np.quantile(draws, 0.002)) for draws in groups)
    high = max(float(np.quantile(draws, 0.998)) for draws in groups)
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin


def inline_svg(figure: Figure, number: int) -> str:
    """The figure as an inline SVG element with names of its own, page colours and its label as alternative text."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "noisewise", "font.size": 10, "font.family": "sans-serif"}
    ):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace("stroke: #000000", "stroke: currentColor")
    text = re.sub(r'\bid="', f'id="f{number}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>f{number}-", text)
    text = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    label = html.escape(str(figure.get_label()), quote=True)
    return re.sub(r"<svg [^>]*", lambda match: _opening(match.group(0), label), text, count=1)


def _opening(tag: str, label: str) -> str:
    view: Any = re.search(r'viewBox="[^"]*"', tag)
    links = re.findall(r'xmlns(?::\w+)?="[^"]*"', tag)
    return " ".join(["<svg", *links, view.group(0) if view else "", f'role="img" aria-label="{label}"'])
