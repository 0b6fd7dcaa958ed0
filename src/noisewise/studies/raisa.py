r"""The experiments of Räisä's thesis (2021): iterations by accountant (Figure 6.1), clipping without noise (6.2), and the private
samplers on the eight targets of Table 5.1 (6.3 to 6.8), beside exact draws and the one-shot release.

The records are simulated and every run shows its insides, so nothing here is private. A replicate is a chain. Records, reference
draws and starting points are the same for all samplers of an experiment, as in the thesis; a chain's randomness is its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from noisewise.private import experiments
from noisewise.private.budget import Budget
from noisewise.private.experiments import ALGORITHMS, NAMES, Experiment, experiment
from noisewise.private.hmc import HMC
from noisewise.private.ledger import AccountantName
from noisewise.private.oneshot import normal, oneshot
from noisewise.private.penalty import Penalty
from noisewise.private.plan import Method
from noisewise.private.records import Stream, Table, make_table
from noisewise.private.sample import KeySource, run
from noisewise.private.targets import Circle
from noisewise.studies.base import Cell, Line, Rows, Study, generator, group, key_of, seed_of
from noisewise.studies.raisa_figures import plot_accountants, plot_clipping, plot_samplers

PAPER = "Räisä, Differentially private Metropolis-Hastings algorithms (thesis, 2021)"
_FULL: tuple[AccountantName, ...] = ("zcdp", "rdp", "rdp_improved", "tight")
_BATCH: tuple[AccountantName, ...] = ("rdp", "rdp_improved", "pld", "pld_without_replacement")
_LANES = 2


# Figure 6.1 -----------------------------------------------------------------------------------------------------------------


def accountant_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Every accountant of the three samplers of Figure 6.1, at every epsilon."""
    return [
        {"algorithm": algorithm, "accountant": accountant, "epsilon": float(epsilon)}
        for algorithm, accountants in (("dpps", _FULL), ("mdpps", _BATCH), ("hmc", _FULL))
        for accountant in accountants
        for epsilon in settings["epsilons"]
    ]


