"""Moments of truncated families against quadrature and finite differences, and the two central limit theorems."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.sufficient_laws import statistic_law
from noisewise.engines.truncation import piece
from noisewise.models.exponential_family import exponential_form

CASES = {
    "exponential": (nw.models.Exponential(2, 1), {"rate": 4.0}, (0.05, 0.6)),
    "exponential tail": (nw.models.Exponential(2, 1), {"rate": 4.0}, (10.0, 12.0)),
    "poisson": (nw.models.Poisson(2, 1), {"rate": 3.5}, (1.0, 5.0)),
    "gamma": (nw.models.GammaKnownShape(2.5, shape=2, rate=1), {"rate": 2.0}, (0.4, 2.5)),
    "gamma from its edge": (nw.models.GammaKnownShape(2.5, shape=2, rate=1), {"rate": 2.0}, (0.0, 2.5)),
    "gamma from beyond": (nw.models.GammaKnownShape(2.5, shape=2, rate=1), {"rate": 2.0}, (-1.0, 2.5)),
    "exponential from its edge": (nw.models.Exponential(2, 1), {"rate": 4.0}, (0.0, 0.6)),
    "poisson from its edge": (nw.models.Poisson(2, 1), {"rate": 3.5}, (0.0, 5.0)),
    "normal": (nw.models.Normal((0, 3), sd=1.5), {"mean": 0.7}, (-1.0, 2.0)),
    "normal tail": (nw.models.Normal((0, 3), sd=1.0), {"mean": 0.0}, (6.0, 7.0)),
    "normal, variance unknown": (
        nw.models.Normal((0, 3), variance_prior=(2, 1)),
        {"mean": 0.7, "variance": 2.0},
        (-1.0, 2.5),
    ),
}


def theta_of(values):
    return {name: jnp.asarray(value) for name, value in values.items()}


def points(form, low, high):
    """Nodes and weights of the counting measure, or of Gauss-Legendre quadrature."""
    if form.discrete:
        x = np.arange(math.ceil(low), math.floor(high) + 1.0)
        return x, np.ones_like(x)
    low = max(low, form.support[0])
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2


@pytest.mark.parametrize("case", CASES)
def test_centre_moments_match_quadrature(case):
    model, values, (low, high) = CASES[case]
    form = exponential_form(model)
    eta = form.natural(theta_of(values))
    x, weights = points(form, low, high)
    mass = weights * np.exp(np.asarray(form.log_density(jnp.asarray(x), eta)))
    t = np.asarray(form.statistic(jnp.asarray(x))) - np.asarray(form.mean(eta))
    found = jax.jit(
        lambda eta: piece(lambda e: form.log_between(e, jnp.asarray(low), jnp.asarray(high)), eta, form.covariance(eta))
    )(eta)
    assert float(found.probability) == pytest.approx(mass.sum(), rel=1e-9)
    assert np.allclose(found.first, mass @ t, rtol=1e-7, atol=1e-12)
    assert np.allclose(found.second, (mass[:, None] * t).T @ t, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_log_probabilities_match_finite_differences(case):
    model, values, (low, high) = CASES[case]
    form = exponential_form(model)
    eta = np.asarray(form.natural(theta_of(values)))
    functions = [
        lambda e: form.log_between(e, jnp.asarray(low), jnp.asarray(high)),
        lambda e: form.log_below(e, jnp.asarray(low)),
        lambda e: form.log_above(e, jnp.asarray(high)),
    ]
    everything = jax.jit(
        lambda e: [(function(e), jax.grad(function)(e), jax.hessian(function)(e)) for function in functions]
    )
    here = everything(jnp.asarray(eta))
    for i in range(eta.size):
        step = 1e-5 * max(1.0, abs(eta[i])) * np.eye(eta.size)[i]
        up, down = everything(jnp.asarray(eta + step)), everything(jnp.asarray(eta - step))
        for (_, gradient, hessian), (value, above, _), (other, below, _) in zip(here, up, down, strict=True):
            assert float(gradient[i]) == pytest.approx(float(value - other) / (2 * step[i]), rel=1e-5, abs=1e-6)
            assert np.allclose(hessian[i], (above - below) / (2 * step[i]), rtol=1e-5, atol=1e-5)


def test_the_three_pieces_have_probability_one():
    for model, values, (low, high) in CASES.values():
        form = exponential_form(model)
        eta = form.natural(theta_of(values))
        logs = (
            form.log_below(eta, jnp.asarray(low)),
            form.log_between(eta, jnp.asarray(low), jnp.asarray(high)),
            form.log_above(eta, jnp.asarray(high)),
        )
        assert float(sum(jnp.exp(value) for value in logs)) == pytest.approx(1.0, abs=1e-12)


def test_far_tails_keep_their_digits():
    form = exponential_form(nw.models.Normal((0, 3), sd=1.0))
    found = float(form.log_between(jnp.zeros(1), jnp.asarray(30.0), jnp.asarray(31.0)))
    with mpmath.workdps(40):
        exact = mpmath.log(mpmath.ncdf(-30) - mpmath.ncdf(-31))
    assert found == pytest.approx(float(exact), rel=1e-12)
    thin = exponential_form(nw.models.Exponential(2, 1))
    value = float(thin.log_between(jnp.asarray([-1e-9]), jnp.asarray(0.0), jnp.asarray(1e-3)))
    assert value == pytest.approx(math.log(-math.expm1(-1e-12)), rel=1e-12)


def truncated(model, low, high, statistics="x"):
    query = nw.queries.TruncatedSum(model.columns[0], low, high, statistics)
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), np.zeros(query.size))], n=100)


def clamped(model, low, high, power):
    query = nw.queries.Moments({"x": nw.Column(low, high, rescale=(-1, 1))}, [{"x": k + 1} for k in range(power)])
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), np.zeros(power))], n=100)


RELEASES = {
    "truncated exponential": (CASES["exponential"], lambda m, a, b: truncated(m, a, b)),
    "truncated exponential, counted": (CASES["exponential"], lambda m, a, b: truncated(m, a, b, ("1", "x"))),
    "truncated poisson": (CASES["poisson"], lambda m, a, b: truncated(m, a, b)),
    "truncated normal": (CASES["normal, variance unknown"], lambda m, a, b: truncated(m, a, b, ("x", "x^2"))),
    "clamped normal": (CASES["normal"], lambda m, a, b: clamped(m, a, b, 1)),
    "clamped normal, variance unknown": (CASES["normal, variance unknown"], lambda m, a, b: clamped(m, a, b, 2)),
    "clamped gamma": (CASES["gamma"], lambda m, a, b: clamped(m, a, b, 1)),
}


@pytest.mark.parametrize("name", RELEASES)
def test_joint_moments_of_statistic_and_released_row_match_quadrature(name):
    (model, values, (low, high)), release_of = RELEASES[name]
    release, form, theta = release_of(model, low, high), exponential_form(model), theta_of(values)
    law = statistic_law(model, release)
    eta = form.natural(theta)
    mean, covariance = map(np.asarray, jax.jit(lambda theta: law.moments(theta))(theta))
    far_low, far_high = (0.0, 40.0) if form.support[0] == 0 else (-20.0, 22.0)
    pieces = [(far_low, low), (low, high), (high, far_high)]
    if form.discrete:
        pieces = [(0.0, low - 1), (low, high), (high + 1, 80.0)]
    x, weights = map(np.concatenate, zip(*(points(form, *part) for part in pieces), strict=True))
    mass = weights * np.exp(np.asarray(form.log_density(jnp.asarray(x), eta)))
    assert mass.sum() == pytest.approx(1.0, abs=1e-9)
    rows = np.concatenate([form.statistic(jnp.asarray(x)), release.statistics({"x": jnp.asarray(x)})], axis=1)
    expected = mass @ rows
    centred = rows - expected
    assert np.allclose(mean, expected, rtol=1e-7, atol=1e-9)
    assert np.allclose(covariance, (mass[:, None] * centred).T @ centred, rtol=1e-6, atol=1e-8)


def test_the_independent_theorem_gives_the_statistic_too_much_variance():
    model, values, (low, high) = CASES["exponential"]
    release, theta = truncated(model, low, high), theta_of(values)
    joint = statistic_law(model, release).moments(theta)
    apart = statistic_law(model, release, clt="independent").moments(theta)
    assert np.allclose(joint.mean, apart.mean, rtol=1e-10)
    assert float(joint.covariance[1, 1]) == pytest.approx(float(apart.covariance[1, 1]), rel=1e-10)
    # the exact variance of a record is 1/rate^2, which the joint theorem keeps
    assert float(joint.covariance[0, 0]) == pytest.approx(1 / 16, rel=1e-12)
    assert float(apart.covariance[0, 0]) > 1.2 / 16


@pytest.mark.parametrize(
    ("model", "release", "reason"),
    [
        (nw.models.Exponential(2, 1), truncated(nw.models.Exponential(2, 1), 0.1, 1.0, "log x"), "linear function"),
        (
            nw.models.Exponential(2, 1),
            truncated(nw.models.Exponential(2, 1), -3.0, -1.0),
            "nothing of the model's support",
        ),
        (nw.models.Poisson(2, 1), truncated(nw.models.Poisson(2, 1), 0.2, 0.8), "nothing of the model's support"),
        (nw.models.Normal((0, 1)), clamped(nw.models.Normal((0, 1)), -1, 1, 2), "linear function"),
    ],
)
def test_pairs_without_a_law_are_refused_with_the_reason(model, release, reason):
    assert reason in statistic_law(model, release)
    with pytest.raises(ValueError, match=reason):
        nw.sample(model, release, method="sufficient")


def test_measurements_with_different_bounds_are_refused():
    parts = [truncated(nw.models.Exponential(2, 1), 0.1, b).measurements[0] for b in (1.0, 2.0)]
    assert "different bounds" in statistic_law(nw.models.Exponential(2, 1), nw.Release(parts, n=10))


@pytest.mark.parametrize("model", ["library", "own"])
def test_a_clamp_at_the_edge_of_a_support_has_a_posterior(model):
    """At zero the incomplete gamma function has a derivative that is computed as NaN, and that once was the whole posterior."""
    from jax.scipy.special import gammainc

    if model == "library":
        gamma = nw.models.GammaKnownShape(2.5, shape=3, rate=2)
    else:
        gamma = nw.models.ExponentialFamily(
            parameters={"rate": "positive"},
            natural=lambda theta: -theta["rate"],
            statistic=lambda x: x,
            log_partition=lambda eta: -2.5 * jnp.log(-eta),
            log_base=lambda x: 1.5 * jnp.log(x) - math.lgamma(2.5),
            update=lambda key, total, n: {"rate": jax.random.gamma(key, 3 + 2.5 * n) / (2 + total)},
            log_prior=lambda theta: 2 * jnp.log(theta["rate"]) - 2 * theta["rate"],
            cdf=lambda x, eta: gammainc(2.5, -eta * x),
            support=(0.0, math.inf),
        )
    query = nw.queries.Moments({gamma.columns[0]: nw.Column(0, 4)}, [{gamma.columns[0]: 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(8.0), [500.0])], n=400)
    dt = nw.sample(gamma, release, method="sufficient", draws=1000, random_seed=1, progressbar=False)
    # mean 1.25 of records that hardly reach the clamp
    assert float(dt.posterior["rate"].mean()) == pytest.approx(2.0, abs=0.1)
