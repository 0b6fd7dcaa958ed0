"""An unknown number of records: posteriors against sums over every n and every count, and a joint test of the kernel."""

from __future__ import annotations

import itertools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import special, stats

import noisewise as nw
from noisewise.engines import augmentation
from noisewise.engines.resizing import INCLUDED, ResizingKernel, likely_size
from noisewise.engines.surrogate import Surrogate

UPPER = 12
SIZES = np.arange(UPPER + 1)
QUERY = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])

PRIORS = {
    "geometric, from none": np.exp(-0.2 * SIZES),
    "flat, from one": (SIZES > 0).astype(float),
    "two far apart": np.where((SIZES == 2) | (SIZES == 11), 1.0, 0.0),
    "Poisson": stats.poisson.pmf(SIZES, 7.0),
}
CASES = {
    # (prior of n, (a, b), scale of the noise, released count and sum)
    "likely values": ("geometric, from none", (1.0, 1.0), 1.5, (6.3, 2.9)),
    "a sum above the count": ("flat, from one", (2.0, 0.7), 1.0, (3.1, 6.4)),
    "an empty table": ("geometric, from none", (1.0, 2.0), 0.6, (-0.8, 0.3)),
    "two possible sizes": ("two far apart", (1.0, 1.0), 2.5, (6.0, 4.0)),
    "wide noise": ("Poisson", (3.0, 2.0), 20.0, (-9.0, 25.0)),
}


@pytest.fixture(autouse=True)
def _plain_start(monkeypatch):
    """Chains start from a wide normal law: the surrogate has tests of its own and is slow to compile."""
    monkeypatch.setattr(
        augmentation,
        "fit_surrogate",
        lambda key, model, *_, **__: Surrogate(jnp.zeros(model.free_size), jnp.eye(model.free_size)),
    )


def bernoulli_case(prior, shape, scale, value, lower=0):
    model = nw.models.UnknownSize(nw.models.Bernoulli(*shape), upper=UPPER, lower=lower, prior=PRIORS[prior])
    release = nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(scale), value)], n=None, neighbours="add_remove_one")
    return model, release


def double_sum(prior, shape, scale, value) -> dict[str, np.ndarray]:
    """Means and sds of p and n, and the law of n, summed over every n and every number of ones."""
    n, k = (grid.ravel() for grid in np.meshgrid(SIZES, SIZES, indexing="ij"))
    inside = (k <= n) & (PRIORS[prior][n] > 0)
    n, k = n[inside], k[inside]
    a, b = shape[0] + k, shape[1] + n - k
    log_weight = np.log(PRIORS[prior][n]) + np.log(special.comb(n, k)) + special.betaln(a, b)
    log_weight += stats.laplace.logpdf(value[0] - n, scale=scale) + stats.laplace.logpdf(value[1] - k, scale=scale)
    weight = special.softmax(log_weight)
    mean = weight @ (a / (a + b))
    square = weight @ (a * (a + 1) / ((a + b) * (a + b + 1)))
    size = weight @ n
    return {
        "p": np.array([mean, np.sqrt(square - mean**2)]),
        "n": np.array([size, np.sqrt(weight @ n**2 - size**2)]),
        "law of n": np.bincount(n, weight, UPPER + 1),
    }


def run(model, release, *, draws=4000, seed=1, keep_latent=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        return nw.sample(
            model,
            release,
            draws=draws,
            tune=500,
            random_seed=seed,
            keep_latent=keep_latent,
            method="augmentation",
            progressbar=False,
        )


def error(draws, method="mean") -> float:
    return float(array_stats.mcse(np.asarray(draws), chain_axis=0, draw_axis=1, method=method))


def disagreement(draws: np.ndarray, mean: float, sd: float) -> float:
    """The larger distance of mean and sd from the reference, in Monte-Carlo standard errors."""
    draws = np.asarray(draws, dtype=float)
    assert float(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="bulk")) >= 2000
    return max(abs(draws.mean() - mean) / error(draws), abs(draws.std() - sd) / error(draws, "sd"))


@pytest.mark.parametrize("case", CASES)
def test_bernoulli_records_of_unknown_number_match_the_double_sum(case):
    reference = double_sum(*CASES[case])
    posterior = run(*bernoulli_case(*CASES[case])).posterior
    for name in ("p", "n"):
        assert disagreement(posterior[name], *reference[name]) < 4, name
    for n, mass in enumerate(reference["law of n"]):
        indicator = (posterior["n"].values == n).astype(float)
        if mass == 0 or indicator.sum() == 0:
            assert mass < 2e-3
            assert indicator.sum() == 0 or mass > 0
        elif mass > 0.01:
            assert abs(indicator.mean() - mass) < 4 * error(indicator), n


def test_a_prior_of_the_number_that_is_forgotten_is_seen():
    case = CASES["wide noise"]
    model, release = bernoulli_case(*case)
    forgetful = eqx.tree_at(lambda m: m.log_weights, model, 0 * model.log_weights)
    assert disagreement(run(forgetful, release).posterior["n"], *double_sum(*case)["n"]) > 10


