"""The regression law: moments against simulation-free formulas, conjugate draws against the model's own, and a posterior."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.sufficient_regression import regression_law

WIDE = nw.Column(-20, 30, rescale=(-1, 1))
MODEL = nw.models.LinearRegression(
    ("a", "b"),
    "y",
    variance=nw.models.InverseGamma(6, 10),
    covariate_mean=[0.9, -1.2],
    covariate_cov=[[1.0, 0.4], [0.4, 2.0]],
)
THETA = {"beta": jnp.asarray([0.5, 1.5, -1.0]), "variance": jnp.asarray(2.0)}


def release(value, n, scale=1.0):
    query = nw.queries.regression_moments({"a": WIDE, "b": WIDE}, {"y": WIDE})
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), value)], n=n)


def hermite_moments(law):
    """Mean and covariance of the released row by Gauss-Hermite quadrature, exact for polynomials of degree four."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    u = np.asarray(list(itertools.product(nodes, repeat=3)))
    mass = np.asarray([np.prod(w) for w in itertools.product(weights / weights.sum(), repeat=3)])
    records = MODEL.transform(THETA, {name: jnp.asarray(u[:, j]) for j, name in enumerate(MODEL.columns)})
    rows = np.asarray(release(np.zeros(9), 10).statistics(records))
    mean = mass @ rows
    return mean, (mass[:, None] * (rows - mean)).T @ (rows - mean)


def test_fourth_moments_of_the_covariates_match_gauss_hermite():
    law = regression_law(MODEL, release(np.zeros(9), 10))
    mean, covariance = jax.jit(lambda theta: law.moments(theta))(THETA)
    matrix = np.asarray(law.matrix)
    expected_mean, expected = hermite_moments(law)
    assert np.allclose(matrix @ np.asarray(mean), expected_mean, rtol=1e-12, atol=1e-14)
    assert np.allclose(matrix @ np.asarray(covariance) @ matrix.T, expected, rtol=1e-10, atol=1e-14)


def test_draws_given_totals_are_the_draws_given_records():
    law = regression_law(MODEL, release(np.zeros(9), 10))
    records = MODEL.simulate(jax.random.key(1), THETA, 40)
    total = jnp.sum(release(np.zeros(9), 10).statistics(records), axis=0)
    joint = jnp.linalg.solve(law.matrix, total)
    n = jnp.asarray(40.0)
    keys = jax.random.split(jax.random.key(2), 20)
    by_totals = jax.jit(jax.vmap(lambda k: law.update(k, THETA, joint, n)))(keys)
    by_records = jax.jit(jax.vmap(lambda k: MODEL.update(k, THETA, records)))(keys)
    for name in THETA:
        assert np.allclose(by_totals[name], by_records[name], rtol=1e-8)
    assert bool(law.possible(joint, n))
    # the sum of squares of the first column below what its sum implies
    assert not bool(law.possible(joint.at[3].set(0.5 * joint[0] ** 2 / 40), n))


def test_the_posterior_at_large_n_finds_the_truth_and_counts_the_noise():
    n = 10**6
    law = regression_law(MODEL, release(np.zeros(9), n))
    mean = np.asarray(law.matrix @ law.moments(THETA).mean)
    dt = nw.sample(
        MODEL,
        release(n * mean, n, 50.0),
        method="sufficient",
        random_seed=2,
        progressbar=False,
    )
    beta = dt.posterior["beta"].values.reshape(-1, 3)
    assert np.all(np.abs(beta.mean(axis=0) - np.asarray(THETA["beta"])) < 4 * beta.std(axis=0))
    # sampling alone would give sqrt(variance / n) / sd, about 0.0014 for the first covariate
    assert 0.0014 < beta.std(axis=0)[1] < 0.05


def test_other_moments_are_refused_with_the_reason():
    query = nw.queries.Moments({"a": WIDE, "b": WIDE, "y": WIDE}, [{"a": 3}])
    cubic = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [0.0])], n=10)
    with pytest.raises(ValueError, match="degree one or two"):
        nw.sample(MODEL, cubic, method="sufficient")
