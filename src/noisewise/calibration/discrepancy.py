r"""How far apart two samples are: the maximum mean discrepancy with a Gaussian kernel.

``U = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j)`` with ``k(x, y) = exp(-|x - y|^2 / 2 h^2)`` is an
unbiased estimate of the squared discrepancy (Gretton et al. 2012); near zero it can be negative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

_BLOCK = 1000


def mmd(
    left: Any,
    right: Any,
    *,
    bandwidth: float | None = None,
    root: bool = False,
    subsample: int = 500,
    random_seed: int = 0,
) -> float:
    """How far apart two samples are: the unbiased squared maximum mean discrepancy, Gaussian kernel.

    Parameters
    ----------
    left, right
        Draws by row, (draws, d), or (draws,) for one number.
    bandwidth
        The kernel's h. Left out, it is the median distance between a draw of the one and a draw of the other sample
        (``subsample`` pairs, drawn with ``random_seed``).
    root
        Whether to return ``sqrt(abs(U))``, the value in Räisä's thesis, instead of U.

    >>> import numpy as np, noisewise as nw
    >>> draws = np.random.default_rng(1).normal(size=(3, 500))
    >>> nw.calibration.mmd(draws[0], draws[1] + 1) > 0.1 > abs(nw.calibration.mmd(draws[0], draws[2]))
    True
    """
    x, y = _rows(left, "left"), _rows(right, "right")
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"The two samples must have equally long rows; got {x.shape[1]} and {y.shape[1]} numbers a row."
        )
    if isinstance(subsample, bool) or not isinstance(subsample, int | np.integer) or subsample < 1:
        raise ValueError(f"subsample must be a whole number of at least 1; got {subsample!r}.")
    if bandwidth is None:
        bandwidth = _median_distance(x, y, subsample, random_seed)
    if isinstance(bandwidth, bool | str) or not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ValueError(f"bandwidth must be positive and finite; got {bandwidth!r}. Give one, or draws that vary.")
    value = _within(x, bandwidth) + _within(y, bandwidth) - 2 * _summed(x, y, bandwidth) / (len(x) * len(y))
    return math.sqrt(abs(value)) if root else value


def _rows(sample: Any, name: str) -> np.ndarray:
    try:
        rows = np.asarray(sample, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be draws, numbers by row; got {sample!r}.") from None
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or len(rows) < 2 or not np.all(np.isfinite(rows)):
        raise ValueError(
            f"{name} must be at least two finite draws, of shape (draws,) or (draws, d); got shape {np.shape(sample)}."
        )
    return rows


def _median_distance(x: np.ndarray, y: np.ndarray, subsample: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    some, others = x[rng.integers(len(x), size=subsample)], y[rng.integers(len(y), size=subsample)]
    return float(np.median(np.linalg.norm(some - others, axis=1)))


def _summed(x: np.ndarray, y: np.ndarray, bandwidth: float) -> float:
    blocks = (x[i : i + _BLOCK] for i in range(0, len(x), _BLOCK))
    return math.fsum(float(np.sum(np.exp(-cdist(b, y, "sqeuclidean") / (2 * bandwidth**2)))) for b in blocks)


def _within(x: np.ndarray, bandwidth: float) -> float:
    return (_summed(x, x, bandwidth) - len(x)) / (len(x) * (len(x) - 1))
