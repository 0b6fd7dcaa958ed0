"""A study on several processes gives the numbers of one process, whoever is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from coin_study import SLOW_COINS

import noisewise as nw

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from coin_study import SLOW_COINS
import noisewise as nw

if __name__ == "__main__":
    nw.studies.run(SLOW_COINS, out={out!r}, settings={{"log": {log!r}}}, workers=1)
"""


@pytest.fixture
def log(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    quick = {"log": str(folder), "probabilities": (0.2, 0.7)}
    return nw.studies.run(SLOW_COINS, out=folder, settings=quick).rows["heads"]


def working(log: Path) -> list[int]:
    """The processes that have begun a task and not ended it, the latest first."""
    at_work = [path for path in log.glob("*.begun") if not path.with_suffix(".ended").exists()]
    return [int(path.name.split("-")[0]) for path in sorted(at_work, key=lambda p: -p.stat().st_mtime)]


def begun(log: Path) -> Counter[str]:
    """How often each task was begun."""
    return Counter(path.name.split("-", 1)[1] for path in log.glob("*.begun"))


def test_a_worker_killed_amid_a_task_changes_no_number(tmp_path, log, expected):
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        if done >= 2 and not killed and (at_work := working(log)):
            os.kill(at_work[0], signal.SIGKILL)
            killed.append(at_work[0])

    outcome = nw.studies.run(SLOW_COINS, out=tmp_path, settings={"log": str(log)}, workers=2, report=kill_one)
    np.testing.assert_array_equal(outcome.rows["heads"], expected)
    assert len(killed) == 1
    # the task it was at was begun again by another process
    assert max(begun(log).values()) == 2
    assert len({path.name.split("-")[0] for path in log.iterdir()}) >= 2


def test_a_client_killed_amid_a_study_goes_on_to_the_same_numbers(tmp_path, log, expected):
    script = tmp_path / "client.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), out=str(tmp_path), log=str(log)))
    client = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    parts = tmp_path / "slow-coins" / "parts"
    try:
        for _ in range(1200):
            time.sleep(0.05)
            if len(list(parts.glob("[!.]*.parquet"))) >= 2 or client.poll() is not None:
                break
    finally:
        client.kill()
        client.wait()
    kept = len(list(parts.glob("[!.]*.parquet")))
    assert 2 <= kept < 20
    assert client.returncode == -signal.SIGKILL
    outcome = nw.studies.run(SLOW_COINS, out=tmp_path, settings={"log": str(log)})
    assert outcome.tasks == 20 - kept
    np.testing.assert_array_equal(outcome.rows["heads"], expected)


def test_a_scheduler_that_is_not_there_is_an_error_in_words(tmp_path, log, monkeypatch):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(ValueError, match=r"No Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"),
    ):
        nw.studies.run(SLOW_COINS, out=tmp_path, settings={"log": str(log)}, scheduler="tcp://127.0.0.1:1")
