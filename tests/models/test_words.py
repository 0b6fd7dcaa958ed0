"""A model in words: the expression makes the same model again, and the formulas name its parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from model_cases import MODELS

import noisewise as nw
from noisewise.models.words import expression, formulas, read_expression


@pytest.mark.parametrize("name", MODELS)
def test_the_expression_makes_the_same_model(name):
    again = eval(expression(MODELS[name]), {"nw": nw})
    assert eqx.tree_equal(again, MODELS[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_expression_is_read_without_being_evaluated(name):
    assert eqx.tree_equal(read_expression(expression(MODELS[name])), MODELS[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()",
        "nw.models.from_numpyro(model=3)",
        "nw.models.Poisson(shape=nw.__version__, rate=1)",
        "nw.models.Model.__subclasses__()",
        "nw.models.Nothing()",
        "nw.models.InverseGamma(shape=1.0, scale=2.0)",
        "3 +",
        "",
    ],
)
def test_what_is_no_model_is_not_read(text):
    with pytest.raises(ValueError, match="not the expression of a model"):
        read_expression(text)


@pytest.mark.parametrize("name", MODELS)
def test_the_formulas_name_every_column_and_parameter(name):
    said = " ".join(formulas(MODELS[name]))
    for column in MODELS[name].columns:
        assert column in said
    for parameter in MODELS[name].parameters:
        assert parameter.replace("_1", "_k").replace("_2", "_k") in said


def test_transforms_known_by_name_are_kept_and_others_have_no_expression():
    model = nw.models.LinearRegression(("x", "z"), "y", transforms={"z": "log"}, intercept=False)
    assert eqx.tree_equal(eval(expression(model), {"nw": nw}), model, rtol=1e-12, atol=0)
    assert formulas(model)[0] == "yᵢ ~ Normal(beta[x] xᵢ + beta[z] log zᵢ, variance 2)"
    cube = nw.models.Transform(lambda x: x**3, jnp.cbrt)
    assert expression(nw.models.LinearRegression(("x", "z"), "y", transforms={"z": cube})) is None
    area = nw.models.FayHerriot(("poverty",), "rent", standard_error="error")
    assert eqx.tree_equal(eval(expression(area), {"nw": nw}), area, rtol=1e-12, atol=0)
    assert formulas(area)[0] == "rentᵢ ~ Normal(area_meanᵢ, sd errorᵢ)"


def test_a_model_of_functions_has_no_expression_and_an_unknown_n_does():
    own = nw.models.Custom(
        sample_prior=lambda key: {"m": jax.random.normal(key)},
        innovations=lambda key, n: jax.random.normal(key, (n,)),
        transform=lambda theta, u: {"x": theta["m"] + u},
        update=lambda key, theta, records: theta,
    )
    assert expression(own) is None
    assert formulas(own) == ()
    counted = nw.models.UnknownSize(nw.models.Bernoulli(2, 3), upper=4)
    again = eval(expression(counted), {"nw": nw})
    assert eqx.tree_equal(again, counted, rtol=1e-12, atol=1e-12)
    assert formulas(counted)[-1] == "n between 1 and 4"


def test_priors_are_written_in_the_order_in_which_they_are_made():
    covariance = nw.models.InverseWishart(5, [[1, 0], [0, 2]])
    model = nw.models.LinearRegression(("x", "z"), covariate_mean=[0, 0], covariate_cov=covariance)
    assert formulas(model)[-1] == "covariate_cov ~ InverseWishart(5, [[1, 0], [0, 2]])"
