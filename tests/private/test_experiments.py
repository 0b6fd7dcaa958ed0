"""The thesis's experiments by name, its discrepancy, and tuning without the records."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.private import HMC, Budget, MinibatchPenalty, Penalty, experiments, plan, sample, targets, tune


def test_table_5_1_is_in_the_library_with_every_tuned_sampler():
    assert len(experiments.NAMES) == 8
    shapes = {
        name: (experiments.experiment(name).target.size, experiments.experiment(name).n) for name in experiments.NAMES
    }
    assert shapes["gauss-30d"] == (30, 200_000)
    assert shapes["hard-2d"] == (2, 150_000)
    assert float(experiments.experiment("tempered-10d").target.temper) == pytest.approx(1000 / 200_000)
    assert experiments.algorithms("easy-2d") == list(experiments.ALGORITHMS)
    assert experiments.algorithms("circle") == ["dpps", "dppa", "hmc"]
    for name in experiments.NAMES:
        for algorithm in experiments.algorithms(name):
            experiments.tuned(algorithm, name).ready(experiments.experiment(name).target, 1000)
    with pytest.raises(ValueError, match="no settings"):
        experiments.tuned("barker", "hard-2d")
    with pytest.raises(ValueError, match="the experiments are"):
        experiments.experiment("banana")


@pytest.mark.parametrize("name", ["tempered-2d", "hard-gauss-2d"])
def test_reference_draws_have_the_moments_of_the_posterior_by_quadrature(name):
    """The unnormalised posterior, straight from prior and likelihood on a grid, tempered; in coordinates wide enough for all of it."""
    made = experiments.experiment(name)
    records = {key: value[:400] for key, value in made.records(jax.random.key(3)).items()}
    target = made.target
    reference = made.reference(jax.random.key(4), records, 4000)
    straight = target.straighten if isinstance(target, targets.Banana) else lambda theta: jnp.asarray(theta)
    bend = target.bend if isinstance(target, targets.Banana) else lambda u: u
    u = np.asarray(straight(reference))
    root = np.linalg.cholesky(np.cov(u.T))
    grid = np.linspace(-6, 6, 81)
    whitened = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    points = jnp.asarray(u.mean(axis=0) + whitened @ root.T)

    def log_density(point):
        theta = bend(point)
        return target.temper * jnp.sum(target.log_likelihoods(theta, records)) + target.log_prior(theta)

    density = np.asarray(jax.lax.map(log_density, points, batch_size=256))
    weight = np.exp(density - density.max())
    mean = weight @ whitened / weight.sum()
    square = weight @ whitened**2 / weight.sum()
    found = (u - u.mean(axis=0)) @ np.linalg.inv(root).T
    assert np.all(np.abs(mean - found.mean(axis=0)) < 4 / math.sqrt(4000))
    assert np.all(np.abs(square - (found**2).mean(axis=0)) < 4 * math.sqrt(2 / 4000))


def test_discrepancy_is_the_u_statistic_by_brute_force_and_tells_samples_apart():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=(40, 2)) + 1.0
    found = experiments.discrepancy(x, y, np.random.default_rng(2), subsample=30)
    again = np.random.default_rng(2)
    some, others = x[again.integers(60, size=30)], y[again.integers(40, size=30)]
    width = np.median(np.linalg.norm(some - others, axis=1))

    def kernel(a, b):
        return math.exp(-np.sum((a - b) ** 2) / (2 * width**2))

    within = sum(kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / (60 * 59)
    within += sum(kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / (40 * 39)
    between = sum(kernel(a, b) for a in x for b in y) / (60 * 40)
    assert found == pytest.approx(math.sqrt(abs(within - 2 * between)), rel=1e-10)
    same = experiments.discrepancy(rng.normal(size=(1000, 2)), rng.normal(size=(1000, 2)), np.random.default_rng(3))
    assert same < 0.06 < 0.2 < found


TARGET = targets.Gaussian(covariance=[[1.0, 0.5], [0.5, 1.0]], prior_variance=100.0)
SYNTHETIC = {"x": np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 1000)}


@pytest.mark.parametrize("method", [Penalty(components="guided"), HMC(leapfrog=3), MinibatchPenalty(batch=100)])
def test_tuning_fills_what_is_missing_from_synthetic_records_alone(method):
    tuned = tune(TARGET, method, SYNTHETIC, n=4000, clipped=0.05)
    assert 0.04 < tuned.clip_fraction < 0.06
    sd = np.sqrt(np.diag([[1, 0.5], [0.5, 1]]) / 4000)
    assert np.all(np.abs(tuned.posterior_sd / sd - 1) < 0.25)
    assert plan(tuned.method, Budget(6.0, 1e-5), n=4000).iterations >= 1
    tuned.method.ready(TARGET, 4000)


def test_a_tuned_run_on_other_records_has_the_noise_and_the_clipping_it_was_tuned_for():
    tuned = tune(TARGET, Penalty(), SYNTHETIC, n=4000)
    records = {"x": np.random.default_rng(2).multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 4000)}
    made = plan(tuned.method, Budget(200.0, 1e-5), n=4000, iterations=200)
    stats = sample(TARGET, records, made, testing=True, random_seed=1)["sample_stats"]
    spread = float((stats["noisy_ratio"] - stats["exact_ratio"]).std())
    assert 0.6 * tuned.sigma < spread < 1.4 * tuned.sigma
    assert 0.02 < float(stats["clip_fraction"].mean()) < 0.09


def test_prior_predictive_records_come_from_a_library_model():
    from noisewise.private.tune import prior_predictive

    model = nw.models.Bernoulli(a=2, b=2)
    theta, records = prior_predictive(jax.random.key(1), model.simulate, model.sample_prior, 50)
    assert set(theta) == {"p"}
    assert records["x"].shape == (50,)
