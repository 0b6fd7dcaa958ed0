"""The exchange step, for a mechanism whose normaliser depends on the records, against the sum over all databases.

The released value is a point of a public grid with probability proportional to ``exp(-(epsilon / 2D) |sum of gradients|)``; the loss is
no location loss, so the normaliser differs between databases. A switch, which is data, drops the exchange ratio.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats import ess
from scipy import special, stats

import noisewise as nw
from noisewise.engines.surrogate import Surrogate
from noisewise.kernels.exchange import exchange_log_ratio

N = 3
A, B = 1.5, 0.7
GRID = np.asarray([0.0, 0.4, 0.8, 1.3, 2.0])
CHOSEN, EPSILON, D, MARK = 2, 1.0, 1.0, 99.0
SCALE, NOISY = 2.0, 2.0
DATABASES = np.asarray(list(itertools.product((0, 1), repeat=N)))


def loss(record, s):
    """Weighted squares: the gradient is ``(1 + 4 x) (s - 2 x)``."""
    weight = 1 + 4 * record["x"]
    return 0.5 * weight * (s[0] - 2 * record["x"]) ** 2


def simulator(key, records):
    x = records["x"]
    slopes = jnp.sum((1 + 4 * x)[:, None] * (jnp.asarray(GRID) - 2 * x[:, None]), axis=0)
    return jnp.asarray(GRID)[jax.random.categorical(key, -EPSILON / (2 * D) * jnp.abs(slopes))][None]


class Switched(nw.mechanisms.KNormGradient):
    """With ``drop = 1`` the auxiliary release is a mark whose density is one whatever the records: the exchange ratio is dropped."""

    drop: jax.Array

    def __init__(self):
        super().__init__(loss, 1, epsilon=EPSILON, sensitivity=D, simulator=simulator)
        self.drop = jnp.asarray(False)

    def respond(self, key, records, released):
        return jnp.where(self.drop, MARK, super().respond(key, records, released))

    def log_density(self, released, total):
        return jnp.where(released[0] == MARK, 0.0, super().log_density(released, total))


QUERY = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
RELEASE = nw.Release(
    [
        nw.Measurement(mechanism=Switched(), value=[GRID[CHOSEN]]),
        nw.Measurement(QUERY, nw.noise.Laplace(SCALE), [NOISY]),
    ],
    n=N,
)
MODEL = nw.models.Bernoulli(A, B)


def exact(*, normalised: bool) -> np.ndarray:
    """The mean and the second moment of p, summed over all databases."""
    weight = 1 + 4 * DATABASES
    slopes = np.sum(weight[..., None] * (GRID - 2 * DATABASES[..., None]), axis=1)
    log_e = -EPSILON / (2 * D) * np.abs(slopes)
    log_eta = log_e[:, CHOSEN] - (special.logsumexp(log_e, axis=1) if normalised else 0.0)
    ones = DATABASES.sum(1)
    log_noise = stats.laplace.logpdf(NOISY - ones, scale=SCALE)
    a, b = A + ones, B + N - ones
    weights = special.softmax(special.betaln(a, b) + log_eta + log_noise)
    first = a / (a + b)
    return np.asarray([weights @ first, weights @ (first * (a + 1) / (a + b + 1))])


def errors(expected: np.ndarray, *, drop: bool) -> np.ndarray:
    release = eqx.tree_at(lambda r: r.measurements[0].mechanism.drop, RELEASE, jnp.asarray(drop))
    engine = nw.engines.Augmentation(moves=3)
    dt = nw.sample(MODEL, release, method=engine, draws=3000, tune=300, random_seed=8, progressbar=False)
    p = dt.posterior["p"].values
    effective = np.asarray([float(ess(x, chain_axis=0, draw_axis=1, method="mean")) for x in (p, p**2)])
    assert np.all(effective >= 2000)
    return np.asarray([(x.mean() - e) / x.std() for x, e in zip((p, p**2), expected, strict=True)]) * np.sqrt(effective)


@pytest.fixture(autouse=True)
def rough_start(monkeypatch):
    """Start anywhere: a surrogate changes no result and takes long to compile."""
    rough = Surrogate(jnp.zeros(1), jnp.eye(1))
    monkeypatch.setattr("noisewise.engines.augmentation.fit_surrogate", lambda *_, **__: rough)


def test_exchange_matches_the_sum_over_databases():
    assert np.all(np.abs(errors(exact(normalised=True), drop=False)) < 4)


def test_without_the_exchange_ratio_the_normaliser_is_missing_from_the_posterior():
    assert np.max(np.abs(errors(exact(normalised=True), drop=True))) > 6
    assert np.all(np.abs(errors(exact(normalised=False), drop=True)) < 4)


def test_the_simulator_is_the_density_on_the_grid():
    mechanism = nw.mechanisms.KNormGradient(loss, 1, epsilon=EPSILON, sensitivity=D, simulator=simulator)
    records = {"x": jnp.asarray([1, 0, 1])}
    log_e = [
        float(mechanism.log_density(s, jnp.sum(mechanism.statistics(records, s), axis=0)))
        for s in jnp.asarray(GRID)[:, None]
    ]
    draws = jax.vmap(lambda key: mechanism.respond(key, records, jnp.zeros(1)))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    counts = np.sum(np.asarray(draws) == GRID, axis=0)
    mass = special.softmax(np.asarray(log_e))
    often = 20_000 * mass > 5
    observed, expected = counts[often], 20_000 * mass[often]
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_exchange_ratio_is_that_of_the_auxiliary_release():
    """For one fixed auxiliary value: its density given the records here, over that given the proposed ones."""
    here, there = {"x": jnp.asarray([1, 0, 1])}, {"x": jnp.asarray([1, 1, 1])}
    mechanism = nw.mechanisms.KNormGradient(
        loss, 1, epsilon=EPSILON, sensitivity=D, simulator=lambda key, records: jnp.asarray([0.8])
    )
    release = nw.Release([nw.Measurement(mechanism=mechanism, value=[1.3])], n=N)
    slope = [np.sum((1 + 4 * x) * (0.8 - 2 * x)) for x in (np.asarray(here["x"]), np.asarray(there["x"]))]
    expected = -EPSILON / (2 * D) * (np.abs(slope[0]) - np.abs(slope[1]))
    assert float(exchange_log_ratio(jax.random.key(1), release, here, there)) == pytest.approx(expected, rel=1e-12)
