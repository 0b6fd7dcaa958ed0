"""The posteriors that a private one is compared with: on the records, on totals, and by one-posterior sampling."""

import numpy as np
import pytest
from scipy import integrate, stats

import noisewise as nw

DRAWS = 4000
BAND = 1.63 / np.sqrt(DRAWS)


def test_the_posterior_on_records_is_the_conjugate_one():
    x = np.asarray([0.5, 2.0, 0.1, 0.9])
    rates = nw.private.posterior_on_records(nw.models.GammaKnownShape(1.5, shape=2, rate=1), {"x": x}, draws=DRAWS)
    assert stats.kstest(rates["rate"], stats.gamma(2 + 1.5 * 4, scale=1 / (1 + x.sum())).cdf).statistic < BAND
    # the twin: the posterior that forgets the prior
    assert stats.kstest(rates["rate"], stats.gamma(1.5 * 4, scale=1 / x.sum()).cdf).statistic > 2 * BAND


def test_the_posterior_on_records_is_found_by_a_chain_where_it_is_not_conjugate():
    x = stats.norm(3.0, 2.0).rvs(8, random_state=1)
    model = nw.models.Normal((0, 5), variance_prior=(3, 4))
    theta = nw.private.posterior_on_records(model, {"x": x}, draws=DRAWS)
    grid = np.linspace(0.5, 20, 4001)
    # the mean integrated out: x is normal with covariance v I + 25 11'
    spread = grid + 25 * x.size
    squares = np.sum((x - x.mean()) ** 2) / grid + x.size * x.mean() ** 2 / spread
    log_density = (
        -0.5 * (x.size - 1) * np.log(grid) - 0.5 * np.log(spread) - 0.5 * squares - 4 * np.log(grid) - 4 / grid
    )
    density = np.exp(log_density - log_density.max())
    mean = integrate.trapezoid(grid * density, grid) / integrate.trapezoid(density, grid)
    error = theta["variance"].std() / np.sqrt(DRAWS / 4)
    assert abs(theta["variance"].mean() - mean) < 4 * error
    # the twin: the sample variance, which knows no prior
    assert abs(theta["variance"].mean() - x.var()) > 4 * error


def test_totals_beyond_what_records_can_give_are_refused():
    rows = nw.private.posterior_given_totals(nw.models.Bernoulli(2, 3), [[4], [7]], 10, draws=DRAWS)["p"]
    assert rows.shape == (2, DRAWS)
    assert stats.kstest(rows[1], stats.beta(9, 6).cdf).statistic < BAND
    with pytest.raises(ValueError, match="impossible for n=10"):
        nw.private.posterior_given_totals(nw.models.Bernoulli(), [11.0], 10)
    with pytest.raises(ValueError, match="no conjugate draw given totals"):
        nw.private.posterior_given_totals(nw.models.NaiveBayes(classes=2, features=[2]), [1.0], 10)


def test_one_posterior_sampling_draws_from_the_tempered_posterior_and_keeps_its_promise():
    """10 draws at epsilon / 10 each: the log densities of neighbouring data sets differ by at most that."""
    n, total, epsilon, edge = 50, 20, 8.0, 0.1
    draws = nw.private.one_posterior_sampling(
        nw.models.Bernoulli(2, 1), np.full(400, total), n, epsilon=epsilon, truncate=edge, draws=10
    )
    grid = np.linspace(edge, 1 - edge, 20_001)
    power = epsilon / 10 / (2 * np.log((1 - edge) / edge))

    def log_density(ones):
        value = np.log(grid) + power * (ones * np.log(grid) + (n - ones) * np.log1p(-grid))
        return value - np.log(integrate.trapezoid(np.exp(value), grid))

    mass = integrate.cumulative_trapezoid(np.exp(log_density(total)), grid, initial=0)
    assert stats.kstest(draws.ravel(), lambda p: np.interp(p, grid, mass)).statistic < BAND
    losses = [np.max(np.abs(log_density(t + 1) - log_density(t))) for t in (0, 20, 49)]
    assert 0.05 < max(losses) <= epsilon / 10
    # the twin: the posterior itself is far from it
    assert stats.kstest(draws.ravel(), stats.beta(2 + total, 1 + n - total).cdf).statistic > 5 * BAND


@pytest.mark.parametrize(
    ("change", "words"),
    [({"epsilon": 0.0}, "epsilon"), ({"truncate": 0.5}, "truncate"), ({"draws": 0}, "draws")],
)
def test_bad_arguments_are_refused_in_a_sentence(change, words):
    arguments = {"epsilon": 1.0, "truncate": 0.1, "draws": 5} | change
    with pytest.raises(ValueError, match=words):
        nw.private.one_posterior_sampling(nw.models.Bernoulli(), 3, 10, **arguments)
    with pytest.raises(ValueError, match="Bernoulli"):
        nw.private.one_posterior_sampling(nw.models.Poisson(1, 1), 3, 10, epsilon=1.0, truncate=0.1)
