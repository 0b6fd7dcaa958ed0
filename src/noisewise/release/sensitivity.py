r"""The joint maximum of the change of a vector of monomials over a box, by search.

Maximised is ``||t(x) - t(x')||`` over x, x' in the box (``replace_one``) or ``||t(x)||`` (``add_remove_one``). A norm is a
maximum of linear functions, ``||v|| = max_w w.v`` over the dual ball, so the search alternates between the best ``w``
(signs for L1, the direction of v for L2) and one coordinate of x or x' at a time, each by the exact maximum of a polynomial
in one variable. No step lowers the value. The result is the largest value *found*: it never exceeds the sensitivity, and
it is the sensitivity when the search met the global maximum, which a search cannot prove.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import numpy as np

_STARTS = 96
_ROUNDS = 400
_GRID = 129


@lru_cache(maxsize=256)
def joint_maximum(
    exponents: tuple[tuple[int, ...], ...], ranges: tuple[tuple[float, float], ...], norm: str, neighbours: str
) -> float:
    """The largest norm found, from the corners of the box and from points spread inside it (the same at every call)."""
    powers = np.asarray(exponents, dtype=int).reshape(len(exponents), len(ranges))
    low, high = np.asarray(ranges, dtype=float).T
    rng = np.random.default_rng(20220601)
    dims = len(ranges)
    corners = np.asarray(list(itertools.islice(itertools.product((0.0, 1.0), repeat=dims), 32)))
    inside = rng.uniform(size=(_STARTS, dims))
    x = low + (high - low) * np.concatenate([corners, inside])
    other = low + (high - low) * rng.uniform(size=x.shape)
    replace = neighbours == "replace_one"
    best = np.zeros(len(x))
    for _ in range(_ROUNDS):
        change = _monomials(x, powers) - (_monomials(other, powers) if replace else 0.0)
        value = np.sum(np.abs(change), axis=1) if norm == "l1" else np.sqrt(np.sum(change**2, axis=1))
        done = np.all(value <= best * (1 + 1e-14))
        best = np.maximum(best, value)
        if done:
            break
        dual = np.where(change < 0, -1.0, 1.0) if norm == "l1" else change / np.where(value > 0, value, 1.0)[:, None]
        x = _climb(x, dual, powers, low, high)
        if replace:
            other = _climb(other, -dual, powers, low, high)
    return float(np.max(best))


def _monomials(x: np.ndarray, powers: np.ndarray) -> np.ndarray:
    return np.prod(x[:, None, :] ** powers, axis=2)


def _climb(x: np.ndarray, weights: np.ndarray, powers: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """One pass over the coordinates, each moved to where ``weights . t(x)`` is largest with the others held."""
    x = x.copy()
    for j in range(x.shape[1]):
        others = x.copy()
        others[:, j] = 1.0
        terms = weights * _monomials(others, powers)
        degree = int(powers[:, j].max(initial=0))
        found = np.unique([0, 1, 2, *powers[:, j]])
        coefficients = np.stack([terms[:, powers[:, j] == k].sum(axis=1) for k in found], axis=1)

        def value(at: np.ndarray, found: np.ndarray = found, coefficients: np.ndarray = coefficients) -> np.ndarray:
            return np.sum(coefficients[:, :, None] * at[:, None, :] ** found[:, None], axis=1)

        candidates = [x[:, j], np.full(len(x), low[j]), np.full(len(x), high[j])]
        if degree == 2:
            bend = np.where(coefficients[:, 2] == 0, 1.0, coefficients[:, 2])
            candidates.append(np.clip(-0.5 * coefficients[:, 1] / bend, low[j], high[j]))
        elif degree > 2:
            candidates.append(_zoom(value, len(x), low[j], high[j]))
        at = np.stack(candidates, axis=1)
        x[:, j] = at[np.arange(len(x)), np.argmax(value(at), axis=1)]
    return x


def _zoom(value: Callable[[np.ndarray], np.ndarray], count: int, low: float, high: float) -> np.ndarray:
    """The best point of a grid, refined about itself until the spacing is negligible."""
    left, right = np.full(count, low), np.full(count, high)
    centre = left
    for _ in range(5):
        grid = left[:, None] + (right - left)[:, None] * np.linspace(0.0, 1.0, _GRID)
        centre = grid[np.arange(count), np.argmax(value(grid), axis=1)]
        step = (right - left) / (_GRID - 1)
        left, right = np.maximum(low, centre - step), np.minimum(high, centre + step)
    return centre
