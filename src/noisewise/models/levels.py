r"""Categorical records as a binary tree of coin tosses, so that innovations never run out of digits.

Inverting a cumulative sum with one uniform number breaks when a level is rarer than rounding error. Here a level is
found by tossing ``ceil(log2 K)`` coins: at every node the record goes to the left half of the remaining levels when
``r * right < left``, where ``left`` and ``right`` are the probabilities of the halves (sums of positive terms, so that
nothing cancels) and the innovation ``r = u / (1 - u)``, u uniform, has ``P(r < t) = t / (1 + t)``. The numbers r are
dense near zero and near infinity: given any level of positive probability, however small, there are innovations that
lead to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from noisewise.typing import Key

Tosses: TypeAlias = tuple[Array, ...]
"""The innovations of one column: an array over records for each generation of the tree."""

_LARGEST = 1e300


def depth(levels: int) -> int:
    """The number of coins that tell the levels apart."""
    return (levels - 1).bit_length()


def innovations(key: Key, n: int, sizes: Sequence[int]) -> list[Tosses]:
    """Innovations of ``n`` records for columns with these numbers of levels, drawn in one call."""
    u = jax.random.uniform(key, (sum(depth(size) for size in sizes), n), dtype=float)
    rows = iter(u / (1 - u))
    return [tuple(itertools.islice(rows, depth(size))) for size in sizes]


def masses(probabilities: Float[Array, "*rows levels"]) -> list[Float[Array, "*rows nodes"]]:
    """The probabilities of the nodes below the root, one array for each generation."""
    levels = probabilities.shape[-1]
    padding = [(0, 0)] * (probabilities.ndim - 1) + [(0, 2 ** depth(levels) - levels)]
    generations = [jnp.pad(probabilities, padding)]
    for _ in range(depth(levels) - 1):
        below = generations[0]
        generations.insert(0, below[..., 0::2] + below[..., 1::2])
    return generations


def find(generations: list[Array], tosses: Tosses, row: Int[Array, " n"] | None = None) -> Int[Array, " n"]:
    """The levels the tosses lead to; ``row`` picks each record's own row of probabilities."""
    level = jnp.zeros(tosses[0].shape, dtype=int)
    for nodes, r in zip(generations, tosses, strict=True):
        left, right = _pair(nodes, level, row)
        level = 2 * level + (r * right >= left)
    return level


def retrace(generations: list[Array], level: Int[Array, " n"], key: Key, row: Int[Array, " n"] | None = None) -> Tosses:
    """Tosses drawn from their law given that they lead to ``level``."""
    found = []
    uniform = jax.random.uniform(key, (len(generations), *level.shape), dtype=float)
    for step, (nodes, v) in enumerate(zip(generations, uniform, strict=True)):
        below = level >> (len(generations) - 1 - step)
        left, right = _pair(nodes, below >> 1, row)
        went_right = (below & 1) == 1
        r = jnp.where(went_right, left + v * right, v * left)
        r = r / jnp.where(went_right, (1 - v) * right, right + (1 - v) * left)
        # rounding may push r across the threshold: the ends of the range cannot be crossed
        end = jnp.where(went_right, _LARGEST, 0.0)
        found.append(jnp.where((r * right >= left) == went_right, r, end))
    return tuple(found)


def _pair(nodes: Array, parent: Array, row: Array | None) -> tuple[Array, Array]:
    if row is None:
        return nodes[0::2][parent], nodes[1::2][parent]
    return nodes[:, 0::2][row, parent], nodes[:, 1::2][row, parent]


def counts(level: Int[Array, " n"], size: int) -> Float[Array, " size"]:
    """How many records are at each level."""
    return jnp.bincount(level, length=size).astype(float)
