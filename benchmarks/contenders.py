"""What a Python user could run instead, on the regression of ``augmentation.py``: each of them as a generator of draws.

    python benchmarks/contenders.py METHOD EPSILON N        # one JSON line for each look at the draws, until told to stop

A contender warms up and then yields, again and again, all its draws (chain, draw, coefficient) so far and the seconds that one more
draw costs once all is compiled and tuned (None while that is not known). Each runs four chains, in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

BEGAN = time.perf_counter()

import jax
import jax.numpy as jnp
import numpy as np
from augmentation import CHAINS, MEAN, VARIANCE, model, release, worst

import noisewise as nw
from noisewise.engines.base import Engine

Looks = Iterator[tuple[np.ndarray, float | None]]
TARGET, RHAT = 400, 1.01
TUNE = 500
PRIOR_SD, BOUND = 2.0, 10.0
_POINTS = 1024


def noisewise_by(engine: str | Engine, draws: int) -> Callable[[nw.Release], Looks]:
    """``nw.sample`` until the smallest effective sample size is 400; then once more, compiled, and longer if R-hat was not content."""

    def looks(of: nw.Release) -> Looks:
        length, cost = draws, None
        for seed in itertools.count(1):
            dt = nw.sample(
                model(),
                of,
                method=engine,
                draws=length,
                tune=TUNE,
                chains=CHAINS,
                target_ess=TARGET,
                random_seed=seed,
                progressbar=False,
            )
            found = dt.posterior.beta.values
            if seed > 1:
                cost = dt.attrs["sampling_time"] / (found.shape[1] + TUNE)
            yield found, cost
            length = found.shape[1] if worst(found)[1] < RHAT else 2 * found.shape[1]

    return looks


def statistics(x1: Any, x2: Any, y: Any, xp: Any) -> list[Any]:
    """The nine statistics of clamped records, in the order of the query."""
    a, b, c = (xp.clip(v, -BOUND, BOUND) / BOUND for v in (x1, x2, y))
    return [c, a * c, b * c, c * c, a, b, a * a, a * b, b * b]


def transformed(beta: Any, u: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Records from standard normal innovations (3, n)."""
    x1, x2 = MEAN[0] + u[0], MEAN[1] + u[1]
    return x1, x2, beta[0] + beta[1] * x1 + beta[2] * x2 + xp.sqrt(VARIANCE) * u[2]


def published(of: nw.Release) -> tuple[np.ndarray, float, int]:
    """The released numbers, the scale of their noise, and n."""
    measurement = of.measurements[0]
    return np.asarray(measurement.value), float(measurement.noise.scale), int(of.n or 0)