class WithoutJacobian(nw.mechanisms.ObjectivePerturbation):
    def log_density(self, released, total):
        return self._log_tilt(-(total[: self.dimension] + self.ridge * released))


def test_a_private_fit_and_a_rounded_count_of_unknown_number_match_the_double_sum():
    """The curvature grows with n, so that the Jacobian says something of n; a fit is not simulated without its records."""
    loss, s, shape = (lambda record, s: jnp.logaddexp(0.0, s[0]) - record["x"] * s[0]), 0.4, (1.0, 2.0)
    count = nw.mechanisms.CensoredNoise(QUERY, nw.noise.Laplace(4.0), lower=0, rounding=1)
    n, k = (grid.ravel() for grid in np.meshgrid(SIZES, SIZES, indexing="ij"))
    n, k = n[(k <= n) & (n > 0)], k[(k <= n) & (n > 0)]
    a, b = shape[0] + k, shape[1] + n - k
    p = special.expit(s)
    log_weight = np.log(special.comb(n, k)) + special.betaln(a, b) + stats.laplace.logcdf(0.5 - n, scale=4.0)
    log_weight += np.log(stats.laplace.cdf(3.5 - k, scale=4.0) - stats.laplace.cdf(2.5 - k, scale=4.0))
    log_weight += stats.laplace.logpdf(n * p - k + 0.5 * s, scale=2.0) + np.log(n * p * (1 - p) + 0.5)
    weight = special.softmax(log_weight)
    size, first = weight @ n, a / (a + b)
    second = first * (a + 1) / (a + b + 1)
    expected = {
        "p": (weight @ first, np.sqrt(weight @ second - (weight @ first) ** 2)),
        "n": (size, np.sqrt(weight @ n**2 - size**2)),
    }

    def posterior(law):
        fit = law(loss, 1, ridge=0.5, scale=2.0)
        measured = [nw.Measurement(mechanism=count, value=[0.0, 3.0]), nw.Measurement(mechanism=fit, value=[s])]
        release = nw.Release(measured, n=None, neighbours="add_remove_one")
        tree = run(nw.models.UnknownSize(nw.models.Bernoulli(*shape), upper=UPPER), release)
        assert "posterior_predictive" not in tree.children
        return tree.posterior

    draws = posterior(nw.mechanisms.ObjectivePerturbation)
    assert all(disagreement(draws[name], *expected[name]) < 4 for name in expected)
    assert disagreement(posterior(WithoutJacobian)["n"], *expected["n"]) > 10


def test_a_normaliser_that_is_a_constant_at_a_known_number_alone_is_refused():
    """``sum_i (s - x_i) = n (s - mean)``, whose density in s has the normaliser 1 / n."""
    mean = nw.mechanisms.KNormGradient(
        lambda record, s: 0.5 * (record["x"] - s[0]) ** 2, 1, epsilon=1.0, sensitivity=1.0, normaliser="constant"
    )
    measured = [nw.Measurement(QUERY, nw.noise.Laplace(1.0), [6.0, 2.0]), nw.Measurement(mechanism=mean, value=[0.4])]
    release = nw.Release(measured, n=None, neighbours="add_remove_one")
    with pytest.raises(ValueError, match="constant at a known number of records only"):
        nw.sample(nw.models.UnknownSize(nw.models.Bernoulli(), upper=UPPER), release)


TABLE_UPPER, TABLE_SCALE = 5, 1.2
TABLES = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
TABLE_VALUE = np.array([[1.7, 0.4], [2.2, -0.6]])


def test_naive_bayes_tables_of_unknown_number_match_the_sum_over_tables():
    weights = np.exp(-0.3 * np.arange(TABLE_UPPER + 1))
    model = nw.models.UnknownSize(nw.models.NaiveBayes(2, [2], prior=1.5), upper=TABLE_UPPER, lower=0, prior=weights)
    release = nw.Release(
        [nw.Measurement(TABLES, nw.noise.Laplace(TABLE_SCALE), [TABLE_VALUE])], n=None, neighbours="add_remove_one"
    )
    tables = np.array([t for t in itertools.product(range(TABLE_UPPER + 1), repeat=4) if sum(t) <= TABLE_UPPER])
    cells = tables.reshape(-1, 2, 2)
    n, classes = tables.sum(axis=1), cells.sum(axis=2)
    log_weight = np.log(weights[n]) + special.gammaln(n + 1) - special.gammaln(tables + 1).sum(axis=1)
    log_weight += special.gammaln(1.5 + classes).sum(axis=1) - special.gammaln(3 + n)
    log_weight += special.gammaln(1.5 + cells).sum(axis=(1, 2)) - special.gammaln(3 + classes).sum(axis=1)
    log_weight += stats.laplace.logpdf(TABLE_VALUE - cells, scale=TABLE_SCALE).sum(axis=(1, 2))
    # the prior's own normalisers: every n has the same ones but for those of its Dirichlet laws
    weight = special.softmax(log_weight)

    def beta_moments(a, b):
        mean = weight @ (a / (a + b))
        return mean, np.sqrt(weight @ (a * (a + 1) / ((a + b) * (a + b + 1))) - mean**2)

    size = weight @ n
    posterior = run(model, release).posterior
    assert disagreement(posterior["n"], size, np.sqrt(weight @ n**2 - size**2)) < 4
    assert disagreement(posterior["class_probs"][..., 0], *beta_moments(1.5 + classes[:, 0], 1.5 + classes[:, 1])) < 4
    for i in range(2):
        draws = posterior["feature_probs_1"][..., i, 0]
        assert disagreement(draws, *beta_moments(1.5 + cells[:, i, 0], 1.5 + cells[:, i, 1])) < 4


