"""Updates leave the joint law of parameters and records as it is, and are the conditional laws they claim to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_cases import CONJUGATE, COV, MODELS, M, features, joint_draws, z_scores
from scipy import stats

DRAWS = 3000
RECORDS = 12


@jax.jit
def updated(model, theta, records, keys):
    return jax.vmap(lambda theta, records, key: model.update(key, theta, records))(theta, records, keys)


@jax.jit
def differences(model, moved, theta, records):
    def one(moved, theta, records):
        return features(model, moved, records) - features(model, theta, records)

    return jax.vmap(one)(moved, theta, records)


def geweke_scores(model, tamper=lambda records: records) -> np.ndarray:
    """z scores of paired differences of features before and after one update: zero mean if the update is right."""
    theta, records = joint_draws(model, DRAWS, RECORDS)
    keys = jax.random.split(jax.random.key(99), DRAWS)
    return z_scores(differences(model, updated(model, theta, tamper(records), keys), theta, records))


@pytest.mark.parametrize("name", MODELS)
def test_update_leaves_the_joint_law_of_theta_and_records_invariant(name):
    scores = geweke_scores(MODELS[name])
    assert np.max(np.abs(scores)) < stats.norm.isf(5e-4 / scores.size)


@pytest.mark.parametrize("name", MODELS)
def test_update_that_looks_at_the_wrong_records_is_seen_to_be_wrong(name):
    def of_the_next_draw(records):
        return jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), records)

    assert np.max(np.abs(geweke_scores(MODELS[name], of_the_next_draw))) > 6


def conditional_draws(name):
    """Many updates from one theta and one database."""
    model = MODELS[name]
    theta, records = jax.tree.map(lambda leaf: np.asarray(leaf)[5], joint_draws(model, DRAWS, RECORDS))
    many = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (DRAWS, *leaf.shape)), (theta, records))
    drawn = updated(model, *many, jax.random.split(jax.random.key(1), DRAWS))
    return model, theta, records, jax.tree.map(np.asarray, drawn)


def assert_follows(draws, law):
    assert stats.kstest(draws, law.cdf).pvalue > 1e-4
    assert stats.kstest(draws + 0.2 * law.std(), law.cdf).pvalue < 1e-4


def test_one_parameter_updates_follow_their_closed_form_posteriors():
    _, _, records, drawn = conditional_draws("bernoulli")
    ones = records["x"].sum()
    assert_follows(drawn["p"], stats.beta(2 + ones, 3 + 12 - ones))
    _, _, records, drawn = conditional_draws("poisson")
    assert_follows(drawn["rate"], stats.gamma(6 + records["x"].sum(), scale=1 / (1.5 + 12)))
    _, _, records, drawn = conditional_draws("exponential")
    assert_follows(drawn["rate"], stats.gamma(6 + 12, scale=1 / (2 + records["x"].sum())))
    _, _, records, drawn = conditional_draws("normal")
    precision = 1 / 4 + 12 / 1.5**2
    centre = (1 / 4 + records["x"].sum() / 1.5**2) / precision
    assert_follows(drawn["mean"], stats.norm(centre, precision**-0.5))


def test_categorical_and_naive_bayes_updates_follow_dirichlet_posteriors():
    _, _, records, drawn = conditional_draws("categorical")
    weights = np.array([2.0, 1.5, 3.0]) + np.bincount(records["c"], minlength=3)
    for k in range(3):
        assert_follows(drawn["p"][:, k], stats.beta(weights[k], weights.sum() - weights[k]))
    _, _, records, drawn = conditional_draws("naive_bayes")
    classes = 2.5 + np.bincount(records["y"], minlength=2)
    assert_follows(drawn["class_probs"][:, 0], stats.beta(classes[0], classes[1]))
    for y in range(2):
        weights = 2.5 + np.bincount(records["x2"][records["y"] == y], minlength=3)
        for level in range(3):
            law = stats.beta(weights[level], weights.sum() - weights[level])
            assert_follows(drawn["feature_probs_2"][:, y, level], law)


def test_unknown_variance_cycle_draws_each_block_from_its_conditional():
    _, theta, records, drawn = conditional_draws("normal_unknown_variance")
    x = records["x"]
    assert_follows(drawn["variance"], stats.invgamma(6 + 6, scale=5 + ((x - theta["mean"]) ** 2).sum() / 2))
    precision = 1 / 4 + 12 / drawn["variance"]
    standard = (drawn["mean"] - (1 / 4 + x.sum() / drawn["variance"]) / precision) * np.sqrt(precision)
    assert_follows(standard, stats.norm())


def test_regression_update_follows_the_normal_posterior_of_its_coefficients():
    _, _, records, drawn = conditional_draws("regression")
    design = np.column_stack([np.ones(12), records["x1"], records["x2"]])
    precision = design.T @ design / 2.0 + np.eye(3) / 4
    centre = np.linalg.solve(precision, design.T @ records["y"] / 2.0)
    standard = (drawn["beta"] - centre) @ np.linalg.cholesky(precision)
    for column in standard.T:
        assert_follows(column, stats.norm())
    assert np.max(np.abs(np.corrcoef(standard.T) - np.eye(3))) < 4 / np.sqrt(DRAWS)


@pytest.mark.parametrize("name", ["regression_unknown", "regression_wide"])
def test_regression_cycle_draws_each_block_from_its_conditional(name):
    model, theta, records, drawn = conditional_draws(name)
    x = np.column_stack([records[column] for column in model.predictors])
    design, y, p = np.column_stack([np.ones(12), x]), records["y"], x.shape[1]
    rss = ((y - design @ theta["beta"]) ** 2).sum()
    assert_follows(drawn["variance"], stats.invgamma(6 + 6, scale=5 + rss / 2))

    precision = design.T @ design / drawn["variance"][:, None, None] + np.eye(p + 1) / 4
    linear = design.T @ y / drawn["variance"][:, None]
    standard = standardise(drawn["beta"], precision, linear)
    assert_follows(standard.ravel(), stats.norm())

    prior = model.covariate_cov
    centred = x - theta["covariate_mean"]
    scale, df = np.asarray(prior.scale) + centred.T @ centred, float(prior.df) + 12
    # a direction a of an inverse Wishart matrix: a'Sa is inverse gamma
    for a in (np.eye(p)[0], np.ones(p), np.arange(p) - 0.7):
        law = stats.invgamma((df - p + 1) / 2, scale=a @ scale @ a / 2)
        assert_follows(np.einsum("i,nij,j->n", a, drawn["covariate_cov"], a), law)

    ours, theirs = np.linalg.inv(model.covariate_mean.cov), np.linalg.inv(drawn["covariate_cov"])
    linear = ours @ np.asarray(model.covariate_mean.mean) + theirs @ x.sum(axis=0)
    standard = standardise(drawn["covariate_mean"], ours + 12 * theirs, linear)
    assert_follows(standard.ravel(), stats.norm())


def standardise(draws, precision, linear) -> np.ndarray:
    """Draws of N(P^-1 h, P^-1) turned into standard normal ones, each with its own P and h."""
    centre = np.linalg.solve(precision, linear[..., None])[..., 0]
    return np.einsum("nij,ni->nj", np.linalg.cholesky(precision), draws - centre)


def test_conjugate_says_whether_an_update_forgets_the_theta_it_starts_from():
    cycles = {"normal_unknown_variance", "regression_unknown", "regression_wide"}
    assert set(CONJUGATE) == set(MODELS) - cycles - {"lognormal_regression", "logistic_regression"}
    one_unknown = M.LinearRegression(covariate_mean=[0, 0], covariate_cov=M.InverseWishart(5, COV))
    assert one_unknown.conjugate
    for name in CONJUGATE:
        theta, records = joint_draws(MODELS[name], DRAWS, RECORDS)
        same_key = jnp.broadcast_to(jax.random.key(3), (DRAWS,))
        first = jax.tree.map(lambda leaf: np.broadcast_to(leaf[0], leaf.shape), records)
        drawn = updated(MODELS[name], theta, first, same_key)
        assert all(np.allclose(value, value[:1], rtol=1e-12) for value in drawn.values())
