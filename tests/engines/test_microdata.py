"""One step of the microdata engine keeps the joint law of parameters, records and release (Geweke 2004), for every kind of column.

Theta comes from its prior, the records from their law, the release from the records; then one step is made. The mean of any
function of (theta, records) must not change, whatever the mixing. Every case has a twin whose sampler believes another noise.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.compilation import use_compilation_cache
from noisewise.engines.microdata import MicrodataKernel, MicrodataState
from noisewise.engines.microdata_codes import CodeImputer
from noisewise.engines.microdata_regression import RegressionImputer
from noisewise.engines.microdata_table import Cells
from noisewise.engines.microdata_univariate import UnivariateImputer
from noisewise.kernels.walk import Walk

use_compilation_cache()
M, noise = nw.models, nw.noise
DRAWS, N = 3000, 5
RNG = np.random.default_rng(3)
COV = np.array([[1.0, 0.4], [0.4, 0.8]])
GAPS = np.array([False, True, False, False, False])
BINARY = noise.RandomisedResponse(0.25)

# model, columns released with noise, public covariates by value, noisy covariates without a law by centre, columns with gaps
CASES = {
    "lognormal on a lattice, flat noisy covariate": (
        M.LognormalRegression(("x1", "x2"), "y", coef_scale=0.7, variance_prior=(5, 4)),
        {"y": noise.DiscreteLaplace(2.0), "x1": noise.Laplace(np.linspace(0.2, 0.6, N))},
        {"x2": RNG.normal(size=N)},
        {"x1": RNG.normal(size=N)},
        (),
    ),
    "lognormal behind wide Laplace noise, covariate in logs": (
        M.LognormalRegression(
            ("x1",), "y", coef_scale=0.5, variance_prior=(6, 4), intercept=True, transforms={"x1": "log"}
        ),
        {"y": noise.Laplace(3.0), "x1": noise.Laplace(0.25)},
        {},
        {"x1": np.linspace(3.5, 6.0, N)},
        ("y",),
    ),
    "linear with a law of the covariates and gaps": (
        M.LinearRegression(
            ("x1", "x2"),
            "y",
            coef_scale=0.8,
            variance=M.InverseGamma(6, 5),
            covariate_mean=M.NormalPrior([0, 1], COV),
            covariate_cov=M.InverseWishart(12, 8 * COV),
        ),
        {"y": noise.Gaussian(1.5), "x1": noise.Laplace(0.7), "x2": noise.DiscreteLaplace(1.2)},
        {},
        {},
        ("x1", "y"),
    ),
    "logistic behind randomised response": (
        M.LogisticRegression(("x1", "x2"), "y", coef_scale=1.5),
        {"y": BINARY, "x1": noise.Laplace(0.5), "x2": BINARY},
        {},
        {"x1": RNG.normal(size=N), "x2": np.array([0.0, 1, 1, 0, 1])},
        (),
    ),
    "small areas": (
        M.FayHerriot(("x1",), "y", coef_scale=1.0, variance_prior=(4, 3)),
        {"y": noise.Laplace(0.8)},
        {"x1": RNG.normal(size=N), "se": np.linspace(0.3, 1.5, N)},
        {},
        (),
    ),
    "normal on a lattice": (
        M.Normal(mean_prior=(1, 2), variance_prior=(5, 6)),
        {"x": noise.DiscreteLaplace(1.5)},
        {},
        {},
        ("x",),
    ),
    "poisson": (M.Poisson(6, 1.5), {"x": noise.DiscreteLaplace(1.5)}, {}, {}, ()),
    "gamma on a lattice": (
        M.GammaKnownShape(2.5, shape=4, rate=2, column="x"),
        {"x": noise.DiscreteGaussian(1.3)},
        {},
        {},
        (),
    ),
    "naive bayes": (
        M.NaiveBayes(2, [2, 3], prior=2.5),
        {"y": BINARY, "x1": noise.DiscreteLaplace(0.5), "x2": noise.RandomisedResponse(0.3, 3)},
        {},
        {},
        ("x2",),
    ),
}


def imputer_of(model):
    if isinstance(model, M.Bernoulli | M.NaiveBayes):
        return CodeImputer
    return UnivariateImputer if len(model.columns) == 1 else RegressionImputer


def scaled(law, factor):
    if isinstance(law, noise.RandomisedResponse):
        return noise.RandomisedResponse(law.flip * factor, law.levels)
    return eqx.tree_at(lambda found: found.scale, law, law.scale * factor)


def draw_records(key, model, theta, laws, public, centres):
    """Records given theta; covariates without a law are what a release at ``centres`` leaves of them."""
    if model.has_transform:
        return model.simulate(key, theta, N)
    records = {name: jnp.asarray(value) for name, value in public.items()}
    for j, (name, centre) in enumerate(centres.items()):
        now = jax.random.fold_in(key, j)
        law = laws[name]
        coded = isinstance(law, noise.RandomisedResponse)
        records[name] = law.respond(now, jnp.asarray(centre)) if coded else centre - law.sample(now, (N,))
    linear = getattr(model, "linear", model)
    line = linear.line(theta["beta"], records)
    if isinstance(model, M.LogisticRegression):
        y = (line + jax.random.logistic(jax.random.fold_in(key, 99), (N,)) > 0).astype(float)
    else:
        variance = model.response_variance(theta, records) if isinstance(model, M.FayHerriot) else theta["variance"]
        y = line + jnp.sqrt(variance) * jax.random.normal(jax.random.fold_in(key, 99), (N,))
        y = jnp.exp(y) if isinstance(model, M.LognormalRegression) else y
    return {**records, linear.response: y}


def features(theta, records, cells):
    values = [jnp.ravel(jnp.arcsinh(leaf)) for leaf in theta.values()]
    for name, column in records.items():
        bent, told = jnp.arcsinh(column.astype(float)), jnp.arcsinh(cells[name].released)
        shown = jnp.mean(jnp.where(cells[name].missing, 0.0, bent * told))
        values.append(jnp.stack([jnp.mean(bent), jnp.mean(bent**2), bent[0], bent[1], bent[1] ** 2, shown]))
        values += [jnp.ravel(leaf)[:1] * side for leaf in theta.values() for side in (jnp.mean(bent), jnp.mean(told))]
    return jnp.concatenate(values)


@partial(jax.jit, static_argnames="name")
def differences(name, keys, factor):
    model, laws, public, centres, gaps = CASES[name]

    def one(key):
        prior_key, record_key, release_key, step_key = jax.random.split(key, 4)
        theta = model.sample_prior(prior_key)
        records = draw_records(record_key, model, theta, laws, public, centres)
        cells = {}
        for j, (column, exact) in enumerate(records.items()):
            law, missing = laws.get(column), jnp.asarray(GAPS if column in gaps else ~GAPS & GAPS)
            if law is None:
                released = jnp.asarray(exact)
            elif column in centres:
                released = jnp.asarray(centres[column])
            elif isinstance(law, noise.RandomisedResponse):
                released = law.respond(jax.random.fold_in(release_key, j), exact)
            else:
                released = exact + law.sample(jax.random.fold_in(release_key, j), (N,))
            law = None if law is None else scaled(law, factor)
            cells[column] = Cells(jnp.where(missing, 0.0, released), missing, law, column in gaps)
        imputer = imputer_of(model)(model, cells)
        size = model.free_size
        walk = Walk.start(jnp.zeros(size), 0.2 * jnp.eye(size))
        kernel = MicrodataKernel(model, None, imputer, walk, True, 3)
        moved, _ = kernel.step(step_key, MicrodataState(theta, records, {}, walk))
        return features(moved.theta, moved.records, cells) - features(theta, records, cells)

    return jax.vmap(one)(keys)


def scores(name, factor):
    found = np.asarray(differences(name, jax.random.split(jax.random.key(11), DRAWS), jnp.asarray(factor)))
    assert np.all(np.isfinite(found))
    spread = found.std(axis=0, ddof=1)
    moving = spread > 1e-9
    return found[:, moving].mean(axis=0) / spread[moving] * np.sqrt(DRAWS)


@pytest.mark.parametrize("name", CASES)
def test_a_step_keeps_the_joint_law_and_a_step_with_other_noise_does_not(name):
    right = scores(name, 1.0)
    assert np.max(np.abs(right)) < stats.norm.isf(5e-4 / right.size)
    assert np.max(np.abs(scores(name, 0.1))) > 6