# a joint test -----------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def joint_changes(kernel: ResizingKernel, model: nw.models.UnknownSize, keys, steps: int = 3):
    """What a few steps of a kernel change in functions of (theta, n, x, s) drawn from the joint law of ``model``."""

    def replicate(key):
        prior_key, data_key, noise_key, init_key, walk_key = jax.random.split(key, 5)
        theta = model.sample_prior(prior_key)
        n = theta.pop("n")
        records = model.model.simulate(data_key, theta, UPPER)
        included = (jnp.arange(UPPER) < n).astype(float)
        total = kernel.release.statistics(records).T @ included
        released = kernel.release.simulate(noise_key, total)[0]

        def value(k):
            return (k.release.measurements[0].value, k.inner.release.measurements[0].value)

        mine = eqx.tree_at(value, kernel, (released, released))
        state = mine.init(init_key, theta)
        state = eqx.tree_at(lambda s: s.records, state, {**records, INCLUDED: included})

        def features(state):
            theta = mine.theta(state)
            p, n = theta["p"], theta["n"]
            ones = jnp.sum(state.records["x"] * state.records[INCLUDED])
            outside = jnp.sum(state.records["x"] * (1 - state.records[INCLUDED]))
            lean = (released[0] - n) ** 2
            return jnp.stack([p, p**2, n, n**2, n * p, ones, ones * n, outside, lean, released[1] * n, released[0] * p])

        before = features(state)
        walked, _ = jax.lax.scan(lambda s, k: (mine.step(k, s)[0], None), state, jax.random.split(walk_key, steps))
        return features(walked) - before

    return jax.lax.map(replicate, keys, batch_size=2000)


def joint_drift(kernel: ResizingKernel, model: nw.models.UnknownSize, *, replicates: int = 20_000) -> float:
    """The largest drift of the mean of a function of the joint law, in standard errors.

    The kernel that has s as its release leaves the law of the rest given s as it is, so every function keeps its mean over
    the joint law (Geweke 2004).
    """
    change = np.asarray(joint_changes(kernel, model, jax.random.split(jax.random.key(1), replicates)))
    return float(np.max(np.abs(change.mean(axis=0) / (change.std(axis=0) / np.sqrt(replicates)))))


def kernel_for_the_joint_test() -> ResizingKernel:
    model, release = bernoulli_case("Poisson", (1.5, 1.0), 1.3, (5.0, 2.0))
    engine = nw.engines.Augmentation(moves=3, fraction=0.6, block=2)
    return engine.build(model, release, jax.random.key(0))


def test_the_joint_law_of_parameters_records_and_release_is_kept():
    kernel = kernel_for_the_joint_test()
    assert joint_drift(kernel, kernel.model) < 4
    # kernels that forget the prior of n, or take the noise for wider than it is in the sweep, lose it
    assert (
        joint_drift(eqx.tree_at(lambda k: k.model.log_weights, kernel, 0 * kernel.model.log_weights), kernel.model) > 6
    )
    wide = eqx.tree_at(lambda k: k.inner.release.measurements[0].mechanism.noise.scale, kernel, jnp.asarray(2.6))
    assert joint_drift(wide, kernel.model) > 6


def test_the_reported_noise_density_is_that_of_the_included_records():
    tree = run(*bernoulli_case(*CASES["likely values"]), keep_latent=4)
    _, _, scale, value = CASES["likely values"]
    for chain, table in enumerate(nw.impute(tree)):
        n = table["x"].size
        assert n == tree.posterior["n"].values[chain, -1]
        density = stats.laplace.logpdf(value[0] - n, scale=scale) + stats.laplace.logpdf(
            value[1] - table["x"].sum(), scale=scale
        )
        assert tree.sample_stats["noise_lp"].values[chain, -1] == pytest.approx(density)
    assert "missing_information" not in tree.posterior["p"].attrs


def test_a_likely_size_comes_from_the_count_or_the_prior():
    model, release = bernoulli_case(*CASES["likely values"])
    assert float(likely_size(model, release)) == pytest.approx(6.3)
    model, release = bernoulli_case(*CASES["wide noise"])
    assert float(likely_size(model, release)) == 1
