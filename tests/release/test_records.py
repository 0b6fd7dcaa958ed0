"""Releases of every record: documents with a Parquet table, laws of noise by column, missing values, and publishing."""

import json

import numpy as np
import pytest
from pyarrow import parquet
from scipy import stats

import noisewise as nw
from noisewise.release.schema import ReleaseDocument

RNG = np.random.default_rng(5)
N = 60
TABLE = {"y": np.round(np.exp(3 + RNG.normal(size=N))), "x1": RNG.normal(size=N), "c": RNG.integers(0, 3, N) * 1.0}
PUBLIC = RNG.normal(size=N)
SCALES = np.linspace(0.1, 0.4, N)
QUERY = nw.queries.Records(columns=("y", "x1", "c"), public=("x2",), missing=True)
NOISE = {
    "y": nw.noise.DiscreteLaplace.from_rho(0.1),
    "x1": nw.noise.Laplace(SCALES),
    "c": nw.noise.RandomisedResponse(0.3, 3),
}


def with_gaps():
    table = {**TABLE, "x2": PUBLIC}
    table["x1"] = np.where(np.arange(N) % 7 == 0, np.nan, table["x1"])
    return table


def test_a_published_table_is_a_document_with_a_parquet_file_and_comes_back_whole(tmp_path):
    release = nw.publish(with_gaps(), QUERY, NOISE)
    path = release.save(tmp_path / "survey.json")
    document = json.loads(path.read_text())
    ReleaseDocument.model_validate(document)
    values = document["measurements"][0]["values"]
    assert values["encoding"] == "parquet"
    table = parquet.read_table(tmp_path / values["file"])
    assert table.column_names == ["y", "x1", "c", "x2"]
    assert table.column("x1").null_count == 9
    again = nw.Release.load(path)
    np.testing.assert_array_equal(again.measurements[0].value, release.measurements[0].value)
    laws = again.measurements[0].mechanism.laws
    np.testing.assert_array_equal(laws["x1"].scale, SCALES)
    assert laws["c"].levels == 3
    assert again.describe() == release.describe()
    for phrase in ("x2", "Missing: 9 value(s)", "On y:", "discrete Laplace"):
        assert phrase in release.describe()
    (tmp_path / values["file"]).write_bytes(b"other")
    with pytest.raises(ValueError, match="SHA-256 differs"):
        nw.Release.load(path)


def test_publishing_adds_the_noise_it_says_to_the_noisy_columns_alone():
    n = 4000
    rng = np.random.default_rng(0)
    exact = {"y": rng.integers(0, 50, n) * 1.0, "x": rng.normal(size=n), "c": rng.integers(0, 3, n) * 1.0}
    exact["x"][::9] = np.nan
    query = nw.queries.Records(columns=("y", "x"), public=("c",), missing=True)
    scales = {"y": nw.noise.DiscreteLaplace(4.0), "x": nw.noise.Laplace(np.where(np.arange(n) % 2, 0.5, 2.0))}
    found = query.unflatten(nw.publish(exact, query, scales).measurements[0].value)
    np.testing.assert_array_equal(found["c"], exact["c"])
    np.testing.assert_array_equal(np.isnan(found["x"]), np.isnan(exact["x"]))
    for parity, scale in ((0, 2.0), (1, 0.5)):
        noise = (found["x"] - exact["x"])[parity::2]
        noise = noise[~np.isnan(noise)]
        assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 1e-6
        assert stats.kstest(noise, stats.laplace(scale=2 * scale).cdf).pvalue < 1e-6
    noise = found["y"] - exact["y"]
    assert np.all(noise == np.round(noise))
    mass = stats.dlaplace(0.25)
    shares = [np.sum(noise == k) for k in range(-3, 4)]
    expected = n * mass.pmf(np.arange(-3, 4))
    assert np.all(np.abs(shares - expected) < 5.5 * np.sqrt(expected))
    codes = nw.publish({"c": exact["c"]}, nw.queries.Records(("c",)), nw.noise.RandomisedResponse(0.3, 3))
    moved = (np.asarray(codes.measurements[0].value)[:, 0] - exact["c"]) % 3
    counts = np.bincount(moved.astype(int), minlength=3)
    assert stats.chisquare(counts, n * np.array([0.7, 0.15, 0.15])).pvalue > 1e-6
    assert float(codes.privacy.loss) == pytest.approx(np.log(0.7 / 0.15))


