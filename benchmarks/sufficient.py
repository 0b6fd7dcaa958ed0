"""How far the normal approximation is from the exact posterior, how fast its sampler is, and the figures of the paper.

``python benchmarks/sufficient.py distance | speed | figure FOLDER`` prints a Markdown table (and draws Figures 1a, 1b, 1c).

The distances are deterministic: both posteriors are tabulated on one grid by code of this file (numpy and scipy), the exact one by
summing over every count, or by Fourier inversion of one record's characteristic function to the n-th power.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
from scipy import special

SIZES = (10, 100, 1000, 10**5, 10**7)
EPSILONS = (0.01, 0.1, 1.0)
RELEASES = 4


def log_normal_laplace(gap, sd, scale):
    """The log density of a normal plus a Laplace number."""
    z, k = gap / sd, sd / scale

    def side(sign):
        u = k + sign * z
        outward = -0.5 * z**2 + np.log(special.erfcx(np.maximum(u, 0.0) / math.sqrt(2)))
        inward = k * (0.5 * k + sign * z) + math.log(2) + special.log_ndtr(-np.minimum(u, 0.0))
        return np.where(u > 0, outward, inward)

    return np.logaddexp(side(-1.0), side(1.0)) - np.log(4 * scale)


def posterior(log_density):
    density = np.exp(log_density - log_density.max())
    return density / density.sum()


def grid_about(log_density, low, high):
    """An even grid over where the density is, by zooming."""
    for _ in range(12):
        points = np.linspace(low, high, 801)
        alive = np.flatnonzero(log_density(points) > log_density(points).max() - 30)
        low, high = points[max(alive[0] - 1, 0)], points[min(alive[-1] + 1, 800)]
    return np.linspace(low, high, 401)


def bernoulli(n, epsilon, truth, rng):
    """Total-variation distance for one release of a count with Laplace(1/epsilon) noise, p uniform a priori."""
    b = 1 / epsilon
    y = rng.binomial(n, truth) + rng.laplace(scale=b)
    jacobian = lambda z: special.log_expit(z) + special.log_expit(-z)  # noqa: E731

    def normal(z):
        p, q = special.expit(z), special.expit(-z)
        return log_normal_laplace(y - n * p, np.sqrt(n * p * q), b) + jacobian(z)

    grid = grid_about(normal, -25.0, 25.0)
    p, q = special.expit(grid), special.expit(-grid)
    reach = 12 * np.sqrt(n * p * q) + 40
    s = np.arange(max(0, math.floor(np.min(n * p - reach))), min(n, math.ceil(np.max(n * p + reach))) + 1)
    fixed = special.gammaln(n + 1) - special.gammaln(s + 1) - special.gammaln(n - s + 1) - np.abs(y - s) / b
    log_odds, log_none = grid, special.log_expit(-grid)
    exact = np.asarray(
        [special.logsumexp(fixed + s * z + n * none) for z, none in zip(log_odds, log_none, strict=True)]
    )
    return 0.5 * np.abs(posterior(normal(grid)) - posterior(exact + jacobian(grid))).sum()


def exponential(n, epsilon, truth, rng, lower=0.00633, upper=0.9222):
    """The same for the truncated sum of exponential records, rate ~ Gamma(4, 1), bounds fixed in advance."""
    b = upper / epsilon
    inside = np.exp(-truth * lower) - np.exp(-truth * upper)
    count = rng.binomial(n, inside)
    places = rng.uniform(size=min(count, 10**5))
    waits = -np.log(np.exp(-truth * lower) - places * inside) / truth
    # beyond 10^5 records inside, their sum is drawn as normal: only the release's place depends on it
    rest = count - places.size
    y = waits.sum() + rest * waits.mean() + math.sqrt(rest) * waits.std() * rng.normal() + rng.laplace(scale=b)

    def moments(rate):
        e = [np.exp(-rate * x) for x in (lower, upper)]
        first = (lower + 1 / rate) * e[0] - (upper + 1 / rate) * e[1]
        second = (lower**2 + 2 * lower / rate + 2 / rate**2) * e[0] - (upper**2 + 2 * upper / rate + 2 / rate**2) * e[1]
        return first, np.sqrt(second - first**2)

    def prior(z):
        return 4 * z - np.exp(z)

    def normal(z):
        mean, sd = moments(np.exp(z))
        return log_normal_laplace(y - n * mean, math.sqrt(n) * sd, b) + prior(z)

    grid = grid_about(normal, math.log(0.05), math.log(40.0))

    def exact(z):
        rate = np.exp(z)
        mean, sd = moments(rate)
        gap, root = y - n * mean, math.sqrt(n) * sd
        # past 9.5/root, or where the noise's own transform is 1e-13, nothing is left for these n; for few records go further
        cut = 9.5 / root if n > 10**4 else 400 / root
        v = np.arange(0.0, cut, 2 * math.pi / (abs(gap) + 50 * b + 14 * root))
        turn = (1j * v - rate) * (upper - lower)
        part = rate * np.exp((1j * v - rate) * lower) * (upper - lower) * np.where(turn == 0, 1, np.expm1(turn) / turn)
        phi = 1 - (np.exp(-rate * lower) - np.exp(-rate * upper)) + part
        term = np.exp(n * (np.log(phi) - 1j * v * mean) - 1j * v * gap).real / (1 + (b * v) ** 2)
        return np.log(max((term.sum() - 0.5 * term[0]) * v[1] / math.pi, 1e-300)) + prior(z)

    return 0.5 * np.abs(posterior(normal(grid)) - posterior(np.asarray([exact(z) for z in grid]))).sum()


def distance():
    """The table of distances: mean over releases."""
    print("| model | n | " + " | ".join(f"epsilon = {e:g}" for e in EPSILONS) + " |")
    print("|---|---|" + "---|" * len(EPSILONS))
    cases = (
        ("Bernoulli, p = 0.3", bernoulli, 0.3),
        ("Bernoulli, p = 0.01", bernoulli, 0.01),
        ("exponential, rate 4", exponential, 4.0),
    )
    for label, function, truth in cases:
        for n in SIZES:
            found = []
            for epsilon in EPSILONS:
                rng = np.random.default_rng([n, round(100 * epsilon)])
                found.append(np.mean([function(n, epsilon, truth, rng) for _ in range(RELEASES)]))
            print(f"| {label} | {n:,} | " + " | ".join(f"{value:.1e}" for value in found) + " |", flush=True)


def speed():
    """Cost of a chain's draw for 1, 64 and 1,000 vectorised chains, compiled programs only."""
    import jax
    import jax.numpy as jnp

    from noisewise.studies.bernstein_sheldon import Trials, run_trials

    draws = 10_000
    print(
        "| model | moves | chains | seconds for 10,000 draws | microseconds a chain and draw |\n|---|---|---|---|---|"
    )
    for name, size, value in (("binomial", 1, 3e4), ("multinomial", 3, 3e4), ("exponential", 1, 2.1e4)):
        for moves in (0, 2):
            for chains in (1, 64, 1000):
                some = jnp.ones(chains)
                values = jnp.full((chains, size), value)
                data = Trials(0.5 * some, values, values, values, 10 * some, 0.00633 * some, 0.9222 * some)
                steps = draws if chains < 1000 else draws // 10
                best = math.inf
                for repeat in range(4):
                    began = time.perf_counter()
                    jax.block_until_ready(
                        run_trials(
                            jax.random.key(repeat),
                            data,
                            jnp.asarray(1e5),
                            jnp.asarray(steps),
                            jnp.asarray(0),
                            name,
                            moves,
                            "joint",
                        )
                    )
                    best = min(best, time.perf_counter() - began) if repeat else best
                each = best / steps / chains
                print(f"| {name} | {moves} | {chains:,} | {best * draws / steps:.3f} | {1e6 * each:.2f} |", flush=True)


