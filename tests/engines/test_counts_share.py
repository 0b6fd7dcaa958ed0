"""What complete records would leave of the variance, from draws of the counts, against sums over every database."""

import itertools
import math

import jax
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.counts import Counts
from noisewise.run import run_sampler
from noisewise.settings import Settings

KEY = jax.random.key(0)
WEIGHTS = np.array([1.0, 0.5, 2.0])


def expected_within(n, likelihood):
    """``E[Var(p | x) | s]``, and its standard deviation over databases."""
    chance, variances = [], []
    for database in itertools.product(range(3), repeat=n):
        weights = WEIGHTS + np.bincount(database, minlength=3)
        total = weights.sum()
        chance.append(math.exp(sum(map(math.lgamma, weights))) * likelihood(database))
        variances.append(weights * (total - weights) / (total**2 * (total + 1)))
    chance, variances = np.array(chance)[:, None] / np.sum(chance), np.array(variances)
    mean = np.sum(chance * variances, axis=0)
    return mean, np.sqrt(np.sum(chance * (variances - mean) ** 2, axis=0))


def within(model, release, draws=4000):
    sampler = Counts().build(model, release, KEY)
    return run_sampler(sampler, Settings(draws=draws, chains=4, progressbar=False), 3).within


def noisy_counts():
    values = np.array([2.4, -0.3, 3.1])
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.5), [values])], n=5)

    def likelihood(database):
        return math.exp(-np.sum(np.abs(values - np.bincount(database, minlength=3))) / 1.5)

    return release, likelihood


def reports():
    flip, said = 0.3, [2, 0, 1, 1, 2]
    query = nw.queries.Records(columns=("x",))
    noise = nw.noise.RandomisedResponse(flip, 3)
    release = nw.Release([nw.Measurement(query, noise, np.array(said)[:, None])], n=5)

    def likelihood(database):
        return math.prod(1 - flip if s == x else flip / 2 for s, x in zip(said, database, strict=True))

    return release, likelihood


@pytest.mark.parametrize("case", [noisy_counts, reports])
def test_the_variance_left_by_records_is_that_of_every_database(case):
    release, likelihood = case()
    mean, sd = expected_within(release.n, likelihood)
    found = within(nw.models.Categorical(WEIGHTS), release)["p"]
    assert np.max(np.abs(found - mean) / sd) * math.sqrt(16_000) < 4.5
    # the variance of p is another matter
    exact = Counts().build(nw.models.Categorical(WEIGHTS), release, KEY).exact()
    assert np.min(np.abs(exact.sds["p"] ** 2 - mean) / sd) * math.sqrt(16_000) > 20


def test_a_feature_that_was_not_measured_counts_as_known_to_complete_records(monkeypatch):
    query = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [[[9.0, 4.1], [2.2, 16.3]]])], n=30)
    model = nw.models.NaiveBayes(classes=2, features=[2, 3])
    whole = within(model, release)
    monkeypatch.setattr("noisewise.engines.counts_bayes.whole_tables_fit", lambda *_: False)
    assert type(Counts().build(model, release, KEY)).__name__ == "NestedSampler"
    windows = within(model, release)
    for name, value in whole.items():
        np.testing.assert_allclose(windows[name], value, rtol=0.02)
    exact = Counts().build(model, release, KEY).exact()
    share = windows["feature_probs_2"] / exact.sds["feature_probs_2"] ** 2
    assert np.all(share < 0.7), "the prior's variance would be all of it"


def test_a_result_carries_the_share_and_a_noiseless_one_is_near_one():
    query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])

    def share(scale):
        release = nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), [[60.0, 40.0]])], n=100)
        dt = nw.sample(nw.models.Bernoulli(), release, random_seed=1, draws=2000, progressbar=False)
        assert dt.attrs["noisewise_method"] == "counts"
        return dt.posterior["p"].attrs["missing_information"]

    assert share(0.01) == pytest.approx(1.0, abs=0.03)
    assert 0.02 < share(20.0) < 0.35
