r"""The sums of a naive Bayes release: a chain over levels in each class and feature, and one over the classes.

With ``f^k_ij`` the factors of the cells of feature k (:mod:`noisewise.engines.counts_cells`),

    Z_ik(t) = (f^k_i1 * ... * f^k_iJ)(t) Gamma(A) t! / Gamma(t + A),

and the classes have the factors ``Gamma(t + a) / (Gamma(a) t!) L_i(t) prod_k Z_ik(t)`` with the fixed total n. Few records are
summed by whole tables, many by windows; the moments of the windowed sums come from
``B_ik(t) = p(n_i = t | s) / P_ik(t)``, what the release says of the total of one chain apart from that chain.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from noisewise.engines.base import Exact, Sampler
from noisewise.engines.counts_cells import Cells, Unsupported, log_rising
from noisewise.engines.counts_moments import given_total, over_totals, over_windows
from noisewise.engines.counts_samplers import Dirichlets, NestedSampler, Published, TableSampler, Totals, splits_of
from noisewise.engines.counts_tables import log_sum, marginals, solve_chain
from noisewise.engines.counts_windows import (
    BISECTIONS,
    CUT_OFF,
    FALLS,
    STEEPEST,
    Chain,
    Tilted,
    Weighted,
    Window,
    chain_of,
    cut,
    log_factors,
    modes,
    moments,
    weigh,
    windows_of,
)
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.release.document import Release
from noisewise.typing import Theta

_WHOLE_ENTRIES = 2**23
_BALANCE = 1e-9
_LEAST_SHARE = 1e-280


def whole_tables_fit(model: NaiveBayes, n: int) -> bool:
    """Whether n records are few enough for whole tables."""
    return model.classes * sum(size - 1 for size in model.features) * (n + 1.0) ** 2 <= _WHOLE_ENTRIES


def by_tables(
    model: NaiveBayes, release: Release, cells: Cells, where: list[np.ndarray], log_size: np.ndarray, least: int
) -> Sampler:
    """The posterior by whole tables; ``log_size`` holds the log weight of each number of records from ``least`` on."""
    n = least + log_size.size - 1
    counts = np.arange(n + 1.0)
    factors = cells.log_factors(np.broadcast_to(counts, (cells.weights.size, n + 1)))
    chains = [solve_chain(factors[cell]) for cell in where[1:]]
    log_classes = factors[where[0]].copy()
    for cell, chain in zip(where[1:], chains, strict=True):
        log_classes += chain.log_total - log_rising(counts, cells.weights[cell].sum(axis=-1)[:, None])
    top = solve_chain(log_classes)
    log_weight = np.full(n + 1, -np.inf)
    log_weight[least:] = log_size - log_rising(counts[least:], cells.weights[where[0]].sum())
    sizes, log_marginal = law_of_size(log_weight + top.log_total, least)
    law = marginals(log_classes, log_weight)
    share = np.concatenate([np.zeros(least), sizes])
    names = tuple(name for name in model.parameters)
    known = [
        tuple(
            part[0]
            for part in over_totals(
                top.means[None], top.variances[None], cells.weights[where[0]][None], counts, share[None]
            )
        )
    ]
    known += [
        over_totals(chain.means, chain.variances, cells.weights[cell], counts, law)
        for cell, chain in zip(where[1:], chains, strict=True)
    ]
    groups = _groups(model, range(1, len(model.features) + 1))
    inner = tuple(jnp.asarray(np.concatenate([chains[k - 1].splits for k in group], axis=1)) for group in groups)
    exact = with_size(_exact(names, known, log_marginal), sizes, least)
    rest = Dirichlets(jnp.asarray(cells.weights), exact, Published(release, cells), names, sized="n" in exact.means)
    return TableSampler(jnp.asarray(cumulated(sizes)), jnp.asarray(least), jnp.asarray(top.splits), inner, rest, groups)


def law_of_size(log_weight: np.ndarray, least: int) -> tuple[np.ndarray, float]:
    """The law of the number of records from ``least`` on, and the log of the sum of all weights."""
    log_weight = log_weight[least:]
    highest = float(np.max(log_weight))
    if not np.isfinite(highest):
        raise ValueError("The released counts are impossible under the model; check the values, the noise law and n.")
    mass = np.exp(log_weight - highest)
    return mass / mass.sum(), highest + float(np.log(mass.sum()))


def cumulated(law: np.ndarray) -> np.ndarray:
    """The cumulative law, one from where the mass ends."""
    table = np.cumsum(law)
    return np.where(table >= table[-1], 1.0, table / table[-1])


def with_size(known: Exact, sizes: np.ndarray, least: int) -> Exact:
    """The exact summaries with those of the number of records, where it was unknown."""
    if sizes.size == 1:
        return known
    n = least + np.arange(sizes.size)
    mean = float(np.sum(sizes * n))
    sd = float(np.sqrt(np.sum(sizes * (n - mean) ** 2)))
    return Exact({**known.means, "n": jnp.asarray(mean)}, {**known.sds, "n": jnp.asarray(sd)}, known.log_marginal)


def _exact(names: tuple[str, ...], known: list[tuple[np.ndarray, np.ndarray]], log_marginal: float) -> Exact:
    means: Theta = {name: jnp.asarray(mean) for name, (mean, _) in zip(names, known, strict=True)}
    sds: Theta = {name: jnp.asarray(sd) for name, (_, sd) in zip(names, known, strict=True)}
    return Exact(means, sds, float(log_marginal))


def _groups(model: NaiveBayes, kept: range | list[int]) -> tuple[tuple[int, ...], ...]:
    """Features with the same number of levels together, counted from one."""
    return tuple(
        tuple(k for k in kept if model.features[k - 1] == size)
        for size in sorted({model.features[k - 1] for k in kept})
    )


# windows ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solved:
    """The chains of measured features by (feature, class), the classes' sums, and the laws of the classes' totals."""

    chains: dict[tuple[int, int], Chain]
    top: Weighted
    last: int
    laws: list[Window]
    log_marginal: float


def by_windows(model: NaiveBayes, release: Release, cells: Cells, where: list[np.ndarray], n: int) -> Sampler:
    """The posterior by windows, as wide as it takes."""
    measured = np.any([layer.slope != 0 for layer in cells.layers], axis=0)
    features = [k for k in range(1, len(where)) if np.any(measured[where[k]])]
    tilts = [dict.fromkeys(itertools.product(features, range(model.classes)), 0.0)]
    for fall, at in itertools.product(FALLS, range(2)):
        if at == len(tilts):
            tilts.append(_balance(cells, where, n, features))
        solved = _solve(cells, where, n, fall, tilts[at])
        found = None if solved is None else _moments(cells, where, features, solved, n, fall)
        if solved is not None and found is not None:
            break
    else:
        raise ValueError(
            "The released tables contradict each other, or the number of records, by so many times the noise that no "
            "counts explain them. Check the values, the noise scales and n."
        )
    names = tuple(model.parameters)
    groups = _groups(model, features)
    inner = tuple(
        jax.tree.map(
            lambda *parts: jnp.stack(parts),
            *splits_of([solved.chains[k, i] for k in group for i in range(model.classes)]),
        )
        for group in groups
    )
    others = [i for i in range(model.classes) if i != solved.last]
    rest = Dirichlets(
        jnp.asarray(cells.weights),
        _exact(names, found, solved.log_marginal),
        Published(release, cells),
        names,
        unseen=tuple(k for k in range(1, len(names)) if not any(k in group for group in groups)),
    )
    return NestedSampler(
        Totals(solved.top.law),
        splits_of([solved.top.chain])[0],
        jnp.asarray(np.argsort([*others, solved.last])),
        jnp.asarray(n),
        inner,
        rest,
        groups,
        model.features,
    )


def _balance(cells: Cells, where: list[np.ndarray], n: int, features: list[int]) -> dict[tuple[int, int], float]:
    """Tilts that put the sum of the modes of each chain where its class's total is roughly expected, by feature and class."""
    classes = where[0].size
    precision, value = np.zeros(cells.weights.size), np.zeros(cells.weights.size)
    for layer in cells.layers:
        share = (layer.slope / layer.noise.scale) ** 2
        precision += share
        value += share * layer.target / np.where(layer.slope == 0, 1.0, layer.slope)
    # totals of the classes by their priors, what was released of them, and each feature's row where all of it was
    prior = n * (1 + n / (classes * float(cells.weights[0]) + 1)) / classes
    total_precision = 1 / prior + precision[where[0]]
    total = n / classes / prior + value[where[0]]
    for k in features:
        known = np.all(precision[where[k]] > 0, axis=1)
        part = np.where(precision[where[k]] > 0, precision[where[k]], 1.0)
        row = known / np.sum(1 / part, axis=1)
        total_precision += row
        total += row * np.sum(np.maximum(value[where[k]] / part, 0.0), axis=1)
    spread = 1 / total_precision
    expected = np.maximum(total * spread + spread / spread.sum() * (n - np.sum(total * spread)), 0.0)
    expected *= n / max(expected.sum(), 1e-300)
    rows = [(k, i) for k in features for i in range(classes)]
    members = [where[k][i] for k, i in rows]
    begin = np.cumsum([0, *(member.size for member in members)])[:-1]
    low, high = np.full(len(rows), -STEEPEST), np.full(len(rows), STEEPEST)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        tilt = np.repeat(np.sinh(middle), [member.size for member in members])
        sums = np.add.reduceat(modes(Tilted(cells, tilt[:, None]), np.concatenate(members), n), begin)
        many = sums > np.tile(expected, len(features))
        low, high = np.where(many, middle, low), np.where(many, high, middle)
    return dict(zip(rows, np.sinh(0.5 * (low + high)).tolist(), strict=True))


