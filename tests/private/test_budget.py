"""One promise is one ledger, one record is one record: what no copy, process, odd setting or clever model gets around."""

import copy
import dataclasses
import os
import pickle
import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import noisewise as nw
from noisewise.private import HMC, Barker, Budget, MinibatchPenalty, Penalty, Stream, accounting, plan, sample, targets
from noisewise.private.hmc import private_gradient
from noisewise.private.ledger import BatchGaussianStep, GaussianStep, affordable, spent_delta
from noisewise.private.penalty import private_ratio
from noisewise.private.records import Table
from noisewise.private.sample import honesty

N = 60
RECORDS = {"x": np.random.default_rng(1).normal(2.0, 1.0, (N, 1))}
TARGET = targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)
METHOD = Penalty(noise=2.0, clip=4.0, proposal=0.1)


def refuses(match, call):
    with pytest.raises(ValueError, match=match):
        call()


def test_a_budget_has_one_ledger_whatever_is_done_to_the_object(monkeypatch):
    promise = Budget(4.0, delta=1e-5)
    made = plan(METHOD, promise, n=N)
    refuses("cannot be copied or pickled", lambda: copy.copy(promise))
    for thing in (promise, made):
        refuses("cannot be copied or pickled", lambda thing=thing: copy.deepcopy(thing))
        refuses("cannot be copied or pickled", lambda thing=thing: pickle.dumps(thing))
    with pytest.raises(TypeError):
        dataclasses.replace(promise)
    for name in ("epsilon", "delta", "neighbours", "_ledger"):
        with pytest.raises(AttributeError):
            setattr(promise, name, 9.0)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # what a forked child would see
    refuses("another process", lambda: sample(TARGET, RECORDS, made))
    monkeypatch.undo()
    more = dataclasses.replace(made, iterations=made.iterations + 1)
    refuses("does not fit", lambda: sample(TARGET, RECORDS, more))
    assert promise.spent_epsilon() == 0
    sample(TARGET, RECORDS, made)
    refuses("spent once", lambda: sample(TARGET, RECORDS, dataclasses.replace(made, iterations=1)))


def centred(theta, records):
    """Each record against the mean of all: a likelihood in which every record moves every term."""
    return -0.5 * (records["x"] - jnp.mean(records["x"]) - theta["centre"]) ** 2


MODEL = nw.models.Custom(
    sample_prior=lambda key: {"centre": jax.random.normal(key)},
    innovations=lambda key, n: jax.random.normal(key, (n,)),
    transform=lambda theta, u: {"x": theta["centre"] + u},
    log_prior=lambda theta: -0.5 * theta["centre"] ** 2,
    log_likelihood=centred,
)


def influence(target, column, others, seeds=30):
    """The most one record moves the sum of clipped ratios and gradients, as a fraction of what the ledger takes for its sensitivity."""
    rng, worst = np.random.default_rng(4), np.zeros(2)
    ratio = Penalty(1.0, clip=0.7, proposal=0.1).ready(target, N)
    slope = HMC(1.0, gradient_noise=1e-9, clip=0.7, gradient_clip=0.7, step=0.1).ready(target, N)
    key = jax.random.key(0)

    @jax.jit
    def seen(theta, new, records):
        table = Table(records, N, N)
        exact = private_ratio(key, theta, new, target, table, ratio, probe=True).probe["exact_ratio"]
        return exact, private_gradient(key, theta, target, table, slope)[0]

    for _ in range(seeds):
        theta, new = (jnp.asarray(rng.normal(size=target.size)) for _ in range(2))
        extreme = rng.choice([-1e12, -30.0, 0.0, 1.0, 30.0, 1e12], size=(2, *others.shape[1:]))
        pair = [np.concatenate([others, own[None]]) for own in extreme]
        (r, g), (s, h) = (seen(theta, new, {column: jnp.asarray(part)}) for part in pair)
        most = 2 * 0.7 * float(target.temper) * np.array([float(jnp.linalg.norm(new - theta)), 1.0])
        worst = np.maximum(worst, np.array([abs(float(r - s)), float(jnp.linalg.norm(g - h))]) / most)
    return worst


