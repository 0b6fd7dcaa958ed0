"""The engines, models and noise laws of the library, as designs to calibrate; ``benchmarks/sbc.py`` runs all pairs of them."""

import jax
import jax.numpy as jnp
import numpy as np
from joint_model import Joint

import noisewise as nw
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.surrogate import Surrogate

M, Q = nw.models, nw.queries
LAPLACE, GAUSSIAN = nw.noise.Laplace, nw.noise.Gaussian
CONTINUOUS = (LAPLACE, GAUSSIAN)
EVERY = (*CONTINUOUS, nw.noise.DiscreteLaplace, nw.noise.DiscreteGaussian)


def waiting_family(column="x"):
    """Exponential waiting times, written by hand as a family."""
    return M.ExponentialFamily(
        parameters={"rate": "positive"},
        natural=lambda theta: -theta["rate"],
        statistic=lambda x: x,
        log_partition=lambda eta: -jnp.log(-eta),
        update=lambda key, total, n: {"rate": jax.random.gamma(key, 6.0 + n) / (3.0 + total)},
        log_prior=lambda theta: jax.scipy.stats.gamma.logpdf(theta["rate"], 6.0, scale=1 / 3.0),
        quantile=lambda theta, u: -jnp.log1p(-u) / theta["rate"],
        cdf=lambda x, eta: -jnp.expm1(eta * x),
        support=(0.0, float("inf")),
        column=column,
    )


def shifted_normal(column="x"):
    """A normal mean from plain functions."""

    def update(key, theta, records):
        x = records[column]
        precision = 0.25 + x.shape[0]
        return {"centre": jnp.sum(x) / precision + jax.random.normal(key) / jnp.sqrt(precision)}

    return M.Custom(
        sample_prior=lambda key: {"centre": 2 * jax.random.normal(key)},
        innovations=lambda key, n: jax.random.normal(key, (n,)),
        transform=lambda theta, u: {column: theta["centre"] + u},
        update=update,
        log_prior=lambda theta: jax.scipy.stats.norm.logpdf(theta["centre"], 0.0, 2.0),
        log_likelihood=lambda theta, records: jax.scipy.stats.norm.logpdf(records[column], theta["centre"]),
    )


def regression():
    return M.LinearRegression(
        variance=M.InverseGamma(6, 5),
        covariate_mean=M.NormalPrior([0.5, -1], [[1.0, 0.3], [0.3, 0.5]]),
        covariate_cov=M.InverseWishart(12, 8 * np.array([[1.5, 0.6], [0.6, 0.8]])),
    )


def moments(column, lower, upper, *powers):
    return Q.Moments({column: nw.Column(lower, upper)}, [{column: power} if power else {} for power in powers])


def regression_query():
    wide = nw.Column(-6, 6, rescale=(-1, 1))
    return Q.regression_moments({"x1": wide, "x2": wide}, {"y": wide})


def table(size, column="x"):
    return Q.Counts(levels={column: size}, tables=[(column,)])


NAIVE_BAYES = Q.Counts(levels={"y": 2, "x1": 2, "x2": 3}, tables=[("y", "x1"), ("y", "x2")])


def designs(at="x"):
    """By model, with its column ``at``: the model, a query, a noise scale, and the laws of noise that the query admits."""
    return {
        "Bernoulli": (M.Bernoulli(2, 3, column=at), moments(at, 0, 1, 1), 2.0, EVERY),
        "Categorical": (M.Categorical([2.0, 1.5, 3.0], column=at), table(3, at), 2.0, EVERY),
        "Poisson": (M.Poisson(6, 2, column=at), moments(at, 0, 7, 1), 4.0, EVERY),
        "Exponential": (M.Exponential(6, 3, column=at), moments(at, 0, 2, 1), 1.0, CONTINUOUS),
        "Normal, known sd": (M.Normal((1, 2), sd=1.5, column=at), moments(at, -6, 8, 1), 4.0, CONTINUOUS),
        "Normal": (M.Normal((1, 2), variance_prior=(6, 5), column=at), moments(at, -3, 5, 1, 2), 4.0, CONTINUOUS),
        "GammaKnownShape": (M.GammaKnownShape(2.5, shape=6, rate=3, column=at), moments(at, 0, 4, 1), 2.0, CONTINUOUS),
        "ExponentialFamily": (waiting_family(at), moments(at, 0, 2, 1), 1.0, CONTINUOUS),
        "NaiveBayes": (M.NaiveBayes(2, [2, 3], prior=2.5), NAIVE_BAYES, 2.0, EVERY),
        "LinearRegression": (regression(), regression_query(), 1.0, CONTINUOUS),
        "Custom": (shifted_normal(at), moments(at, -8, 8, 1), 4.0, CONTINUOUS),
        "UnknownSize": (M.UnknownSize(M.Bernoulli(2, 3), upper=12, lower=2), moments("x", 0, 1, 0, 1), 1.5, EVERY),
    }


DESIGNS = designs()

ENGINES = {
    "augmentation": tuple(DESIGNS),
    "counts": ("Bernoulli", "Categorical", "NaiveBayes", "UnknownSize"),
    "fourier": ("Bernoulli", "Poisson", "Exponential", "Normal, known sd", "Custom"),
    "sufficient": (
        "Bernoulli",
        "Categorical",
        "Poisson",
        "Exponential",
        "Normal, known sd",
        "Normal",
        "GammaKnownShape",
        "ExponentialFamily",
        "LinearRegression",
    ),
}
"""By engine: the models it computes with."""


def release(name, laws, n, scale=1.0):
    """A release of a design by each of the laws, of the same records: its posterior is right only if every law is."""
    model, query, width, _ = DESIGNS[name]
    parts = [nw.Measurement(query, law(scale * width), np.zeros(query.size)) for law in laws]
    return model, nw.Release(parts, None if name == "UnknownSize" else n)


GROUPS = {
    "discrete": ("Bernoulli", "Categorical", "Poisson", "NaiveBayes"),
    "continuous": ("Exponential", "Normal", "GammaKnownShape", "ExponentialFamily", "Custom"),
}
"""Models side by side in one program, each with its own columns and its query under all its laws."""


def side_by_side(group, n):
    parts = {name: designs(f"column of {name}")[name] for name in GROUPS[group]}
    measurements = [
        nw.Measurement(query, law(width), np.zeros(query.size))
        for _, query, width, laws in parts.values()
        for law in laws
    ]
    return Joint({name: part[0] for name, part in parts.items()}), nw.Release(measurements, n)


class Unaided(nw.engines.Augmentation):
    """The augmentation engine without its picture of the posterior, which takes longer to compile than the chains run."""

    def build(self, model, release, key):
        free = model.free_size
        wide = Surrogate(jnp.zeros(free), jnp.eye(free))
        return AugmentationKernel(
            model=model,
            release=release,
            surrogate=wide,
            record_proposal=None,
            theta_move="update",
            interweave=True,
            move="random_walk",
            moves=8,
            window=release.n,
            block=1,
            n=release.n,
        )
