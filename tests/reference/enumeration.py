"""Posteriors by brute force, in plain NumPy and SciPy: every database, or every point of a quadrature.

Nothing here imports noisewise. A release is a list of ``(law, scale, released)``, one for each published copy of the same
total; ``law`` is "laplace", "gaussian", "discrete_laplace" or "discrete_gaussian".
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

Published = Sequence[tuple[str, float, np.ndarray]]

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


def log_noise(law: str, scale: float, residual: np.ndarray) -> np.ndarray:
    """The log density or log mass of a noise law, normalised."""
    if law == "laplace":
        return stats.laplace.logpdf(residual, scale=scale)
    if law == "gaussian":
        return stats.norm.logpdf(residual, scale=scale)
    k = np.arange(-int(40 * scale) - 40, int(40 * scale) + 41)
    kernel = {"discrete_laplace": lambda r: -np.abs(r) / scale, "discrete_gaussian": lambda r: -0.5 * (r / scale) ** 2}
    log_mass = kernel[law](residual) - special.logsumexp(kernel[law](k))
    return np.where(np.abs(residual - np.round(residual)) < 1e-9, log_mass, -np.inf)


def log_release(published: Published, total: np.ndarray) -> np.ndarray:
    """``log g(s, total)`` for totals along all axes but the last, which holds the numbers of one total."""
    return sum(np.sum(log_noise(law, scale, released - total), axis=-1) for law, scale, released in published)


@dataclass(frozen=True)
class Mixture:
    """A mixture of beta laws: what one probability's posterior is when every database is summed over."""

    weights: np.ndarray
    a: np.ndarray
    b: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.weights @ (self.a / (self.a + self.b)))

    @property
    def sd(self) -> float:
        second = self.a * (self.a + 1) / ((self.a + self.b) * (self.a + self.b + 1))
        return float(np.sqrt(self.weights @ second - self.mean**2))

    def quantile(self, probability: float) -> float:
        return float(
            optimize.brentq(lambda x: self.weights @ special.betainc(self.a, self.b, x) - probability, 0.0, 1.0)
        )


@dataclass(frozen=True)
class Grid:
    """A density on the points of a fine grid, not normalised."""

    points: np.ndarray
    density: np.ndarray

    def _mean_of(self, values: np.ndarray) -> float:
        return float(np.trapezoid(values * self.density, self.points) / np.trapezoid(self.density, self.points))

    @property
    def mean(self) -> float:
        return self._mean_of(self.points)

    @property
    def sd(self) -> float:
        return float(np.sqrt(self._mean_of((self.points - self.mean) ** 2)))

    def quantile(self, probability: float) -> float:
        steps = 0.5 * (self.density[1:] + self.density[:-1]) * np.diff(self.points)
        cumulative = np.concatenate([[0.0], np.cumsum(steps)])
        return float(np.interp(probability * cumulative[-1], cumulative, self.points))


def _normalised(log_weights: np.ndarray) -> np.ndarray:
    return np.exp(log_weights - special.logsumexp(log_weights))


def compositions(n: int, cells: int) -> np.ndarray:
    """All vectors of counts of ``n`` records in so many cells."""
    rows = [row for row in itertools.product(range(n + 1), repeat=cells) if sum(row) == n]
    return np.asarray(rows, dtype=float)


def bernoulli(n: int, a: float, b: float, published: Published) -> Mixture:
    """``p`` given noisy counts of ones, summed over the number of ones."""
    ones = np.arange(n + 1.0)
    log_weights = (
        np.log(special.comb(n, ones)) + special.betaln(a + ones, b + n - ones) + log_release(published, ones[:, None])
    )
    return Mixture(_normalised(log_weights), a + ones, b + n - ones)


def categorical(n: int, alpha: np.ndarray, published: Published) -> list[Mixture]:
    """Each of the probabilities given noisy counts of all levels, summed over all counts."""
    counts = compositions(n, len(alpha))
    log_weights = np.sum(special.gammaln(alpha + counts) - special.gammaln(counts + 1), axis=1)
    weights = _normalised(log_weights + log_release(published, counts))
    post = alpha + counts
    return [Mixture(weights, post[:, j], post.sum(axis=1) - post[:, j]) for j in range(len(alpha))]


