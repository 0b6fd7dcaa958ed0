"""Loops that several chains go through side by side, each with its own number of turns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


@jax.custom_batching.custom_vmap
def across_chains_maximum(count: Int[Array, ""]) -> Int[Array, ""]:
    """The largest count over the chains that are vectorised together, the same (unbatched) number for all of them.

    A loop with this many turns has one trip count for all chains, which keeps its body free of masks. Turns beyond a
    chain's own count must leave it unchanged, so that a chain does not depend on its neighbours.
    """
    return count


@across_chains_maximum.def_vmap
def _(axis_size: int, in_batched: list[bool], count: Array) -> tuple[Array, bool]:
    return across_chains_maximum(jnp.max(count) if in_batched[0] else count), False
