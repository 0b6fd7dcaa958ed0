"""Record augmentation for many releases of one kind side by side: all chains of all replicates in one program.

The released values and the scale of the noise are data, so a program is compiled once for a number of lanes and a number of draws,
whatever epsilon. A lane is one chain of one replicate and knows nothing of its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from noisewise.engines.augmentation import Augmentation, AugmentationKernel, AugmentationState
from noisewise.engines.surrogate import Surrogate
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.result import judge
from noisewise.studies.base import Cell, key_of
from noisewise.typing import Key

Algorithm = Literal["algorithm 1", "interwoven"]
_LANES = 2
_INIT, _TUNE, _STEP = range(3)


@dataclass(frozen=True)
class Chains:
    """Draws (replicate, chain, draw, ...) of one parameter, and numbers (replicate, chain, draw) by name."""

    draws: np.ndarray
    stats: dict[str, np.ndarray]

    def judged(self) -> dict[str, np.ndarray]:
        """For each replicate the smallest bulk effective sample size and the largest R-hat over the coordinates."""
        verdicts = [judge({"theta": one}) for one in self.draws]
        return {"ess": np.array([v.ess_bulk for v in verdicts]), "rhat": np.array([v.rhat for v in verdicts])}

    def intervals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means and the ends of equal-tailed 90% intervals, (replicate, coordinate), of all chains together."""
        pooled = self.draws.reshape(self.draws.shape[0], -1, *self.draws.shape[3:])
        low, high = np.quantile(pooled, [0.05, 0.95], axis=1)
        return pooled.mean(axis=1), low, high


def run_chains(
    model: Model,
    template: Release,
    values: np.ndarray,
    cell: Cell,
    replicates: range,
    seed: int,
    *,
    algorithm: Algorithm,
    parameter: str,
    chains: int,
    tune: int,
    draws: int,
) -> Chains:
    """Chains for releases that differ from the template in their values (replicate, number) alone.

    ``algorithm 1`` is that of the paper to the letter, started from the prior, without any tuning: its ``tune`` first iterations
    are dropped. ``interwoven`` is the engine ``Augmentation()``, which tunes for ``tune`` iterations.
    """
    lanes = max(len(replicates), _LANES)
    numbers = range(replicates.start, replicates.start + lanes)
    padded = np.concatenate([values, np.repeat(values[-1:], lanes - len(replicates), axis=0)])
    keys = jax.vmap(lambda key: jax.random.split(key, chains))(key_of(seed, cell, numbers)).reshape(-1)
    theta, stats = _lanes(
        model,
        template,
        jnp.repeat(jnp.asarray(padded), chains, axis=0),
        keys,
        tune,
        draws,
        parameter,
        algorithm,
    )

    def of_replicates(value: Array) -> np.ndarray:
        whole = np.asarray(value)
        return whole.reshape(lanes, chains, *whole.shape[1:])[: len(replicates)]

    return Chains(of_replicates(theta), {name: of_replicates(value) for name, value in stats.items()})


@eqx.filter_jit
def _lanes(
    model: Model,
    template: Release,
    values: Array,
    keys: Key,
    tune: int,
    draws: int,
    parameter: str,
    algorithm: Algorithm,
) -> tuple[Array, dict[str, Array]]:
    def one(value: Array, key: Key) -> tuple[Array, dict[str, Array]]:
        release = eqx.tree_at(lambda r: r.measurements[0].value, template, value)
        init_key, start_key, build_key = jax.random.split(jax.random.fold_in(key, _INIT), 3)
        if algorithm == "algorithm 1":
            kernel = algorithm_1(model, release)
            start = model.sample_prior(start_key)
        else:
            engine = Augmentation()
            built = engine.build(model, release, build_key)
            assert isinstance(built, AugmentationKernel)
            kernel, start = built, engine.start(built, start_key)
        state = kernel.init(init_key, start)

        def step(state: AugmentationState, i: Array) -> tuple[AugmentationState, tuple[Array, dict[str, Array]]]:
            tuning = i < tune
            phase = jax.random.fold_in(key, jnp.where(tuning, _TUNE, _STEP))
            state, info = kernel.step(jax.random.fold_in(phase, jnp.where(tuning, i, i - tune)), state)
            if algorithm != "algorithm 1":
                state = lax.cond(tuning, lambda s: kernel.adapt(s, info), lambda s: s, state)
            return state, (kernel.theta(state)[parameter], info.stats)

        _, rows = lax.scan(step, state, jnp.arange(tune + draws))
        theta, stats = jax.tree.map(lambda row: row[tune:], rows)
        return theta, stats

    return jax.vmap(one)(values, keys)


def algorithm_1(model: Model, release: Release) -> AugmentationKernel:
    """Algorithm 1 of Ju, Awan, Gong and Rao (2022): a sweep record by record, then theta from its conditional law."""
    assert release.n is not None
    size = model.free_size
    return AugmentationKernel(
        model=model,
        release=release,
        surrogate=Surrogate(jnp.zeros(size), jnp.eye(size)),
        record_proposal=None,
        theta_move="update",
        interweave=False,
        move="random_walk",
        moves=1,
        window=release.n,
        block=1,
        n=release.n,
    )
