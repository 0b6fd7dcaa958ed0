"""Time per latent draw against what a user would write in NumPy and SciPy, and the cost of Raim's Algorithm 3.

    python benchmarks/direct_speed.py [largest n]

All in one run, after compilation, in processor seconds of this process. The alternatives draw one record at a time, as such
code does, with the paper's parameters (rho = 0.01, sigma = 1, beta = (5, -1)): rejection from the noise law with the weight as
acceptance probability, and the inverse distribution function on a window of 40 noise scales.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import noisewise as nw
from noisewise.direct import regression

RHO = 0.01
SCALE = -1 / np.log1p(-RHO)


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    covariates = rng.normal(size=(n, 2))
    mean = covariates @ [5.0, -1.0]
    y = np.exp(mean + rng.normal(size=n))
    noise = np.floor(SCALE * rng.exponential(size=n)) - np.floor(SCALE * rng.exponential(size=n))
    return covariates, mean, y + noise


def rejection(rng: np.random.Generator, mean: float, released: float, attempts: int = 100_000) -> tuple[float, bool]:
    """Noise from its law, accepted with probability w / sup w; gives up after ``attempts``."""
    log_peak = -mean + 0.5
    for _ in range(attempts // 1000):
        noise = np.floor(SCALE * rng.exponential(size=1000)) - np.floor(SCALE * rng.exponential(size=1000))
        y = released - noise
        inside = y > 0
        log_weight = np.full(1000, -np.inf)
        log_weight[inside] = -0.5 * (np.log(y[inside]) - mean) ** 2 - np.log(y[inside])
        accepted = np.log(rng.random(1000)) < log_weight - log_peak
        if accepted.any():
            return noise[np.argmax(accepted)], True
    return np.nan, False


def inverse_cdf(rng: np.random.Generator, mean: float, released: float) -> float:
    """Summed law on a window, which is exact enough only because the parameters are known to be mild."""
    noise = np.arange(-np.floor(40 * SCALE), np.ceil(40 * SCALE))
    y = released - noise
    noise, y = noise[y > 0], y[y > 0]
    if noise.size == 0:
        return np.nan
    mass = stats.lognorm.pdf(y, 1.0, scale=np.exp(mean)) * np.exp(-np.abs(noise) / SCALE)
    reached = np.cumsum(mass)
    return noise[np.searchsorted(reached, rng.random() * reached[-1])]


def seconds(work, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main(largest: int) -> None:
    rng = np.random.default_rng(1)
    _, mean, released = records(200)
    failures: list[bool] = []

    def by_rejection() -> None:
        failures[:] = [not rejection(rng, m, z)[1] for m, z in zip(mean, released, strict=True)]

    slow = {"NumPy rejection": seconds(by_rejection, 1) / 200}
    by_cdf = seconds(lambda: [inverse_cdf(rng, m, z) for m, z in zip(mean, released, strict=True)], 1)
    slow["NumPy/SciPy inverse cdf"] = by_cdf / 200

    draw = jax.jit(nw.direct.lognormal_discrete_laplace)

    # the parameters move a little at every iteration, as in a Gibbs sampler: else the compiler builds the envelopes only once
    def iteration(key: jax.Array) -> jax.Array:
        shift = 0.01 * jax.random.normal(key)
        return nw.direct.lognormal_discrete_laplace(key, args[0] + shift, *args[1:])

    scan = jax.jit(lambda keys: jax.lax.map(iteration, keys))
    args = (jnp.asarray(mean), 1.0, jnp.asarray(released), SCALE)
    keys = jax.random.split(jax.random.key(0), 100)
    scan(keys).block_until_ready()
    ours = seconds(lambda: scan(keys).block_until_ready()) / (100 * 200)
    print(f"lognormal x discrete Laplace, microseconds a draw at n = 200: ours {1e6 * ours:.1f}")
    for name, value in slow.items():
        note = f" ({sum(failures)} of 200 records given up)" if "rejection" in name else ""
        print(f"    {name:24} {1e6 * value:10.0f}   x{value / ours:.0f}{note}")

    for n in [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= largest]:
        _, mean_n, released_n = records(n)
        args_n = (jnp.asarray(mean_n), 1.0, jnp.asarray(released_n), SCALE)
        draw(jax.random.key(0), *args_n).block_until_ready()
        took = seconds(lambda a=args_n: draw(jax.random.key(1), *a).block_until_ready())
        print(f"    n = {n:>9,}: {1e6 * took / n:6.2f} microseconds a record")

    normal = jax.jit(nw.direct.normal_laplace)
    args_n = (jnp.zeros(100_000), 1.0, jnp.linspace(-5, 5, 100_000), 0.2)
    normal(jax.random.key(0), *args_n).block_until_ready()
    took = seconds(lambda: normal(jax.random.key(1), *args_n).block_until_ready())
    print(f"normal x Laplace: {1e6 * took / 1e5:.2f} microseconds a draw at n = 100,000")

    for n in [n for n in (200, 2_000, 20_000, 200_000, 1_000_000) if n <= max(largest, 2_000)]:
        covariates, _, released_n = records(n)
        problem = regression.NoisyRegression(jnp.asarray(released_n), jnp.asarray(covariates), jnp.asarray(SCALE))
        draws = max(4, min(2_000, 4_000_000 // n))
        jax.block_until_ready(regression.chain(jax.random.key(0), problem, draws))
        start, cpu = time.perf_counter(), time.process_time()
        beta, variance = jax.block_until_ready(regression.chain(jax.random.key(1), problem, draws))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - start
        half = draws // 2
        means = f"beta {np.mean(beta[half:], axis=0).round(3)}, sigma2 {float(variance[half:].mean()):.3f}"
        print(
            f"Algorithm 3, n = {n:>9,}, {draws:>5,} iterations: {cpu:.2f} s of processor, {wall:.2f} s of wall clock, "
            f"{1e6 * cpu / (n * draws):.2f} microseconds a record and iteration; {means}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
