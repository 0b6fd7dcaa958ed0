r"""Where else the posterior might be: a look for regions of the parameters that no chain visited.

R-hat compares chains with each other. Where a release allows two regions far apart (sums of even powers leave the sign of a mean
open) all chains may sit in one of them and agree. The rough picture of :mod:`noisewise.engines.surrogate` can tell: it is made anew
with a ball about the draws cut out, and the weights of the picture inside and outside of the ball are compared by importance
sampling. The picture is rough, with ``(1 + n/M)`` times the variance of the records' sums, so the ball is widened by as much. As a
second making costs seconds of compilation it is left out where the first picture is no wider than the draws, as it is whenever
there is one region and the annealing has found it. Checked by ``tests/engines/test_elsewhere.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import multivariate_normal
from jaxtyping import Array, Float

from noisewise.engines.surrogate import (
    MOST_RECORDS,
    Density,
    Surrogate,
    anneal,
    fit_surrogate,
    prior_population,
    surrogate_log_likelihood,
)
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

_WIDER = 3.0
_MARGIN = 1.5
_INFLATION = 1.2
_TRIALS = 2048
_DRAWS = 2000
_SETTLING, _SHRINKAGE = 2, 0.1
_LEAST_EFFECTIVE = 100.0
_LEAST_SHARE = 0.02


class Elsewhere(NamedTuple):
    """The share of the rough picture's weight outside of the draws' ball, where it is, and how many trials say so."""

    share: Float[Array, ""]
    theta: Theta
    effective: Float[Array, ""]

    @property
    def found(self) -> bool:
        """Whether there is weight outside that counts, seen by enough trials."""
        return bool((self.share > _LEAST_SHARE) & (self.effective > _LEAST_EFFECTIVE))


def _ball(free: Float[Array, "draws d"], picture: Surrogate, widened: float) -> tuple[Array, Array]:
    """Mean and covariance of the draws, widened to what the picture's would be about them."""
    covariance = widened * jnp.atleast_2d(jnp.cov(free, rowvar=False))
    return jnp.mean(free, axis=0), covariance + 1e-12 * jnp.diag(jnp.diag(picture.covariance))


def is_wider(free: Float[Array, "draws d"], picture: Surrogate, widened: float) -> bool:
    """Whether the picture is wider than the draws in some direction, by more than its roughness explains."""
    factor = jnp.linalg.cholesky(_ball(free, picture, widened)[1])
    half = jax.scipy.linalg.solve_triangular(factor, picture.covariance, lower=True)
    ratio = jax.scipy.linalg.solve_triangular(factor, half.T, lower=True)
    return bool(jnp.max(jnp.linalg.eigvalsh(0.5 * (ratio + ratio.T))) > _WIDER**2)


@eqx.filter_jit
def look_elsewhere(
    key: Key,
    model: Model,
    release: Release,
    picture: Surrogate,
    free: Float[Array, "draws d"],
    n: Array,
    *,
    records: int,
    widened: float,
) -> Elsewhere:
    """What the rough picture holds outside of a ball about the draws (unconstrained, by row)."""
    prior_key, innovation_key, anneal_key, settle_key, inside_key, outside_key = jax.random.split(key, 6)
    u = model.innovations(innovation_key, records)
    score = jax.vmap(lambda z: surrogate_log_likelihood(model, release, z, u, n))
    prior = jax.vmap(model.log_prior_free)
    centre, covariance = _ball(free, picture, widened)
    factor = jnp.linalg.cholesky(covariance)

    def distance(points: Array) -> Array:
        return jnp.sum(jax.scipy.linalg.solve_triangular(factor, (points - centre).T, lower=True) ** 2, axis=0)

    # in the widened metric the draws reach less far than the picture's own would
    radius = jnp.maximum(_MARGIN**2 * widened * jnp.max(distance(free)), 25.0 + free.shape[1])

    def outside(points: Array) -> Array:
        return jnp.where(distance(points) > radius, score(points), -jnp.inf)

    def inside(points: Array) -> Array:
        return jnp.where(distance(points) > radius, -jnp.inf, score(points))

    def weigh(key: Key, part: Density, mean: Array, covariance: Array) -> tuple[Array, Array, Array, Array]:
        """The log weight of a part of the picture, the mean and covariance of its trials, and how many of them count."""
        normals = jax.random.normal(key, (_TRIALS, mean.shape[0]), dtype=float)
        tried = mean + _INFLATION * normals @ jnp.linalg.cholesky(covariance).T
        proposed = multivariate_normal.logpdf(tried, mean, _INFLATION**2 * covariance)
        logs = part(tried) + prior(tried) - proposed
        logs = jnp.where(jnp.isfinite(logs), logs, -jnp.inf)
        weights = jax.nn.softmax(logs)
        found = weights @ tried
        spread = (weights[:, None] * (tried - found)).T @ (tried - found)
        return jax.nn.logsumexp(logs) - jnp.log(_TRIALS), found, spread, 1 / jnp.sum(weights**2)

    mean, spread = anneal(anneal_key, outside, prior, prior_population(prior_key, model))
    for settling in jax.random.split(settle_key, _SETTLING):
        _, mean, found, _ = weigh(settling, outside, mean, spread)
        spread = found + _SHRINKAGE * jnp.diag(jnp.diag(found))
    log_outside, mean, _, effective = weigh(outside_key, outside, mean, spread)
    log_inside, *_ = weigh(inside_key, inside, centre, covariance)
    return Elsewhere(jax.nn.sigmoid(log_outside - log_inside), model.constrain(mean), effective)


def doubts_elsewhere(key: Key, model: Model, release: Release, posterior: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A sentence on a region that the release allows as well and no draw (chain, draw, ...) is near, if there is one."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in posterior.items()}
    some = np.linspace(0, len(next(iter(flat.values()))) - 1, _DRAWS).astype(int)
    free = _unconstrain(model, {name: jnp.asarray(flat[name][some]) for name in model.parameters})
    assert release.n is not None
    n, records = jnp.asarray(float(release.n)), min(release.n, MOST_RECORDS)
    widened = 1 + release.n / records
    first, second = jax.random.split(key)
    picture = eqx.filter_jit(fit_surrogate)(first, model, release, n, records=records)
    if not np.all(np.isfinite(free)) or not is_wider(free, picture, widened):
        return ()
    other = look_elsewhere(second, model, release, picture, free, n, records=records, widened=widened)
    if not other.found:
        return ()
    at = ", ".join(
        f"{name} = {np.array2string(np.asarray(value), precision=3, separator=', ')}"
        for name, value in other.theta.items()
    )
    return (
        f"the release allows another region as well, about {at}, with about {float(other.share):.0%} of the posterior by a rough "
        "picture, and no chain is there; start some there with initvals and look at both",
    )


@eqx.filter_jit
def _unconstrain(model: Model, theta: Theta) -> Array:
    return jax.vmap(model.unconstrain)(theta)
