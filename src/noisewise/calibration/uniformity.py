r"""Are ranks uniform? Simultaneous bands for their empirical distribution, and the Kolmogorov-Smirnov distance.

N ranks on ``0..L``, uniform and independent, have the empirical distribution ``F(z_i) = C_i / N`` at ``z_i = i / (L + 1)``, where
``C_i``, the number of ranks below i, is binomial. A band keeps every ``C_i`` inside its central binomial interval of probability
``1 - gamma``; gamma is chosen so that all of them hold together with the level asked for (Säilynoja, Bürkner and Vehtari
2022). The probability that they hold together is computed, not simulated: given their total the increments of C are independent Poisson
counts, so it is a product of convolutions with everything outside the band left out. The p-value of a set of ranks is the
probability of a ``C`` at least as far out, in its own binomial law, as the farthest one seen.

Checked by ``tests/calibration/test_uniformity.py``.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import stats

_HALVINGS = 40
_SLACK = 1e-9
_NEGLIGIBLE = 1e-20


class Distance(float):
    """A Kolmogorov-Smirnov distance, which is a number, with its p-value."""

    pvalue: float

    def __new__(cls, distance: float, pvalue: float) -> Self:
        self = super().__new__(cls, distance)
        self.pvalue = pvalue
        return self


def ks_uniform(values: Any) -> Distance:
    """The Kolmogorov-Smirnov distance of numbers in [0, 1] from the uniform law; ``.pvalue`` is exact for distinct numbers.

    >>> import noisewise as nw
    >>> distance = nw.calibration.ks_uniform([0.1, 0.3, 0.5, 0.7, 0.9])
    >>> round(distance, 6), distance.pvalue > 0.9
    (0.1, True)
    """
    try:
        seen = np.asarray(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        raise ValueError(f"ks_uniform needs numbers in [0, 1]; got {values!r}.") from None
    if seen.size == 0 or not np.all((seen >= 0) & (seen <= 1)):
        bad = seen[~((seen >= 0) & (seen <= 1))][:1]
        raise ValueError(
            f"ks_uniform needs numbers in [0, 1]; got {bad[0] if bad.size else 'none'}. Divide ranks by the largest rank."
        )
    found = stats.kstest(seen, "uniform")
    return Distance(float(found.statistic), float(found.pvalue))


def below(ranks: np.ndarray, largest: int) -> np.ndarray:
    """``C_i`` for i = 1..largest: how many ranks lie below i."""
    return np.cumsum(np.bincount(ranks, minlength=largest + 1))[:-1]


def rank_p_value(ranks: np.ndarray, largest: int) -> float:
    """The p-value of ranks on ``0..largest`` being uniform, by the simultaneous band they just touch."""
    counts, z = below(ranks, largest), _grid(largest)
    law = stats.binom(len(ranks), z)
    farthest = 2 * float(np.min(np.minimum(law.cdf(counts), law.sf(counts - 1))))
    if farthest >= 1:
        return 1.0
    inside = _probability(len(ranks), *_central(len(ranks), z, farthest * (1 + _SLACK)))
    return float(np.clip(1 - inside, 0.0, 1.0))


def band(number: int, largest: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places z, and the band that the empirical distribution of ``number`` uniform ranks stays in with probability ``level``."""
    z = _grid(largest)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _probability(number, *_central(number, z, middle)) >= level:
            low = middle
        else:
            high = middle
    first, last = _central(number, z, low)
    return z, first / number, last / number


def _grid(largest: int) -> np.ndarray:
    return np.arange(1, largest + 1) / (largest + 1)


def _central(number: int, z: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """The counts whose binomial tails, doubled, are both above gamma."""
    counts = np.arange(number + 1)[:, None]
    law = stats.binom(number, z)
    kept = (2 * law.cdf(counts) > gamma) & (2 * law.sf(counts - 1) > gamma)
    # where no count is left the band is empty: the first lies above the last
    return np.where(kept.any(axis=0), np.argmax(kept, axis=0), 1), np.where(
        kept.any(axis=0), number - np.argmax(kept[::-1], axis=0), 0
    )


def _probability(number: int, first: np.ndarray, last: np.ndarray) -> float:
    """The probability that every count of uniform ranks lies between its first and last one."""
    if np.any(first > last):
        return 0.0
    step = stats.poisson.pmf(np.arange(number + 1), number / (len(first) + 1))
    step = step[: 1 + int(np.flatnonzero(step > _NEGLIGIBLE)[-1])]
    mass, at = np.ones(1), 0
    for low, high in zip(first, last, strict=True):
        spread = np.convolve(mass, step)
        mass = np.zeros(high - low + 1)
        begin, end = max(low, at), min(high, at + spread.size - 1)
        if begin > end:
            return 0.0
        mass[begin - low : end - low + 1] = spread[begin - at : end - at + 1]
        at = int(low)
    left = number - at - np.arange(mass.size)
    final = np.where(left < step.size, step[np.minimum(left, step.size - 1)], 0.0)
    return float(mass @ final / stats.poisson.pmf(number, number))