def test_the_log_likelihood_of_a_table_leaves_missing_values_out_and_holds_public_ones_fixed():
    released = {"y": [3.0, 5.0], "x1": [np.nan, 0.5], "c": [0.0, 2.0], "x2": [1.0, 2.0]}
    laws = {**NOISE, "x1": nw.noise.Laplace([0.2, 0.4])}
    measurement = nw.Measurement(QUERY, laws, released)
    records = {
        "y": np.array([4.0, 5.0]),
        "x1": np.array([9.0, 0.1]),
        "c": np.array([0.0, 1.0]),
        "x2": np.array([1.0, 2.0]),
    }
    q = 0.9
    first = np.log((1 - q) / (1 + q) * q) + np.log(0.7)
    second = np.log((1 - q) / (1 + q)) + np.log(1 / 0.8) - 1.0 + np.log(0.15)
    rows = measurement.mechanism.statistics(records, measurement.value)
    np.testing.assert_allclose(rows[:, 0], [first, second])
    moved = measurement.mechanism.statistics({**records, "x2": np.array([1.0, 2.5])}, measurement.value)
    assert np.isneginf(moved[1, 0])
    assert measurement.mechanism.privacy("replace_one") is None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nw.Measurement(nw.queries.Records(("y",)), nw.noise.Laplace(1.0), [[np.nan]]), "missing=True"),
        (lambda: nw.Measurement(nw.queries.Records(("y",), missing=True), nw.noise.Laplace(1.0), [[np.inf]]), "finite"),
        (lambda: nw.queries.Records(("y",), ("y",)), "distinct names"),
        (
            lambda: nw.Measurement(nw.queries.Records(("y",)), nw.noise.Laplace(1.0), {"y": [1.0], "z": [2.0]}),
            "does not name",
        ),
        (lambda: nw.Measurement(nw.queries.Records(("y",)), {"z": nw.noise.Laplace(1.0)}, [[1.0]]), "a law for each"),
        (
            lambda: nw.Measurement(nw.queries.Records(("y",)), {"y": nw.noise.Laplace([1.0, 2.0])}, [[1.0]]),
            "one for each of the 1",
        ),
        (
            lambda: nw.publish({"y": [0.5]}, nw.queries.Records(("y",)), nw.noise.DiscreteLaplace(1.0)),
            "fractional part",
        ),
        (
            lambda: nw.publish({"y": [3.0]}, nw.queries.Records(("y",)), nw.noise.RandomisedResponse(0.1)),
            "codes 0 to 1",
        ),
        (
            lambda: nw.publish(
                {"y": [3.0]}, nw.queries.Records(("y",)), nw.noise.Laplace(1.0), neighbours="add_remove_one"
            ),
            "publishes how many there are",
        ),
        (lambda: nw.publish({"y": [np.nan]}, nw.queries.Records(("y",)), nw.noise.Laplace(1.0)), "missing"),
    ],
)
def test_bad_tables_get_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_law_of_a_single_column_may_have_a_scale_for_each_record(tmp_path):
    scales, query = np.array([0.1, 0.2, 0.7]), nw.queries.Records(("x",))
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(scales), {"x": [1.0, 2.0, 3.0]})], n=3)
    again = nw.Release.load(release.save(tmp_path / "one.json"))
    for found in (release, again):
        np.testing.assert_array_equal(found.measurements[0].mechanism.laws["x"].scale, scales)
    total = release.measurements[0].mechanism.statistics({"x": np.zeros(3)}, release.measurements[0].value)
    np.testing.assert_allclose(total[:, 0], stats.laplace.logpdf([1, 2, 3], scale=scales))
    np.testing.assert_array_equal(
        nw.Measurement(query, nw.noise.Laplace(scales), [1.0, 2.0, 3.0]).value, [[1], [2], [3]]
    )
    with pytest.raises(ValueError, match="Scales by record are given by column"):
        nw.Measurement(query, nw.noise.Laplace(scales[:2]), {"x": [1.0, 2.0, 3.0]})
