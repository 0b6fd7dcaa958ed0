r"""Means and standard deviations of Dirichlet probabilities whose counts are uncertain.

Given counts c with total t, ``E p_j = (c_j + a_j) / (t + A)`` and ``E p_j^2 = (c_j + a_j)(c_j + a_j + 1) / ((t + A)(t + A + 1))``.
"""

from __future__ import annotations

import numpy as np

from noisewise.engines.counts_windows import Chain, Window, messages


def given_total(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, total: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd from the moments of counts that have a fixed total."""
    whole = total + weights.sum()
    centre = (mean + weights) / whole
    # one minus a centre near one would have lost the digits of the spread
    others = np.stack([np.delete(centre, j, axis=-1).sum(axis=-1) for j in range(weights.size)], axis=-1)
    # E p(1-p) under the Dirichlet, plus the variance of the conditional mean
    spread = (centre * others - variance / whole**2) / (whole + 1) + variance / whole**2
    return centre, np.sqrt(spread)


def over_totals(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, totals: np.ndarray, laws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same when the total is itself uncertain: moments (row, level, total), laws of the totals (row, total)."""
    whole = totals + weights.sum(axis=-1)[:, None, None]
    given = (mean + weights[..., None]) / whole
    centre = np.sum(laws[:, None, :] * given, axis=-1)
    within = (given * (1 - given) - variance / whole**2) / (whole + 1) + variance / whole**2
    between = (given - centre[..., None]) ** 2
    return centre, np.sqrt(np.sum(laws[:, None, :] * (within + between), axis=-1))


def over_windows(chain: Chain, message: Window, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same from a chain of windows; the weight B of the total is scaled so that ``sum P B = 1``."""
    # totals without weight may be no number of records at all
    whole = np.where(message.mass > 0, message.counts + weights.sum(), 1.0)
    first, second = (
        messages(chain, Window(message.first, message.mass / divisor)) for divisor in (whole, whole * (whole + 1))
    )
    mean, square = np.empty(weights.size), np.empty(weights.size)
    for j, (window, a) in enumerate(zip(chain.windows, weights, strict=True)):
        c = window.counts
        mean[j] = np.sum(window.mass * (c + a) * first[j].mass)
        square[j] = np.sum(window.mass * (c + a) * (c + a + 1) * second[j].mass)
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))
