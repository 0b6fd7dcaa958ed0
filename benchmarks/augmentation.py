"""Record augmentation against what a user would run today: mixing, cost per record, cold start, memory.

Everything is measured in one run on one machine, alternatives in turn; the table of ratios is what counts. The regression is
that of Ju, Awan, Gong and Rao (2022, section 5): two predictors, bounds of 10 on either side, Laplace noise of scale
13 / epsilon on nine moments.

    python benchmarks/augmentation.py            # all tables, as Markdown on standard output
    python benchmarks/augmentation.py mixing     # one of: mixing, large, cost, cold, memory
    python benchmarks/augmentation.py --small    # shorter runs
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import noisewise as nw
from noisewise.chains import INIT, START, chain_keys
from noisewise.engines.base import Engine

BETA, MEAN, VARIANCE = np.array([-1.795, -2.889, -0.662]), np.array([0.9, -1.173]), 2.0
CHAINS, TURNS = 4, 5


def query() -> nw.queries.Moments:
    """The regression moments with the paper's bounds."""
    column = nw.Column(-10, 10, rescale=(-1, 1))
    return nw.queries.regression_moments({"x1": column, "x2": column}, {"y": column})


def model() -> nw.models.LinearRegression:
    """The paper's model."""
    return nw.models.LinearRegression(
        ("x1", "x2"), "y", variance=VARIANCE, covariate_mean=MEAN, covariate_cov=np.eye(2)
    )


def release(epsilon: float, n: int, seed: int = 1) -> nw.Release:
    """A simulated release of n records; a benchmark's noise may come from a seed."""
    rng = np.random.default_rng(seed)
    x = MEAN + rng.normal(size=(n, 2))
    y = BETA[0] + x @ BETA[1:] + np.sqrt(VARIANCE) * rng.normal(size=n)
    total = np.asarray(query()({"x1": x[:, 0], "x2": x[:, 1], "y": y}))
    return nw.Release(
        [nw.Measurement(query(), nw.noise.Laplace(13 / epsilon), total + rng.laplace(0, 13 / epsilon, 9))], n
    )


def worst(draws: np.ndarray) -> tuple[float, float]:
    """The smallest bulk ESS and the largest R-hat over the coefficients of draws (chain, draw, coefficient)."""
    from arviz_stats.base import array_stats

    columns = [draws[..., j] for j in range(draws.shape[-1])]
    ess = min(float(array_stats.ess(c, chain_axis=0, draw_axis=1)) for c in columns)
    return ess, max(float(array_stats.rhat(c, chain_axis=0, draw_axis=1)) for c in columns)


def noisewise_rate(engine: Engine, of: nw.Release, draws: int, tune: int) -> Callable[[int], tuple[float, float]]:
    """A run by its seed: smallest ESS a second of sampling and largest R-hat, compiled before."""

    def run(seed: int, draws: int = draws, tune: int = tune) -> tuple[float, float]:
        dt = nw.sample(
            model(), of, method=engine, draws=draws, tune=tune, chains=CHAINS, random_seed=seed, progressbar=False
        )
        ess, rhat = worst(dt.posterior.beta.values)
        # the tuning phase is not part of a warm rate
        return ess / (dt.attrs["sampling_time"] * draws / (draws + tune)), rhat

    run(0, 300, 300)
    return run


