"""Families in a few lines, every noise law and every named model through ``nw.sample``, against quadrature and enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.scipy.special import betaln
from scipy import special, stats

import noisewise as nw
from noisewise.engines.sufficient_laws import statistic_law
from noisewise.engines.truncation import LevelsLaw, SupportLaw, TruncatedLaw

N = 20_000


def release(query, noise, value, n=N):
    return nw.Release([nw.Measurement(query, noise, value)], n=n)


def draws(model, published, name, **settings):
    dt = nw.sample(model, published, method="sufficient", random_seed=3, progressbar=False, **settings)
    return dt.posterior[name].values.reshape(4000, -1)


NOISES = {
    "laplace": (nw.noise.Laplace(60.0), stats.laplace(scale=60.0).pdf),
    "gaussian": (nw.noise.Gaussian(80.0), stats.norm(scale=80.0).pdf),
    "discrete laplace": (nw.noise.DiscreteLaplace(60.0), lambda r: np.exp(-np.abs(r) / 60.0)),
    "discrete gaussian": (nw.noise.DiscreteGaussian(80.0), lambda r: np.exp(-0.5 * (r / 80.0) ** 2)),
}


@pytest.mark.parametrize("law", NOISES)
def test_every_noise_law_matches_the_sum_over_every_count(law):
    noise, density = NOISES[law]
    p = draws(
        nw.models.Bernoulli(2, 3), release(nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), noise, [6010.0]), "p"
    )
    s = np.arange(N + 1.0)
    log_weights = (
        special.gammaln(s + 2) - special.gammaln(s + 1) + special.gammaln(N - s + 3) - special.gammaln(N - s + 1)
    )
    weights = np.exp(log_weights - log_weights.max()) * density(6010.0 - s)
    weights /= weights.sum()
    near = weights > 1e-12
    distance = stats.kstest(
        p[:, 0], lambda x: stats.beta.cdf(x[:, None], 2 + s[near], 3 + N - s[near]) @ weights[near]
    ).statistic
    assert distance < 1.63 / np.sqrt(p.size)
    # the twin: noise taken as exact
    assert stats.kstest(p[:, 0], stats.beta(2 + 6010, 3 + N - 6010).cdf).statistic > 3 * 1.63 / np.sqrt(p.size)


WORN = nw.models.ExponentialFamily(
    parameters={"p": "unit"},
    natural=lambda theta: jnp.log(theta["p"]) - jnp.log1p(-theta["p"]),
    statistic=lambda x: x,
    log_partition=lambda eta: 3 * jnp.logaddexp(0.0, eta),
    log_base=lambda x: -jnp.log(4.0) - betaln(x + 1, 4 - x),
    update=lambda key, total, n: {"p": random.beta(key, 1 + total, 1 + 3 * n - total)},
    log_prior=lambda theta: jnp.zeros(()),
    possible=lambda total, n: (total >= 0) & (total <= 3 * n),
    support=(0, 3),
    discrete=True,
    column="worn",
)


def test_a_binomial_family_needs_neither_quantile_nor_cdf_and_reads_a_table_of_its_levels():
    """The cells of a table are no function of the sum of x, and their covariance is singular."""
    table = nw.queries.Counts(levels={"worn": 4}, tables=[("worn",)])
    probabilities = stats.binom(3, 0.3).pmf(np.arange(4))
    published = release(
        table, nw.noise.Laplace(40.0), [np.round(N * probabilities) + np.asarray([30.0, -20.0, 55.0, 10.0])]
    )
    law = statistic_law(WORN, published)
    assert isinstance(law, LevelsLaw)
    mean, covariance = map(np.asarray, law.moments({"p": jnp.asarray(0.3)}))
    both = np.column_stack([np.arange(4), np.eye(4)])
    assert np.allclose(mean, probabilities @ both, rtol=1e-12)
    centred = both - probabilities @ both
    assert np.allclose(covariance, (probabilities[:, None] * centred).T @ centred, atol=1e-14)
    p = draws(WORN, published, "p")[:, 0]
    grid = np.linspace(0.28, 0.32, 801)
    cells = stats.binom(3, grid[:, None]).pmf(np.arange(4))
    # exact posterior moments by simulation of tables would need 20,000 records a draw: the noise as normal, and the table's own covariance
    value = np.asarray(published.measurements[0].value)
    log_density = np.asarray(
        [
            stats.multivariate_normal(N * q, N * (np.diag(q) - np.outer(q, q)) + 3200 * np.eye(4)).logpdf(value)
            for q in cells
        ]
    )
    weights = np.exp(log_density - log_density.max())
    centre = weights @ grid / weights.sum()
    sd = np.sqrt(weights @ (grid - centre) ** 2 / weights.sum())
    assert abs(p.mean() - centre) < sd
    assert 0.5 * sd < p.std() < 1.3 * sd


def test_a_sum_over_the_whole_support_needs_no_distribution_function():
    query = nw.queries.Moments({"worn": nw.Column(0, 3, rescale=(-1, 1))}, [{"worn": 1}])
    law = statistic_law(WORN, release(query, nw.noise.Laplace(1.0), [0.0]))
    assert isinstance(law, SupportLaw)
    assert np.allclose([law.matrix[0, 0], law.offset[0]], [2 / 3, -1.0])


def test_a_bounded_statistic_of_an_unbounded_column_is_read_through_a_custom_query():
    circular = nw.models.ExponentialFamily(
        parameters={"lean": "real"},
        natural=lambda theta: theta["lean"],
        statistic=jnp.tanh,
        log_partition=lambda eta: 0.1 * eta**2,
        update=lambda key, total, n: {"lean": random.normal(key)},
        column="x",
    )
    asked = nw.queries.Custom(lambda r: 2 * jnp.tanh(r["x"]) + 1, 1, l1=4.0, neighbours="replace_one")
    law = statistic_law(circular, release(asked, nw.noise.Laplace(4.0), [0.0]))
    assert isinstance(law, SupportLaw)
    assert np.allclose([law.matrix[0, 0], law.offset[0]], [2.0, 1.0])
    other = nw.queries.Custom(lambda r: jnp.sin(r["x"]), 1, l1=2.0, neighbours="replace_one")
    assert "linear function" in statistic_law(circular, release(other, nw.noise.Laplace(4.0), [0.0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda r: jnp.clip(r["x"], 0.0, 2e5),
        lambda r: jnp.maximum(r["x"], 1e-3),
        lambda r: jnp.floor(r["x"]) + r["x"] * 1e-3,
        lambda r: jnp.exp(r["x"]),
        lambda r: jnp.log(r["x"] - 1.0),
    ],
    ids=["clamped far out", "clamped near nothing", "rounded", "overflowing", "not a number somewhere"],
)
def test_a_custom_query_that_is_no_line_anywhere_on_the_support_is_refused(function):
    asked = nw.queries.Custom(function, 1, l1=1.0)
    law = statistic_law(nw.models.Exponential(2, 1), release(asked, nw.noise.Laplace(4.0), [10.0]))
    assert isinstance(law, str)
    assert "linear function" in law


def test_a_statistic_that_is_infinite_at_the_edge_of_the_support_is_read():
    """Gamma records with both parameters unknown: t = (log x, x), of which 3 x - 2 log x + 5 is released, and x."""
    gamma = nw.models.ExponentialFamily(
        parameters={"shape": "positive", "rate": "positive"},
        natural=lambda theta: (theta["shape"] - 1, -theta["rate"]),
        statistic=lambda x: (jnp.log(x), x),
        log_partition=lambda eta: jax.scipy.special.gammaln(eta[0] + 1) - (eta[0] + 1) * jnp.log(-eta[1]),
        update=lambda key, total, n: {"shape": random.gamma(key, 2.0), "rate": random.gamma(key, 2.0)},
        support=(0.0, float("inf")),
    )
    asked = nw.queries.Custom(lambda r: jnp.stack([3 * r["x"] - 2 * jnp.log(r["x"]) + 5, r["x"]]), 2, l1=1.0)
    law = statistic_law(gamma, release(asked, nw.noise.Laplace(4.0), [0.0, 0.0]))
    assert isinstance(law, SupportLaw)
    assert np.allclose(law.matrix, [[-2.0, 3.0], [0.0, 1.0]], rtol=1e-8, atol=1e-8)
    assert np.allclose(law.offset, [5.0, 0.0], rtol=1e-8, atol=1e-8)


def test_the_least_family_runs_the_papers_algorithm_and_says_that_it_was_not_checked():
    least = nw.models.ExponentialFamily(
        parameters={"rate": "positive"},
        natural=lambda theta: -theta["rate"],
        statistic=lambda x: x,
        log_partition=lambda eta: -jnp.log(-eta),
        update=lambda key, total, n: {"rate": random.gamma(key, 4.0 + n) / (1.0 + total)},
        possible=lambda total, n: total > 0,
        cdf=lambda x, eta: -jnp.expm1(eta * x),
        support=(0.0, float("inf")),
    )
    published = release(nw.queries.TruncatedSum("x", 0.0, 4.0), nw.noise.Laplace(4.0), [4990.0])
    dt = nw.sample(least, published, method="sufficient", random_seed=3, progressbar=False)
    assert abs(float(dt.posterior["rate"].mean()) - N / 4990) < 0.1
    assert "cannot simulate records" in dt.attrs["noisewise_doubts"]
    with pytest.raises(ValueError, match="log_prior"):
        nw.sample(least, published, method=nw.engines.Sufficient(moves=2))
    with pytest.raises(ValueError, match="cannot simulate records"):
        nw.sample(least, published, method="augmentation")


def test_normal_records_with_unknown_variance_match_quadrature_of_the_normal_model():
    query = nw.queries.TruncatedSum("x", -6.0, 9.0, ("x", "x^2"))
    value = np.asarray([N * 1.5 + 300.0, N * (4 + 2.25) - 500.0])
    model = nw.models.Normal((0, 5), variance_prior=(2, 3))
    published = release(query, nw.noise.Gaussian(1000.0), value)
    law = statistic_law(model, published)
    assert isinstance(law, TruncatedLaw)
    theta = nw.sample(model, published, method="sufficient", random_seed=3, progressbar=False).posterior
    # an independent law: moments of x and x^2, cut, by quadrature
    nodes, base = np.polynomial.legendre.leggauss(80)
    x, base = 1.5 + 7.5 * nodes, 7.5 * base
    mean, variance = (axis.ravel() for axis in np.meshgrid(np.linspace(1.2, 1.9, 61), np.linspace(3.3, 4.6, 61)))
    mass = base * stats.norm.pdf(x, mean[:, None], np.sqrt(variance)[:, None])
    m1, m2, m3, m4 = (mass @ x**k for k in (1, 2, 3, 4))
    spread = N * np.stack([[m2 - m1**2, m3 - m1 * m2], [m3 - m1 * m2, m4 - m2**2]]) + 1e6 * np.eye(2)[..., None]
    gap = value[:, None] - N * np.stack([m1, m2])
    det = spread[0, 0] * spread[1, 1] - spread[0, 1] ** 2
    squares = (spread[1, 1] * gap[0] ** 2 - 2 * spread[0, 1] * gap[0] * gap[1] + spread[0, 0] * gap[1] ** 2) / det
    log_density = -0.5 * squares - 0.5 * np.log(det) - mean**2 / 50 - 3 * np.log(variance) - 3 / variance
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    for name, values in (("mean", mean), ("variance", variance)):
        found = theta[name].values
        centre = weights @ values
        sd = np.sqrt(weights @ (values - centre) ** 2)
        by_chain = found.mean(axis=1)
        assert abs(by_chain.mean() - centre) < 5 * max(by_chain.std(ddof=1) / 2, sd / np.sqrt(4000)), name
        assert found.std() == pytest.approx(sd, rel=0.15), name
        # the twin: noise left out
        assert sd > 3 * np.sqrt(4.0 / N)


def test_totals_that_no_records_can_have_are_an_error_with_the_remedy():
    published = release(nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), nw.noise.Gaussian(1.0), [-300.0], n=50)
    with pytest.raises(ValueError, match=r"No possible total was drawn in 7 tries.*method=.augmentation."):
        nw.sample(nw.models.Bernoulli(), published, method=nw.engines.Sufficient(scheme="gibbs", tries=7))
