r"""The one driver: it turns any kernel or independent sampler into draws.

Chains are vectorised (:mod:`noisewise.chains`); steps are made in compiled chunks of at most ``ROWS`` recorded draws, between which
progress is shown, a checkpoint may be written, and Ctrl-C is obeyed. The random key of a step depends only on the seed, the chain and
the number of the step, so the draws do not depend on the number of chains beside it, on the chunks, on the progress bar or on a
resumption.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise import checkpoint as checkpoints
from noisewise.chains import LANES, ROWS, STEP, Chains, in_groups, lane_keys
from noisewise.engines.base import Sampler
from noisewise.kernels.base import Kernel
from noisewise.progress import Progress
from noisewise.settings import Settings
from noisewise.typing import Key, Theta

_SAVE_SHARE = 0.05
_MOST_EXTENSION = 100


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


def numbers_as_data(built: Any) -> Any:
    """With its numbers that are no integers as arrays, so that no program is compiled again for their values."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_inexact_array_like(leaf) else leaf, built)


@eqx.filter_jit
def _draw_block(sampler: Sampler, first: Array, keys: Key) -> tuple[Any, ...]:
    numbers = first + jnp.arange(ROWS)

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
    keys = lane_keys(seed, settings.chains)
    sampler = numbers_as_data(sampler)
    blocks: list[tuple[Any, ...]] = []
    began = time.perf_counter()
    made = 0
    with (
        Progress(settings.progressbar, "exact draws", goal, settings.chains) as progress,
        _interrupts() as stop,
    ):
        while not made or (made < goal and not stop.is_set()):
            blocks.append(in_groups(partial(_draw_block, sampler, jnp.asarray(made)), keys))
            made += ROWS
            progress.show(min(made, goal), {}, None)
    theta, stats, predictive, within = jax.tree.map(
        lambda *parts: np.concatenate(parts, axis=1)[: settings.chains, :goal], *blocks
    )
    return Trace(
        theta,
        stats,
        predictive,
        within={name: value.mean(axis=(0, 1)) for name, value in (within or {}).items()},
        sampling_time=time.perf_counter() - began,
        interrupted=made < goal,
        short=goal < wanted,
    )


def run_kernel(
    kernel: Kernel,
    starts: Callable[[Key], Theta],
    settings: Settings,
    seed: int,
    *,
    identity: str,
    effective: Callable[[dict[str, np.ndarray]], float],
    lanes: int = LANES,
) -> Trace:
    """Tune and run the chains of a Markov kernel.

    ``starts`` gives starting values from the chain keys, ``identity`` says whose checkpoint this is, and ``effective`` is
    the smallest effective sample size of a set of draws. Draws are the same for any number of chains, given the ``lanes`` that
    are compiled together.
    """
    run = Chains(kernel, starts, settings, seed, identity, lanes)
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
                    run.latent.append(run.imputed())
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
