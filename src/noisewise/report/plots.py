"""Pictures of a release and of what is known from it: ``nw.plots``. Each function returns a matplotlib ``Figure``.

A figure is shown by a notebook, saved by ``figure.savefig``, and carries its description in words, ``figure.get_label()``.
Everything in the result can also be drawn by ArviZ (``arviz_plots.plot_dist(dt)`` and the like).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from noisewise.release.document import Release
from noisewise.report.drawing import CHAINS, COLOURS, INK, density, new_figure, window
from noisewise.report.predictive import predicted
from noisewise.report.summary import LEVEL, Row, Spread, check_level, rows_of, scalars, summarise

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from noisewise.models.base import Model
    from noisewise.pricing import Price

_POINTS = 300
_BINS = 20
_MOST = 24
_WIDTH = 4.6
"""Inches of a picture that a phone shows whole, with text that can be read."""
_PARTS = {
    "prior": ("#8a94a0", "prior"),
    "sampling": ("#1f9e77", "sampling of the records"),
    "clamping": ("#b455c8", "clamping and summing"),
    "noise": ("#e8730c", "privacy noise"),
}


def compare(
    dt: xr.DataTree, *, model: Model | None = None, var_names: Iterable[str] | None = None, level: float = LEVEL
) -> Figure:
    """Prior, naive and noise-aware posterior on one axis for each parameter.

    ``dt`` holds the groups ``prior`` and ``naive`` if ``noisewise fit`` wrote it; else they are drawn, for which a model of functions must
    be given as ``model``.
    ``var_names`` picks variables; at most 24 scalars are drawn.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), [31.0])], n=100)
    >>> dt = nw.sample(nw.models.Bernoulli(), release, random_seed=1)
    >>> nw.plots.compare(dt).get_label()[:16]
    'Densities of p: '
    """
    return _densities(dt, ("prior", "naive", "posterior"), model, var_names, level)


def prior_posterior(
    dt: xr.DataTree, *, model: Model | None = None, var_names: Iterable[str] | None = None, level: float = LEVEL
) -> Figure:
    """The posterior over the prior, one axis for each parameter: what the release taught."""
    return _densities(dt, ("prior", "posterior"), model, var_names, level)


def intervals(
    dt: xr.DataTree, *, model: Model | None = None, var_names: Iterable[str] | None = None, level: float = LEVEL
) -> Figure:
    """Intervals of all parameters, one under the other, with the naive ones and the prior's below each."""
    return interval_figure(_chosen(_with_groups(dt, model), var_names, level), level)


def mixing(dt: xr.DataTree, *, var_names: Iterable[str] | None = None) -> Figure:
    """Traces of the chains on the left, rank histograms on the right: level ranks mean that the chains agree."""
    rows = _chosen(_checked(dt), var_names, LEVEL)
    return mixing_figure(rows, scalars(dt["posterior"].to_dataset()))


def release(published: Release | xr.DataTree, *, level: float = LEVEL) -> Figure:
    """What was published, every number with the interval that its noise alone would leave around it.

    The bars are ``level`` intervals of the noise (by its own standard deviation and a normal picture); a bar across zero says that
    the number by itself does not tell a sum from nothing.
    """
    from noisewise.comparison import release_of

    level = check_level(level)
    published = published if isinstance(published, Release) else release_of(_checked(published))
    parts = [part for part in map(_numbers, published.measurements) if part is not None]
    if not parts:
        raise ValueError("This release has no numbers with noise of a known variance to draw.")
    sizes = [min(len(labels), _MOST) for labels, _, _ in parts]
    figure, grid = new_figure(_WIDTH, 0.8 * len(parts) + 0.27 * sum(sizes), rows=len(parts))
    wide, said = _normal_quantile(level), []
    for axes, (labels, values, deviations) in zip(grid[:, 0], parts, strict=True):
        shown = len(labels[:_MOST])
        places = np.arange(shown)
        axes.errorbar(
            values[:shown],
            places,
            xerr=wide * deviations[:shown],
            fmt="o",
            markersize=4,
            color=COLOURS["posterior"],
            elinewidth=2,
        )
        axes.axvline(0.0, color=INK, linewidth=0.6, linestyle=":")
        axes.set_yticks(places, labels[:shown])
        axes.set_ylim(shown - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        said += [
            f"{label} {value:.4g} ± {wide * deviation:.3g}"
            for label, value, deviation in zip(labels, values, deviations, strict=True)
        ][:_MOST]
    figure.set_label(f"The released numbers with {level:.0%} intervals of their noise: {'; '.join(said)}.")
    return figure


def price(cost: Price | xr.DataTree) -> Figure:
    """The posterior variance of every parameter split into prior, sampling, clamping and privacy noise (:func:`noisewise.price`)."""
    names, parts = _price_parts(cost)
    variance = np.sum([parts[part] for part in _PARTS], axis=0)
    shares = {part: np.clip(np.divide(parts[part], variance), 0, None) for part in _PARTS}
    figure, grid = new_figure(_WIDTH, 1.0 + 0.34 * len(names))
    axes, left = grid[0, 0], np.zeros(len(names))
    for part, (colour, words) in _PARTS.items():
        axes.barh(range(len(names)), shares[part], left=left, color=colour, height=0.6, label=words)
        left = left + shares[part]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, max(1.0, float(left.max())))
    axes.set_xlabel("share of the posterior variance")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8.5, labelcolor=INK)
    said = [
        f"{name}: {', '.join(f'{shares[part][j]:.0%} {words}' for part, (_, words) in _PARTS.items())}"
        for j, name in enumerate(names)
    ]
    figure.set_label(f"Where the posterior variance comes from. {'. '.join(said)}.")
    return figure


