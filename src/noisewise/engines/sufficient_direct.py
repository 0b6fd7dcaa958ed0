r"""The normal model's posterior itself, for one parameter and one released number: no Markov chain.

With ``R ~ N(m, V)`` given theta and Laplace noise of scale b, ``p(y | theta) = ∫ N(s; m, V) exp(-|y - s|/b) / 2b ds`` has the closed form

    (1/4b) [exp(-g^2/2) erfcx((k - g)/sqrt 2) + exp(-g^2/2) erfcx((k + g)/sqrt 2)],   g = (y - m)/sqrt V,   k = sqrt V / b.

The density of the unconstrained parameter is tabulated on points that are put where it bends, and integrated and inverted as
exponential pieces between them. Every local maximum that the first grid shows is followed, because the posterior of a
truncated sum can be bimodal. Checked by ``tests/engines/test_sufficient_direct.py``.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

from noisewise.direct.closed import two_tails
from noisewise.engines.base import Draw, Sampler
from noisewise.kernels.statistics import NoiseShape, StatisticLaw
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key

_CHUNK = 1024
_TABLE = 8192
_ROUNDS = 80
_DEPTH = 45.0
_BEND = 2e-4
_STEP = 1.0
_FAR = 12.0


def log_erfcx(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """``log(exp(x^2) erfc(x))``, with all its digits."""
    near = x < _FAR
    inner = jnp.where(near, x, 0.0)
    direct = inner**2 + math.log(2.0) + log_ndtr(-math.sqrt(2.0) * inner)
    outer = jnp.where(near, _FAR, x)
    inverse = 1 / (2 * outer**2)
    series = 1 - inverse * (
        1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse * (1 - 11 * inverse))))
    )
    return jnp.where(near, direct, jnp.log(series) - jnp.log(outer) - 0.5 * math.log(math.pi))


def log_normal_laplace(
    gap: Float[Array, "..."], variance: Float[Array, "..."], scale: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The log density at ``gap`` of a normal number of mean zero plus a Laplace one."""
    root = jnp.sqrt(jnp.maximum(variance, 1e-300))
    g, k = gap / root, root / scale

    def side(sign: float) -> Array:
        # exp(-g^2/2) erfcx(u/sqrt 2) with u = k + sign g; where u < 0 it is exp(k^2/2 + sign k g) erfc(u/sqrt 2)
        u = k + sign * g
        positive = u > 0
        outward = -0.5 * g**2 + log_erfcx(jnp.where(positive, u, 0.0) / math.sqrt(2.0))
        inward = k * (0.5 * k + sign * g) + math.log(2.0) + log_ndtr(-jnp.where(positive, 0.0, u))
        return jnp.where(positive, outward, inward)

    return jnp.logaddexp(side(-1.0), side(1.0)) - jnp.log(4 * scale)


def log_likelihood(
    model: Model, law: StatisticLaw, value: Array, noise: NoiseShape, n: Array, free: Float[Array, " 1"]
) -> Float[Array, ""]:
    """``log p(y | theta)`` of one released number under the normal law of its total."""
    mean, variance = released_moments(model, law, n, free)
    gap = value[0] - mean
    scale = noise.scale[0]
    wide = variance + scale**2
    normal = -0.5 * gap**2 / wide - 0.5 * jnp.log(2 * jnp.pi * wide)
    return jnp.where(noise.laplace[0], log_normal_laplace(gap, variance, scale), normal)


def released_moments(model: Model, law: StatisticLaw, n: Array, free: Float[Array, " 1"]) -> tuple[Array, Array]:
    """Mean and variance of the one released total, before noise."""
    mean, covariance = law.moments(model.constrain(free))
    return law.released(n * mean, n)[0], n * (law.matrix @ covariance @ law.matrix.T)[0, 0]


def draw_total(key: Key, value: Array, mean: Array, variance: Array, scale: Array, laplace: Array) -> Float[Array, ""]:
    """The released total R before noise, given ``value``: of density ``N(R; mean, variance) noise(value - R)``."""
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-300))
    tail_key, normal_key = jax.random.split(key)
    side, within = jax.random.uniform(tail_key, (2,), dtype=float)
    between = two_tails(side, within, (value - mean) / deviation, deviation, scale)
    trust = variance / (variance + scale**2)
    normal = mean + trust * (value - mean) + scale * jnp.sqrt(trust) * jax.random.normal(normal_key, (), dtype=float)
    return jnp.where(laplace, value + between, normal)


