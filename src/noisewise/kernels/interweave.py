r"""The non-centred move: theta moves with the innovations held fixed, and drags the records along.

Write a record as ``x_i = T(theta, u_i)`` with ``u_i`` from a law free of theta. In the coordinates (theta, u) the target is
``p(theta) p(u) g(s, sum_i t(T(theta, u_i)))``: with u fixed, the law of the records and the Jacobian cancel, and theta
moves on the scale of the privacy noise instead of the scale ``1/sqrt n`` of complete records (Yu and Meng 2011;
algorithms.md section 5). For discrete records u is drawn afresh, uniform given (theta, x), before the move.

The target of z, the unconstrained theta, is ``log p(z) + log g(s, total(T(theta(z), u)))`` with the Jacobian of theta(z)
in the prior. Checked by ``tests/kernels/test_invariance.py`` and the Geweke tests.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from noisewise.kernels.exchange import exchange_log_ratio
from noisewise.kernels.walk import LogTarget, Walk, elliptical_slice, jump, random_walk
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Innovations, Key

Move = Literal["random_walk", "elliptical_slice"]


class Interwoven(NamedTuple):
    """Theta after the moves, with the mean acceptance probability of the walk or slice, and that of the jump."""

    position: Float[Array, " d"]
    acceptance: Float[Array, ""]
    jump_acceptance: Float[Array, ""] | None = None


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
    count: Int[Array, ""] | None = None,
) -> Interwoven:
    """``moves`` non-centred moves of the unconstrained theta; with a ``count`` a jump, and so many of them."""
    target = non_centred_target(model, release, u)

    def correction(key: Key, position: Array, candidate: Array) -> Array:
        here, there = (model.transform(model.constrain(free), u) for free in (position, candidate))
        return exchange_log_ratio(key, release, here, there)

    if move == "elliptical_slice":
        return Interwoven(*elliptical_slice(key, target, position, walk)[::2])
    exchange = correction if release.unnormalised else None
    if count is None:
        return Interwoven(*random_walk(key, target, position, walk, moves=moves, correction=exchange)[::2])
    jump_key, walk_key = jax.random.split(key)
    jumped = jump(jump_key, target, position, walk)
    start, value = jumped.position, jumped.log_target
    walked = random_walk(walk_key, target, start, walk, moves=moves, count=count, current=value)
    return Interwoven(walked.position, walked.acceptance, jumped.acceptance)