def draw_beta(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coefficients given complete records, exactly."""
    design = np.column_stack([np.ones_like(y), *x])
    precision = design.T @ design / VARIANCE + np.eye(3) / PRIOR_SD**2
    root = np.linalg.cholesky(precision)
    mean = np.linalg.solve(precision, design.T @ y / VARIANCE)
    return np.asarray(mean + np.linalg.solve(root.T, rng.standard_normal(3)))


def numpy_algorithm_1(of: nw.Release) -> Looks:
    """Algorithm 1 of Ju et al. in plain NumPy: all proposals of a sweep at once, then a loop over the records, chains side by side."""
    value, scale, n = published(of)
    rng = np.random.default_rng(1)
    beta = PRIOR_SD * rng.standard_normal((CHAINS, 3))

    def fresh() -> tuple[np.ndarray, np.ndarray]:
        pairs = [transformed(b, rng.standard_normal((3, n)), np) for b in beta]
        return np.array(pairs), np.array([np.stack(statistics(*pair, np), axis=1) for pair in pairs])

    records, rows = fresh()
    kept: list[np.ndarray] = []
    began, dropped = time.perf_counter(), TUNE
    while True:
        proposed, proposed_rows = fresh()
        log_u = np.log(rng.random((n, CHAINS)))
        total = rows.sum(axis=1)
        distance = np.abs(value - total).sum(axis=1)
        for i in range(n):
            moved = total + proposed_rows[:, i] - rows[:, i]
            other = np.abs(value - moved).sum(axis=1)
            taken = log_u[i] * scale < distance - other
            total[taken], distance[taken] = moved[taken], other[taken]
            records[taken, :, i], rows[taken, i] = proposed[taken, :, i], proposed_rows[taken, i]
        beta = np.array([draw_beta(rng, r[:2], r[2]) for r in records])
        if dropped:
            dropped -= 1
            began = time.perf_counter()
            continue
        kept.append(beta)
        if len(kept) % 1000 == 0:
            yield np.stack(kept, axis=1), (time.perf_counter() - began) / len(kept)


def by_numpyro(kernel: Any, chunk: int, chain_method: Any = "vectorized") -> Looks:
    """Chunks of draws of a NumPyro kernel, all chains in one program."""
    from numpyro.infer import MCMC

    mcmc = MCMC(
        kernel, num_warmup=TUNE, num_samples=chunk, num_chains=CHAINS, chain_method=chain_method, progress_bar=False
    )
    mcmc.warmup(jax.random.key_data(jax.random.key(1)), collect_warmup=False)
    kept: list[np.ndarray] = []
    seconds = 0.0
    while True:
        began = time.perf_counter()
        mcmc.run(jax.random.key_data(jax.random.key(2)))
        kept.append(np.asarray(mcmc.get_samples(group_by_chain=True)["beta"]))
        # the first chunk is compiled
        seconds += time.perf_counter() - began if len(kept) > 1 else 0.0
        mcmc.post_warmup_state = mcmc.last_state
        yield np.concatenate(kept, axis=1), seconds / (len(kept) - 1) / chunk if len(kept) > 1 else None


def numpyro_nuts(of: nw.Release) -> Looks:
    """NUTS on all latent records, non-centred."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    value, scale, n = published(of)

    def latent() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SD).expand([3]).to_event(1))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([3, n]).to_event(2))
        total = jnp.stack([jnp.sum(row) for row in statistics(*transformed(beta, u, jnp), jnp)])
        numpyro.sample("s", dist.Laplace(total, scale).to_event(1), obs=value)

    return by_numpyro(NUTS(latent), 250)


def numpyro_gibbs(of: nw.Release) -> Looks:
    """``HMCGibbs``: a sweep over the records as its Gibbs function, NUTS for the coefficients given them."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS, HMCGibbs

    value, scale, n = published(of)

    def centred() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SD).expand([3]).to_event(1))
        x = numpyro.sample("x", dist.Normal(jnp.asarray(MEAN)[:, None], 1).expand([2, n]).to_event(2))
        line = beta[0] + beta[1] * x[0] + beta[2] * x[1]
        y = numpyro.sample("y", dist.Normal(line, jnp.sqrt(VARIANCE)).to_event(1))
        total = jnp.stack([jnp.sum(row) for row in statistics(x[0], x[1], y, jnp)])
        numpyro.sample("s", dist.Laplace(total, scale).to_event(1), obs=value)

    def sweep(rng_key: Any, gibbs_sites: Any, hmc_sites: Any) -> Any:
        x, y = gibbs_sites["x"], gibbs_sites["y"]
        propose_key, accept_key = jax.random.split(rng_key)
        new = jnp.stack(transformed(hmc_sites["beta"], jax.random.normal(propose_key, (3, n)), jnp))
        old = jnp.stack([x[0], x[1], y])
        new_rows, old_rows = (jnp.stack(statistics(*part, jnp), axis=1) for part in (new, old))
        log_u = jnp.log(jax.random.uniform(accept_key, (n,)))

        def one(total: Any, row: Any) -> Any:
            new_row, old_row, log_u = row
            moved = total + new_row - old_row
            taken = log_u * scale < jnp.sum(jnp.abs(value - total)) - jnp.sum(jnp.abs(value - moved))
            return jnp.where(taken, moved, total), taken

        _, taken = jax.lax.scan(one, jnp.sum(old_rows, axis=0), (new_rows, old_rows, log_u))
        made = jnp.where(taken, new, old)
        return {"x": made[:2], "y": made[2]}

    return by_numpyro(HMCGibbs(NUTS(centred), gibbs_fn=sweep, gibbs_sites=["x", "y"]), 1000, chain_method=jax.vmap)


def central_limit(of: nw.Release) -> Looks:
    """The recipe of the central limit theorem (approximate): totals normal given beta, noise as it is, NUTS for both in NumPyro."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS
    from scipy.stats import norm, qmc

    value, scale, n = published(of)
    points = jnp.asarray(norm.ppf(qmc.Sobol(3, seed=1).random(_POINTS)).T)

    def approximate() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, PRIOR_SD).expand([3]).to_event(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([9]).to_event(1))
        rows = jnp.stack(statistics(*transformed(beta, points, jnp), jnp))
        root = jnp.linalg.cholesky(jnp.cov(rows) + 1e-12 * jnp.eye(9))
        total = n * jnp.mean(rows, axis=1) + jnp.sqrt(n) * root @ z
        numpyro.sample("s", dist.Laplace(total, scale).to_event(1), obs=value)

    return by_numpyro(NUTS(approximate), 500)


