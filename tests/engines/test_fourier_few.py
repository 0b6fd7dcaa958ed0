"""Released sums of which few records lie between their bounds, where a Fourier integral falls slowly or not at all."""

import jax
import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.engines.fourier import Fourier
from noisewise.engines.fourier_density import log_density
from noisewise.engines.fourier_few import few_log_density
from noisewise.engines.fourier_laws import problem

KEY = jax.random.key(0)
NODES, RULE = np.polynomial.legendre.leggauss(48)
NODES_LONG, RULE_LONG = np.polynomial.legendre.leggauss(400)


def released(noise, value, n, column):
    return nw.Release([nw.Measurement(nw.queries.Moments({"x": column}, [{"x": 1}]), noise, [value])], n=n)


def convolved(law, low, high, places, scale, records):
    """The density of a sum of clamped records with Laplace noise, by quadrature split at every kink."""
    places = np.atleast_1d(places)
    if records == 0:
        return np.exp(-np.abs(places) / scale) / (2 * scale)
    found = law.cdf(low) * convolved(law, low, high, places - low, scale, records - 1)
    found += law.sf(high) * convolved(law, low, high, places - high, scale, records - 1)
    kinks = places[:, None] - [j * low + (records - 1 - j) * high for j in range(records)]
    edges = np.linspace(low, high, 7) + np.zeros((places.size, 1))
    edges = np.sort(np.concatenate([edges, np.clip(kinks, low, high)], axis=1), axis=1)
    half = 0.5 * np.diff(edges, axis=1)[..., None]
    x, weight = edges[:, :-1, None] + half * (NODES + 1), half * RULE
    rest = convolved(law, low, high, (places[:, None, None] - x).ravel(), scale, records - 1).reshape(x.shape)
    return found + np.sum(weight * law.pdf(x) * rest, axis=(1, 2))


NORMAL = ("mean", nw.models.Normal((0, 2), sd=1.3), lambda mean: stats.norm(mean, 1.3), [-4.0, -0.9, 0.4, 2.0, 9.0])
EXPONENTIAL = (
    "rate",
    nw.models.Exponential(2, 1),
    lambda rate: stats.expon(scale=1 / rate),
    [0.02, 0.5, 1.0, 3.0, 20.0],
)


@pytest.mark.parametrize("case", [(NORMAL, -1.0, 2.0), (EXPONENTIAL, 0.3, 1.8)], ids=["normal", "exponential"])
@pytest.mark.parametrize(
    ("n", "share", "scale"), [(1, 0.4, 0.2), (1, 0.9, 60.0), (2, 0.7, 3.0), (2, -0.4, 0.15), (2, 1.3, 5.0)]
)
def test_one_or_two_clamped_records_with_laplace_noise_match_quadrature_split_at_the_kinks(case, n, share, scale):
    (name, model, law, places), low, high = case
    value = n * (low + share * (high - low))
    given = problem(model, released(nw.noise.Laplace(scale), value, n, nw.Column(low, high)))
    found = log_density(given.law, {name: np.array(places)}, given.released, given.between)
    expected = [convolved(law(place), low, high, value, scale, n)[0] for place in places]
    np.testing.assert_allclose(found, np.log(expected), atol=1e-9)


def test_a_rescaled_column_is_the_same_sum_in_other_units():
    column = nw.Column(-1, 2, rescale=(-1, 1))
    given = problem(nw.models.Normal((0, 2), sd=1.3), released(nw.noise.Laplace(0.4), 0.3, 2, column))
    found = log_density(given.law, {"mean": np.array([0.4])}, given.released, given.between)
    # t = (2 x - 1) / 3, so that the sum of x is (3 s + 2) / 2, noise of scale 0.6 beside it, and densities are 2 / 3 as large
    expected = 1.5 * convolved(stats.norm(0.4, 1.3), -1.0, 2.0, (3 * 0.3 + 2) / 2, 0.6, 2)[0]
    np.testing.assert_allclose(found, np.log(expected), atol=1e-9)


@pytest.mark.parametrize("law", ["Laplace", "Gaussian"])
@pytest.mark.parametrize("value", [20.982, 18.329])
def test_atoms_that_fall_into_step_again_far_out_are_not_cut_off(law, value):
    """With three of 20 records between the bounds the transform falls to nothing and comes back; cut off, 5% went missing."""
    n, low, high, mean, scale = 20, 0.5, 1.5, 0.5, 0.05
    given = problem(
        nw.models.Normal((0, 2), sd=2.0), released(getattr(nw.noise, law)(scale), value, n, nw.Column(low, high))
    )
    found = log_density(given.law, {"mean": np.array([mean])}, given.released, given.between)
    # the law of a record on a fine grid, and its twentieth power
    cells = 8000
    edges = np.linspace(low, high, cells + 1)
    mass = np.zeros(2 * cells + 1)
    mass[1::2] = np.diff(stats.norm.cdf(edges, mean, 2.0))
    mass[0], mass[-1] = mass[0] + stats.norm.cdf(low, mean, 2.0), mass[-1] + stats.norm.sf(high, mean, 2.0)
    size = 2 * cells * n + 1
    total = np.fft.irfft(np.fft.rfft(mass, size) ** n, size)
    places = n * low + np.arange(size) * (high - low) / (2 * cells)
    noise = stats.laplace if law == "Laplace" else stats.norm
    np.testing.assert_allclose(found, np.log(total @ noise.pdf(value - places, scale=scale)), atol=2e-5)


def test_the_sum_over_few_records_and_the_fourier_integral_agree_where_both_converge():
    n, scale, value = 60, 3.0, 15.0
    given = problem(nw.models.Normal((0, 2), sd=2.0), released(nw.noise.Laplace(scale), value, n, nw.Column(-1, 2)))
    theta = {"mean": np.array([-2.0, 0.5, 3.0])}
    _, weights = given.law(theta, 64)
    summed = few_log_density(given.between, theta, weights, n, value, scale)
    np.testing.assert_allclose(summed, log_density(given.law, theta, given.released), atol=1e-11)


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_a_wide_prior_and_wide_noise_on_five_records_match_quadrature_over_the_mean(epsilon):
    low, high, n = -1.0, 1.0, 5
    scale = (high - low) / epsilon
    value = n * high + 0.7 * scale
    model = nw.models.Normal((0, 6), sd=1.0)
    release = released(nw.noise.Laplace(scale), value, n, nw.Column(low, high))
    assert nw.explain(model, release).engine.name == "fourier"
    exact = Fourier().build(model, release, KEY).exact()
    mean, weight = 60 * NODES_LONG, 60 * RULE_LONG
    law = stats.norm(mean[:, None], 1.0)
    one = law.cdf(low)[:, 0] * np.exp(-(high - low) / scale) + law.sf(high)[:, 0]
    # beyond every possible total the noise is one exponential, and the records separate
    one += law.pdf(NODES) @ (RULE * np.exp((NODES - high) / scale))
    density = stats.norm.pdf(mean, 0, 6) * weight * one**n * np.exp(-0.7) / (2 * scale)
    centre = density @ mean / density.sum()
    np.testing.assert_allclose(exact.means["mean"], centre, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(exact.sds["mean"], np.sqrt(density @ (mean - centre) ** 2 / density.sum()), rtol=1e-8)
    assert exact.log_marginal == pytest.approx(np.log(density.sum()), abs=1e-9)
