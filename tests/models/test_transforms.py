"""Transforms of predictors: maps onto the real line are taken, others refused before they could stall a sampler."""

import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw

Transform = nw.models.Transform


def regression(transform):
    return nw.models.LinearRegression(("x",), "y", transforms={"x": transform})


@pytest.mark.parametrize(
    ("transform", "sentence"),
    [
        (Transform(jnp.sqrt, jnp.square, lower=0.0), "onto the whole real line"),
        (Transform(jnp.log, jnp.exp), "to 0 < x < inf. Give these"),
        (Transform(lambda x: x**3, lambda z: z), "inverse must undo forward"),
        (Transform(np.log, np.exp, lower=0.0), "forward of a Transform must be written with jax.numpy"),
        ("exp", "one of 'log', 'logit', 'asinh'"),
    ],
)
def test_a_map_that_is_none_is_refused_with_a_sentence(transform, sentence):
    with pytest.raises(ValueError, match=sentence):
        regression(transform)


@pytest.mark.parametrize(
    "transform",
    [
        Transform(lambda x: -jnp.log(x), lambda z: jnp.exp(-z), lower=0.0),
        Transform(lambda x: jnp.log(x - 1), lambda z: 1 + jnp.exp(z), lower=1.0),
        Transform(lambda x: (x - 3) / 2, lambda z: 3 + 2 * z),
        "logit",
    ],
)
def test_maps_onto_the_real_line_are_taken(transform):
    ((name, taken),) = regression(transform).transforms
    assert name == "x"
    assert float(taken.forward(taken.inverse(jnp.asarray(0.3)))) == pytest.approx(0.3)


def test_one_noisy_predictor_may_be_named_alone():
    assert nw.models.LognormalRegression(("x1",), "y", noisy="x1").noisy == ("x1",)