def pymc_nuts(of: nw.Release) -> Looks:
    """The model with latent records in PyMC, compiled to C, two chains at a time."""
    import pymc as pm

    value, scale, n = published(of)
    draws = 500
    with pm.Model():
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=3)
        u = pm.Normal("u", 0, 1, shape=(3, n))
        rows = statistics(*transformed(beta, u, pm.math), pm.math)
        pm.Laplace("s", mu=pm.math.stack([row.sum() for row in rows]), b=scale, observed=value)
        while True:
            made = pm.sample(
                draws,
                tune=TUNE,
                chains=CHAINS,
                cores=2,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
                mp_ctx="forkserver",
            )
            found = made.posterior["beta"].values
            yield found, made.posterior.attrs["sampling_time"] / (draws + TUNE)
            draws *= 2


METHODS: dict[str, Callable[[nw.Release], Looks]] = {
    "noisewise": noisewise_by("auto", 250),
    "noisewise, Algorithm 1": noisewise_by(nw.engines.Augmentation(interweave=False), 2000),
    "NumPy, Algorithm 1": numpy_algorithm_1,
    "NumPyro, NUTS on records": numpyro_nuts,
    "NumPyro, HMCGibbs with a record sweep": numpyro_gibbs,
    "PyMC, NUTS on records": pymc_nuts,
    "CLT recipe in NumPyro (approximate)": central_limit,
}


def main(method: str, epsilon: float, n: int) -> None:
    """Look at the draws until they are enough and the cost of a further one is known."""
    warnings.simplefilter("ignore")
    reached = None
    for draws, cost in METHODS[method](release(epsilon, n)):
        ess, rhat = worst(draws)
        elapsed = time.perf_counter() - BEGAN
        if reached is None and ess >= TARGET and rhat < RHAT:
            reached = elapsed
        usage = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = {
            "seconds": elapsed,
            "reached": reached,
            "ess": ess,
            "rhat": rhat,
            "rate": None if cost is None else ess / (cost * draws.shape[1]),
            "draws": draws.shape[1],
            "megabytes": max(one.ru_maxrss for one in usage) * 1024 / 1e6,
            "mean": draws.mean(axis=(0, 1)).tolist(),
            "sd": draws.reshape(-1, 3).std(axis=0, ddof=1).tolist(),
        }
        print(json.dumps(said), flush=True)
        if reached is not None and cost is not None:
            return


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
