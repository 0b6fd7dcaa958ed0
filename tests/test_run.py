"""The driver: the same draws however they are made, thinning, lengths, latent records, Ctrl-C, and no recompilation."""

import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise import chains as driver
from noisewise import progress
from noisewise.engines.base import Draw, Sampler
from noisewise.run import _MOST_EXTENSION, run_sampler
from noisewise.settings import Settings
from reference import toy


def same(left, right) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_draws_do_not_depend_on_the_number_of_chains_beside():
    two, three = toy.run(chains=2), toy.run(chains=3)
    same(two.posterior, {name: value[:2] for name, value in three.posterior.items()})
    same(two.predictive, {name: value[:2] for name, value in three.predictive.items()})
    assert len(np.unique(three.posterior["z"][:, -1, 0])) == 3
    np.testing.assert_array_equal(toy.run(chains=1).posterior["z"][0], three.posterior["z"][0])
    # a second group of chains runs beside the first one
    same(three.posterior, {name: value[:3] for name, value in toy.run(chains=6).posterior.items()})


@pytest.mark.parametrize("method", ["augmentation", "sufficient"])
def test_sums_are_rounded_alike_for_any_number_of_chains(method):
    """Compiled for as many lanes as there are chains, the first draws already differ in the last digits (seen for both)."""
    bounds = {name: nw.Column(-5, 5, rescale=(-1, 1)) for name in ("x1", "x2")}
    query = nw.queries.regression_moments(bounds, {"y": nw.Column(-10, 10, rescale=(-1, 1))})
    model = nw.models.LinearRegression(covariate_mean=[0.0, 0.0], covariate_cov=[[2.0, 0.3], [0.3, 1.0]])
    rng = np.random.default_rng(1)
    records = {name: rng.normal(size=100) for name in ("x1", "x2", "y")}
    noise = nw.noise.Laplace.calibrated(query, epsilon=10.0)
    value = query(records) + noise.scale * rng.laplace(size=query.size)
    release = nw.Release([nw.Measurement(query, noise, value)], n=100)

    def draws(chains):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nw.ConvergenceWarning)
            dt = nw.sample(
                model, release, draws=8, tune=8, chains=chains, method=method, random_seed=2, progressbar=False
            )
        return dt.posterior["beta"].values

    most = draws(12)
    for chains in (1, 3, 8):
        np.testing.assert_array_equal(draws(chains), most[:chains])


@pytest.mark.parametrize(("seconds", "rows"), [(0.0, 1.0), (1e9, 256.0)])
def test_draws_do_not_depend_on_the_chunks(monkeypatch, seconds, rows):
    expected = toy.run()
    monkeypatch.setattr(driver, "_SECONDS_PER_CHUNK", seconds)
    made = []
    advance = driver.Chains.advance

    def watched(self, goal, *, tuning):
        self._chunk_rows = rows
        before = self.tuned + self.made
        found = advance(self, goal, tuning=tuning)
        made.append(self.tuned + self.made - before)
        return found

    monkeypatch.setattr(driver.Chains, "advance", watched)
    trace = toy.run()
    assert max(made) == min(rows, 256)
    same(expected.posterior, trace.posterior)
    same(expected.stats, trace.stats)
    same(expected.predictive, trace.predictive)


def test_draws_do_not_depend_on_the_progress_bar(monkeypatch):
    expected = toy.run()
    shown = []
    monkeypatch.setattr(progress.Progress, "show", lambda self, done, stats, draws: shown.append(done))
    same(expected.posterior, toy.run(progressbar=True).posterior)
    assert shown[-1] == 300


def test_another_seed_gives_other_draws():
    assert not np.any(toy.run(seed=3).posterior["z"] == toy.run(seed=4).posterior["z"])


def test_thinned_draws_are_every_kth_and_their_statistics_the_mean_or_the_least():
    full, thinned = toy.run(draws=300), toy.run(draws=100, thin=3)
    same(thinned.posterior, {name: value[:, 2::3] for name, value in full.posterior.items()})
    blocks = {name: value.reshape(3, 100, 3) for name, value in full.stats.items()}
    np.testing.assert_allclose(thinned.stats["acceptance_rate"], blocks["acceptance_rate"].mean(axis=2), rtol=1e-12)
    np.testing.assert_array_equal(thinned.stats["min_acceptance"], blocks["min_acceptance"].min(axis=2))


def test_a_run_goes_on_until_the_effective_sample_size_is_reached():
    trace = toy.run(draws=100, target_ess=40.0)
    assert toy.least_ess(trace.posterior) >= 40
    assert toy.least_ess({"z": trace.posterior["z"][:, :100]}) < 40
    same(toy.run(draws=trace.length).posterior, trace.posterior)


def test_a_run_that_never_reaches_its_target_stops():
    trace = toy.run(draws=10, tune=0, target_ess=1e9, effective=lambda posterior: 1.0)
    assert 10 * _MOST_EXTENSION <= trace.length <= 10 * _MOST_EXTENSION + 1