@pytest.mark.parametrize("name", ["gaussian", "banana", "circle", "functions", "model"])
def test_no_record_moves_what_is_released_by_more_than_the_ledger_says(name):
    rng = np.random.default_rng(2)
    flat, pairs = rng.normal(size=N - 1), rng.normal(size=(N - 1, 2))
    cases = {
        "gaussian": (targets.Gaussian(covariance=[[1.0, 0.9], [0.9, 1.0]], prior_variance=4.0), "x", pairs),
        "banana": (targets.Banana(a=2.0, variances=[2.0, 0.5], prior_variance=4.0, temper=0.3), "x", pairs),
        "circle": (targets.Circle(a=0.1), "r", flat),
        "functions": (
            targets.from_functions(
                lambda theta, record: -(jnp.abs(record["x"] - theta["m"]) ** 3),
                lambda theta: -(theta["m"] ** 2),
                initial={"m": 0.0},
                columns=("x",),
            ),
            "x",
            flat,
        ),
        "model": (targets.FromModel(nw.models.Normal(mean_prior=(0, 2), sd=1)), "x", flat),
    }
    target, column, others = cases[name]
    worst = influence(target, column, others)
    assert np.all(worst <= 1 + 1e-9)
    assert np.all(worst > 0.5)  # half the sensitivity would be exceeded


def test_a_model_that_lets_records_see_each_other_is_seen_to_break_the_sensitivity():
    """The twin: the same likelihood evaluated on all records at once, as a library model would have been."""

    class AtOnce(targets.FromModel):
        def log_likelihoods(self, theta, records):
            return self.model.log_likelihood(self.model.constrain(theta), records)

    others = np.random.default_rng(2).normal(size=N - 1)
    assert np.all(influence(targets.FromModel(MODEL), "x", others) <= 1)
    assert influence(AtOnce(MODEL), "x", others)[0] > 5


def test_a_model_without_a_likelihood_of_its_own_is_refused():
    model = nw.models.Custom(
        sample_prior=lambda key: {"m": jax.random.normal(key)},
        innovations=lambda key, n: jax.random.normal(key, (n,)),
        transform=lambda theta, u: {"x": theta["m"] + u},
        update=lambda key, theta, records: theta,
    )
    refuses("has no log_likelihood", lambda: sample(model, RECORDS, plan(METHOD, Budget(4.0, 1e-5), n=N)))


def test_records_read_from_disk_are_checked_like_those_in_memory():
    made = plan(METHOD, Budget(4.0, 1e-5), n=N)
    broken = RECORDS["x"].copy()
    broken[-1] = np.nan
    refuses("NaN or infinite", lambda: sample(TARGET, Stream({"x": broken}, block=16), made))
    refuses("must have shape", lambda: sample(TARGET, Stream({"x": broken[:, 0] * 0}, block=16), made))
    labels = {"x": np.ones((N, 1)), "y": np.where(np.arange(N) == N - 1, -1.0, 1.0)}
    logistic = targets.LogisticRegression(predictors=1, prior_sd=1.0, bound=1.0)
    counts = targets.PoissonRegression(predictors=1, prior_sd=1.0)
    for records in (labels, Stream(labels, block=16)):
        refuses("zeros and ones", lambda records=records: sample(logistic, records, made))
        refuses("not negative", lambda records=records: sample(counts, records, made))
    refuses("columns by name", lambda: sample(logistic, labels["x"], made))
    refuses("block must be", lambda: Stream(RECORDS, block=0))
    assert made.budget.spent_epsilon() == 0