@eqx.filter_jit
def _log_posterior(
    model: Model, law: StatisticLaw, value: Array, noise: NoiseShape, n: Array, points: Float[Array, " chunk"]
) -> Float[Array, " chunk"]:
    def one(point: Array) -> Array:
        free = point[None]
        return model.log_prior_free(free) + log_likelihood(model, law, value, noise, n, free)

    found = jax.vmap(one)(points)
    return jnp.where(jnp.isnan(found), -jnp.inf, found)


@eqx.filter_jit
def _prior_points(model: Model, key: Key) -> Array:
    keys = jax.random.split(key, _CHUNK)
    return jax.vmap(lambda k: model.unconstrain(model.sample_prior(k))[0])(keys)


class Table(eqx.Module):
    """A one-dimensional density as exponential pieces between points: log densities at the points, and the mass up to each."""

    points: Float[Array, " table"]
    log_density: Float[Array, " table"]
    mass: Float[Array, " table"]

    def draw(self, key: Key) -> Float[Array, ""]:
        """One draw."""
        place = jax.random.uniform(key, (2,), dtype=float)
        i = jnp.clip(jnp.searchsorted(self.mass, place[0], side="right") - 1, 0, self.points.shape[0] - 2)
        rise = self.log_density[i + 1] - self.log_density[i]
        # the mirror image of a falling piece rises, and expm1 of a large rise would overflow
        fall = -jnp.abs(rise)
        share = jnp.where(
            jnp.abs(fall) > 1e-9, jnp.log1p(place[1] * jnp.expm1(fall)) / jnp.where(fall < 0, fall, 1.0), place[1]
        )
        share = jnp.where(rise > 0, 1 - share, share)
        return self.points[i] + share * (self.points[i + 1] - self.points[i])

    def distribution(self, point: Float[Array, ""]) -> Float[Array, ""]:
        """The probability of the half-line up to a point."""
        i = jnp.clip(jnp.searchsorted(self.points, point, side="right") - 1, 0, self.points.shape[0] - 2)
        width = self.points[i + 1] - self.points[i]
        share = jnp.clip((point - self.points[i]) / jnp.where(width > 0, width, 1.0), 0.0, 1.0)
        rise = self.log_density[i + 1] - self.log_density[i]
        part = jnp.where(
            jnp.abs(rise) > 1e-9, jnp.expm1(share * rise) / jnp.expm1(jnp.where(rise != 0, rise, 1.0)), share
        )
        return self.mass[i] + part * (self.mass[i + 1] - self.mass[i])


class DirectSampler(Sampler):
    """Independent draws from the tabulated posterior of one unconstrained parameter, and a simulated release beside each."""

    model: Model
    table: Table
    law: StatisticLaw
    value: Float[Array, " 1"]
    noise: NoiseShape
    n: Array
    release: Release | None = None

    def draw(self, key: Key) -> Draw:
        free = self.table.draw(key)[None]
        theta = self.model.constrain(free)
        if self.release is None:
            return Draw(theta, {}, {})
        total_key, noise_key = jax.random.split(jax.random.fold_in(key, 1))
        moments = released_moments(self.model, self.law, self.n, free)
        total = draw_total(total_key, self.value[0], *moments, self.noise.scale[0], self.noise.laplace[0])
        simulated = self.release.simulate(noise_key, total[None])
        return Draw(theta, {}, dict(zip(self.release.names, simulated, strict=True)))


def direct_sampler(
    key: Key,
    model: Model,
    law: StatisticLaw,
    value: Array,
    noise: NoiseShape,
    n: Array,
    release: Release | None = None,
) -> DirectSampler:
    """Tabulate the posterior; ``key`` only places the first grid, over the prior. ``release`` is what to simulate again, if anything."""

    def evaluate(points: np.ndarray) -> np.ndarray:
        found = []
        for start in range(0, len(points), _CHUNK):
            part = points[start : start + _CHUNK]
            padded = np.pad(part, (0, _CHUNK - len(part)), mode="edge")
            found.append(np.asarray(_log_posterior(model, law, value, noise, n, jnp.asarray(padded)))[: len(part)])
        return np.concatenate(found)

    prior = np.asarray(_prior_points(model, key))
    return DirectSampler(model, tabulate(evaluate, prior), law, value, noise, n, release)


