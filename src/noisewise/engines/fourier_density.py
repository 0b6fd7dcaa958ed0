r"""The density of one released sum at given parameters, by a Fourier integral that costs the same at any n.

A release is ``s = sum_i t(x_i) + noise``. With ``M(zeta) = E exp(zeta (t - mu))`` and the transform ``N`` of the noise,

    p(s | theta) = 1/2pi  integral  M(tau + iv)^n N(tau + iv) exp(-(tau + iv) (s - n mu)) dv

for every real ``tau`` in the strip where both exist. The line of integration goes near the saddle point of the sum, where
the integrand does not oscillate away: the result keeps its relative accuracy when s lies far in a tail or outside every
possible total. Laplace noise of scale b has poles at ``+-1/b``; where the saddle point lies beyond one, the line is moved
across it and the residue ``M(+-1/b)^n exp(-|s - n mu| / b) / 2b`` is added, so wide noise costs no more than narrow noise.

Along the line the trapezoid rule is exact but for the wrapping of the density with period ``P = 2 pi / h``: P is the distance
of s from the centre, plus the distance beyond which the sum has less than ``exp(-39)`` (Chernoff's bound), plus 39 over the
distance to the nearest pole. The sum ends where the integrand has fallen by ``exp(-45)`` or, where it falls slowly, where its
remaining tail is below 1e-12. Everything of order ``n log M`` is formed from
``M - 1 = E[-2 sin^2(v y / 2) + i sin(v y)]`` and ``log1p``, so that n = 3e8 keeps its digits.

A statistic on a lattice (0/1 values, clamped counts) has a periodic transform: one period is integrated against the
transform of the noise *on that lattice*, and integer noise needs no other treatment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from noisewise.engines.fourier_few import Between, few_log_density

Law = Callable[[dict[str, np.ndarray], int], tuple[np.ndarray, np.ndarray]]
"""``(theta, order) -> values of the statistic, their probabilities``, with the axes (parameter value, node)."""

_ORDER = 64
_WORK = 2**22
_MOST_NODES = 2**12
_MOST_ORDER = 256
_SMOOTH_SCALE = 3.0
_TAIL = 1e-12
_NATS = 39.0
_LOOKS = 24


class NotConverged(ValueError):
    """The integrand falls too slowly: few records lie between their bounds and the noise is not smooth."""


@dataclass(frozen=True)
class ReleasedSum:
    """One released sum: value, number of records, and noise (``law`` a name of ``nw.noise``) with its scale.

    ``lattice`` is ``(origin, step)`` when every value of the statistic is ``origin + step k``, k an integer.
    """

    value: float
    n: int
    law: str
    scale: float
    lattice: tuple[float, float] | None = None

    @property
    def target(self) -> float:
        """The released value in units of the lattice."""
        if self.lattice is None:
            return self.value
        return (self.value - self.n * self.lattice[0]) / self.lattice[1]

    @property
    def width(self) -> float:
        """The scale of the noise in units of the lattice."""
        return self.scale if self.lattice is None else self.scale / abs(self.lattice[1])

    @property
    def heavy(self) -> bool:
        """Whether the tails of the noise are exponential, which makes poles."""
        return self.law in ("laplace", "discrete_laplace")

    @property
    def variance(self) -> float:
        """The variance of the noise in units of the lattice, to choose a contour with."""
        return (2.0 if self.heavy else 1.0) * self.width**2

    @property
    def peak(self) -> float:
        """The density (or mass) of the noise at 0."""
        if self.law == "laplace":
            return 0.5 / self.scale
        if self.law == "discrete_laplace":
            return float(np.tanh(0.5 / self.scale))
        if self.law == "gaussian":
            return float(1 / (self.scale * np.sqrt(2 * np.pi)))
        if self.scale >= _SMOOTH_SCALE:
            return float(1 / (self.scale * np.sqrt(2 * np.pi)))
        reach = np.arange(-40.0, 41.0)
        return float(1 / np.sum(np.exp(-0.5 * (reach / self.scale) ** 2)))

    def coordinates(self, values: np.ndarray) -> np.ndarray:
        """Values of the statistic in units of the lattice."""
        return values if self.lattice is None else np.round((values - self.lattice[0]) / self.lattice[1])


@dataclass(frozen=True)
class Tilted:
    """The law of one record's statistic tilted by ``exp(tau (t - mean))``: axes (parameter value, node)."""

    tau: np.ndarray
    log_mgf: np.ndarray
    mean: np.ndarray
    deviations: np.ndarray
    weights: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """The variance of one record's statistic under the tilt."""
        return np.sum(self.weights * self.deviations**2, axis=1)


