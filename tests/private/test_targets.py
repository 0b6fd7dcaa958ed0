"""The targets by name: ratios and gradients in closed form, Lipschitz bounds, library models, and the circle's posterior."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import noisewise as nw
from noisewise.private import Budget, Penalty, plan, sample, targets

ALL_TARGETS = {
    "gaussian": (targets.Gaussian(covariance=[[1.0, 0.9], [0.9, 1.0]], prior_variance=4.0), "x"),
    "banana": (targets.Banana(a=2.0, b=0.3, m=0.1, variances=[2.0, 0.5], prior_variance=4.0), "x"),
    "circle": (targets.Circle(a=0.1), "r"),
    "logistic": (targets.LogisticRegression(predictors=2, prior_sd=2.0, bound=1.5), "xy"),
    "poisson": (
        targets.PoissonRegression(predictors=2, prior_sd=2.0, bound=1.5, largest=12.0, predictor_bound=1.0),
        "xk",
    ),
}


def records_for(kind, n=40):
    rng = np.random.default_rng(9)
    if kind == "r":
        return {"r": rng.normal(2, 1, n)}
    x = rng.normal(size=(n, 2))
    if kind == "x":
        return {"x": x}
    x *= 1.5 / np.maximum(1.5, np.linalg.norm(x, axis=1, keepdims=True))
    y = rng.integers(0, 2, n) if kind == "xy" else rng.integers(0, 13, n)
    return {"x": x, "y": y.astype(float)}


@pytest.mark.parametrize("name", ALL_TARGETS)
def test_closed_form_ratios_and_gradients_match_the_likelihood(name):
    target, kind = ALL_TARGETS[name]
    records = {k: jnp.asarray(v) for k, v in records_for(kind).items()}
    theta, new = jnp.array([0.4, -0.3]), jnp.array([0.1, 0.5])
    difference = target.log_likelihoods(new, records) - target.log_likelihoods(theta, records)
    assert np.allclose(target.log_ratios(theta, new, records), difference, rtol=1e-9, atol=1e-11)
    automatic = targets.Target.gradients(target, theta, records)
    assert np.allclose(target.gradients(theta, records), automatic, rtol=1e-9, atol=1e-11)
    assert np.allclose(target.vector(target.named(theta)), theta)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_stated_lipschitz_bounds_hold_by_brute_force_and_are_nearly_attained(name):
    target, kind = ALL_TARGETS[name]
    bound, rng = float(target.lipschitz), np.random.default_rng(11)
    slopes = []
    for _ in range(200):
        records = records_for(kind, 60)
        theta = rng.normal(size=2) * 2
        new = theta + rng.normal(size=2) * 10.0 ** rng.uniform(-4, 1)
        slopes.append(
            np.max(np.abs(target.log_ratios(jnp.asarray(theta), jnp.asarray(new), records)))
            / np.linalg.norm(new - theta)
        )
    assert 0.5 * bound < max(slopes) <= bound * (1 + 1e-9)


def test_where_the_model_gives_the_bound_no_ratio_is_clipped():
    target, kind = ALL_TARGETS["logistic"]
    made = plan(Penalty(noise=1.0, proposal=0.3), Budget(epsilon=20.0, delta=1e-5), n=40, iterations=40)
    tree = sample(target, records_for(kind), made, testing=True, random_seed=1)
    assert float(tree["sample_stats"]["clip_fraction"].max()) == 0
    assert set(tree["posterior"].data_vars) == {"beta"}
    assert tree.attrs["noisewise_exact"] == 1


def test_a_library_model_is_a_target():
    model = nw.models.Bernoulli(a=2, b=3) if hasattr(nw.models, "Bernoulli") else None
    assert model is not None
    target = targets.as_target(model)
    x = jnp.array([1.0, 0.0, 1.0])
    free = jnp.array([0.3])
    exact = x * np.log(expit(0.3)) + (1 - x) * np.log(1 - expit(0.3))
    found = target.log_ratios(jnp.zeros(1), free, {"x": x})
    assert np.allclose(found, exact - np.log(0.5))
    assert float(target.named(free)["p"]) == pytest.approx(expit(0.3))
    # Beta(2, 3) on the logit scale, up to a constant
    log_prior = [float(target.log_prior(jnp.array([value]))) for value in (0.0, 0.3)]
    wanted = [2 * math.log(expit(v)) + 3 * math.log(1 - expit(v)) for v in (0.0, 0.3)]
    assert log_prior[1] - log_prior[0] == pytest.approx(wanted[1] - wanted[0])


def test_a_library_model_of_levels_takes_whole_numbers_and_no_others():
    model = nw.models.Categorical([1.0, 2.0, 3.0])
    target = targets.FromModel(model, temper=0.5)
    free = jnp.array([0.3, -0.2])
    probabilities = np.asarray(target.named(free)["p"])
    found = target.log_ratios(jnp.zeros(2), free, {"x": jnp.array([0.0, 2.0, 1.0])})
    start = np.asarray(target.named(jnp.zeros(2))["p"])
    assert np.allclose(found, np.log(probabilities / start)[[0, 2, 1]])
    n = 300
    levels = np.random.default_rng(1).integers(0, 3, n)
    method, budget = Penalty(noise=1.0, clip=2.0, proposal=0.1), Budget(epsilon=4.0, delta=1e-5)
    tree = sample(target, {"x": levels}, plan(method, budget, n=n, iterations=10))
    assert np.allclose(tree["posterior"]["p"].sum("p_dim_0"), 1)
    other = plan(method, Budget(epsilon=4.0, delta=1e-5), n=n)
    with pytest.raises(ValueError, match="whole numbers"):
        sample(model, {"x": levels + 0.5}, other)


def test_circle_posterior_draws_match_quadrature():
    target = targets.Circle(a=0.02)
    r = np.random.default_rng(3).normal(1.0, 0.5, 12)
    import jax

    draws = np.asarray(target.sample_posterior(jax.random.key(1), {"r": r}, 20_000))
    radius = np.linspace(0, 8, 40_001)
    weight = radius * np.exp(-0.02 * np.sum((radius[:, None] ** 2 - r**2) ** 2, axis=1))
    mean = np.sum(weight * radius**2) / np.sum(weight)
    squares = np.sum(draws**2, axis=1)
    assert abs(squares.mean() - mean) < 4 * squares.std() / math.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0)) < 4 * draws.std(axis=0) / math.sqrt(len(draws)))
