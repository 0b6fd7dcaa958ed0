"""Census noisy measurement files: read by unit and query, refused when incomplete, and the posterior of counts against enumeration."""

import sys
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import noisewise as nw
from noisewise.engines.counts import Counts
from noisewise.release.importers.census_nmf import scale_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "census"))
import make_files
import small_areas


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("census") / "nmf.parquet"
    make_files.write(found)
    return found


@pytest.fixture(scope="module")
def table(path):
    return pq.read_table(path).to_pylist()


def noisy(table, code, name):
    return next(row for row in table if row["geocode"] == code and row["query_name"] == name)


def test_the_scale_is_that_of_the_discrete_law_with_the_stated_variance():
    for variance in (0.02, 0.3, 1.0, 3.9, 4.1, 250.0):
        k = np.arange(-1000, 1001)
        mass = np.exp(-(k**2) / (2 * scale_of(variance) ** 2))
        assert np.sum(k**2 * mass) / np.sum(mass) == pytest.approx(variance, rel=1e-10)


def test_two_levels_of_geography_are_two_tables(path, table):
    release = small_areas.read(str(path))
    assert release.n == make_files.truth().sum()
    assert [m.query.tables for m in release.measurements] == [(("y",),), (("y", "x1"),)]
    blocks = [noisy(table, code, "total_dpq")["value"][0] for code in small_areas.BLOCK_CODES]
    assert np.ravel(release.measurements[1].value).tolist() == blocks
    np.testing.assert_allclose(np.asarray(release.measurements[0].noise.scale) ** 2, 12.0, rtol=1e-12)
    assert type(release.measurements[0].noise) is nw.noise.DiscreteGaussian


def test_attributes_become_columns_in_the_order_of_the_shape(path, table):
    codes = small_areas.BLOCK_CODES[:2]
    release = nw.Release.from_census_nmf(path, codes, queries=["votingage"], invariants={}, geography=["block"])
    assert release.measurements[0].query.levels == (("block", 2), ("votingage", 2))
    expected = [noisy(table, code, "votingage_dpq")["value"] for code in codes]
    assert np.reshape(release.measurements[0].value, (2, 2)).tolist() == expected
    crossed = {**table[0], "query_name": "hispanic * votingage_dpq", "query_shape": [1, 2, 2, 1], "value": [1, 2, 3, 4]}
    other = path.with_name("crossed.parquet")
    pq.write_table(pa.Table.from_pylist([crossed]), other)
    with pytest.raises(ValueError, match="The order of the attributes of 'hispanic \\* votingage' is missing"):
        nw.Release.from_census_nmf(other, [make_files.COUNTY], queries=["hispanic * votingage"])
    named = nw.Release.from_census_nmf(
        other, [make_files.COUNTY], queries=["hispanic * votingage"], attributes=("hhgq", "age", "hispanic", "race")
    )
    assert named.measurements[0].query.levels == (("geocode", 1), ("age", 2), ("hispanic", 2))


def test_two_codings_of_an_attribute_are_not_one_column(path, table):
    coarse = {**table[0], "query_name": "hhinstlevels_dpq", "query_shape": [3, 1, 1, 1], "value": [1, 2, 3]}
    fine = {**table[0], "query_name": "hhgq_dpq", "query_shape": [8, 1, 1, 1], "value": list(range(8))}
    other = path.with_name("coded.parquet")
    pq.write_table(pa.Table.from_pylist([coarse, fine]), other)
    names = ("hhgq", "age", "hispanic", "race")
    ask = {"queries": ["hhgq", "hhinstlevels"], "attributes": names}
    with pytest.raises(ValueError, match="'hhgq' has 8 levels in 'geocode hhgq' and 3 in 'geocode hhinstlevels'"):
        nw.Release.from_census_nmf(other, make_files.COUNTY, **ask)
    alone = nw.Release.from_census_nmf(other, make_files.COUNTY, queries="hhinstlevels", attributes=names)
    assert alone.measurements[0].query.levels == (("geocode", 1), ("hhgq", 3))
    with pytest.raises(ValueError, match="path must be a Parquet file"):
        nw.Release.from_census_nmf(None, make_files.COUNTY)


