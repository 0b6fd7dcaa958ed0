"""The two experiments that Ju, Awan, Gong and Rao (2022) do with each of their models: posterior means, and coverage.

*Means*: one confidential table held fixed, many simulated releases of it; the posterior means, and the acceptance rates of the
record sweeps against the bound ``exp(-epsilon)`` (Proposition 3.1). *Coverage*: a confidential table from the published
parameters for each release; how often 90% intervals cover them. Each is done with the paper's chain (``algorithm 1``) and
with a method that has converged, for the same releases.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from noisewise.models.base import Model
from noisewise.release.document import Measurement, Release
from noisewise.release.noise import Laplace
from noisewise.release.query import Query
from noisewise.studies.base import Cell, Line, Rows, Study, generator, group
from noisewise.studies.chains import Algorithm, run_chains
from noisewise.studies.ju_figures import plot_coverage, plot_means

PAPER = "Ju, Awan, Gong and Rao (2022)"
PAPERS_CHAIN, EXACT, CONVERGED = "algorithm 1", "counts", "interwoven"
USES = {PAPERS_CHAIN: ("iterations",), EXACT: ("draws",), CONVERGED: ("tune", "draws")}
"""The settings that each method reads."""


class Found(NamedTuple):
    """What a method says of each release: per coordinate (replicate, coordinate), and per release (replicate)."""

    coordinates: dict[str, np.ndarray]
    releases: dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A model of the paper with its mechanism, its published numbers, and how a method's posterior is found."""

    n: int
    parameter: str
    labels: tuple[str, ...]
    truth: tuple[float, ...]
    prior_mean: tuple[float, ...]
    private_mean: Callable[[], np.ndarray]
    """The posterior mean given the fixed confidential table itself."""
    table: Mapping[str, Sequence[float]]
    """The paper's coverage, by epsilon."""
    fixed_total: Callable[[], np.ndarray]
    model: Callable[[], Model]
    query: Callable[[], Query]
    records: Callable[[np.random.Generator], dict[str, np.ndarray]]
    find: Callable[[Problem, np.ndarray, Cell, range, int], Found]
    """The posteriors of released values (replicate, number) by the cell's method."""

    def release(self, value: np.ndarray, epsilon: float) -> Release:
        """A release with this value: Laplace noise whose scale is the paper's sensitivity over epsilon."""
        query = self.query()
        noise = Laplace(query.sensitivity("l1") / epsilon)
        return Release([Measurement(query, noise, query.unflatten(np.asarray(value)))], self.n)

    def values(self, kind: str, epsilon: float, replicates: range, seed: int) -> np.ndarray:
        """Simulated releases, the same for every method."""
        query, found = self.query(), []
        for r in replicates:
            rng = generator(seed, {"releases": kind, "parameter": self.parameter, "epsilon": epsilon}, r)
            total = self.fixed_total() if kind == "means" else np.asarray(query.flatten(query(self.records(rng))))
            found.append(total + query.sensitivity("l1") / epsilon * rng.laplace(size=query.size))
        return np.stack(found)


def by_chains(
    problem: Problem,
    values: np.ndarray,
    cell: Cell,
    replicates: range,
    seed: int,
    *,
    algorithm: Algorithm,
    chains: int,
    tune: int,
    draws: int,
) -> Found:
    """The posteriors by record augmentation, with acceptance rates and how far the chains can be trusted."""
    made = run_chains(
        problem.model(),
        problem.release(values[0], float(cell["epsilon"])),
        values,
        cell,
        replicates,
        seed,
        algorithm=algorithm,
        parameter=problem.parameter,
        chains=chains,
        tune=tune,
        draws=draws,
    )
    rate, least = made.stats["acceptance_rate"], made.stats["min_acceptance"]
    mean, low, high = made.intervals()
    return Found(
        {"mean": mean, "low": low, "high": high},
        {
            "acceptance": rate.mean(axis=(1, 2)),
            "least_rate": rate.min(axis=(1, 2)),
            "least_probability": least.min(axis=(1, 2)),
            **made.judged(),
        },
    )


def studies_of(problem: Problem, *, name: str, figures: str, table: str, costs: Sequence[str], **more: Any) -> Any:
    """The two studies of a problem."""
    shared = {"cells": cells, **more}
    return (
        Study(
            name=f"{name}-means",
            paper=f"{PAPER}, {figures}",
            shows="Posterior means move from the prior mean to that of the confidential records as epsilon grows; "
            "acceptance rates are far above exp(-epsilon).",
            cost=costs[0],
            run=functools.partial(run, problem, "means"),
            table=functools.partial(means_table, problem),
            plots=functools.partial(plot_means, problem.labels, problem.prior_mean, problem.private_mean),
            **shared,
        ),
        Study(
            name=f"{name}-coverage",
            paper=f"{PAPER}, {table}",
            shows="How often 90% intervals cover fixed parameters, by the paper's chain at its length and converged.",
            cost=costs[1],
            run=functools.partial(run, problem, "coverage"),
            table=functools.partial(coverage_table, problem),
            plots=functools.partial(plot_coverage, problem.labels, problem.table),
            **shared,
        ),
    )