def nuts_rate(of: nw.Release, draws: int, tune: int) -> Callable[[int], tuple[float, float]]:
    """The same of NumPyro's NUTS on the hand-written non-centred model with every record latent, adapted and compiled before."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    measurement = of.measurements[0]
    value, scale, n = measurement.value, measurement.noise.scale, of.n

    def hand_written() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([3]).to_event(1))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([3, n]).to_event(2))
        x1, x2 = MEAN[0] + u[0], MEAN[1] + u[1]
        y = beta[0] + beta[1] * x1 + beta[2] * x2 + jnp.sqrt(VARIANCE) * u[2]
        a, b, c = (jnp.clip(v, -10, 10) / 10 for v in (x1, x2, y))
        rows = [c, a * c, b * c, c * c, a, b, a * a, a * b, b * b]
        total = jnp.stack([jnp.sum(row) for row in rows])
        numpyro.sample("s", dist.Laplace(total, scale).to_event(1), obs=value)

    mcmc = MCMC(
        NUTS(hand_written),
        num_warmup=tune,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.key(0), collect_warmup=False)
    mcmc.run(jax.random.key(1))

    def run(seed: int) -> tuple[float, float]:
        began = time.perf_counter()
        mcmc.run(jax.random.key(seed))
        jax.block_until_ready(mcmc.get_samples())
        seconds = time.perf_counter() - began
        ess, rhat = worst(np.asarray(mcmc.get_samples(group_by_chain=True)["beta"]))
        return ess / seconds, rhat

    return run


def mixing(small: bool) -> dict[str, Any]:
    """ESS a second at n = 100: interweaved, the paper's Algorithm 1, and NUTS, in turn; medians over the turns."""
    rows = []
    lengths = (1000, 4000, 200) if small else (4000, 20_000, 1000)
    for epsilon in (0.1, 0.3, 1.0, 10.0):
        of = release(epsilon, 100)
        samplers = (
            noisewise_rate(nw.engines.Augmentation(), of, lengths[0], 1000),
            noisewise_rate(nw.engines.Augmentation(interweave=False), of, lengths[1], 100),
            nuts_rate(of, lengths[2], 1000),
        )
        turns = np.asarray([[sampler(seed) for sampler in samplers] for seed in range(1, TURNS + 1)])
        (ours, theirs, nuts), rhats = np.median(turns[..., 0], axis=0), turns[..., 1].max(axis=0)
        rows.append([epsilon, ours, rhats[0], theirs, rhats[1], ours / theirs, nuts, rhats[2], ours / nuts])
    head = [
        "epsilon",
        "noisewise ESS/s",
        "R-hat",
        "Algorithm 1 ESS/s",
        "R-hat",
        "ratio",
        "NUTS ESS/s",
        "R-hat",
        "ratio",
    ]
    return {
        "title": f"Mixing, n = 100: smallest bulk ESS per second over beta, warm, 4 chains, medians of {TURNS} turns",
        "head": head,
        "rows": rows,
    }


def large(small: bool) -> dict[str, Any]:
    """Convergence at n = 10,000 from dispersed starts."""
    rows = []
    for epsilon in (0.1, 1.0, 10.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nw.ConvergenceWarning)
            began = time.perf_counter()
            dt = nw.sample(model(), release(epsilon, 10_000), draws=2000, tune=1000, random_seed=1, progressbar=False)
        ess, rhat = worst(dt.posterior.beta.values)
        rows.append([epsilon, time.perf_counter() - began, ess, rhat, str(bool(dt.attrs["noisewise_converged"]))])
    head = ["epsilon", "seconds", "smallest ESS", "largest R-hat", "converged"]
    return {
        "title": "n = 10,000, 4 chains, 1,000 + 2,000 steps, from dispersed starts, compilation included",
        "head": head,
        "rows": rows,
    }


