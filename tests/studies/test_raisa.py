"""The thesis's figures: every cell is filled, chains know only themselves, and accountants rank as they must."""

from __future__ import annotations

import numpy as np
import pytest

import noisewise as nw
from noisewise.studies import raisa
from noisewise.studies.base import group


def rows_by(rows, *names):
    return dict(group(rows, *names))


def test_figure_6_1_the_tight_accountant_always_allows_the_most(tmp_path):
    outcome = nw.studies.run("raisa-accountants", settings={"epsilons": (1.0, 2.0)}, out=tmp_path)
    counts = {
        key: int(part["iterations"][0]) for key, part in group(outcome.rows, "algorithm", "accountant", "epsilon")
    }
    for algorithm, tight in (("dpps", "tight"), ("hmc", "tight"), ("mdpps", "pld_without_replacement")):
        for epsilon in (1.0, 2.0):
            ours = [count for (a, _, e), count in counts.items() if (a, e) == (algorithm, epsilon)]
            assert counts[algorithm, tight, epsilon] == max(ours) > min(ours)
        assert counts[algorithm, tight, 2.0] > counts[algorithm, tight, 1.0]
    assert any(path.name == "figure_6_1.png" and path.stat().st_size > 5000 for path in outcome.files)


@pytest.fixture(scope="module")
def samplers(tmp_path_factory):
    return nw.studies.run("raisa-samplers", tiny=True, replicates=3, out=tmp_path_factory.mktemp("out"))


def test_every_sampler_of_an_experiment_is_judged_at_every_epsilon(samplers):
    parts = rows_by(samplers.rows, "experiment", "algorithm")
    assert set(parts) == {("tempered-2d", a) for a in ("dppa", "hmc", "exact", "oneshot")} | {
        ("circle", a) for a in ("dppa", "hmc", "exact")
    }
    for (_, algorithm), part in parts.items():
        ran = part["iterations"] >= 4
        assert np.all(np.isfinite(part["discrepancy"][ran | (part["algorithm"] == "exact")]))
        if algorithm in ("dppa", "hmc"):
            for (_,), chain in group(part, "replicate"):
                assert np.all(np.diff(chain["iterations"]) >= 0)
            assert np.all((part["clip_fraction"][ran] >= 0) & (part["clip_fraction"][ran] <= 1))
            assert np.all(np.isfinite(part["gradient_clip_fraction"][ran]) == (algorithm == "hmc"))
    exact = parts["tempered-2d", "exact"]["discrepancy"]
    assert np.max(exact) < 0.06 < np.min(parts["tempered-2d", "dppa"]["discrepancy"])
    assert {path.name for path in samplers.files if path.suffix == ".png"} == {
        f"figure_6_{number}.png" for number in (3, 5, 7, 8)
    }


def test_a_chain_is_the_same_whatever_runs_beside_it():
    cell = {"experiment": "tempered-2d", "algorithm": "dppa", "n": 1500}
    together = raisa.run_samplers(cell, range(3), 0)
    alone = raisa.run_samplers(cell, range(1, 2), 0)
    assert [row for row in together if row["replicate"] == 1] == alone
    assert together[0]["discrepancy"] != together[-1]["discrepancy"]


def test_clipping_study_sees_more_ratios_clipped_by_a_smaller_bound(tmp_path):
    outcome = nw.studies.run("raisa-clipping", tiny=True, out=tmp_path)
    clipped = {key: part["clip_fraction"].mean() for key, part in group(outcome.rows, "sampler", "bound")}
    assert clipped["walk", 0.5] > clipped["walk", 4.0]
    assert clipped["hmc", 0.5] > clipped["hmc", 4.0]
    assert outcome.files[-1].name == "figure_6_2.png"


def test_the_median_of_missing_cells_is_missing_and_its_error_is_that_of_the_median():
    assert np.all(np.isnan(raisa.median(np.array([np.nan, np.nan]))))
    draws = np.random.default_rng(3).normal(size=400)
    middle, error = raisa.median(np.append(draws, np.nan))
    assert middle == np.median(draws)
    assert error == pytest.approx(1.2533 / 20, rel=0.35)
