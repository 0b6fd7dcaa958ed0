"""Exponential-family forms agree with their models, and a family written in a few lines is a model like any other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import integrate

import noisewise as nw
from noisewise.engines.sufficient_laws import statistic_law

MODELS = {
    "bernoulli": (nw.models.Bernoulli(2, 3), {"p": 0.3}, [0.0, 1.0, 1.0]),
    "categorical": (nw.models.Categorical([1.0, 2.0, 3.0]), {"p": [0.2, 0.3, 0.5]}, [0.0, 2.0, 1.0]),
    "poisson": (nw.models.Poisson(2, 0.5), {"rate": 3.5}, [0.0, 4.0, 9.0]),
    "exponential": (nw.models.Exponential(2, 0.5), {"rate": 4.0}, [0.01, 0.2, 1.5]),
    "gamma": (nw.models.GammaKnownShape(2.5, shape=2, rate=0.5), {"rate": 4.0}, [0.01, 0.2, 1.5]),
    "normal": (nw.models.Normal((0, 2), sd=1.5), {"mean": 0.7}, [-1.0, 0.2, 3.0]),
    "normal, variance unknown": (
        nw.models.Normal((0, 2), variance_prior=(3, 2)),
        {"mean": 0.7, "variance": 2.0},
        [-1.0, 0.2, 3.0],
    ),
}


def conjugate(key, total, n):
    return {"rate": random.gamma(key, 4.0 + n) / (1.0 + total)}


WAITING = nw.models.ExponentialFamily(
    parameters={"rate": "positive"},
    natural=lambda theta: -theta["rate"],
    statistic=lambda x: x,
    log_partition=lambda eta: -jnp.log(-eta),
    update=conjugate,
    log_prior=lambda theta: 3 * jnp.log(theta["rate"]) - theta["rate"] - jnp.log(6.0),
    quantile=lambda theta, u: -jnp.log1p(-u) / theta["rate"],
    cdf=lambda x, eta: -jnp.expm1(eta * x),
    support=(0.0, float("inf")),
)


def theta_of(values):
    return {name: jnp.asarray(value) for name, value in values.items()}


@pytest.mark.parametrize("name", MODELS)
def test_forms_have_the_density_of_their_models(name):
    model, values, x = MODELS[name]
    form, theta = nw.models.exponential_form(model), theta_of(values)
    codes = jnp.asarray(x, dtype=int) if form.discrete else jnp.asarray(x)
    expected = model.log_likelihood(theta, {"x": codes})
    assert np.allclose(form.log_density(jnp.asarray(x), form.natural(theta)), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_forms_draw_what_the_model_draws_given_records(name):
    """Same key, same law: the total is all that the conjugate draw reads of the records."""
    model, values, x = MODELS[name]
    form, theta = nw.models.exponential_form(model), theta_of(values)
    codes = jnp.asarray(x, dtype=int) if form.discrete else jnp.asarray(x)
    total = jnp.sum(form.statistic(jnp.asarray(x)), axis=0)
    found = form.update(jax.random.key(1), theta, total, jnp.asarray(float(len(x))))
    expected = model.update(jax.random.key(1), theta, {"x": codes})
    for part in expected:
        assert np.allclose(found[part], expected[part], rtol=1e-10)


def test_moments_by_differentiation_are_the_known_ones():
    poisson = nw.models.exponential_form(nw.models.Poisson(1, 1))
    eta = poisson.natural({"rate": jnp.asarray(3.5)})
    assert float(poisson.mean(eta)[0]) == pytest.approx(3.5, rel=1e-14)
    assert float(poisson.covariance(eta)[0, 0]) == pytest.approx(3.5, rel=1e-14)
    normal = nw.models.exponential_form(MODELS["normal, variance unknown"][0])
    eta = normal.natural({"mean": jnp.asarray(0.7), "variance": jnp.asarray(2.0)})
    assert np.allclose(normal.mean(eta), [0.7, 2.49], rtol=1e-13)
    assert np.allclose(normal.covariance(eta), [[2.0, 2.8], [2.8, 2 * 4 + 4 * 0.49 * 2]], rtol=1e-12)


def test_a_family_in_a_few_lines_has_the_law_of_the_named_model():
    named = nw.models.exponential_form(nw.models.Exponential(4, 1))
    eta = jnp.asarray([-3.0])
    for a, b in ((0.1, 0.6), (0.0, 2.0)):
        low, high = jnp.asarray(a), jnp.asarray(b)
        for function in ("mean", "covariance"):
            assert np.allclose(getattr(WAITING.form, function)(eta), getattr(named, function)(eta), rtol=1e-13)
        assert float(WAITING.form.log_between(eta, low, high)) == pytest.approx(
            float(named.log_between(eta, low, high))
        )
        assert float(WAITING.form.log_above(eta, high)) == pytest.approx(float(named.log_above(eta, high)), rel=1e-12)
    theta = {"rate": jnp.asarray(3.0)}
    assert float(WAITING.log_prior(theta)) == pytest.approx(float(nw.models.Exponential(4, 1).log_prior(theta)))
    records = WAITING.simulate(jax.random.key(1), theta, 20)
    again = WAITING.transform(theta, WAITING.inverse(theta, records, jax.random.key(2)))
    assert np.allclose(again["x"], records["x"], rtol=1e-12)


def test_a_family_in_a_few_lines_samples_like_the_named_model():
    query = nw.queries.TruncatedSum("x", 0.00633, 0.9222)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(9.2), [215.0])], n=1000)
    means = [
        float(
            nw.sample(m, release, method="sufficient", draws=4000, random_seed=5, progressbar=False)
            .posterior["rate"]
            .mean()
        )
        for m in (WAITING, nw.models.Exponential(4, 1))
    ]
    assert means[0] == pytest.approx(means[1], rel=0.02)


def test_a_family_without_a_distribution_function_says_what_is_missing():
    import equinox as eqx

    bare = eqx.tree_at(lambda m: m, WAITING, WAITING)
    object.__setattr__(bare, "cdf", None)
    query = nw.queries.TruncatedSum("x", 0.1, 1.0)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [3.0])], n=10)
    with pytest.raises(ValueError, match="give a cdf"):
        nw.sample(bare, release, method="sufficient")
    with pytest.raises(ValueError, match="has no cdf"):
        bare.inverse({"rate": jnp.asarray(1.0)}, {"x": jnp.ones(2)}, jax.random.key(0))


def test_without_possible_totals_are_those_that_parameters_can_be_drawn_from():
    n = jnp.asarray(10.0)
    assert bool(WAITING.form.possible(jnp.asarray([3.0]), n))
    assert not bool(WAITING.form.possible(jnp.asarray([-3.0]), n))
    query = nw.queries.TruncatedSum("x", 0.0, 2.0)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [-4.0])], n=10)
    engine = nw.engines.Sufficient(scheme="gibbs")
    dt = nw.sample(WAITING, release, method=engine, random_seed=5, progressbar=False)
    assert np.all(np.isfinite(dt.posterior["rate"].values))
    assert np.all(dt.posterior["rate"].values > 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": {}}, "at least one parameter"),
        ({"natural": 3}, "natural"),
        ({"support": (1.0, 1.0)}, "increasing pair"),
        ({"support": "ab"}, "increasing pair"),
        ({"parameters": ["rate"]}, "at least one parameter"),
        ({"parameters": {"rate": "positiv"}}, "must be one of real, positive"),
        ({"discrete": "yes"}, "discrete must be"),
        ({"natural": lambda theta: theta["mean"]}, r"natural\(theta\) .* failed .*'mean'"),
        ({"update": lambda key, total, n: {"rate": np.random.default_rng(0).gamma(n)}}, r"update\(key.*jax.numpy"),
        ({"update": conjugate, "log_partition": lambda eta: -math.log(-eta)}, r"log_partition\(eta\) .*jax.numpy"),
        ({"update": conjugate, "log_partition": lambda eta: jnp.ones(2)}, "must give one number"),
        ({"update": conjugate, "cdf": lambda x: x}, r"cdf\(x, eta\) .* failed"),
    ],
)
def test_bad_families_are_refused_in_a_sentence(change, words):
    arguments = {
        "parameters": {"rate": "positive"},
        "natural": lambda theta: -theta["rate"],
        "statistic": lambda x: x,
        "log_partition": lambda eta: -jnp.log(-eta),
        "update": lambda key, total, n: {},
        "log_prior": lambda theta: jnp.zeros(()),
        "quantile": lambda theta, u: u,
    }
    with pytest.raises(ValueError, match=words):
        nw.models.ExponentialFamily(**(arguments | change))


def test_a_bound_beyond_the_support_cuts_nothing_there():
    """Density a x^(a - 1) on [0, 1], whose distribution function x^a is above one beyond it."""
    power = nw.models.ExponentialFamily(
        parameters={"a": "positive"},
        natural=lambda theta: theta["a"] - 1,
        statistic=jnp.log,
        log_partition=lambda eta: -jnp.log1p(eta),
        update=lambda key, total, n: {"a": jax.random.gamma(key, 2.0 + n) / (1.0 - total)},
        cdf=lambda x, eta: x ** (eta + 1),
        support=(0.0, 1.0),
    )
    query = nw.queries.TruncatedSum("x", 0.3, 2.0, "log x")
    law = statistic_law(power, nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [-40.0])], n=100))
    found = law.moments({"a": jnp.asarray(1.7)})
    first, second = (integrate.quad(lambda x, k=k: 1.7 * np.log(x) ** k * x**0.7, 0.3, 1)[0] for k in (1, 2))
    assert float(found.mean[1]) == pytest.approx(first, rel=1e-9)
    assert float(found.covariance[1, 1]) == pytest.approx(second - first**2, rel=1e-9)
    u = power.inverse({"a": jnp.asarray(1.7)}, {"x": jnp.asarray([0.0, 0.3, 1.0])}, jax.random.key(0))
    assert np.allclose(u, [0.0, 0.3**1.7, 1.0])


def test_models_without_a_form_say_so():
    assert nw.models.exponential_form(nw.models.NaiveBayes(classes=2, features=[2])) is None
