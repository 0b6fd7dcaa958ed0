"""Attacks on small runs: an attacker who knows every record but one never beats the stated guarantee, and beats a broken one."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from noisewise.private import HMC, MinibatchPenalty, Penalty, targets
from noisewise.private.accounting import gaussian_delta
from noisewise.private.hmc import private_gradient
from noisewise.private.ledger import BatchGaussianStep, repeated, spent_delta
from noisewise.private.records import make_table
from noisewise.private.sample import run, seeded_keys

RUNS, EPSILON, N = 6000, 0.5, 20
TARGET = targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)


def attack(plus, minus, stated, broken):
    """The gain P(S | one) - e^eps P(S | other) over thresholds, each against the stated delta; how far it beats the broken one."""
    surplus = []
    for threshold in np.linspace(-2, 3, 41):
        hit, miss = np.mean(plus > threshold), np.mean(minus > threshold)
        error = math.sqrt((hit * (1 - hit) + math.exp(2 * EPSILON) * miss * (1 - miss)) / len(plus))
        gain = hit - math.exp(EPSILON) * miss
        assert gain < stated + 4 * error
        surplus.append((gain - broken) / max(error, 1e-12))
    at_best = np.mean(plus > EPSILON) - math.exp(EPSILON) * np.mean(minus > EPSILON)
    return max(surplus), at_best


def seen_of(method, others, own, iterations, seed):
    """Steps (run, iteration), what was seen of them, from records at ``others`` but for one at ``own``."""
    records = {"x": np.full((N, 1), float(others))}
    records["x"][0] = own
    start = jnp.zeros((RUNS, 1))
    draws, seen = run(
        method.ready(TARGET, N), TARGET, make_table(records), start, iterations, seeded_keys(seed), probe=True
    )
    before = np.concatenate([np.zeros((RUNS, 1)), draws[:, :-1, 0]], axis=1)
    return before, seen["proposal"][..., 0], seen


def test_an_attack_on_ratios_stays_below_the_guarantee_and_beats_half_the_sensitivity():
    """The unknown record is clipped at its bound either way, all others are zero; the attacker's arithmetic is its own."""
    noise, iterations = 0.6, 12

    def losses(own, seed):
        before, after, seen = seen_of(Penalty(noise, clip=1.0, proposal=0.3), 0.0, own, iterations, seed)
        bound = np.abs(after - before)
        others = (N - 1) * np.clip((after - before) * (0 - 0.5 * (after + before)), -bound, bound)
        residual = (seen["noisy_ratio"] - others) * np.sign(after - before)
        return np.sum(residual * 2 * bound / (2 * noise * math.sqrt(N) * bound) ** 2, axis=1)

    mu = iterations / (2 * noise**2 * N)
    stated, broken = gaussian_delta(EPSILON, mu), gaussian_delta(EPSILON, mu / 4)
    surplus, at_best = attack(losses(1000.0, 1), losses(-1000.0, 2), stated, broken)
    assert surplus > 6
    assert at_best == pytest.approx(stated, abs=0.03)  # the tight bound is tight


def test_an_attack_on_batches_stays_below_the_guarantee_and_beats_half_the_sensitivity():
    """All others are clipped at one bound and the unknown record at it or at the other: the substitution that moves the
    statistic most. The attacker does not know the batch and weighs both cases."""
    tau, batch, clip, iterations = 0.8, 5, 0.3, 8
    q = batch / N
    method = MinibatchPenalty(tau, batch=batch, clip=clip, proposal=0.3)

    def losses(own, seed):
        before, after, seen = seen_of(method, 1e6, own, iterations, seed)
        step = after - before
        most = N * clip * np.abs(step) / batch
        prior = -0.5 * (after**2 - before**2) / 100
        sd = math.sqrt(tau) * (2 * most + 2 * (1 - 1 / batch) * most**2)
        released = seen["log_ratio"] - prior
        same = np.sign(step) * batch * most
        mixed = np.sign(step) * (batch - 2) * most - 0.5 * most**2 * (batch - (batch - 2) ** 2 / batch)
        alike, unlike = norm.logpdf(released, same, sd), norm.logpdf(released, mixed, sd)
        return np.sum(np.logaddexp(math.log(q) + unlike, math.log1p(-q) + alike) - alike, axis=1)

    far, near = losses(-1e6, 3), losses(1e6, 4)

    def delta(sensitivity):
        step = BatchGaussianStep(sensitivity, math.sqrt(tau), batch, N)
        return spent_delta(repeated([step], iterations), EPSILON, "pld_without_replacement")

    surplus, at_best = attack(far, near, delta(1.0), delta(0.5))
    assert surplus > 4
    assert at_best > 0.5 * delta(1.0)
    conservative = [BatchGaussianStep(1.0, math.sqrt(tau), batch, N, iterations)]
    assert spent_delta(conservative, EPSILON, "pld") > delta(1.0)


def test_an_attack_on_gradients_stays_below_the_guarantee_and_beats_half_the_sensitivity():
    noise, releases = 1.2, 6
    target = targets.Gaussian(covariance=np.eye(2), prior_variance=100.0)
    method = HMC(1.0, gradient_noise=noise, clip=1.0, gradient_clip=0.7, step=0.1).ready(target, N)
    theta = jnp.array([0.1, -0.2])

    def losses(own, seed):
        records = {"x": np.zeros((N, 2))}
        records["x"][0] = own
        table = make_table(records)
        keys = jax.random.split(jax.random.key(seed), (RUNS, releases))
        released = jax.jit(jax.vmap(jax.vmap(lambda key: private_gradient(key, theta, target, table, method)[0])))(keys)
        known = (
            -np.asarray(theta) * (N - 1) - np.asarray(theta) / 100
        )  # the others' gradients, all within the bound, and the prior's
        along = (np.asarray(released) - known) @ np.array([0.6, 0.8])
        return np.sum(along * 2 * 0.7 / (2 * noise * math.sqrt(N) * 0.7) ** 2, axis=1)

    mu = releases / (2 * noise**2 * N)
    stated, broken = gaussian_delta(EPSILON, mu), gaussian_delta(EPSILON, mu / 4)
    surplus, at_best = attack(losses([600.0, 800.0], 5), losses([-600.0, -800.0], 6), stated, broken)
    assert surplus > 6
    assert at_best == pytest.approx(stated, abs=0.03)
