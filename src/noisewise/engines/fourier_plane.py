r"""A density of two unconstrained coordinates as Legendre polynomials on boxes, to integrate and to draw from.

The second coordinate w keeps its place; the first is ``x = c(w) + h(w) r``, with ``c`` and ``log h`` polynomials fitted to where the
density is seen to lie at each w. Any smooth c and h will do, because the density on the (w, r) plane carries the Jacobian ``h(w)``;
good ones straighten a thin curved ridge (the mean and variance of 3e8 clamped records) into a bar that few boxes follow.

Boxes are halved along the coordinate whose last coefficients are larger until these are below 1e-7 of the total mass; sums by the
Gauss rule are far more accurate than that. A draw takes a box by its mass, w by inverting the cumulative polynomial of its margin,
and r given w likewise: independent draws whose law is that of the polynomials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev, legendre

from noisewise.engines.base import Draw, Exact, Sampler
from noisewise.engines.counts_draws import search
from noisewise.engines.fourier_panels import COEFFICIENTS, NODES, WEIGHTS
from noisewise.models.base import Model
from noisewise.typing import Key

LogDensity = Callable[[np.ndarray], np.ndarray]

_NATS = 34.0
_NATS_BETWEEN = 50.0
_POINTS = 33
_ZOOMS = 40
_DEGREE = 14
_SLACK = 1.15
_ACCURACY = 1e-7
_START = (3, 2)
_MOST_BOXES = 600
_BISECTIONS = 50


class Rough(ValueError):
    """A density that too many boxes would be needed for."""


@dataclass(frozen=True)
class Ridge:
    """Where the density lies: w in [low, high], and at each w the first coordinate within ``c(w) +- reach h(w)``."""

    low: float
    high: float
    centre: np.ndarray
    log_width: np.ndarray
    reach: float

    def unit(self, w: np.ndarray) -> np.ndarray:
        """w in [-1, 1]."""
        return (2 * w - self.low - self.high) / (self.high - self.low)

    def free(self, w: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both free coordinates (last axis) and ``log h(w)``."""
        log_width = chebyshev.chebval(self.unit(w), self.log_width)
        return np.stack([chebyshev.chebval(self.unit(w), self.centre) + np.exp(log_width) * r, w], axis=-1), log_width


def find_ridge(approximate: LogDensity, first: tuple[float, float], second: tuple[float, float]) -> Ridge:
    """The ridge of a roughly known log density, from intervals of both coordinates that hold it."""
    low, high = second
    for _ in range(_ZOOMS):
        w = np.linspace(low, high, _POINTS)
        begin, end, top = _slices(approximate, w, first)
        kept = np.flatnonzero(top > np.max(top) - _NATS_BETWEEN)
        start, stop = max(kept[0] - 1, 0), min(kept[-1] + 1, w.size - 1)
        low, high = float(w[start]), float(w[stop])
        if stop - start > w.size // 2:
            break
    unit = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)
    begin, end, _ = _slices(approximate, 0.5 * (low + high) + 0.5 * (high - low) * unit, first)
    centre = chebyshev.chebfit(unit, 0.5 * (begin + end), _DEGREE)
    log_width = chebyshev.chebfit(unit, np.log(0.5 * (end - begin)), _DEGREE)
    apart = np.maximum(end - chebyshev.chebval(unit, centre), chebyshev.chebval(unit, centre) - begin)
    reach = float(np.max(apart / np.exp(chebyshev.chebval(unit, log_width))))
    return Ridge(low, high, centre, log_width, _SLACK * reach)