def _solve(
    cells: Cells,
    where: list[np.ndarray],
    n: int,
    fall: float,
    tilts: dict[tuple[int, int], float],
) -> _Solved | None:
    classes = where[0].size
    chains = {(k, i): windows_of(Tilted(cells, tilt), where[k][i], n, fall) for (k, i), tilt in tilts.items()}
    windows, heights = [], []
    for i in range(classes):
        ends = [
            (chain.total.first, chain.total.first + chain.total.mass.size) for (_, j), chain in chains.items() if j == i
        ]
        if not ends:
            alone = windows_of(cells, where[0][i : i + 1], n, fall).total
            ends.append((alone.first, alone.first + alone.mass.size))
        begin, end = max(low for low, _ in ends), min(n + 1, *(high for _, high in ends))
        if begin >= end:
            return None
        counts = np.arange(begin, end)
        height = log_factors(cells, int(where[0][i]), counts)
        for (k, j), chain in chains.items():
            if i == j:
                at = counts - chain.total.first
                with np.errstate(divide="ignore"):
                    height = height + chain.log_mass + np.log(chain.total.mass[at]) + tilts[k, i] * counts
                height = height - log_rising(counts, cells.weights[where[k][i]].sum())
        if not np.isfinite(np.max(height)):
            return None
        windows.append(counts)
        heights.append(height)
    last = int(np.argmax([counts.size for counts in windows])) if classes > 2 else 0
    tilt = _tilt_of(windows, heights, n)
    heights = [height - tilt * counts for height, counts in zip(heights, windows, strict=True)]
    scaled, log_mass = [], tilt * n
    for i in range(classes):
        if i != last:
            highest = float(np.max(heights[i]))
            mass = np.exp(heights[i] - highest)
            log_mass += highest + float(np.log(mass.sum()))
            scaled.append(Window(int(windows[i][0]), mass / mass.sum()))

    def log_rest(counts: np.ndarray) -> np.ndarray:
        at = n - counts - windows[last][0]
        inside = (at >= 0) & (at < windows[last].size)
        return np.where(inside, heights[last][np.clip(at, 0, windows[last].size - 1).astype(int)], -np.inf)

    top = weigh(chain_of(scaled, log_mass, fall), log_rest, float(np.max(heights[last])), fall)
    if top is None or not top.trusted:
        return None
    lost = _Lost(cells, where, n, fall, chains, tilts, windows, last)
    if not lost.below(top.log_total + float(np.log(CUT_OFF)), tilt):
        return None
    begin = n - top.law.first - top.law.mass.size + 1
    found = top.laws.copy()
    found.insert(last, cut(Window(begin, top.law.mass[::-1]), int(windows[last][0]), windows[last].size))
    log_marginal = top.log_total - float(log_rising(n, cells.weights[where[0]].sum())) + float(cells.log_size(n))
    return _Solved(chains, top, last, found, log_marginal)


