r"""Exchange steps: for mechanisms whose density is known up to a normaliser that depends on the records.

With ``eta(s | x) = e(s, x) / N(x)`` and an exact simulator of the mechanism, a move from x to x' draws ``c ~ eta(. | x')`` and is
accepted with probability ``min(1, q e(s, x') e(c, x) / (e(s, x) e(c, x')))``, where q is whatever the ratio holds without the
mechanism; N cancels and the move leaves the target invariant (Murray, Ghahramani and MacKay 2006). A record's row at c is not
its row at s, so each proposal costs O(n). Checked by ``tests/kernels/test_exchange.py``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from noisewise.kernels.records import RecordProposal, Swept
from noisewise.release.document import Release
from noisewise.typing import Key, Records, Theta


def exchange_log_ratio(key: Key, release: Release, records: Records, proposed: Records) -> Float[Array, ""]:
    """``log e(c, x) - log e(c, x')`` with ``c ~ eta(. | x')``, summed over the unnormalised measurements."""
    ratio = jnp.zeros(())
    for number, measurement in enumerate(release.measurements):
        mechanism = measurement.mechanism
        if mechanism.unnormalised:
            auxiliary = mechanism.respond(jax.random.fold_in(key, number), proposed, measurement.value)
            here, there = (jnp.sum(mechanism.statistics(x, auxiliary), axis=0) for x in (records, proposed))
            ratio = ratio + mechanism.log_density(auxiliary, here) - mechanism.log_density(auxiliary, there)
    return ratio


def exchange_sweep(
    key: Key,
    theta: Theta,
    records: Records,
    release: Release,
    propose: RecordProposal,
    *,
    first: Int[Array, ""],
    window: int,
) -> Swept:
    """Propose the records of the window in turn, each with its own exchange."""
    proposal_key, accept_key, exchange_key = jax.random.split(key, 3)
    current = {name: lax.dynamic_slice_in_dim(column, first, window) for name, column in records.items()}
    proposed, log_ratio = propose(proposal_key, theta, current)
    log_uniform = -jax.random.exponential(accept_key, (window,), dtype=float)

    def log_density(records: Records) -> Array:
        return release.log_density(jnp.sum(release.statistics(records), axis=0))

    def turn(carry: tuple[Records, Array], j: Array) -> tuple[tuple[Records, Array], Array]:
        records, log_g = carry
        moved = {
            name: lax.dynamic_update_index_in_dim(column, proposed[name][j], first + j, axis=0)
            for name, column in records.items()
        }
        moved_log_g = log_density(moved)
        exchanged = exchange_log_ratio(jax.random.fold_in(exchange_key, j), release, records, moved)
        # a state that the release excludes (only ever a start) is left at the first chance
        log_ratio_g = jnp.where(jnp.isneginf(log_g), jnp.inf, moved_log_g - log_g + exchanged + log_ratio[j])
        log_accept = jnp.minimum(log_ratio_g, 0.0)
        accept = log_uniform[j] < log_accept
        kept = {name: jnp.where(accept, moved[name], records[name]) for name in records}
        return (kept, jnp.where(accept, moved_log_g, log_g)), jnp.exp(log_accept)

    (records, _), probability = lax.scan(turn, (records, log_density(records)), jnp.arange(window))
    return Swept(records, jnp.mean(probability), jnp.min(probability))
