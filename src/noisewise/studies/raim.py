"""The simulations of Raim (2021): direct draws of agency noise (Figures 1 to 3) and lognormal regressions (Figures 4 to 9).

``raim-direct`` draws the noise behind one released value (Examples 4.1 to 4.3) and compares with the summed law; for the basic
sampler it also keeps how many candidates each draw took (Figure 2b).

``raim-fixed-covariates`` (section 5.1) and ``raim-noisy-covariate`` (section 5.2) generate data sets of n = 200 with
``log y = 5 x1 - x2 + sigma e``, discrete Laplace noise of parameter rho on every y and, in 5.2, Laplace noise of scale lambda on
every x1; covariates are standard normal and fixed for the study. The method ``adjusted`` is Algorithm 3 (5.1) or 2 (5.2) on the
release, ``sensitive`` is Algorithm 4 on the records themselves: 2,000 iterations, half discarded, priors N(0, 100 I) and IG(2, 10).
``mse`` is the mean of ``|theta - theta_0|^2`` over the kept draws, theta = (beta, sigma^2), equation (18). All data sets of a batch
run side by side in one program; the first one keeps its draws, for Figures 4, 5, 7 and 8. The paper prints no numbers for these
figures, so the table has none of its own to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.direct import regression
from noisewise.direct.bases import as_base
from noisewise.direct.samplers import basic_draws, log_target, sample
from noisewise.direct.step import Target
from noisewise.direct.weights import LognormalWeight
from noisewise.release.noise import DiscreteLaplace
from noisewise.studies.base import Cell, Line, Rows, Study, generator, group, key_of
from noisewise.studies.raim_figures import plot_direct, plot_regressions
from noisewise.typing import Key

N = 200
TRUTH = (5.0, -1.0)
ADJUSTED, SENSITIVE = "adjusted", "sensitive"
EXAMPLES: dict[str, tuple[float, float, float, float, int]] = {
    "4.1": (10.0, 3.0, 2.0, 0.7, 1000),
    "4.2": (244_388.0, 3.5, 8.5, 0.7, 1000),
    "4.3a": (244_388.0, 3.5, 8.5, 0.7, 50_000),
    "4.3b": (244_388.0, 3.5, 8.5, 0.01, 50_000),
    "4.3c": (-10.0, 3.5, 8.5, 0.7, 50_000),
    "4.3d": (-10.0, 3.5, 8.5, 0.01, 50_000),
}
"""Released value, log-mean, log-variance, rho, and the number of draws in the paper."""
_WINDOW = 6000
_KNOTS = 100


def direct_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Every example by each method; the basic one, as in the paper, where it works (4.1) and where it first fails (4.2)."""
    return [
        {"example": example, "method": method, "share": float(settings["share"])}
        for example in EXAMPLES
        for method in settings["methods"]
        if method != "basic" or example in ("4.1", "4.2")
    ]