class _Lost:
    """A bound on what all windows leave out of the sum over tables.

    A chain's law is off by at most ``delta = 2 (J + 1) W exp(-F)`` at every total, so that its factor is below
    ``P + delta``, and a share ``delta / (P + delta)`` of that may be missing. Classes other than the one in doubt have any total, but
    for the last, which has its largest value. The totals add up to n, so the factors of the classes may be tilted by
    ``exp(-tilt (t - n / I))`` alike: the bound holds at every tilt, and its logarithm is convex in it.
    """

    def __init__(
        self,
        cells: Cells,
        where: list[np.ndarray],
        n: int,
        fall: float,
        chains: dict[tuple[int, int], Chain],
        tilts: dict[tuple[int, int], float],
        windows: list[np.ndarray],
        last: int,
    ) -> None:
        self.counts, self.last = np.arange(n + 1.0), last
        rising = {k: log_rising(self.counts, cells.weights[where[k][0]].sum()) for k in {k for k, _ in chains}}
        whole, shares = [], []
        for i, window in enumerate(windows):
            height = log_factors(cells, int(where[0][i]), self.counts)
            share = np.zeros(n + 1)
            for (k, j), chain in chains.items():
                if i == j:
                    widest = max(some.mass.size for some in [*chain.windows, *chain.prefix])
                    delta = 2 * (len(chain.windows) + 1) * widest * np.exp(-fall)
                    bound = delta + cut(chain.total, 0, n + 1).mass
                    height += chain.log_mass + np.log(bound) + tilts[k, i] * self.counts - rising[k]
                    share += delta / bound
            outside = (self.counts < window[0]) | (self.counts > window[-1])
            whole.append(height)
            shares.append(np.where(outside, 1.0, np.minimum(share, 1.0)))
        self.whole = np.stack(whole)
        with np.errstate(divide="ignore"):
            self.doubtful = self.whole + np.log(np.stack(shares))

    def log_bound(self, tilt: float) -> float:
        """The logarithm of the bound by one tilt."""
        turned = tilt * (self.counts - self.counts[-1] / len(self.whole))
        whole, doubtful = self.whole - turned, self.doubtful - turned
        summed = log_sum(whole)
        others = summed.sum() - summed - summed[self.last] + np.max(whole[self.last])
        others[self.last] = summed.sum() - summed[self.last]
        lost = log_sum(doubtful)
        lost[self.last] = np.max(doubtful[self.last])
        return float(log_sum(others + lost))

    def below(self, level: float, tilt: float) -> bool:
        """Whether less than ``exp(level)`` is left out, by the given tilt or by the best there is."""
        if self.log_bound(tilt) <= level or self.log_bound(0.0) <= level:
            return True
        steepest = minimize_scalar(
            lambda bend: self.log_bound(np.sinh(bend)), bounds=(-STEEPEST, STEEPEST), method="bounded"
        )
        return bool(steepest.fun <= level)


