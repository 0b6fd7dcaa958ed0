"""Markov chains in progress: groups of lanes in compiled chunks, what they have made so far, and checkpoints of it.

The same arithmetic compiled for three chains and for five rounds its sums differently. So that a chain never depends on those beside
it, every program is compiled for ``LANES`` chains, and more chains are more groups of that many; lanes to spare are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from noisewise import checkpoint as checkpoints
from noisewise.kernels.base import Kernel
from noisewise.settings import Settings
from noisewise.typing import Key, Theta

ROWS = 256
"""The most recorded draws of a chunk."""
LANES = 4
"""Chains that are compiled together."""
_SECONDS_PER_CHUNK = 0.5

START, INIT, TUNE, STEP, PREDICT = range(5)


def chain_keys(seed: int, chains: int) -> Key:
    """One key a chain, which does not depend on how many chains there are."""
    return _chain_keys(jnp.asarray(seed), jnp.arange(chains))


@jax.jit
def _chain_keys(seed: Array, chains: Array) -> Key:
    return jax.vmap(lambda chain: jax.random.fold_in(jax.random.key(seed), chain))(chains)


def lane_keys(seed: int, chains: int, lanes: int = LANES) -> Key:
    """Keys for the chains and for the lanes that fill up the last group."""
    return chain_keys(seed, -(-chains // lanes) * lanes)


def in_groups(function: Callable[[Any], Any], lanes_of: Any, lanes: int = LANES) -> Any:
    """``function`` of the lanes (leading axis) of one group after the other, its results joined in NumPy."""
    return together([function(group) for group in groups(lanes_of, lanes)])


def groups(lanes_of: Any, lanes: int = LANES) -> list[Any]:
    """Arrays (lane, ...) in groups of lanes."""
    count = jax.tree.leaves(lanes_of)[0].shape[0]
    return [jax.tree.map(itemgetter(slice(at, at + lanes)), lanes_of) for at in range(0, count, lanes)]


def together(parts: list[Any]) -> Any:
    """Groups of arrays (lane, ...) as arrays of all lanes, in NumPy."""
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)


class _Chunk(eqx.Module):
    """What a compiled chunk is told beside the states, all of it data: nothing here recompiles."""

    kernel: Kernel
    keys: Key
    first: Array
    count: Array
    thin: Array
    tuning: Array


@eqx.filter_jit(donate="all-except-first")
def _advance(chunk: _Chunk, states: Any) -> tuple[Any, Any, Any]:
    """Make ``count`` recorded steps from step ``first`` on; return states, rows (chain, row, ...), and sums of ``within``."""
    kernel = chunk.kernel
    phase_keys = jax.vmap(lambda key: jax.random.fold_in(key, jnp.where(chunk.tuning, TUNE, STEP)))(chunk.keys)
    predict_keys = jax.vmap(lambda key: jax.random.fold_in(key, PREDICT))(chunk.keys)

    def step(number: Array, states: Any) -> tuple[Any, Any]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(phase_keys)
        states, info = jax.vmap(kernel.step)(keys, states)
        states = lax.cond(chunk.tuning, lambda s: jax.vmap(kernel.adapt)(s, info), lambda s: s, states)
        return states, info

    def observe(number: Array, states: Any) -> tuple[Theta, dict[str, Array]]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(predict_keys)
        return jax.vmap(kernel.theta)(states), jax.vmap(kernel.predict)(keys, states)

    shapes = jax.eval_shape(lambda s: (step(jnp.asarray(0), s)[1], observe(jnp.asarray(0), s)), states)
    no_info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
    least = {name: jnp.full(value.shape, jnp.inf) for name, value in no_info.stats.items() if name.startswith("min_")}
    no_info = no_info._replace(stats={**no_info.stats, **least})

    def combine(total: Any, info: Any) -> Any:
        stats = {
            name: jnp.minimum(value, info.stats[name]) if name in least else value + info.stats[name]
            for name, value in total.stats.items()
        }
        return total._replace(stats=stats, within=jax.tree.map(jnp.add, total.within, info.within))

    def record(row: Array, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        states, rows, within = carry
        start = (chunk.first + row) * chunk.thin

        def one(j: Array, inner: tuple[Any, Any]) -> tuple[Any, Any]:
            states, info = step(start + j, inner[0])
            return states, combine(inner[1], info)

        states, info = lax.fori_loop(0, chunk.thin, one, (states, no_info))
        stats = {name: value if name in least else value / chunk.thin for name, value in info.stats.items()}
        seen = (observe(chunk.first + row, states), stats)
        rows = jax.tree.map(lambda buffer, value: buffer.at[:, row].set(value), rows, seen)
        return states, rows, jax.tree.map(jnp.add, within, info.within)

    row_shapes = (shapes[1], shapes[0].stats)
    rows = jax.tree.map(lambda s: jnp.zeros((s.shape[0], ROWS, *s.shape[1:]), s.dtype), row_shapes)
    return lax.fori_loop(0, chunk.count, record, (states, rows, no_info.within))


@eqx.filter_jit
def _initial_states(kernel: Kernel, keys: Key, starts: Theta) -> Any:
    init_keys = jax.vmap(lambda key: jax.random.fold_in(key, INIT))(keys)
    return jax.vmap(kernel.init)(init_keys, starts)


class Chains:
    """A run in progress: the states of the chains, by group, and the draws made so far."""

    def __init__(
        self,
        kernel: Kernel,
        starts: Callable[[Key], Theta],
        settings: Settings,
        seed: int,
        identity: str,
        lanes: int = LANES,
    ) -> None:
        self.kernel, self.settings = kernel, settings
        self.goal = settings.draws
        self.tuned = 0
        self.seconds = 0.0
        self.rows: list[Any] = []
        self.made = 0
        self.within: Any = None
        self.latent: list[dict[str, np.ndarray]] = []
        self.resumed = False
        self.seed = seed
        lasting = (settings.chains, settings.tune, settings.thin, settings.keep_latent)
        self.identity = checkpoints.fingerprint(identity, lasting, settings.draws if settings.keep_latent else 0)
        keys = lane_keys(seed, settings.chains, lanes)
        self.keys = groups(keys, lanes)
        at = groups(starts(keys), lanes)
        self.states = [_initial_states(kernel, *group) for group in zip(self.keys, at, strict=True)]
        self._chunk_rows = 4.0
        if settings.checkpoint is not None and settings.checkpoint.exists():
            self._restore(*checkpoints.load(settings.checkpoint, self.identity, seed))

    def _restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        leaves, structure = jax.tree.flatten(self.states)
        self.states = jax.tree.unflatten(structure, [jnp.asarray(arrays[f"state{i}"]) for i in range(len(leaves))])
        self.tuned, self.made, self.seconds = meta["tuned"], meta["made"], meta["seconds"]
        if self.settings.target_ess is not None:
            # the effective sample size is looked at where the uninterrupted run looks
            self.goal = max(self.goal, meta["goal"])
        self.resumed = True
        if self.made:
            self.rows = [_unflatten("row", arrays)]
            self.within = _unflatten("within", arrays)
        self.latent = [
            {name: arrays[f"latent{i}/{name}"] for name in meta["latent_columns"]} for i in range(meta["latents"])
        ]

    def save(self) -> None:
        """Write the checkpoint, if one was asked for."""
        path = self.settings.checkpoint
        if path is None:
            return
        arrays = {f"state{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.states))}
        if self.made:
            self.rows = [self.joined()]
            arrays |= _flatten("row", self.rows[0]) | _flatten("within", self.within)
        for i, columns in enumerate(self.latent):
            arrays |= {f"latent{i}/{name}": column for name, column in columns.items()}
        meta = {
            "fingerprint": self.identity,
            "seed": self.seed,
            "tuned": self.tuned,
            "made": self.made,
            "goal": self.goal,
            "seconds": self.seconds,
            "latents": len(self.latent),
            "latent_columns": list(self.latent[0]) if self.latent else [],
        }
        checkpoints.save(path, meta, arrays)

    def joined(self) -> dict[str, dict[str, np.ndarray]]:
        """The draws so far, by group and name."""
        names = self.rows[0].keys()
        return {
            group: {
                name: np.concatenate([block[group][name] for block in self.rows], axis=1)
                for name in self.rows[0][group]
            }
            for group in names
        }

    def imputed(self) -> dict[str, np.ndarray]:
        """The latent records of every chain as they are now."""
        parts = [jax.vmap(self.kernel.latent)(states) for states in self.states]
        return {name: value[: self.settings.chains] for name, value in together(parts).items()}

    def advance(self, goal: int, *, tuning: bool) -> dict[str, float]:
        """One chunk towards ``goal`` steps of the phase; the mean statistics of the chunk."""
        done = self.tuned if tuning else self.made
        count = max(1, min(goal - done, ROWS, int(self._chunk_rows)))
        told = (
            jnp.asarray(done),
            jnp.asarray(count),
            jnp.asarray(1 if tuning else self.settings.thin),
            jnp.asarray(tuning),
        )
        began = time.perf_counter()
        parts = [
            _advance(_Chunk(self.kernel, keys, *told), states)
            for keys, states in zip(self.keys, self.states, strict=True)
        ]
        self.states = [states for states, _, _ in jax.block_until_ready(parts)]
        ((theta, predictive), stats), within = together([(rows, sums) for _, rows, sums in parts])
        elapsed = time.perf_counter() - began
        self.seconds += elapsed
        self._chunk_rows = min(ROWS, max(1.0, self._chunk_rows * min(4.0, _SECONDS_PER_CHUNK / max(elapsed, 1e-6))))
        chains = self.settings.chains

        def take(value: np.ndarray) -> np.ndarray:
            return value[:chains, :count]

        stats = jax.tree.map(take, stats)
        if tuning:
            self.tuned += count
        else:
            self.rows.append(
                {"posterior": jax.tree.map(take, theta), "predictive": jax.tree.map(take, predictive), "stats": stats}
            )
            self.made += count
            within = jax.tree.map(lambda value: value[:chains], within)
            self.within = within if self.within is None else jax.tree.map(np.add, self.within, within)
        return {name: float(np.mean(value)) for name, value in stats.items()}


def _flatten(prefix: str, nested: Any) -> dict[str, np.ndarray]:
    flat: dict[str, np.ndarray] = {}
    for name, value in nested.items():
        flat |= _flatten(f"{prefix}/{name}", value) if isinstance(value, dict) else {f"{prefix}/{name}": value}
    return flat


def _unflatten(prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    nested: dict[str, Any] = {"posterior": {}, "predictive": {}, "stats": {}} if prefix == "row" else {}
    for path, value in arrays.items():
        if path.startswith(prefix + "/"):
            *groups, name = path.split("/")[1:]
            place = nested
            for group in groups:
                place = place[group]
            place[name] = value
    return nested
