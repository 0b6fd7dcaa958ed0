"""Three records of two binary columns, every mechanism on them, and each mechanism's density in plain NumPy and SciPy.

A case has the mechanism, a released value, a wrong twin (a normaliser, a Jacobian or a point mass forgotten, or another law) and
``log_eta(y, x)``: the log density of the released value for databases given as arrays with the records along the last axis.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy import special, stats

import noisewise as nw
from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.records import RecordNoise

N = 3
BIT = nw.Column(0, 1)
DATABASES = np.asarray(list(itertools.product((0, 1), repeat=2 * N))).reshape(-1, 2, N)
Y, X = DATABASES[:, 0].astype(float), DATABASES[:, 1].astype(float)
SUMS = nw.queries.Moments({"y": BIT, "x1": BIT}, [{"y": 1}, {"x1": 1}])
THREE = nw.queries.Moments({"y": BIT, "x1": BIT}, [{"y": 1}, {"x1": 1}, {"y": 1, "x1": 1}])


@dataclass(frozen=True)
class Case:
    mechanism: Mechanism
    value: object
    twin: Mechanism
    log_eta: Callable[[np.ndarray, np.ndarray], np.ndarray]


class WithoutSoftmax(nw.mechanisms.ExponentialMechanism):
    def log_density(self, released, total):
        return self._logits(total)[released.astype(int)]


class WithoutJacobian(nw.mechanisms.ObjectivePerturbation):
    def log_density(self, released, total):
        return self._log_tilt(-(total[: self.dimension] + self.ridge * released))


class Density(AdditiveNoise):
    """Released numbers taken as if nothing had been done to them after the noise."""

    def log_density(self, released, total):
        law = {"discrete_laplace": nw.noise.Laplace, "discrete_gaussian": nw.noise.Gaussian}.get(self.noise.name)
        return jnp.sum((law(self.noise.scale) if law else self.noise).log_prob(released - total))


class CountedTwice(RecordNoise):
    """Reports taken as two independent reports that happened to agree."""

    def log_density(self, released, total):
        return 2 * total[0]


def totals(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.stack([y.sum(-1), x.sum(-1)], axis=-1)


def exponential() -> Case:
    candidates = np.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.5, 1.0]])
    made = [
        law(
            lambda record, c: record["y"] * c[0] + record["x1"] * c[1],
            candidates,
            epsilon=3.0,
            sensitivity=1.0,
            columns=("y", "x1"),
        )
        for law in (nw.mechanisms.ExponentialMechanism, WithoutSoftmax)
    ]
    return Case(
        made[0], 2.0, made[1], lambda y, x: special.log_softmax(1.5 * totals(y, x) @ candidates.T, axis=-1)[..., 2]
    )


def exponential_of_scores() -> Case:
    candidates = np.asarray([0.0, 1.0, 2.0])
    made = [
        law(
            lambda record, c: (record["y"] + record["x1"] <= c) * 1.0,
            candidates,
            epsilon=4.0,
            sensitivity=1.0,
            score=lambda below: -jnp.abs(below - 1.5),
            columns=("y", "x1"),
        )
        for law in (nw.mechanisms.ExponentialMechanism, WithoutSoftmax)
    ]

    def log_eta(y, x):
        below = ((y + x)[..., None] <= candidates).sum(axis=-2)
        return special.log_softmax(-2 * np.abs(below - 1.5), axis=-1)[..., 1]

    return Case(made[0], 1.0, made[1], log_eta)


def logistic_loss(record, s):
    line = s[0] + s[1] * record["x1"]
    return jnp.logaddexp(0.0, line) - record["y"] * line


def objective_l2() -> Case:
    ridge, scale, s = 0.05, 0.9, np.asarray([-1.0, -4.0])
    options = {"dimension": 2, "ridge": ridge, "scale": scale, "columns": ("y", "x1")}

    def log_eta(y, x):
        z = np.stack([np.ones_like(x), x], axis=-1)
        p = special.expit(z @ s)
        slope = np.einsum("...n,...nd->...d", p - y, z) + ridge * s
        bend = np.einsum("...n,...ni,...nj->...ij", p * (1 - p), z, z) + ridge * np.eye(2)
        log_tilt = -np.linalg.norm(slope, axis=-1) / scale - np.log(2 * np.pi * scale**2)
        return log_tilt + np.log(np.linalg.det(bend))

    return Case(
        nw.mechanisms.ObjectivePerturbation(logistic_loss, **options),
        s,
        WithoutJacobian(logistic_loss, **options),
        log_eta,
    )


def objective_gaussian() -> Case:
    ridge, scale, s = 0.1, 1.5, 0.3
    options = {"dimension": 1, "ridge": ridge, "scale": scale, "noise": "gaussian", "columns": ("y", "x1")}

    def loss(record, s):
        return (0.2 + 2 * record["x1"]) * jnp.exp(s[0]) - record["y"] * s[0]

    def log_eta(y, x):
        bend = np.exp(s) * (0.2 + 2 * x).sum(-1)
        return stats.norm.logpdf(bend - y.sum(-1) + ridge * s, scale=scale) + np.log(bend + ridge)

    return Case(nw.mechanisms.ObjectivePerturbation(loss, **options), [s], WithoutJacobian(loss, **options), log_eta)


def objective_without_ridge() -> Case:
    """Least squares is strictly convex by itself."""
    scale, s = 1.1, 0.8
    options = {"dimension": 1, "ridge": 0, "scale": scale, "columns": ("y", "x1")}

    def loss(record, s):
        return 0.5 * (record["y"] - s[0] * (0.3 + record["x1"])) ** 2

    def log_eta(y, x):
        bend = ((0.3 + x) ** 2).sum(-1)
        return stats.laplace.logpdf(s * bend - ((0.3 + x) * y).sum(-1), scale=scale) + np.log(bend)

    return Case(nw.mechanisms.ObjectivePerturbation(loss, **options), [s], WithoutJacobian(loss, **options), log_eta)


def functional() -> Case:
    query = nw.mechanisms.functional_moments({"x1": BIT, "y": BIT})
    value = np.asarray([2.4, 0.3, 1.2, 1.3, -0.2])

    def log_eta(y, x):
        coefficients = np.stack([(x**a * y**b).sum(-1) for a, b in ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2))], axis=-1)
        return stats.laplace.logpdf(value, coefficients, 1.2).sum(-1)

    return Case(
        AdditiveNoise(query, nw.noise.Laplace(1.2)), value, AdditiveNoise(query, nw.noise.Laplace(0.6)), log_eta
    )


def location_gradient() -> Case:
    value = np.asarray([0.9, 0.2])
    made = [
        nw.mechanisms.KNormGradient(
            lambda record, s: 0.5 * ((record["y"] - s[0]) ** 2 + (record["x1"] - s[1]) ** 2),
            2,
            epsilon=epsilon,
            sensitivity=1.0,
            ball="l1",
            normaliser="constant",
            columns=("y", "x1"),
        )
        for epsilon in (2.0, 4.0)
    ]
    return Case(made[0], value, made[1], lambda y, x: -np.abs(N * value - totals(y, x)).sum(-1))


def k_norm(ball: str, wrong: str) -> Case:
    value, scale = np.asarray([2.8, 0.4, 1.2]), 0.5
    order = {"l1": 1, "l2": 2, "linf": np.inf}[ball]

    def log_eta(y, x):
        residual = value - np.stack([y.sum(-1), x.sum(-1), (x * y).sum(-1)], axis=-1)
        return -np.linalg.norm(residual, ord=order, axis=-1) / scale

    return Case(
        nw.mechanisms.KNormNoise(THREE, scale, ball), value, nw.mechanisms.KNormNoise(THREE, scale, wrong), log_eta
    )


def truncated(noise, law, value, lower: float, upper: float) -> Case:
    """``law`` is the same noise in SciPy, with a ``cdf`` and a ``logpdf`` (or ``logpmf``)."""
    log_density, below = (law.logpmf, lower - 1) if noise.discrete else (law.logpdf, lower)

    def log_eta(y, x):
        t = totals(y, x)
        inside = law.cdf(upper - t) - law.cdf(below - t)
        return (log_density(np.asarray(value) - t) - np.log(inside)).sum(-1)

    mechanism = nw.mechanisms.TruncatedNoise(SUMS, noise, lower=lower, upper=upper)
    return Case(mechanism, value, Density(SUMS, noise), log_eta)


def censored(noise, law, value, lower: float, upper: float, step: float = 0.0) -> Case:
    log_inside = law.logpmf if noise.discrete else law.logpdf

    def log_eta(y, x):
        t, v = totals(y, x), np.asarray(value)
        strict = 1 if noise.discrete else step / 2
        with np.errstate(divide="ignore"):
            cell = np.log(law.cdf(v - t + step / 2) - law.cdf(v - t - step / 2)) if step else log_inside(v - t)
            low, high = np.log(law.cdf(lower - t + step / 2)), np.log(law.sf(upper - t - strict))
        return np.where(v <= lower, low, np.where(v >= upper, high, cell)).sum(-1)

    ends = {"lower": lower, "upper": None if np.isinf(upper) else upper, "rounding": step or None}
    return Case(nw.mechanisms.CensoredNoise(SUMS, noise, **ends), value, Density(SUMS, noise), log_eta)


def randomised_response() -> Case:
    reports = np.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    query = nw.queries.Records(columns=("y", "x1"))

    def log_eta(y, x):
        same = np.stack([y, x], axis=-1) == reports
        return np.log(np.where(same, 0.7, 0.3)).sum((-2, -1))

    right, wrong = (law(query, nw.noise.RandomisedResponse(0.3)) for law in (RecordNoise, CountedTwice))
    return Case(right, reports, wrong, log_eta)


def discrete_gaussian(scale: float) -> stats.rv_discrete:
    k = np.arange(-40, 41)
    mass = np.exp(-0.5 * (k / scale) ** 2)
    return stats.rv_discrete(values=(k, mass / mass.sum()))


CASES = {
    "exponential": exponential(),
    "exponential of scores": exponential_of_scores(),
    "objective, l2 tilt": objective_l2(),
    "objective, gaussian tilt": objective_gaussian(),
    "objective, no ridge": objective_without_ridge(),
    "functional": functional(),
    "k-norm gradient, location": location_gradient(),
    "k-norm l1": k_norm("l1", "linf"),
    "k-norm l2": k_norm("l2", "linf"),
    "k-norm linf": k_norm("linf", "l1"),
    "truncated laplace": truncated(nw.noise.Laplace(1.5), stats.laplace(scale=1.5), [0.2, 0.4], -0.5, 1.0),
    "truncated gaussian": truncated(nw.noise.Gaussian(1.2), stats.norm(scale=1.2), [0.2, 0.4], -0.5, 1.0),
    "truncated discrete laplace": truncated(nw.noise.DiscreteLaplace(1.5), stats.dlaplace(1 / 1.5), [0.0, 1.0], 0, 1),
    "truncated discrete gaussian": truncated(nw.noise.DiscreteGaussian(1.2), discrete_gaussian(1.2), [0.0, 1.0], 0, 1),
    "clipped laplace": censored(nw.noise.Laplace(1.5), stats.laplace(scale=1.5), [0.0, 1.0], 0.0, 1.0),
    "clipped and rounded gaussian": censored(nw.noise.Gaussian(0.6), stats.norm(scale=0.6), [0.0, 2.0], 0.0, 4.0, 2.0),
    "clipped discrete laplace": censored(nw.noise.DiscreteLaplace(1.5), stats.dlaplace(1 / 1.5), [0.0, 1.0], 0, 1),
    "clipped discrete gaussian": censored(nw.noise.DiscreteGaussian(1.2), discrete_gaussian(1.2), [1.0, 1.0], 0, 1),
    "randomised response": randomised_response(),
}