def _tilt_of(windows: list[np.ndarray], heights: list[np.ndarray], n: int) -> float:
    """The tilt of the classes' factors that makes their modes add up to n."""
    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        tilt = np.sinh(middle)
        total = sum(int(c[np.argmax(h - tilt * c)]) for c, h in zip(windows, heights, strict=True))
        low, high = (middle, high) if total > n else (low, middle)
    return float(np.sinh(0.5 * (low + high)))


def _moments(
    cells: Cells, where: list[np.ndarray], features: list[int], solved: _Solved, n: int, fall: float
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Means and sds of all tables; None where windows cut off too much, or rounding shows."""
    counted = np.array([moments(law) for law in solved.laws])
    known = [given_total(counted[:, 0], counted[:, 1], cells.weights[where[0]], n)]
    for k in range(1, len(where)):
        weights = cells.weights[where[k]]
        if k not in features:
            known.append(given_total(np.zeros(weights.shape), np.zeros(weights.shape), weights[0], 0.0))
            continue
        rows = []
        for i, law in enumerate(solved.laws):
            chain = solved.chains[k, i]
            at = np.arange(law.first, law.first + law.mass.size) - chain.total.first
            inside = (at >= 0) & (at < chain.total.mass.size)
            share = np.where(inside, chain.total.mass[np.clip(at, 0, chain.total.mass.size - 1)], 0.0)
            held = share > _LEAST_SHARE
            message = Window(law.first, np.divide(law.mass, share, out=np.zeros_like(share), where=held))
            widest = max(window.mass.size for window in [*chain.windows, *chain.prefix])
            if 2 * (len(chain.windows) + 1) * widest * np.exp(-fall) * np.max(message.mass) > CUT_OFF:
                return None
            rows.append(over_windows(chain, message, weights[i]))
            # the probabilities of a row add up to one, unless rounding or a cut has taken its share
            if not abs(np.sum(rows[-1][0]) - 1) <= _BALANCE:
                return None
        known.append((np.stack([mean for mean, _ in rows]), np.stack([sd for _, sd in rows])))
    return known


def check_windows(model: NaiveBayes, cells: Cells, n: int) -> None:
    """Refuse tables that would be too wide."""
    scales = [np.max(layer.noise.scale[layer.slope != 0]) for layer in cells.layers if np.any(layer.slope != 0)]
    width = min(n + 1.0, 100 * float(max(scales, default=0.0)))
    rows = model.classes * sum(model.features)
    if rows * width * max(model.features) > 2**26:
        raise Unsupported(f"{rows} cells with sums that run over {width:.1g} counts each are too many")
