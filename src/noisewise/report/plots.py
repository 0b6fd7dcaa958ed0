"""The plots of the report as inline SVG, drawn by matplotlib without a display.

Text and axes take the colour of the page (``currentColor``), so that the same picture is readable on light and on dark; the
pictures scale with the width they are given, and each has an alternative text.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.report.summary import Row, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"posterior": "#2f7fe0", "naive": "#e8730c", "prior": "#8a94a0"}
_CHAINS = ("#2f7fe0", "#e8730c", "#1f9e77", "#b455c8", "#c2a017", "#d6456b")
_INK = "#010203"
_POINTS = 300
_BINS = 20
_LEAST_PRIOR = 30


def density_plot(name: str, draws: Mapping[str, np.ndarray], row: Row, number: int) -> str:
    """The density of one parameter: posterior, with the naive posterior and the prior where they are given."""
    figure, axes = _figure(4.2, 2.3)
    low, high = _window([draws[kind] for kind in ("posterior", "naive") if kind in draws])
    for kind in ("prior", "naive", "posterior"):
        if kind in draws:
            _density(axes, draws[kind], kind, low, high)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.set_xlabel(name)
    axes.spines["left"].set_visible(False)
    said = [f"{kind} {_words(spread)}" for kind, spread in _spreads(row) if kind in draws]
    return _svg(figure, f"Densities of {name}: {'; '.join(said)}.", number)


def interval_plot(rows: Sequence[Row], number: int) -> str:
    """The 90% intervals of several parameters one under the other, with the naive ones and the prior's below each."""
    figure, axes = _figure(6.4, 0.7 + 0.34 * len(rows))
    ends = [end for row in rows for kind, s in _spreads(row) if kind != "prior" for end in (s.low, s.high)]
    margin = 0.08 * (max(ends) - min(ends) or 1.0)
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    for place, row in enumerate(rows):
        for shift, (kind, spread) in zip((-0.22, 0.0, 0.22), _spreads(row), strict=False):
            axes.plot([spread.low, spread.high], [place + shift] * 2, color=COLOURS[kind], linewidth=2.2)
            axes.plot([spread.mean], [place + shift], "o", color=COLOURS[kind], markersize=4)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    said = [f"{row.name}: {', '.join(f'{kind} {_words(s)}' for kind, s in _spreads(row))}" for row in rows]
    return _svg(figure, f"90% intervals. {'. '.join(said)}.", number)


def trace_plot(row: Row, draws: np.ndarray, number: int) -> str:
    """The draws of one parameter by chain: their course on the left, their ranks on the right."""
    figure, (left, right) = _figure(7.4, 1.9, columns=2)
    chains, length = draws.shape
    step = -(-length // _POINTS)
    for chain in range(chains):
        left.plot(
            np.arange(0, length, step),
            draws[chain, ::step],
            color=_CHAINS[chain % len(_CHAINS)],
            linewidth=0.7,
            alpha=0.8,
        )
    left.set_xlabel("draw" if step == 1 else f"draw (every {step}th)")
    left.set_ylabel(row.name)
    ranks = np.argsort(np.argsort(draws, axis=None)).reshape(draws.shape)
    edges = np.linspace(0, draws.size, _BINS + 1)
    for chain in range(chains):
        heights = np.histogram(ranks[chain], edges)[0] / (length / _BINS)
        right.stairs(heights, edges, color=_CHAINS[chain % len(_CHAINS)], linewidth=1.1)
    right.axhline(1.0, color=_INK, linewidth=0.6, linestyle=":")
    right.set_ylim(bottom=0)
    right.set_xticks([])
    right.set_xlabel("rank among all chains (level is good)")
    return _svg(
        figure,
        f"Traces and rank histograms of {row.name} in {chains} chains of {length} draws: R-hat {row.rhat:.3f}, "
        f"bulk effective sample size {row.ess_bulk:.0f}.",
        number,
    )


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(1, columns)
    for axes in np.atleast_1d(grid):
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(_INK)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.xaxis.label.set_color(_INK)
        axes.yaxis.label.set_color(_INK)
    return figure, grid


def _density(axes: Axes, draws: np.ndarray, kind: str, low: float, high: float) -> None:
    inside = draws[(draws >= low) & (draws <= high)]
    if np.ptp(draws) == 0:
        axes.axvline(float(draws.flat[0]), color=COLOURS[kind])
        return
    if inside.size < _LEAST_PRIOR:
        return
    from arviz_stats.base import array_stats

    grid, heights, _ = array_stats.kde(inside.reshape(-1))
    share = inside.size / draws.size
    axes.plot(grid, share * heights, color=COLOURS[kind], linewidth=1.8, linestyle="--" if kind == "prior" else "-")
    if kind == "posterior":
        axes.fill_between(grid, share * heights, color=COLOURS[kind], alpha=0.18, linewidth=0)


def _window(groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """From the smallest 0.2% to the largest 99.8% quantile of the groups, a little widened."""
    low = min(float(np.quantile(draws, 0.002)) for draws in groups)
    high = max(float(np.quantile(draws, 0.998)) for draws in groups)
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin


def _spreads(row: Row) -> list[tuple[str, Spread]]:
    pairs = (("posterior", row.posterior), ("naive", row.naive), ("prior", row.prior))
    return [(kind, spread) for kind, spread in pairs if spread is not None]


def _words(spread: Spread) -> str:
    return f"mean {spread.mean:.3g}, 90% interval {spread.low:.3g} to {spread.high:.3g}"


def _svg(figure: Figure, alternative: str, number: int) -> str:
    """The figure as an inline SVG element with names of its own, page colours and an alternative text."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "noisewise", "font.size": 10, "font.family": "sans-serif"}
    ):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(_INK, "currentColor").replace("stroke: #000000", "stroke: currentColor")
    text = re.sub(r'\bid="', f'id="f{number}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>f{number}-", text)
    text = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    label = html.escape(alternative, quote=True)
    return re.sub(r"<svg [^>]*", lambda match: _opening(match.group(0), label), text, count=1)


def _opening(tag: str, label: str) -> str:
    view = re.search(r'viewBox="[^"]*"', tag)
    links = re.findall(r'xmlns(?::\w+)?="[^"]*"', tag)
    return " ".join(["<svg", *links, view.group(0) if view else "", f'role="img" aria-label="{label}"'])
