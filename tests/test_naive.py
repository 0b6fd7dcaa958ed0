"""The naive posterior against closed forms and quadrature, and what it says about statistics no records could give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

import noisewise as nw
from noisewise.engines.taken_as_exact import nearest_moment_matrix
from noisewise.release.privacy import Privacy

SEED = 20221


def release(query, value, *, n=50, scale=1.0):
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), value)], n=n)


def draws_of(model, given, name, seed=SEED):
    return nw.naive(model, given, random_seed=seed).posterior[name].values.reshape(4000, -1)


def agrees(draws: np.ndarray, mean, sd) -> bool:
    """Means and standard deviations within 4 of their own standard errors, taken from the draws' fourth moments."""
    count = draws.shape[0]
    spread = draws.std(axis=0)
    fourth = np.mean((draws - draws.mean(axis=0)) ** 4, axis=0)
    of_mean = np.abs(draws.mean(axis=0) - mean) < 4 * spread / np.sqrt(count)
    of_variance = np.abs(spread**2 - np.square(sd)) < 4 * np.sqrt((fourth - spread**4) / count)
    return bool(np.all(of_mean) and np.all(of_variance))


def test_bernoulli_is_the_beta_of_the_noisy_sum():
    given = release(nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), [31.4])
    law, wrong = stats.beta(2 + 31.4, 3 + 18.6), stats.beta(2 + 18.6, 3 + 31.4)
    draws = draws_of(nw.models.Bernoulli(2, 3), given, "p")
    assert agrees(draws, law.mean(), law.std())
    assert not agrees(draws, wrong.mean(), wrong.std())


def test_bernoulli_from_a_table_needs_no_number_of_records():
    query = nw.queries.Counts({"x": 2}, [("x",)])
    given = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [[18.6, 31.4]])], n=None)
    law = stats.beta(1 + 31.4, 1 + 18.6)
    assert agrees(draws_of(nw.models.Bernoulli(), given, "p"), law.mean(), law.std())


def test_poisson_is_the_gamma_of_the_noisy_sum_mapped_back_to_its_own_units():
    query = nw.queries.Moments({"x": nw.Column(0, 20, rescale=(-1, 1))}, [{"x": 1}])
    total = 137.0
    law, unmapped = stats.gamma(2 + total, scale=1 / 50.5), stats.gamma(2 + 87.0, scale=1 / 50.5)
    draws = draws_of(nw.models.Poisson(2, 0.5), release(query, [(total - 10 * 50) / 10]), "rate")
    assert agrees(draws, law.mean(), law.std())
    assert not agrees(draws, unmapped.mean(), unmapped.std())


def test_exponential_is_the_gamma_of_the_number_of_records():
    given = release(nw.queries.Moments({"x": nw.Column(0, 10)}, [{"x": 1}]), [80.0])
    law = stats.gamma(2 + 50, scale=1 / 81)
    assert agrees(draws_of(nw.models.Exponential(2, 1), given, "rate"), law.mean(), law.std())


def test_categorical_is_the_dirichlet_of_the_noisy_counts():
    counts = np.asarray([12.3, 30.1, 8.8])
    given = release(nw.queries.Counts({"x": 3}, [("x",)]), [counts])
    weights = counts + np.asarray([2, 1, 1])
    law = stats.beta(weights, weights.sum() - weights)
    assert agrees(draws_of(nw.models.Categorical([2, 1, 1]), given, "p"), law.mean(), law.std())


def test_naive_bayes_averages_the_class_margins_of_its_tables_and_turns_their_axes():
    first = np.asarray([[9.5, 3.2], [4.1, 6.0]])
    second = np.asarray([[5.0, 8.0], [1.5, 2.5], [3.0, 7.0]])
    query = nw.queries.Counts({"y": 2, "x1": 2, "x2": 3}, [("y", "x1"), ("x2", "y")])
    given = release(query, [first, second], n=25)
    tree = nw.naive(nw.models.NaiveBayes(2, [2, 3], prior=1.5), given, random_seed=SEED)
    # a margin over 2 cells has 2/3 of the variance of one over 3 cells
    margin = (first.sum(axis=1) * 3 + second.sum(axis=0) * 2) / 5
    expected = {"class_probs": margin, "feature_probs_1": first, "feature_probs_2": second.T}
    for name, counts in expected.items():
        weights = counts + 1.5
        law = stats.beta(weights, weights.sum(axis=-1, keepdims=True) - weights)
        draws = tree.posterior[name].values.reshape(4000, *counts.shape)
        assert agrees(draws, law.mean(), law.std()), name


