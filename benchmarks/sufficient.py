"""How far the normal approximation is from the exact posterior, whether it says so, and how fast its sampler is.

``python benchmarks/sufficient.py distance | speed | profile | draws`` prints a Markdown table.

The distances are deterministic: the exact posterior is tabulated by code of this file (numpy and scipy), by summing over every count, or
by Fourier inversion of one record's characteristic function to the n-th power; the approximate one is the engine's own table. The
paper's figures are the study ``bernstein-sheldon``.
"""

from __future__ import annotations

import math
import sys
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import noisewise as nw
from noisewise.engines.edgeworth import doubts_of
from noisewise.engines.sufficient_direct import direct_sampler
from noisewise.engines.sufficient_laws import observed, statistic_law

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


def posterior(log_density, widths):
    """The probabilities of cells, from the log densities in their middles."""
    density = widths * np.exp(log_density - log_density.max())
    return density / density.sum()


def grid_about(log_density, low, high):
    """The middles and the widths of even cells over each stretch where the density is, by zooming: it may have two narrow modes."""
    stretches = [(low, high)]
    for _ in range(12):
        grids = [np.linspace(*ends, 801) for ends in stretches]
        values = [log_density(points) for points in grids]
        top = max(found.max() for found in values)
        stretches = []
        for points, found in zip(grids, values, strict=True):
            alive = np.flatnonzero(found > top - 30)
            runs = np.split(alive, np.flatnonzero(np.diff(alive) > 1) + 1)
            stretches += [(points[max(run[0] - 1, 0)], points[min(run[-1] + 1, 800)]) for run in runs if run.size]
    widths = np.repeat([(high - low) / 400 for low, high in stretches], 401)
    return np.concatenate([np.linspace(*ends, 401) for ends in stretches]), widths


def compared(model, release, grid, widths, exact):
    """Total-variation distance of the engine's posterior from the exact one, on the cells of a grid; and the engine's own doubt."""
    law = statistic_law(model, release)
    sampler = direct_sampler(jax.random.key(0), model, law, *observed(release), jnp.asarray(float(release.n)))
    upto = jax.vmap(sampler.table.distribution)
    mass = np.asarray(upto(jnp.asarray(grid + widths / 2)) - upto(jnp.asarray(grid - widths / 2)))
    thetas = jax.vmap(lambda key: sampler.draw(key).theta)(jax.random.split(jax.random.key(1), 256))
    _, doubts = doubts_of(model, release, thetas, jax.random.key(2))
    return 0.5 * np.abs(mass / mass.sum() - exact).sum(), any("not near normal" in doubt for doubt in doubts)


def bernoulli(n, epsilon, truth, rng):
    """Total-variation distance for one release of a count with Laplace(1/epsilon) noise, p uniform a priori."""
    b = 1 / epsilon
    y = rng.binomial(n, truth) + rng.laplace(scale=b)

    def jacobian(z):
        return special.log_expit(z) + special.log_expit(-z)

    def normal(z):
        p, q = special.expit(z), special.expit(-z)
        return log_normal_laplace(y - n * p, np.sqrt(n * p * q), b) + jacobian(z)

    grid, widths = grid_about(normal, -25.0, 25.0)
    p, q = special.expit(grid), special.expit(-grid)
    reach = 12 * np.sqrt(n * p * q) + 40
    s = np.arange(max(0, math.floor(np.min(n * p - reach))), min(n, math.ceil(np.max(n * p + reach))) + 1)
    fixed = special.gammaln(n + 1) - special.gammaln(s + 1) - special.gammaln(n - s + 1) - np.abs(y - s) / b
    log_odds, log_none = grid, special.log_expit(-grid)
    exact = np.asarray(
        [special.logsumexp(fixed + s * z + n * none) for z, none in zip(log_odds, log_none, strict=True)]
    )
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(b), [y])], n=n)
    return compared(nw.models.Bernoulli(), release, grid, widths, posterior(exact + jacobian(grid), widths))


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

    grid, widths = grid_about(normal, math.log(0.05), math.log(40.0))

    def exact(z):
        rate = np.exp(z)
        mean, sd = moments(rate)
        gap, root = y - n * mean, math.sqrt(n) * sd
        # past 9.5/root nothing is left for these n; for few records go further
        cut = 9.5 / root if n > 10**4 else 100 / root
        v = np.arange(0.0, cut, 2 * math.pi / (abs(gap) + 50 * b + 14 * root))
        turn = (1j * v - rate) * (upper - lower)
        part = rate * np.exp((1j * v - rate) * lower) * (upper - lower) * np.where(turn == 0, 1, np.expm1(turn) / turn)
        phi = 1 - (np.exp(-rate * lower) - np.exp(-rate * upper)) + part
        term = np.exp(n * (np.log(phi) - 1j * v * mean) - 1j * v * gap).real / (1 + (b * v) ** 2)
        return np.log(max((term.sum() - 0.5 * term[0]) * v[1] / math.pi, 1e-300)) + prior(z)

    query = nw.queries.TruncatedSum("x", lower, upper)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(b), [y])], n=n)
    found = posterior(np.asarray([exact(z) for z in grid]), widths)
    return compared(nw.models.Exponential(4, 1), release, grid, widths, found)


