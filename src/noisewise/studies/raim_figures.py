"""The figures of Raim (2021): P(A_u) and its knots, draws with their law, posteriors of a data set, and mean squared errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from noisewise.direct.bases import as_base
from noisewise.direct.plots import plot_step
from noisewise.direct.samplers import step_function
from noisewise.direct.step import Target
from noisewise.direct.weights import LognormalWeight
from noisewise.release.noise import DiscreteLaplace
from noisewise.studies.base import Rows, group

_STEPS = {"ab": (200_000.0, -2.0, 8.5, 0.01), "cd": (2.0, 0.0, 1.0, 0.1)}
_PIECES, _POINTS, _VISIBLE = 5, 20_001, 1e-12
_COLOURS = {"adjusted": "#1f5a9e", "sensitive": "#e8730c"}
_LINES = {"adjusted": "-", "sensitive": "--"}


def plot_direct(examples: Mapping[str, Sequence[float]], rows: Rows, folder: Path) -> list[Path]:
    """Figure 1: P(A_u) and its knots; Figures 2 and 3: draws (circles) and law (crosses) of the examples, and attempts."""
    paths = [_knots(folder / "figure_1.png")]
    first = {name: column[rows["replicate"] == rows["replicate"].min()] for name, column in rows.items()}
    for number, names in ((2, ("4.1",)), (3, ("4.3a", "4.3b", "4.3c", "4.3d"))):
        figure, grid = _panels(names if number == 3 else ("a", "b"))
        if number == 2:
            here = (first["example"] == "4.1") & (first["attempts"] > 0)
            grid[0][1].hist(first["attempts"][here], bins=60, density=True, log=True)
            grid[0][1].set(xlabel="candidates a draw", title="basic sampler")
        for panel, name in zip(grid[0], names, strict=False):
            here = (first["example"] == name) & np.isfinite(first["law"])
            for (method,), part in group({k: v[here] for k, v in first.items()}, "method"):
                step = max(1, part["noise"].size // 60)
                panel.plot(part["noise"][::step], part["drawn"][::step], "o", fillstyle="none", label=method)
                panel.plot(part["noise"][::step], part["law"][::step], "+k", linestyle="-", linewidth=0.5)
            panel.set_title(f"Example {name}: z = {examples[name][0]:g}, rho = {examples[name][3]:g}", fontsize="small")
            panel.set_xlabel("noise")
            panel.legend(fontsize="small", frameon=False)
        paths.append(_save(figure, folder / f"figure_{number}.png"))
    return paths


def _knots(path: Path) -> Path:
    """P(A_u) with five pieces of equal width between u_L and u_H, and with five placed by Algorithm 1."""
    figure, panels = _panels(tuple(_STEPS), 2)
    for column, (name, (z, mu, sigma2, rho)) in enumerate(_STEPS.items()):
        weight, base = LognormalWeight(jnp.asarray(mu), jnp.asarray(sigma2)), DiscreteLaplace.from_rho(rho)
        above, below = panels[0][column], panels[1][column]
        target = Target(weight, as_base(base), jnp.asarray(z))
        ends = np.asarray(step_function(weight, base, released=z, knots=_PIECES).log_u)
        grid = np.linspace(float(ends[0]), float(ends[-1]), _POINTS)
        shares = np.exp(np.asarray(target.log_probability(jnp.asarray(grid))))
        # from u_L, where P(A_u) begins to fall, to u_H, where it is nothing beside P(A_0)
        falling = np.flatnonzero((shares < shares[0] * (1 - _VISIBLE)) & (shares > shares[0] * _VISIBLE))
        low, high = np.exp(grid[[falling[0] - 1, falling[-1] + 1]])
        knots = np.linspace(low, high, _PIECES + 1)
        heights = np.exp(np.asarray(target.log_probability(jnp.log(jnp.asarray(knots)))))
        near = np.linspace(0.9 * low, min(high + 0.1 * low, 1.0), _POINTS)[1:]
        above.plot(near, np.exp(np.asarray(target.log_probability(jnp.log(jnp.asarray(near))))), color="crimson")
        above.step(knots, heights, "o--k", where="post", linewidth=0.8, markersize=4)
        above.set_title(f"Figure 1 {name[0]}: equal steps", fontsize="small")
        above.set_xlabel("u")
        plot_step(weight, base, released=z, knots=_PIECES, axes=below)
        below.set_title(f"Figure 1 {name[1]}: Algorithm 1; {below.get_title()}", fontsize="small")
    return _save(figure, path)


def plot_regressions(varies: str, numbers: Sequence[int], rows: Rows, folder: Path) -> list[Path]:
    """Posteriors of beta and traces of sigma^2 of the first data set at the smallest rho, and the errors of all data sets."""
    kept = rows["iteration"] >= 0
    draws = {k: v[kept & (rows["rho"] == rows["rho"].min())] for k, v in rows.items()}
    paths = []
    if draws["rho"].size:
        paths = [_clouds(varies, draws, folder / f"figure_{numbers[0]}.png")]
        paths.append(_traces(varies, draws, folder / f"figure_{numbers[1]}.png"))
    summaries = {k: v[~kept] for k, v in rows.items()}
    return [*paths, _errors(varies, summaries, folder / f"figure_{numbers[2]}.png")]


def _panels(values: Sequence[Any] | np.ndarray, rows: int = 1) -> tuple[Any, np.ndarray]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(values) + 0.6, 3.1 * rows), layout="constrained")
    return figure, figure.subplots(rows, len(values), squeeze=False)


def _clouds(varies: str, draws: Rows, path: Path) -> Path:
    values = np.unique(draws[varies])
    figure, panels = _panels(values)
    for panel, value in zip(panels[0], values, strict=True):
        for (method,), part in group({k: v[draws[varies] == value] for k, v in draws.items()}, "method"):
            panel.plot(part["beta1"], part["beta2"], ".", markersize=2, color=_COLOURS[method], label=method)
        panel.set_title(f"{varies} = {value:g}")
        panel.set_xlabel("beta 1")
    panels[0][0].set_ylabel("beta 2")
    panels[0][0].legend(frameon=False, markerscale=4)
    return _save(figure, path)


def _traces(varies: str, draws: Rows, path: Path) -> Path:
    values = np.unique(draws[varies])
    figure, panels = _panels(values)
    for panel, value in zip(panels[0], values, strict=True):
        for (method,), part in group({k: v[draws[varies] == value] for k, v in draws.items()}, "method"):
            panel.plot(part["iteration"], part["variance"], linewidth=0.6, color=_COLOURS[method], label=method)
        panel.axhline(
            float(draws["sigma"][draws[varies] == value][0]) ** 2, color="crimson", linestyle="--", linewidth=1
        )
        panel.set_title(f"{varies} = {value:g}")
        panel.set_xlabel("kept draw")
    panels[0][0].set_ylabel("sigma^2")
    panels[0][0].legend(frameon=False)
    return _save(figure, path)


def _errors(varies: str, summaries: Rows, path: Path) -> Path:
    values, rhos = np.unique(summaries[varies]), np.unique(summaries["rho"])
    figure, panels = _panels(values, len(rhos))
    for row, rho in zip(panels, rhos, strict=True):
        for panel, value in zip(row, values, strict=True):
            here = (summaries["rho"] == rho) & (summaries[varies] == value)
            ends = np.quantile(np.log10(summaries["mse"][here]), [0, 1])
            bins = np.linspace(ends[0] - 0.05, ends[1] + 0.05, 31)
            for (method,), part in group({k: v[here] for k, v in summaries.items()}, "method"):
                counts, edges = np.histogram(np.log10(part["mse"]), bins=bins, density=True)
                panel.stairs(counts, edges, color=_COLOURS[method], linestyle=_LINES[method], label=method)
            panel.set_title(f"rho = {rho:g}, {varies} = {value:g}", fontsize="small")
            panel.set_xlabel("log10 MSE")
    panels[0][0].legend(frameon=False, fontsize="small")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path