def test_normal_mean_with_a_known_variance():
    given = release(nw.queries.Moments({"x": nw.Column(-10, 10, rescale=(0, 1))}, [{"x": 1}]), [30.0])
    precision = 1 / 4 + 50 / 9
    mean = (1 / 4 + (30.0 * 20 - 500) / 9) / precision
    model = nw.models.Normal(mean_prior=(1, 2), sd=3)
    assert agrees(draws_of(model, given, "mean"), mean, precision**-0.5)


def test_normal_with_an_unknown_variance_matches_quadrature():
    n, total, squares = 6, 9.0, 20.0
    given = release(nw.queries.Moments({"x": nw.Column(-5, 5)}, [{"x": 1}, {"x": 2}]), [total, squares], n=n)
    tree = nw.naive(nw.models.Normal(mean_prior=(0, 2), variance_prior=(3, 2)), given, random_seed=SEED)

    def density(m, v):
        return (
            stats.norm.pdf(m, 0, 2)
            * v ** -(3 + 1 + n / 2)
            * np.exp(-(2 + 0.5 * (squares - 2 * m * total + n * m * m)) / v)
        )

    means, logs = np.linspace(-6, 8, 1401), np.linspace(-4, 6, 1201)
    grid = density(means[:, None], np.exp(logs)) * np.exp(logs)
    grid /= grid.sum()
    for name, values, weights in (("mean", means, grid.sum(1)), ("variance", np.exp(logs), grid.sum(0))):
        centre = weights @ values
        assert agrees(
            tree.posterior[name].values.reshape(4000, 1), centre, np.sqrt(weights @ (values - centre) ** 2)
        ), name


def regression_release(rng, n=40, spread=1.0):
    """A release without noise of records inside the bounds: the naive posterior is then the posterior given the records."""
    x = rng.normal([0.5, -1.0], spread, (n, 2))
    y = 1.0 + x @ [2.0, -1.0] + rng.normal(0, 1.0, n)
    columns = {"x1": nw.Column(-9, 11, rescale=(-1, 1)), "x2": nw.Column(-10, 10, rescale=(-1, 1))}
    query = nw.queries.regression_moments(columns, {"y": nw.Column(-20, 30, rescale=(-1, 1))})
    value = query({"x1": x[:, 0], "x2": x[:, 1], "y": y})
    return release(query, value, n=n), np.column_stack([np.ones(n), x]), y


def test_regression_without_noise_is_the_posterior_given_the_records():
    given, x, y = regression_release(np.random.default_rng(1))
    model = nw.models.LinearRegression(
        ("x1", "x2"), "y", coef_scale=2.0, variance=1.5, covariate_mean=[0, 0], covariate_cov=np.eye(2)
    )
    cov = np.linalg.inv(x.T @ x / 1.5 + np.eye(3) / 4)
    mean = cov @ x.T @ y / 1.5
    draws = draws_of(model, given, "beta")
    assert agrees(draws, mean, np.sqrt(np.diag(cov)))
    assert np.allclose(np.cov(draws.T), cov, atol=4 * 1.5 * cov.diagonal().max() / np.sqrt(4000))
    wrong = np.linalg.inv(x.T @ x / 1.0 + np.eye(3) / 4)
    assert not agrees(draws, mean, np.sqrt(np.diag(wrong)))


