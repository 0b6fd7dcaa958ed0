r"""What records in the clear would tell: the expected posterior variance of theta given n records, without clamping and noise.

Two independent draws of theta given the same records differ by twice ``Var(theta | x)`` in mean square, so no posterior is computed. A
conjugate model draws them exactly; other updates are repeated, and a model that has densities alone is moved by a random
walk of the shape of the density's curvature.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.kernels.walk import Walk, random_walk
from noisewise.models.base import Model
from noisewise.typing import Key, Records, Theta

_UPDATES = 30
_MOVES = 300
_PRIOR_DRAWS = 20_000
_MOST_TRUTHS, _LEAST_TRUTHS = 2000, 64
_MOST_RECORDS = 10_000_000


class Clear(NamedTuple):
    """Prior variance V0 and expected posterior variance V1 of every number of theta, with Monte-Carlo standard errors."""

    v0: np.ndarray
    v0_error: np.ndarray
    v1: np.ndarray
    v1_error: np.ndarray


def in_the_clear(model: Model, n: int, key: Key, fixed: Theta) -> Clear | None:
    """V0 and V1 for n records; None for a model that has neither an update nor densities."""
    if not (model.has_update or (model.has_log_likelihood and model.has_log_prior)):
        return None
    prior_key, truth_key = jax.random.split(key)
    prior = np.asarray(_prior(model, jax.random.split(prior_key, _PRIOR_DRAWS)))
    squares = (prior - prior.mean(axis=0)) ** 2
    truths = int(np.clip(_MOST_RECORDS // n, _LEAST_TRUTHS, _MOST_TRUTHS))
    halves = np.asarray(_halves(model, n, jax.random.split(truth_key, truths), fixed))
    return Clear(
        squares.mean(axis=0),
        squares.std(axis=0) / np.sqrt(len(squares)),
        halves.mean(axis=0),
        halves.std(axis=0) / np.sqrt(truths),
    )


def equivalent_records(clear: Clear, n: int, v3: np.ndarray, v3_error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""How many records in the clear would leave the variance V3, and the Monte-Carlo error of that number.

    ``1/V - 1/V0`` is what records tell, taken as proportional to their number (exact for natural conjugate families):
    ``n (1/V3 - 1/V0) / (1/V1 - 1/V0)``, and 0 where the release leaves the prior's variance.
    """
    told, whole = 1 / v3 - 1 / clear.v0, 1 / clear.v1 - 1 / clear.v0
    number = n * told / whole
    slopes = (
        (n / whole / v3**2, v3_error),
        (number / whole / clear.v1**2, clear.v1_error),
        ((n - number) / whole / clear.v0**2, clear.v0_error),
    )
    error = np.sqrt(sum((slope * one) ** 2 for slope, one in slopes))
    return np.where(whole > 0, np.maximum(number, 0.0), np.nan), np.where(whole > 0, error, np.nan)


def vector(model: Model, theta: Theta) -> Array:
    """Theta as one vector, in its natural space."""
    return jnp.concatenate([theta[name].reshape(-1) for name in model.parameters])


@eqx.filter_jit
def _prior(model: Model, keys: Key) -> Array:
    return jax.vmap(lambda key: vector(model, model.sample_prior(key)))(keys)


@eqx.filter_jit
def _halves(model: Model, n: int, keys: Key, fixed: Theta) -> Array:
    def one(key: Key) -> Array:
        theta_key, records_key, first, second = jax.random.split(key, 4)
        theta = {**model.sample_prior(theta_key), **fixed}
        records = model.simulate(records_key, theta, n)
        a = _again(model, first, theta, records)
        b = _again(model, second, a, records)
        return 0.5 * (vector(model, a) - vector(model, b)) ** 2

    # one at a time: n records each
    return jax.lax.map(one, keys)


def _again(model: Model, key: Key, theta: Theta, records: Records) -> Theta:
    """Another draw of theta given the records."""
    if model.has_update:
        keys = jax.random.split(key, 1 if model.conjugate else _UPDATES)
        return jax.lax.scan(lambda now, k: (model.update(k, now, records), None), theta, keys)[0]

    def log_target(free: Array) -> Array:
        return model.log_prior_free(free) + jnp.sum(model.log_likelihood(model.constrain(free), records))

    position = model.unconstrain(theta)
    values, vectors = jnp.linalg.eigh(-jax.hessian(log_target)(position))
    curvature = jnp.maximum(jnp.abs(values), 1e-6 * jnp.max(jnp.abs(values)))
    walk = Walk.start(position, (vectors / curvature) @ vectors.T)
    return model.constrain(random_walk(key, log_target, position, walk, moves=_MOVES).position)
