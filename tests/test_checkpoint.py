"""Checkpoints: a run killed at any moment goes on to the very same draws, and any other file is refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import noisewise as nw
from noisewise import chains as driver
from noisewise import checkpoint
from reference import toy

LENGTHS = {"draws": 6000, "tune": 1000, "chains": 2, "thin": 3, "keep_latent": 6}

# Imports once; then, for each line read, a fork that runs (before any JAX backend exists, so that the fork is sound).
NURSERY = """
import os, sys, warnings, json
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import jax
import noisewise
from noisewise import chains as driver
from noisewise.compilation import use_compilation_cache
from pathlib import Path
from reference import toy
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        use_compilation_cache()
        driver._SECONDS_PER_CHUNK = 0.002
        toy.run(**{**json.loads(line), "checkpoint": Path(sys.argv[2])})
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}", flush=True)
"""


def same(left, right) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def identical(trace, expected) -> None:
    same(
        (trace.posterior, trace.stats, trace.predictive, trace.latent),
        (expected.posterior, expected.stats, expected.predictive, expected.latent),
    )


def test_a_run_killed_twenty_times_goes_on_to_the_very_same_draws(tmp_path):
    expected = toy.run(**LENGTHS)
    path = tmp_path / "run.checkpoint"
    chance = random.Random(7)
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(Path(__file__).parent), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    kills = lives = 0
    shares = []
    with nursery:
        while kills < 20 and lives < 200:
            lives += 1
            nursery.stdin.write(json.dumps(LENGTHS) + "\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            before = path.stat().st_mtime_ns if path.exists() else 0
            saves = chance.randrange(4)
            while saves >= 0 and Path(f"/proc/{child}/stat").exists() and not exited(child):
                now = path.stat().st_mtime_ns if path.exists() else 0
                saves, before = saves - (now != before), now
                time.sleep(0.001)
            time.sleep(chance.random() * 0.01)
            if not exited(child):
                os.kill(child, signal.SIGKILL)
            ended = nursery.stdout.readline().strip()
            assert ended in ("killed", "exit 0")
            kills += ended == "killed"
            if ended == "killed" and path.exists():
                shares.append(json.loads(np.load(path)["header"].tobytes())["made"])
            else:
                finished = toy.run(**LENGTHS, checkpoint=path)
                assert finished.resumed
                identical(finished, expected)
                path.unlink()
        nursery.stdin.close()
    assert kills == 20
    assert len(set(shares)) > 3, f"the kills did not come at different moments: {shares}"
    identical(toy.run(**LENGTHS, checkpoint=path), expected)


def exited(process: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def stopped(monkeypatch, path: Path, **settings) -> None:
    """A run that is stopped half way, with its checkpoint."""
    with monkeypatch.context() as patch:
        advance = driver.Chains.advance

        def interrupted(self, goal, *, tuning):
            found = advance(self, goal, tuning=tuning)
            if self.made >= 50:
                signal.raise_signal(signal.SIGINT)
            return found

        patch.setattr(driver.Chains, "advance", interrupted)
        trace = toy.run(checkpoint=path, **settings)
    assert trace.length >= 50


def test_a_stopped_run_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "run.checkpoint"
    stopped(monkeypatch, path, draws=2000, keep_latent=4)
    trace = toy.run(checkpoint=path, draws=2000, keep_latent=4)
    assert trace.resumed
    identical(trace, toy.run(draws=2000, keep_latent=4))


def test_a_stopped_run_that_goes_on_to_an_effective_sample_size_stops_where_it_would_have(monkeypatch, tmp_path):
    path = tmp_path / "run.checkpoint"
    lengths = {"draws": 20, "target_ess": 30.0}
    expected = toy.run(**lengths)
    assert expected.length > 300
    stopped(monkeypatch, path, **lengths)
    identical(toy.run(checkpoint=path, **lengths), expected)


def test_a_finished_run_can_be_made_longer_or_read_shorter(tmp_path):
    path = tmp_path / "run.checkpoint"
    toy.run(checkpoint=path, draws=200)
    longer = toy.run(checkpoint=path, draws=500)
    assert longer.resumed
    identical(longer, toy.run(draws=500))
    identical(toy.run(checkpoint=path, draws=100), toy.run(draws=100))


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    toy.run(checkpoint=path)
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cannot be read .* Delete it, or name another file"):
            toy.run(checkpoint=path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(ValueError, match="cannot be read"):
        toy.run(checkpoint=path)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "other"
    path.write_text("something else")
    with pytest.raises(ValueError, match="damaged or not a checkpoint"):
        toy.run(checkpoint=path)
    with open(path, "wb") as file:
        np.savez(file, a=np.ones(3))
    with pytest.raises(ValueError, match="damaged or not a checkpoint"):
        toy.run(checkpoint=path)
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match="damaged or not a checkpoint"):
        toy.run(checkpoint=path)
    checkpoint.save(path, {"version": 99}, {})
    with pytest.raises(ValueError, match="version 99; this version of noisewise reads"):
        toy.run(checkpoint=path)


@pytest.mark.parametrize("other", [{"tune": 41}, {"chains": 2}, {"thin": 2}, {"keep_latent": 3}, {"identity": "other"}])
def test_the_checkpoint_of_another_run_is_refused(tmp_path, other):
    path = tmp_path / "run.checkpoint"
    toy.run(checkpoint=path, draws=20)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="belongs to another run"):
        toy.run(checkpoint=path, draws=20, **other)
    with pytest.raises(ValueError, match="begun with random_seed=3; got 4"):
        toy.run(seed=4, checkpoint=path, draws=20)
    assert path.read_bytes() == kept


def bernoulli(scale=1.0, value=2.0, n=5, name=None, a=1.0):
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    measurement = nw.Measurement(query, nw.noise.Laplace(scale), [value], name=name)
    return nw.models.Bernoulli(a, 1), nw.Release([measurement], n=n), nw.engines.Augmentation(interweave=False)


def test_the_fingerprint_tells_runs_apart():
    prints = [
        checkpoint.fingerprint(*bernoulli(**change))
        for change in ({}, {"scale": 2.0}, {"value": 2.5}, {"n": 6}, {"name": "total"}, {"a": 2.0})
    ]
    model, release, _ = bernoulli()
    prints += [
        checkpoint.fingerprint(model, release, engine)
        for engine in (nw.engines.Augmentation(), nw.engines.Augmentation(interweave=False, block=2))
    ]
    assert len(set(prints)) == len(prints)
    assert checkpoint.fingerprint(*bernoulli()) == prints[0]


def test_a_checkpoint_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    checkpoint.save(path, {"seed": 1}, {"x": np.ones(3)})
    kept = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, {"seed": 2}, {"x": np.zeros(3)})
    assert path.read_bytes() == kept
    assert checkpoint.seed_of(path) == 1