def distance():
    """The table of distances: mean over releases, and in how many of them the engine doubts itself."""
    print("| model | n | " + " | ".join(f"epsilon = {e:g}" for e in EPSILONS) + " |")
    print("|---|---|" + "---|" * len(EPSILONS))
    cases = (
        ("Bernoulli, p = 0.3", bernoulli, 0.3),
        ("Bernoulli, p = 0.01", bernoulli, 0.01),
        ("exponential, rate 4", exponential, 4.0),
    )
    for label, function, truth in cases:
        for n in SIZES:
            shown = []
            for epsilon in EPSILONS:
                rng = np.random.default_rng([n, round(100 * epsilon)])
                far, doubted = zip(*(function(n, epsilon, truth, rng) for _ in range(RELEASES)), strict=True)
                shown.append(f"{np.mean(far):.1e} ({sum(doubted)})")
            print(f"| {label} | {n:,} | " + " | ".join(shown) + " |", flush=True)


def cases():
    """Three of the paper's models, each with a kernel for one release and the number of moves it takes by itself."""
    table = {k: nw.queries.Counts(levels={"x": k}, tables=[("x",)]) for k in (2, 3, 10)}
    noise = nw.noise.Laplace(20.0)

    def pair(model, query, value, n, law=noise):
        return model, nw.Release([nw.Measurement(query, law, value)], n=n)

    cut = nw.queries.TruncatedSum("x", 0.00633, 0.9222)
    both = nw.queries.TruncatedSum("x", -6.0, 9.0, ("x", "x^2"))
    return {
        "binomial": pair(nw.models.Bernoulli(), table[2], [[70_020.0, 30_003.0]], 10**5),
        "multinomial, 3 levels": pair(
            nw.models.Categorical(np.ones(3)), table[3], [[49_980.0, 30_011.0, 20_020.0]], 10**5
        ),
        "exponential": pair(nw.models.Exponential(4, 1), cut, [21_500.0], 10**5, nw.noise.Laplace(9.2)),
        "normal, variance unknown": pair(
            nw.models.Normal((0, 5), variance_prior=(2, 3)),
            both,
            [30_300.0, 124_500.0],
            20_000,
            nw.noise.Laplace(1000.0),
        ),
        "multinomial, 10 levels": pair(nw.models.Categorical(np.ones(10)), table[10], [[1e4] * 10], 10**5),
    }


@eqx.filter_jit
def run(kernel, states, keys, steps):
    """So many steps of every chain, and the means of the parameters."""

    def one(i, carry):
        states, total = carry
        states, _ = jax.vmap(kernel.step)(jax.vmap(lambda key: jax.random.fold_in(key, i))(keys), states)
        return states, jax.tree.map(jnp.add, total, states.theta)

    return jax.lax.fori_loop(0, steps, one, (states, jax.tree.map(jnp.zeros_like, states.theta)))


def tuned(engine, model, release, chains):
    """A kernel and its states after a tuning phase."""
    kernel = engine.build(model, release, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), chains)
    states = jax.jit(jax.vmap(lambda key: kernel.init(key, engine.start(kernel, key))))(keys)

    @jax.jit
    def tune(states):
        def one(i, states):
            states, info = jax.vmap(kernel.step)(jax.vmap(lambda key: jax.random.fold_in(key, i))(keys), states)
            return jax.vmap(kernel.adapt)(states, info)

        return jax.lax.fori_loop(0, 300, one, states)

    return kernel, tune(states), keys


