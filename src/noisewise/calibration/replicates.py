r"""Posteriors of many simulated releases at once.

A replicate is a truth and the posterior of its release. The releases differ in their values alone, so the kernels (or the
samplers) that an engine builds for them have equal shapes: the chains of all replicates run side by side in one program, each with
its own kernel as part of its state. What differs in shape or in settings (the length of a sampler's tables, the share of the records that a
step proposes) is grouped by it.

Replicate r depends on the seed and on r, not on how many there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.calibration.simulate import BUILD, INNOVATIONS, Quantities, Truths, Values, with_values
from noisewise.chains import START, STEP, chain_keys
from noisewise.compilation import use_compilation_cache
from noisewise.engines.base import Engine, Sampler
from noisewise.kernels.base import Info, Kernel, State
from noisewise.kernels.statistics import StatisticsKernel
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.run import numbers_as_data, run_kernel
from noisewise.settings import Settings
from noisewise.typing import Key, Theta

_MOST_BYTES = 2**27
_NAMES = ("total", "log_eta", "log_f", "log_release")


@dataclass(frozen=True)
class Replicates:
    """Truths (replicate, label) and draws (replicate, draw, label); the first ``parameters`` labels are those of theta."""

    labels: tuple[str, ...]
    parameters: int
    truth: np.ndarray
    draws: np.ndarray
    engine: str
    independent: bool


class Lane(Kernel):
    """A chain of one replicate. The replicate's kernel, values and key are data of its state, so lanes may belong to any replicates."""

    shared: Any
    quantities: Quantities

    def _kernel(self, arrays: Any) -> Kernel:
        kernel: Kernel = eqx.combine(arrays, self.shared)
        return kernel

    def init(self, key: Key, start: Any) -> State:
        init_key, rest = jax.random.split(start["key"])
        state = self._kernel(start["kernel"]).init(init_key, start["theta"])
        return {"kernel": start["kernel"], "values": start["values"], "key": rest, "state": state}

    def step(self, key: Key, state: State) -> tuple[State, Info]:
        step_key, rest = jax.random.split(state["key"])
        inner, info = self._kernel(state["kernel"]).step(step_key, state["state"])
        return {**state, "key": rest, "state": inner}, Info(info.stats, {})

    def adapt(self, state: State, info: Info) -> State:
        return {**state, "state": self._kernel(state["kernel"]).adapt(state["state"], info)}

    def theta(self, state: State) -> Theta:
        kernel, inner = self._kernel(state["kernel"]), state["state"]
        theta, records = kernel.theta(inner), kernel.latent(inner)
        if records:
            return self.quantities.of_records(theta, records, state["values"])
        found = self.quantities.of_theta(theta, state["values"])
        if isinstance(kernel, StatisticsKernel) and "total" not in theta:
            found["total"] = kernel.law.released(inner.joint, kernel.n)
        return found


