"""Iterations per second of the private samplers, as ratios measured in one run.

``python benchmarks/private_speed.py [--quick] [--records N ...] [--columns D ...]``

Alternatives, same step, same records: a straightforward NumPy implementation (log likelihoods at both ends, clip, sum), and JAX with every
operation dispatched on its own. Each figure is the best of several repeats; on a busy machine only the ratios mean much.
"""

from __future__ import annotations

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from noisewise.private import HMC, Penalty, targets
from noisewise.private.clipping import clip_gradients, clip_ratios, unit_bits
from noisewise.private.mechanism import noisy
from noisewise.private.records import make_table
from noisewise.private.sample import CHUNK, advance, seeded_keys


def banana(n: int, d: int) -> tuple[targets.Banana, np.ndarray]:
    """The thesis's flat banana and its records."""
    variances = np.array([20.0, 2.5, *([1.0] * (d - 2))])
    centre = np.array([0.0, 3.0, *([0.0] * (d - 2))])
    records = centre + np.random.default_rng(0).normal(size=(n, d)) * np.sqrt(variances)
    return targets.Banana(a=20.0, variances=variances, prior_variance=1000.0), records


def best(function, repeats: int) -> float:
    """The shortest of several runs, in seconds, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def ours(method, target, records: np.ndarray, steps: int, repeats: int, chains: int = 1) -> float:
    """Seconds per iteration and chain of the compiled run."""
    table = make_table({"x": records})
    method = method.ready(target, len(records))
    start = jnp.broadcast_to(jnp.zeros(records.shape[1]).at[1].set(3.0), (chains, records.shape[1]))
    state = jax.vmap(method.init)(start)
    data = np.zeros((CHUNK, chains, 2), np.uint32)
    data[:steps] = seeded_keys(0)(0, steps, chains)

    def go() -> None:
        jax.block_until_ready(advance(method, target, table, state, jnp.asarray(data), jnp.asarray(steps), False)[1])

    return best(go, repeats) / steps / chains


def numpy_penalty(target, x: np.ndarray, tau: float, clip: float, sd: float, steps: int, repeats: int) -> float:
    """Seconds per iteration of the penalty step in plain NumPy."""
    a, precision = float(target.a), np.asarray(target.precision)
    rng = np.random.default_rng(1)

    def straighten(theta: np.ndarray) -> np.ndarray:
        u = theta.copy()
        u[1] += a * theta[0] ** 2
        return u

    def log_likelihoods(theta: np.ndarray) -> np.ndarray:
        return -0.5 * np.sum(precision * (x - straighten(theta)) ** 2, axis=1)

    def go() -> None:
        theta = np.zeros(x.shape[1])
        theta[1] = 3.0
        for _ in range(steps):
            new = theta + sd * rng.normal(size=theta.shape)
            bound = clip * np.linalg.norm(new - theta)
            ratio = np.sum(np.clip(log_likelihoods(new) - log_likelihoods(theta), -bound, bound))
            scale = tau * np.sqrt(len(x)) * 2 * bound
            prior = -0.5 * (np.sum(straighten(new) ** 2) - np.sum(straighten(theta) ** 2)) / 1000
            if np.log(rng.uniform()) < ratio + scale * rng.normal() + prior - scale**2 / 2:
                theta = new

    return best(go, repeats) / steps


def numpy_hmc(target, x: np.ndarray, method: HMC, steps: int, repeats: int) -> float:
    """Seconds per iteration of the HMC step's gradients and ratio in plain NumPy."""
    a, precision = float(target.a), np.asarray(target.precision)
    rng = np.random.default_rng(1)
    clip, bound_g = float(method.clip), float(method.gradient_clip)
    tau, tau_g, stride = float(method.noise), float(method.gradient_noise), float(method.step_size)

    def straighten(theta: np.ndarray) -> np.ndarray:
        u = theta.copy()
        u[1] += a * theta[0] ** 2
        return u

    def gradient(theta: np.ndarray) -> np.ndarray:
        g = precision * (x - straighten(theta))
        g[:, 0] += 2 * a * theta[0] * g[:, 1]
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        g *= np.minimum(1.0, bound_g / norms)
        return g.sum(axis=0) + 2 * tau_g * np.sqrt(len(x)) * bound_g * rng.normal(size=theta.shape)

    def go() -> None:
        theta = np.zeros(x.shape[1])
        theta[1] = 3.0
        for _ in range(steps):
            new, momentum = theta.copy(), rng.normal(size=theta.shape)
            slope = gradient(new)
            for _ in range(method.leapfrog):
                momentum = momentum + 0.5 * stride * slope
                new = new + stride * momentum
                slope = gradient(new)
                momentum = momentum + 0.5 * stride * slope
            bound = clip * np.linalg.norm(new - theta)
            ends = [-0.5 * np.sum(precision * (x - straighten(at)) ** 2, axis=1) for at in (new, theta)]
            scale = tau * np.sqrt(len(x)) * 2 * bound
            if np.log(rng.uniform()) < np.sum(np.clip(ends[0] - ends[1], -bound, bound)) - scale**2 / 2:
                theta = new

    return best(go, repeats) / steps