def cells(settings: Mapping[str, Any]) -> list[Cell]:
    """A cell for each epsilon and method."""
    if unknown := set(settings["methods"]) - set(USES):
        raise ValueError(f"methods must be among {', '.join(map(repr, USES))}; got {', '.join(map(repr, unknown))}.")
    return [
        {"epsilon": float(epsilon), "method": method, **{name: settings[name] for name in USES[method]}}
        for epsilon in settings["epsilons"]
        for method in settings["methods"]
    ]


def run(problem: Problem, kind: str, cell: Cell, replicates: range, seed: int) -> dict[str, Any]:
    """One row for each replicate and parameter."""
    values = problem.values(kind, float(cell["epsilon"]), replicates, seed)
    found = problem.find(problem, values, cell, replicates, seed)
    size = len(problem.labels)
    rows: dict[str, Any] = {
        "replicate": np.repeat(np.array(replicates), size),
        "parameter": np.tile(problem.labels, len(replicates)),
        **{name: value.reshape(-1) for name, value in found.coordinates.items()},
        **{name: np.repeat(value, size) for name, value in found.releases.items()},
    }
    if kind == "coverage":
        rows["truth"] = np.tile(problem.truth, len(replicates))
        rows["covered"] = (rows["low"] <= rows["truth"]) & (rows["truth"] <= rows["high"])
    return rows


def means_table(problem: Problem, rows: Rows) -> list[Line]:
    """Averages over releases of the posterior means, and acceptance against its bound."""
    lines = []
    between = dict(zip(problem.labels, zip(problem.prior_mean, problem.private_mean(), strict=True), strict=True))
    for (epsilon, method, label), part in group(rows, "epsilon", "method", "parameter"):
        prior, private = between[label]
        said = f"lines at {prior:.3g} (prior) and {private:.3g} (no noise)"
        lines.append(Line(f"mean of {label}, epsilon = {epsilon:g}, {method}", said, *averaged(part["mean"])))
    for (epsilon, method), part in group(rows, "epsilon", "method"):
        if method == PAPERS_CHAIN:
            one = part["parameter"] == problem.labels[0]
            bound = f">= {math.exp(-epsilon):.4g}"
            lines += [
                Line(f"acceptance rate, epsilon = {epsilon:g}", bound, *averaged(part["acceptance"][one])),
                Line(f"least rate of a sweep, epsilon = {epsilon:g}", bound, float(part["least_rate"].min()), math.nan),
                Line(
                    f"least acceptance probability, epsilon = {epsilon:g}",
                    bound,
                    float(part["least_probability"].min()),
                    math.nan,
                ),
            ]
    return lines + trust(problem, rows)


def coverage_table(problem: Problem, rows: Rows) -> list[Line]:
    """The shares of intervals that hold the truth, beside the paper's."""
    lines = []
    for (epsilon, method, label), part in group(rows, "epsilon", "method", "parameter"):
        printed = problem.table.get(str(epsilon))
        paper = None if printed is None else float(printed[problem.labels.index(label)])
        lines.append(Line(f"coverage of {label}, epsilon = {epsilon:g}, {method}", paper, *covering(part["covered"])))
    return lines + trust(problem, rows)


def trust(problem: Problem, rows: Rows) -> list[Line]:
    """How well the chains have mixed: effective draws, and the share of releases whose chains agree."""
    lines = []
    for (epsilon, method), part in group(rows, "epsilon", "method"):
        one = part["parameter"] == problem.labels[0]
        ess, rhat = part["ess"][one], part["rhat"][one]
        if np.all(np.isnan(ess)):
            continue
        said = f"epsilon = {epsilon:g}, {method}"
        lines.append(Line(f"effective draws, median over releases, {said}", None, float(np.median(ess)), math.nan))
        if not np.all(np.isnan(rhat)):
            lines.append(
                Line(f"share of releases with R-hat < 1.01, {said}", None, float(np.mean(rhat < 1.01)), math.nan)
            )
    return lines


def averaged(values: np.ndarray) -> tuple[float, float]:
    """A mean and its standard error."""
    error = float(np.std(values, ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
    return float(np.mean(values)), error


def covering(hits: np.ndarray) -> tuple[float, float]:
    """A share and its standard error, which is not zero when all of them hit (Jeffreys' posterior sd)."""
    m, k = hits.size, float(np.sum(hits))
    return k / m, math.sqrt((k + 0.5) * (m - k + 0.5) / ((m + 1) ** 2 * (m + 2)))
