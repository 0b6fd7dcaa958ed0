r"""The one driver: it turns any kernel or independent sampler into draws.

Chains are vectorised; steps are made in compiled chunks of at most ``_ROWS`` recorded draws, between which progress is
shown, a checkpoint may be written, and Ctrl-C is obeyed. The random key of a step depends only on the seed, the chain and the
number of the step, so the draws do not depend on the number of chains beside it, on the chunks, on the progress bar or on a
resumption.
"""

from __future__ import annotations

import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from noisewise import checkpoint as checkpoints
from noisewise.engines.base import Sampler
from noisewise.kernels.base import Kernel
from noisewise.progress import Progress
from noisewise.typing import Key, Theta

_ROWS = 256
_SECONDS_PER_CHUNK = 0.5
_SAVE_SHARE = 0.05
_MOST_EXTENSION = 100
_LANES = 2
"""One chain runs beside a second one that is dropped: a lane of its own is compiled to sums in another order."""

START, INIT, TUNE, STEP, PREDICT = range(5)


@dataclass(frozen=True)
class Settings:
    """How long to run, and what to keep."""

    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    thin: int = 1
    target_ess: float | None = None
    keep_latent: int = 0
    checkpoint: Path | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("tune", 0), ("chains", 1), ("thin", 1), ("keep_latent", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
        if not isinstance(self.progressbar, bool):
            raise ValueError(f"progressbar must be True or False; got {self.progressbar!r}.")
        number = isinstance(self.target_ess, int | float | np.number) and not isinstance(self.target_ess, bool)
        if self.target_ess is not None and not (number and np.isfinite(self.target_ess) and self.target_ess > 0):
            raise ValueError(
                f"target_ess must be positive; got {self.target_ess!r}. Leave it out to run a fixed length."
            )
        if self.keep_latent > self.draws * self.chains:
            raise ValueError(
                f"keep_latent={self.keep_latent} asks for more imputed databases than the {self.draws * self.chains} "
                "draws of all chains; raise draws or keep fewer."
            )
        if self.checkpoint is not None and not self.checkpoint.parent.is_dir():
            raise ValueError(
                f"The folder of the checkpoint {self.checkpoint} does not exist; make it, or name another."
            )


@dataclass
class Trace:
    """What a run leaves: arrays with axes (chain, draw, ...), by name."""

    posterior: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    predictive: dict[str, np.ndarray]
    within: dict[str, np.ndarray] = field(default_factory=dict)
    latent: dict[str, np.ndarray] = field(default_factory=dict)
    sampling_time: float = 0.0
    interrupted: bool = False
    short: bool = False
    resumed: bool = False

    @property
    def length(self) -> int:
        """The number of draws in each chain."""
        return int(next(iter(self.posterior.values())).shape[1])


def fresh_seed() -> int:
    """A seed from the operating system's entropy, small enough for every file format."""
    return secrets.randbits(63)


def check_seed(random_seed: int | None) -> int:
    """The given seed, or a fresh one for None."""
    if random_seed is None:
        return fresh_seed()
    if isinstance(random_seed, bool) or not isinstance(random_seed, int | np.integer) or not 0 <= random_seed < 2**63:
        raise ValueError(f"random_seed must be a whole number from 0 to 2^63 - 1, or None; got {random_seed!r}.")
    return int(random_seed)


def chain_keys(seed: int, chains: int) -> Key:
    """One key a chain, which does not depend on how many chains there are."""
    return _chain_keys(jnp.asarray(seed), jnp.arange(chains))


@jax.jit
def _chain_keys(seed: Array, chains: Array) -> Key:
    return jax.vmap(lambda chain: jax.random.fold_in(jax.random.key(seed), chain))(chains)


def numbers_as_data(built: Any) -> Any:
    """With its numbers that are no integers as arrays, so that no program is compiled again for their values."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_inexact_array_like(leaf) else leaf, built)


@eqx.filter_jit
def _draw_block(sampler: Sampler, keys: Key, first: Array) -> tuple[Any, ...]:
    numbers = first + jnp.arange(_ROWS)

    def one(key: Key, number: Array) -> tuple[Any, ...]:
        return tuple(sampler.draw(jax.random.fold_in(jax.random.fold_in(key, STEP), number)))

    return jax.vmap(lambda key: jax.vmap(lambda number: one(key, number))(numbers))(keys)


def run_sampler(sampler: Sampler, settings: Settings, seed: int, *, identity: str = "") -> Trace:
    """Independent draws, in blocks. They come from the seed alone, so that is all that a checkpoint keeps."""
    if settings.checkpoint is not None and settings.checkpoint.exists():
        checkpoints.load(settings.checkpoint, identity, seed)
    elif settings.checkpoint is not None:
        checkpoints.save(settings.checkpoint, {"seed": seed, "fingerprint": identity}, {})
    wanted = math.ceil((settings.target_ess or 0) / settings.chains)
    goal = max(settings.draws, min(wanted, _MOST_EXTENSION * settings.draws))
    keys = chain_keys(seed, max(settings.chains, _LANES))
    sampler = numbers_as_data(sampler)
    blocks: list[tuple[Any, ...]] = []
    began = time.perf_counter()
    made = 0
    with (
        Progress(settings.progressbar, "exact draws", goal, settings.chains) as progress,
        _interrupts() as stop,
    ):
        while not made or (made < goal and not stop.is_set()):
            blocks.append(jax.tree.map(np.asarray, _draw_block(sampler, keys, jnp.asarray(made))))
            made += _ROWS
            progress.show(min(made, goal), {}, None)
    theta, stats, predictive = jax.tree.map(
        lambda *parts: np.concatenate(parts, axis=1)[: settings.chains, :goal], *blocks
    )
    elapsed = time.perf_counter() - began
    return Trace(theta, stats, predictive, sampling_time=elapsed, interrupted=made < goal, short=goal < wanted)


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
    rows = jax.tree.map(lambda s: jnp.zeros((s.shape[0], _ROWS, *s.shape[1:]), s.dtype), row_shapes)
    return lax.fori_loop(0, chunk.count, record, (states, rows, no_info.within))


@eqx.filter_jit
def _initial_states(kernel: Kernel, keys: Key, starts: Theta) -> Any:
    init_keys = jax.vmap(lambda key: jax.random.fold_in(key, INIT))(keys)
    return jax.vmap(kernel.init)(init_keys, starts)


class _Run:
    """A run in progress: the states of the chains and the draws made so far."""

    def __init__(
        self, kernel: Kernel, starts: Callable[[Key], Theta], settings: Settings, seed: int, identity: str
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
        self.keys = chain_keys(seed, max(settings.chains, _LANES))
        self.states = _initial_states(kernel, self.keys, starts(self.keys))
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

    def advance(self, goal: int, *, tuning: bool) -> dict[str, float]:
        """One chunk towards ``goal`` steps of the phase; the mean statistics of the chunk."""
        done = self.tuned if tuning else self.made
        count = max(1, min(goal - done, _ROWS, int(self._chunk_rows)))
        chunk = _Chunk(
            self.kernel,
            self.keys,
            jnp.asarray(done),
            jnp.asarray(count),
            jnp.asarray(1 if tuning else self.settings.thin),
            jnp.asarray(tuning),
        )
        began = time.perf_counter()
        self.states, ((theta, predictive), stats), within = jax.block_until_ready(_advance(chunk, self.states))
        elapsed = time.perf_counter() - began
        self.seconds += elapsed
        self._chunk_rows = min(_ROWS, max(1.0, self._chunk_rows * min(4.0, _SECONDS_PER_CHUNK / max(elapsed, 1e-6))))
        chains = self.settings.chains

        def take(value: Array) -> np.ndarray:
            return np.asarray(value)[:chains, :count]

        stats = jax.tree.map(take, stats)
        if tuning:
            self.tuned += count
        else:
            self.rows.append(
                {"posterior": jax.tree.map(take, theta), "predictive": jax.tree.map(take, predictive), "stats": stats}
            )
            self.made += count
            within = jax.tree.map(lambda value: np.asarray(value)[:chains], within)
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


def run_kernel(
    kernel: Kernel,
    starts: Callable[[Key], Theta],
    settings: Settings,
    seed: int,
    *,
    identity: str,
    effective: Callable[[dict[str, np.ndarray]], float],
) -> Trace:
    """Tune and run the chains of a Markov kernel.

    ``starts`` gives starting values from the chain keys, ``identity`` says whose checkpoint this is, and ``effective`` is
    the smallest effective sample size of a set of draws.
    """
    run = _Run(kernel, starts, settings, seed, identity)
    latent_at = _latent_draws(settings)
    saved_at, save_cost = time.perf_counter(), 0.0
    short = False

    def save_if_due(*, force: bool = False) -> None:
        nonlocal saved_at, save_cost
        if force or time.perf_counter() - saved_at > save_cost / _SAVE_SHARE:
            began = time.perf_counter()
            run.save()
            saved_at = time.perf_counter()
            save_cost = saved_at - began

    with _interrupts() as stop:
        with Progress(settings.progressbar, "tuning", settings.tune, settings.chains) as progress:
            while run.tuned < settings.tune and not stop.is_set():
                progress.show(run.tuned, run.advance(settings.tune, tuning=True), None)
                save_if_due()
        with Progress(settings.progressbar, "sampling", run.goal, settings.chains) as progress:
            while not stop.is_set() and run.tuned >= settings.tune:
                if run.made >= run.goal:
                    if settings.target_ess is None:
                        break
                    reached = effective(run.joined()["posterior"])
                    if reached >= settings.target_ess:
                        break
                    if run.made >= _MOST_EXTENSION * settings.draws:
                        short = True
                        break
                    needed = run.made * settings.target_ess / max(reached, 1.0)
                    run.goal = int(min(max(needed * 1.1, run.made * 1.1), _MOST_EXTENSION * settings.draws)) + 1
                    progress.extend(run.goal)
                pause = next((at for at in latent_at if at > run.made), run.goal)
                stats = run.advance(min(run.goal, pause), tuning=False)
                if run.made in latent_at and len(run.latent) <= latent_at.index(run.made):
                    imputed = jax.vmap(kernel.latent)(run.states)
                    run.latent.append({name: np.asarray(value)[: settings.chains] for name, value in imputed.items()})
                progress.show(run.made, stats, lambda: [block["posterior"] for block in run.rows])
                save_if_due()
        save_if_due(force=True)
    if not run.made:
        raise KeyboardInterrupt("stopped in the tuning phase, before the first draw")
    rows = run.joined()
    if settings.target_ess is None and run.made > settings.draws:
        rows = jax.tree.map(lambda value: value[:, : settings.draws], rows)
    latent = (
        {name: np.concatenate([part[name] for part in run.latent])[: settings.keep_latent] for name in run.latent[0]}
        if run.latent
        else {}
    )
    steps = run.made * settings.thin * settings.chains
    return Trace(
        rows["posterior"],
        rows["stats"],
        rows["predictive"],
        within={name: value.sum(axis=0) / steps for name, value in (run.within or {}).items()},
        latent=latent,
        sampling_time=run.seconds,
        interrupted=stop.is_set() and run.made < run.goal,
        short=short,
        resumed=run.resumed,
    )


def _latent_draws(settings: Settings) -> list[int]:
    """After which draws to keep an imputed database of every chain: evenly spaced, the last one included."""
    if not settings.keep_latent:
        return []
    times = -(-settings.keep_latent // settings.chains)
    return sorted({max(1, round(settings.draws * (i + 1) / times)) for i in range(times)})


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """The first Ctrl-C asks the run to stop after its chunk; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
