r"""A rough Gaussian picture of the posterior, to start chains from (never a result).

The statistic of the release is taken as normal with the moments of the model,
``total ~ N(n m(theta), n C(theta) (1 + n/M))`` from M simulated records with the same innovations for every theta, and the
noise as normal with its own variance. A population of parameters is then pulled from the prior to this surrogate
posterior by annealed importance sampling with a Gaussian proposal in unconstrained space. From prior starts, chains at
large n can sit in a false mode for a whole run (algorithms.md section 5); from here they start near every mode the release
supports, dispersed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key

Density: TypeAlias = Callable[[Float[Array, "particles d"]], Float[Array, " particles"]]

_PARTICLES = 512
MOST_RECORDS = 512
_MOST_ROUNDS = 40
_LAST_ROUNDS = 3
_LEAST_ESS = 0.2
_SHRINKAGE = 0.1
_INFLATION = 1.2


class Surrogate(NamedTuple):
    """Mean and covariance of the unconstrained parameters under the surrogate posterior.

    ``share`` is the largest share, over the released numbers, of the records in the variance that records and noise make
    together at the mean: near zero, the noise is so wide that the records hardly matter.
    """

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    share: Float[Array, ""] | None = None


def _log_normal(gap: Float[Array, " m"], covariance: Float[Array, "m m"]) -> Float[Array, ""]:
    """``log N(gap; 0, covariance)`` up to a constant."""
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, gap, lower=True)
    return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diag(factor)))


# one theta after the other, because of what :mod:`noisewise.models.triangular` says of LAPACK in batches
_log_normals: Callable[[Array, Array], Array] = jax.custom_batching.sequential_vmap(_log_normal)


def surrogate_log_likelihood(model: Model, release: Release, free: Array, u: object, n: Array) -> Array:
    """The surrogate log density of the released values at one unconstrained theta."""
    rows = release.statistics(model.transform(model.constrain(free), u))
    used = rows.shape[0]
    mean = n * jnp.mean(rows, axis=0)
    centred = rows - jnp.mean(rows, axis=0)
    spread = (centred.T @ centred) / used * n * (1 + n / used)
    value = jnp.zeros(())
    start = 0
    for measurement in release.measurements:
        size = measurement.mechanism.size
        part = slice(start, start + size)
        noise = measurement.mechanism.noise_variance
        if noise is not None:
            value = value + _log_normals(measurement.value - mean[part], spread[part, part] + jnp.diag(noise))
        else:
            value = value + measurement.mechanism.log_density(measurement.value, mean[part])
        start += size
    return value


def fit_surrogate(key: Key, model: Model, release: Release, n: Array, *, records: int) -> Surrogate:
    """Anneal a population from the prior to the surrogate posterior ; its mean and covariance."""
    prior_key, innovation_key, round_key = jax.random.split(key, 3)
    u = model.innovations(innovation_key, records)
    free = prior_population(prior_key, model)
    score = jax.vmap(lambda z: surrogate_log_likelihood(model, release, z, u, n))
    if not model.has_log_prior:
        # without the prior's density the population cannot move: weigh the prior draws once
        likelihood = _finite(score(free))
        power = _largest_power(likelihood, jnp.zeros(_PARTICLES))
        mean, covariance = _moments(free, power * likelihood)
        return Surrogate(mean, covariance, _records_share(model, release, mean, u, n))
    mean, covariance = anneal(round_key, score, jax.vmap(model.log_prior_free), free)
    return Surrogate(mean, covariance, _records_share(model, release, mean, u, n))


def prior_population(key: Key, model: Model) -> Float[Array, "particles d"]:
    """Draws from the prior in unconstrained space, for :func:`anneal` to begin with."""
    return jax.vmap(lambda k: model.unconstrain(model.sample_prior(k)))(jax.random.split(key, _PARTICLES))


def anneal(key: Key, score: Density, prior: Density, free: Float[Array, "particles d"]) -> tuple[Array, Array]:
    """The mean and covariance that a population of draws from the prior comes to under ``exp(score) prior``; both by row."""
    mean, covariance = _moments(free, jnp.zeros(_PARTICLES))
    prior_scale = jnp.diag(covariance)

    def cool(carry: Any) -> Any:
        free, log_proposal, mean, covariance, rounds, whole = carry
        likelihood, log_prior = score(free), prior(free)
        base = _finite(log_prior - log_proposal)
        power = _largest_power(_finite(likelihood), base)
        mean, covariance = _moments(free, power * _finite(likelihood) + base)
        covariance = covariance + _SHRINKAGE * jnp.diag(jnp.diag(covariance)) + 1e-9 * jnp.diag(prior_scale)
        factor = jnp.linalg.cholesky(covariance)
        normals = jax.random.normal(jax.random.fold_in(key, rounds), free.shape)
        moved = mean + _INFLATION * normals @ factor.T
        # constants of the proposal's density cancel in the weights
        log_proposal = -0.5 * jnp.sum(normals**2, axis=-1)
        return moved, log_proposal, mean, covariance, rounds + 1, whole + (power >= 1.0)

    # go on until the whole likelihood counts, and a few rounds more
    start = (free, prior(free), mean, covariance, 0, 0)
    *_, mean, covariance, _, _ = lax.while_loop(
        lambda carry: (carry[4] < _MOST_ROUNDS) & (carry[5] < _LAST_ROUNDS), cool, start
    )
    return mean, covariance


def _records_share(model: Model, release: Release, free: Array, u: object, n: Array) -> Array:
    noises = [measurement.mechanism.noise_variance for measurement in release.measurements]
    known = [noise for noise in noises if noise is not None]
    if len(known) < len(noises):
        return jnp.ones(())
    spread = n * jnp.var(release.statistics(model.transform(model.constrain(free), u)), axis=0)
    return jnp.max(spread / (spread + jnp.concatenate(known)))


def _finite(value: Array) -> Array:
    return jnp.where(jnp.isfinite(value), value, -1e300)


def _weights(log_weights: Array) -> Array:
    return jax.nn.softmax(log_weights)


def _moments(free: Array, log_weights: Array) -> tuple[Array, Array]:
    weights = _weights(log_weights)
    mean = weights @ free
    centred = free - mean
    return mean, (centred * weights[:, None]).T @ centred


def _largest_power(likelihood: Array, base: Array) -> Array:
    """The largest power of the likelihood, at most 1, that leaves a fair number of effective particles."""

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = jnp.exp(0.5 * (jnp.log(low) + jnp.log(high)))
        weights = _weights(middle * likelihood + base)
        enough = 1 / jnp.sum(weights**2) > _LEAST_ESS * likelihood.shape[0]
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    weights = _weights(likelihood + base)
    enough = 1 / jnp.sum(weights**2) > _LEAST_ESS * likelihood.shape[0]
    low, _ = lax.fori_loop(0, 40, halve, (jnp.asarray(1e-12), jnp.asarray(1.0)))
    return jnp.where(enough, 1.0, low)
