r"""Sums over the counts of one column, for many records: windows around what was released, and positive convolutions.

One cell r carries the remainder ``n - t``, t the total of the others; for the others the factor ``f_j`` is cut to a window
outside which it has less than ``W exp(-50)`` of its mass (W the window's width): either ``f_j`` itself is log-concave (weight at
least 1) or its likelihood is and the rest falls, so a fall of 50 beyond the end bounds the tail. With ``p_j`` the windows scaled to
mass 1, ``P_j = p_1 * ... * p_j`` and ``g(t) = f_r(n - t) / max f_r``, the share of the posterior that was cut off is below
``2 K W exp(-50) / sum_t P(t) g(t)`` (windows and sums are cut alike): it is computed, and a share above 1e-12 is refused.

All sums are of positive terms and keep their relative accuracy. Draws go backward: t from ``P(t) g(t)``, then
``c_j | t ∝ p_j(c) P_{j-1}(t - c)`` by rejection from an envelope that is constant on blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.signal import fftconvolve

from noisewise.engines.counts_cells import Cells, log_rising
from noisewise.typing import Key

_FALL = 50.0
_CUT_OFF = 1e-12
_DIRECT = 2**28
_BLOCKS = 256


@dataclass(frozen=True)
class Window:
    """Probabilities of the counts ``first, first + 1, ...``."""

    first: int
    mass: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """The counts."""
        return self.first + np.arange(self.mass.size, dtype=float)


@dataclass(frozen=True)
class Remainder:
    """The sums of a column: windows and prefix sums of all cells but ``cell``, which takes what is left of n.

    ``total`` is the law of what the others have together; ``log_total`` the logarithm of the sum over all counts; the
    moments of the counts are those of all cells, in the order of the cells.
    """

    cell: int
    windows: list[Window]
    prefix: list[Window]
    total: Window
    log_total: float
    means: np.ndarray
    variances: np.ndarray


def solve_remainder(cells: Cells, n: int) -> Remainder:
    """The sums over the counts of all cells with total n."""
    size = cells.weights.size
    measured = np.any([layer.slope != 0 for layer in cells.layers], axis=0)
    last = int(np.flatnonzero(~measured)[0]) if not np.all(measured) else 0 if size == 2 else size - 1
    others = np.array([k for k in range(size) if k != last])
    windows, log_masses = [], []
    for k, low, high in zip(others, *_edges(cells, others, n), strict=True):
        log_factor = _log_factors(cells, k, np.arange(low, high + 1))
        top = float(np.max(log_factor))
        if not np.isfinite(top):
            raise ValueError(
                "The released counts are impossible under the model; check the values, the noise law and n."
            )
        mass = np.exp(log_factor - top)
        log_masses.append(top + float(np.log(mass.sum())))
        windows.append(Window(int(low), mass / mass.sum()))
    prefix = [windows[0]]
    for window in windows[1:]:
        prefix.append(_convolve(prefix[-1], window))
    counts = prefix[-1].counts
    possible = counts <= n
    log_rest = np.full(counts.shape, -np.inf)
    log_rest[possible] = _log_factors(cells, last, n - counts[possible])
    top = float(np.max(log_rest)) if np.any(possible) else -np.inf
    rest = Window(prefix[-1].first, np.exp(log_rest - top)) if np.isfinite(top) else None
    share = float(np.sum(prefix[-1].mass * rest.mass)) if rest is not None else 0.0
    widest = max(window.mass.size for window in [*windows, *prefix])
    if rest is None or 2 * size * widest * np.exp(-_FALL) > _CUT_OFF * share:
        raise ValueError(
            f"The released counts contradict n={n}: together they leave no room for the last level within the noise. "
            "Check the values, the noise scale and n."
        )
    total = Window(rest.first, prefix[-1].mass * rest.mass / share)
    laws = _marginals(windows, prefix, rest)
    means, variances = np.zeros(size), np.zeros(size)
    for k, law in [*zip(others, laws, strict=True), (last, Window(total.first, total.mass))]:
        centre = law.first + float(np.sum(law.mass * (law.counts - law.first)))
        means[k] = n - centre if k == last else centre
        variances[k] = float(np.sum(law.mass * (law.counts - centre) ** 2))
    log_total = sum(log_masses) + top + float(np.log(share))
    return Remainder(last, windows, prefix, total, log_total, means, variances)


def _log_factors(cells: Cells, cell: int, counts: np.ndarray) -> np.ndarray:
    """``log f`` of one cell, padded to a power of two so that few shapes are compiled."""
    short = (1 << max(8, (counts.size - 1).bit_length())) - counts.size
    padded = np.pad(np.asarray(counts, dtype=float), (0, short), mode="edge")
    return cells.log_factors(padded[None], np.array([cell]))[0, : counts.size]


def _edges(cells: Cells, others: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The windows' ends, by bisection on a concave function: the log factor, or its likelihood for weights below 1."""
    weights = cells.weights[others]

    def height(counts: np.ndarray) -> np.ndarray:
        likelihood = cells.log_likelihood(counts[:, None], others)[:, 0]
        return likelihood + np.where(weights >= 1, log_rising(counts, weights), 0.0)

    low, high = np.zeros(others.size), np.full(others.size, float(n))
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        rising = height(middle + 1) > height(middle)
        low, high = np.where(rising & (low < high), middle + 1, low), np.where(rising, high, middle)
    peak = low
    level = height(peak) - _FALL + np.where(weights >= 1, 0.0, np.minimum(log_rising(peak, weights), 0.0))
    ends = []
    for limit in (0.0, float(n)):
        inside, outside = peak.copy(), np.full(others.size, limit)
        whole = height(outside) >= level
        while np.any(np.abs(outside - inside) > 1):
            middle = np.trunc((inside + outside) / 2)
            keeps = height(middle) >= level
            inside, outside = np.where(keeps, middle, inside), np.where(keeps, outside, middle)
        ends.append(np.where(whole, limit, inside))
    return ends[0], ends[1]


