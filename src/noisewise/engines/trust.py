r"""Whether the normal approximation of the ``sufficient`` engine is to be trusted for one release.

Where an exact engine without Markov chains can do the pair, both posteriors are drawn from and compared: the largest
Kolmogorov-Smirnov distance over the parameters, less what two samples of the same law show by chance. Where none can, or with
``compare=False``, the first Edgeworth term says how far the released totals are from normal
(:mod:`noisewise.engines.edgeworth`, which every run of the engine reports as its doubts).
Checked by ``tests/engines/test_sufficient_trust.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.base import Sampler
from noisewise.engines.choose import choose
from noisewise.engines.edgeworth import FAR, doubts_of, too_far
from noisewise.engines.sufficient import Sufficient
from noisewise.kernels.statistics import StatisticsKernel, StatisticsState, impossible
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

_CHAINS = 32
_SAMPLE = 4000
_STEPS = 300
_CHANCE = 1.63


@dataclass(frozen=True)
class Trust:
    """Whether to trust the normal approximation, how far off it is judged to be, by what means, and every doubt."""

    ok: bool
    distance: float
    how: str
    doubts: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "The normal approximation can be trusted" if self.ok else "Do not trust the normal approximation"
        return ". ".join([f"{verdict} (distance {self.distance:.3f}, {self.how})", *self.doubts]) + "."


def check_normality(
    model: Model, release: Release, *, engine: Sufficient | None = None, random_seed: int = 0, compare: bool = True
) -> Trust:
    """Judge the ``sufficient`` engine for one pair of model and release; ``compare=False`` leaves the exact engines out.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> few = nw.Release([nw.Measurement(query, nw.noise.Laplace(0.5), [[9.3, 0.8]])], n=10)
    >>> nw.engines.check_normality(nw.models.Bernoulli(), few, compare=False).ok
    False
    """
    engine = Sufficient() if engine is None else engine
    if not isinstance(engine, Sufficient):
        raise ValueError(f"engine must be a nw.engines.Sufficient(...), or left out; got {engine!r}.")
    choice = choose(model, release, engine, ask_all=compare)
    assert release.n is not None
    draw_key, simulate_key, exact_key = jax.random.split(jax.random.key(random_seed), 3)
    thetas = _draws(engine, model, release, draw_key)
    distance, doubts = doubts_of(model, release, thetas, simulate_key)
    how = "first Edgeworth term of the released totals"
    for candidate in choice.candidates:
        if not (candidate.support.ok and candidate.engine.exact):
            continue
        source = candidate.engine.build(model, release, exact_key)
        if isinstance(source, Sampler):
            distance = _largest_distance(thetas, _sample(source, exact_key))
            how = f"compared with the {candidate.engine.name} engine"
            # the comparison takes the place of the Edgeworth term, which is only an estimate of it
            doubts = tuple(doubt for doubt in doubts if not doubt.startswith("the total"))
            doubts = (too_far(release.n, distance), *doubts) if distance > FAR else doubts
            break
    return Trust(not doubts, distance, how, doubts)


def _draws(engine: Sufficient, model: Model, release: Release, key: Key) -> Theta:
    source = engine.build(model, release, key)
    if isinstance(source, Sampler):
        return _sample(source, key)
    assert isinstance(source, StatisticsKernel)
    bare = eqx.tree_at(lambda k: k.release, source, None, is_leaf=lambda leaf: leaf is None)
    thetas, found = _run(engine, bare, jax.random.split(key, _CHAINS))
    if not np.all(np.asarray(found)):
        raise ValueError(impossible(engine.tries))
    return thetas


@eqx.filter_jit
def _sample(sampler: Sampler, key: Key) -> Theta:
    return jax.vmap(lambda k: sampler.draw(k).theta)(jax.random.split(key, _SAMPLE))


@eqx.filter_jit
def _run(engine: Sufficient, kernel: StatisticsKernel, keys: Key) -> tuple[Theta, Array]:
    def one(key: Key) -> tuple[Theta, Array]:
        start, begin, later = jax.random.split(key, 3)
        state = kernel.init(begin, engine.start(kernel, start))

        def step(
            carry: tuple[StatisticsState, Array], key: Key
        ) -> tuple[tuple[StatisticsState, Array], tuple[Theta, Array]]:
            state, info = kernel.step(key, carry[0])
            state = jax.lax.cond(carry[1] < _STEPS // 2, lambda s: kernel.adapt(s, info), lambda s: s, state)
            return (state, carry[1] + 1), (kernel.theta(state), state.found)

        return jax.lax.scan(step, (state, jnp.zeros((), dtype=int)), jax.random.split(later, _STEPS))[1]

    thetas, found = jax.vmap(one)(keys)
    return jax.tree.map(lambda v: v[:, _STEPS // 2 :].reshape(-1, *v.shape[2:]), thetas), found


def _largest_distance(left: Theta, right: Theta) -> float:
    """The largest two-sample Kolmogorov-Smirnov distance over the parameters, less its 1% point under equality."""
    worst = 0.0
    for name in left:
        a, b = (np.asarray(side[name]).reshape(np.asarray(side[name]).shape[0], -1) for side in (left, right))
        for j in range(a.shape[1]):
            x, y = np.sort(a[:, j]), np.sort(b[:, j])
            both = np.concatenate([x, y])
            gap = np.abs(np.searchsorted(x, both, "right") / x.size - np.searchsorted(y, both, "right") / y.size)
            worst = max(worst, float(np.max(gap)) - _CHANCE * math.sqrt(1 / x.size + 1 / y.size))
    return max(worst, 0.0)
