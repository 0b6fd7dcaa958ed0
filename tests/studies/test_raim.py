"""Raim's studies: draws against summed laws, posteriors of the records themselves by quadrature, and releases the methods share."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.direct import regression
from noisewise.studies import raim
from noisewise.studies.base import group

CELL = {"rho": 0.1, "sigma": 0.25, "scale": 0.0, "iterations": 2000}


@pytest.fixture(scope="module")
def direct(tmp_path_factory):
    return nw.studies.run("raim-direct", tiny=True, out=tmp_path_factory.mktemp("direct"))


def test_exact_draws_show_the_law_summed_here_and_the_basic_sampler_gives_up_on_example_4_2(direct):
    parts = dict(group(direct.rows, "example", "method"))
    assert np.all(parts["4.2", "basic"]["attempts"] == 0)
    assert np.nanmin(parts["4.1", "basic"]["attempts"]) > 0
    for name, (z, mu, sigma2, rho, _) in raim.EXAMPLES.items():
        part = parts[name, "exact"]
        support = np.arange(-6000.0, min(6000, z - 1) + 1)
        y = z - support
        mass = np.exp(-0.5 * (np.log(y) - mu) ** 2 / sigma2) / y * (1 - rho) ** np.abs(support)
        mass /= mass.sum()
        where = np.searchsorted(support, part["noise"])
        np.testing.assert_allclose(part["law"], mass[where], rtol=1e-6)
        count = part["draws"][0]
        observed, middle = np.zeros(support.size), np.cumsum(mass) - 0.5 * mass
        observed[where] = part["drawn"] * count
        bins = (middle * 8).astype(int)
        expected, seen = count * np.bincount(bins, mass, minlength=8), np.bincount(bins, observed, minlength=8)
        kept = expected > 0
        assert stats.chisquare(seen[kept], expected[kept]).pvalue > 1e-3
    assert {path.name for path in direct.files if path.suffix == ".png"} == {f"figure_{i}.png" for i in (1, 2, 3)}


def posterior_by_quadrature(y, x, sigma):
    """Mean squared error, mean of beta and of the variance: beta integrates out, the variance is on a grid."""
    truth = np.array([*raim.TRUTH, sigma**2])
    grid = np.exp(np.linspace(-12, 8, 8001))
    lefts, singular, rights = np.linalg.svd(x, full_matrices=False)
    told = lefts.T @ np.log(y)
    rest = np.log(y) @ np.log(y) - told @ told
    total = grid[:, None] + 100 * singular**2
    log_post = -0.5 * np.sum(np.log(total) + told**2 / total, axis=1) - 0.5 * (y.size - 2) * np.log(grid)
    log_post += -0.5 * rest / grid - 3 * np.log(grid) - 10 / grid + np.log(grid)
    weight = np.exp(log_post - log_post.max())
    weight /= weight.sum()
    beta = (100 * singular * told / total) @ rights
    spread = np.sum(100 * grid[:, None] / total, axis=1)
    error = weight @ (np.sum((beta - truth[:2]) ** 2, axis=1) + spread + (grid - truth[2]) ** 2)
    return error, weight @ beta, weight @ grid


@pytest.fixture(scope="module")
def sensitive_rows():
    return raim.run_regressions({**CELL, "method": raim.SENSITIVE}, range(3), 0)


def test_the_sensitive_fit_is_the_posterior_of_the_records_by_quadrature(sensitive_rows):
    rows, made = sensitive_rows, raim.data({**CELL, "method": raim.SENSITIVE}, range(3), 0)
    assert np.min(made["y"]) < 0.5
    for i in range(3):
        error, beta, variance = posterior_by_quadrature(made["y"][i], made["covariates"], 0.25)
        assert rows["mse"][i] == pytest.approx(error, rel=0.1)
        assert rows["beta1"][i] == pytest.approx(beta[0], abs=5 * np.sqrt(error / 1000))
        assert rows["variance"][i] == pytest.approx(variance, rel=0.02)
        # small values taken as one, as in a start for noisy releases, would be seen
        clipped, _, _ = posterior_by_quadrature(np.maximum(made["y"][i], 1.0), made["covariates"], 0.25)
        assert abs(clipped - error) > 5 * error


def test_methods_share_records_covariates_stay_and_noise_has_its_law():
    cells = [{**CELL, "scale": 0.2, "method": method} for method in (raim.ADJUSTED, raim.SENSITIVE)]
    first, second = (raim.data(cell, range(40), 0) for cell in cells)
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    np.testing.assert_array_equal(first["covariates"], raim.data({**CELL, "sigma": 5.0}, range(2), 0)["covariates"])
    noise = np.round(first["released"] - first["y"])
    np.testing.assert_allclose(first["released"] - first["y"], noise, atol=1e-4)
    k = np.arange(-20, 21)
    mass = 0.1 / 1.9 * 0.9 ** np.abs(k)
    seen = np.array([np.sum(noise == value) for value in k])
    expected = noise.size * np.append(mass, 1 - mass.sum())
    assert stats.chisquare(np.append(seen, noise.size - seen.sum()), expected).pvalue > 1e-3
    moved = (first["x"][:, :, 0] - first["covariates"][:, 0]).ravel()
    assert stats.kstest(moved, stats.laplace(scale=0.2).cdf).pvalue > 1e-3
    np.testing.assert_array_equal(first["x"][:, :, 1], np.broadcast_to(first["covariates"][:, 1], (40, raim.N)))


def test_a_replicate_does_not_know_its_neighbours(sensitive_rows):
    alone = raim.run_regressions({**CELL, "method": raim.SENSITIVE}, range(2, 3), 0)
    for name, column in alone.items():
        np.testing.assert_array_equal(column, sensitive_rows[name][2:3])


def test_noise_that_hardly_matters_gives_the_sensitive_posterior_and_all_figures_are_drawn(tmp_path):
    changes = {"lambdas": (1e-4,), "rhos": (0.9999,), "iterations": 400}
    outcome = nw.studies.run("raim-noisy-covariate", tiny=True, settings=changes, out=tmp_path)
    summary = outcome.rows["iteration"] < 0
    parts = {key[0]: part for key, part in group({k: v[summary] for k, v in outcome.rows.items()}, "method")}
    adjusted, sensitive = parts[raim.ADJUSTED], parts[raim.SENSITIVE]
    np.testing.assert_allclose(adjusted["beta1"], sensitive["beta1"], atol=0.05)
    np.testing.assert_allclose(adjusted["variance"], sensitive["variance"], rtol=0.15)
    drawn = [path for path in outcome.files if path.suffix == ".png"]
    assert {path.name for path in drawn} == {f"figure_{i}.png" for i in (7, 8, 9)}
    assert all(path.stat().st_size > 5000 for path in drawn)


def test_a_start_of_records_without_noise_is_the_records():
    y = np.array([0.01, 0.4, 3.0, 8.0])
    problem = regression.NoisyRegression(jnp.asarray(y), jnp.ones((4, 1)))
    np.testing.assert_array_equal(regression.init(problem).response, y)