def test_regression_with_everything_unknown_matches_quadrature_and_closed_forms():
    given, x, y = regression_release(np.random.default_rng(2), n=12)
    a, b, df = 3.0, 2.0, 6.0
    model = nw.models.LinearRegression(
        ("x1", "x2"),
        "y",
        coef_scale=2.0,
        variance=nw.models.InverseGamma(a, b),
        covariate_mean=nw.models.NormalPrior([0, 0], 1e6 * np.eye(2)),
        covariate_cov=nw.models.InverseWishart(df, np.eye(2)),
    )
    tree = nw.naive(model, given, random_seed=SEED)
    # beta integrated out: y | v ~ N(0, v I + 4 X X'); the rest is one dimension
    values, vectors = np.linalg.eigh(x @ x.T)
    turned = vectors.T @ y

    def log_density(log_v):
        v = np.exp(log_v)
        spread = v + 4 * np.maximum(values, 0)
        return -a * log_v - b / v - 0.5 * np.sum(np.log(spread) + turned**2 / spread)

    logs = np.linspace(-3, 4, 4001)
    weights = np.exp([log_density(t) - log_density(0.0) for t in logs])
    weights /= weights.sum()
    variance = weights @ np.exp(logs)
    sd = np.sqrt(weights @ (np.exp(logs) - variance) ** 2)
    draws = tree.posterior["variance"].values.reshape(4000, 1)
    assert agrees(draws, variance, sd)
    assert not agrees(draws, variance + 0.5 * sd, sd)
    given_v = [np.linalg.inv(x.T @ x / v + np.eye(3) / 4) for v in np.exp(logs[::20])]
    w = weights[::20] / weights[::20].sum()
    centres = np.asarray([c @ x.T @ y / v for c, v in zip(given_v, np.exp(logs[::20]), strict=True)])
    mean = w @ centres
    second = w @ np.asarray([np.diag(c) for c in given_v]) + w @ (centres - mean) ** 2
    assert agrees(tree.posterior["beta"].values.reshape(4000, 3), mean, np.sqrt(second))
    # under a flat prior of the mean: S ~ IW(df + n - 1, I + scatter) and m ~ t, centred at the average
    scatter = np.cov(x[:, 1:].T, ddof=0) * 12 + np.eye(2)
    assert agrees(
        tree.posterior["covariate_mean"].values.reshape(4000, 2),
        x[:, 1:].mean(0),
        np.sqrt(np.diag(scatter) / (12 * (df + 12 - 1 - 3))),
    )
    inverse_wishart = stats.invwishart(df + 11, scatter)
    assert agrees(
        tree.posterior["covariate_cov"].values.reshape(4000, 4),
        inverse_wishart.mean().reshape(-1),
        np.sqrt(inverse_wishart.var().reshape(-1)),
    )


def test_nearest_moment_matrix_matches_a_general_optimiser():
    rng = np.random.default_rng(5)
    rows, cols = np.tril_indices(3)
    for _ in range(4):
        noisy = np.diag([10.0, 3.0, 3.0]) + rng.laplace(0, 6, (3, 3))
        noisy = (noisy + noisy.T) / 2
        noisy[0, 0] = 10.0
        low, high = np.full((3, 3), -10.0), np.full((3, 3), 10.0)
        low[0, 0], low[1, 1], low[2, 2] = 10.0, 0.0, 0.0
        found = nearest_moment_matrix(noisy, low, high)
        assert np.linalg.eigvalsh(found)[0] > -1e-8
        assert np.all(found >= low - 1e-8)
        assert np.all(found <= high + 1e-8)

        def matrix(free):
            factor = np.zeros((3, 3))
            factor[rows, cols] = free
            return factor @ factor.T

        best = min(
            optimize.minimize(
                lambda free, noisy=noisy: np.sum((matrix(free) - noisy) ** 2),
                rng.normal(size=6),
                method="SLSQP",
                constraints=[
                    {"type": "eq", "fun": lambda free: matrix(free)[0, 0] - 10},
                    {"type": "ineq", "fun": lambda free: (10 - np.abs(matrix(free))).reshape(-1)},
                ],
                options={"maxiter": 500, "ftol": 1e-14},
            ).fun
            for _ in range(5)
        )
        assert np.sum((found - noisy) ** 2) == pytest.approx(best, rel=1e-5)


def test_a_possible_matrix_is_not_moved():
    matrix = np.asarray([[10.0, 2.0], [2.0, 5.0]])
    assert nearest_moment_matrix(matrix, np.full((2, 2), -10.0), np.full((2, 2), 10.0)) is matrix


