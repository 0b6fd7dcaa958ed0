r"""The density of a released sum with Laplace noise where few records lie between their bounds, in place of a Fourier integral.

Clamped records are atoms, so the transform of their sum does not fall, and that of Laplace noise falls slowly. In units in
which a record's statistic lies in [0, 1], with atoms a at 0 and b at 1, a density f between and noise of scale beta,

    p(s | theta) = sum_{m, c}  n! / (m! c! (n - m - c)!)  a^(n - m - c) b^c E_m(s - c),   E_m = f * ... * f * Laplace(beta),

where m records lie between the bounds and c at the upper one. E_m is an exponential beyond [0, m] and analytic from one integer to
the next, where its values at Gauss nodes hold it. The step

    E_{m+1}(j + u) = int_0^u f(x) E_m(j + u - x) dx + int_u^1 f(x) E_m(j + u - x) dx

integrates across no integer. All terms are positive. Checked by ``tests/engines/test_fourier_few.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre
from scipy.special import gammaln, xlogy

from noisewise.engines.counts_tables import log_sum

_ORDERS = (24, 48, 96, 160)
_RESOLVED = 1e-12
_MOST_BETWEEN = 120
_MOST_RECORDS = 20_000
_LOG_NEGLIGIBLE = -37.0


@dataclass(frozen=True)
class Between:
    """Where a record's statistic is linear: its values at the bounds, and ``density(theta, u)`` of its place u in [0, 1] between
    them, with the axes (parameter value, place)."""

    lower: float
    upper: float
    density: Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Rule:
    """Gauss nodes in [0, 1], Legendre coefficients from values at them, and what a convolution on one piece needs."""

    nodes: np.ndarray
    weights: np.ndarray
    coefficients: np.ndarray
    places: tuple[np.ndarray, np.ndarray]
    steps: tuple[np.ndarray, np.ndarray]

    def at(self, u: np.ndarray) -> np.ndarray:
        """Rows that take values at the nodes to values at u."""
        return np.asarray(legendre.legvander(2 * u - 1, self.nodes.size - 1) @ self.coefficients)


@functools.cache
def _rule(order: int) -> _Rule:
    x, w = legendre.leggauss(order)
    coefficients = (legendre.legvander(x, order - 1) * w[:, None]).T * (np.arange(order) + 0.5)[:, None]
    u, w = 0.5 * (x + 1), 0.5 * w
    below, above = u[:, None] * u, u[:, None] + (1 - u)[:, None] * u
    rule = _Rule(u, w, coefficients, (below, above), (below, above))
    return _Rule(
        u,
        w,
        coefficients,
        (below, above),
        (
            rule.at(u[:, None] - below) * (u[:, None] * w)[..., None],
            rule.at(1 + u[:, None] - above) * ((1 - u)[:, None] * w)[..., None],
        ),
    )


def few_log_density(
    between: Between, theta: dict[str, np.ndarray], weights: np.ndarray, n: int, value: float, scale: float
) -> np.ndarray | None:
    """``log p(s | theta)`` for a batch, given the atoms at the bounds beside the probabilities of places between them; None
    where it would take too long, or f is too rough."""
    width = between.upper - between.lower
    beta, s = scale / abs(width), (value - n * between.lower) / width
    if n > _MOST_RECORDS:
        return None
    # one record between the bounds gains at most exp(1 / beta) on one that is clamped
    matters = np.log(np.maximum(n * weights[:, 1:-1].sum(axis=1), 1e-300)) + 1 / beta > _LOG_NEGLIGIBLE
    for order in _ORDERS:
        rule = _rule(order)
        density = np.where(matters[:, None], between.density(theta, rule.nodes), 0.0)
        series = np.abs(np.concatenate([density, np.exp(-rule.nodes / beta)[None]]) @ rule.coefficients.T)
        if np.all(series[:, -4:].max(axis=1) <= _RESOLVED * series.max(axis=1)):
            log_value = _summed(rule, density, between, theta, (weights[:, 0], weights[:, -1]), n, s, beta)
            return None if log_value is None else log_value - np.log(abs(width))
    return None


def _summed(
    rule: _Rule,
    density: np.ndarray,
    between: Between,
    theta: dict[str, np.ndarray],
    atoms: tuple[np.ndarray, np.ndarray],
    n: int,
    s: float,
    beta: float,
) -> np.ndarray | None:
    mass = density @ rule.weights
    unit = np.where(mass > 0, mass, 1.0)[:, None]
    steps = []
    for places, step in zip(rule.places, rule.steps, strict=True):
        inside = (between.density(theta, places.ravel()) / unit).reshape(-1, *places.shape)
        # axes (node, parameter value, other node): one product of matrices a node
        steps.append(np.matmul(inside.transpose(1, 0, 2), step).transpose(1, 2, 0))
    near = density / unit * rule.weights
    up, down = np.exp(-rule.nodes / beta) / (2 * beta), np.exp((rule.nodes - 1) / beta) / (2 * beta)
    ends = [near @ np.exp(away / beta) for away in (-rule.nodes, rule.nodes - 1)]
    log_left, log_right = np.log(np.maximum(ends, 1e-300))
    here = rule.at(np.array([s - np.floor(s)]))[0]
    pieces = np.zeros((mass.size, 0, rule.nodes.size))
    total = before = np.full(mass.size, -np.inf)
    for m in range(min(n, _MOST_BETWEEN) + 1):
        c = np.arange(n - m + 1.0)
        term = _log_term(pieces @ here, m, s - c, beta, log_left, log_right)
        term += gammaln(n + 1) - gammaln(m + 1) - gammaln(c + 1) - gammaln(n - m - c + 1)
        term += xlogy(m, mass)[:, None] + xlogy(c, atoms[1][:, None]) + xlogy(n - m - c, atoms[0][:, None])
        log_term = log_sum(term)
        total = np.logaddexp(total, log_term)
        rising = (m < n * mass) | (log_term > before) | (log_term > total + _LOG_NEGLIGIBLE)
        if m == n or not np.any(rising):
            return total
        before = log_term
        left, right = (np.exp(m * log)[:, None, None] * shape for log, shape in ((log_left, down), (log_right, up)))
        whole = np.concatenate([left, pieces, right], axis=1)
        pieces = whole[:, 1:] @ steps[0] + whole[:, :-1] @ steps[1]
    return None


def _log_term(
    inside: np.ndarray, m: int, x: np.ndarray, beta: float, log_left: np.ndarray, log_right: np.ndarray
) -> np.ndarray:
    """``log E_m(x)`` with the axes (parameter value, x), from its values inside [0, m] by piece."""
    left = m * log_left[:, None] + np.minimum(x, 0) / beta
    right = m * log_right[:, None] - np.maximum(x - m, 0) / beta
    value = np.where(x <= 0, left, right) - np.log(2 * beta)
    middle = np.flatnonzero((x > 0) & (x < m))
    with np.errstate(divide="ignore"):
        value[:, middle] = np.log(np.maximum(inside[:, np.floor(x[middle]).astype(int)], 0.0))
    return value
