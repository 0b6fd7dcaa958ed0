"""The figures of Ju, Awan, Gong and Rao (2022): clouds of posterior means and of acceptance rates, and coverage, against epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from noisewise.studies.base import Rows, group

_JITTER = 0.04
_SHIFT = 0.07
_COLOURS = ("#1f5a9e", "#e8730c", "#1f9e77")


def plot_means(
    labels: Sequence[str],
    prior_mean: Sequence[float],
    private_mean: Callable[[], np.ndarray],
    rows: Rows,
    folder: Path,
) -> list[Path]:
    """Posterior means by parameter (solid: no noise; dashed: prior), and the acceptance rates of the paper's chain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(labels) + 0.6, 3.2), layout="constrained")
    panels = figure.subplots(1, len(labels), sharey=False, squeeze=False)[0]
    methods = list(dict.fromkeys(rows["method"].tolist()))
    for panel, label, prior, private in zip(panels, labels, prior_mean, private_mean(), strict=True):
        panel.axhline(private, color="black", linewidth=1)
        panel.axhline(prior, color="black", linewidth=1, linestyle="--")
        for (method,), part in group({k: v[rows["parameter"] == label] for k, v in rows.items()}, "method"):
            where = methods.index(method)
            panel.plot(_spread(part, where), part["mean"], ".", markersize=3, color=_COLOURS[where], label=method)
        _epsilon_axis(panel, rows)
        panel.set_title(label)
    panels[0].legend(fontsize="small")
    return [_save(figure, folder / "means.png"), *_plot_acceptance(rows, folder)]


def _plot_acceptance(rows: Rows, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    chain = {
        k: v[(rows["method"] == "algorithm 1") & (rows["parameter"] == rows["parameter"][0])] for k, v in rows.items()
    }
    if not chain["replicate"].size:
        return []
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    panel.plot(_spread(chain, 0), chain["acceptance"], ".", color=_COLOURS[0], label="mean rate")
    panel.plot(_spread(chain, 0), chain["least_rate"], ".", color=_COLOURS[1], label="least rate of a sweep")
    panel.plot(_spread(chain, 0), chain["least_probability"], ".", color=_COLOURS[2], label="least probability")
    epsilons = np.unique(chain["epsilon"])
    line = np.geomspace(epsilons[0], epsilons[-1], 100)
    panel.plot(np.log10(line), np.exp(-line), color="black", label="exp(-epsilon)")
    _epsilon_axis(panel, chain)
    panel.set_ylabel("acceptance")
    panel.legend(fontsize="small")
    return [_save(figure, folder / "acceptance.png")]


def plot_coverage(
    labels: Sequence[str], printed: Mapping[str, Sequence[float]], rows: Rows, folder: Path
) -> list[Path]:
    """Coverage with two standard errors on either side, and the paper's numbers as crosses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(labels) + 0.6, 3.2), layout="constrained")
    panels = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    methods = list(dict.fromkeys(rows["method"].tolist()))
    epsilons = np.unique(rows["epsilon"])
    for j, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        panel.axhline(0.9, color="black", linewidth=1, linestyle="--")
        paper = [(e, printed[str(e)][j]) for e in epsilons.tolist() if str(e) in printed]
        if paper:
            panel.plot(np.log10([e for e, _ in paper]), [c for _, c in paper], "kx", label="paper")
        for (epsilon, method, parameter), part in group(rows, "epsilon", "method", "parameter"):
            if parameter != label:
                continue
            where, share, m = methods.index(method), np.mean(part["covered"]), part["covered"].size
            panel.errorbar(
                np.log10(epsilon) + _SHIFT * (where + 1),
                share,
                2 * np.sqrt((share * m + 0.5) * (m - share * m + 0.5) / (m + 1) ** 2 / (m + 2)),
                fmt="o",
                markersize=4,
                color=_COLOURS[where],
                label=method if epsilon == epsilons[0] else None,
            )
        _epsilon_axis(panel, rows)
        panel.set_title(label)
    panels[0].set_ylabel("coverage of 90% intervals")
    panels[0].legend(fontsize="small")
    return [_save(figure, folder / "coverage.png")]


def _spread(rows: Rows, method: int) -> np.ndarray:
    """Places on the axis of log10 epsilon: replicates side by side, methods apart."""
    number = rows["replicate"] / max(1, rows["replicate"].max()) - 0.5
    return np.log10(rows["epsilon"]) + 2 * _JITTER * number + 2.2 * _JITTER * method


def _epsilon_axis(panel: object, rows: Rows) -> None:
    epsilons = np.unique(rows["epsilon"])
    panel.set_xticks(np.log10(epsilons), [f"{epsilon:g}" for epsilon in epsilons])  # type: ignore[attr-defined]
    panel.set_xlabel("epsilon")  # type: ignore[attr-defined]


def _save(figure: object, path: Path) -> Path:
    figure.savefig(path, dpi=150)  # type: ignore[attr-defined]
    return path
