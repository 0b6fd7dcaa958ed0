"""``noisewise bench``: how long each engine takes on this machine, for jobs that need no file."""

from __future__ import annotations

import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
import numpy as np

import noisewise as nw
from noisewise.commands.terminal import say
from noisewise.model_file import load_model
from noisewise.result import smallest_ess

Pair = tuple[nw.models.Model, nw.Release]

_SMALL, _FULL = 0.1, 1.0


def _regression() -> Pair:
    """The bundled regression of Ju et al. (2022)."""
    folder = resources.files("noisewise") / "data"
    with (
        resources.as_file(folder / "ju2022-regression.json") as release,
        resources.as_file(folder / "ju2022-regression.toml") as model,
    ):
        return load_model(model), nw.Release.load(release)


def _shares() -> Pair:
    """A noisy count of 3e8 yes-or-no records."""
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    noisy = nw.Measurement(query, nw.noise.DiscreteGaussian(1000.0), [9e7])
    return nw.models.Bernoulli(), nw.Release([noisy], n=300_000_000)


def _tables() -> Pair:
    """Five noisy tables of class by feature, 100 records."""
    features = [f"x{k}" for k in range(1, 6)]
    query = nw.queries.Counts({"y": 5, **dict.fromkeys(features, 3)}, tables=[("y", name) for name in features])
    noisy = nw.Measurement(query, nw.noise.Laplace(10.0), [np.full((5, 3), 100 / 15)] * 5)
    return nw.models.NaiveBayes(classes=5, features=[3] * 5), nw.Release([noisy], n=100)


def _mean() -> Pair:
    """A clamped sum of a million normal records."""
    query = nw.queries.Moments({"x": nw.Column(-4, 4)}, [{"x": 1}])
    noisy = nw.Measurement(query, nw.noise.Laplace(80.0), [3e5])
    return nw.models.Normal(mean_prior=(0, 2), sd=1), nw.Release([noisy], n=1_000_000)


def _microdata() -> Pair:
    """A thousand records, each with integer noise on its response."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=1000)
    y = np.round(np.exp(2 + x + rng.normal(size=1000))) + rng.geometric(0.3, 1000) - rng.geometric(0.3, 1000)
    query = nw.queries.Records(("y",), public=("x",))
    noisy = nw.Measurement(query, {"y": nw.noise.DiscreteLaplace.from_rho(0.3)}, np.stack([y, x], axis=1))
    return nw.models.LognormalRegression(("x",), "y", intercept=True), nw.Release([noisy], n=1000)


_JOBS: tuple[tuple[str, Callable[[], Pair], str, int], ...] = (
    ("regression from nine noisy moments", _regression, "augmentation", 2500),
    ("share of 3e8 records", _shares, "counts", 10_000),
    ("naive Bayes from five tables", _tables, "counts", 5000),
    ("mean of 1e6 clamped records", _mean, "fourier", 10_000),
    ("the same, approximately", _mean, "sufficient", 2500),
    ("noisy microdata of 1,000 records", _microdata, "microdata", 1000),
)
"""What is run: words, the pair, the engine, and the draws of each of four chains."""


def run(*, small: bool, as_json: bool = False) -> None:
    """Every job twice: the first call compiles, the second, with another seed, does not."""
    rows = []
    for words, make, method, draws in _JOBS:
        length = max(100, math.ceil(draws * (_SMALL if small else _FULL)))
        rows.append({"job": words, "engine": method, **_measure(*make(), method, length)})
        if not as_json:
            row = rows[-1]
            if len(rows) == 1:
                say(f"{'job':36}{'engine':14}{'n':>12}{'draws':>8}{'first s':>10}{'again s':>10}{'ESS/s':>12}")
            say(
                f"{words:36}{method:14}{row['n']:>12,}{row['draws']:>8,}{row['first']:>10.2f}{row['again']:>10.2f}"
                f"{row['ess_per_second']:>12,.0f}"
            )
    machine = {
        "noisewise": nw.__version__,
        "jax": jax.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    if as_json:
        say(json.dumps({**machine, "jobs": rows}, indent=2))
    else:
        say(f"\nESS/s: the smallest bulk effective sample size a second of the second call, tuning included. {machine}")


def _measure(model: nw.models.Model, release: nw.Release, method: str, draws: int) -> dict[str, Any]:
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        for seed in (1, 2):
            began = time.perf_counter()
            tree = nw.sample(
                model, release, draws=draws, tune=min(draws, 1000), method=method, random_seed=seed, progressbar=False
            )
            seconds.append(time.perf_counter() - began)
    ess = smallest_ess({str(name): value.values for name, value in tree["posterior"].data_vars.items()})
    return {
        "n": release.n,
        "draws": 4 * draws,
        "first": seconds[0],
        "again": seconds[1],
        "ess_per_second": ess / seconds[1],
        "converged": bool(tree.attrs["noisewise_converged"]),
    }