@pytest.mark.parametrize("keep", [1, 3, 7])
def test_the_latent_records_kept_are_those_of_their_draws(keep):
    """Several are kept, so that a buffer handed on to the next chunk would be seen to change."""
    trace = toy.run(keep_latent=keep)
    latent = trace.latent["x"]
    assert latent.shape == (keep, 3)
    times = -(-keep // 3)
    ends = [round(300 * (i + 1) / times) - 1 for i in range(times)]
    sums = np.concatenate([trace.stats["latent_sum"][:, end] for end in ends])[:keep]
    np.testing.assert_allclose(latent.sum(axis=1), sums, rtol=1e-12)


def test_missing_information_is_averaged_over_all_steps():
    np.testing.assert_allclose(toy.run(draws=50, thin=4).within["z"], 1.0, rtol=1e-12)


def interrupting(monkeypatch, after: int, count: int = 1) -> None:
    advance = driver.Chains.advance

    def interrupted(self, goal, *, tuning):
        found = advance(self, goal, tuning=tuning)
        if self.tuned + self.made >= after:
            for _ in range(count):
                signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(driver.Chains, "advance", interrupted)


def test_interrupting_a_run_returns_the_draws_so_far(monkeypatch):
    expected = toy.run(draws=5000)
    before = signal.getsignal(signal.SIGINT)
    interrupting(monkeypatch, after=100)
    trace = toy.run(draws=5000)
    assert trace.interrupted
    assert 0 < trace.length < 5000
    same(trace.posterior, {name: value[:, : trace.length] for name, value in expected.posterior.items()})
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupting_while_tuning_or_twice_stops_at_once(monkeypatch):
    interrupting(monkeypatch, after=4)
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        toy.run(tune=5000)
    interrupting(monkeypatch, after=100, count=2)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        toy.run(draws=5000)
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_is_traced_again_for_a_seed_a_value_or_a_length():
    toy.run()
    toy.TRACES.clear()
    toy.run(seed=99, scale=2.5, draws=77, tune=11, thin=2)
    toy.run(draws=20, target_ess=3.0)
    toy.run(chains=5)
    assert toy.TRACES == []
    toy.run(lanes=6)
    assert toy.TRACES, "the counter does not count"


def coded(levels, table):
    return nw.queries.Counts(levels=levels, tables=[tuple(table)])


def clamped(lower, upper):
    return nw.queries.Moments({"x": nw.Column(lower, upper)}, [{"x": 1}])


class Counted(Sampler):
    """A sampler that says when it is traced."""

    inner: Sampler

    def draw(self, key):
        toy.TRACES.append("draw")
        return self.inner.draw(key)


@pytest.mark.parametrize(
    ("engine", "model", "query", "values"),
    [
        (nw.engines.Counts(), nw.models.Bernoulli(), coded({"x": 2}, ["x"]), ([[8, 3]], [[5, 7.5]])),
        (
            nw.engines.Counts(),
            nw.models.NaiveBayes(2, [2]),
            coded({"y": 2, "x1": 2}, ["y", "x1"]),
            ([4, 3, 2, 3], [5, 3, 1, 2]),
        ),
        (nw.engines.Fourier(), nw.models.Normal(sd=1), clamped(0, 3), ([14.0], [9.0])),
    ],
)
def test_independent_draws_are_not_compiled_again_for_another_release(engine, model, query, values):
    def draws(value):
        release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(2.0), value)], n=12)
        sampler = engine.build(model, release, jax.random.key(0))
        return run_sampler(Counted(sampler), Settings(draws=10, progressbar=False), 1)

    toy.TRACES.clear()
    first = draws(values[0])
    assert toy.TRACES
    toy.TRACES.clear()
    assert not np.array_equal(*(next(iter(one.posterior.values())) for one in (first, draws(values[1]))))
    assert toy.TRACES == []


class Normals(Sampler):
    def draw(self, key):
        z = jax.random.normal(key, (2,))
        return Draw({"z": z}, {"lp": -jnp.sum(z**2) / 2}, {"m0": z[:1]})


def test_independent_draws_do_not_depend_on_chains_or_length():
    long = run_sampler(Normals(), Settings(draws=700, chains=3, progressbar=False), 5)
    short = run_sampler(Normals(), Settings(draws=10, chains=1, progressbar=False), 5)
    assert long.posterior["z"].shape == (3, 700, 2)
    same(short.posterior, {"z": long.posterior["z"][:1, :10]})
    assert len(np.unique(long.posterior["z"])) == 3 * 700 * 2


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"draws": 0}, "draws must be a whole number of at least 1; got 0"),
        ({"draws": 10.0}, "draws must be a whole number"),
        ({"draws": True}, "draws must be a whole number"),
        ({"tune": -1}, "tune must be a whole number of at least 0; got -1"),
        ({"chains": 0}, "chains must be a whole number of at least 1"),
        ({"thin": 0}, "thin must be a whole number of at least 1"),
        ({"keep_latent": -2}, "keep_latent must be a whole number of at least 0"),
        ({"target_ess": 0.0}, "target_ess must be positive; got 0.0"),
        ({"target_ess": float("nan")}, "target_ess must be positive"),
    ],
)
def test_impossible_lengths_are_refused_with_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**wrong)