def figure(folder):
    """The paper's Figure 1, as plots and a table."""
    from noisewise.studies.bernstein_sheldon import calibration, table

    began, spent = time.perf_counter(), time.process_time()
    cells = calibration()
    print(table(cells))
    print(f"\n{time.perf_counter() - began:.0f} s of clock, {time.process_time() - spent:.0f} s of processor time.")
    plot(cells, Path(folder))


def plot(cells, folder):
    """Figures 1a, 1b and 1c as PNG files."""
    from matplotlib.figure import Figure

    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    models, epsilons = list(dict.fromkeys(c.model for c in cells)), sorted({c.epsilon for c in cells})
    methods = list(dict.fromkeys(c.method for c in cells))
    written = []

    def grid(rows):
        figure = Figure(figsize=(3.6 * len(models), 2.8 * len(rows)), layout="constrained")
        return figure, figure.subplots(len(rows), len(models), squeeze=False)

    for file, what in (("figure_1a", "distance"), ("figure_1c", "discrepancy")):
        figure, axes = grid(epsilons)
        for row, epsilon in enumerate(epsilons):
            for column, model in enumerate(models):
                axis = axes[row][column]
                for method in methods:
                    line = [c for c in cells if (c.model, c.epsilon, c.method) == (model, epsilon, method)]
                    if what == "distance":
                        axis.plot([c.n for c in line], [c.distance for c in line], "o-", label=method, ms=3)
                    else:
                        line = [c for c in line if c.discrepancies is not None]
                        axis.plot(
                            [c.n for c in line], [np.mean(c.discrepancies) for c in line], "o-", label=method, ms=3
                        )
                if what == "distance":
                    axis.axhline(cells[0].band, color="grey", ls=":", lw=1)
                axis.set(xscale="log", title=f"{model}, epsilon = {epsilon:g}", xlabel="n")
                axis.set_ylabel("KS distance" if what == "distance" else "MMD$^2$ to non-private")
        axes[0][0].legend(fontsize=7)
        written.append(where / f"{file}.png")
        figure.savefig(written[-1], dpi=120)
    sizes = sorted({c.n for c in cells})
    n = min(sizes, key=lambda size: abs(math.log(size / 1000)))
    figure, axes = grid(epsilons[:1])
    for column, model in enumerate(models):
        for cell in cells:
            if (cell.model, cell.epsilon, cell.n) == (model, epsilons[0], n):
                axes[0][column].ecdf(cell.ranks, label=cell.method)
        axes[0][column].axline((0, 0), slope=1, color="grey", ls=":", lw=1)
        axes[0][column].set(title=f"{model}, n = {n}, epsilon = {epsilons[0]:g}", xlabel="U", ylabel="share")
    axes[0][0].legend(fontsize=7)
    written.append(where / "figure_1b.png")
    figure.savefig(written[-1], dpi=120)
    return written


if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["distance"]
    {"distance": distance, "speed": speed, "figure": figure}[command](*rest)
