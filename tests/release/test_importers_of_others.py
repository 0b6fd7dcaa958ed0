"""Releases of PipelineDP, Tumult, Google's libraries and diffprivlib: the noise that the tool says, or a sentence."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.release.importers.google_dp import google_sigma

FIXTURES = Path(__file__).parent / "fixtures"


def stored(tool):
    return json.loads((FIXTURES / f"{tool}.json").read_text())


def scale_of(release):
    return np.asarray(release.measurements[0].noise.scale)


def test_pipelinedp_s_stored_output_keeps_its_standard_deviations():
    found = stored("pipelinedp")["outputs"]
    for kind, law in (("laplace", nw.noise.Laplace), ("gaussian", nw.noise.Gaussian)):
        release = nw.Release.from_pipelinedp(found[kind], noise_kind=kind, partitions=["a", "b"], column="city")
        assert type(release.measurements[0].noise) is law
        deviations = [dict(found[kind])[key]["count_noise_stddev"] for key in "ab"]
        np.testing.assert_allclose(np.sqrt(np.asarray(release.measurements[0].noise.variance)), deviations, rtol=1e-12)
        assert release.measurements[0].value[0] == dict(found[kind])["a"]["count"]
    ask = {"noise_kind": "laplace", "partitions": ["a", "b"]}
    with pytest.raises(ValueError, match=r"count_noise_stddev of partition 'a' is missing"):
        nw.Release.from_pipelinedp(found["laplace without noise"], **ask)
    with pytest.raises(ValueError, match=r"complete public list: \['c'\] have no output"):
        nw.Release.from_pipelinedp(found["laplace"], noise_kind="laplace", partitions=["a", "b", "c"])
    with pytest.raises(ValueError, match="noise_kind must be"):
        nw.Release.from_pipelinedp(found["laplace"], noise_kind="uniform", partitions=["a", "b"])
    for partitions in (None, "ab"):
        with pytest.raises(ValueError, match="partitions must list the public partitions"):
            nw.Release.from_pipelinedp(found["laplace"], noise_kind="laplace", partitions=partitions)
    for outputs in (None, [3.0]):
        with pytest.raises(ValueError, match="must be pairs of a partition and its MetricsTuple"):
            nw.Release.from_pipelinedp(outputs, **ask)
    with pytest.raises(ValueError, match="have a partition twice"):
        nw.Release.from_pipelinedp([*found["laplace"], found["laplace"][0]], **ask)
    one = found["laplace"][:1]
    with pytest.raises(ValueError, match="The clamping interval of the sum is missing"):
        nw.Release.from_pipelinedp(one, noise_kind="laplace", partitions=["b"], metric="sum", n=33)
    release = nw.Release.from_pipelinedp(one, noise_kind="laplace", partitions=["b"], metric="sum", n=33, bounds=(0, 4))
    assert scale_of(release)[0] == pytest.approx(8.0)


def test_pipelinedp_itself_agrees():
    pdp = pytest.importorskip("pipeline_dp")
    budget = pdp.NaiveBudgetAccountant(total_epsilon=0.5, total_delta=0)
    params = pdp.AggregateParams(
        metrics=[pdp.Metrics.COUNT],
        noise_kind=pdp.NoiseKind.LAPLACE,
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        output_noise_stddev=True,
    )
    extract = pdp.DataExtractors(lambda row: row[0], lambda row: row[1], lambda row: 0)
    rows = [(person, "north") for person in range(50)]
    outputs = pdp.DPEngine(budget, pdp.LocalBackend()).aggregate(
        rows, params, extract, public_partitions=["north", "south"]
    )
    budget.compute_budgets()
    release = nw.Release.from_pipelinedp(list(outputs), noise_kind=pdp.NoiseKind.LAPLACE, partitions=["north", "south"])
    np.testing.assert_allclose(scale_of(release), 2.0)
    assert float(release.privacy.loss) == pytest.approx(0.5)


TUMULT = {
    "GEOMETRIC": nw.noise.DiscreteLaplace,
    "LAPLACE": nw.noise.Laplace,
    "GAUSSIAN": nw.noise.Gaussian,
    "DISCRETE_GAUSSIAN": nw.noise.DiscreteGaussian,
}


def test_tumult_s_stored_noise_buys_the_budget_that_was_spent():
    counts = nw.queries.Counts({"x": 2}, [("x",)])
    queries = {
        "count": nw.queries.Moments({"x": nw.Column(0, 1)}, [{}]),
        "grouped": counts,
        "sum": nw.queries.Moments({"v": nw.Column(0, 5)}, [{"v": 1}]),
        "integer sum": nw.queries.Moments({"k": nw.Column(0, 5)}, [{"k": 1}]),
    }
    for entry in stored("tumult"):
        if entry["query"] == "average":
            with pytest.raises(ValueError, match="holds 2 noises"):
                nw.Release.from_tumult(entry["noise"], entry["answer"], n=100)
        elif entry["query"] == "median":
            with pytest.raises(ValueError, match="EXPONENTIAL"):
                nw.Release.from_tumult(entry["noise"], entry["answer"], queries["sum"], n=100)
        else:
            release = nw.Release.from_tumult(entry["noise"], entry["answer"], queries[entry["query"]], n=100)
            assert type(release.measurements[0].noise) is TUMULT[entry["noise"][0]["noise_mechanism"]]
            assert float(release.privacy.loss) == pytest.approx(1.0)  # epsilon = 1, or rho = 1
    with pytest.raises(ValueError, match="The query is missing"):
        nw.Release.from_tumult(entry["noise"][:1], [3.0])
    with pytest.raises(ValueError, match="The noise information is missing: it is None"):
        nw.Release.from_tumult(None, [3.0], counts)
    with pytest.raises(ValueError, match="The noise information is missing: it is 3"):
        nw.Release.from_tumult(3, [3.0], counts)
    with pytest.raises(ValueError, match="The noise_parameter must be released numbers; got 'two'"):
        nw.Release.from_tumult({"noise_mechanism": "LAPLACE", "noise_parameter": "two"}, [3.0, 4.0], counts)
    with pytest.raises(ValueError, match="'noise_parameter' of the noise information is missing"):
        nw.Release.from_tumult([{"noise_mechanism": "LAPLACE"}], [3.0], counts)


def test_google_s_gaussian_noise_is_the_one_its_library_finds():
    for epsilon, delta, l2, sigma in stored("pipelinedp")["sigma"]:
        assert google_sigma(epsilon, delta, l2) == pytest.approx(sigma, rel=1e-12)
    how = {"aggregation": "sum", "noise": "gaussian", "epsilon": 0.5, "delta": 1e-5, "bounds": (-3, 1), "n": 60}
    assert scale_of(nw.Release.from_google_dp(17.25, **how)) == pytest.approx(21.10546875)


def test_google_s_laplace_noise_by_parameters():
    query = nw.queries.Counts({"day": 3}, [("day",)])
    release = nw.Release.from_google_dp(
        [8.5, 1.25, 3.0], aggregation="count", noise="laplace", epsilon=0.5, l0=3, linf=1, query=query, n=12
    )
    assert scale_of(release) == pytest.approx(6.0)
    whole = nw.Release.from_google_dp(50, aggregation="count", noise="laplace", epsilon=0.5)
    mechanism = whole.measurements[0].mechanism
    assert type(mechanism) is nw.mechanisms.CensoredNoise
    # the rounded law's mass at the released integer, from the distribution function
    expected = math.log(stats.laplace.cdf(3.5, scale=2) - stats.laplace.cdf(2.5, scale=2))
    assert float(mechanism.log_density(np.array([50.0]), np.array([47.0]))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sentence", "changed"),
    [
        ("aggregation must be", {"aggregation": "mean"}),
        ("noise must be", {"noise": "uniform"}),
        ("Gaussian noise needs delta", {"noise": "gaussian"}),
        ("Laplace noise has no delta", {"delta": 1e-6}),
        ("epsilon must be positive", {"epsilon": 0.0}),
        ("The clamping interval of the sum is missing", {"aggregation": "sum"}),
        ("The query is missing: with l0=2", {"l0": 2}),
        (r"The clamping interval of 'x' must be \(lower, upper\); got \(5,\)", {"aggregation": "sum", "bounds": (5,)}),
        ("must be finite released numbers", {"value": math.nan}),
        ("Gaussian noise needs delta", {"noise": "gaussian", "delta": "1e-6"}),
        ("l0 is a number of contributions, so it must be whole; got 1.5", {"l0": 1.5}),
        ("rounded must be True, False, or None", {"rounded": "yes"}),
    ],
)
def test_google_s_parameters_are_checked(sentence, changed):
    how = {"value": 5.5, "aggregation": "count", "noise": "laplace", "epsilon": 1.0, **changed}
    with pytest.raises(ValueError, match=sentence):
        nw.Release.from_google_dp(how.pop("value"), **how)


@pytest.fixture(scope="module")
def mechanisms():
    return pytest.importorskip("diffprivlib.mechanisms")


def test_diffprivlib_mechanisms_have_the_variance_they_state(mechanisms):
    sums = nw.queries.Moments({"x": nw.Column(0, 2)}, [{"x": 1}])
    count = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}])
    made = [
        (mechanisms.Laplace(epsilon=0.7, sensitivity=2), sums),
        (mechanisms.Laplace(epsilon=0.7, delta=0.1, sensitivity=2), sums),
        (mechanisms.Gaussian(epsilon=0.7, delta=1e-5, sensitivity=2), sums),
        (mechanisms.GaussianAnalytic(epsilon=3.0, delta=1e-5, sensitivity=2), sums),
        (mechanisms.Geometric(epsilon=0.7, sensitivity=1), count),
    ]
    for mechanism, query in made:
        release = nw.Release.from_diffprivlib(mechanism, 5.0, query, n=10)
        variance = float(np.ravel(release.measurements[0].noise.variance)[0])
        assert variance == pytest.approx(mechanism.variance(5), rel=1e-9)
    discrete = mechanisms.GaussianDiscrete(epsilon=0.7, delta=1e-5, sensitivity=1)
    release = nw.Release.from_diffprivlib(discrete, 5, count, n=10)
    assert type(release.measurements[0].noise) is nw.noise.DiscreteGaussian
    assert scale_of(release) == discrete._scale


def test_diffprivlib_s_ends_are_kept(mechanisms):
    query = nw.queries.Moments({"x": nw.Column(0, 2)}, [{"x": 1}])
    cut = mechanisms.LaplaceTruncated(epsilon=1.0, sensitivity=0.2, lower=0, upper=2)
    release = nw.Release.from_diffprivlib(cut, 2.0, query, n=10, mean=True)
    mechanism = release.measurements[0].mechanism
    assert type(mechanism) is nw.mechanisms.CensoredNoise
    assert (float(mechanism.noise.scale), float(mechanism.upper)) == (pytest.approx(2.0), 20.0)
    # at the end lies the whole upper tail beyond it
    expected = stats.laplace.logsf(20 - 13, scale=2)
    assert float(mechanism.log_density(np.array([20.0]), np.array([13.0]))) == pytest.approx(expected)
    bounded = mechanisms.LaplaceBoundedDomain(epsilon=1.0, sensitivity=2, lower=0, upper=20)
    again = nw.Release.from_diffprivlib(bounded, 13.0, query, n=10).measurements[0].mechanism
    assert type(again) is nw.mechanisms.TruncatedNoise
    assert float(again.noise.scale) == pytest.approx(2 / bounded.effective_epsilon())
    draws = np.array([bounded.randomise(3.0) for _ in range(4000)])
    mean, error = np.mean(draws), np.std(draws) / np.sqrt(draws.size)
    grid = np.linspace(0, 20, 20001)
    density = np.exp([float(again.noise.log_prob(np.array(point - 3.0))) for point in grid[::100]])
    assert abs(mean - np.average(grid[::100], weights=density)) < 4 * error


def test_a_diffprivlib_mechanism_of_another_sensitivity_is_told(mechanisms):
    query = nw.queries.Moments({"x": nw.Column(0, 2)}, [{"x": 1}])
    with pytest.warns(UserWarning, match=r"was told the sensitivity 0.2, but the query's is 2 .* give mean=True"):
        nw.Release.from_diffprivlib(mechanisms.Laplace(epsilon=1, sensitivity=0.2), 1.0, query, n=10)


@pytest.mark.parametrize("name", ["Staircase", "Uniform", "Snapping", "LaplaceFolded"])
def test_diffprivlib_mechanisms_that_are_not_read_are_refused(name, mechanisms):
    with pytest.raises(ValueError, match="is not a diffprivlib mechanism that is read here"):
        nw.Release.from_diffprivlib(mechanisms.__dict__[name].__new__(mechanisms.__dict__[name]), 1.0)
    with pytest.raises(ValueError, match=r"The query is missing: diffprivlib's Laplace knows the sensitivity 2"):
        nw.Release.from_diffprivlib(mechanisms.Laplace(epsilon=1, sensitivity=2), 1.0)
