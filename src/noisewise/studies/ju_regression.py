"""The linear regression of Ju, Awan, Gong and Rao (2022), section 5: Figures 2 and S1, and Table 1 of the supplement.

100 records of two predictors and a response, clamped to [-10, 10] and mapped to [-1, 1]; nine moments with Laplace noise of scale
13 / epsilon; coefficients with independent N(0, 4) priors, all else known. The methods are

- ``algorithm 1``: the paper's chain to the letter, 10,000 iterations of which the first half is dropped, started from the prior.
  It does not mix here: its effective sample size is a few dozen, and the paper's coverage table is made of such chains;
- ``interwoven``: four chains of ``nw.engines.Augmentation()``, judged by R-hat: the posterior itself.

The fixed confidential records and the parameters are those published with the paper's code.
"""

from __future__ import annotations

import numpy as np

from noisewise.models.linear_regression import LinearRegression
from noisewise.release.moments import Moments, regression_moments
from noisewise.release.queries import Column
from noisewise.studies.base import Cell
from noisewise.studies.ju_experiments import CONVERGED, PAPERS_CHAIN, Found, Problem, by_chains, studies_of
from noisewise.studies.ju_setting import published

_CHAINS = 4


def model() -> LinearRegression:
    """Two predictors, everything known but the coefficients."""
    setting = published()["regression"]
    return LinearRegression(
        ("x1", "x2"),
        "y",
        coef_scale=setting["coef_scale"],
        variance=setting["variance"],
        covariate_mean=setting["covariate_mean"],
        covariate_cov=setting["covariate_cov"],
    )


def query() -> Moments:
    """The moments of clamped and mapped records."""
    bound = published()["regression"]["bound"]
    column = Column(-bound, bound, rescale=(-1, 1))
    return regression_moments({"x1": column, "x2": column}, {"y": column})


def records(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Records from the published parameters."""
    setting = published()["regression"]
    x = rng.multivariate_normal(setting["covariate_mean"], setting["covariate_cov"], size=setting["n"])
    beta = np.asarray(setting["beta"])
    y = beta[0] + x @ beta[1:] + np.sqrt(setting["variance"]) * rng.standard_normal(setting["n"])
    return {"x1": x[:, 0], "x2": x[:, 1], "y": y}


def fixed_total() -> np.ndarray:
    """The moments of the published confidential records."""
    return np.asarray(query()({name: np.asarray(x) for name, x in published()["regression"]["records"].items()}))


def private_mean() -> np.ndarray:
    """The posterior mean of the coefficients given the published confidential records, unclamped."""
    setting = published()["regression"]
    columns = [np.asarray(setting["records"][name]) for name in ("x1", "x2", "y")]
    x, y = np.column_stack([np.ones_like(columns[2]), *columns[:2]]), columns[2]
    precision = x.T @ x / setting["variance"] + np.eye(3) / setting["coef_scale"] ** 2
    return np.asarray(np.linalg.solve(precision, x.T @ y / setting["variance"]))


def find(problem: Problem, values: np.ndarray, cell: Cell, replicates: range, seed: int) -> Found:
    """The posterior of the coefficients by the cell's method."""
    if cell["method"] == PAPERS_CHAIN:
        half = int(cell["iterations"]) // 2
        return by_chains(
            problem, values, cell, replicates, seed, algorithm="algorithm 1", chains=1, tune=half, draws=half
        )
    if cell["method"] != CONVERGED:
        raise ValueError(
            f"The regression study has the methods {PAPERS_CHAIN!r} and {CONVERGED!r}; got {cell['method']!r}."
        )
    tune, draws = int(cell["tune"]), int(cell["draws"])
    return by_chains(
        problem, values, cell, replicates, seed, algorithm="interwoven", chains=_CHAINS, tune=tune, draws=draws
    )


REGRESSION = Problem(
    n=published()["regression"]["n"],
    parameter="beta",
    labels=("beta0", "beta1", "beta2"),
    truth=tuple(published()["regression"]["beta"]),
    prior_mean=(0.0, 0.0, 0.0),
    private_mean=private_mean,
    table=published()["regression"]["table1"],
    fixed_total=fixed_total,
    model=model,
    query=query,
    records=records,
    find=find,
)

STUDIES = studies_of(
    REGRESSION,
    name="ju-regression",
    figures="Figures 2 and S1",
    table="Table 1 of the supplement",
    costs=("500 chains of 10,000 iterations and 2,000 of 2,500: about 8 minutes of CPU",) * 2,
    replicates=100,
    settings={
        "epsilons": tuple(published()["epsilons"]),
        "methods": (PAPERS_CHAIN, CONVERGED),
        "iterations": 10_000,
        "tune": 500,
        "draws": 2000,
    },
    tiny={"epsilons": (1.0, 10.0), "iterations": 100, "tune": 50, "draws": 50},
)
