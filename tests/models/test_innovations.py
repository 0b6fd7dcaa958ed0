"""Records and innovations go back and forth exactly, in every corner of the parameter space, and nothing recompiles."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from model_cases import MODELS, M
from scipy import stats

from noisewise.models import poisson_law

N = 20_000


@jax.jit
def back_and_forth(model, theta, records, key):
    u = model.inverse(theta, records, key)
    return u, model.transform(theta, u)


def assert_same(model, theta, records, seed=0):
    theta = {name: jnp.asarray(value) for name, value in theta.items()}
    records = {name: jnp.asarray(value) for name, value in records.items()}
    u, again = back_and_forth(model, theta, records, jax.random.key(seed))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(u))
    for name, value in records.items():
        if jnp.issubdtype(value.dtype, jnp.integer):
            np.testing.assert_array_equal(again[name], value)
        else:
            np.testing.assert_allclose(again[name], value, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("p", [1e-300, 1e-20, 0.1, 0.5, 0.9, 1 - 2.0**-53])
def test_bernoulli_records_come_back(p):
    assert_same(M.Bernoulli(), {"p": p}, {"x": np.tile([0, 1], N // 2)})


@pytest.mark.parametrize("rare", [1e-290, 1e-100, 1e-30, 1e-17, 0.01])
def test_levels_rarer_than_rounding_error_come_back(rare):
    for place in range(5):
        p = np.full(5, 0.25)
        p[place] = rare
        assert_same(M.Categorical(np.ones(5)), {"p": p}, {"x": np.arange(N) % 5})
    p = np.array([rare, 1.0, rare])
    theta = {"class_probs": [1.0, rare], "feature_probs_1": [p, p[::-1]], "feature_probs_2": [[rare, rare, 1], p]}
    codes = np.arange(N)
    records = {"y": codes % 2, "x1": codes // 2 % 3, "x2": codes // 6 % 3}
    assert_same(M.NaiveBayes(2, [3, 3]), {name: np.asarray(value) for name, value in theta.items()}, records)


@pytest.mark.parametrize("rate", [1e-250, 1e-9, 0.3, 5.0, 255.9, 700.0, 3e4, 1e9])
def test_counts_come_back_however_improbable(rate):
    near = rate + np.sqrt(rate) * np.linspace(-60, 60, 400)
    counts = np.unique(np.round(np.concatenate([np.arange(50), near, [1000, 10_000, 3 * rate]])))
    counts = np.resize(counts[counts >= 0], 500).astype(int)
    for seed in range(3):
        assert_same(M.Poisson(1, 1), {"rate": rate}, {"x": counts}, seed)


def test_continuous_records_come_back():
    for scale in (1e-150, 1.0, 1e150):
        assert_same(M.Exponential(1, 1), {"rate": 1 / scale}, {"x": scale * np.linspace(0, 50, 100)})
    assert_same(MODELS["normal_unknown_variance"], {"mean": 3.0, "variance": 1e-8}, {"x": np.linspace(-50, 50, 100)})
    theta = {
        "beta": np.array([1.0, -50.0, 2.0]),
        "variance": 1e-6,
        "covariate_mean": np.array([5.0, -5.0]),
        "covariate_cov": np.array([[1.0, 0.999], [0.999, 1.0]]),
    }
    records = dict(zip(("x1", "x2", "y"), np.random.default_rng(0).normal(size=(3, 100)), strict=True))
    assert_same(MODELS["regression_unknown"], theta, records)


def uniforms(name, u) -> list[np.ndarray]:
    """Innovations of a discrete model, each turned into the uniform number it should be."""
    if name == "poisson":
        return [1 / (1 + np.exp(-np.asarray(u)))]
    if name == "bernoulli":
        return [np.asarray(u)]
    return [np.asarray(leaf) / (1 + np.asarray(leaf)) for leaf in jax.tree.leaves(u)]


DISCRETE = {
    "bernoulli": {"p": 0.3},
    "categorical": {"p": [0.2, 0.5, 0.3]},
    "poisson": {"rate": 2.7},
    "naive_bayes": {
        "class_probs": [0.3, 0.7],
        "feature_probs_1": [[0.2, 0.8], [0.6, 0.4]],
        "feature_probs_2": [[0.1, 0.3, 0.6], [0.5, 0.3, 0.2]],
    },
}


@pytest.mark.parametrize("name", DISCRETE)
def test_innovations_drawn_back_from_records_have_the_law_of_fresh_ones(name):
    model = MODELS[name]
    theta = {key: jnp.asarray(value) for key, value in DISCRETE[name].items()}
    records = jax.jit(lambda model, theta: model.simulate(jax.random.key(0), theta, N))(model, theta)
    u, again = back_and_forth(model, theta, records, jax.random.key(1))
    for fresh in uniforms(name, u):
        assert stats.kstest(fresh, "uniform").pvalue > 1e-4
    for column in records:
        np.testing.assert_array_equal(again[column], records[column])
    # the twin: innovations drawn back at another theta do not
    wrong = {key: value[..., ::-1] if value.ndim else 0.9 * value for key, value in theta.items()}
    u, _ = back_and_forth(model, wrong, records, jax.random.key(1))
    assert min(stats.kstest(fresh, "uniform").pvalue for fresh in uniforms(name, u)) < 1e-4


def exact_log_tail(count: int, rate: float) -> float:
    """The log of the tail that does not hold the mean, its terms summed in 40 digits."""
    above = count + 1 > rate
    ks = range(count + 1, count + 1500) if above else range(count, -1, -1)
    term = mp.exp(ks[0] * mp.log(rate) - rate - mp.loggamma(ks[0] + 1))
    terms = []
    for k in ks:
        terms.append(term)
        term = term * rate / (k + 1) if above else term * k / rate
    return float(mp.log(mp.fsum(terms)))


def test_poisson_tails_agree_with_arbitrary_precision():
    mp.mp.dps = 40
    cases = [(count, rate) for rate in (1e-9, 0.3, 1.0, 17.0, 160.0, 900.0) for count in (0, 1, 5, 40, 160, 300, 1100)]
    counts, rates = np.array(cases).T
    found = jax.vmap(poisson_law.log_tail)(counts, rates)
    np.testing.assert_allclose(found, [exact_log_tail(int(k), mp.mpf(rate)) for k, rate in cases], rtol=1e-13)


@pytest.mark.parametrize("rate", [0.3, 900.0, 30_000.0])
def test_counts_are_the_quantiles_of_their_innovations(rate):
    z = poisson_law.innovations(jax.random.key(0), N)
    found = jax.jit(lambda rate, z: poisson_law.find(poisson_law.tabulate(rate), z))(jnp.array(rate), z)
    np.testing.assert_array_equal(found, stats.poisson.ppf(1 / (1 + np.exp(-np.asarray(z))), rate))


def test_new_hyperparameters_do_not_recompile():
    traces = []

    @jax.jit
    def work(model, key):
        traces.append(type(model))
        theta = model.sample_prior(key)
        records = model.simulate(key, theta, 4)
        return model.update(key, theta, records), model.log_prior(theta)

    pairs = [
        (M.Bernoulli(1, 1), M.Bernoulli(7, 2.5)),
        (M.Normal(mean_prior=(0, 2), sd=1), M.Normal(mean_prior=(4, 1), sd=3)),
        (M.Categorical([1, 1]), M.Categorical([3.0, 2.0])),
    ]
    for first, second in pairs:
        work(first, jax.random.key(0))
        work(second, jax.random.key(1))
    assert len(traces) == len(pairs)