def unfused(method, target, records: np.ndarray, repeats: int) -> float:
    """Seconds per iteration of our own step with every operation dispatched on its own."""
    method = method.ready(target, len(records))
    table = make_table({"x": records}, block=len(records))
    state = method.init(jnp.zeros(records.shape[1]).at[1].set(3.0))

    def go() -> None:
        jax.block_until_ready(method.step(jax.random.key(1), state, target, table)[0].theta)

    return best(go, repeats)


def shares(method: HMC, target, records: np.ndarray, repeats: int, times: int = 8) -> dict[str, float]:
    """Seconds of the parts of an HMC iteration, each in a compiled loop of its own: ratio, L + 1 gradients, their noise."""
    d = records.shape[1]
    table, bits = make_table({"x": records}), unit_bits(len(records))
    here = jnp.zeros(d).at[1].set(3.0)
    bound = jnp.asarray(0.02)

    def looped(part):
        def go(table, where):
            return jax.lax.fori_loop(0, times, lambda i, at: at + 1e-30 * part(table, at, i), where)

        compiled = eqx.filter_jit(go)
        return best(lambda: jax.block_until_ready(compiled(table, here)), repeats) / times

    def ratio(table, where, i):
        return table.total(lambda part: clip_ratios(target.log_ratios(where, where + 0.01, part), bound, bits))

    def gradient(table, where, i):
        return table.total(lambda part: clip_gradients(target.gradients(where, part), bound, bits))

    def noise(table, where, i):
        key = jax.random.fold_in(jax.random.key(0), i)
        return jnp.sum(noisy(key, jnp.zeros((method.leapfrog + 1, d)), jnp.asarray(1e6)).value, axis=0)

    return {"ratio": looped(ratio), "gradients": (method.leapfrog + 1) * looped(gradient), "noise": looped(noise)}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, nargs="*", default=[100_000, 200_000])
    parser.add_argument("--columns", type=int, nargs="*", default=[2, 10, 30])
    chosen = parser.parse_args()
    quick = chosen.quick
    repeats, steps = (2, 4) if quick else (5, 16)
    cases = [(20_000, 2)] if quick else [(n, d) for d in chosen.columns for n in chosen.records]
    print(
        "| sampler | n | d | iterations/s | ns per record | x NumPy | x un-fused JAX |\n|---|---|---|---|---|---|---|"
    )
    parts = []
    for n, d in cases:
        target, x = banana(n, d)
        penalty = Penalty(0.1, clip=2.0, proposal=0.001)
        hmc = HMC(0.1, gradient_noise=0.4, clip=2.0, gradient_clip=2.0, step=0.0005, leapfrog=5)
        rows = [
            ("penalty", penalty, numpy_penalty(target, x, 0.1, 2.0, 0.001, steps, repeats), steps * 4),
            ("HMC, L = 5", hmc, numpy_hmc(target, x, hmc, max(2, steps // 8), repeats), max(4, steps // 2)),
        ]
        for label, method, plain, count in rows:
            fused = ours(method, target, x, count, repeats)
            apart = unfused(method, target, x, repeats)
            print(
                f"| {label} | {n} | {d} | {1 / fused:.0f} | {fused / n * 1e9:.1f} | {plain / fused:.1f} | {apart / fused:.1f} |",
                flush=True,
            )
        whole = ours(hmc, target, x, max(4, steps // 2), repeats)
        parts.append((n, d, whole, shares(hmc, target, x, repeats)))
    print("\nShares of an HMC iteration (parts compiled alone):\n")
    print("| n | d | ratio | gradients | noise | rest |\n|---|---|---|---|---|---|")
    for n, d, whole, part in parts:
        rest = whole - sum(part.values())
        print(f"| {n} | {d} | " + " | ".join(f"{value / whole:.1%}" for value in [*part.values(), rest]) + " |")


if __name__ == "__main__":
    main()
