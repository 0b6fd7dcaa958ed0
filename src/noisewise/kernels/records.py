r"""The record sweep: independence proposals for the confidential records, accepted on the ratio of the mechanism.

Target, with theta held fixed: ``p(x | theta, s) ∝ prod_i f(x_i | theta) g(s, sum_i t_i(x_i, s))``.

Each record is proposed afresh from ``f(. | theta)`` and accepted with probability ``min(1, g(s, S*) / g(s, S))``, in
turn (Ju, Awan, Gong and Rao 2022, Algorithm 1). Proposals do not depend on the state of the sweep, so all of them and
their statistics are made in one vectorised call, and only the recursion on the total ``S`` is sequential. With
``block > 1`` consecutive records are proposed jointly: f still cancels, so the ratio is the same. With a user's own
proposal ``q`` each record brings the log of ``q(x | x*) f(x*) / (q(x* | x) f(x))`` (Algorithm 2 of the supplement).

Invariance: each acceptance is a Metropolis-Hastings step for one block given the rest; the total is recomputed from the
records at the end, so rounding does not accumulate. Checked by
``tests/kernels/test_invariance.py::test_every_kernel_leaves_the_enumerated_target_invariant``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from noisewise.kernels.lanes import across_chains_maximum
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Records, Theta

RecordProposal = Callable[[Key, Theta, Records], tuple[Records, Float[Array, " m"]]]
"""``(key, theta, records) -> (proposed records, log of q(x|x*) f(x*) / (q(x*|x) f(x)))``, record by record."""


def check_proposal(propose: RecordProposal, model: Model, window: int) -> None:
    """Refuse a user's proposal that does not return records like those it is given, and one log ratio for each."""

    def shapes(key: Key) -> tuple[Theta, Records]:
        theta = model.sample_prior(key)
        return theta, model.simulate(key, theta, window)

    theta, records = jax.eval_shape(shapes, jax.random.key(0))
    try:
        found = jax.eval_shape(propose, jax.random.key(0), theta, records)
    except Exception as error:
        raise ValueError(
            f"record_proposal could not be traced with {window} records: {type(error).__name__}: {error}"
        ) from error
    expected = (records, jax.ShapeDtypeStruct((window,), jnp.zeros(0).dtype))
    if _described(found) != _described(expected):
        raise ValueError(
            "record_proposal must return the proposed records, like those it is given, and one log ratio for each: "
            f"{_described(expected)}; got {_described(found)}."
        )


def _described(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


class Swept(NamedTuple):
    """The records after a sweep, with the mean and the minimum of the acceptance probabilities of its proposals."""

    records: Records
    acceptance_rate: Float[Array, ""]
    min_acceptance: Float[Array, ""]


def sweep(
    key: Key,
    theta: Theta,
    records: Records,
    total: Float[Array, " size"],
    release: Release,
    propose: RecordProposal,
    *,
    first: Int[Array, ""],
    window: int,
    block: Int[Array, ""],
) -> Swept:
    """Propose the ``window`` records from ``first`` on, block by block, and accept or reject each block in turn."""
    proposal_key, accept_key = jax.random.split(key)
    current = {name: lax.dynamic_slice_in_dim(column, first, window) for name, column in records.items()}
    proposed, log_ratio = propose(proposal_key, theta, current)
    proposed, log_ratio = lax.optimization_barrier((proposed, log_ratio))
    log_uniform = -jax.random.exponential(accept_key, (window,), dtype=float)
    moves = release.statistics(proposed) - release.statistics(current)
    barred = jnp.isneginf(log_ratio)
    rows = jnp.concatenate([moves, jnp.where(barred, 0.0, log_ratio)[:, None], barred[:, None]], axis=-1)
    ends = jnp.minimum(jnp.arange(1, window + 1) * block, window)
    upto = jnp.cumsum(rows, axis=0)[ends - 1]
    steps = jnp.diff(upto, axis=0, prepend=0.0)
    steps = steps[:, :-1].at[:, -1].set(jnp.where(steps[:, -1] > 0.5, -jnp.inf, steps[:, -2]))
    blocks = (window + block - 1) // block
    accepted, acceptance_rate, min_acceptance = accept_in_turn(release, total, steps, log_uniform, blocks)
    chosen = accepted[jnp.arange(window) // block]
    merged = {name: jnp.where(chosen, proposed[name], column) for name, column in current.items()}
    swept = {
        name: lax.dynamic_update_slice_in_dim(column, merged[name], first, axis=0) for name, column in records.items()
    }
    return Swept(swept, acceptance_rate, min_acceptance)


def accept_in_turn(
    release: Release,
    total: Float[Array, " size"],
    steps: Float[Array, "window size_and_one"],
    log_uniform: Float[Array, " window"],
    blocks: Int[Array, ""],
) -> tuple[Bool[Array, " window"], Float[Array, ""], Float[Array, ""]]:
    """The sequential part of a sweep: which blocks are accepted, and the mean and least acceptance probability.

    Row j of ``steps`` is the change of the total, and of ``log (q f)`` in the last column, if block j were accepted.
    """

    def turn(carry: Any) -> Any:
        j, total, log_g, accepted, summed, least = carry
        row = lax.dynamic_index_in_dim(steps, j, keepdims=False)
        moved = total + row[:-1]
        moved_log_g = release.log_density(moved)
        # a state that the release excludes (only ever a start) is left at the first chance
        log_accept = jnp.where(jnp.isneginf(log_g), 0.0, jnp.minimum(moved_log_g - log_g + row[-1], 0.0))
        mine = j < blocks
        accept = mine & (lax.dynamic_index_in_dim(log_uniform, j, keepdims=False) < log_accept)
        accepted = lax.dynamic_update_index_in_dim(accepted, accept, j, axis=0)
        probability = jnp.exp(log_accept)
        return (
            j + 1,
            jnp.where(accept, moved, total),
            jnp.where(accept, moved_log_g, log_g),
            accepted,
            summed + jnp.where(mine, probability, 0.0),
            jnp.where(mine, jnp.minimum(least, probability), least),
        )

    turns = across_chains_maximum(blocks)
    start = (
        jnp.zeros((), dtype=int),
        total,
        release.log_density(total),
        jnp.zeros(steps.shape[0], dtype=bool),
        jnp.zeros(()),
        jnp.ones(()),
    )
    _, _, _, accepted, summed, least = lax.while_loop(lambda carry: carry[0] < turns, turn, start)
    return accepted, summed / blocks, least
