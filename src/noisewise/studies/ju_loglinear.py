"""The log-linear model of Ju, Awan, Gong and Rao (2022), section 4: Figures 1a and 1b, and Table 1.

100 records of a class and five features, the five tables of class by feature with Laplace noise of scale 10 / epsilon, and
Dirichlet priors with all weights 2. The methods are

- ``algorithm 1``: the paper's chain to the letter, 10,000 iterations of which the first half is dropped, started from the prior;
- ``counts``: independent draws from the exact posterior, by summing over every database (the means are exact, not sampled).

The fixed confidential table and the parameters are those published with the paper's code.
"""

from __future__ import annotations

import jax
import numpy as np

from noisewise.engines.counts import Counts as CountsEngine
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.release.queries import Counts
from noisewise.run import run_sampler
from noisewise.settings import Settings
from noisewise.studies.base import Cell, seed_of
from noisewise.studies.ju_experiments import EXACT, PAPERS_CHAIN, Found, Problem, by_chains, studies_of
from noisewise.studies.ju_setting import published

_EXACT_CHAINS = 2


def model() -> NaiveBayes:
    """Five classes, five features of three levels, all prior weights 2."""
    setting = published()["loglinear"]
    return NaiveBayes(classes=setting["classes"], features=setting["features"], prior=setting["prior"])


def query() -> Counts:
    """The table of the class with each feature."""
    setting = published()["loglinear"]
    features = {f"x{k}": size for k, size in enumerate(setting["features"], start=1)}
    return Counts(levels={"y": setting["classes"], **features}, tables=[("y", name) for name in features])


def records(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Records from the published parameters."""
    setting = published()["loglinear"]
    y = rng.choice(setting["classes"], size=setting["n"], p=setting["class_probs"])
    found = {"y": y}
    for k, rows in enumerate(setting["feature_probs"], start=1):
        upper = np.cumsum(rows, axis=1)[y, :-1]
        found[f"x{k}"] = np.sum(rng.uniform(size=(y.size, 1)) > upper, axis=1)
    return found


def fixed_total() -> np.ndarray:
    """The published confidential tables, flattened as the query does."""
    return np.asarray(query().flatten(published()["loglinear"]["counts"]), dtype=float)


def private_mean() -> np.ndarray:
    """The posterior mean of the class probabilities given the published confidential tables."""
    setting = published()["loglinear"]
    weights = np.sum(setting["counts"][0], axis=1) + setting["prior"]
    return np.asarray(weights / weights.sum())


def find(problem: Problem, values: np.ndarray, cell: Cell, replicates: range, seed: int) -> Found:
    """The posterior of the class probabilities by the cell's method."""
    if cell["method"] == PAPERS_CHAIN:
        half = int(cell["iterations"]) // 2
        return by_chains(
            problem, values, cell, replicates, seed, algorithm="algorithm 1", chains=1, tune=half, draws=half
        )
    if cell["method"] != EXACT:
        raise ValueError(
            f"The log-linear study has the methods {PAPERS_CHAIN!r} and {EXACT!r}; got {cell['method']!r}."
        )
    means, ends = [], []
    for r, value in zip(replicates, values, strict=True):
        release = problem.release(value, float(cell["epsilon"]))
        sampler = CountsEngine().build(problem.model(), release, jax.random.key(0))
        exact = sampler.exact()
        assert exact is not None
        means.append(exact.means["class_probs"])
        settings = Settings(draws=int(cell["draws"]), chains=_EXACT_CHAINS, progressbar=False)
        draws = run_sampler(sampler, settings, seed_of(seed, cell, r)).posterior["class_probs"]
        ends.append(np.quantile(draws.reshape(-1, draws.shape[-1]), [0.05, 0.95], axis=0))
    low, high = np.swapaxes(np.stack(ends), 0, 1)
    nothing = np.full(len(values), np.nan)
    columns = ("acceptance", "least_rate", "least_probability", "ess", "rhat")
    return Found({"mean": np.stack(means), "low": low, "high": high}, dict.fromkeys(columns, nothing))


LOG_LINEAR = Problem(
    n=published()["loglinear"]["n"],
    parameter="class_probs",
    labels=("p1", "p2", "p3", "p4", "p5"),
    truth=tuple(published()["loglinear"]["class_probs"]),
    prior_mean=(0.2,) * 5,
    private_mean=private_mean,
    table=published()["loglinear"]["table1"],
    fixed_total=fixed_total,
    model=model,
    query=query,
    records=records,
    find=find,
)

STUDIES = studies_of(
    LOG_LINEAR,
    name="ju-loglinear",
    figures="Figures 1a and 1b",
    table="Table 1",
    costs=("500 chains of 10,000 iterations and 500 exact posteriors: about 16 minutes of CPU",) * 2,
    replicates=100,
    settings={
        "epsilons": tuple(published()["epsilons"]),
        "methods": (PAPERS_CHAIN, EXACT),
        "iterations": 10_000,
        "draws": 5000,
    },
    tiny={"epsilons": (1.0, 10.0), "iterations": 100, "draws": 256},
)
