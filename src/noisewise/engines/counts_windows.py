r"""Sums over the counts of one set of cells, for many records: windows around what was released, and positive convolutions.

The factor ``f_j`` of a cell is cut to a window outside which it has less than ``W exp(-F)`` of its mass (W the window's width, F
the fall, 50 at first): either ``f_j`` itself is log-concave (weight at least 1) or its likelihood is and the rest falls, so a fall of
F beyond the end bounds the tail. With ``p_j`` the windows scaled to mass 1 and ``P_j = p_1 * ... * p_j``, the total t of all
cells has a weight ``B(t)``: what was released of the total, or the factor of one more cell that takes the remainder
``n - t``. The share of the posterior that was cut off is below ``2 K W exp(-F) max B / sum_t P(t) B(t)`` (windows and sums
are cut alike): it is computed, and windows grow until it is below 1e-12.

All sums are of positive terms and keep their relative accuracy; where transforms stand in for very long ones, their rounding is
part of the bound. Draws go backward: t from ``P(t) B(t)``, then ``c_j | t ∝ p_j(c) P_{j-1}(t - c)`` by rejection from an
envelope that is constant on blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.signal import fftconvolve

from noisewise.engines.counts_cells import Factors, Unsupported, log_rising
from noisewise.typing import Key

FALLS = (50.0, 120.0, 300.0, 600.0)
"""How far below their largest value factors are cut off: the next one where the first says too little."""
CUT_OFF = 1e-12
_ROUNDING = 1e-10
_DIRECT = 2**26
_WIDEST = 2**22
_BLOCKS = 256
STEEPEST = 40.0
BISECTIONS = 60

LogWeight = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Window:
    """Nonnegative weights of the counts ``first, first + 1, ...``; ``noise`` bounds their absolute rounding error."""

    first: int
    mass: np.ndarray
    noise: float = 0.0

    @property
    def counts(self) -> np.ndarray:
        """The counts."""
        return self.first + np.arange(self.mass.size, dtype=float)


@dataclass(frozen=True)
class Chain:
    """Windows of cells, scaled to mass 1, with their prefix sums; ``log_mass`` is the logarithm of what was divided out."""

    windows: list[Window]
    prefix: list[Window]
    log_mass: float

    @property
    def total(self) -> Window:
        """The law of the total of all cells."""
        return self.prefix[-1]


@dataclass(frozen=True)
class Weighted:
    """A chain whose total has a weight: the law of the total, ``B(t)`` over its largest value, and the log sum over all.

    ``laws`` are those of the counts of the cells; ``trusted`` says that windows cut nothing off that matters.
    """

    chain: Chain
    law: Window
    message: Window
    laws: list[Window]
    log_total: float
    trusted: bool


def windows_of(factors: Factors, cells: np.ndarray, n: int, fall: float) -> Chain:
    """The chain of some cells, whose counts are at most n."""
    windows, log_mass = [], 0.0
    for k, low, high in zip(cells, *_edges(factors, cells, n, fall), strict=True):
        if high - low >= _WIDEST:
            raise Unsupported(f"the noise is so wide that sums would run over {high - low:.1g} counts")
        log_factor = log_factors(factors, int(k), np.arange(low, high + 1))
        top = float(np.max(log_factor))
        if not np.isfinite(top):
            raise ValueError(
                "The released counts are impossible under the model; check the values, the noise law and n."
            )
        mass = np.exp(log_factor - top)
        log_mass += top + float(np.log(mass.sum()))
        windows.append(Window(int(low), mass / mass.sum()))
    return chain_of(windows, log_mass, fall)


def chain_of(windows: Sequence[Window], log_mass: float, fall: float) -> Chain:
    """The chain of windows of mass 1."""
    prefix = [windows[0]]
    for window in windows[1:]:
        prefix.append(_convolve(prefix[-1], window, fall))
    return Chain(list(windows), prefix, log_mass)


def weigh(chain: Chain, log_weight: LogWeight, highest: float, fall: float) -> Weighted | None:
    """The chain with a weight of its total; None where no total that the windows hold is possible.

    The weight may be largest where the windows do not look: ``highest`` bounds its logarithm at all totals.
    """
    total = chain.total
    log_message = log_weight(total.counts)
    top = float(np.max(log_message))
    if not np.isfinite(top):
        return None
    message = np.exp(log_message - top)
    mass = total.mass * message
    share = float(np.sum(mass))
    if share <= 0:
        return None
    widest = max(window.mass.size for window in [*chain.windows, *chain.prefix])
    lost = 2 * (len(chain.windows) + 1) * widest * np.exp(np.clip(highest - top, 0.0, 600.0) - fall)
    law, weight = Window(total.first, mass / share), Window(total.first, message)
    trusted = bool(lost <= CUT_OFF * share and total.noise * float(np.sum(message)) <= _ROUNDING * share)
    return Weighted(chain, law, weight, laws(chain, weight), chain.log_mass + top + float(np.log(share)), trusted)


def solve(
    factors: Factors, cells: np.ndarray, n: int, log_weight: LogWeight, *, last: int | None = None, least: int = 0
) -> Weighted:
    """The sums over the counts of some cells, with windows as wide as it takes, and tilted where that helps.

    Where the weight is the factor of a ``last`` cell, its largest value is known from that; otherwise all totals from ``least``
    to n are looked at.
    """
    tilts = [0.0]
    too_wide: Unsupported | None = None
    for fall in FALLS:
        for at in range(2):
            if at == len(tilts):
                tilts.append(balance(factors, cells, n, log_weight))
            try:
                chain = windows_of(Tilted(factors, tilts[at]), cells, n, fall)
            except Unsupported as reason:
                too_wide = reason
                continue
            tilted = _tilted(log_weight, tilts[at])
            if last is None:
                highest = float(np.max(tilted(np.arange(least, n + 1.0))))
            else:
                highest = tilts[at] * n + log_highest(Tilted(factors, tilts[at]), last, n)
            found = weigh(chain, tilted, highest, fall)
            if found is not None and found.trusted:
                return found
    raise too_wide or ValueError(
        "The released counts contradict each other, or the number of records, by so many times the noise that no count "
        "explains them. Check the values, the noise scales and n."
    )


def _tilted(log_weight: LogWeight, tilt: float) -> LogWeight:
    return lambda total: log_weight(total) + tilt * total


@dataclass(frozen=True)
class Tilted:
    """Factors times ``exp(-tilt c)``: given the total the counts keep their law, and their modes move towards it.

    A tilt for each cell of a chain has the axes (cell, 1).
    """

    factors: Factors
    tilt: float | np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """The Dirichlet weights."""
        return self.factors.weights

    def log_likelihood(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """The tilted log likelihood."""
        return self.factors.log_likelihood(counts, cells) - self.tilt * counts

    def log_factors(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """The tilted log factors."""
        return self.factors.log_factors(counts, cells) - self.tilt * counts


def balance(factors: Factors, cells: np.ndarray, n: int, log_weight: LogWeight) -> float:
    """The tilt that puts the sum of the modes where the weight of the total falls as fast as the factors rise."""
    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        tilt = float(np.sinh(middle))
        total = float(np.sum(modes(Tilted(factors, tilt), cells, n)))
        now, after = log_weight(np.array([total, total + 1]))
        # no weight at all: too many (the weight ends at n), or too few
        falling = total > n if now == -np.inf else after == -np.inf or after - now + tilt < 0
        low, high = (middle, high) if falling else (low, middle)
    return float(np.sinh(0.5 * (low + high)))


def log_factors(factors: Factors, cell: int, counts: np.ndarray) -> np.ndarray:
    """``log f`` of one cell, padded to a power of two so that few shapes are compiled."""
    short = (1 << max(8, (counts.size - 1).bit_length())) - counts.size
    padded = np.pad(np.asarray(counts, dtype=float), (0, short), mode="edge")
    return factors.log_factors(padded[None], np.array([cell]))[0, : counts.size]


def log_highest(factors: Factors, cell: int, n: int) -> float:
    """A bound on ``log f`` of one cell over all counts up to n, tight to within ``log 2``."""
    at = modes(factors, np.array([cell]), n)
    if factors.weights[cell] >= 1:
        return float(np.max(log_factors(factors, cell, at)))
    # the rising part falls from one, at most by the half from 2^k to 2^(k+1); the likelihood is concave
    low = np.concatenate([[0.0], 2.0 ** np.arange(int(n).bit_length())])
    high = np.append(low[1:] - 1, float(n))
    places = np.clip(at, low, high)
    likelihood = factors.log_likelihood(places[None], np.array([cell]))[0]
    return float(np.max(likelihood + log_rising(low, factors.weights[cell])))


def remainder(factors: Factors, cell: int, n: int) -> LogWeight:
    """The weight of a total t when one more cell takes what it leaves of n."""

    def log_weight(counts: np.ndarray) -> np.ndarray:
        rest = np.full(counts.shape, -np.inf)
        possible = (counts >= 0) & (counts <= n)
        if np.any(possible):
            rest[possible] = log_factors(factors, cell, n - counts[possible])
        return rest

    return log_weight


def _height(factors: Factors, cells: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A concave function of one count a cell: the log factor, or its likelihood for weights below 1."""
    weights = factors.weights[cells]
    likelihood = factors.log_likelihood(counts[:, None], cells)[:, 0]
    return likelihood + np.where(weights >= 1, log_rising(counts, weights), 0.0)


