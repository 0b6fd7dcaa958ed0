"""The Fourier engine against sums over databases, direct quadrature, closed forms and the counts engine."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import noisewise as nw
from noisewise.engines.counts import Counts
from noisewise.engines.fourier import Fourier
from noisewise.engines.fourier_density import log_density
from noisewise.engines.fourier_laws import problem

KEY = jax.random.key(0)
SUM = [{"x": 1}]


def sum_release(noise, value, n, column):
    query = nw.queries.Moments(columns={"x": column}, terms=SUM)
    return nw.Release([nw.Measurement(query, noise, [value])], n=n)


def noise_density(law, scale, r):
    """The density of the noise at r, from its definition."""
    if law == "Laplace":
        return np.exp(-np.abs(r) / scale) / (2 * scale)
    if law == "Gaussian":
        return stats.norm.pdf(r, scale=scale)
    k = np.arange(-int(60 * scale) - 60, int(60 * scale) + 61)
    power = (lambda k: np.abs(k) / scale) if law == "DiscreteLaplace" else (lambda k: 0.5 * (k / scale) ** 2)
    return np.exp(-power(r)) / np.sum(np.exp(-power(k)))


BERNOULLI = [
    (5, "Laplace", 1.0, 2.2),
    (5, "DiscreteGaussian", 0.3, 20.0),
    (100, "Laplace", 30.0, -50.3),
    (50, "Gaussian", 0.1, 44.2),
    (400, "DiscreteLaplace", 2.0, 399.0),
    (7, "Laplace", 200.0, 3.0),
    (30, "Laplace", 0.1, 12.37),
    (3, "DiscreteLaplace", 0.1, -2.0),
    (1, "Gaussian", 5.0, 30.0),
    (3 * 10**8, "DiscreteGaussian", 20.0, 90_000_000.0),
    (10**6, "Laplace", 5.0, 3.5),
]


@pytest.mark.parametrize("case", BERNOULLI)
def test_counts_and_fourier_agree_where_both_are_exact(case):
    n, law, scale, value = case
    release = sum_release(getattr(nw.noise, law)(scale), value, n, nw.Column(0, 1))
    model = nw.models.Bernoulli(1.5, 0.5)
    summed, integrated = (engine.build(model, release, KEY).exact() for engine in (Counts(), Fourier()))
    np.testing.assert_allclose(integrated.means["p"], summed.means["p"], rtol=1e-9)
    np.testing.assert_allclose(integrated.sds["p"], summed.sds["p"], rtol=1e-8)
    assert integrated.log_marginal == pytest.approx(summed.log_marginal, abs=1e-8)


def poisson_reference(n, low, high, law, scale, value, shape, rate):
    """Moments by quadrature over the rate of the sum over every database of clamped counts."""
    levels = np.arange(low, high + 1)
    totals = np.array([sum(database) for database in itertools.product(levels, repeat=n)])
    weight = noise_density(law, scale, value - totals)

    def likelihood(t):
        mass = stats.poisson.pmf(levels, t)
        mass[0], mass[-1] = stats.poisson.cdf(low, t), stats.poisson.sf(high - 1, t)
        chance = np.array([math.prod(some) for some in itertools.product(mass, repeat=n)])
        return float(chance @ weight)

    nodes, weights = np.polynomial.legendre.leggauss(400)
    t = 40 * (nodes + 1)
    density = np.array([likelihood(x) for x in t]) * stats.gamma.pdf(t, shape, scale=1 / rate) * 40 * weights
    total = density.sum()
    mean = density @ t / total
    return mean, math.sqrt(density @ (t - mean) ** 2 / total), math.log(total)


POISSON = [
    (1, 0, 3, "Laplace", 2.0, 1.4),
    (2, 0, 3, "Gaussian", 0.1, 4.1),
    (3, 0, 2, "DiscreteLaplace", 20.0, -3.0),
    (3, 1, 3, "DiscreteGaussian", 0.7, 11.0),
    (2, 1, 4, "Laplace", 0.3, 30.0),
]


@pytest.mark.parametrize("case", POISSON)
def test_clamped_poisson_sums_match_the_enumeration_of_every_database(case):
    n, low, high, law, scale, value = case
    release = sum_release(getattr(nw.noise, law)(scale), value, n, nw.Column(low, high))
    exact = Fourier().build(nw.models.Poisson(2.0, 0.8), release, KEY).exact()
    mean, sd, log_evidence = poisson_reference(*case, 2.0, 0.8)
    np.testing.assert_allclose(exact.means["rate"], mean, rtol=1e-8)
    np.testing.assert_allclose(exact.sds["rate"], sd, rtol=1e-8)
    assert exact.log_marginal == pytest.approx(log_evidence, abs=1e-8)


@pytest.mark.parametrize("noise", [nw.noise.Laplace(3.0), nw.noise.Gaussian(3.0)])
@pytest.mark.parametrize("value", [31.0, -60.0])
def test_an_unclamped_normal_sum_is_a_normal_plus_noise(noise, value):
    n, sd = 25, 1.5
    release = sum_release(noise, value, n, nw.Column(-500, 500))
    given = problem(nw.models.Normal((0, 10), sd=sd), release)
    means = np.linspace(-3, 3, 7)
    found = log_density(given.law, {"mean": means}, given.released)
    z, spread, b = value - n * means, math.sqrt(n) * sd, 3.0
    if noise.name == "gaussian":
        expected = stats.norm.logpdf(z, scale=math.hypot(spread, b))
    else:
        tails = [stats.norm.logcdf(side * z / spread - spread / b) - side * z / b for side in (1, -1)]
        expected = np.logaddexp(*tails) + spread**2 / (2 * b**2) - math.log(2 * b)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("family", ["normal", "exponential"])
def test_clamped_sums_match_a_direct_inversion_of_their_characteristic_function(family):
    n, b, low, high, value = 60, 4.0, 0.2, 2.5, 75.0
    release = sum_release(nw.noise.Laplace(b), value, n, nw.Column(low, high))
    model, theta, law = {
        "normal": (nw.models.Normal((0, 2)), {"mean": np.array([1.1])}, stats.norm(1.1, 1)),
        "exponential": (nw.models.Exponential(2, 1), {"rate": np.array([0.7])}, stats.expon(scale=1 / 0.7)),
    }[family]

    def transform(v):
        inner = (
            integrate.quad(lambda x: law.pdf(x) * math.cos(v * x), low, high, epsabs=1e-13)[0]
            + 1j * (integrate.quad(lambda x: law.pdf(x) * math.sin(v * x), low, high, epsabs=1e-13)[0])
        )
        return inner + law.cdf(low) * np.exp(1j * v * low) + law.sf(high) * np.exp(1j * v * high)

    step = 2 * math.pi / 400
    v = step * np.arange(1, 600)
    terms = [(transform(x) ** n / (1 + (b * x) ** 2) * np.exp(-1j * x * value)).real for x in v]
    expected = math.log(step / math.pi * (0.5 + math.fsum(terms)))
    given = problem(model, release)
    np.testing.assert_allclose(log_density(given.law, theta, given.released), expected, rtol=1e-9)


def test_one_clamped_normal_record_matches_quadrature_over_the_record():
    low, high, scale, value = -1.0, 2.0, 0.8, 3.1
    release = sum_release(nw.noise.Gaussian(scale), value, 1, nw.Column(low, high))
    exact = Fourier().build(nw.models.Normal((0.5, 2.0), sd=1.3), release, KEY).exact()
    x, w = np.polynomial.legendre.leggauss(200)
    x, w = 0.5 * (low + high) + 0.5 * (high - low) * x, 0.5 * (high - low) * w
    nodes, weights = np.polynomial.legendre.leggauss(300)
    mean, weights = 0.5 + 24 * nodes, 24 * weights
    given = stats.norm.pdf(x, mean[:, None], 1.3) @ (w * stats.norm.pdf(value - x, scale=scale))
    given += stats.norm.cdf(low, mean, 1.3) * stats.norm.pdf(value - low, scale=scale)
    given += stats.norm.sf(high, mean, 1.3) * stats.norm.pdf(value - high, scale=scale)
    density = given * stats.norm.pdf(mean, 0.5, 2.0) * weights
    centre = density @ mean / density.sum()
    np.testing.assert_allclose(exact.means["mean"], centre, rtol=1e-9)
    np.testing.assert_allclose(exact.sds["mean"], math.sqrt(density @ (mean - centre) ** 2 / density.sum()), rtol=1e-9)
    assert exact.log_marginal == pytest.approx(math.log(density.sum()), abs=1e-9)


def deviation(draws, exact):
    """How many standard errors the mean and the mean square deviation of draws are from what they should be."""
    centred = (draws - exact.means["mean"]) / exact.sds["mean"]
    root = math.sqrt(draws.size)
    return max(abs(centred.mean()) * root, abs(np.mean(centred**2) - 1) * root / np.std(centred**2))


def test_draws_have_the_exact_moments_and_a_sampler_that_ignores_the_noise_does_not():
    model = nw.models.Normal((0, 2))
    right = Fourier().build(model, sum_release(nw.noise.Laplace(8.0), 30.0, 100, nw.Column(-4, 4)), KEY)
    wrong = Fourier().build(model, sum_release(nw.noise.Laplace(0.8), 30.0, 100, nw.Column(-4, 4)), KEY)
    traces = []

    @jax.jit
    def draw(sampler, keys):
        traces.append(1)
        return jax.vmap(sampler.draw)(keys).theta["mean"]

    keys = jax.random.split(KEY, 8000)
    assert deviation(np.asarray(draw(right, keys)), right.exact()) < 4
    assert deviation(np.asarray(draw(wrong, keys)), right.exact()) > 8
    assert len(traces) == 1


# a user's own density, and two parameters ------------------------------------------------------------------------------


def logistic_model(*, constant=0.0):
    """Logistic records around an unknown centre; the prior lacks a constant, which must not matter."""
    return nw.models.Custom(
        sample_prior=lambda key: {"centre": 1.5 * jax.random.normal(key)},
        innovations=lambda key, n: jax.random.logistic(key, (n,)),
        transform=lambda theta, u: {"x": theta["centre"] + 0.6 * u},
        log_prior=lambda theta: -((theta["centre"] / 1.5) ** 2) / 2 + constant,
        log_likelihood=lambda theta, records: jax.scipy.stats.logistic.logpdf(records["x"], theta["centre"], 0.6),
    )


def test_a_density_of_the_users_own_matches_quadrature_over_both_records():
    low, high, scale, value = -1.0, 2.0, 0.7, 3.3
    release = sum_release(nw.noise.Gaussian(scale), value, 2, nw.Column(low, high))
    model = logistic_model(constant=3.0)
    assert nw.explain(model, release).engine.name == "fourier"
    exact = Fourier().build(model, release, KEY).exact()
    nodes, rule = np.polynomial.legendre.leggauss(60)
    x, w = 0.5 * (low + high) + 0.5 * (high - low) * nodes, 0.5 * (high - low) * rule
    places = np.concatenate([[low], x, [high]])
    noise = stats.norm.pdf(value - places[:, None] - places, scale=scale)
    nodes, rule = np.polynomial.legendre.leggauss(240)
    centre = 15 * nodes
    law = stats.logistic(centre[:, None], 0.6)
    mass = np.concatenate([law.cdf(low), law.pdf(x) * w, law.sf(high)], axis=1)
    density = np.einsum("ti,ij,tj->t", mass, noise, mass) * stats.norm.pdf(centre, scale=1.5) * 15 * rule
    mean = density @ centre / density.sum()
    np.testing.assert_allclose(exact.means["centre"], mean, rtol=1e-9)
    np.testing.assert_allclose(
        exact.sds["centre"], math.sqrt(density @ (centre - mean) ** 2 / density.sum()), rtol=1e-9
    )
    assert exact.log_marginal == pytest.approx(math.log(density.sum()), abs=1e-9)


def test_one_clamped_record_of_unknown_mean_and_variance_matches_quadrature_over_the_record():
    low, high, scale, value = -1.0, 2.0, 0.8, 2.4
    release = sum_release(nw.noise.Gaussian(scale), value, 1, nw.Column(low, high))
    given = problem(nw.models.Normal((0, 2), variance_prior=(3, 2)), release)
    mean, variance = np.array([-1.0, 0.3, 2.5, 0.0]), np.array([0.2, 1.0, 4.0, 60.0])
    x, w = np.polynomial.legendre.leggauss(300)
    x, w = 0.5 * (low + high) + 0.5 * (high - low) * x, 0.5 * (high - low) * w
    law = stats.norm(mean[:, None], np.sqrt(variance)[:, None])
    expected = law.pdf(x) @ (w * stats.norm.pdf(value - x, scale=scale))
    expected += law.cdf(low)[:, 0] * stats.norm.pdf(value - low, scale=scale)
    expected += law.sf(high)[:, 0] * stats.norm.pdf(value - high, scale=scale)
    found = log_density(given.law, {"mean": mean, "variance": variance}, given.released)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-10)


def test_mean_and_variance_of_an_unclamped_sum_match_a_double_quadrature_and_their_draws_the_moments():
    n, scale, value, (a, b) = 20, 6.0, 90.0, (6.0, 8.0)
    model = nw.models.Normal((1.0, 2.0), variance_prior=(a, b))
    release = sum_release(nw.noise.Gaussian(scale), value, n, nw.Column(-500, 500))
    sampler = Fourier().build(model, release, KEY)
    exact = sampler.exact()
    nodes, rule = np.polynomial.legendre.leggauss(400)
    mean, log_variance = (5 + 20 * nodes)[:, None], 2 + 7 * nodes
    variance = np.exp(log_variance)
    density = stats.norm.pdf(mean, 1.0, 2.0) * stats.invgamma.pdf(variance, a, scale=b) * variance
    density = density * stats.norm.pdf(value, n * mean, np.sqrt(n * variance + scale**2)) * 140 * rule[:, None] * rule
    for name, places in (("mean", mean), ("variance", variance)):
        centre = np.sum(density * places) / density.sum()
        spread = math.sqrt(np.sum(density * (places - centre) ** 2) / density.sum())
        np.testing.assert_allclose(exact.means[name], centre, rtol=1e-8)
        np.testing.assert_allclose(exact.sds[name], spread, rtol=1e-7)
    assert exact.log_marginal == pytest.approx(math.log(density.sum()), abs=1e-8)
    draws = jax.jit(lambda keys: jax.vmap(sampler.draw)(keys).theta)(jax.random.split(jax.random.key(5), 8000))
    wrong = {"mean": np.asarray(draws["mean"]) * 1.06, "variance": np.asarray(draws["variance"]) * 1.06}
    for name in ("mean", "variance"):
        place, spread = float(exact.means[name]), float(exact.sds[name])
        standard = (np.asarray(draws[name]) - place) / spread
        assert abs(standard.mean()) * math.sqrt(8000) < 4
        assert abs(np.mean(standard**2) - 1) < 4 * np.std(standard**2) / math.sqrt(8000)
        assert abs((wrong[name].mean() - place) / spread) * math.sqrt(8000) > 6
    # the two parameters together: the covariance of mean and log variance
    joint = np.stack([np.asarray(draws["mean"]), np.log(np.asarray(draws["variance"]))])
    middle = [np.sum(density * places) / density.sum() for places in (mean, log_variance)]
    expected = np.sum(density * (mean - middle[0]) * (log_variance - middle[1])) / density.sum()
    products = (joint[0] - middle[0]) * (joint[1] - middle[1])
    assert abs(products.mean() - expected) < 4 * products.std() / math.sqrt(8000)


def test_models_it_cannot_put_on_panels_are_refused_with_the_reason():
    def model(**changes):
        functions = {
            "sample_prior": lambda key: {"m": jax.random.normal(key)},
            "innovations": lambda key, n: jax.random.laplace(key, (n,)),
            "transform": lambda theta, u: {"x": theta["m"] + u},
            "log_prior": lambda theta: -(theta["m"] ** 2) / 2,
            "log_likelihood": lambda theta, records: jax.scipy.stats.laplace.logpdf(records["x"], theta["m"]),
        }
        return nw.models.Custom(**(functions | changes))

    release = sum_release(nw.noise.Laplace(2.0), 3.0, 10, nw.Column(-3, 3))
    assert "integrate to one" in Fourier().supports(model(), release).reason
    whole = model(transform=lambda theta, u: {"x": jax.numpy.round(theta["m"] + u)})
    assert "repeat" in Fourier().supports(whole, release).reason
    several = model(
        sample_prior=lambda key: {"m": jax.random.normal(key, (3,))},
        transform=lambda theta, u: {"x": theta["m"].sum() + u},
        log_prior=lambda theta: -(theta["m"] ** 2).sum() / 2,
        log_likelihood=lambda theta, records: jax.scipy.stats.laplace.logpdf(records["x"], theta["m"].sum()),
    )
    assert "one or two parameters" in Fourier().supports(several, release).reason


def test_sums_it_cannot_transform_are_refused_with_the_reason():
    column = nw.Column(0, 5)
    squares = nw.queries.Moments(columns={"x": column}, terms=[{"x": 2}])
    nearly_constant = nw.Release([nw.Measurement(squares, nw.noise.Laplace(2.0), [240.0])], n=10)
    support = Fourier().supports(nw.models.Exponential(2.0, 1.0), nearly_constant)
    assert not support.ok
    assert "nearly discrete" in support.reason
    both = nw.queries.Moments(columns={"x": column}, terms=[{"x": 1}, {"x": 2}])
    release = nw.Release([nw.Measurement(both, nw.noise.Laplace(2.0), [1.0, 2.0])], n=10)
    assert "one released sum" in Fourier().supports(nw.models.Normal(), release).reason
    ragged = sum_release(nw.noise.Laplace(2.0), 49.0, 10, nw.Column(0.3, 5))
    assert "lattice" in Fourier().supports(nw.models.Poisson(1, 1), ragged).reason


def test_two_narrow_modes_are_both_found_and_weighed():
    """A sum of squares does not know the sign of the mean: the prior alone weighs the two, ``tanh(m m0 / tau^2)`` apart."""
    n, m, m0, tau = 10**6, 1.5, 0.3, 2.0
    query = nw.queries.Moments({"x": nw.Column(-20, 20)}, [{"x": 2}])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(50.0), [(1 + m**2) * n])], n=n)
    sampler = Fourier().build(nw.models.Normal((m0, tau), sd=1.0), release, KEY)
    exact = sampler.exact()
    balance = np.tanh(m * m0 / tau**2)
    assert float(exact.means["mean"]) == pytest.approx(m * balance, rel=1e-3)
    assert float(exact.sds["mean"]) == pytest.approx(m * np.sqrt(1 - balance**2), rel=1e-3)
    draws = np.asarray(jax.vmap(sampler.draw)(jax.random.split(KEY, 2000)).theta["mean"])
    assert np.all(np.abs(np.abs(draws) - m) < 0.01)
    assert abs(np.mean(draws > 0) - (1 + balance) / 2) < 4 * 0.5 / np.sqrt(2000)
