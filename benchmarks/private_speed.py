"""Iterations per second of the private samplers, as ratios measured in one run.

``python benchmarks/private_speed.py [--quick] [--records N ...] [--columns D ...] [--repeats R]``

Alternatives, same step, same records: a straightforward implementation (log likelihoods at both ends, clip, sum) in NumPy, and the
same lines in JAX, not compiled together: every operation is dispatched on its own. The alternatives take turns within every
repeat, and a figure is the median over repeats: on a busy machine only the ratios mean much.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from noisewise.private import HMC, MinibatchPenalty, Penalty, targets
from noisewise.private.clipping import clip_gradients, clip_ratios, unit_bits
from noisewise.private.mechanism import noisy
from noisewise.private.records import draw_batch, make_table
from noisewise.private.sample import CHUNK, advance, seeded_keys

Timed = dict[str, tuple[Callable[[], object], int]]
"""What to run by name, and how many iterations one call makes."""


def banana(n: int, d: int) -> tuple[targets.Banana, np.ndarray]:
    """The thesis's flat banana and its records."""
    variances = np.array([20.0, 2.5, *([1.0] * (d - 2))])
    centre = np.array([0.0, 3.0, *([0.0] * (d - 2))])
    records = centre + np.random.default_rng(0).normal(size=(n, d)) * np.sqrt(variances)
    return targets.Banana(a=20.0, variances=variances, prior_variance=1000.0), records


def start(d: int) -> np.ndarray:
    """The true parameters."""
    return np.array([0.0, 3.0, *([0.0] * (d - 2))])


def medians(timed: Timed, repeats: int) -> dict[str, float]:
    """Seconds per iteration of each: the median over repeats in which they take turns, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(repeats + 1):
        for name, (function, count) in timed.items():
            began = time.perf_counter()
            function()
            if repeat:
                times[name].append((time.perf_counter() - began) / count)
    return {name: float(np.median(values)) for name, values in times.items()}


def ours(method, target, records: np.ndarray, steps: int) -> Callable[[], object]:
    """The compiled run."""
    table = make_table({"x": records})
    method = method.ready(target, len(records))
    state = jax.vmap(method.init)(jnp.asarray(start(records.shape[1]))[None])
    data = np.zeros((CHUNK, 1, 2), np.uint32)
    data[:steps] = seeded_keys(0)(0, steps, 1)
    return lambda: jax.block_until_ready(
        advance(method, target, table, state, jnp.asarray(data), jnp.asarray(steps), False)[1]
    )


class Plain:
    """The same steps, straightforwardly, in NumPy or in JAX operation by operation; small draws are NumPy's in both."""

    def __init__(self, target: targets.Banana, x: np.ndarray, xp: Any) -> None:
        self.a, self.precision, self.x, self.xp = float(target.a), xp.asarray(target.precision), xp.asarray(x), xp
        self.rng = np.random.default_rng(1)

    def straighten(self, theta: np.ndarray) -> np.ndarray:
        u = theta.copy()
        u[1] += self.a * theta[0] ** 2
        return u

    def log_likelihoods(self, theta: np.ndarray, x: Any) -> Any:
        return -0.5 * self.xp.sum(self.precision * (x - self.straighten(theta)) ** 2, axis=1)

    def clipped(self, new: np.ndarray, theta: np.ndarray, x: Any, bound: float) -> Any:
        return self.xp.clip(self.log_likelihoods(new, x) - self.log_likelihoods(theta, x), -bound, bound)

    def log_prior(self, theta: np.ndarray) -> float:
        return -0.5 * float(np.sum(self.straighten(theta) ** 2)) / 1000

    def penalty(self, method: Penalty, steps: int) -> None:
        x, theta = self.x, start(self.x.shape[1])
        tau, clip, sd = float(method.noise), float(method.clip), float(method.proposal)
        for _ in range(steps):
            new = theta + sd * self.rng.normal(size=theta.shape)
            bound = clip * np.linalg.norm(new - theta)
            scale = tau * np.sqrt(len(x)) * 2 * bound
            total = float(self.xp.sum(self.clipped(new, theta, x, bound))) + scale * self.rng.normal()
            total += self.log_prior(new) - self.log_prior(theta)
            if np.log(self.rng.uniform()) < total - scale**2 / 2:
                theta = new

    def minibatch(self, method: MinibatchPenalty, steps: int) -> None:
        x, theta, batch = self.x, start(self.x.shape[1]), method.batch
        tau, clip, sd = float(method.noise), float(method.clip), float(method.proposal)
        for _ in range(steps):
            new = theta + sd * self.rng.normal(size=theta.shape)
            bound = clip * np.linalg.norm(new - theta)
            some = x[self.rng.choice(len(x), batch, replace=False)]
            terms = self.clipped(new, theta, some, bound) * (len(x) / batch)
            most = len(x) * bound / batch
            scale = np.sqrt(tau) * (2 * most + 2 * (1 - 1 / batch) * most**2)
            whole = float(self.xp.sum(terms))
            total = whole - 0.5 * (float(self.xp.sum(terms**2)) - whole**2 / batch) + scale * self.rng.normal()
            total += self.log_prior(new) - self.log_prior(theta)
            if np.log(self.rng.uniform()) < total - scale**2 / 2:
                theta = new

    def gradient(self, theta: np.ndarray, method: HMC) -> np.ndarray:
        g = self.precision * (self.x - self.straighten(theta))
        g = g + g[:, 1:2] * np.array([2 * self.a * theta[0], *([0.0] * (len(theta) - 1))])
        bound = float(method.gradient_clip)
        g = g * self.xp.minimum(1.0, bound / self.xp.linalg.norm(g, axis=1, keepdims=True))
        noise = 2 * float(method.gradient_noise) * np.sqrt(len(self.x)) * bound * self.rng.normal(size=theta.shape)
        return np.asarray(g.sum(axis=0)) + noise

    def hmc(self, method: HMC, steps: int) -> None:
        theta, stride = start(self.x.shape[1]), float(method.step_size)
        for _ in range(steps):
            new, momentum = theta.copy(), self.rng.normal(size=theta.shape)
            slope = self.gradient(new, method)
            for _ in range(method.leapfrog):
                momentum = momentum + 0.5 * stride * slope
                new = new + stride * momentum
                slope = self.gradient(new, method)
                momentum = momentum + 0.5 * stride * slope
            bound = float(method.clip) * np.linalg.norm(new - theta)
            scale = float(method.noise) * np.sqrt(len(self.x)) * 2 * bound
            ratio = float(self.xp.sum(self.clipped(new, theta, self.x, bound)))
            if np.log(self.rng.uniform()) < ratio + scale * self.rng.normal() - scale**2 / 2:
                theta = new