def tilt(values: np.ndarray, weights: np.ndarray, tau: np.ndarray) -> Tilted:
    """Tilt the laws of the rows, with ``log_mgf = log E exp(tau (t - mean))`` to full relative accuracy near 0."""
    mean = np.sum(weights * values, axis=1)
    centred = values - mean[:, None]
    exponent = tau[:, None] * centred
    largest = np.max(np.where(weights > 0, exponent, -np.inf), axis=1)
    raised = weights * np.exp(np.minimum(exponent - largest[:, None], 0.0))
    total = np.sum(raised, axis=1)
    near = np.max(np.where(weights > 0, np.abs(exponent), 0.0), axis=1) < 0.5
    change = np.sum(weights * np.expm1(np.where(near[:, None] & (weights > 0), exponent, 0.0)), axis=1)
    log_mgf = np.where(near, np.log1p(change), largest + np.log(total))
    raised /= total[:, None]
    shift = np.sum(raised * centred, axis=1)
    return Tilted(tau, log_mgf, mean + shift, centred - shift[:, None], raised)


def saddle(values: np.ndarray, weights: np.ndarray, released: ReleasedSum, *, noisy: bool) -> np.ndarray:
    """Where ``n log M(tau) - tau s`` (with the noise, if ``noisy``) is least, by bisection of its increasing derivative."""
    mean = np.sum(weights * values, axis=1)
    distance = released.target - released.n * mean
    if released.heavy:
        reach = 1 / released.width
        if not noisy:
            spread = np.sqrt(released.n * np.sum(weights * (values - mean[:, None]) ** 2, axis=1))
            reach = reach + 2 / np.maximum(spread, 1e-3 * released.width)
        low, high = -reach * np.ones_like(mean), reach * np.ones_like(mean)
    else:
        low = np.minimum(distance, 0.0) / released.variance
        high = np.maximum(distance, 0.0) / released.variance
    for _ in range(45):
        middle = 0.5 * (low + high)
        slope = released.n * tilt(values, weights, middle).mean - released.target
        if not released.heavy:
            slope = slope + released.variance * middle
        elif noisy:
            slope = slope + 2 * middle * released.width**2 / (1 - (released.width * middle) ** 2)
        low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
    return 0.5 * (low + high)


def approximate_log_density(law: Law, theta: dict[str, np.ndarray], released: ReleasedSum) -> np.ndarray:
    """The saddle-point approximation, within about a unit everywhere: it tells where to look, and nothing more."""
    values, weights = law(theta, _ORDER)
    values = released.coordinates(values)
    tau = saddle(values, weights, released, noisy=True)
    tilted = tilt(values, weights, tau)
    mean = np.sum(weights * values, axis=1)
    exponent = released.n * tilted.log_mgf - tau * (released.target - released.n * mean)
    spread = released.n * tilted.variance
    if released.heavy:
        pole = 1 - (released.width * tau) ** 2
        exponent = exponent - np.log(np.maximum(pole, 1e-300))
        spread = spread + 2 * released.width**2 * (2 - pole) / np.maximum(pole, 1e-150) ** 2
    else:
        exponent = exponent + 0.5 * released.variance * tau**2
        spread = spread + released.variance
    step = 1.0 if released.lattice is None else abs(released.lattice[1])
    return np.minimum(exponent - 0.5 * np.log(2 * np.pi * spread) - np.log(step), np.log(released.peak))