def run_direct(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    """Shares of the drawn values with their summed law; one row without a value where the basic sampler found nothing."""
    z, mu, sigma2, rho, paper_draws = EXAMPLES[str(cell["example"])]
    count = max(200, round(paper_draws * float(cell["share"])))
    weight, base = LognormalWeight(jnp.asarray(mu), jnp.asarray(sigma2)), DiscreteLaplace.from_rho(rho)
    support = np.arange(-_WINDOW, min(_WINDOW, np.ceil(z) - 1) + 1)
    log_mass = np.asarray(log_target(weight, base, jnp.asarray(support), released=z))
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    rows: list[dict[str, Any]] = []
    for replicate in replicates:
        key = key_of(seed, cell, range(replicate, replicate + 1))[0]
        empty = {"replicate": replicate, "noise": np.nan, "drawn": np.nan, "law": np.nan, "draws": count}
        if cell["method"] == "basic":
            target = Target(weight, as_base(base), jnp.asarray(z))
            found = basic_draws(key, target, count, _KNOTS)
            draws, attempts = (np.asarray(part) for part in found)
            rows += [{**empty, "attempts": float(tried)} for tried in attempts]
            draws = draws[attempts > 0]
        else:
            draws = np.asarray(sample(key, weight, base, count, released=z, method=str(cell["method"]), knots=_KNOTS))
        if draws.size < count:
            continue
        shares = np.bincount(np.searchsorted(support, draws), minlength=support.size) / count
        shown = np.flatnonzero((mass > 1e-3 / count) | (shares > 0))
        rows += [{**empty, "noise": support[i], "drawn": shares[i], "law": mass[i], "attempts": np.nan} for i in shown]
    return rows


def direct_table(rows: Rows) -> list[Line]:
    """The total-variation distance of the draws from the law; the error is what exact draws would show."""
    lines = []
    for (example, method), part in group(rows, "example", "method"):
        counted, drawn = part["attempts"] >= 0, np.isfinite(part["law"])
        if np.any(counted):
            given_up = float(np.mean(part["attempts"][counted] == 0))
            paper = 1.0 if example == "4.2" else None
            lines.append(Line(f"Example {example}, {method}: share of draws given up", paper, given_up, 0.0))
        if np.any(drawn):
            law, count = part["law"][drawn], float(part["draws"][0])
            replicates = len(np.unique(part["replicate"][drawn]))
            distance = 0.5 * float(np.sum(np.abs(part["drawn"][drawn] - law))) / replicates
            expected = 0.5 * float(np.sum(np.sqrt(2 / np.pi * law * (1 - law) / count))) / replicates
            lines.append(Line(f"Example {example}, {method}: total variation", None, distance, expected))
    return lines


def fixed_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Section 5.1: rho by sigma."""
    return _cells(settings, settings["sigmas"], (0.0,))


def noisy_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Section 5.2: rho by lambda, sigma = 1."""
    return _cells(settings, (1.0,), settings["lambdas"])


def _cells(settings: Mapping[str, Any], sigmas: Sequence[float], lambdas: Sequence[float]) -> list[Cell]:
    return [
        {
            "rho": float(rho),
            "sigma": float(sigma),
            "scale": float(scale),
            "method": method,
            "iterations": int(settings["iterations"]),
        }
        for rho in settings["rhos"]
        for sigma in sigmas
        for scale in lambdas
        for method in (ADJUSTED, SENSITIVE)
    ]


def data(cell: Cell, replicates: range, seed: int) -> dict[str, np.ndarray]:
    """Records and releases, one row a replicate; both methods see the same ones."""
    covariates = generator(seed, {"covariates": N}, 0).normal(size=(N, 2))
    setting = {name: cell[name] for name in ("rho", "sigma", "scale")}
    spread = -1 / np.log1p(-float(cell["rho"]))
    found: dict[str, list[np.ndarray]] = {"y": [], "released": [], "x": []}
    for replicate in replicates:
        rng = generator(seed, setting, replicate)
        y = np.exp(covariates @ TRUTH + float(cell["sigma"]) * rng.normal(size=N))
        noise = np.floor(spread * rng.exponential(size=(2, N)))
        found["y"].append(y)
        found["released"].append(y + noise[0] - noise[1])
        moved = covariates.copy()
        moved[:, 0] += float(cell["scale"]) * rng.laplace(size=N)
        found["x"].append(moved)
    return {"covariates": covariates, **{name: np.stack(values) for name, values in found.items()}}


@partial(jax.jit, static_argnames=("iterations", "method", "noisy"))
def _chains(
    keys: Key,
    response: Array,
    covariates: Array,
    spread: Array,
    scale: Array,
    iterations: int,
    method: str,
    *,
    noisy: bool,
) -> tuple[Array, Array]:
    def one(key: Key, response: Array, covariates: Array) -> tuple[Array, Array]:
        adjusted = method == ADJUSTED
        problem = regression.NoisyRegression(
            response,
            covariates,
            spread if adjusted else None,
            jnp.full((N, 1), scale) if adjusted and noisy else None,
        )

        def sweep(state: regression.State, key: Key) -> tuple[regression.State, tuple[Array, Array]]:
            state = regression.step(key, problem, state)
            return state, (state.beta, state.variance)

        return jax.lax.scan(sweep, regression.init(problem), jax.random.split(key, iterations))[1]

    return jax.vmap(one)(keys, response, covariates)


def run_regressions(cell: Cell, replicates: range, seed: int) -> dict[str, np.ndarray]:
    """One summary row a replicate (``iteration`` -1), and the kept draws of replicate 0."""
    lanes = range(replicates.start, max(replicates.stop, replicates.start + 2))
    made = data(cell, lanes, seed)
    sensitive = cell["method"] == SENSITIVE
    x = np.broadcast_to(made["covariates"], (len(lanes), N, 2)) if sensitive else made["x"]
    beta, variance = _chains(
        key_of(seed, cell, lanes),
        jnp.asarray(made["y"] if sensitive else made["released"]),
        jnp.asarray(x),
        jnp.asarray(-1 / np.log1p(-float(cell["rho"]))),
        jnp.asarray(float(cell["scale"])),
        int(cell["iterations"]),
        str(cell["method"]),
        noisy=float(cell["scale"]) > 0,
    )
    half, size = int(cell["iterations"]) // 2, len(replicates)
    theta = np.concatenate([np.asarray(beta), np.asarray(variance)[..., None]], axis=-1)[:size, half:]
    truth = np.array([*TRUTH, float(cell["sigma"]) ** 2])
    mse = np.mean(np.sum((theta - truth) ** 2, axis=-1), axis=1)
    kept = theta[0] if 0 in replicates else theta[:0, 0]
    values = np.concatenate([theta.mean(axis=1), kept])
    return {
        "replicate": np.concatenate([np.asarray(replicates), np.zeros(len(kept), dtype=int)]),
        "iteration": np.concatenate([np.full(size, -1), np.arange(len(kept))]),
        "beta1": values[:, 0],
        "beta2": values[:, 1],
        "variance": values[:, 2],
        "mse": np.concatenate([mse, np.full(len(kept), np.nan)]),
    }


def regression_table(rows: Rows) -> list[Line]:
    """Mean squared errors and posterior means, averaged over the data sets."""
    lines = []
    for (rho, sigma, scale, method), part in group(rows, "rho", "sigma", "scale", "method"):
        summary = part["iteration"] < 0
        setting = f"rho {rho:g}, sigma {sigma:g}" + (f", lambda {scale:g}" if scale else "") + f", {method}"
        for name in ("mse", "beta1", "variance"):
            values = part[name][summary]
            error = float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")
            lines.append(Line(f"{setting}: mean of {name}", None, float(np.mean(values)), error))
    return lines


_REGRESSION = {"rhos": (0.01, 0.1, 0.4), "iterations": 2000}
_TINY = {"rhos": (0.1,), "iterations": 60}

STUDIES = (
    Study(
        name="raim-direct",
        paper="Raim (2021), sections 2 and 4, Figures 1 to 3",
        shows="draws of agency noise against their summed law, and where the basic sampler fails",
        cost="about half a minute of one core",
        replicates=1,
        settings={"methods": ("basic", "customised", "exact"), "share": 1.0},
        cells=direct_cells,
        run=run_direct,
        table=direct_table,
        plots=partial(plot_direct, EXAMPLES),
        tiny={"methods": ("basic", "exact"), "share": 0.004},
        tiny_replicates=1,
    ),
    Study(
        name="raim-fixed-covariates",
        paper="Raim (2021), section 5.1, Figures 4 to 6",
        shows="what integer noise on the response costs a lognormal regression",
        cost="two to three hours of CPU; about half an hour with 100 replicates",
        replicates=500,
        settings={**_REGRESSION, "sigmas": (0.25, 1.0, 5.0)},
        cells=fixed_cells,
        run=run_regressions,
        table=regression_table,
        plots=partial(plot_regressions, "sigma", (4, 5, 6)),
        batch=50,
        tiny={**_TINY, "sigmas": (1.0,)},
    ),
    Study(
        name="raim-noisy-covariate",
        paper="Raim (2021), section 5.2, Figures 7 to 9",
        shows="what Laplace noise on a covariate, beside integer noise on the response, costs a lognormal regression",
        cost="two to three hours of CPU; about half an hour with 100 replicates",
        replicates=500,
        settings={**_REGRESSION, "lambdas": (0.05, 0.1, 0.2)},
        cells=noisy_cells,
        run=run_regressions,
        table=regression_table,
        plots=partial(plot_regressions, "scale", (7, 8, 9)),
        batch=50,
        tiny={**_TINY, "lambdas": (0.2,)},
    ),
)