def tabulate(evaluate: object, first: np.ndarray) -> Table:
    """The table of an unnormalised log density, from points spread over where it may live."""
    assert callable(evaluate)
    inside = first[np.isfinite(first)]
    low, high = float(np.min(inside)), float(np.max(inside))
    span = max(high - low, 1e-3 * max(abs(low), abs(high)), 1e-6)
    points = np.unique(np.concatenate([np.linspace(low - span, high + span, _CHUNK // 2), inside[: _CHUNK // 2]]))
    values = evaluate(points)
    for _ in range(_ROUNDS):
        ends = [
            end - side * span * 2.0
            for end, value, side in ((points[0], values[0], 1), (points[-1], values[-1], -1))
            if value > np.max(values) - _DEPTH and abs(end) < 700
        ]
        new = np.concatenate([_middles(points, values), ends])
        if not new.size or points.size + new.size > _TABLE:
            break
        span = 2.0 * span if ends else span
        points = np.concatenate([points, new])
        values = np.concatenate([values, evaluate(new)])
        order = np.argsort(points)
        points, values = points[order], values[order]
    if not np.any(np.isfinite(values)):
        raise ValueError(
            "The posterior could not be evaluated anywhere: the model can hardly have produced this release. Look at n, the noise "
            "scale and the bounds."
        )
    return _table(points, values)


def _middles(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Middles of the pieces that matter and are not yet nearly straight, and those beside an unresolved maximum."""
    safe = np.maximum(values, np.max(values) - 1e6)
    rise, width = np.diff(safe), np.diff(points)
    slope = rise / width
    bend = np.zeros(len(rise))
    turn = np.abs(np.diff(slope))
    bend[:-1] = turn * width[:-1]
    bend[1:] = np.maximum(bend[1:], turn * width[1:])
    top = np.maximum(safe[:-1], safe[1:])
    peak = np.zeros(len(values), dtype=bool)
    peak[1:-1] = (safe[1:-1] >= safe[:-2]) & (safe[1:-1] >= safe[2:])
    beside = peak[:-1] | peak[1:]
    # a maximum far below the top is still followed while it could rise above it
    alive = (top > np.max(safe) - _DEPTH) | (beside & (top + np.abs(bend) > np.max(safe) - _DEPTH))
    # the allowed bend grows where there is little mass
    allowed = np.minimum(_STEP, _BEND * np.exp(0.5 * np.clip(np.max(safe) - top, 0.0, 2 * _DEPTH)))
    fine = np.maximum(np.abs(points[:-1]), np.abs(points[1:])) * 1e-14
    chosen = alive & (bend > allowed) & (width > fine)
    return 0.5 * (points[:-1] + points[1:])[chosen]


def _table(points: np.ndarray, values: np.ndarray) -> Table:
    keep = values > np.max(values) - 200.0
    inside = np.flatnonzero(keep)
    points, values = (
        points[inside[0] : inside[-1] + 1],
        np.maximum(values[inside[0] : inside[-1] + 1], np.max(values) - 300.0),
    )
    values = values - np.max(values)
    rise = np.diff(values)
    ratio = np.where(np.abs(rise) > 1e-9, -np.expm1(-np.abs(rise)) / np.where(rise != 0, np.abs(rise), 1.0), 1.0)
    mass = np.exp(np.maximum(values[:-1], values[1:])) * ratio * np.diff(points)
    total = np.sum(mass)
    upto = np.minimum(np.concatenate([[0.0], np.cumsum(mass)]) / total, 1.0)
    short = _TABLE - len(points)
    tail = points[-1] + 1e-9 * (1 + np.arange(short)) * max(abs(points[-1]), 1.0)
    return Table(
        jnp.asarray(np.concatenate([points, tail])),
        jnp.asarray(np.concatenate([values - np.log(total), np.full(short, values[-1] - np.log(total))])),
        jnp.asarray(np.concatenate([upto, np.full(short, 1.0)])),
    )
