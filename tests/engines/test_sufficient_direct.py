"""The quadrature scheme: the normal-Laplace density, the table, bimodal posteriors, and what is refused."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import noisewise as nw
from noisewise.engines.sufficient import Sufficient
from noisewise.engines.sufficient_direct import direct_sampler, draw_total, log_normal_laplace, tabulate
from noisewise.engines.sufficient_laws import observed, statistic_law


@pytest.mark.parametrize("sd", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("gap", [0.0, -0.7, 30.0, 1e4])
def test_normal_laplace_density_matches_high_precision(sd, gap):
    with mpmath.workdps(60):
        s, b, z = mpmath.mpf(sd), mpmath.mpf(2), mpmath.mpf(gap)
        root = s * mpmath.sqrt(2)
        tilt = mpmath.exp(s**2 / (2 * b**2)) / (4 * b)
        left = mpmath.exp(-z / b) * mpmath.erfc((s**2 / b - z) / root)
        exact = mpmath.log(tilt * (left + mpmath.exp(z / b) * mpmath.erfc((s**2 / b + z) / root)))
    found = float(log_normal_laplace(jnp.asarray(gap), jnp.asarray(sd**2), jnp.asarray(2.0)))
    assert found == pytest.approx(float(exact), rel=1e-10)


def test_normal_laplace_density_integrates_the_product():
    for gap in (0.5, 7.0):
        product = lambda s, gap=gap: stats.norm.pdf(s, scale=1.5) * stats.laplace.pdf(gap - s, scale=0.8)  # noqa: E731
        exact = integrate.quad(product, -20, 20, points=[0, gap])[0]
        found = float(jnp.exp(log_normal_laplace(jnp.asarray(gap), jnp.asarray(2.25), jnp.asarray(0.8))))
        assert found == pytest.approx(exact, rel=1e-7)


def test_normal_laplace_density_keeps_its_digits_at_extreme_scales():
    wide = float(log_normal_laplace(jnp.asarray(3.0), jnp.asarray(1e12), jnp.asarray(1e-3)))
    assert wide == pytest.approx(stats.norm.logpdf(3.0, scale=1e6), rel=1e-12)
    thin = float(log_normal_laplace(jnp.asarray(3.0), jnp.asarray(0.0), jnp.asarray(1e6)))
    assert thin == pytest.approx(stats.laplace.logpdf(3.0, scale=1e6), rel=1e-12)


def test_a_table_finds_narrow_far_and_double_peaks():
    def log_density(x):
        return np.logaddexp(stats.norm.logpdf(x, 2.0, 1e-5), np.log(0.25) + stats.norm.logpdf(x, -3.0, 1e-3))

    table = tabulate(log_density, np.random.default_rng(1).normal(size=1000))
    draws = np.asarray(jax.vmap(table.draw)(jax.random.split(jax.random.key(1), 20_000)))
    low = draws[draws < 0]
    assert low.size / draws.size == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / draws.size))
    assert stats.kstest(low, stats.norm(-3.0, 1e-3).cdf).statistic < 1.63 / np.sqrt(low.size)
    high = draws[draws > 0]
    assert stats.kstest(high, stats.norm(2.0, 1e-5).cdf).statistic < 1.63 / np.sqrt(high.size)
    assert float(table.distribution(jnp.asarray(0.0))) == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize(("n", "value"), [(1000, 250.0), (10**7, 2.16e6)])
def test_draws_have_the_quadrature_posterior_at_any_n(n, value):
    model = nw.models.Exponential(4, 1)
    query = nw.queries.TruncatedSum("x", 0.00633, 0.9222)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(9.2), [value])], n=n)
    law = statistic_law(model, release)
    sampler = direct_sampler(jax.random.key(0), model, law, *observed(release), jnp.asarray(float(n)))
    rates = np.asarray(jax.vmap(lambda k: sampler.draw(k).theta["rate"])(jax.random.split(jax.random.key(2), 20_000)))
    # an independent likelihood: moments of the truncated sum by elementary integrals
    # (the draws are nodes too: at n = 10^7 there are two narrow modes)
    grid = np.unique(np.concatenate([rates, np.linspace(0.05, 25, 20_001)]))

    def moment(power, x):
        return -np.exp(-grid * x) * sum(
            np.prod(np.arange(power, power - k, -1)) * x ** (power - k) / grid**k for k in range(power + 1)
        )

    first, second = (moment(k, 0.9222) - moment(k, 0.00633) for k in (1, 2))
    mean, sd = n * first, np.sqrt(n * (second - first**2))
    z, k = value - mean, sd / 9.2
    log_side = lambda sign: 0.5 * k**2 + sign * z / 9.2 + stats.norm.logcdf(-(k + sign * z / sd))  # noqa: E731
    log_density = np.logaddexp(log_side(-1.0), log_side(1.0)) + 3 * np.log(grid) - grid
    mass = integrate.cumulative_trapezoid(np.exp(log_density - log_density.max()), grid, initial=0)
    distance = stats.kstest(rates, lambda x: np.interp(x, grid, mass / mass[-1])).statistic
    assert distance < 1.63 / np.sqrt(rates.size)
    # the twin: the same draws against a posterior that forgets the noise
    naive = -0.5 * (z / sd) ** 2 - np.log(sd) + 3 * np.log(grid) - grid
    wrong = integrate.cumulative_trapezoid(np.exp(naive - naive.max()), grid, initial=0)
    if n < 10**6:
        assert stats.kstest(rates, lambda x: np.interp(x, grid, wrong / wrong[-1])).statistic > 5 / np.sqrt(rates.size)


def test_nw_sample_takes_the_direct_scheme_and_says_it_is_approximate():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(20.0), [311.0])], n=1000)
    dt = nw.sample(nw.models.Bernoulli(), release, method=Sufficient(), draws=2000, random_seed=3, progressbar=False)
    assert dt.attrs["noisewise_exact"] == 0
    assert dt.attrs["noisewise_independent_draws"] == 1
    p = np.linspace(1e-4, 1 - 1e-4, 20_001)
    density = stats.norm.pdf(311.0, 1000 * p, np.sqrt(1000 * p * (1 - p) + 400))
    mean = np.sum(p * density) / np.sum(density)
    sd = np.sqrt(np.sum((p - mean) ** 2 * density) / np.sum(density))
    assert abs(float(dt.posterior["p"].mean()) - mean) < 4 * sd / np.sqrt(8000)
    assert float(dt.posterior["p"].std()) == pytest.approx(sd, rel=0.03)


def test_the_engine_is_never_chosen_by_itself():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [311.0])], n=1000)
    choice = nw.explain(nw.models.Bernoulli(), release)
    assert choice.engine.name != "sufficient"
    assert any(c.engine.name == "sufficient" and c.support.ok for c in choice.candidates)


@pytest.mark.parametrize(
    "bad",
    [
        {"scheme": "quick"},
        {"clt": "both"},
        {"moves": -1},
        {"moves": True},
        {"tries": 0},
        {"clt": "independent", "moves": 2},
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sufficient(**bad)


@pytest.mark.parametrize("laplace", [True, False])
@pytest.mark.parametrize(("mean", "sd", "scale"), [(0.0, 1.0, 1.0), (30.0, 2.0, 5.0), (-7.0, 4.0, 0.5)])
def test_the_total_behind_a_released_number_has_the_law_of_normal_times_noise(mean, sd, scale, laplace):
    value = 3.0
    keys = jax.random.split(jax.random.key(4), 20_000)
    given = (jnp.asarray(value), jnp.asarray(mean), jnp.asarray(sd**2), jnp.asarray(scale), jnp.asarray(laplace))
    totals = np.asarray(jax.vmap(lambda key: draw_total(key, *given))(keys))
    noise = stats.laplace(value, scale) if laplace else stats.norm(value, scale)
    grid = np.linspace(min(mean, value) - 9 * (sd + scale), max(mean, value) + 9 * (sd + scale), 200_001)
    mass = np.cumsum(stats.norm(mean, sd).pdf(grid) * noise.pdf(grid))

    def law(x):
        return np.interp(x, grid, mass / mass[-1])

    assert stats.kstest(totals, law).statistic < 1.63 / np.sqrt(totals.size)
    # the total given theta alone, or the value without what theta says, is another law
    assert stats.kstest(totals, stats.norm(mean, sd).cdf).statistic > 0.02
    assert stats.kstest(totals, noise.cdf).statistic > 0.02


def test_a_run_by_quadrature_shows_what_the_model_would_release_again():
    model = nw.models.Exponential(4, 1)
    query = nw.queries.TruncatedSum("x", 0.00633, 0.9222)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), [250.0])], n=1000)
    dt = nw.sample(model, release, method="sufficient", random_seed=1, draws=2000, progressbar=False)
    again = dt["posterior_predictive"][release.names[0]].values.ravel()
    # what was released lies within what would be released again, which is as wide as two noises
    assert abs(again.mean() - 250.0) < 3.0
    assert 5.0 * np.sqrt(2) < again.std() < 5.0 * np.sqrt(2) * 1.5
