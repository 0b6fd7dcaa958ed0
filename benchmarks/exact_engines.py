"""Time of the exact engines: 4,000 draws as n grows, and the log-linear setting of Ju et al. (2022), in one run.

python benchmarks/exact_engines.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import numpy as np

import noisewise as nw
from noisewise.engines.base import Sampler
from noisewise.engines.counts import Counts
from noisewise.engines.fourier import Fourier

DRAWS = 4_000
SIZES = (10**2, 10**4, 10**6, 3 * 10**8)
REPEATS = 3


@jax.jit
def draw(sampler: Sampler, keys: jax.Array) -> dict[str, jax.Array]:
    """Draws of all parameters."""
    return jax.vmap(lambda key: sampler.draw(key).theta)(keys)


def best(work: Callable[[], object]) -> float:
    """The shortest of a few repetitions, after one that compiles."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def bernoulli(n: int) -> Sampler:
    """A count of ones with discrete Gaussian noise, by the counts engine."""
    query = nw.queries.Moments(columns={"x": nw.Column(0, 1)}, terms=[{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.DiscreteGaussian(10.0), [round(0.3 * n)])], n=n)
    return Counts().build(nw.models.Bernoulli(), release, jax.random.key(0))


def normal(n: int) -> Sampler:
    """A clamped sum with Laplace noise, by the Fourier engine."""
    query = nw.queries.Moments(columns={"x": nw.Column(-4, 4)}, terms=[{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(8.0), [0.3 * n])], n=n)
    return Fourier().build(nw.models.Normal(mean_prior=(0, 2)), release, jax.random.key(0))


def log_linear(n: int = 100, epsilon: float = 1.0) -> Sampler:
    """Five classes, five features of three levels, Laplace noise: the paper's setting."""
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(1, 6)]
    query = nw.queries.Counts(levels={"y": 5, **dict.fromkeys(names, 3)}, tables=[("y", name) for name in names])
    noise = nw.noise.Laplace.calibrated(query, epsilon=epsilon)
    y, x = rng.integers(5, size=n), rng.integers(3, size=(5, n))
    exact = query({"y": y, **dict(zip(names, x, strict=True))})
    value = [table + rng.laplace(size=(5, 3)) * float(noise.scale) for table in exact]
    release = nw.Release([nw.Measurement(query, noise, value)], n=n)
    return Counts().build(nw.models.NaiveBayes(5, [3] * 5), release, jax.random.key(0))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    print(f"{'model':28}{'n':>12}{'build, s':>12}{f'{DRAWS} draws, s':>18}")
    for name, build in (("Bernoulli, counts", bernoulli), ("normal mean, Fourier", normal)):
        for n in SIZES:
            sampler = build(n)
            prepared = best(lambda build=build, n=n: build(n))
            drawn = best(lambda sampler=sampler: jax.block_until_ready(draw(sampler, keys)))
            print(f"{name:28}{n:12d}{prepared:12.3f}{drawn:18.4f}")
    sampler, many = log_linear(), jax.random.split(jax.random.key(0), 20_000)
    drawn = best(lambda: jax.block_until_ready(draw(sampler, many)))
    print(f"{'naive Bayes, 20,000 draws':28}{100:12d}{best(log_linear):12.3f}{drawn:18.4f}")


if __name__ == "__main__":
    main()