def test_only_the_rows_that_were_asked_for_are_loaded(path, monkeypatch):
    seen = []
    opened = ds.dataset

    class Counting:
        """Arrow's classes cannot be patched; the function that opens files hands this out instead."""

        def __init__(self, *args, **kwargs):
            self.inner = opened(*args, **kwargs)
            self.schema = self.inner.schema

        def to_table(self, *args, **kwargs):
            found = self.inner.to_table(*args, **kwargs)
            seen.append(found.num_rows)
            return found

    monkeypatch.setattr(ds, "dataset", Counting)
    nw.Release.from_census_nmf(path, small_areas.BLOCK_CODES[:3])
    assert seen == [3]


def test_hive_folders_are_read_by_level(table, tmp_path):
    for level, length in (("County", 5), ("Tract", 9)):
        folder = tmp_path / f"geolevel={level}"
        folder.mkdir()
        pq.write_table(
            pa.Table.from_pylist([row for row in table if len(row["geocode"]) == length]), folder / "part.parquet"
        )
    release = nw.Release.from_census_nmf(tmp_path, small_areas.TRACT_CODES, level="Tract")
    assert release.measurements[0].query.size == 3
    with pytest.raises(ValueError, match="The query 'total' is missing"):
        nw.Release.from_census_nmf(tmp_path, small_areas.TRACT_CODES, level="County")


@pytest.mark.parametrize(
    ("sentence", "codes", "how"),
    [
        ("'total' of '450010009' is missing", ["450010001", "450010009"], {}),
        ("The query 'age' is missing", ["450010001"], {"queries": ["age"]}),
        ("equally many smaller ones", ["450010001", "4500100011", "450010002"], {}),
        ("3 different lengths", ["45001", "450010001", "4500100011"], {}),
        ("The invariant of '450010002' is missing", ["450010001", "450010002"], {"invariants": {"450010001": 9}}),
        ("invariants names \\['7'\\]", ["450010001", "450010002"], {"invariants": {"7": 9}}),
        ("must be a whole number", ["450010001"], {"invariants": {"450010001": 9.5}}),
        ("The column 'geolevel' is missing", ["450010001"], {"level": "Tract"}),
        ("geography must name 1 column", ["450010001"], {"geography": ["a", "b"]}),
        ("different geographic units", [], {}),
        ("different geographic units", None, {}),
        ("whose codes are text and may begin with zeros; got \\[450010001\\]", [450010001], {}),
        ("queries must be a non-empty list", ["450010001"], {"queries": []}),
        ("attributes must be a non-empty list", ["450010001"], {"attributes": (1, 2, 3, 4)}),
        ("attributes must name all 4 attributes", ["450010001"], {"queries": "votingage", "attributes": "age"}),
        ("invariants must give exact totals by unit", ["450010001"], {"invariants": [9]}),
    ],
)
def test_what_is_missing_is_named(path, sentence, codes, how):
    with pytest.raises(ValueError, match=sentence):
        nw.Release.from_census_nmf(path, codes, **how)


@pytest.mark.parametrize(
    ("sentence", "changed"),
    [
        ("The column 'variance' is missing", {"variance": "drop"}),
        ("has 2 values, but its shape \\[1, 1, 1, 1\\] asks for 1", {"value": [3, 4]}),
        ("'variance' in 'total_dpq' of '45001' is missing", {"variance": None}),
        ("has the variance -1.0", {"variance": -1.0}),
    ],
)
def test_incomplete_files_are_refused(table, tmp_path, sentence, changed):
    row = {**noisy(table, "45001", "total_dpq"), **changed}
    row = {name: value for name, value in row.items() if value != "drop"}
    pq.write_table(pa.Table.from_pylist([row], schema=None), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=sentence):
        nw.Release.from_census_nmf(tmp_path / "bad.parquet", ["45001"])
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        nw.Release.from_census_nmf(tmp_path / "text.parquet", ["45001"])


