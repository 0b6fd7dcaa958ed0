"""The surrogate, where the normal picture is exact: a normal mean, a normal sum, Gaussian noise."""

import jax
import jax.numpy as jnp
import numpy as np

import noisewise as nw
from noisewise.engines.surrogate import MOST_RECORDS, fit_surrogate

QUERY = nw.queries.Moments({"x": nw.Column(-1000, 1000)}, [{"x": 1}])
MODEL = nw.models.Normal(mean_prior=(1.0, 2.0), sd=1.5)


def fit(value: float, scale: float, n: int):
    release = nw.Release([nw.Measurement(QUERY, nw.noise.Gaussian(scale), [value])], n=n)
    return COMPILED(jax.random.key(4), MODEL, release, jnp.asarray(float(n)))


COMPILED = jax.jit(lambda key, model, release, n: fit_surrogate(key, model, release, n, records=MOST_RECORDS))


def closed_form(value: float, scale: float, n: int) -> tuple[float, float]:
    """Mean and variance of the mean given a noisy sum, by conjugacy."""
    spread = n * 1.5**2 + scale**2
    precision = 1 / 2.0**2 + n**2 / spread
    return (1.0 / 2.0**2 + n * value / spread) / precision, 1 / precision


def test_the_surrogate_is_near_the_posterior():
    """From vague to sharp noise; the spread may be too wide but not too narrow."""
    for value, scale in ((300.0, 400.0), (300.0, 30.0), (300.0, 5.0)):
        mean, variance = closed_form(value, scale, 200)
        found = fit(value, scale, 200)
        assert abs(float(found.mean[0]) - mean) < np.sqrt(variance) + 0.15
        assert 0.6 * variance < float(found.covariance[0, 0]) < 4 * variance


def test_where_the_annealing_has_not_arrived_its_spread_says_so():
    """A sharp posterior 2.7 prior standard deviations out: starts must be spread wide enough to reach it."""
    mean, _ = closed_form(-900.0, 5.0, 200)
    found = fit(-900.0, 5.0, 200)
    assert abs(float(found.mean[0]) - mean) < 2 * np.sqrt(float(found.covariance[0, 0]))


def test_a_likelihood_with_the_wrong_sign_is_seen_to_be_far_off():
    mean, variance = closed_form(-300.0, 5.0, 200)
    found = fit(300.0, 5.0, 200)
    assert abs(float(found.mean[0]) - mean) > 10 * np.sqrt(variance)
