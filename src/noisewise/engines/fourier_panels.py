r"""A density in one unconstrained coordinate as Legendre polynomials on adaptive panels, to integrate and to draw from.

Panels are halved until the last coefficients of each polynomial are below 1e-12 of the total mass. Draws invert the
cumulative polynomial: the cell by bisection in a table, the place in it by Newton's method, so that their law is that of
the polynomials to rounding, within about 1e-10 of the density in total variation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import legendre

from noisewise.engines.base import Draw, Exact, Sampler
from noisewise.engines.counts_draws import search
from noisewise.models.base import Model
from noisewise.typing import Key

_NODES = 16
_CELLS = 16
_ACCURACY = 1e-12
_START = 12
_ROUNDS = 30
_NEWTON = 5
_GRID = 129
_ZOOMS = 40
_MOST_MAXIMA = 8

NODES, WEIGHTS = legendre.leggauss(_NODES)
COEFFICIENTS = (legendre.legvander(NODES, _NODES - 1) * WEIGHTS[:, None]).T * (np.arange(_NODES) + 0.5)[:, None]


@dataclass(frozen=True)
class Panels:
    """Panel ``[begin, begin + width]`` with its density at the nodes, times ``exp(-log_scale)``; axes (panel, node)."""

    begin: np.ndarray
    width: np.ndarray
    density: np.ndarray
    log_scale: float

    @property
    def nodes(self) -> np.ndarray:
        """The places of the nodes."""
        return self.begin[:, None] + 0.5 * self.width[:, None] * (NODES + 1)

    @property
    def masses(self) -> np.ndarray:
        """The share of the whole mass at each node."""
        raw = 0.5 * self.width[:, None] * WEIGHTS * self.density
        return raw / raw.sum()

    @property
    def log_total(self) -> float:
        """The logarithm of the integral of the density."""
        return float(self.log_scale + np.log(np.sum(0.5 * self.width[:, None] * WEIGHTS * self.density)))


def brackets(
    log_density: Callable[[np.ndarray], np.ndarray], low: float, high: float, nats: float = 50.0
) -> list[tuple[float, float]]:
    """Disjoint intervals outside which a roughly known log density lies ``nats`` below its largest value.

    Every local maximum on a grid is followed: how high a narrow one is, only its own neighbourhood tells.
    """
    found: list[tuple[float, float, float]] = []
    waiting = [(low, high, 0)]
    while waiting:
        low, high, depth = waiting.pop()
        grid = np.linspace(low, high, _GRID)
        values = log_density(grid)
        parts = _around_maxima(values, nats)
        if not parts:
            continue
        if depth == _ZOOMS or (len(parts) == 1 and parts[0][1] - parts[0][0] > _GRID // 2):
            found.append((float(grid[parts[0][0]]), float(grid[parts[-1][1]]), float(np.max(values))))
        else:
            waiting += [(float(grid[first]), float(grid[last]), depth + 1) for first, last in parts]
    if not found:
        raise ValueError("The log density is minus infinity or not a number wherever it was looked at.")
    top = max(height for *_, height in found)
    merged: list[tuple[float, float]] = []
    for low, high, height in sorted(found):
        if height < top - nats:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _around_maxima(values: np.ndarray, nats: float) -> list[tuple[int, int]]:
    """Stretches of a grid around its highest local maxima, as far as they are within ``nats``, and one node more."""
    padded = np.concatenate([[-np.inf], values, [-np.inf]])
    maxima = np.flatnonzero((values >= padded[:-2]) & (values >= padded[2:]) & (values > -np.inf))
    maxima = maxima[np.argsort(-values[maxima], kind="stable")][:_MOST_MAXIMA]
    stretches: list[tuple[int, int]] = []
    for at in sorted(maxima):
        low = np.flatnonzero(values[: at + 1] <= values[at] - nats)
        high = np.flatnonzero(values[at:] <= values[at] - nats)
        first = int(low[-1]) if low.size else 0
        last = int(at + high[0]) if high.size else values.size - 1
        if stretches and first < stretches[-1][1]:
            stretches[-1] = (min(first, stretches[-1][0]), max(last, stretches[-1][1]))
        else:
            stretches.append((first, last))
    return stretches


def adapt(
    log_density: Callable[[np.ndarray], np.ndarray], intervals: list[tuple[float, float]], log_scale: float
) -> Panels:
    """Panels on disjoint intervals fine enough for the density ``exp(log_density - log_scale)``."""
    waiting = [
        (float(a), float(b - a))
        for low, high in intervals
        for a, b in itertools.pairwise(np.linspace(low, high, _START + 1))
    ]
    kept: list[tuple[float, float, np.ndarray]] = []
    for _ in range(_ROUNDS):
        begin, width = np.array(waiting).T
        places = begin[:, None] + 0.5 * width[:, None] * (NODES + 1)
        density = np.exp(log_density(places.ravel()).reshape(places.shape) - log_scale)
        total = sum(float(w * np.mean(d)) for _, w, d in kept) + float(np.sum(width * np.mean(density, axis=1)))
        last = np.sum(np.abs(density @ COEFFICIENTS.T[:, -2:]), axis=1) * width
        fine = last <= _ACCURACY * total
        kept += [(float(b), float(w), d) for b, w, d in zip(begin[fine], width[fine], density[fine], strict=True)]
        waiting = [
            (float(b + half * w / 2), float(w / 2))
            for b, w in zip(begin[~fine], width[~fine], strict=True)
            for half in (0, 1)
        ]
        if not waiting:
            break
    else:
        raise ValueError(
            'The posterior density is too rough for the Fourier engine\'s panels; use method="augmentation" instead.'
        )
    kept.sort(key=lambda panel: panel[0])
    return Panels(
        np.array([b for b, _, _ in kept]), np.array([w for _, w, _ in kept]), np.stack([d for *_, d in kept]), log_scale
    )


class Inverse(eqx.Module):
    """The inverse of a cumulative distribution on panels; every array is padded to a number of panels that rarely changes."""

    begin: Float[Array, " panels"]
    width: Float[Array, " panels"]
    series: Float[Array, "panels coefficients"]
    cumulative: Float[Array, " cells"]

    def __init__(self, panels: Panels) -> None:
        count = max(32, 1 << (panels.begin.size - 1).bit_length())
        short = count - panels.begin.size
        raw = 0.5 * panels.width[:, None] * panels.density
        coefficients = raw @ COEFFICIENTS.T
        coefficients /= 2 * np.sum(coefficients[:, 0])
        series = legendre.legint(coefficients, lbnd=-1, axis=1)
        mass = legendre.legval(1.0, series.T)
        start = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
        series[:, 0] += start
        ends = legendre.legval(-1 + 2 * np.arange(1, _CELLS + 1) / _CELLS, series.T).ravel()
        ends = np.maximum.accumulate(ends)
        ends /= ends[-1]
        self.begin = jnp.asarray(np.pad(panels.begin, (0, short), mode="edge"))
        self.width = jnp.asarray(np.pad(panels.width, (0, short), mode="edge"))
        self.series = jnp.asarray(np.pad(series, ((0, short), (0, 0)), mode="edge"))
        self.cumulative = jnp.asarray(np.pad(ends, (0, short * _CELLS), constant_values=1.0))

    def __call__(self, u: Float[Array, ""]) -> Float[Array, ""]:
        """The place below which a share u of the mass lies."""
        cell = search(self.cumulative, (), u)
        panel = cell // _CELLS
        low = -1 + 2 * (cell % _CELLS) / _CELLS
        high = low + 2 / _CELLS
        series = self.series[panel]
        below = jnp.where(cell > 0, self.cumulative[jnp.maximum(cell - 1, 0)], 0.0)
        x = low + (high - low) * (u - below) / jnp.maximum(self.cumulative[cell] - below, 1e-300)
        for _ in range(_NEWTON):
            value, slope = _evaluate(series, x)
            step = jnp.where(slope > 0, (value - u) / jnp.where(slope > 0, slope, 1.0), 0.0)
            x = jnp.clip(x - step, low, high)
        return self.begin[panel] + 0.5 * self.width[panel] * (x + 1)


class PanelSampler(Sampler):
    """Draws of one parameter by the inverse of its tabulated distribution."""

    model: Model
    inverse: Inverse
    known: Exact

    def draw(self, key: Key) -> Draw:
        free = self.inverse(jax.random.uniform(key, (), dtype=float))
        return Draw(self.model.constrain(free[None]), {}, {})

    def exact(self) -> Exact:
        return self.known


def _evaluate(series: Array, x: Array) -> tuple[Array, Array]:
    """A Legendre series and its derivative at x, by the three-term recurrence."""
    before, now = jnp.ones_like(x), x
    slope_before, slope = jnp.zeros_like(x), jnp.ones_like(x)
    value, derivative = series[0] + series[1] * x, series[1] * slope
    for k in range(1, series.shape[-1] - 1):
        before, now = now, ((2 * k + 1) * x * now - k * before) / (k + 1)
        slope_before, slope = slope, slope_before + (2 * k + 1) * before
        value, derivative = value + series[k + 1] * now, derivative + series[k + 1] * slope
    return value, derivative