def cost(small: bool) -> dict[str, Any]:
    """Nanoseconds a record and sweep of Algorithm 1, by n and chains."""
    rows = []
    for n in (100, 1_000, 10_000, 100_000, *(() if small else (1_000_000,))):
        row: list[Any] = [n]
        for chains in (1, 4, 64):
            if n * chains > 7_000_000:
                row.append("-")
                continue
            engine = nw.engines.Augmentation(interweave=False)
            kernel = engine.build(model(), release(1.0, n), jax.random.key(0))
            keys = chain_keys(0, chains)
            starts = jax.vmap(lambda key, k=kernel, e=engine: e.start(k, jax.random.fold_in(key, START)))(keys)
            states = jax.vmap(lambda key, start, k=kernel: k.init(jax.random.fold_in(key, INIT), start))(keys, starts)
            steps = max(2, 2_000_000 // (n * chains))

            @jax.jit
            def run(states: Any, keys: Any, steps: Any, kernel: Any = kernel) -> Any:
                def one(i: Any, states: Any) -> Any:
                    each = jax.vmap(lambda key: jax.random.fold_in(key, i))(keys)
                    return jax.vmap(kernel.step)(each, states)[0]

                return jax.lax.fori_loop(0, steps, one, states)

            jax.block_until_ready(run(states, keys, 1))
            times = []
            for _ in range(3):
                began = time.perf_counter()
                jax.block_until_ready(run(states, keys, steps))
                times.append(time.perf_counter() - began)
            row.append(min(times) / steps / n / chains * 1e9)
        rows.append(row)
    return {
        "title": "Cost of a whole step of Algorithm 1, ns a record and chain",
        "head": ["n", "1 chain", "4 chains", "64 chains"],
        "rows": rows,
    }


def cold(small: bool) -> dict[str, Any]:
    """Seconds from a fresh process to 400 effective draws, without and with the compilation cache."""
    rows = []
    script = "import time; t=time.perf_counter()\nimport warnings; warnings.simplefilter('ignore')\n" + (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
        "import noisewise as nw\nfrom augmentation import model, release\n"
        "dt = nw.sample(model(), release(1.0, 100), draws=250, tune=500, random_seed=1, progressbar=False)\n"
        "print(time.perf_counter() - t)\n"
        "from augmentation import worst\nprint(worst(dt.posterior.beta.values)[0])\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        for label in ("without the cache", "with the cache", "with the cache, again"):
            environment = {**os.environ, "NOISEWISE_CACHE": cache}
            began = time.perf_counter()
            out = subprocess.run(
                [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
            )
            whole = time.perf_counter() - began
            inside, ess = (float(line) for line in out.stdout.split())
            rows.append([label, inside, whole, ess])
    head = ["process", "seconds inside", "seconds with start-up", "smallest ESS"]
    return {
        "title": "Cold start: a fresh process to at least 400 effective draws (n = 100, epsilon = 1)",
        "head": head,
        "rows": rows,
    }


def memory(small: bool) -> dict[str, Any]:
    """Peak memory of one chain at n = 1,000,000, against the size of the records."""
    script = (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
        "import warnings, resource; warnings.simplefilter('ignore')\n"
        "import noisewise as nw\nfrom augmentation import model, release\n"
        "n = int(sys.argv[1])\nof = release(1.0, n)\n"
        "dt = nw.sample(model(), of, draws=5, tune=5, chains=1, random_seed=1, progressbar=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    peak = {
        n: float(
            subprocess.run([sys.executable, "-c", script, str(n)], check=True, capture_output=True, text=True).stdout
        )
        for n in (1_000, 1_000_000)
    }
    records = 1_000_000 * 3 * 8
    grown = peak[1_000_000] - peak[1_000]
    head = ["peak at n = 1e6 (MB)", "peak at n = 1e3 (MB)", "records (MB)", "growth / records"]
    rows = [[peak[1_000_000] / 1e6, peak[1_000] / 1e6, records / 1e6, grown / records]]
    return {"title": "Memory of one chain", "head": head, "rows": rows}


TABLES = {"mixing": mixing, "large": large, "cost": cost, "cold": cold, "memory": memory}


def markdown(table: dict[str, Any]) -> str:
    """A table as Markdown."""

    def cell(value: Any) -> str:
        return (
            f"{value:,.4g}"
            if isinstance(value, float) and abs(value) < 1e4
            else f"{value:,.0f}"
            if isinstance(value, float)
            else str(value)
        )

    lines = [f"## {table['title']}", "", "| " + " | ".join(table["head"]) + " |", "|" + " --- |" * len(table["head"])]
    return "\n".join([*lines, *("| " + " | ".join(cell(v) for v in row) + " |" for row in table["rows"]), ""])


def main(names: list[str]) -> None:
    """Measure and print the tables."""
    versions = {
        "noisewise": nw.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print("Versions:", json.dumps(versions), "\n")
    small = "--small" in names
    warnings.simplefilter("ignore", nw.ConvergenceWarning)
    for name in [name for name in names if name != "--small"] or list(TABLES):
        print(markdown(TABLES[name](small)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
