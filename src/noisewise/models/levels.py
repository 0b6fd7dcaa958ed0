r"""Categorical records as a binary tree of coin tosses, so that innovations never run out of digits.

Inverting a cumulative sum with one uniform number breaks when a level is rarer than rounding error. Here a level is
found by tossing ``ceil(log2 K)`` coins: at every node the record goes to the left half of the remaining levels when
``r * right < left``, where ``left`` and ``right`` are the probabilities of the halves (sums of positive terms, so that
nothing cancels) and the innovation ``r = u / (1 - u)``, u uniform, has ``P(r < t) = t / (1 + t)``. The numbers r are
dense near zero and near infinity: given any level of positive probability, however small, there are innovations that
lead to it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from noisewise.typing import Key

_LARGEST = 1e300


def depth(levels: int) -> int:
    """The number of coins that tell the levels apart."""
    return (levels - 1).bit_length()


def odds(key: Key, shape: tuple[int, ...]) -> Array:
    """Innovations: ``u / (1 - u)`` of uniform numbers."""
    u = jax.random.uniform(key, shape, dtype=float)
    return u / (1 - u)


def masses(probabilities: Float[Array, "*rows levels"]) -> list[Float[Array, "*rows nodes"]]:
    """The probabilities of the nodes below the root, one array for each generation."""
    levels = probabilities.shape[-1]
    padding = [(0, 0)] * (probabilities.ndim - 1) + [(0, 2 ** depth(levels) - levels)]
    generations = [jnp.pad(probabilities, padding)]
    for _ in range(depth(levels) - 1):
        below = generations[0]
        generations.insert(0, below[..., 0::2] + below[..., 1::2])
    return generations


def find(
    generations: list[Array], innovations: Float[Array, "n depth"], row: Int[Array, " n"] | None = None
) -> Int[Array, " n"]:
    """The levels the innovations lead to; ``row`` picks each record's own row of probabilities."""
    level = jnp.zeros(innovations.shape[0], dtype=int)
    for step, nodes in enumerate(generations):
        left, right = _pair(nodes, level, row)
        level = 2 * level + (innovations[:, step] * right >= left)
    return level


def retrace(
    generations: list[Array], level: Int[Array, " n"], key: Key, row: Int[Array, " n"] | None = None
) -> Float[Array, "n depth"]:
    """Innovations drawn from their law given that they lead to ``level``."""
    v = jax.random.uniform(key, (len(generations), level.shape[0]), dtype=float)
    found = []
    for step, nodes in enumerate(generations):
        below = level >> (len(generations) - 1 - step)
        left, right = _pair(nodes, below >> 1, row)
        went_right = (below & 1) == 1
        r = jnp.where(went_right, left + v[step] * right, v[step] * left)
        r = r / jnp.where(went_right, (1 - v[step]) * right, right + (1 - v[step]) * left)
        # rounding may push r across the threshold: the ends of the range cannot be crossed
        end = jnp.where(went_right, _LARGEST, 0.0)
        found.append(jnp.where((r * right >= left) == went_right, r, end))
    return jnp.stack(found, axis=-1)


def _pair(nodes: Array, parent: Array, row: Array | None) -> tuple[Array, Array]:
    if row is None:
        return nodes[0::2][parent], nodes[1::2][parent]
    return nodes[:, 0::2][row, parent], nodes[:, 1::2][row, parent]


def counts(level: Int[Array, " n"], size: int) -> Float[Array, " size"]:
    """How many records are at each level."""
    return jnp.sum(level[:, None] == jnp.arange(size), axis=0).astype(float)