def naive_bayes(n: int, prior: float, published: Published) -> dict[str, Mixture]:
    """Two classes and one feature of two levels, given the noisy two by two table (y, x), summed over all tables."""
    tables = compositions(n, 4).reshape(-1, 2, 2)
    classes = tables.sum(axis=2)
    log_weights = np.sum(special.gammaln(prior + classes), axis=1) - np.sum(special.gammaln(tables + 1), axis=(1, 2))
    log_weights += np.sum(special.gammaln(prior + tables), axis=(1, 2))
    log_weights -= np.sum(special.gammaln(2 * prior + classes), axis=1)
    weights = _normalised(log_weights + log_release(published, tables.reshape(-1, 4)))
    found = {"class 0": Mixture(weights, prior + classes[:, 0], prior + classes[:, 1])}
    for i in range(2):
        found[f"feature 0 of class {i}"] = Mixture(weights, prior + tables[:, i, 0], prior + tables[:, i, 1])
    return found


def poisson(n: int, shape: float, rate: float, upper: int, published: Published) -> Grid:
    """The rate given noisy copies of the sum of counts clamped to ``[0, upper]``, by convolution of their law."""
    points = np.exp(np.linspace(np.log(1e-4), np.log(60.0), 2001))
    mass = stats.poisson.pmf(np.arange(upper), points[:, None])
    mass = np.concatenate([mass, np.maximum(1 - mass.sum(axis=1, keepdims=True), 0.0)], axis=1)
    total = np.ones((len(points), 1))
    for _ in range(n):
        grown = np.zeros((len(points), total.shape[1] + upper))
        for k in range(upper + 1):
            grown[:, k : k + total.shape[1]] += mass[:, [k]] * total
        total = grown
    sums = np.arange(total.shape[1], dtype=float)
    likelihood = total @ np.exp(log_release(published, sums[:, None]))
    return Grid(points, stats.gamma.pdf(points, shape, scale=1 / rate) * likelihood)


def clamped_nodes(lower: float, upper: float, kinks: Sequence[float], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on the pieces of ``[lower, upper]`` between its kinks."""
    ends = [lower, *sorted(k for k in kinks if lower < k < upper), upper]
    base, weight = np.polynomial.legendre.leggauss(count)
    nodes = [0.5 * (b - a) * base + 0.5 * (a + b) for a, b in itertools.pairwise(ends)]
    weights = [0.5 * (b - a) * weight for a, b in itertools.pairwise(ends)]
    return np.concatenate(nodes), np.concatenate(weights)


def normal_mean(prior: tuple[float, float], sd: float, bounds: tuple[float, float], published: Published) -> Grid:
    """The mean given noisy copies of the sum of two records clamped to the bounds: atoms at the ends, quadrature between."""
    lower, upper = bounds
    nodes, weights = clamped_nodes(lower, upper, (), 120)
    points = np.linspace(prior[0] - 6 * prior[1], prior[0] + 6 * prior[1], 1501)
    values = np.concatenate([[lower], nodes, [upper]])
    mass = np.column_stack(
        [
            stats.norm.cdf(lower, points, sd),
            stats.norm.pdf(nodes, points[:, None], sd) * weights,
            stats.norm.sf(upper, points, sd),
        ]
    )
    density = np.exp(log_release(published, (values[:, None] + values)[..., None]))
    likelihood = np.einsum("pi,ij,pj->p", mass, density, mass, optimize=True)
    return Grid(points, stats.norm.pdf(points, *prior) * likelihood)


def regression(
    coef_scale: float,
    variance: float,
    covariate: tuple[float, float],
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    published: Published,
) -> list[Grid]:
    """Intercept and slope given a noisy statistic of one record (x, y), by quadrature over the record and both coefficients."""
    mean, sd = covariate
    x, x_weight = clamped_nodes(mean - 6 * sd, mean + 6 * sd, (-1.0, 0.0, 1.0), 16)
    y, y_weight = clamped_nodes(-40.0, 40.0, (-10.0, -4.0, -1.0, 0.0, 1.0, 4.0, 10.0), 24)
    grid_x, grid_y = np.meshgrid(x, y, indexing="ij")
    density = np.exp(log_release(published, statistic(grid_x, grid_y)))
    mass = density * (stats.norm.pdf(x, mean, sd) * x_weight)[:, None] * y_weight
    beta = np.linspace(-6 * coef_scale, 6 * coef_scale, 121)
    prior = stats.norm.pdf(beta, 0.0, coef_scale)
    joint = np.empty((len(beta), len(beta)))
    for j, slope in enumerate(beta):
        line = beta[:, None] + slope * x
        law = np.exp(-0.5 * (y - line[..., None]) ** 2 / variance)
        joint[:, j] = prior * prior[j] * np.einsum("bxy,xy->b", law, mass, optimize=True)
    return [Grid(beta, joint.sum(axis=1)), Grid(beta, joint.sum(axis=0))]
