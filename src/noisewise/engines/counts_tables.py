r"""Sums over counts that add up to a total, for few records: whole tables in the log domain, with nothing cut off.

A chain has factors ``f_1, ..., f_J`` on the counts 0..n and asks for the law of ``(c_1, ..., c_J)`` proportional to
``prod_j f_j(c_j)`` given ``sum_j c_j = t``. With prefix sums ``F_j = f_1 * ... * f_j``

    F_j(t) = sum_c f_j(c) F_{j-1}(t - c),        p(c_j | c_1 + ... + c_j = t) = f_j(c_j) F_{j-1}(t - c_j) / F_j(t).

The second line, cumulated over ``c_j``, is the table by which draws go backward. All terms are positive, so every sum keeps
its relative accuracy however far into a tail it lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Chain:
    """Prefix sums of a chain at every total (``log_total``, its last), tables to draw by, and moments given the total.

    ``splits[j - 1][..., t, c]`` is the cumulative law of the count of factor j given that factors 0..j have t together;
    ``means`` and ``variances`` have the axes (..., factor, t).
    """

    log_total: np.ndarray
    splits: np.ndarray
    means: np.ndarray
    variances: np.ndarray


def solve_chain(log_factors: np.ndarray) -> Chain:
    """The chain of log factors with the axes (..., factor, count)."""
    *_, size, width = log_factors.shape
    prefix = [log_factors[..., 0, :]]
    splits = []
    for j in range(1, size):
        joint = _joint(log_factors[..., j, :], prefix[-1])
        total = log_sum(joint)
        splits.append(_cumulative(joint, total))
        prefix.append(total)
    nothing = np.full((*log_factors.shape[:-2], width), -np.inf)
    nothing[..., 0] = 0.0
    means: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    suffix = nothing
    counts = np.arange(width, dtype=float)
    for j in reversed(range(size)):
        others = log_sum(_joint(prefix[j - 1], suffix)) if j else suffix
        given = np.exp(_joint(log_factors[..., j, :], others) - _finite(prefix[-1])[..., None])
        means.insert(0, given @ counts)
        deviation = counts - means[0][..., None]
        variances.insert(0, np.sum(given * deviation**2, axis=-1))
        suffix = log_sum(_joint(log_factors[..., j, :], suffix)) if j else suffix
    return Chain(prefix[-1], np.stack(splits), np.stack(means, axis=-2), np.stack(variances, axis=-2))


def marginals(log_factors: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """The law of each factor's count, with the axes (factor, count), when each total of all has a log weight."""
    size, width = log_factors.shape
    prefix = [log_factors[0]]
    for j in range(1, size):
        prefix.append(log_sum(_joint(log_factors[j], prefix[-1])))
    suffix = np.where(np.arange(width) == 0, 0.0, -np.inf)
    laws: list[np.ndarray] = []
    ahead = np.arange(width)[:, None] + np.arange(width)
    for j in reversed(range(size)):
        others = log_sum(_joint(prefix[j - 1], suffix)) if j else suffix
        log_law = log_factors[j] + log_sum(
            np.where(ahead < width, others + log_weight[np.minimum(ahead, width - 1)], -np.inf)
        )
        laws.insert(0, np.exp(log_law - log_sum(log_law)))
        suffix = log_sum(_joint(log_factors[j], suffix))
    return np.stack(laws)


def log_sum(values: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of exponentials over the last axis; ``-inf`` for an empty sum."""
    top = _finite(np.max(values, axis=-1))
    with np.errstate(divide="ignore"):
        return top + np.log(np.sum(np.exp(values - top[..., None]), axis=-1))


def _joint(first: np.ndarray, others: np.ndarray) -> np.ndarray:
    """``first(c) + others(t - c)`` with the axes (..., t, c)."""
    width = first.shape[-1]
    lag = np.arange(width)[:, None] - np.arange(width)
    return np.where(lag >= 0, first[..., None, :] + others[..., np.maximum(lag, 0)], -np.inf)


def _cumulative(joint: np.ndarray, total: np.ndarray) -> np.ndarray:
    table = np.cumsum(np.exp(joint - _finite(total)[..., None]), axis=-1)
    last = np.where(table[..., -1:] > 0, table[..., -1:], 1.0)
    table /= last
    # a draw below one must find a count of positive mass: the table reaches one where its mass ends
    return np.where(table >= table[..., -1:], 1.0, table)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(values), 0.0, values)