@pytest.mark.parametrize(
    ("model", "query", "value", "said"),
    [
        (nw.models.Bernoulli(), nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), [-3.0], "the sum of x, -3, is impossible"),
        (nw.models.Categorical([1, 1]), nw.queries.Counts({"x": 2}, [("x",)]), [[-1.0, 44.0]], "1 negative count(s) of x"),
        (
            nw.models.Normal(variance_prior=(2, 1)),
            nw.queries.Moments({"x": nw.Column(-2, 2)}, [{"x": 1}, {"x": 2}]),
            [60.0, 20.0],
            "the moments of x are those of no 50 records",
        ),
    ],
)  # fmt: skip
def test_impossible_statistics_are_moved_and_it_is_said(model, query, value, said):
    tree = nw.naive(model, release(query, value), random_seed=1)
    assert said in tree.attrs["noisewise_adjustments"]
    assert all(np.all(np.isfinite(values)) for values in tree.posterior.values())


def test_a_wildly_noisy_regression_still_has_a_naive_posterior():
    given, _, _ = regression_release(np.random.default_rng(3))
    noisy = np.asarray(given.measurements[0].value) + np.random.default_rng(4).laplace(0, 130, 9)
    query = given.measurements[0].query
    model = nw.models.LinearRegression(
        ("x1", "x2"),
        "y",
        variance=nw.models.InverseGamma(3, 2),
        covariate_mean=nw.models.NormalPrior([0, 0], np.eye(2)),
        covariate_cov=nw.models.InverseWishart(5, np.eye(2)),
    )
    tree = nw.naive(model, release(query, noisy, n=40, scale=130.0), random_seed=1)
    assert "nearest positive semidefinite matrix" in tree.attrs["noisewise_adjustments"]
    assert all(np.all(np.isfinite(values)) for values in tree.posterior.values())


def test_a_statistic_released_twice_is_averaged_by_the_precision_of_its_noise():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    parts = [(nw.noise.Laplace(1.0), 20.0), (nw.noise.Gaussian(1.0), 29.0)]
    given = nw.Release([nw.Measurement(query, noise, [value]) for noise, value in parts], n=50)
    total = (20.0 / 2 + 29.0) / 1.5
    law = stats.beta(1 + total, 1 + 50 - total)
    assert agrees(draws_of(nw.models.Bernoulli(), given, "p"), law.mean(), law.std())


def test_an_unknown_number_of_records_is_read_from_the_release():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    given = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [52.5, 20.0])], n=None)
    law = stats.beta(1 + 20.0, 1 + 32.5)
    assert agrees(draws_of(nw.models.Bernoulli(), given, "p"), law.mean(), law.std())


def test_the_tree_has_the_form_of_sample_and_the_same_draws_for_the_same_seed():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    given = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [31.4])], n=50, stated=Privacy("pure", 1.0))
    one, two, other = (nw.naive(nw.models.Bernoulli(), given, random_seed=seed) for seed in (3, 3, 4))
    assert {"posterior", "observed_data", "release"} <= set(one.children)
    assert (one.attrs["noisewise_method"], one.attrs["noisewise_exact"], one.attrs["random_seed"]) == ("naive", 0, 3)
    assert one.posterior["p"].dims == ("chain", "draw")
    assert np.array_equal(one.posterior["p"], two.posterior["p"])
    assert not np.array_equal(one.posterior["p"], other.posterior["p"])


@pytest.mark.parametrize(
    ("model", "query", "value", "said"),
    [
        (nw.models.Categorical([1, 1]), nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), [3.0], "counts of x"),
        (
            nw.models.Normal(variance_prior=(2, 1)),
            nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]),
            [3.0],
            "needs the sum of x^2, which is not released",
        ),
    ],
)
def test_pairs_without_a_naive_posterior_are_refused_with_what_is_missing(model, query, value, said):
    with pytest.raises(ValueError, match="There is no naive posterior") as refused:
        nw.naive(model, release(query, value))
    assert said in str(refused.value)


def test_bad_settings_are_refused():
    given = release(nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}]), [3.0])
    with pytest.raises(ValueError, match="draws must be a whole number"):
        nw.naive(nw.models.Bernoulli(), given, draws=0)
