"""Plots of a weighted density with its draws, and of P(A_u) under its step function (Raim 2021, Figures 1 to 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from noisewise.direct.bases import Base, as_base
from noisewise.direct.samplers import batch_of_targets, log_target, step_function
from noisewise.direct.weights import Weight
from noisewise.release.noise import Noise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 2001
_MARKS = 60


def _axes(axes: Any) -> Axes:
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    return Figure(figsize=(5.2, 3.4), layout="constrained").subplots()


def plot_draws(weight: Weight, base: Noise | Base, draws: Any, *, released: Any = None, axes: Any = None) -> Axes:
    """The target's density (crosses on the integers, a line otherwise) with the empirical law of its draws (circles, or a histogram).

    ``draws`` are those of ``sample`` for one target. The density is normalised over the range of the draws, widened by half
    of it. Returns the axes, drawn on a figure of their own unless ``axes`` is given.
    """
    values = np.asarray(draws, dtype=float).ravel()
    if values.size == 0 or not np.all(np.isfinite(values)):
        raise ValueError(
            f"draws must be finite numbers; got {values.size} with {np.isnan(values).sum()} NaN. Draw them with sample."
        )
    panel = _axes(axes)
    low, high = values.min(), values.max()
    margin = max(0.5 * (high - low), 1.0)
    if as_base(base).discrete:
        support = np.arange(np.floor(low - margin), np.ceil(high + margin) + 1)
        mass = _normalised(weight, base, support, released)
        shown = support[(support >= low) & (support <= high)]
        counts = np.bincount(np.searchsorted(support, values), minlength=support.size) / values.size
        step = max(1, shown.size // _MARKS)
        for marker, heights, label in (("o", counts, "draws"), ("+", mass, "law")):
            place = np.searchsorted(support, shown[::step])
            panel.plot(
                shown[::step], heights[place], marker, fillstyle="none", linestyle="-", linewidth=0.5, label=label
            )
        panel.set_ylabel("probability")
    else:
        points = np.linspace(low - margin, high + margin, _POINTS)
        density = _normalised(weight, base, points, released) / (points[1] - points[0])
        inside = (points >= low) & (points <= high)
        panel.hist(values, bins=min(60, max(10, values.size // 50)), density=True, alpha=0.4, label="draws")
        panel.plot(points[inside], density[inside], label="law")
        panel.set_ylabel("density")
    panel.set_xlabel("x" if released is None else "noise")
    panel.legend(frameon=False)
    return panel


def _normalised(weight: Weight, base: Noise | Base, points: np.ndarray, released: Any) -> np.ndarray:
    log_mass = np.asarray(log_target(weight, base, jnp.asarray(points), released=released))
    mass = np.exp(log_mass - log_mass.max())
    return np.asarray(mass / mass.sum())


def plot_step(weight: Weight, base: Noise | Base, *, released: Any = None, knots: int = 5, axes: Any = None) -> Axes:
    """P(A_u) against log u, with the step function above it and its knots; the title gives the total-variation bound."""
    panel = _axes(axes)
    step = step_function(weight, base, released=released, knots=knots)
    if step.log_p_zero.ndim:
        raise ValueError(f"One target is plotted at a time; got {step.log_p_zero.shape}. Give scalar parameters.")
    target, _ = batch_of_targets(weight, base, released, knots)
    log_u = np.asarray(step.log_u)
    grid = np.linspace(log_u[0], log_u[-1], _POINTS)
    panel.plot(grid, np.exp(np.asarray(target.resolved().log_probability(jnp.asarray(grid)))), label="P(A_u)")
    panel.step(log_u, np.exp(np.asarray(step.log_p)), where="post", linestyle="--", label="step function")
    panel.plot(log_u, np.exp(np.asarray(step.log_p)), "o", markersize=3)
    panel.set_xlabel("log u")
    panel.set_title(f"total variation at most {float(step.bound):.2g}", fontsize="medium")
    panel.legend(frameon=False)
    return panel
