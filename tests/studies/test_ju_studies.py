"""The studies of Ju et al. (2022): the published setting, chains side by side that are right, and tables that hold the paper's numbers."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources

import jax
import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.studies.ju_experiments import covering, run
from noisewise.studies.ju_loglinear import LOG_LINEAR
from noisewise.studies.ju_regression import REGRESSION
from noisewise.studies.ju_setting import published

REGRESSION_COVERAGE = nw.studies.get("ju-regression-coverage")
TINY = {"epsilons": (10.0,), "iterations": 100, "tune": 50, "draws": 50}
PAPERS_CELL = {"epsilon": 10.0, "method": "algorithm 1", "iterations": 100}


@pytest.fixture(scope="module")
def tiny_regression(tmp_path_factory):
    return nw.studies.run(REGRESSION_COVERAGE, replicates=3, settings=TINY, out=tmp_path_factory.mktemp("regression"))


def test_the_setting_is_the_papers():
    log_linear, regression = published()["loglinear"], published()["regression"]
    counts = np.array(log_linear["counts"])
    assert counts.shape == (5, 5, 3)
    assert np.all(counts.sum(axis=2) == [6, 11, 10, 63, 10])
    np.testing.assert_allclose(np.sum(log_linear["feature_probs"], axis=2), 1)
    assert LOG_LINEAR.query().sensitivity("l1") == 10
    assert REGRESSION.query().sensitivity("l1") == regression["sensitivity"] == 13
    # the bundled release at epsilon = 10 is the fixed table with Laplace noise of scale 1.3
    bundled = resources.files("noisewise.data").joinpath("ju2022-regression.json").read_text(encoding="utf-8")
    residual = np.asarray(json.loads(bundled)["measurements"][0]["values"]) - REGRESSION.fixed_total()
    assert stats.kstest(residual, stats.laplace(scale=1.3).cdf).pvalue > 0.01


def test_records_follow_the_published_parameters():
    rng = np.random.default_rng(1)
    made = [LOG_LINEAR.records(rng) for _ in range(200)]
    y = np.concatenate([one["y"] for one in made])
    observed = np.bincount(y, minlength=5)
    p_value = stats.chisquare(observed, y.size * np.array(published()["loglinear"]["class_probs"])).pvalue
    assert p_value > 0.001
    x3 = np.concatenate([one["x3"] for one in made])
    for i, row in enumerate(published()["loglinear"]["feature_probs"][2]):
        inside = x3[y == i]
        assert stats.chisquare(np.bincount(inside, minlength=3), inside.size * np.array(row)).pvalue > 0.001


def test_posterior_means_given_the_fixed_tables_are_the_closed_forms():
    np.testing.assert_allclose(LOG_LINEAR.private_mean(), np.array([8, 13, 12, 65, 12]) / 110)
    # least squares with the prior as three more observations
    setting = published()["regression"]
    x1, x2, y = (np.asarray(setting["records"][name]) for name in ("x1", "x2", "y"))
    sd = np.sqrt(setting["variance"])
    rows = np.vstack([np.column_stack([np.ones(100), x1, x2]) / sd, np.eye(3) / setting["coef_scale"]])
    np.testing.assert_allclose(
        REGRESSION.private_mean(), np.linalg.lstsq(rows, np.append(y / sd, np.zeros(3)), rcond=None)[0]
    )


def small_total() -> np.ndarray:
    return np.array([[9.0, 21.0], [32.0, 8.0], [3.0, 27.0]]).reshape(-1)


SMALL = dataclasses.replace(
    LOG_LINEAR,
    labels=("p1", "p2", "p3"),
    fixed_total=small_total,
    model=lambda: nw.models.NaiveBayes(classes=3, features=[2]),
    query=lambda: nw.queries.Counts(levels={"y": 3, "x1": 2}, tables=[("y", "x1")]),
)
"""The log-linear study with one feature, which compiles quickly."""


def test_chains_side_by_side_agree_with_the_exact_posterior_of_their_own_release():
    replicates = range(4)
    releases = [SMALL.release(value, 1.0) for value in SMALL.values("means", 1.0, replicates, 1)]
    engine, key = nw.engines.Counts(), jax.random.key(0)
    exact = np.stack([engine.build(SMALL.model(), release, key).exact().means["class_probs"] for release in releases])
    chain = run(SMALL, "means", {"epsilon": 1.0, "method": "algorithm 1", "iterations": 4000}, replicates, 1)
    error = (chain["high"] - chain["low"]) / (2 * stats.norm.ppf(0.95)) / np.sqrt(chain["ess"])
    z = (chain["mean"] - exact.reshape(-1)) / error
    assert np.max(np.abs(z)) < 4
    # rounding of the total may take a digit off the bound
    assert np.all(chain["least_probability"] >= np.exp(-1.0) * (1 - 1e-9))
    assert np.all((chain["least_rate"] < chain["acceptance"]) & (chain["acceptance"] < 1))
    # the posterior of another release is far away
    others = np.roll(exact, 1, axis=0).reshape(-1)
    assert np.max(np.abs((chain["mean"] - others) / error)) > 8


def test_a_replicate_does_not_know_its_neighbours():
    three = REGRESSION_COVERAGE.rows_of(PAPERS_CELL, range(3), 1)
    one = REGRESSION_COVERAGE.rows_of(PAPERS_CELL, range(1, 2), 1)
    for name, column in one.items():
        np.testing.assert_array_equal(column, three[name][3:6])


def test_the_table_holds_the_papers_numbers_and_the_plots_are_there(tiny_regression):
    lines = {line.quantity: line for line in tiny_regression.lines}
    assert lines["coverage of beta1, epsilon = 10, algorithm 1"].paper == 0.87
    assert lines["coverage of beta1, epsilon = 10, interwoven"].paper == 0.87
    assert "effective draws, median over releases, epsilon = 10, algorithm 1" in lines
    rows = tiny_regression.rows
    here = np.mean(rows["covered"][(rows["method"] == "interwoven") & (rows["parameter"] == "beta1")])
    assert lines["coverage of beta1, epsilon = 10, interwoven"].here == here
    truth = dict(zip(REGRESSION.labels, REGRESSION.truth, strict=True))
    inside = [
        low <= truth[p] <= high for p, low, high in zip(rows["parameter"], rows["low"], rows["high"], strict=True)
    ]
    np.testing.assert_array_equal(rows["covered"], inside)
    assert [path.name for path in tiny_regression.files] == [
        "table.md",
        "results.parquet",
        "results.nc",
        "coverage.png",
    ]
    assert all(path.stat().st_size > 1000 for path in tiny_regression.files)


def test_two_processes_draw_the_same_chains_as_one(tmp_path):
    study = dataclasses.replace(REGRESSION_COVERAGE, batch=2)
    small = {"settings": {**TINY, "methods": ("algorithm 1",)}, "replicates": 4}
    alone = nw.studies.run(study, out=tmp_path / "alone", **small).rows
    together = nw.studies.run(study, out=tmp_path / "together", workers=2, **small).rows
    for name, column in alone.items():
        np.testing.assert_array_equal(together[name], column)


def test_a_coverage_of_one_has_an_error_too():
    for hits, misses in ((100, 0), (83, 17)):
        share, error = covering(np.repeat([True, False], [hits, misses]))
        assert share == hits / 100
        np.testing.assert_allclose(error, stats.beta(hits + 0.5, misses + 0.5).std())


def test_a_method_that_a_study_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="methods must be among 'algorithm 1', 'counts', 'interwoven'; got 'magic'"):
        nw.studies.run(REGRESSION_COVERAGE, settings={"methods": ("magic",)}, out=tmp_path)
    with pytest.raises(ValueError, match="The regression study has the methods"):
        nw.studies.run(REGRESSION_COVERAGE, settings={**TINY, "methods": ("counts",)}, out=tmp_path)
