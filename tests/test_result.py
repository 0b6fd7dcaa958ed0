"""A run is judged before it is handed out, and a checkpoint knows whose it is."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.checkpoint import fingerprint
from noisewise.kernels.records import check_proposal, sweep
from noisewise.result import judge


def good_draws() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 500))


def test_independent_draws_are_judged_converged() -> None:
    assert judge({"a": good_draws()}).converged


def test_a_parameter_with_draws_that_are_not_finite_is_not_judged_converged() -> None:
    broken = good_draws()
    broken[1, 7] = np.nan
    verdict = judge({"a": good_draws(), "b": broken})
    assert not verdict.converged
    assert "not finite" in verdict.sentence


def test_chains_in_different_places_are_not_judged_converged() -> None:
    apart = good_draws() + np.arange(4)[:, None]
    assert "NOT converged" in judge({"a": apart}).sentence


def test_functions_that_differ_in_body_or_closure_have_different_fingerprints() -> None:
    def make(shift: float) -> nw.engines.Augmentation:
        return nw.engines.Augmentation(record_proposal=lambda key, theta, records: (records, jnp.full(2, shift)))

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(2.0))
    assert fingerprint(lambda x: x + 1) != fingerprint(lambda x: x * 1)


@pytest.mark.parametrize("block", [1, 2])
def test_a_proposal_outside_the_support_is_rejected_and_spoils_no_other(block: int) -> None:
    query = nw.queries.Moments({"x": nw.Column(-10, 10)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1e6), [0.0])], n=6)
    records = {"x": jnp.zeros(6)}
    barred = jnp.asarray([0.0, -jnp.inf, 0.0, 0.0, 0.0, 0.0])
    swept = sweep(
        jax.random.key(0),
        {},
        records,
        jnp.zeros(1),
        release,
        lambda key, theta, current: ({"x": jnp.ones(6)}, barred),
        first=jnp.asarray(0),
        window=6,
        block=jnp.asarray(block),
    )
    first_kept = 1 if block == 2 else 0
    expected = np.ones(6)
    expected[1 - first_kept : 2] = 0.0
    np.testing.assert_array_equal(np.asarray(swept.records["x"]), expected)
    assert np.isfinite(float(swept.acceptance_rate))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"move": "ellipse"}, "move must be one of"),
        ({"theta_move": "gibbs"}, "theta_move must be one of"),
        ({"fraction": 2.0}, "fraction must lie in"),
        ({"fraction": "all"}, "fraction must lie in"),
        ({"fraction": True}, "fraction must lie in"),
        ({"record_proposal": 3}, "record_proposal must be a function"),
        ({"interweave": "no"}, "interweave must be True or False"),
        ({"block": -3}, "block must be a whole number"),
        ({"moves": 0}, "moves must be a whole number"),
    ],
)
def test_settings_of_the_augmentation_engine_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        nw.engines.Augmentation(**settings)


def test_chains_that_stand_still_in_places_of_their_own_are_not_judged_converged() -> None:
    still = np.repeat(np.arange(4.0)[:, None], 200, axis=1)
    verdict = judge({"a": good_draws(), "b": still})
    assert not verdict.converged
    assert verdict.sentence.startswith("NOT converged: largest R-hat")


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (lambda records: records, "must return the proposed records.*got {'x'"),
        (lambda records: (records, jnp.zeros(())), r"got .*float64\[\]'"),
        (lambda records: ({"x": records["x"].astype(bool)}, jnp.zeros(6)), r"got .*bool\[6\]"),
        (lambda records: ({"z": records["z"]}, jnp.zeros(6)), "could not be traced with 6 records: KeyError"),
    ],
)
def test_a_record_proposal_of_another_form_is_refused(returned: Callable[..., object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_proposal(lambda key, theta, records: returned(records), nw.models.Bernoulli(), 6)