def log_density(
    law: Law, theta: dict[str, np.ndarray], released: ReleasedSum, between: Between | None = None
) -> np.ndarray:
    """``log p(s | theta)`` for a batch of parameter values; ``between`` helps where the integral does not converge."""
    values, weights = law(theta, _ORDER)
    values = released.coordinates(values)
    tau = _contour(values, weights, released)
    tilted = tilt(values, weights, tau)
    deviation = np.sqrt(released.n * tilted.variance)
    rest = released.target - released.n * tilted.mean
    reach = _reach(tilted, released.n)
    if released.heavy:
        to_pole = np.abs(np.abs(tau) - 1 / released.width)
        period = np.abs(rest) + reach + _NATS / to_pole
        fall = deviation
    else:
        fall = np.sqrt(deviation**2 + released.variance)
        period = np.abs(rest - released.variance * tau) + reach + np.sqrt(2 * _NATS * released.variance)
    cut = 9.5 / np.maximum(fall, 1e-300)
    result = np.full(tau.shape, np.nan)
    left: np.ndarray = np.arange(tau.size)
    while left.size:
        if released.lattice is not None:
            cut = np.minimum(cut, np.pi)
        nodes = np.zeros(tau.shape)
        nodes[left] = np.ceil(period[left] * cut[left] / (2 * np.pi))
        hard = left[(nodes[left] > _MOST_NODES) | (_order_needed(cut[left], values[left], released) > _MOST_ORDER)]
        if hard.size:
            # always as many rows, so that a user's density is compiled for one shape
            rows = np.resize(hard, tau.size)
            result[hard] = _few(law, {name: part[rows] for name, part in theta.items()}, released, between)[: hard.size]
            left = np.setdiff1d(left, hard)
        again = [left[:0]]
        for rows in _batches(left, nodes, cut, values):
            done, log_value = _integrate(law, theta, released, rows, tau[rows], cut[rows], period[rows])
            result[rows] = log_value
            again.append(rows[~done])
        left = np.concatenate(again)
        cut[left] *= 2
    return result


def _order_needed(cut: np.ndarray, values: np.ndarray, released: ReleasedSum) -> np.ndarray:
    """Nodes that the oscillation of ``exp(ivt)`` needs of its own when the sum has few records."""
    inner = values[:, 1:-1] if released.lattice is None else values[:, :1]
    return np.asarray(_ORDER / 2 + 0.6 * cut * np.ptp(inner, axis=1))


def _few(law: Law, theta: dict[str, np.ndarray], released: ReleasedSum, between: Between | None) -> np.ndarray:
    """Where the integral does not converge: Laplace noise and few records between their bounds, or s outside every total."""
    if released.law != "laplace" or released.lattice is not None:
        raise NotConverged
    values, weights = law(theta, _ORDER)
    low, high = np.sort(values[0, [0, -1]])
    outside = released.value <= released.n * low or released.value >= released.n * high
    if outside and np.all((values >= low) & (values <= high)):
        # no total on the other side of s, so that the noise is one exponential
        end = low if released.value <= released.n * low else high
        away = -np.abs(values - end) / released.scale
        change = np.sum(weights * np.expm1(away), axis=1)
        with np.errstate(divide="ignore"):
            log_mean = np.where(change > -0.5, np.log1p(change), np.log(np.sum(weights * np.exp(away), axis=1)))
        apart = abs(released.value - released.n * end) / released.scale
        return np.asarray(released.n * log_mean - apart + np.log(released.peak))
    found = None
    if between is not None:
        found = few_log_density(between, theta, weights, released.n, released.value, released.scale)
    if found is None:
        raise NotConverged
    return found


def _contour(values: np.ndarray, weights: np.ndarray, released: ReleasedSum) -> np.ndarray:
    """The line: the saddle point, moved by about one sd of the sum away from poles that are nearer than that."""
    tau = saddle(values, weights, released, noisy=False)
    if not released.heavy:
        return tau
    pole = 1 / released.width
    deviation = np.sqrt(released.n * tilt(values, weights, tau).variance)
    apart = np.minimum(1 / np.maximum(deviation, 1e-3 * released.width), 8 * pole)
    beyond = np.where(apart < pole, pole - apart, pole + apart)
    side = np.where(tau < 0, -1.0, 1.0)
    return np.where(np.abs(np.abs(tau) - pole) < apart, side * beyond, tau)


