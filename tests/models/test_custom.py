"""Custom models: what is inferred, what is recovered, and what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from jax.scipy import stats as jstats
from model_cases import M
from scipy import stats

import noisewise as nw

PARTS = {
    "sample_prior": lambda key: {"scale": jnp.exp(jax.random.normal(key)), "centre": 2 * jax.random.normal(key, (2,))},
    "innovations": lambda key, n: jax.random.normal(key, (n, 2)),
    "transform": lambda theta, u: {
        "second": theta["centre"][1] + theta["scale"] * (u[:, 1] + u[:, 0]),
        "first": theta["centre"][0] - theta["scale"] * u[:, 0],
    },
    "log_prior": lambda theta: jnp.sum(jstats.norm.logpdf(theta["centre"], 0, 2)),
    "log_likelihood": lambda theta, records: -0.5 * (records["first"] ** 2 + records["second"] ** 2),
}


def custom(**changed):
    return M.Custom(**{**PARTS, "support": {"scale": "positive"}, **changed})


def test_names_shapes_and_columns_are_read_from_the_functions():
    model = custom()
    assert model.columns == ("second", "first")
    assert list(model.parameters) == ["scale", "centre"]
    assert model.parameters["scale"].support == "positive"
    assert model.parameters["centre"].shape == (2,)
    assert (model.conjugate, model.has_update, model.has_log_prior, model.has_log_likelihood) == (
        False,
        False,
        True,
        True,
    )


def test_three_functions_suffice():
    def transform(theta, keys):
        return {"x": jax.vmap(lambda key: jax.random.bernoulli(key, theta["p"]).astype(float))(keys)}

    def update(key, theta, records):
        ones, n = jnp.sum(records["x"]), records["x"].shape[0]
        return {"p": jax.random.beta(key, 2.0 + ones, 1.0 + n - ones)}

    model = M.Custom(
        sample_prior=lambda key: {"p": jax.random.beta(key, 2.0, 1.0)},
        transform=transform,
        update=update,
        support={"p": "unit"},
    )
    assert model.has_update
    assert not model.has_inverse
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.5), [5.0])], n=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        tree = nw.sample(model, release, draws=4000, tune=300, random_seed=1, progressbar=False)
    draws = tree.posterior["p"].values
    ones = np.arange(9)
    weight = stats.betabinom.pmf(ones, 8, 2, 1) * np.exp(-np.abs(5.0 - ones) / 1.5)
    expected = float(np.sum(weight * (2 + ones) / 11) / np.sum(weight))
    error = float(array_stats.mcse(draws, chain_axis=0, draw_axis=1, method="mean"))
    assert abs(draws.mean() - expected) < 4 * error < 0.02
    assert abs(draws.mean() - (2 + 5) / 11) > 6 * error  # the posterior of the released number taken as exact


def test_innovations_of_an_affine_model_are_recovered():
    model = custom()
    assert model.has_inverse
    theta = {"scale": jnp.array(3.0), "centre": jnp.array([1.0, -7.0])}
    u = model.innovations(jax.random.key(0), 50)
    records = model.transform(theta, u)
    np.testing.assert_allclose(model.inverse(theta, records, jax.random.key(1)), u, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "transform",
    [
        lambda theta, u: {"first": theta["centre"][0] + jnp.exp(u[:, 0]), "second": u[:, 1]},
        lambda theta, u: {"first": jnp.maximum(u[:, 0], -20.0), "second": u[:, 1]},
        lambda theta, u: {"first": (u[:, 0] > theta["scale"]).astype(int), "second": u[:, 1]},
        lambda theta, u: {"first": u[:, 0] + u[:, 1]},
        lambda theta, u: {"first": u[:, 0] + u[:, 1], "second": u[:, 0] + u[:, 1]},
    ],
    ids=["curved", "clamped", "discrete", "fewer columns", "singular"],
)
def test_a_model_that_is_not_affine_says_it_has_no_inverse(transform):
    model = custom(transform=transform, log_likelihood=lambda theta, records: records["first"] * 1.0)
    assert not model.has_inverse
    with pytest.raises(ValueError, match="has no inverse"):
        model.inverse({}, {}, jax.random.key(0))


def test_a_given_inverse_is_used_and_checked():
    def curved(theta, u):
        return {"x": theta["rate"] * jnp.exp(u)}

    parts = {
        "sample_prior": lambda key: {"rate": jax.random.exponential(key)},
        "innovations": lambda key, n: jax.random.normal(key, (n,)),
        "transform": curved,
        "update": lambda key, theta, records: theta,
    }
    model = M.Custom(**parts, inverse=lambda theta, records, key: jnp.log(records["x"] / theta["rate"]))
    assert model.has_inverse
    assert model.conjugate
    assert not model.has_log_prior
    with pytest.raises(ValueError, match="inverse must undo transform"):
        M.Custom(**parts, inverse=lambda theta, records, key: jnp.log(records["x"]))


BAD = {
    "Custom needs update, or both log_prior and log_likelihood": {"log_prior": None},
    "transform must be a function": {"transform": 3},
    "sample_prior must return a dictionary of real parameters": {"sample_prior": lambda key: jnp.ones(2)},
    "sample_prior could not be traced with key": {"sample_prior": lambda key: jnp.ones(2) @ jnp.ones(3)},
    "innovations must return arrays with the records along the first axis": {
        "innovations": lambda key, n: jnp.ones((2, n))
    },
    "transform could not be traced with .*scale.*TypeError": {"transform": lambda theta: theta},
    "transform must return a dictionary of columns": {"transform": lambda theta, u: u},
    r"transform must return arrays .* got \{'x': float64\[\]\}": {"transform": lambda theta, u: {"x": jnp.sum(u)}},
    r"innovations must return .* for 6 records got float64\[5, 2\]": {
        "innovations": lambda key, n: jax.random.normal(key, (5, 2))
    },
    "transform must return one number for each record in a column; .* Make a column of each number of 'both'": {
        "transform": lambda theta, u: {"both": u}
    },
    r"update could not be traced with .*; write it with jax.numpy and jnp.where, for arrays of any value\.$": {
        "update": lambda key, theta, records: theta if records["first"][0] > 0 else dict(theta)
    },
    "support must name parameters, as in": {"support": ["scale"]},
    "transform must make each record from its own": {
        "transform": lambda theta, u: {"first": u[:, 0] - jnp.mean(u[:, 0]), "second": u[:, 1]}
    },
    r"log_prior must return one number, shape \(\)": {"log_prior": lambda theta: theta["centre"]},
    "log_likelihood must return one number for each record": {"log_likelihood": lambda theta, records: 0.0},
    "update must return .*centre.*scale": {"update": lambda key, theta, records: {"centre": theta["centre"]}},
    "inverse must return": {"inverse": lambda theta, records, key: records["first"]},
    "support names 'sd', which is not a parameter": {"support": {"sd": "positive"}},
    r"support\['scale'\] must be one of real, positive": {"support": {"scale": "plus"}},
    r"support\['scale'\] is simplex": {"support": {"scale": "simplex"}},
    r"support\['centre'\] is covariance": {"support": {"centre": "covariance"}},
}


@pytest.mark.parametrize("sentence", BAD)
def test_functions_that_do_not_fit_get_a_sentence(sentence):
    with pytest.raises(ValueError, match=sentence):
        custom(**BAD[sentence])