def parts(method, target, records: np.ndarray, times: int) -> Timed:
    """The parts of an iteration, each in a compiled loop of its own."""
    n, d = records.shape
    table, bits = make_table({"x": records}), unit_bits(n)
    here, bound = jnp.asarray(start(d)), jnp.asarray(0.02)
    gradients = method.leapfrog + 1 if isinstance(method, HMC) else 0

    def looped(part):
        compiled = eqx.filter_jit(
            lambda table, where: jax.lax.fori_loop(0, times, lambda i, at: at + 1e-30 * part(table, at, i), where)
        )
        return lambda: jax.block_until_ready(compiled(table, here))

    def ratios(table, where, i):
        if isinstance(method, MinibatchPenalty):
            rows = table.take(jnp.arange(method.batch) * (n // method.batch) + i)
            return jnp.sum(clip_ratios(target.log_ratios(where, where + 0.01, rows), bound, 20))
        return table.total(lambda part: clip_ratios(target.log_ratios(where, where + 0.01, part), bound, bits))

    def all_gradients(table, where, i):
        def one(j, total):
            return total + table.total(
                lambda part: clip_gradients(target.gradients(where + 1e-30 * total, part), bound, bits)
            )

        return jax.lax.fori_loop(0, gradients, one, jnp.zeros(d))

    def noise(table, where, i):
        key = jax.random.fold_in(jax.random.key(0), i)
        drawn = noisy(key, jnp.zeros(1), jnp.asarray(1e6)).value[0]
        return drawn + jnp.sum(noisy(key, jnp.zeros((gradients, d)), jnp.asarray(1e6)).value, axis=0)

    def batch(table, where, i):
        return jnp.sum(draw_batch(jax.random.fold_in(jax.random.key(0), i), n, method.batch)) * 1.0

    found: Timed = {"likelihood": (looped(ratios), times), "noise": (looped(noise), times)}
    if gradients:
        found["gradients"] = (looped(all_gradients), times)
    if isinstance(method, MinibatchPenalty):
        found["batch"] = (looped(batch), times)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, nargs="*", default=[100_000, 200_000])
    parser.add_argument("--columns", type=int, nargs="*", default=[2, 10, 30])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    cases = [(20_000, 2)] if chosen.quick else [(n, d) for d in chosen.columns for n in chosen.records]
    repeats = 2 if chosen.quick else chosen.repeats
    print(
        "| sampler | n | d | iterations/s | ns per record | x NumPy | x un-fused JAX |\n|---|---|---|---|---|---|---|"
    )
    shares = []
    for n, d in cases:
        target, x = banana(n, d)
        plain, apart = Plain(target, x, np), Plain(target, x, jnp)
        penalty = Penalty(0.1, clip=2.0, proposal=0.001)
        minibatch = MinibatchPenalty(0.7, batch=1000, clip=1.0, proposal=0.001)
        hmc = HMC(0.1, gradient_noise=0.4, clip=2.0, gradient_clip=2.0, step=0.0005, leapfrog=5)
        for label, method, name, many, few in (
            ("penalty", penalty, "penalty", 48, 4),
            ("minibatch penalty, b = 1000", minibatch, "minibatch", 200, 20),
            ("HMC, L = 5", hmc, "hmc", 6, 1),
        ):
            written = {"numpy": getattr(plain, name), "unfused": getattr(apart, name)}
            seconds = medians(
                {
                    "ours": (ours(method, target, x, many), many),
                    **{key: (partial(steps, method, few), few) for key, steps in written.items()},
                    **parts(method, target, x, max(4, many // 4)),
                },
                repeats,
            )
            whole = seconds["ours"]
            print(
                f"| {label} | {n} | {d} | {1 / whole:.0f} | {whole / n * 1e9:.1f} | {seconds['numpy'] / whole:.1f} | "
                f"{seconds['unfused'] / whole:.1f} |",
                flush=True,
            )
            shares.append((label, n, d, whole, seconds))
    print(
        "\nShares of an iteration (each part compiled alone; the rest is bookkeeping and what the parts do not share):\n"
    )
    print(
        "| sampler | n | d | likelihood | gradients | noise | drawing the batch | rest |\n|---|---|---|---|---|---|---|---|"
    )
    for label, n, d, whole, seconds in shares:
        found = [seconds.get(name, 0.0) / whole for name in ("likelihood", "gradients", "noise", "batch")]
        cells = " | ".join(f"{share:.0%}" if share else "" for share in found)
        print(f"| {label} | {n} | {d} | {cells} | {1 - sum(found):.0%} |")


if __name__ == "__main__":
    main()