def _reach(tilted: Tilted, n: int) -> np.ndarray:
    """A distance from the mean of the tilted sum beyond which it has less than ``exp(-39)`` on either side (Chernoff)."""
    unit = np.sqrt(2 * _NATS) / np.maximum(np.sqrt(n * tilted.variance), 1e-300)
    best = np.zeros(unit.shape)
    for side in (-1.0, 1.0):
        found = np.full(unit.shape, np.inf)
        for halvings in range(24):
            slope = unit * 0.5**halvings
            exponent = side * slope[:, None] * tilted.deviations
            top = np.max(np.where(tilted.weights > 0, exponent, 0.0), axis=1)
            mass = np.sum(tilted.weights * np.exp(np.minimum(exponent - top[:, None], 0.0)), axis=1)
            found = np.minimum(found, (n * np.maximum(top + np.log(mass), 0.0) + _NATS) / slope)
        best = np.maximum(best, found)
    extent = n * np.max(np.where(tilted.weights > 0, np.abs(tilted.deviations), 0.0), axis=1)
    return np.minimum(best, extent)


def _batches(left: np.ndarray, nodes: np.ndarray, cut: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """Rows with similar numbers of nodes together, so many at a time that the work arrays stay small."""
    ordered = left[np.argsort(nodes[left])]
    batches, begin = [], 0
    while begin < ordered.size:
        size = 1
        while begin + size < ordered.size and (size + 1) * (nodes[ordered[begin + size]] + 2) * values.shape[1] < _WORK:
            size += 1
        batches.append(ordered[begin : begin + size])
        begin += size
    return batches


def _integrate(
    law: Law,
    theta: dict[str, np.ndarray],
    released: ReleasedSum,
    rows: np.ndarray,
    tau: np.ndarray,
    cut: np.ndarray,
    period: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoid rule along the line for some rows: whether its tail is negligible, and the log density."""
    n = released.n
    some = {name: part[rows] for name, part in theta.items()}
    values, weights = law(some, _ORDER)
    order, needed = _ORDER, np.max(_order_needed(cut, values, released))
    while order < needed:
        order *= 2
    if order > _ORDER:
        values, weights = law(some, order)
    values = released.coordinates(values)
    mean = np.sum(weights * values, axis=1)
    tilted = tilt(values, weights, tau)
    if released.lattice is not None and np.all(cut >= np.pi):
        periodic = True
        half = int(np.ceil(np.max(period) / 2))
        step = np.full(rows.size, 2 * np.pi / (2 * half + 1))
        v = step[:, None] * np.arange(half + 1.0)
        inside = np.ones(v.shape)
    else:
        periodic = False
        step = 2 * np.pi / period
        v = step[:, None] * np.arange(int(np.max(np.ceil(cut / step))) + 1.0)
        inside = (v <= (np.inf if released.lattice is None else np.pi)).astype(float)
    log_noise, noise = noise_transform(released, tau, v)
    power = n * log_characteristic(tilted, v)
    rest = released.target - n * tilted.mean
    terms = np.real(np.exp(power - 1j * v * rest[:, None]) * noise) * inside
    terms[:, 0] *= 0.5
    integral = np.sum(terms, axis=1) * step / np.pi
    left = np.maximum(power[:, -1].real * inside[:, -1], n * log_largest(tilted, v[:, -1], released))
    tail = np.exp(left) * np.abs(noise[:, -1]) * v[:, -1] / np.pi
    front = n * tilted.log_mgf - tau * (released.target - n * mean) + log_noise
    residue = np.full(rows.size, -np.inf)
    if released.heavy:
        pole = np.where(tau < 0, -1.0, 1.0) / released.width
        residue = n * tilt(values, weights, pole).log_mgf - pole * (released.target - n * mean) + np.log(released.peak)
        residue = np.where(np.abs(tau) * released.width > 1, residue, -np.inf)
    top = np.maximum(front, residue)
    value = np.exp(front - top) * integral + np.exp(residue - top)
    done = periodic | (np.exp(front - top) * tail <= _TAIL * np.abs(value))
    return done, top + np.log(np.where(value > 0, value, np.nan))


def log_characteristic(tilted: Tilted, v: np.ndarray) -> np.ndarray:
    """``log E exp(i v y)`` of the deviations y of one record, for frequencies with the axes (parameter value, frequency)."""
    half = 0.5 * v[:, :, None] * tilted.deviations[:, None, :]
    sine = np.sin(half)
    real = -2 * np.einsum("mvq,mvq,mq->mv", sine, sine, tilted.weights, optimize=False)
    imaginary = 2 * np.einsum("mvq,mvq,mq->mv", sine, np.cos(half), tilted.weights, optimize=False)
    size = 2 * real + real**2 + imaginary**2
    with np.errstate(divide="ignore"):
        modulus = 0.5 * np.log1p(np.maximum(size, -1.0))
    return np.maximum(modulus, -1e300) + 1j * np.arctan2(imaginary, 1 + real)


def log_largest(tilted: Tilted, v: np.ndarray, released: ReleasedSum) -> np.ndarray:
    """How large ``log |E exp(i w y)|`` becomes again at frequencies w beyond v: atoms fall into step with each other.

    Within the first turns, ``|w| < 3 pi / width``, or within the period of a lattice, it is looked at; farther out it is at most
    the mass of the atoms at the bounds and the modulus of what lies between them, which falls.
    """
    deviations, weights = tilted.deviations, tilted.weights
    turn = 2 * np.pi / np.maximum(np.ptp(deviations, axis=1), 1e-300)
    reach = 1.5 * turn if released.lattice is None else np.full(v.shape, np.pi)
    end = np.maximum(reach, v)
    share = np.linspace(0, 1, _LOOKS)
    seen = np.concatenate([v[:, None] + (end - v)[:, None] * share, np.clip(turn, v, end)[:, None]], axis=1)
    found = np.max(log_characteristic(tilted, seen).real, axis=1)
    if released.lattice is not None:
        return np.where(v >= np.pi, -np.inf, found)
    inner = Tilted(tilted.tau, tilted.log_mgf, tilted.mean, deviations[:, 1:-1], weights[:, 1:-1])
    between = np.max(np.abs(_transform(inner, end[:, None] + turn[:, None] * share)), axis=1)
    with np.errstate(divide="ignore"):
        far = np.log(np.minimum(weights[:, 0] + weights[:, -1] + between, 1.0))
    return np.where(v < reach, np.maximum(found, far), far)


def _transform(tilted: Tilted, v: np.ndarray) -> np.ndarray:
    """``E exp(i v y)`` over some of the nodes."""
    turned = np.exp(1j * v[:, :, None] * tilted.deviations[:, None, :])
    return np.asarray(np.einsum("mvq,mq->mv", turned, tilted.weights))


def noise_transform(released: ReleasedSum, tau: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The transform of the noise at ``tau + iv``, as a log factor for each row and a complex number of moderate size.

    Off a lattice ``integral f(r) exp(zeta r) dr``; on one, with the residuals ``r = rho + j`` that the released value leaves,
    ``sum_j f(rho + j) exp(zeta (rho + j))``.
    """
    zeta = tau[:, None] + 1j * v
    width = released.width
    nothing = np.zeros(tau.shape)
    if released.lattice is None:
        if released.heavy:
            return nothing, 1 / (1 - (width * zeta) ** 2)
        return _gaussian_transform(width, tau, v, 0.0)
    rho = released.target - np.floor(released.target)
    if released.heavy:
        return nothing, released.peak * (_geometric(zeta - 1 / width, rho) - _geometric(zeta + 1 / width, rho))
    if width >= _SMOOTH_SCALE:
        return _gaussian_transform(width, tau, v, -np.log(abs(released.lattice[1])))
    centre = np.round(width**2 * tau)[:, None] + np.arange(-40.0, 41.0)
    exponent = -0.5 * ((centre + rho) / width) ** 2 + tau[:, None] * (centre + rho)
    front = np.max(exponent, axis=1)
    raised = np.exp(exponent - front[:, None])
    turned = np.einsum("mj,mvj->mv", raised, np.exp(1j * v[:, :, None] * (centre + rho)[:, None, :]))
    return front + np.log(released.peak), turned


def _geometric(x: np.ndarray, rho: float) -> np.ndarray:
    """``exp(rho x) / (1 - exp(x))``, with no overflow on either side."""
    right = x.real > 0
    inward = np.where(right, -x, x)
    return np.where(right, -np.exp((1 - rho) * inward), np.exp(rho * inward)) / -np.expm1(inward)


def _gaussian_transform(width: float, tau: np.ndarray, v: np.ndarray, front: float) -> tuple[np.ndarray, np.ndarray]:
    square = width**2
    return front + 0.5 * square * tau**2, np.exp(-0.5 * square * v**2 + 1j * square * tau[:, None] * v)