def _convolve(first: Window, second: Window) -> Window:
    """The law of the sum, without the ends that are below exp(-50) of its largest mass."""
    mass = _product(first.mass, second.mass)
    kept = np.flatnonzero(mass > np.exp(-_FALL) * np.max(mass))
    return Window(first.first + second.first + int(kept[0]), mass[kept[0] : kept[-1] + 1])


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A convolution of positive numbers: by its definition, or by transforms where that would take too long."""
    if first.size * second.size <= _DIRECT:
        return np.convolve(first, second)
    return np.maximum(fftconvolve(first, second), 0.0)


def _marginals(windows: list[Window], prefix: list[Window], rest: Window) -> list[Window]:
    """The laws of the counts of all cells but the remainder: ``p_j(c) sum_u P_{j-1}(u) B_j(u + c)``."""
    message = rest
    laws: list[Window] = []
    for j in reversed(range(len(windows))):
        window = windows[j]
        if j == 0:
            law = window.mass * _cut(message, window.first, window.mass.size)
            laws.insert(0, Window(window.first, law / law.sum()))
            break
        before = prefix[j - 1]
        law = window.mass * _correlate(message, before, window.first, window.mass.size)
        laws.insert(0, Window(window.first, law / law.sum()))
        message = Window(before.first, _correlate(message, window, before.first, before.mass.size))
    return laws


def _correlate(message: Window, window: Window, first: int, size: int) -> np.ndarray:
    """``sum_u p(u) B(u + c)`` at c = first, first + 1, ..."""
    lagged = Window(message.first - window.first - window.mass.size + 1, _product(message.mass, window.mass[::-1]))
    return _cut(lagged, first, size)


def _cut(window: Window, first: int, size: int) -> np.ndarray:
    """The masses at first, first + 1, ...; zero outside the window."""
    at = np.arange(first, first + size) - window.first
    inside = (at >= 0) & (at < window.mass.size)
    return np.where(inside, window.mass[np.clip(at, 0, window.mass.size - 1)], 0.0)


def padded(window: Window, width: int) -> np.ndarray:
    """The probabilities with zeros behind."""
    return np.pad(window.mass, (0, width - window.mass.size))


def envelopes(window: Window, before: Window, width: int, before_width: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest mass of the window in each block, and of the prefix in the stretch a block can meet, by where it ends."""
    block = width // _BLOCKS
    high = padded(window, width).reshape(_BLOCKS, block).max(axis=1)
    stretch = np.concatenate([padded(before, before_width), np.zeros(block)])
    reach = stretch.copy()
    for back in range(1, block):
        reach[back:] = np.maximum(reach[back:], stretch[:-back])
    return high, reach


def split_window(
    key: Key,
    total: Int[Array, ""],
    first: Int[Array, ""],
    mass: Float[Array, " width"],
    high: Float[Array, " blocks"],
    before_first: Int[Array, ""],
    before: Float[Array, " before_width"],
    reach: Float[Array, " longer"],
) -> Int[Array, ""]:
    """A count c with law proportional to ``p(c) P(total - c)``, by rejection from blocks on which both have known maxima."""
    block = mass.shape[0] // high.shape[0]
    ends = total - first - before_first - jnp.arange(high.shape[0]) * block
    bound = high * jnp.where((ends >= 0) & (ends < reach.shape[0]), reach[jnp.clip(ends, 0, reach.shape[0] - 1)], 0.0)
    cumulative = jnp.cumsum(bound)

    def propose(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, done, count = carry
        key, now = jax.random.split(key)
        u = jax.random.uniform(now, (3,), dtype=float)
        chosen = jnp.minimum(jnp.searchsorted(cumulative, u[0] * cumulative[-1], side="right"), high.shape[0] - 1)
        place = chosen * block + jnp.minimum(jnp.floor(u[1] * block).astype(int), block - 1)
        at = total - first - before_first - place
        density = mass[place] * jnp.where(
            (at >= 0) & (at < before.shape[0]), before[jnp.clip(at, 0, before.shape[0] - 1)], 0.0
        )
        accepted = u[2] * bound[chosen] < density
        return key, done | accepted, jnp.where(done, count, first + place)

    return jax.lax.while_loop(lambda carry: ~carry[1], propose, (key, jnp.array(False), first))[2]