def run_accountants(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    """The iterations allowed on the flat banana, d = 2."""
    method, made = experiments.tuned(str(cell["algorithm"]), "easy-2d"), experiment("easy-2d")
    accountant = cast(AccountantName, cell["accountant"])
    count = experiments.allowed(method, made, float(cell["epsilon"]), accountant)
    return [{"replicate": r, "iterations": count} for r in replicates]


def accountant_table(rows: Rows) -> list[Line]:
    """Iterations by sampler, accountant and epsilon."""
    return [
        Line(f"{ALGORITHMS[algorithm]}, {accountant}, epsilon {epsilon:g}", None, float(part["iterations"][0]), 0.0)
        for (algorithm, accountant, epsilon), part in group(rows, "algorithm", "accountant", "epsilon")
    ]


# Records, reference draws and starts ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def prepared(name: str, n: int, seed: int) -> tuple[Experiment, Table | Stream, np.ndarray]:
    """An experiment, its records and the reference draws."""
    made = experiment(name, n=n)
    data, first = (key_of(seed, {what: name, "n": n}, range(1))[0] for what in ("records", "reference"))
    records = made.records(data)
    reference = made.reference(first, records)
    return made, make_table({key: np.asarray(value) for key, value in records.items()}), reference


def chains(
    method: Method, cell: Cell, made: Experiment, length: int, replicates: range, seed: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One chain for each replicate with all that a test may see: ``(chains, iterations, ...)``."""
    lanes = range(replicates.start, max(replicates.stop, replicates.start + _LANES))
    _, table, reference = prepared(made.key, made.n, seed)
    starts = made.starts(key_of(seed, {"starts": made.key, "n": made.n}, lanes), reference)
    keys = keys_of([seed_of(seed, cell, r) for r in lanes])
    draws, seen = run(method, made.target, table, starts, length, keys, probe=True)
    return draws[: len(replicates)], {name: values[: len(replicates)] for name, values in seen.items()}


def keys_of(seeds: list[int]) -> KeySource:
    """A key for every iteration of chains that have a seed each."""

    @jax.jit
    def folded(seeds: Any, iterations: Any) -> Any:
        return jax.vmap(
            lambda i: jax.vmap(lambda s: jax.random.key_data(jax.random.fold_in(jax.random.key(s), i)))(seeds)
        )(iterations)

    return lambda first, steps, _: np.asarray(folded(np.array(seeds), first + jnp.arange(256)))[:steps]


# Figures 6.3 to 6.8 -------------------------------------------------------------------------------------------------------------


def sampler_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Every experiment with the samplers tuned for it, exact draws, and the one-shot release where records are normal."""
    cells: list[Cell] = []
    for name in settings["experiments"]:
        n = settings["n"] or experiment(name).n
        able = [*experiments.algorithms(name), "exact", *([] if name == "circle" else ["oneshot"])]
        cells += [{"experiment": name, "algorithm": a, "n": n} for a in able if a in settings["algorithms"]]
    return cells


def run_samplers(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    """The discrepancy, the clipped fractions and the acceptance of each chain at each epsilon."""
    algorithm = str(cell["algorithm"])
    made, _, reference = prepared(str(cell["experiment"]), int(cell["n"]), seed)
    if algorithm == "exact":
        keys = key_of(seed, cell, replicates)
        records = made.records(key_of(seed, {"records": made.key, "n": made.n}, range(1))[0])
        samples = {r: made.reference(key, records) for r, key in zip(replicates, keys, strict=True)}
        return [row(r, 0.0, made, samples[r], reference, generator(seed, cell, r)) for r in replicates]
    if algorithm == "oneshot":
        return [row_of_one_shot(cell, epsilon, r, seed) for r in replicates for epsilon in made.epsilons]
    method = experiments.tuned(algorithm, made.key).ready(made.target, made.n)
    lengths = [experiments.allowed(method, made, epsilon) for epsilon in made.epsilons]
    draws, seen = chains(method, cell, made, max(lengths[-1], 1), replicates, seed)
    return [
        row(r, epsilon, made, chain[k // 2 : k], reference, generator(seed, cell, r), k)
        | {name: float(np.mean(seen[name][lane][:k])) if k else np.nan for name in ("accepted", "clip_fraction")}
        | {
            "gradient_clip_fraction": float(np.mean(seen["gradient_clip_fraction"][lane][:k]))
            if algorithm == "hmc" and k
            else np.nan
        }
        for lane, (r, chain) in enumerate(zip(replicates, draws, strict=True))
        for epsilon, k in zip(made.epsilons, lengths, strict=True)
    ]


def row(
    replicate: int,
    epsilon: float,
    made: Experiment,
    kept: np.ndarray,
    reference: np.ndarray,
    rng: np.random.Generator,
    iterations: int = 0,
) -> dict[str, Any]:
    """A replicate at one epsilon: for the circle, the discrepancy is the distance of the mean from the centre."""
    found = np.nan
    if len(kept) >= 2:
        circle = isinstance(made.target, Circle)
        found = float(np.linalg.norm(kept.mean(axis=0))) if circle else experiments.discrepancy(kept, reference, rng)
    unseen = dict.fromkeys(("accepted", "clip_fraction", "gradient_clip_fraction"), np.nan)
    return {"replicate": replicate, "epsilon": epsilon, "iterations": iterations, "discrepancy": found} | unseen


def row_of_one_shot(cell: Cell, epsilon: float, replicate: int, seed: int) -> dict[str, Any]:
    """One release and its posterior. Public are the centre zero and the radius 5 (for where the mean may lie) plus four
    root-mean-square lengths of a deviation, so that next to no record is clipped: one in a hundred would bias the correlated Gauss.
    """
    made, table, reference = prepared(str(cell["experiment"]), int(cell["n"]), seed)
    target = normal(made.target)
    spread = jnp.linalg.inv(target.precision) if target.precision.ndim == 2 else jnp.diag(1 / target.precision)
    own = {**cell, "epsilon": epsilon}
    tree = oneshot(
        target,
        table,
        Budget(epsilon, made.delta),
        n=made.n,
        centre=np.zeros(target.size),
        radius=5 + 4 * float(jnp.sqrt(jnp.trace(spread))),
        testing=True,
        random_seed=seed_of(seed, own, replicate),
    )
    draws = tree["posterior"].to_dataset()["theta"].values[0]
    return row(replicate, epsilon, made, draws, reference, generator(seed, own, replicate), 1)


def sampler_table(rows: Rows) -> list[Line]:
    """Median discrepancy over chains, its error by resampling chains."""
    return [
        Line(f"{experiment(name).name}, {label(algorithm, epsilon)}", None, *median(part["discrepancy"]))
        for (name, algorithm, epsilon), part in group(rows, "experiment", "algorithm", "epsilon")
    ]


def label(algorithm: str, epsilon: float) -> str:
    """A sampler, or what it is compared with, in words."""
    if algorithm == "exact":
        return "exact draws"
    return f"{ALGORITHMS.get(algorithm, 'one shot')}, epsilon {epsilon:g}"


def median(values: np.ndarray) -> tuple[float, float]:
    """The median of what is not missing, and its standard error by the bootstrap."""
    known = values[np.isfinite(values)]
    if known.size == 0:
        return float("nan"), float("nan")
    again = np.random.default_rng(0).choice(known, (400, known.size))
    return float(np.median(known)), float(np.std(np.median(again, axis=1)))


# Figure 6.2 ---------------------------------------------------------------------------------------------------------------------


def clipping_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Random walk and HMC on the flat bananas, by clip bound."""
    return [
        {
            "d": d,
            "sampler": sampler,
            "bound": float(bound),
            "n": settings["n"] or experiment(f"easy-{d}d").n,
            "iterations": length,
        }
        for d in settings["dimensions"]
        for sampler, length in settings["iterations"].items()
        for bound in settings["bounds"]
    ]


def run_clipping(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    """Discrepancy and clipped fraction of chains whose ratios are clipped and have no privacy noise to speak of."""
    name = f"easy-{cell['d']}d"
    made, _, reference = prepared(name, int(cell["n"]), seed)
    walk, leap = (experiments.tuned(algorithm, name) for algorithm in ("dpps", "hmc"))
    assert isinstance(walk, Penalty)
    assert isinstance(leap, HMC)
    method: Method = Penalty(1e-9, clip=cell["bound"], proposal=walk.proposal)
    if cell["sampler"] == "hmc":
        method = HMC(
            1e-9,
            gradient_noise=1e-9,
            clip=cell["bound"],
            gradient_clip=1e3,
            step=leap.step_size,
            leapfrog=leap.leapfrog,
            mass=leap.mass,
        )
    length = int(cell["iterations"])
    draws, seen = chains(method.ready(made.target, made.n), cell, made, length, replicates, seed)
    return [
        {
            "replicate": r,
            "discrepancy": experiments.discrepancy(chain[length // 2 :], reference, generator(seed, cell, r)),
            "clip_fraction": float(np.mean(clipped)),
        }
        for r, chain, clipped in zip(replicates, draws, seen["clip_fraction"], strict=True)
    ]


def clipping_table(rows: Rows) -> list[Line]:
    """Median discrepancy, and the mean fraction of clipped ratios, by bound."""
    lines = []
    for (d, sampler, bound), part in group(rows, "d", "sampler", "bound"):
        said = f"d = {d}, {'random walk' if sampler == 'walk' else 'HMC'}, bound {bound:g}"
        clipped = part["clip_fraction"]
        lines += [
            Line(f"{said}: discrepancy", None, *median(part["discrepancy"])),
            Line(
                f"{said}: fraction clipped", None, float(np.mean(clipped)), float(np.std(clipped) / len(clipped) ** 0.5)
            ),
        ]
    return lines


_DEFAULTS = Study(
    name="raisa-samplers",
    paper=PAPER,
    shows="Figures 6.3 to 6.8: discrepancy and clipping of the private samplers on the eight targets, beside one shot and exact draws",
    cost="about 70 minutes of CPU, nearly all of it DP HMC in 10 and 30 dimensions",
    replicates=20,
    settings={"experiments": NAMES, "algorithms": (*ALGORITHMS, "exact", "oneshot"), "n": 0},
    cells=sampler_cells,
    run=run_samplers,
    table=sampler_table,
    plots=plot_samplers,
    tiny={"experiments": ("tempered-2d", "circle"), "algorithms": ("dppa", "hmc", "exact", "oneshot"), "n": 1500},
)

STUDIES = (
    dataclasses.replace(
        _DEFAULTS,
        name="raisa-accountants",
        shows="Figure 6.1: iterations allowed on the flat banana by sampler, accountant and epsilon",
        cost="about two minutes",
        replicates=1,
        settings={"epsilons": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)},
        cells=accountant_cells,
        run=run_accountants,
        table=accountant_table,
        plots=plot_accountants,
        tiny={"epsilons": (1.0,)},
        tiny_replicates=1,
    ),
    dataclasses.replace(
        _DEFAULTS,
        name="raisa-clipping",
        shows="Figure 6.2: what clipping alone does to the posterior of the flat banana",
        cost="about 90 minutes of CPU, nearly all of it HMC in 10 dimensions",
        settings={
            "dimensions": (2, 10),
            "bounds": (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0),
            "iterations": {"walk": 3000, "hmc": 500},
            "n": 0,
        },
        cells=clipping_cells,
        run=run_clipping,
        table=clipping_table,
        plots=plot_clipping,
        tiny={"dimensions": (2,), "bounds": (0.5, 4.0), "iterations": {"walk": 60, "hmc": 10}, "n": 500},
    ),
    _DEFAULTS,
)