def test_odd_settings_are_refused_with_a_sentence():
    promise, two = Budget(4.0, 1e-5), targets.Gaussian(covariance=np.eye(2), prior_variance=1.0)
    for wrong in ("1", [1.0], None, True - 1):
        refuses("finite and positive", lambda wrong=wrong: Budget(wrong, 1e-5))
        refuses("strictly between", lambda wrong=wrong: Budget(1.0, wrong))
    for wrong in (True, 2.5, "9", float("nan"), float("inf"), -1):
        refuses("n must be a whole number", lambda wrong=wrong: plan(METHOD, promise, n=wrong))
        refuses("iterations must be", lambda wrong=wrong: plan(METHOD, promise, n=N, iterations=wrong))
    refuses("must be one number", lambda: Penalty(noise=[0.1, 0.2]))
    refuses("must be one number; ", lambda: Penalty(clip=[1.0]))
    refuses("one for each component", lambda: Penalty(proposal=np.ones((2, 2))))
    refuses("3 numbers and the target 2", lambda: Penalty(1.0, clip=1.0, proposal=[1, 1, 1]).ready(two, N))
    refuses("3 numbers and the target 2", lambda: Barker(batch=9, proposal=[1, 1, 1]).ready(two, N))
    hmc = {"gradient_noise": 1.0, "clip": 1.0, "gradient_clip": 1.0, "step": 0.1}
    refuses("3 numbers and the target 2", lambda: HMC(1.0, mass=[1, 1, 1], **hmc).ready(two, N))
    refuses("mass has shape", lambda: HMC(1.0, mass=np.eye(3), **hmc).ready(two, N))
    refuses("leapfrog must be", lambda: HMC(leapfrog=0))
    refuses("jitter must be", lambda: HMC(jitter=[0.1, 0.2]))
    refuses("batch must be", lambda: MinibatchPenalty(batch=2.5))
    refuses("a sampler, such as", lambda: plan("penalty", promise, n=N))
    refuses("a sampler, such as", lambda: plan(METHOD, 4.0, n=N))
    refuses("temper must be", lambda: targets.Circle(a=1.0, temper=-1.0))
    refuses("lipschitz must be", lambda: targets.from_functions(abs, abs, initial={}, columns=(), lipschitz=0.0))
    refuses("symmetric positive definite", lambda: targets.Gaussian(covariance=[[1, 2], [2, 1]], prior_variance=1))
    refuses("variances must be", lambda: targets.Banana(a=1.0, variances=[1.0, -1.0], prior_variance=1.0))
    refuses("at least two numbers", lambda: targets.Banana(a=1.0, variances=1.0, prior_variance=1.0))
    refuses("bound must be", lambda: targets.LogisticRegression(predictors=1, prior_sd=1.0, bound=-1.0))
    start = {"theta": [float("nan"), 0.0]}
    circle = {"r": np.ones(N)}
    refuses("not finite", lambda: sample(targets.Circle(a=1.0), circle, plan(METHOD, promise, n=N), initvals=start))
    assert promise.spent_epsilon() == 0


def test_accounting_at_the_ends_of_what_a_number_can_hold():
    """A tiny epsilon is delta alone, ``mu = pi delta^2``; steps of no use or no end are said to be, not looped or warned about."""
    assert accounting.max_mu(1e-160, 1e-6) == pytest.approx(float(mpmath.pi) * 1e-12, rel=1e-6)
    loud = [GaussianStep(1.0, 1e-3, 1000)], [BatchGaussianStep(1.0, 1e-2, 100, 1000, 1000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [spent_delta(steps, 0.1, name) for steps in loud for name in ("rdp", "rdp_improved")] == [1.0] * 4
    refuses("iterations fit", lambda: affordable([GaussianStep(1.0, 1e12)], epsilon=1.0, delta=1e-6))
    quiet = plan(Penalty(1e9, clip=1.0, proposal=1.0), Budget(1.0, 1e-6), n=N, iterations=10**12)
    assert quiet.iterations == 10**12


def test_a_tempered_run_says_that_it_is_not_the_posterior():
    whole = targets.LogisticRegression(predictors=1, prior_sd=1.0, bound=1.0)
    part = targets.LogisticRegression(predictors=1, prior_sd=1.0, bound=1.0, temper=0.01)
    made = plan(Penalty(noise=2.0, proposal=0.1), Budget(4.0, 1e-5), n=N)
    assert honesty(whole, made)["noisewise_exact"] == 1
    assert honesty(part, made) == {
        "noisewise_exact": 0,
        "noisewise_reason": "the likelihood is tempered, to the power 0.01",
    }
