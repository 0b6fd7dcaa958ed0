"""The models the tests go through, one of every kind, with priors mild enough for Monte Carlo."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import noisewise as nw

M = nw.models
COV = np.array([[1.5, 0.6], [0.6, 0.8]])

MODELS = {
    "bernoulli": M.Bernoulli(2, 3),
    "categorical": M.Categorical([2.0, 1.5, 3.0], column="c"),
    "poisson": M.Poisson(6, 1.5),
    "exponential": M.Exponential(6, 2),
    "normal": M.Normal(mean_prior=(1, 2), sd=1.5),
    "normal_unknown_variance": M.Normal(mean_prior=(1, 2), variance_prior=(6, 5)),
    "naive_bayes": M.NaiveBayes(2, [2, 3], prior=2.5),
    "regression": M.LinearRegression(variance=2.0, covariate_mean=[0.9, -1.17], covariate_cov=COV),
    "regression_unknown": M.LinearRegression(
        variance=M.InverseGamma(6, 5),
        covariate_mean=M.NormalPrior([0.5, -1], [[1.0, 0.3], [0.3, 0.5]]),
        covariate_cov=M.InverseWishart(12, 8 * COV),
    ),
    "lognormal_regression": M.LognormalRegression(
        coef_scale=0.6, variance_prior=(9, 4), intercept=True, covariate_mean=[0.4, -0.2], covariate_cov=0.5 * COV
    ),
    "logistic_regression": M.LogisticRegression(coef_scale=1.5, covariate_mean=[0.9, -0.17], covariate_cov=COV),
    "regression_wide": M.LinearRegression(
        [f"x{i}" for i in range(6)],
        variance=M.InverseGamma(6, 5),
        covariate_mean=M.NormalPrior(np.arange(6), 0.5 * np.eye(6) + 0.2),
        covariate_cov=M.InverseWishart(20, 10 * np.eye(6)),
    ),
}
CONJUGATE = {name: model for name, model in MODELS.items() if model.conjugate}


@partial(jax.jit, static_argnames="n")
def _joint(model, keys, n):
    def one(key):
        first, second = jax.random.split(key)
        theta = model.sample_prior(first)
        return theta, model.simulate(second, theta, n)

    return jax.vmap(one)(keys)


def joint_draws(model, draws: int, n: int, seed: int = 0):
    """Draws of (theta, records) from prior and model, the draws along the first axis."""
    return _joint(model, jax.random.split(jax.random.key(seed), draws), n)


def z_scores(values) -> np.ndarray:
    """The mean of every column over its standard error."""
    values = np.asarray(values)
    spread = values.std(axis=0, ddof=1)
    return np.where(spread > 0, values.mean(axis=0) / np.where(spread > 0, spread, 1) * np.sqrt(len(values)), 0.0)


def features(model, theta, records):
    """Functions of theta and records whose joint law an exact update must keep."""
    free = model.unconstrain(theta)
    means = jnp.stack([jnp.mean(records[name].astype(float)) for name in model.columns])
    return jnp.concatenate([free, free**2, jnp.outer(free, means).reshape(-1)])