def _slices(
    approximate: LogDensity, w: np.ndarray, first: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each w the interval of the first coordinate outside which the density is far below its largest, and that one."""
    low, high = np.full(w.size, first[0]), np.full(w.size, first[1])
    moving = np.ones(w.size, bool)
    top = np.full(w.size, -np.inf)
    share = np.linspace(0, 1, _POINTS)
    for _ in range(_ZOOMS):
        rows = np.flatnonzero(moving)
        if not rows.size:
            break
        x = low[rows, None] + (high - low)[rows, None] * share
        free = np.stack([x, np.broadcast_to(w[rows, None], x.shape)], axis=-1)
        values = approximate(free.reshape(-1, 2)).reshape(x.shape)
        top[rows] = values.max(axis=1)
        inside = values > top[rows, None] - _NATS
        start = np.maximum(np.argmax(inside, axis=1) - 1, 0)
        stop = np.minimum(_POINTS - np.argmax(inside[:, ::-1], axis=1), _POINTS - 1)
        low[rows], high[rows] = x[np.arange(rows.size), start], x[np.arange(rows.size), stop]
        moving[rows] = stop - start <= _POINTS // 2
    return low, high, top


@dataclass(frozen=True)
class Boxes:
    """Boxes of the (w, r) plane: corners and sizes (box, 2), densities at the nodes (box, w, r) times ``exp(-log_scale)``."""

    ridge: Ridge
    begin: np.ndarray
    size: np.ndarray
    density: np.ndarray
    log_scale: float

    @property
    def nodes(self) -> np.ndarray:
        """The free coordinates of the nodes (box, w, r, 2)."""
        return self.ridge.free(*_places(self.begin, self.size))[0]

    @property
    def raw(self) -> np.ndarray:
        """The mass at each node, in the scale of the densities."""
        return 0.25 * np.prod(self.size, axis=1)[:, None, None] * WEIGHTS[:, None] * WEIGHTS * self.density

    @property
    def masses(self) -> np.ndarray:
        """The share of the whole mass at each node."""
        return self.raw / self.raw.sum()

    @property
    def log_total(self) -> float:
        """The logarithm of the integral of the density."""
        return self.log_scale + float(np.log(self.raw.sum()))


def _places(begin: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nodes = begin[:, :, None] + 0.5 * size[:, :, None] * (NODES + 1)
    shape = (begin.shape[0], NODES.size, NODES.size)
    return np.broadcast_to(nodes[:, 0, :, None], shape), np.broadcast_to(nodes[:, 1, None, :], shape)


def adapt_boxes(exact: LogDensity, ridge: Ridge, log_scale: float) -> Boxes:
    """Boxes fine enough for the density ``exp(exact)``."""
    steps = np.array([(ridge.high - ridge.low) / _START[0], 2 * ridge.reach / _START[1]])
    corners = np.stack(np.meshgrid(np.arange(_START[0]), np.arange(_START[1]), indexing="ij"), axis=-1).reshape(-1, 2)
    waiting = [(corner * steps + np.array([ridge.low, -ridge.reach]), steps) for corner in corners]
    kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    total = 0.0
    while waiting:
        if len(kept) + len(waiting) > _MOST_BOXES:
            raise Rough
        begin, size = (np.stack(part) for part in zip(*waiting, strict=True))
        free, log_width = ridge.free(*_places(begin, size))
        density = np.exp(exact(free.reshape(-1, 2)).reshape(log_width.shape) + log_width - log_scale)
        area = 0.25 * np.prod(size, axis=1)
        masses = area * np.einsum("bij,i,j->b", density, WEIGHTS, WEIGHTS)
        total += float(masses.sum())
        coefficients = np.abs(np.einsum("bij,ki,lj->bkl", density, COEFFICIENTS, COEFFICIENTS, optimize=True))
        last = np.stack([coefficients[:, -2:].sum(axis=(1, 2)), coefficients[:, :, -2:].sum(axis=(1, 2))], axis=1)
        fine = np.max(last, axis=1) * 4 * area <= _ACCURACY * total
        kept += [(begin[b], size[b], density[b]) for b in np.flatnonzero(fine)]
        total -= float(masses[~fine].sum())
        waiting = []
        for b in np.flatnonzero(~fine):
            along = np.eye(2)[int(np.argmax(last[b]))] * size[b] / 2
            waiting += [(begin[b], size[b] - along), (begin[b] + along, size[b] - along)]
    begins, sizes, densities = (np.stack(part) for part in zip(*kept, strict=True))
    return Boxes(ridge, begins, sizes, densities, log_scale)


class PlaneSampler(Sampler):
    """Draws of two parameters by a box, the margin of w in it, and r given w."""

    model: Model
    known: Exact
    cumulative: Float[Array, " boxes"]
    begin: Float[Array, "boxes 2"]
    size: Float[Array, "boxes 2"]
    series: Float[Array, "boxes k k"]
    span: Float[Array, " 2"]
    centre: Float[Array, " degree"]
    log_width: Float[Array, " degree"]

    def __init__(self, model: Model, boxes: Boxes, known: Exact) -> None:
        self.model, self.known = model, known
        count = max(32, 1 << (boxes.begin.shape[0] - 1).bit_length())
        short = count - boxes.begin.shape[0]
        mass = np.cumsum(boxes.raw.sum(axis=(1, 2)))
        self.cumulative = jnp.asarray(np.pad(mass / mass[-1], (0, short), constant_values=1.0))
        self.begin, self.size = (
            jnp.asarray(np.pad(part, ((0, short), (0, 0)), mode="edge")) for part in (boxes.begin, boxes.size)
        )
        series = np.einsum("bij,ki,lj->bkl", boxes.density, COEFFICIENTS, COEFFICIENTS, optimize=True)
        self.series = jnp.asarray(np.pad(series, ((0, short), (0, 0), (0, 0)), mode="edge"))
        ridge = boxes.ridge
        self.span = jnp.array([ridge.low, ridge.high])
        self.centre, self.log_width = jnp.asarray(ridge.centre), jnp.asarray(ridge.log_width)

    def draw(self, key: Key) -> Draw:
        u = jax.random.uniform(key, (3,), dtype=float)
        box = search(self.cumulative, (), u[0])
        series = self.series[box]
        first = _invert(series[:, 0], u[1])
        second = _invert(_legendre(first, series.shape[0]) @ series, u[2])
        w, r = self.begin[box] + 0.5 * self.size[box] * (jnp.stack([first, second]) + 1)
        turn = jnp.arccos(jnp.clip((2 * w - self.span[0] - self.span[1]) / (self.span[1] - self.span[0]), -1, 1))
        waves = jnp.cos(turn * jnp.arange(self.centre.size))
        x = waves @ self.centre + jnp.exp(waves @ self.log_width) * r
        return Draw(self.model.constrain(jnp.stack([x, w])), {}, {})

    def exact(self) -> Exact:
        return self.known


def _legendre(x: Float[Array, ""], count: int) -> Float[Array, " count"]:
    """The first Legendre polynomials at x."""
    values = [jnp.ones_like(x), x]
    for k in range(1, count - 1):
        values.append(((2 * k + 1) * x * values[k] - k * values[k - 1]) / (k + 1))
    return jnp.stack(values)


_INTEGRATE = legendre.legint(np.eye(NODES.size), lbnd=-1, axis=0)


def _invert(series: Float[Array, " k"], u: Float[Array, ""]) -> Float[Array, ""]:
    """The place in [-1, 1] below which a share u of the density with this Legendre series lies, by bisection."""
    cumulative = jnp.asarray(_INTEGRATE) @ series
    target = u * 2 * series[0]

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        below = _legendre(middle, _INTEGRATE.shape[0]) @ cumulative < target
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (-jnp.ones_like(u), jnp.ones_like(u)))
    return 0.5 * (low + high)
