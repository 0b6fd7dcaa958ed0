"""``noisewise bench`` runs every engine there is and says what it measured."""

import json

from noisewise import cli
from noisewise.commands import bench
from noisewise.engines import choose


def test_every_engine_has_a_job():
    assert {method for _, _, method, _ in bench._JOBS} == set(choose._ENGINES)
    for _, make, method, _ in bench._JOBS:
        assert choose.engine_named(method).supports(*make()).ok


def test_what_was_measured_is_said(monkeypatch, capsys):
    jobs = [job for job in bench._JOBS if job[2] in ("fourier", "counts") and "tables" not in job[0]]
    monkeypatch.setattr(bench, "_JOBS", tuple(jobs))
    assert cli.main(["bench", "--small", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["n"] for job in found] == [300_000_000, 1_000_000]
    for job in found:
        assert job["converged"]
        assert job["draws"] == 4000
        # independent draws: about as many effective ones, and their rate goes with the time they took
        assert 3000 < job["ess_per_second"] * job["again"] < 5000
    assert cli.main(["bench", "--small"]) == 0
    assert "share of 3e8 records" in capsys.readouterr().out
