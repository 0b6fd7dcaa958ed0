"""Records in any shape people keep them in give the same run; what is not records, a plan or a number gets a sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import noisewise as nw
from noisewise.private import HMC, Budget, Penalty, Stream, accounting, plan, sample, targets, tune
from noisewise.private.ledger import GaussianStep, spent_delta
from noisewise.private.sample import verdict
from noisewise.result import judge

N = 80
R = np.random.default_rng(1).normal(2.0, 1.0, N)
CIRCLE = targets.Circle(a=0.1)
METHOD = Penalty(noise=2.0, clip=4.0, proposal=0.1)
GAUSSIAN = targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)


def made(iterations=12, n=N):
    return plan(METHOD, Budget(9.0, 1e-5), n=n, iterations=iterations)


def refuses(match, call):
    with pytest.raises(ValueError, match=match):
        call()


def test_a_dict_a_frame_a_data_set_an_array_and_a_stream_give_the_same_run():
    kept = {
        "dict": {"r": R, "other": np.arange(3)},
        "list": {"r": R.tolist()},
        "frame": pd.DataFrame({"r": R, "name": "a"}),
        "data set": xr.Dataset({"r": ("record", R)}),
        "array": R,
        "stream": Stream({"r": R}, block=33),
    }
    draws = {
        name: sample(CIRCLE, records, made(), testing=True, random_seed=1, discard=0.0)["posterior"]["theta"].values
        for name, records in kept.items()
    }
    for name, found in draws.items():
        assert np.allclose(found, draws["dict"], rtol=0, atol=1e-12), name
    assert len(kept["stream"]) == N


def test_tables_that_are_no_mappings_are_read_and_what_they_hide_is_refused():
    hidden = np.ma.masked_array(R, mask=np.arange(N) == 3)
    for records in (pl.DataFrame({"r": R}), pa.table({"r": R}), Stream({"r": R.tolist()}, block=33)):
        assert sample(CIRCLE, records, made())["posterior"]["theta"].shape == (1, 6, 2)
    one = made()
    missing = [None, *R[1:].tolist()]
    for records in (
        {"r": hidden},
        Stream({"r": hidden}, block=33),
        pl.DataFrame({"r": missing}),
        pa.table({"r": missing}),
    ):
        refuses("NaN or infinite", lambda records=records: sample(CIRCLE, records, one))
    refuses("columns by name", lambda: Stream(R))
    refuses("along its first axis", lambda: Stream({"r": 3.0}))
    refuses("must hold real numbers", lambda: Stream({"r": np.full(N, "a")}))
    assert one.budget.spent_epsilon() == 0


def test_records_that_no_parameter_can_give_are_refused_before_anything_is_charged():
    """Their log likelihood is -inf or no number everywhere, and so is no ratio: they counted as zero, and a run of such records alone
    gave the prior."""
    one, counts = made(), np.arange(N)
    refuses("3 of the 80 records are impossible", lambda: sample(nw.models.Poisson(1, 1), {"x": counts - 3}, one))
    logs = targets.from_functions(
        lambda theta, record: jnp.log(record["x"]) * theta["m"],
        lambda theta: -(theta["m"] ** 2),
        initial={"m": 0.5},
        columns="x",
    )
    refuses("5 of the 80 records are impossible", lambda: sample(logs, Stream({"x": counts - 4.0}, block=33), one))
    assert one.budget.spent_epsilon() == 0
    assert sample(nw.models.Poisson(1, 1), {"x": counts % 3}, one)["posterior"]["rate"].shape == (1, 6)


def test_the_generator_is_the_documented_one_whatever_jax_was_set_to():
    def go():
        return sample(CIRCLE, {"r": R}, made(), testing=True, random_seed=1)["posterior"]["theta"].values

    usual = go()
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    try:
        assert np.array_equal(go(), usual)
    finally:
        jax.config.update("jax_default_prng_impl", before)


def test_what_is_not_records_a_plan_or_a_number_is_refused_with_a_sentence():
    one = made()
    for column, match in (
        (np.full((N, 1), "a"), "must hold real numbers"),
        (np.full((N, 1), 1j), "must hold real numbers"),
        ([[None]] * N, "NaN or infinite"),
        (3.0, "along its first axis"),
    ):
        refuses(match, lambda column=column: sample(GAUSSIAN, {"x": column}, one))
    records = {"x": R[:, None]}
    refuses("takes a plan made by", lambda: sample(GAUSSIAN, records, one.method))
    refuses("takes a plan made by", lambda: sample(GAUSSIAN, records, one.budget))
    refuses("discard must be a number", lambda: sample(GAUSSIAN, records, one, discard="half"))
    refuses("initvals must give a value for each of", lambda: sample(GAUSSIAN, records, one, initvals=[1.0]))
    refuses("initvals.* must hold real numbers", lambda: sample(GAUSSIAN, records, one, initvals={"theta": ["a"]}))
    for seed in (1.5, -1, "a", 2**70):
        refuses("random_seed must be", lambda s=seed: sample(GAUSSIAN, records, one, testing=True, random_seed=s))
    refuses("stays where it is", lambda: sample(GAUSSIAN, Stream(records), one, devices=jax.devices()))
    refuses("at least one JAX device", lambda: sample(GAUSSIAN, records, one, devices=[]))
    lost = targets.from_functions(
        lambda theta, record: -record["y"] * theta["m"], lambda theta: 0.0, initial={"m": 0.0}, columns="x"
    )
    refuses("the target reads 'y'", lambda: sample(lost, {"x": R}, one))
    refuses("must be functions", lambda: targets.from_functions(1, 2, initial={"m": 0.0}, columns="x"))
    refuses("by name", lambda: targets.from_functions(abs, abs, initial=[0.0], columns="x"))
    assert one.budget.spent_epsilon() == 0


def test_a_model_of_given_covariates_is_a_target_and_codes_beyond_its_levels_are_refused():
    model = nw.models.LogisticRegression(predictors=("age",), response="y")  # the covariates have no law
    records = {"age": R, "y": np.arange(N) % 2}
    target = targets.as_target(model)
    eta = 0.3 - 0.2 * R
    exact = np.where(records["y"], eta, 0.0) - np.log1p(np.exp(eta)) + np.log(2)
    found = target.log_ratios(np.zeros(2), np.array([0.3, -0.2]), {name: np.asarray(v) for name, v in records.items()})
    assert np.allclose(found, exact, rtol=1e-12)
    assert sample(model, records, made())["posterior"]["beta"].shape == (1, 6, 2)
    refuses("codes 0 to 1", lambda: sample(nw.models.Bernoulli(1, 1), {"x": np.arange(N) % 3}, made()))
    classes = nw.models.NaiveBayes(classes=2, features=[3])
    refuses("codes 0 to 2", lambda: sample(classes, {"y": np.arange(N) % 2, "x1": np.full(N, 3)}, made()))


def test_wrong_accounting_questions_are_refused():
    refuses("Renyi order", lambda: accounting.rdp_gaussian(1, 0.5))
    refuses("for each order", lambda: accounting.rdp_epsilon([0.1, 0.2], 1e-5))
    refuses("for each order", lambda: accounting.rdp_delta(1.0, [-0.1], orders=[2]))
    refuses("epsilon must be a finite number", lambda: accounting.gaussian_delta("1", 0.1))
    refuses("epsilon must be", lambda: accounting.zcdp_delta(float("nan"), 0.1))
    refuses("mu must be", lambda: accounting.gaussian_delta(1.0, [0.1]))
    for order, batch, rdp, match in (
        (2.5, 10, lambda j: j, "whole number of at least 2"),
        (float("nan"), 10, lambda j: j, "whole number of at least 2"),
        (4, 2.5, lambda j: j, "whole number of records"),
        (4, 10, lambda j: -1.0, "Renyi cost must be a number, not negative"),
        (4, 10, 0.3, "rdp must be a function"),
    ):
        refuses(match, lambda o=order, b=batch, r=rdp: accounting.rdp_subsampled(o, b, 100, r))
    refuses("batch must be a whole number", lambda: accounting.rdp_barker(4, -3))
    refuses("for each order", lambda: accounting.rdp_epsilon([], 1e-5, orders=[]))
    refuses("epsilon must be a finite number", lambda: accounting.rdp_delta(float("nan"), [1.0], orders=[2]))
    refuses("mu must be finite and positive", lambda: accounting.pld_gaussian("a"))
    refuses("scale must be", lambda: accounting.pld_subsampled(sensitivity=1.0, scale="a", batch=1, n=9))
    refuses("the scale of a release", lambda: GaussianStep(1.0, "a"))
    refuses("a count of releases", lambda: GaussianStep(1.0, 1.0, float("nan")))
    refuses("a ledger holds", lambda: spent_delta([METHOD], 1.0))
    one = accounting.pld_gaussian(0.1)
    for epsilon in ("a", float("nan")):
        refuses("epsilon must be", lambda epsilon=epsilon: accounting.pld_delta(one, epsilon=epsilon))
    for count in (0, -1, 1.5):
        refuses("count must be", lambda count=count: accounting.pld_delta(one, epsilon=1.0, count=count))


def test_a_gradient_noise_that_alone_spends_the_budget_is_named():
    method = HMC(gradient_noise=0.01, clip=1.0, gradient_clip=1.0, step=0.1)
    refuses("costs more than is left of it by itself", lambda: plan(method, Budget(1.0, 1e-5), n=N, iterations=50))


def test_tuning_on_nothing_or_on_what_is_not_a_sampler_is_refused():
    refuses("tune takes a sampler", lambda: tune(CIRCLE, "penalty", {"r": R}, n=N))
    refuses("clipped must be", lambda: tune(CIRCLE, Penalty(), {"r": R}, n=N, clipped="a"))
    refuses("sigma must be", lambda: tune(CIRCLE, Penalty(), {"r": R}, n=N, sigma=-1.0))
    refuses("no synthetic records", lambda: tune(CIRCLE, Penalty(), {"r": R[:0]}, n=N))
    refuses("lack the columns", lambda: tune(CIRCLE, Penalty(), {"x": R}, n=N))
    refuses("initvals must name", lambda: tune(CIRCLE, Penalty(), {"r": R}, n=N, initvals={"m": 0.0}))


def test_a_private_run_says_whether_its_chains_agree():
    """The verdict is made of the draws that are released anyway, by the room that judges every other run."""
    records = {"x": R[:, None]}
    short = sample(GAUSSIAN, records, made(40), chains=4, testing=True, random_seed=1)
    assert short.attrs["noisewise_converged"] == 0
    assert "NOT converged" in short.attrs["noisewise_verdict"]
    alone = sample(GAUSSIAN, records, made(40), testing=True, random_seed=1)
    assert "one chain" in alone.attrs["noisewise_verdict"]
    independent = {"theta": np.random.default_rng(3).normal(size=(2, 600, 1))}
    found, said = judge(independent), verdict(independent)
    assert found.converged
    assert said["noisewise_converged"] == 1
    assert f"{found.rhat:.3f}" in said["noisewise_verdict"]
    once = nw.private.oneshot(GAUSSIAN, records, Budget(5.0, 1e-3), n=N, centre=[0.0], radius=6.0)
    assert once.attrs["noisewise_converged"] == 1