def modes(factors: Factors, cells: np.ndarray, n: int) -> np.ndarray:
    """Where the concave functions are largest, by bisection."""
    low, high = np.zeros(cells.size), np.full(cells.size, float(n))
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        rising = _height(factors, cells, middle + 1) > _height(factors, cells, middle)
        low, high = np.where(rising & (low < high), middle + 1, low), np.where(rising, high, middle)
    return low


def _edges(factors: Factors, cells: np.ndarray, n: int, fall: float) -> tuple[np.ndarray, np.ndarray]:
    """The windows' ends, by bisection on either side of the mode: the first counts that are below the fall, or 0 and n."""
    weights = factors.weights[cells]

    def height(counts: np.ndarray) -> np.ndarray:
        return _height(factors, cells, counts)

    peak = modes(factors, cells, n)
    level = height(peak) - fall + np.where(weights >= 1, 0.0, np.minimum(log_rising(peak, weights), 0.0))
    ends = []
    for limit in (0.0, float(n)):
        inside, outside = peak.copy(), np.full(cells.size, limit)
        whole = height(outside) >= level
        while np.any(np.abs(outside - inside) > 1):
            middle = np.trunc((inside + outside) / 2)
            keeps = height(middle) >= level
            inside, outside = np.where(keeps, middle, inside), np.where(keeps, outside, middle)
        ends.append(np.where(whole, limit, outside))
    return ends[0], ends[1]


