"""Exact engines: time as n grows, the log-linear setting of Ju et al. (2022), and independent draws against augmentation.

python benchmarks/exact_engines.py              # all tables, as Markdown on standard output
python benchmarks/exact_engines.py size         # one of: size, versus, coverage
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np

import noisewise as nw
from noisewise.engines.base import Sampler
from noisewise.engines.counts import Counts
from noisewise.engines.fourier import Fourier
from noisewise.result import smallest_ess
from noisewise.studies import ju_loglinear

DRAWS, MANY = 4_000, 20_000
SIZES = (10**2, 10**4, 10**6, 3 * 10**8)
REPEATS = 3
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
REPLICATES, FOR_INTERVALS = 1000, 4000
Pair = tuple[nw.models.Model, nw.Release]


@jax.jit
def draw(sampler: Sampler, keys: jax.Array) -> dict[str, jax.Array]:
    """Draws of all parameters."""
    return jax.vmap(lambda key: sampler.draw(key).theta)(keys)


def best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The shortest of a few repetitions, after one that compiles."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def bernoulli(n: int) -> Pair:
    """A count of ones with discrete Gaussian noise."""
    query = nw.queries.Moments(columns={"x": nw.Column(0, 1)}, terms=[{"x": 1}])
    measured = nw.Measurement(query, nw.noise.DiscreteGaussian(10.0), [round(0.3 * n)])
    return nw.models.Bernoulli(), nw.Release([measured], n=n)


def normal(n: int) -> Pair:
    """A clamped sum with Laplace noise."""
    query = nw.queries.Moments(columns={"x": nw.Column(-4, 4)}, terms=[{"x": 1}])
    measured = nw.Measurement(query, nw.noise.Laplace(8.0), [0.3 * n])
    return nw.models.Normal(mean_prior=(0, 2)), nw.Release([measured], n=n)


def log_linear(n: int = 100, epsilon: float = 1.0) -> Pair:
    """Five classes, five features of three levels, Laplace noise: the paper's setting at any n."""
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(1, 6)]
    query = nw.queries.Counts(levels={"y": 5, **dict.fromkeys(names, 3)}, tables=[("y", name) for name in names])
    noise = nw.noise.Laplace.calibrated(query, epsilon=epsilon)
    y, x = rng.integers(5, size=n), rng.integers(3, size=(5, n))
    exact = query({"y": y, **dict(zip(names, x, strict=True))})
    value = [table + rng.laplace(size=(5, 3)) * float(noise.scale) for table in exact]
    return nw.models.NaiveBayes(5, [3] * 5), nw.Release([nw.Measurement(query, noise, value)], n=n)


def built(pair: Pair) -> Sampler:
    """The sampler of the engine that is chosen."""
    engine = nw.explain(*pair).engine
    assert isinstance(engine, Counts | Fourier)
    return engine.build(*pair, jax.random.key(0))


def by_size() -> None:
    """Seconds to prepare and to draw, warm."""
    sampler, many = built(log_linear()), jax.random.split(jax.random.key(0), MANY)
    drawn = best(lambda: jax.block_until_ready(draw(sampler, many)))
    print(f"The paper's log-linear setting, n = 100: {MANY:,} draws of all parameters in {drawn:.2f} s.\n", flush=True)
    print(f"| model | engine | n | prepare, ms | {DRAWS:,} draws, ms |\n|---|---|---|---|---|")
    keys = jax.random.split(jax.random.key(0), DRAWS)
    cases: list[tuple[str, str, Callable[[int], Pair], tuple[int, ...]]] = [
        ("Bernoulli, discrete Gaussian noise", "counts", bernoulli, SIZES),
        ("normal mean, Laplace noise", "Fourier", normal, SIZES),
        ("naive Bayes, 5 classes, 5 features of 3 levels", "counts", log_linear, (100, 10**4, 10**5)),
    ]
    for name, engine, case, sizes in cases:
        for n in sizes:
            repeats = 1 if case is log_linear else REPEATS
            sampler = built(case(n))
            prepared = 1e3 * best(lambda case=case, n=n: built(case(n)), repeats)
            drawn = 1e3 * best(lambda sampler=sampler: jax.block_until_ready(draw(sampler, keys)), repeats)
            print(f"| {name} | {engine} | {n:,} | {prepared:.0f} | {drawn:.1f} |", flush=True)


def versus() -> None:
    """Effective draws a second: independent draws with their preparation, and warm chains of augmentation without tuning."""
    print("| release | n | engine | draws/s | augmentation, ESS/s | ratio |\n|---|---|---|---|---|---|")
    keys = jax.random.split(jax.random.key(0), DRAWS)
    for name, case, sizes in (
        ("Bernoulli, discrete Gaussian noise", bernoulli, (100, 10**4)),
        ("normal mean, Laplace noise", normal, (100, 10**4)),
        ("naive Bayes, epsilon = 1", log_linear, (100,)),
        ("naive Bayes, epsilon = 0.1", lambda n: log_linear(n, 0.1), (100,)),
    ):
        for n in sizes:
            pair = case(n)
            engine = nw.explain(*pair).engine.name
            exact = DRAWS / best(lambda pair=pair: jax.block_until_ready(draw(built(pair), keys)))
            rates = []
            for seed in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", nw.ConvergenceWarning)
                    tree = nw.sample(
                        *pair, method="augmentation", draws=1000, tune=1000, random_seed=seed, progressbar=False
                    )
                draws = {name: tree.posterior[name].values for name in pair[0].parameters}
                rates.append(smallest_ess(draws) / (0.5 * float(tree.attrs["sampling_time"])))
            # the first run compiles
            print(
                f"| {name} | {n:,} | {engine} | {exact:,.0f} | {rates[-1]:,.0f} | {exact / rates[-1]:,.0f} |",
                flush=True,
            )


def coverage() -> None:
    """Coverage of 90% intervals of the class probabilities at the paper's parameters, beside the paper's 100 replicates."""
    problem = ju_loglinear.LOG_LINEAR
    print(
        "| epsilon |" + "".join(f" {label} = {t:.3f} |" for label, t in zip(problem.labels, problem.truth, strict=True))
    )
    print("|---" * (1 + len(problem.labels)) + "|")
    keys = jax.random.split(jax.random.key(1), FOR_INTERVALS)
    for epsilon in EPSILONS:
        covered = np.zeros(len(problem.labels))
        for value in problem.values("coverage", epsilon, range(REPLICATES), 1):
            sampler = Counts().build(problem.model(), problem.release(value, epsilon), jax.random.key(0))
            low, high = np.quantile(np.asarray(draw(sampler, keys)["class_probs"]), [0.05, 0.95], axis=0)
            covered += (low <= problem.truth) & (problem.truth <= high)
        shares = zip(covered / REPLICATES, problem.table[str(epsilon)], strict=True)
        cells = [f" {share:.3f} ({printed:.2f}) |" for share, printed in shares]
        print(f"| {epsilon:g} |" + "".join(cells), flush=True)


TABLES = {"size": by_size, "versus": versus, "coverage": coverage}


def main() -> None:
    chosen = sys.argv[1:] or list(TABLES)
    for name in chosen:
        TABLES[name]()
        print()


if __name__ == "__main__":
    main()
