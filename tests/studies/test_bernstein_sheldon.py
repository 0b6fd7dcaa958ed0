"""The calibration study: calibrated methods inside their band, others outside, bounds fixed in advance, and replicates of their own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

import noisewise as nw
from noisewise.studies import bernstein_sheldon as study
from noisewise.studies.base import group
from noisewise.studies.bernstein_sheldon_figures import band, ks_distance


def distances(rows, *names):
    return {key: ks_distance(part["rank"]) for key, part in group(rows, *names)}


@pytest.fixture(scope="module")
def coin(tmp_path_factory):
    settings = {"models": ("binomial",), "sizes": (100, 3162), "epsilons": (0.01,), "draws": 400, "tune": 200}
    return nw.studies.run("bernstein-sheldon", settings=settings, out=tmp_path_factory.mktemp("out"))


def test_counting_the_noise_is_calibrated_and_ignoring_it_is_not(coin):
    found = distances(coin.rows, "n", "method")
    for n in (100, 3162):
        for method in ("gibbs", "non-private"):
            assert found[n, method] < band(200)
        # the twins
        assert found[n, "naive"] > 2 * band(200)
        assert found[n, "ops"] > band(200)


def test_noise_aware_draws_are_nearer_to_the_non_private_posterior_than_naive_ones(coin):
    mean = {key: np.mean(part["discrepancy"]) for key, part in group(coin.rows, "n", "method")}
    assert mean[3162, "gibbs"] < mean[100, "gibbs"]
    assert mean[3162, "gibbs"] < mean[3162, "naive"]


def test_the_table_and_the_figures_show_every_method(coin):
    assert {path.name for path in coin.files if path.suffix == ".png"} == {f"figure_1{letter}.png" for letter in "abc"}
    assert all(path.stat().st_size > 5000 for path in coin.files if path.suffix == ".png")
    lines = {line.quantity: line for line in coin.lines}
    line = lines["KS distance, binomial, epsilon = 0.01, n = 100, gibbs"]
    assert line.paper == "calibrated: below 0.096"
    assert 0.005 < line.error < 0.05
    assert lines["MMD^2, binomial, epsilon = 0.01, n = 3,162, naive"].here > 0
    assert "KS distance, binomial, epsilon = 0.01, n = 100, ops" in lines


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    settings = {"methods": ("joint, quadrature", "independent, no moves"), "lengths": (1000,)}
    return nw.studies.run("bernstein-sheldon-bounds", settings=settings, out=tmp_path_factory.mktemp("out"))


def test_with_fixed_bounds_the_joint_theorem_is_calibrated_over_a_thousand_trials_and_the_independent_one_is_not(fixed):
    found = distances(fixed.rows, "method")
    assert found["joint, quadrature",] < band(1000) < 0.5 * found["independent, no moves",]
    covered = {line.quantity: line.here for line in fixed.lines if "coverage" in line.quantity}
    assert covered["coverage of 90% intervals, joint, quadrature"] == pytest.approx(0.9, abs=0.04)
    assert covered["coverage of 90% intervals, independent, no moves, 1,000 draws"] < 0.75
    assert any(path.name == "ranks.png" for path in fixed.files)


def test_a_trial_is_the_same_whatever_runs_beside_it():
    cell = {"model": "binomial", "epsilon": 0.1, "n": 10, "draws": 200, "tune": 50}
    together = study.run_calibration(cell, range(2), 0)
    alone = study.run_calibration(cell, range(1, 2), 0)
    for column in ("rank", "discrepancy"):
        assert np.array_equal(together[column][together["replicate"] == 1], alone[column], equal_nan=True), column
    assert len(set(together["rank"].tolist())) > 4


def test_releases_are_made_of_the_records_with_noise_of_the_stated_scale():
    data = study.simulate("exponential-fixed", 2000, 0.001, range(400), 1)
    rate = np.asarray(data.truth)
    lower, upper = float(data.lower[0]), float(data.upper[0])
    assert [lower, upper] == pytest.approx(stats.expon(scale=0.25).ppf([0.025, 0.975]))
    assert np.all(np.asarray(data.scale) == upper / 0.001)
    mean = (special.gammainc(2, rate * upper) - special.gammainc(2, rate * lower)) / rate
    noise = (np.asarray(data.values)[:, 0] - 2000 * mean) / (upper / 0.001)
    assert abs(noise.mean()) < 4 * noise.std() / 20
    assert np.mean(np.abs(noise)) == pytest.approx(1.0, abs=0.2)
    assert stats.kstest(rate, stats.gamma(4).cdf).pvalue > 1e-3


def test_the_discrepancy_is_unbiased_and_sees_a_shift():
    rng = np.random.default_rng(1)
    none, some = (
        np.array([study.mmd_squared(rng.normal(size=50), rng.normal(shift, size=50)) for _ in range(400)])
        for shift in (0.0, 1.0)
    )
    assert abs(none.mean()) < 4 * none.std() / 20
    # E k(x, x') of standard normals at distance d: exp(-d^2 / 6) / sqrt 3
    assert some.mean() == pytest.approx(2 * (1 - np.exp(-1 / 6)) / 3**0.5, abs=4 * some.std() / 20)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("bernstein-sheldon", {"models": ("coin",)}, "models must be among 'binomial'"),
        ("bernstein-sheldon", {"draws": 100}, "draws must be at least 200"),
        ("bernstein-sheldon-bounds", {"methods": ("neither",)}, "methods must be among 'joint, quadrature'"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(tmp_path, name, settings, words):
    with pytest.raises(ValueError, match=words):
        nw.studies.run(name, settings=settings, out=tmp_path)