def predictive(dt: xr.DataTree, *, level: float = LEVEL) -> Figure:
    """Every released number in the interval of what the fitted model would release again, in units of that interval's half width."""
    numbers = predicted(_checked(dt), check_level(level))
    if not numbers:
        raise ValueError("This result has no posterior predictive draws of its release to draw.")
    shown = numbers[: 2 * _MOST]
    figure, grid = new_figure(6.4, 0.8 + 0.24 * len(shown))
    axes = grid[0, 0]
    for place, number in enumerate(shown):
        middle, half = 0.5 * (number.low + number.high), 0.5 * (number.high - number.low) or 1.0
        axes.plot([-1, 1], [place, place], color=COLOURS["posterior"], linewidth=3, alpha=0.45)
        axes.plot([(number.value - middle) / half], [place], "o", color=COLOURS["naive"], markersize=4.5)
    axes.set_yticks(range(len(shown)), [number.label for number in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"released number (dot) within the {level:.0%} interval of simulated releases (bar)")
    outside = [number.label for number in numbers if not number.low <= number.value <= number.high]
    figure.set_label(
        f"Posterior predictive check of {len(numbers)} released numbers: "
        f"{len(numbers) - len(outside)} inside their {level:.0%} interval"
        f"{', outside: ' + ', '.join(outside[:_MOST]) if outside else ''}."
    )
    return figure


def density_figure(
    rows: Sequence[Row], draws: Mapping[str, Mapping[str, np.ndarray]], level: float = LEVEL, columns: int = 1
) -> Figure:
    """Densities of some parameters; ``draws`` by kind (posterior, naive, prior) and name."""
    deep = -(-len(rows) // columns)
    figure, grid = new_figure(4.2 * columns, 2.3 * deep, rows=deep, columns=columns)
    said = []
    for axes, row in zip(grid.flat, rows, strict=False):
        mine = {kind: group[row.name] for kind, group in draws.items() if row.name in group}
        low, high = window([mine[kind] for kind in ("posterior", "naive") if kind in mine])
        for kind in ("prior", "naive", "posterior"):
            if kind in mine:
                density(axes, mine[kind], kind, low, high)
        axes.set_xlim(low, high)
        axes.set_ylim(bottom=0)
        axes.set_yticks([])
        axes.set_xlabel(row.name)
        axes.spines["left"].set_visible(False)
        words = [f"{kind} {_words(spread, level)}" for kind, spread in _spreads(row) if kind in mine]
        said.append(f"Densities of {row.name}: {'; '.join(words)}.")
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_visible(False)
    figure.set_label(" ".join(said))
    return figure


def interval_figure(rows: Sequence[Row], level: float = LEVEL) -> Figure:
    """The intervals of some parameters one under the other; the prior's is cut off where it is wider than the rest."""
    figure, grid = new_figure(_WIDTH, 0.7 + 0.34 * len(rows))
    axes = grid[0, 0]
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
    said = [f"{row.name}: {', '.join(f'{kind} {_words(s, level)}' for kind, s in _spreads(row))}" for row in rows]
    figure.set_label(f"{level:.0%} intervals. {'. '.join(said)}.")
    return figure


def mixing_figure(rows: Sequence[Row], draws: Mapping[str, np.ndarray]) -> Figure:
    """The draws of some parameters by chain: their course on the left, their ranks on the right."""
    figure, grid = new_figure(7.4, 1.9 * len(rows), rows=len(rows), columns=2)
    said = []
    for (left, right), row in zip(grid, rows, strict=True):
        values = draws[row.name]
        chains, length = values.shape
        step = -(-length // _POINTS)
        ranks = np.argsort(np.argsort(values, axis=None)).reshape(values.shape)
        edges = np.linspace(0, values.size, _BINS + 1)
        for chain in range(chains):
            colour = CHAINS[chain % len(CHAINS)]
            left.plot(np.arange(0, length, step), values[chain, ::step], color=colour, linewidth=0.7, alpha=0.8)
            heights = np.histogram(ranks[chain], edges)[0] / (length / _BINS)
            right.stairs(heights, edges, color=colour, linewidth=1.1)
        left.set_xlabel("draw" if step == 1 else f"draw (one in {step} shown)")
        left.set_ylabel(row.name)
        right.axhline(1.0, color=INK, linewidth=0.6, linestyle=":")
        right.set_ylim(bottom=0)
        right.set_xticks([])
        right.set_xlabel("rank among all chains (level is good)")
        said.append(
            f"Traces and rank histograms of {row.name} in {chains} chains of {length} draws: R-hat {row.rhat:.3f}, "
            f"bulk effective sample size {row.ess_bulk:.0f}."
        )
    figure.set_label(" ".join(said))
    return figure


def _densities(
    dt: xr.DataTree, kinds: Sequence[str], model: Model | None, var_names: Iterable[str] | None, level: float
) -> Figure:
    dt = _with_groups(dt, model)
    there = [kind for kind in kinds if kind in dt.children]
    if len(there) == 1:
        raise ValueError("This result has draws of its posterior alone; give model= and the others are drawn from it.")
    draws = {kind: scalars(dt[kind].to_dataset()) for kind in there}
    rows = _chosen(dt, var_names, level)
    figure = density_figure(rows, draws, level, columns=min(3, len(rows)))
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=COLOURS[kind], linestyle="--" if kind == "prior" else "-") for kind in there]
    figure.legend(lines, there, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)
    return figure


def _checked(dt: xr.DataTree) -> xr.DataTree:
    import xarray as xr

    if not isinstance(dt, xr.DataTree) or "posterior" not in dt.children:
        raise ValueError(f"A plot needs a DataTree with a posterior, as nw.sample makes it; got {type(dt).__name__}.")
    return dt


def _with_groups(dt: xr.DataTree, model: Model | None) -> xr.DataTree:
    from noisewise.comparison import compared

    return compared(_checked(dt), model)


def _chosen(dt: xr.DataTree, var_names: Iterable[str] | None, level: float) -> list[Row]:
    rows = summarise(dt, level=level)
    if var_names is None:
        return rows[:_MOST]
    if not isinstance(var_names, Iterable):
        raise ValueError(f"var_names must name variables of the posterior, as in ['beta']; got {var_names!r}.")
    wanted = [var_names] if isinstance(var_names, str) else list(var_names)
    unknown = [name for name in wanted if name not in dt["posterior"].data_vars]
    if unknown:
        raise ValueError(
            f"var_names has {unknown[0]!r}; the posterior's variables are {list(dt['posterior'].data_vars)}."
        )
    return [row for name in wanted for row in rows_of(rows, name)][:_MOST]


def _numbers(measurement: object) -> tuple[list[str], np.ndarray, np.ndarray] | None:
    """Labels, released values and noise standard deviations of a measurement with additive noise."""
    mechanism, value = measurement.mechanism, measurement.value  # type: ignore[attr-defined]
    variance = mechanism.noise_variance
    if variance is None or mechanism.per_record:
        return None
    values = np.atleast_1d(np.asarray(value, dtype=float)).reshape(-1)
    query = measurement.query  # type: ignore[attr-defined]
    labels = list(query.labels) if query is not None else [str(j) for j in range(values.size)]
    return labels, values, np.sqrt(np.broadcast_to(np.asarray(variance), values.shape))


def _price_parts(cost: Price | xr.DataTree) -> tuple[list[str], dict[str, np.ndarray]]:
    from noisewise.pricing import Price

    if isinstance(cost, Price):
        return list(cost.labels), {part: np.asarray(getattr(cost, part)) for part in _PARTS}
    if "price" not in getattr(cost, "children", ()):
        raise ValueError("This result holds no price of privacy; give nw.price(dt) instead.")
    group = cost["price"].to_dataset()
    return [str(name) for name in group["parameter"].values], {part: group[part].values for part in _PARTS}


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + 0.5 * level))


def _spreads(row: Row) -> list[tuple[str, Spread]]:
    pairs = (("posterior", row.posterior), ("naive", row.naive), ("prior", row.prior))
    return [(kind, spread) for kind, spread in pairs if spread is not None]


def _words(spread: Spread, level: float) -> str:
    return f"mean {spread.mean:.3g}, {level:.0%} interval {spread.low:.3g} to {spread.high:.3g}"
