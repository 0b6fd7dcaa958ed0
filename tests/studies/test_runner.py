"""A study leaves the same numbers however it was cut, stopped, retried or run again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from coin_study import COINS

import noisewise as nw
from noisewise.studies.base import name_of, seed_of


def test_a_study_writes_rows_table_and_says_what_it_cost(tmp_path):
    import pyarrow.parquet as pq
    import xarray as xr

    outcome = nw.studies.run(COINS, out=tmp_path)
    assert outcome.tasks == 2 * 3
    folder = tmp_path / "coins"
    assert "| p = 0.2 | 0.2 |" in (folder / "table.md").read_text()
    table = pq.read_table(folder / "results.parquet")
    assert table.column_names == ["p", "tosses", "broken", "replicate", "heads", "side"]
    assert table["replicate"].to_pylist() == [*range(10)] * 2
    with xr.open_dataset(folder / "results.nc", engine="h5netcdf") as dataset:
        np.testing.assert_array_equal(dataset["heads"].values, outcome.rows["heads"])
        assert dataset.attrs["seed"] == 0
        assert list(dataset["side"].values) == ["heads"] * 20
    for (p, here), line in zip(
        [(0.2, outcome.lines[0].here), (0.7, outcome.lines[1].here)], outcome.lines, strict=True
    ):
        assert abs(here - p) < 4 * line.error


def test_numbers_depend_on_cell_replicate_and_seed_alone(tmp_path):
    whole = nw.studies.run(COINS, out=tmp_path / "a").rows["heads"]
    other_batches = dataclasses.replace(COINS, batch=3)
    np.testing.assert_array_equal(nw.studies.run(other_batches, out=tmp_path / "b").rows["heads"], whole)
    one_cell = nw.studies.run(COINS, out=tmp_path / "c", settings={"probabilities": (0.7,)}, replicates=3).rows["heads"]
    np.testing.assert_array_equal(one_cell, whole[10:13])
    assert np.any(nw.studies.run(COINS, out=tmp_path / "d", random_seed=1).rows["heads"] != whole)


def test_randomness_that_a_process_carries_along_is_seen_to_be_wrong(tmp_path):
    rng = np.random.default_rng(0)

    def careless(cell, replicates, seed):
        return [{"replicate": r, "heads": rng.binomial(cell["tosses"], cell["p"]), "side": "heads"} for r in replicates]

    wrong = dataclasses.replace(COINS, run=careless)
    whole = nw.studies.run(wrong, out=tmp_path / "a").rows["heads"]
    assert np.any(nw.studies.run(wrong, out=tmp_path / "b").rows["heads"] != whole)


def test_a_rerun_makes_only_what_is_missing(tmp_path):
    first = nw.studies.run(COINS, out=tmp_path, replicates=6)
    again = nw.studies.run(COINS, out=tmp_path, replicates=6)
    assert (first.tasks, again.tasks) == (4, 0)
    np.testing.assert_array_equal(again.rows["heads"], first.rows["heads"])
    more = nw.studies.run(COINS, out=tmp_path)
    assert more.tasks == 2 * 2
    np.testing.assert_array_equal(more.rows["heads"], nw.studies.run(COINS, out=tmp_path / "fresh").rows["heads"])
    fewer = nw.studies.run(COINS, out=tmp_path, replicates=2)
    assert fewer.tasks == 0
    np.testing.assert_array_equal(fewer.rows["heads"], first.rows["heads"][[0, 1, 6, 7]])


def test_half_a_part_is_no_part(tmp_path):
    whole = nw.studies.run(COINS, out=tmp_path)
    part = sorted((tmp_path / "coins" / "parts").iterdir())[0]
    # what a kill in the middle of writing leaves
    (part.parent / f".{part.name}.123").write_bytes(part.read_bytes()[:50])
    part.unlink()
    again = nw.studies.run(COINS, out=tmp_path)
    assert again.tasks == 1
    np.testing.assert_array_equal(again.rows["heads"], whole.rows["heads"])


def test_failed_tasks_are_named_and_the_others_kept(tmp_path):
    trouble = tmp_path / "trouble"
    trouble.touch()
    broken = {"broken": str(trouble)}
    with pytest.raises(ValueError, match=r"6 of 6 tasks of coins failed .*the coin is lost"):
        nw.studies.run(COINS, out=tmp_path, settings=broken)
    trouble.unlink()
    assert nw.studies.run(COINS, out=tmp_path, settings=broken).tasks == 6


def test_a_folder_holds_one_seed(tmp_path):
    nw.studies.run(COINS, out=tmp_path, replicates=1)
    with pytest.raises(ValueError, match=r"seed 0.*not of coins \(seed 1"):
        nw.studies.run(COINS, out=tmp_path, replicates=1, random_seed=1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"replicates": 0}, "replicates must be a whole number of at least 1; got 0"),
        ({"workers": -1}, "workers must be"),
        ({"workers": 2, "scheduler": "tcp://nowhere:1"}, "not both"),
        ({"settings": {"tosse": 3}}, "no setting 'tosse'; it has probabilities, tosses, broken"),
        ({"settings": {"probabilities": ()}}, "nothing of the study coins to run"),
        ({"settings": {"probabilities": 0.5}}, r"probabilities of coins must be like \[0.2, 0.7\]; got 0.5"),
        ({"settings": {"probabilities": ["half"]}}, r"must be like \[0.2, 0.7\]; got \['half'\]"),
        ({"settings": {"tosses": 2.5}}, "tosses of coins must be like 100; got 2.5"),
        ({"settings": {"tosses": True}}, "tosses of coins must be like 100; got True"),
        ({"settings": {"broken": 3}}, 'broken of coins must be like ""; got 3'),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=match):
        nw.studies.run(COINS, out=tmp_path, **arguments)


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match="no study 'coins'"):
        nw.studies.run("coins")


def test_seeds_know_the_cell_by_its_content():
    assert name_of({"a": 1, "b": 0.5}) == name_of({"b": np.float64(0.5), "a": np.int64(1)})
    seeds = {seed_of(s, {"a": a}, r) for s in range(3) for a in range(3) for r in range(3)}
    assert len(seeds) == 27


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (lambda cell, replicates, seed: [{"replicate": 0}], "rows for the replicates"),
        (lambda cell, replicates, seed: {"heads": np.zeros(4)}, "rows for the replicates"),
        (lambda cell, replicates, seed: {"replicate": np.array(list(replicates)), "p": 1.0}, r"columns \['p'\]"),
    ],
)
def test_a_study_that_returns_the_wrong_rows_is_told(rows, match):
    with pytest.raises(RuntimeError, match=match):
        dataclasses.replace(COINS, run=rows).rows_of({"p": 0.5}, range(4), 0)