def replicate(
    model: Model,
    release: Release,
    engine: Engine,
    truths: Truths,
    *,
    draws: int,
    tune: int,
    thin: int,
    seed: int,
    progressbar: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> Replicates:
    """The posteriors of all truths by one engine; ``extra`` has further quantities, functions of (theta, values by name)."""
    use_compilation_cache()
    root = jax.random.key(seed)
    quantities = Quantities(model, release, jax.random.fold_in(root, INNOVATIONS))
    number = truths.values[0].shape[0]
    settings = Settings(draws, tune, number, thin, progressbar=progressbar)
    built = list(_build(model, release, engine, truths.values, root))
    samplers = [one for one in built if isinstance(one, Sampler)]
    if samplers:
        found = _from_samplers(samplers, quantities, truths.values, draws, seed)
    else:
        found = _from_kernels(built, engine, quantities, truths.values, settings, seed)
    known = _truth(quantities, truths)
    if extra:
        found |= _further(extra, release, model, {name: found[name] for name in model.parameters}, truths.values, 2)
        known |= _further(extra, release, model, truths.theta, truths.values, 1)
    names = [*model.parameters, *(name for name in found if name not in model.parameters and name in known)]
    if not np.all([np.all(np.isfinite(found[name])) for name in model.parameters]):
        raise ValueError(f"The {engine.name} engine gave draws that are not finite for some simulated release.")
    labels = [label for name in names for label in _labels(name, known[name].shape[1:])]
    return Replicates(
        tuple(labels),
        sum(int(np.prod(parameter.shape)) for parameter in model.parameters.values()),
        np.concatenate([known[name].reshape(number, -1) for name in names], axis=1),
        np.concatenate([found[name].reshape(number, draws, -1) for name in names], axis=2),
        engine.name,
        bool(samplers),
    )


def _build(model: Model, release: Release, engine: Engine, values: Values, root: Key) -> Iterator[Kernel | Sampler]:
    key = jax.random.fold_in(root, BUILD)
    for r in range(values[0].shape[0]):
        yield engine.build(model, with_values(release, tuple(v[r] for v in values)), jax.random.fold_in(key, r))


def _halves(built: Any) -> tuple[Any, Any]:
    """What may differ between replicates, as arrays, and what all of a program share."""
    return eqx.partition(numbers_as_data(built), eqx.is_array)


def _stacked(parts: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)


def _grouped(halves: Sequence[tuple[Any, Any]]) -> list[list[int]]:
    """The replicates that one program can serve: equal structures, shapes and shared parts."""
    groups: dict[Any, list[int]] = {}
    for r, (arrays, shared) in enumerate(halves):
        leaves, structure = jax.tree.flatten(arrays)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        others, rest = jax.tree.flatten(shared)
        named = tuple(leaf.tobytes() if isinstance(leaf, np.ndarray) else leaf for leaf in others)
        groups.setdefault((structure, shapes, rest, named), []).append(r)
    return list(groups.values())


def _placed(
    found: dict[str, np.ndarray], made: Mapping[str, Any], members: Sequence[int], number: int
) -> dict[str, np.ndarray]:
    """What was found of all replicates, with that of some members filled in."""
    for name, value in made.items():
        place = found.setdefault(name, np.empty((number, *value.shape[1:])))
        place[list(members)] = np.asarray(value)[: len(members)]
    return found


def _from_kernels(
    kernels: Sequence[Any], engine: Engine, quantities: Quantities, values: Values, settings: Settings, seed: int
) -> dict[str, np.ndarray]:
    keys = chain_keys(seed, len(kernels))
    halves = [_halves(kernel) for kernel in kernels]
    found: dict[str, np.ndarray] = {}
    for members in _grouped(halves):
        arrays, shared = _stacked([halves[r][0] for r in members]), halves[members[0]][1]
        data = {"kernel": arrays, "values": tuple(v[np.array(members)] for v in values), "key": keys[np.array(members)]}

        def starts(lanes: Key, data: Any = data, shared: Any = shared) -> Theta:
            # a single replicate runs beside a copy of itself: a lane of its own is compiled to sums in another order
            at = jnp.arange(lanes.shape[0]) % data["key"].shape[0]
            given = jax.tree.map(lambda leaf: leaf[at], data)
            return {**given, "theta": _start(engine, shared, given["kernel"], given["key"])}

        some = dataclasses.replace(settings, chains=len(members))
        kernel, width = Lane(shared, quantities), max(2, len(members))
        trace = run_kernel(kernel, starts, some, seed, identity="", effective=lambda _: 0.0, lanes=width)
        _placed(found, trace.posterior, members, len(kernels))
    return found


@eqx.filter_jit
def _start(engine: Engine, shared: Any, arrays: Any, keys: Key) -> Theta:
    def one(half: Any, key: Key) -> Theta:
        return engine.start(eqx.combine(half, shared), jax.random.fold_in(key, START))

    return jax.vmap(one)(arrays, keys)


def _from_samplers(
    samplers: Sequence[Sampler], quantities: Quantities, values: Values, draws: int, seed: int
) -> dict[str, np.ndarray]:
    keys = chain_keys(seed, len(samplers))
    halves = [_halves(sampler) for sampler in samplers]
    found: dict[str, np.ndarray] = {}
    for members in _grouped(halves):
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(halves[members[0]][0]))
        width = 1 << max(0, min(len(members) - 1, _MOST_BYTES // size).bit_length())
        for at in range(0, len(members), width):
            some = members[at : at + width]
            # one width a group, the last batch filled up with copies
            lanes = np.resize(some, width)
            drawn = _draws(
                _stacked([halves[r][0] for r in lanes]),
                halves[lanes[0]][1],
                quantities,
                tuple(v[lanes] for v in values),
                keys[lanes],
                draws,
            )
            _placed(found, drawn, some, len(samplers))
    return found


@eqx.filter_jit
def _draws(arrays: Any, shared: Any, quantities: Quantities, values: Values, keys: Key, draws: int) -> dict[str, Array]:
    def one(half: Any, values: Values, key: Key) -> dict[str, Array]:
        sampler: Sampler = eqx.combine(half, shared)
        step_key = jax.random.fold_in(key, STEP)

        def draw(number: Array) -> dict[str, Array]:
            made = sampler.draw(jax.random.fold_in(step_key, number))
            seen = {"log_eta": made.stats["noise_lp"]} if "noise_lp" in made.stats else {}
            return {**seen, **quantities.of_theta(made.theta, values)}

        return jax.vmap(draw)(jnp.arange(draws))

    return jax.vmap(one)(arrays, values, keys)


@eqx.filter_jit
def _truth_of(quantities: Quantities, truths: Truths) -> dict[str, Array]:
    if truths.records:
        return jax.vmap(quantities.of_records)(truths.theta, truths.records, truths.values)
    return jax.vmap(quantities.of_theta)(truths.theta, truths.values)


def _truth(quantities: Quantities, truths: Truths) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in _truth_of(quantities, truths).items()}


def _further(
    extra: Mapping[str, Any], release: Release, model: Model, theta: Mapping[str, Any], values: Values, axes: int
) -> dict[str, np.ndarray]:
    """The user's own quantities of theta (replicate, [draw], ...) and values (replicate, ...)."""
    taken = [name for name in extra if name in (*model.parameters, *_NAMES)]
    if taken:
        raise ValueError(f"quantities names {taken}, which are looked at already; choose other names.")
    named = dict(zip(release.names, values, strict=True))

    def each(function: Any) -> Array:
        inner = function if axes == 1 else jax.vmap(function, in_axes=(0, None))
        return jax.vmap(inner)({name: jnp.asarray(value) for name, value in theta.items()}, named)

    return {name: np.asarray(each(function), dtype=float) for name, function in extra.items()}


def _labels(name: str, shape: tuple[int, ...]) -> list[str]:
    return [name + (f"[{', '.join(map(str, at))}]" if at else "") for at in np.ndindex(shape)]