def _convolve(first: Window, second: Window, fall: float) -> Window:
    """The law of the sum, without the ends that are below ``exp(-fall)`` of its largest mass."""
    mass, noise = _product(first, second.mass)
    kept = np.flatnonzero(mass > np.exp(-fall) * np.max(mass))
    begin, end = max(int(kept[0]) - 1, 0), int(kept[-1]) + 2
    return Window(first.first + second.first + begin, mass[begin:end], noise)


def _product(first: Window, second: np.ndarray) -> tuple[np.ndarray, float]:
    """A convolution of positive numbers, by its definition or by transforms where that would take too long, and its noise."""
    carried = first.noise * float(np.sum(second))
    if first.mass.size * second.size <= _DIRECT:
        return np.convolve(first.mass, second), carried
    noise = 20 * np.finfo(float).eps * float(np.linalg.norm(first.mass) * np.linalg.norm(second))
    return np.maximum(fftconvolve(first.mass, second), 0.0), carried + noise


def messages(chain: Chain, message: Window) -> list[Window]:
    """For each cell j, ``sum_u P(others have u) B(u + c)`` at the counts c of its window, for weights B of the total."""
    found: list[Window] = []
    for j in reversed(range(len(chain.windows))):
        window = chain.windows[j]
        if j == 0:
            found.insert(0, cut(message, window.first, window.mass.size))
            break
        before = chain.prefix[j - 1]
        found.insert(0, _correlate(message, before, window.first, window.mass.size))
        message = _correlate(message, window, before.first, before.mass.size)
    return found


def laws(chain: Chain, message: Window) -> list[Window]:
    """The laws of the counts of the cells, for weights of the total."""
    found = []
    for window, others in zip(chain.windows, messages(chain, message), strict=True):
        law = window.mass * others.mass
        found.append(Window(window.first, law / law.sum()))
    return found


def moments(law: Window) -> tuple[float, float]:
    """Mean and variance."""
    centre = law.first + float(np.sum(law.mass * (law.counts - law.first)))
    return centre, float(np.sum(law.mass * (law.counts - centre) ** 2))


def _correlate(message: Window, window: Window, first: int, size: int) -> Window:
    """``sum_u p(u) B(u + c)`` at c = first, first + 1, ..."""
    mass, noise = _product(message, window.mass[::-1])
    return cut(Window(message.first - window.first - window.mass.size + 1, mass, noise), first, size)


def cut(window: Window, first: int, size: int) -> Window:
    """The window at first, first + 1, ...; zero outside."""
    at = np.arange(first, first + size) - window.first
    inside = (at >= 0) & (at < window.mass.size)
    return Window(first, np.where(inside, window.mass[np.clip(at, 0, window.mass.size - 1)], 0.0), window.noise)


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
        # a total that no counts add up to is drawn with probability below the rounding error: it must not loop for ever
        accepted = (u[2] * bound[chosen] < density) | (cumulative[-1] <= 0)
        return key, done | accepted, jnp.where(done, count, first + place)

    return jax.lax.while_loop(lambda carry: ~carry[1], propose, (key, jnp.array(False), first))[2]
