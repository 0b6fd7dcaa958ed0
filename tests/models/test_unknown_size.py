"""The prior on the number of records, and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw

WEIGHTS = np.array([1.0, 0.0, 3.0, 4.0])


def model(**how) -> nw.models.UnknownSize:
    return nw.models.UnknownSize(nw.models.Bernoulli(2, 1), upper=5, lower=2, **how)


def test_numbers_are_drawn_from_their_prior():
    size = 20_000
    draws = jax.vmap(model(prior=WEIGHTS).sample_prior)(jax.random.split(jax.random.key(1), size))
    law = np.bincount(np.asarray(draws["n"], dtype=int), minlength=6)[2:] / size
    expected = WEIGHTS / WEIGHTS.sum()
    assert np.all(np.abs(law - expected) <= 4 * np.sqrt(expected * (1 - expected) / size))
    # the flat prior that is meant when none is given is another law
    assert np.max(np.abs(law - 0.25)) > 20 * np.sqrt(0.25 * 0.75 / size)
    assert abs(float(draws["p"].mean()) - 2 / 3) < 4 * float(draws["p"].std()) / np.sqrt(size)


def test_the_log_prior_is_that_of_the_parameters_and_of_n():
    whole = model(prior=WEIGHTS)
    at = float(whole.log_prior({"p": jnp.asarray(0.3), "n": jnp.asarray(4.0)}))
    assert at == pytest.approx(np.log(2 * 0.3) + np.log(3 / 8))
    for n in (1.0, 3.0, 6.0):
        assert float(whole.log_prior({"p": jnp.asarray(0.3), "n": jnp.asarray(n)})) == -np.inf


def test_parameters_and_coordinates_are_those_of_the_records_and_n():
    whole = model()
    assert list(whole.parameters) == ["p", "n"]
    assert whole.columns == ("x",)
    assert whole.free_size == 1
    free = whole.unconstrain({"p": jnp.asarray(0.3), "n": jnp.asarray(4.0)})
    assert float(whole.constrain(free)["p"]) == pytest.approx(0.3)
    updated = whole.update(jax.random.key(0), {"p": 0.5, "n": jnp.asarray(4.0)}, {"x": jnp.ones(4)})
    assert float(updated["n"]) == 4


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"upper": 2, "lower": 2}, "lower < upper"),
        ({"upper": 2.5}, "whole number"),
        ({"upper": True}, "whole number"),
        ({"upper": 3, "lower": -1}, "0 <= lower"),
        ({"upper": 3, "prior": [1.0, 1.0]}, "3 weights"),
        ({"upper": 3, "prior": [1.0, -1.0, 1.0]}, "none negative"),
        ({"upper": 3, "prior": [1.0, np.nan, 1.0]}, "none negative"),
        ({"upper": 3, "prior": [0.0, 0.0, 0.0]}, "all are zero"),
        ({"upper": 3, "prior": "flat"}, "3 weights.*got 'flat'"),
        ({"upper": 3, "prior": lambda n: 1 / n}, "3 weights"),
    ],
)
def test_impossible_priors_are_refused(how, says):
    with pytest.raises(ValueError, match=says):
        nw.models.UnknownSize(nw.models.Bernoulli(), **how)


def test_a_model_inside_itself_or_with_an_n_is_refused():
    with pytest.raises(ValueError, match="noisewise model of the records"):
        nw.models.UnknownSize(model(), upper=5)
    with pytest.raises(ValueError, match="noisewise model of the records"):
        nw.models.UnknownSize("Bernoulli", upper=5)
    own = nw.models.Custom(
        sample_prior=lambda key: {"n": jax.random.normal(key)},
        innovations=lambda key, n: jax.random.normal(key, (n,)),
        transform=lambda theta, u: {"x": theta["n"] + u},
        update=lambda key, theta, records: theta,
    )
    with pytest.raises(ValueError, match="n of its own"):
        nw.models.UnknownSize(own, upper=5)


def test_the_model_and_the_release_must_agree_on_whether_n_is_known():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    unknown = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [4.0, 2.0])], neighbours="add_remove_one")
    known = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [4.0, 2.0])], n=4)
    with pytest.raises(ValueError, match="wrap the model"):
        nw.sample(nw.models.Bernoulli(), unknown, method="augmentation")
    with pytest.raises(ValueError, match="the release states it"):
        nw.sample(model(), known, method="augmentation")