def least_time(function, *arguments):
    """The shortest of five calls after a first one, in seconds."""
    jax.block_until_ready(function(*arguments))
    found = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        found.append(time.perf_counter() - began)
    return min(found)


def speed():
    """Cost of a chain's draw for 1, 64 and 1,000 vectorised chains, compiled programs only."""
    print(
        "| model | moves | chains | seconds for 10,000 draws | microseconds a chain and draw |\n|---|---|---|---|---|"
    )
    for name, (model, release) in cases().items():
        for moves in (0, None):
            engine = nw.engines.Sufficient(scheme="gibbs", moves=moves)
            for chains in (1, 64, 1000):
                kernel, states, keys = tuned(engine, model, release, chains)
                steps = {1: 5000, 64: 1000, 1000: 200}[chains]
                each = least_time(run, kernel, states, keys, jnp.asarray(steps)) / steps
                said = "none" if moves == 0 else "leap and walk"
                print(f"| {name} | {said} | {chains:,} | {1e4 * each:.3f} | {1e6 * each / chains:.2f} |", flush=True)


def profile():
    """Where a step's time goes for 1, 64 and 1,000 chains: each part alone, in microseconds a chain and draw."""
    model, release = cases()["multinomial, 3 levels"]
    engine = nw.engines.Sufficient()
    table = {}
    for chains in (1, 64, 1000):
        kernel, states, keys = tuned(engine, model, release, chains)
        steps = {1: 5000, 64: 1000, 1000: 200}[chains]

        def variances(state, kernel=kernel):
            return kernel.noise.variances(state.mixture)

        parts = {
            "a whole step": lambda key, state, kernel=kernel: kernel.step(key, state)[0].joint[0],
            "random numbers of a step, drawn alone": lambda key, _: jnp.sum(jax.random.normal(key, (40,))),
            "conjugate draw of theta": lambda key, s, kernel=kernel: kernel.law.update(key, s.theta, s.joint, kernel.n)[
                "p"
            ][0],
            "leap and walk": lambda key, s, k=kernel: k._moved(key, s.theta, s, variances(s))[0]["p"][0],
            "totals": lambda key, s, k=kernel: k._draw(key, k._picture(s.theta), variances(s)).joint[0],
            "mixture": lambda key, s, k=kernel: k._mixture(key, s.joint)[0],
        }
        for name, part in parts.items():

            @jax.jit
            def repeated(states, steps, part=part, keys=keys):
                def one(i, carry):
                    states, total = carry
                    found = jax.vmap(part)(jax.vmap(lambda key: jax.random.fold_in(key, i))(keys), states)
                    # what follows must wait for what was found, or it would be moved out of the loop
                    joint = states.joint + 0.0 * found[:, None]
                    return eqx.tree_at(lambda s: s.joint, states, joint), total + found

                return jax.lax.fori_loop(0, steps, one, (states, jnp.zeros(keys.shape[0])))[1]

            each = least_time(repeated, states, jnp.asarray(steps)) / steps / chains
            table.setdefault(name, []).append(f"{1e6 * each:.2f}")
    print("| part | 1 chain | 64 chains | 1,000 chains |\n|---|---|---|---|")
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(row) + " |")


def draws():
    """10,000 draws of one chain by nw.sample after compilation, tuning of 1,000 steps included, at any n."""
    print("| model | n | seconds |\n|---|---|---|")
    for n in (100, 10**5, 10**9):
        for name, size, cells in (("binomial", 2, (0.7, 0.3)), ("multinomial, 3 levels", 3, (0.5, 0.3, 0.2))):
            query = nw.queries.Counts(levels={"x": size}, tables=[("x",)])
            value = [[round(n * cell) + 3.0 * i for i, cell in enumerate(cells)]]
            release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), value)], n=n)
            model = nw.models.Bernoulli() if size == 2 else nw.models.Categorical(np.ones(size))
            settings = {"method": "sufficient", "draws": 10_000, "chains": 1, "progressbar": False}
            found = []
            for seed in range(4):
                began = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    nw.sample(model, release, random_seed=seed, **settings)
                found.append(time.perf_counter() - began)
            print(f"| {name} | {n:,} | {min(found[1:]):.2f} |", flush=True)


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else "distance"
    {"distance": distance, "speed": speed, "profile": profile, "draws": draws}[command]()