def exact_moments(release):
    """Posterior means and sds of tract and block counts, by convolution over whole numbers.

    The law of the counts under Dirichlet priors with all weights one: the tracts' totals are uniform on all ways to
    distribute n people, and the blocks' counts on all ways to distribute their tract's.
    """
    n, (tracts, blocks) = release.n, [m for m in release.measurements]
    count = np.arange(n + 1)

    def likelihood(measurement, at):
        scale = np.broadcast_to(np.asarray(measurement.noise.scale), measurement.value.shape).ravel()[at]
        return np.exp(-((float(np.ravel(measurement.value)[at]) - count) ** 2) / (2 * scale**2))

    per = small_areas.BLOCKS
    ways = np.array([float(np.prod((m + np.arange(1, per)) / np.arange(1, per))) for m in count])
    cells = [[likelihood(blocks, per * t + b) for b in range(per)] for t in range(small_areas.TRACTS)]

    def joined(factors):
        total = np.eye(1, n + 1)[0]
        for factor in factors:
            total = np.convolve(total, factor)[: n + 1]
        return total

    whole = [joined(cells[t]) / ways * likelihood(tracts, t) for t in range(small_areas.TRACTS)]
    means, sds = [], []
    for t in range(small_areas.TRACTS):
        rest = joined([whole[other] for other in range(small_areas.TRACTS) if other != t])[::-1]
        weight = whole[t] * rest
        outside = rest / ways * likelihood(tracts, t)
        for b in range(per):
            others = joined([cells[t][other] for other in range(per) if other != b])
            at = np.array([np.sum(others[: n + 1 - c] * outside[c:]) for c in count]) * cells[t][b]
            means.append(np.average(count, weights=at))
            sds.append(np.sqrt(np.average((count - means[-1]) ** 2, weights=at)))
        assert np.sum(means[-per:]) == pytest.approx(np.average(count, weights=weight), rel=1e-9)
    return np.array(means), np.array(sds)


@pytest.fixture(scope="module")
def release(path):
    return small_areas.read(str(path))


def test_exact_tract_means_agree_with_the_convolution(release):
    means, _ = exact_moments(release)
    tracts, per, n = small_areas.TRACTS, small_areas.BLOCKS, release.n
    model = nw.models.NaiveBayes(classes=tracts, features=[per], prior=1.0)
    exact = Counts().build(model, release, jax.random.key(0)).exact()
    counts = np.asarray(exact.means["class_probs"]) * (n + tracts) - 1
    np.testing.assert_allclose(counts, means.reshape(tracts, per).sum(axis=1), rtol=1e-8)


def test_posterior_counts_agree_with_the_convolution_and_respect_what_is_known(release):
    means, sds = exact_moments(release)
    counts = small_areas.posterior(release)
    assert np.all(counts >= 0)
    assert np.all(counts.sum(axis=1) == release.n)
    # errors of correlated draws, from means over stretches of consecutive ones
    stretches = counts[: counts.shape[0] // 25 * 25].reshape(25, -1, counts.shape[1]).mean(axis=1)
    error = stretches.std(axis=0, ddof=1) / np.sqrt(25)
    assert np.all(np.abs(counts.mean(axis=0) - means) < 4.5 * error)
    estimate, _ = small_areas.least_squares(release)
    # the wrong twin: least squares sums to the total as well, but goes below zero and misses the posterior mean
    assert estimate.sum() == pytest.approx(release.n)
    assert np.any(np.abs(estimate - means) > 4.5 * error)
    assert estimate.min() < 0
    assert np.all(sds < 3.9)


def test_least_squares_is_the_constrained_minimum(release):
    estimate, error = small_areas.least_squares(release)
    size = estimate.size
    design = np.vstack([np.repeat(np.eye(3), 4, axis=1), np.eye(size)])
    noisy = np.concatenate([np.asarray(m.value) for m in release.measurements])
    weight = np.diag(1 / np.concatenate([np.asarray(m.noise.variance) for m in release.measurements]))
    # the same by the bordered normal equations
    border = np.block([[design.T @ weight @ design, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
    inverse = np.linalg.inv(border)
    solved = inverse @ np.concatenate([design.T @ weight @ noisy, [release.n]])
    np.testing.assert_allclose(estimate, solved[:size], rtol=1e-9)
    np.testing.assert_allclose(error, np.sqrt(np.diag(inverse)[:size]), rtol=1e-9)


def test_invariants_of_units_are_exact_for_the_counts_engine(path):
    people = make_files.truth().sum(axis=(1, 2))
    invariants = {code: int(count) for code, count in zip(small_areas.TRACT_CODES, people, strict=True)}
    codes = small_areas.TRACT_CODES
    total = {make_files.COUNTY: int(people.sum())}
    release = nw.Release.from_census_nmf(
        path, codes, parent=make_files.COUNTY, invariants={**invariants, **total}, geography=["y"]
    )
    model = nw.models.Categorical([1.0, 1.0, 1.0], column="y")
    exact = Counts().build(model, release, jax.random.key(0)).exact()
    np.testing.assert_allclose(exact.means["p"], (people + 1) / (people.sum() + 3), rtol=1e-12)
    assert nw.explain(model, release).engine.name == "counts"
