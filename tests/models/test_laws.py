"""Priors, record laws and innovations against scipy, quadrature and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_cases import COV, MODELS, M, joint_draws
from scipy import special, stats

from noisewise.models.bijections import Parameter
from noisewise.models.gamma import log_gamma

DRAWS = 10_000
SMALL = [name for name in MODELS if name != "regression_wide"]


def prior_ratio(model, prior) -> np.ndarray:
    """``q / p`` at draws of the prior p, q a normal density in the free space inside p: its mean is 1 if log_prior is right."""

    @jax.jit
    def free_draws(model, prior, keys):
        free = jax.vmap(lambda key: prior.unconstrain(prior.sample_prior(key)))(keys)
        return free, jax.vmap(model.log_prior_free)(free)

    free, log_prior = map(np.asarray, free_draws(model, prior, jax.random.split(jax.random.key(0), DRAWS)))
    law = stats.multivariate_normal(np.median(free, axis=0), 0.5 * np.cov(free.T))
    return np.exp(law.logpdf(free) - log_prior)


@pytest.mark.parametrize("name", SMALL)
def test_log_prior_is_the_normalised_density_of_sample_prior(name):
    ratio = prior_ratio(MODELS[name], MODELS[name])
    error = ratio.std() / np.sqrt(DRAWS)
    assert error < 0.1
    assert abs(ratio.mean() - 1) < 4 * error


def test_log_prior_of_another_prior_is_seen_to_be_wrong():
    ratio = prior_ratio(M.Poisson(6, 1.5), M.Poisson(5, 1.5))
    assert abs(ratio.mean() - 1) > 6 * ratio.std() / np.sqrt(DRAWS)


def test_log_priors_agree_with_scipy():
    p = np.array([0.2, 0.5, 0.3])
    rows = np.array([p, p[::-1]])
    theta = {"class_probs": jnp.array([0.3, 0.7]), "feature_probs_1": jnp.asarray(rows)}
    wanted = stats.beta.logpdf(0.3, 2, 2) + sum(stats.dirichlet.logpdf(row, [2, 2, 2]) for row in rows)
    assert np.isclose(M.NaiveBayes(2, [3]).log_prior(theta), wanted, rtol=1e-12)
    wanted = stats.dirichlet.logpdf(p, [2.0, 1.5, 3.0])
    assert np.isclose(MODELS["categorical"].log_prior({"p": jnp.asarray(p)}), wanted, rtol=1e-12)
    assert np.isclose(M.InverseGamma(3, 2).log_prob(0.7), stats.invgamma.logpdf(0.7, 3, scale=2), rtol=1e-12)
    for d in (1, 2, 7):
        scale = np.eye(d) + 0.3
        value = np.diag(np.arange(1.0, d + 1)) + 0.1
        wanted = stats.invwishart.logpdf(value, d + 2.5, scale)
        assert np.isclose(M.InverseWishart(d + 2.5, scale).log_prob(jnp.asarray(value)), wanted, rtol=1e-11)
        wanted = stats.multivariate_normal.logpdf(np.ones(d), np.zeros(d), scale)
        assert np.isclose(M.NormalPrior(np.zeros(d), scale).log_prob(jnp.ones(d)), wanted, rtol=1e-12)


def test_log_likelihoods_agree_with_scipy():
    x = np.array([0, 1, 1, 3, 40])
    cases = [
        (MODELS["bernoulli"], {"p": 0.3}, {"x": x[:3]}, stats.bernoulli.logpmf(x[:3], 0.3)),
        (MODELS["poisson"], {"rate": 2.7}, {"x": x}, stats.poisson.logpmf(x, 2.7)),
        (MODELS["exponential"], {"rate": 2.7}, {"x": x - 1.0}, stats.expon.logpdf(x - 1.0, scale=1 / 2.7)),
        (MODELS["normal"], {"mean": 0.5}, {"x": x}, stats.norm.logpdf(x, 0.5, 1.5)),
        (MODELS["normal_unknown_variance"], {"mean": 0.5, "variance": 4.0}, {"x": x}, stats.norm.logpdf(x, 0.5, 2)),
        (MODELS["categorical"], {"p": [0.2, 0.5, 0.3]}, {"c": x[:3]}, np.log([0.2, 0.5, 0.5])),
    ]
    for model, theta, records, wanted in cases:
        found = model.log_likelihood(
            {k: jnp.asarray(v) for k, v in theta.items()}, {k: jnp.asarray(v) for k, v in records.items()}
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    theta = {"class_probs": jnp.array([0.3, 0.7]), "feature_probs_1": jnp.array([[0.1, 0.9], [0.4, 0.6]])}
    found = M.NaiveBayes(2, [2]).log_likelihood(theta, {"y": jnp.array([0, 1, 1]), "x1": jnp.array([1, 1, 0])})
    np.testing.assert_allclose(found, np.log([0.27, 0.42, 0.28]), rtol=1e-12)


@pytest.mark.parametrize("name", ["regression_unknown", "regression_wide"])
def test_regression_likelihood_is_the_joint_normal_density(name):
    model = MODELS[name]
    theta, records = jax.tree.map(lambda leaf: np.asarray(leaf[0]), joint_draws(model, 1, 5))
    x = np.column_stack([records[column] for column in model.predictors])
    wanted = stats.multivariate_normal.logpdf(x, theta["covariate_mean"], theta["covariate_cov"])
    line = theta["beta"][0] + x @ theta["beta"][1:]
    wanted = wanted + stats.norm.logpdf(records["y"], line, np.sqrt(theta["variance"]))
    found = jax.jit(lambda model, theta, records: model.log_likelihood(theta, records))(model, theta, records)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def simulate(model, theta, n=30_000, seed=0):
    records = jax.jit(lambda model, theta: model.simulate(jax.random.key(seed), theta, n))(model, theta)
    return {name: np.asarray(value) for name, value in records.items()}


def assert_counts(codes, probabilities):
    found = np.bincount(codes, minlength=len(probabilities))
    assert stats.chisquare(found, len(codes) * probabilities).pvalue > 1e-4
    wrong = probabilities + 0.03 * (np.arange(len(probabilities)) == 0)
    assert stats.chisquare(found, len(codes) * wrong / wrong.sum()).pvalue < 1e-4


def test_discrete_records_have_their_law():
    assert_counts(simulate(MODELS["bernoulli"], {"p": jnp.array(0.3)})["x"], np.array([0.7, 0.3]))
    p = np.array([0.15, 0.25, 0.1, 0.2, 0.3])
    assert_counts(simulate(M.Categorical(np.ones(5)), {"p": jnp.asarray(p)})["x"], p)
    x = simulate(MODELS["poisson"], {"rate": jnp.array(2.7)})["x"]
    masses = np.append(stats.poisson.pmf(np.arange(9), 2.7), stats.poisson.sf(8, 2.7))
    assert_counts(np.minimum(x, 9), masses)
    classes, first, second = (
        np.array([0.3, 0.7]),
        np.array([[0.2, 0.8], [0.6, 0.4]]),
        np.array([[0.1, 0.3, 0.6], [0.5, 0.3, 0.2]]),
    )
    theta = {"class_probs": classes, "feature_probs_1": first, "feature_probs_2": second}
    records = simulate(MODELS["naive_bayes"], {name: jnp.asarray(value) for name, value in theta.items()})
    cells = np.einsum("i,ij,ik->ijk", classes, first, second).ravel()
    assert_counts(6 * records["y"] + 3 * records["x1"] + records["x2"], cells)


def assert_law(values, cdf):
    assert stats.kstest(values, cdf).pvalue > 1e-4
    assert stats.kstest(values + 0.05 * values.std(), cdf).pvalue < 1e-4


def test_continuous_records_have_their_law():
    assert_law(simulate(MODELS["exponential"], {"rate": jnp.array(2.0)})["x"], stats.expon(scale=0.5).cdf)
    assert_law(simulate(MODELS["normal"], {"mean": jnp.array(2.0)})["x"], stats.norm(2, 1.5).cdf)
    theta = {"beta": jnp.array([1.0, -2.0, 0.5])}
    records = simulate(MODELS["regression"], theta)
    x = np.column_stack([records["x1"], records["x2"]])
    residual = (records["y"] - 1.0 - x @ [-2.0, 0.5]) / np.sqrt(2.0)
    standard = np.column_stack([np.linalg.solve(np.linalg.cholesky(COV), (x - [0.9, -1.17]).T).T, residual])
    for column in standard.T:
        assert_law(column, stats.norm.cdf)
    assert np.max(np.abs(np.corrcoef(standard.T) - np.eye(3))) < 4 / np.sqrt(len(x))


@pytest.mark.parametrize("shape", [0.02, 0.6, 1.0, 1.7, 40.0, 1e6, 1e12])
def test_gamma_draws_follow_the_gamma_law(shape):
    draws = np.asarray(jax.jit(log_gamma)(jax.random.key(4), jnp.full(20_000, shape)))

    def cdf(z):
        # far below the mean, where the draw itself underflows, P(G < g) = g^a / Gamma(a + 1)
        far = np.exp(shape * np.minimum(z, -20) - special.gammaln(shape + 1))
        return np.where(z < -20, far, stats.gamma.cdf(np.exp(np.maximum(z, -20)), shape))

    assert stats.kstest(draws, cdf).pvalue > 1e-3
    wrong = draws + 0.1 * draws.std()
    assert stats.kstest(wrong, cdf).pvalue < 1e-6


def test_gamma_of_an_impossible_shape_is_nan_and_not_an_endless_loop():
    assert np.all(np.isnan(jax.jit(log_gamma)(jax.random.key(0), jnp.array([jnp.nan, -1.0, 0.0, jnp.inf]))))


PARAMETERS = {
    "real": Parameter((3,)),
    "positive": Parameter((2, 2), "positive"),
    "unit": Parameter((), "unit"),
    "simplex": Parameter((2, 4), "simplex"),
    "covariance": Parameter((4, 4), "covariance"),
}


@pytest.mark.parametrize("support", PARAMETERS)
def test_bijections_invert_and_their_jacobians_agree_with_automatic_differentiation(support):
    parameter = PARAMETERS[support]
    free = jax.random.normal(jax.random.key(1), (parameter.free_size,))
    again = jax.jit(lambda free: parameter.unconstrain(parameter.constrain(free)))(free)
    np.testing.assert_allclose(again, free, rtol=1e-11, atol=1e-12)

    def coordinates(free):
        value = parameter.constrain(free)
        if support == "simplex":
            return value[:, :-1].reshape(-1)
        return value[np.tril_indices(4)] if support == "covariance" else value.reshape(-1)

    _, wanted = np.linalg.slogdet(jax.jit(jax.jacfwd(coordinates))(free))
    assert np.isclose(parameter.log_jacobian(free), wanted, rtol=1e-11, atol=1e-12)
