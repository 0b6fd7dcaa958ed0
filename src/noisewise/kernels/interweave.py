r"""The non-centred move: theta moves with the innovations held fixed, and drags the records along.

Write a record as ``x_i = T(theta, u_i)`` with ``u_i`` from a law free of theta. In the coordinates (theta, u) the target is
``p(theta) p(u) g(s, sum_i t(T(theta, u_i)))``: with u fixed, the law of the records and the Jacobian cancel, and theta
moves on the scale of the privacy noise instead of the scale ``1/sqrt n`` of complete records (Yu and Meng 2011;
algorithms.md section 5). For discrete records u is drawn afresh, uniform given (theta, x), before the move.

The target of z, the unconstrained theta, is ``log p(z) + log g(s, total(T(theta(z), u)))`` with the Jacobian of theta(z)
in the prior. Checked by ``tests/kernels/test_invariance.py`` and the Geweke tests.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.kernels.exchange import exchange_log_ratio
from noisewise.kernels.walk import LogTarget, Walk, Walked, elliptical_slice, random_walk
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Innovations, Key

Move = Literal["random_walk", "elliptical_slice"]


def non_centred_target(model: Model, release: Release, u: Innovations) -> LogTarget:
    """The log target of the unconstrained theta with the innovations held fixed."""

    def log_target(free: Float[Array, " d"]) -> Float[Array, ""]:
        total = jnp.sum(release.statistics(model.transform(model.constrain(free), u)), axis=0)
        return model.log_prior_free(free) + release.log_density(total)

    return log_target


def interweave(
    key: Key,
    model: Model,
    release: Release,
    position: Float[Array, " d"],
    u: Innovations,
    walk: Walk,
    *,
    move: Move,
    moves: int,
) -> Walked:
    """``moves`` non-centred moves of the unconstrained theta."""
    target = non_centred_target(model, release, u)

    def correction(key: Key, position: Array, candidate: Array) -> Array:
        here, there = (model.transform(model.constrain(free), u) for free in (position, candidate))
        return exchange_log_ratio(key, release, here, there)

    if move == "elliptical_slice":
        return elliptical_slice(key, target, position, walk)
    exchange = correction if release.unnormalised else None
    return random_walk(key, target, position, walk, moves=moves, correction=exchange)
