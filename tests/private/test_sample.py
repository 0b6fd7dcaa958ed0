"""A private run from budget to DataTree: what it charges, what leaves, and what it refuses."""

import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import noisewise as nw
from noisewise.private import HMC, Barker, Budget, MinibatchPenalty, Penalty, Stream, oneshot, plan, sample, targets
from noisewise.private.ledger import BarkerStep, BatchGaussianStep, GaussianStep, repeated, spent_delta, spent_epsilon
from noisewise.private.records import Table, make_table
from noisewise.private.sample import os_keys

N = 300
RECORDS = {"x": np.random.default_rng(1).normal(2.0, 1.0, (N, 1))}
TARGET = targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)


def budget(epsilon=4.0):
    return Budget(epsilon=epsilon, delta=1e-5)


def small_plan(promise, **changes):
    return plan(Penalty(noise=1.0, clip=4.0, proposal=0.1, **changes), promise, n=N)


def test_what_leaves_is_the_draws_the_decisions_seen_in_them_and_the_guarantee(tmp_path):
    promise = budget()
    made = small_plan(promise)
    tree = sample(TARGET, RECORDS, made, chains=2, initvals={"theta": [2.0]})
    assert set(tree.children) == {"posterior", "sample_stats"}
    assert set(tree["posterior"].data_vars) == {"theta"}
    assert set(tree["sample_stats"].data_vars) == {"accepted"}
    each = made.iterations // 2
    assert tree["posterior"].sizes == {"chain": 2, "draw": each - each // 2, "theta_dim_0": 1}
    draws, accepted = tree["posterior"]["theta"].values[..., 0], tree["sample_stats"]["accepted"].values
    assert np.array_equal(np.diff(draws, axis=1) != 0, accepted[:, 1:])
    wanted = {"inference_library", "inference_library_version", "created_at", "noisewise_method"}
    assert tree.attrs["noisewise_exact"] == 0
    wanted |= {"noisewise_reason", "epsilon", "delta", "neighbours", "accountant", "epsilon_spent"}
    assert wanted <= set(tree.attrs)
    assert "random_seed" not in tree.attrs
    assert tree.attrs["epsilon_spent"] <= tree.attrs["epsilon"]
    assert all(isinstance(value, str | int | float) for value in tree.attrs.values())  # what netCDF can hold
    for group in tree.children:
        path = tmp_path / f"{group}.nc"
        tree[group].to_dataset().to_netcdf(path, engine="scipy")
        with xr.open_dataset(path, engine="scipy") as back:
            for name, variable in tree[group].data_vars.items():
                assert np.array_equal(back[name].values, variable.values)


def test_testing_shows_what_must_not_leave_and_a_seed_repeats_the_run_whatever_runs_beside_it():
    def go(chains, promise=None):
        made = plan(Penalty(noise=1.0, clip=4.0, proposal=0.1), promise or budget(60.0), n=N, iterations=40 * chains)
        return sample(TARGET, RECORDS, made, chains=chains, testing=True, random_seed=3, discard=0.0)

    two, five = go(2), go(5)
    assert {"clip_fraction", "exact_ratio", "noisy_ratio", "accepted"} <= set(two["sample_stats"].data_vars)
    assert np.array_equal(two["posterior"]["theta"], five["posterior"]["theta"][:2])
    assert two.attrs["random_seed"] == 3


def test_without_a_seed_no_two_runs_are_alike():
    one, two = (sample(TARGET, RECORDS, small_plan(budget())) for _ in range(2))
    assert not np.array_equal(one["posterior"]["theta"], two["posterior"]["theta"])
    assert len(np.unique(os_keys(0, 50, 4).reshape(-1, 2), axis=0)) == 200


def test_a_budget_is_spent_once_and_before_the_run(monkeypatch):
    promise = budget()
    made = small_plan(promise)
    sample(TARGET, RECORDS, made)
    assert promise.spent_delta() <= 1e-5
    assert promise.spent_epsilon() > 0.99 * promise.epsilon
    with pytest.raises(ValueError, match="a budget is spent once"):
        sample(TARGET, RECORDS, made)
    with pytest.raises(ValueError, match="allows no iteration"):
        small_plan(promise)

    interrupted = budget()
    made = small_plan(interrupted)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["noisewise.private.sample"], "run", stop)
    with pytest.raises(KeyboardInterrupt):
        sample(TARGET, RECORDS, made)
    assert interrupted.spent_epsilon() > 0.9 * interrupted.epsilon


def test_a_budget_may_be_spent_in_parts_of_different_kinds():
    promise = budget()
    first = plan(Penalty(noise=1.0, clip=4.0, proposal=0.1), promise, n=N, iterations=20)
    sample(TARGET, RECORDS, first)
    second = plan(HMC(noise=1.0, gradient_noise=1.0, clip=4.0, gradient_clip=4.0, step=0.05, leapfrog=3), promise, n=N)
    assert second.iterations < plan(second.method, budget(), n=N).iterations
    sample(TARGET, RECORDS, second, initvals={"theta": [2.0]})
    assert len(promise.ledger) == 3
    assert 0.9e-5 < promise.spent_delta() <= 1e-5


@pytest.mark.parametrize(
    "method",
    [
        Penalty(clip=4.0, proposal=0.1),
        MinibatchPenalty(batch=30, clip=4.0, proposal=0.1),
        HMC(clip=4.0, gradient_clip=4.0, step=0.05, leapfrog=3),
    ],
)
def test_a_plan_finds_the_noise_for_a_number_of_iterations(method):
    promise = budget(1.0)
    accountant = "rdp_improved" if isinstance(method, MinibatchPenalty) else "auto"
    made = plan(method, promise, n=N, iterations=25, accountant=accountant)
    assert made.iterations == 25
    assert spent_delta(made.steps(), 1.0, made.accountant) <= 1e-5
    less = made.method.with_noise(float(made.method.noise) * 0.995)
    if isinstance(method, HMC):
        less = HMC(
            float(made.method.noise) * 0.995,
            gradient_noise=float(made.method.noise) * 0.995,
            clip=4.0,
            gradient_clip=4.0,
            step=0.05,
            leapfrog=3,
        )
    assert spent_delta(repeated(less.steps(N), 25), 1.0, made.accountant) > 1e-5
    assert f"{made.iterations} iterations" in made.describe()
    assert made.noise == float(made.method.noise)
    assert made.cost == spent_epsilon(made.method.steps(N), 1e-5, made.accountant)
    assert promise.spent_epsilon() == 0


def refuses(match, call):
    with pytest.raises(ValueError, match=match):
        call()


def test_wrong_use_is_refused_with_a_sentence():
    made = small_plan(budget())
    refuses("takes no seed", lambda: sample(TARGET, RECORDS, made, random_seed=1))
    refuses("strictly between 0 and 1", lambda: Budget(epsilon=1.0, delta=0))
    refuses("epsilon must be finite and positive", lambda: Budget(epsilon=-1.0, delta=1e-6))
    refuses("add_remove_one", lambda: Budget(epsilon=1.0, delta=1e-6, neighbours="add_remove_one"))
    refuses("was not stated", lambda: plan(Penalty(noise=1.0, clip=1.0, proposal=1.0), budget()))
    refuses("whole number", lambda: plan(Penalty(noise=1.0, clip=1.0, proposal=1.0), budget(), n=0))
    refuses("no Lipschitz bound", lambda: sample(TARGET, RECORDS, plan(Penalty(1.0, proposal=0.1), budget(), n=N)))
    refuses("no proposal", lambda: sample(TARGET, RECORDS, plan(Penalty(1.0, clip=1.0), budget(), n=N)))
    refuses("give one, and the other is found", lambda: plan(Penalty(clip=1.0, proposal=0.1), budget(), n=N))
    refuses("allows no iteration", lambda: plan(Penalty(0.001, clip=1.0, proposal=0.1), budget(0.1), n=N))
    refuses("do not fit the budget", lambda: plan(Penalty(1.0, clip=1.0), budget(), n=N, iterations=10**6))
    refuses("plan again with the right n", lambda: sample(TARGET, {"x": RECORDS["x"][:-1]}, made))
    refuses("lack the columns", lambda: sample(TARGET, {"z": RECORDS["x"]}, made))
    refuses("NaN or infinite", lambda: sample(TARGET, {"x": np.full((N, 1), np.nan)}, made))
    refuses("less than one each", lambda: sample(TARGET, RECORDS, made, chains=10**5))
    refuses("initvals must name", lambda: sample(TARGET, RECORDS, made, initvals={"mu": [0.0]}))
    refuses("has shape", lambda: sample(TARGET, RECORDS, made, initvals={"theta": [0.0, 1.0]}))
    refuses("noise must be positive", lambda: Penalty(noise=-1.0))
    refuses("components must be", lambda: Penalty(components="some"))
    refuses("batch must be a whole number of at least 2", lambda: Barker(batch=1))
    refuses("cannot account for", lambda: plan(Barker(batch=100, proposal=0.1), budget(), n=N, accountant="tight"))
    refuses("symmetric positive definite", lambda: HMC(mass=[[1.0, 2.0], [2.0, 1.0]]))
    refuses("jitter must be a number in", lambda: HMC(jitter=1.0))
    refuses(
        "has no normal mean", lambda: oneshot(targets.Circle(a=1.0), RECORDS, budget(), n=N, centre=[0, 0], radius=1.0)
    )
    refuses("the target must be", lambda: sample("gaussian", RECORDS, made))
    refuses("nothing is given back", lambda: made.budget.spend([GaussianStep(1.0, 9.0, count=-5)]))
    refuses("scale of a release", lambda: GaussianStep(sensitivity=1.0, scale=0.0))
    refuses("sensitivity of a release", lambda: BatchGaussianStep(float("nan"), 1.0, batch=5, n=10))
    refuses("between 1 and n", lambda: BarkerStep(batch=20, n=10))
    assert made.budget.spent_epsilon() == 0  # refused before anything is charged


def test_a_likelihood_of_several_numbers_for_a_record_is_refused_before_anything_is_charged():
    """Each number would be clipped and noised by itself: two of them move by sqrt(2) times the sensitivity that is charged for."""
    records = {"x": np.random.default_rng(2).normal(size=(N, 2))}

    def target(log_likelihood, log_prior):
        return targets.from_functions(log_likelihood, log_prior, initial={"mean": [0.0, 0.0]}, columns=("x",))

    def normal(theta, record):
        return -0.5 * (record["x"] - theta["mean"]) ** 2

    def prior(theta):
        return -0.5 * jnp.sum(theta["mean"] ** 2)

    made = small_plan(budget())
    refuses("log_likelihood.* must return one number", lambda: sample(target(normal, prior), records, made))
    refuses("log_prior.* must return one number", lambda: sample(target(prior, lambda t: t["mean"]), records, made))

    class Careless(targets.Gaussian):
        def log_ratios(self, theta, new, records):
            return normal({"mean": new}, records) - normal({"mean": theta}, records)

    careless = Careless(covariance=np.eye(2), prior_variance=9.0)
    refuses("one number for each record", lambda: sample(careless, records, made))
    refuses("cannot be evaluated", lambda: sample(target(lambda t, r: jnp.sum(r["x"][:7] @ t), prior), records, made))
    refuses(
        "must have shape", lambda: sample(targets.Banana(a=1.0, variances=[1, 1], prior_variance=1.0), RECORDS, made)
    )
    assert made.budget.spent_epsilon() == 0
    assert sample(target(lambda t, r: jnp.sum(normal(t, r)), prior), records, made)["posterior"]["mean"].shape[2:] == (
        2,
    )


def test_numbers_of_32_bits_are_refused_because_their_sums_are_not_exact():
    import jax

    made = small_plan(budget())
    with jax.enable_x64(False):
        refuses("64-bit numbers", lambda: sample(TARGET, RECORDS, made))
    assert made.budget.spent_epsilon() == 0


def test_a_new_seed_setting_or_number_of_iterations_compiles_nothing():
    traces = []

    def log_likelihood(theta, record):
        traces.append(1)
        return -0.5 * jnp.sum((record["x"] - theta["mean"]) ** 2)

    def log_prior(theta):
        return -0.5 * jnp.sum(theta["mean"] ** 2) / 100

    def target(temper):
        return targets.from_functions(
            log_likelihood,
            log_prior,
            initial={"mean": [0.0]},
            columns=("x",),
            temper=temper,
        )

    def go(seed, iterations, noise, temper):
        made = plan(Penalty(noise=noise, clip=4.0, proposal=noise / 10), budget(90.0), n=N, iterations=iterations)
        return sample(target(temper), RECORDS, made, testing=True, random_seed=seed, discard=0.0)

    go(1, 30, 1.0, 1.0)
    first = len(traces)
    go(2, 300, 2.0, 0.5)
    assert len(traces) == first > 0


def test_sums_are_the_same_in_blocks_streamed_and_over_devices():
    columns = {"x": np.random.default_rng(2).normal(size=(10_001, 2))}

    def summand(records):
        return jnp.floor(records["x"] * 2.0**30), jnp.ones_like(records["x"][:, 0])

    exact = np.floor(columns["x"] * 2.0**30).sum(axis=0)
    for table in (
        make_table(columns),
        make_table(columns, block=512),
        Stream(columns, block=999),
        Table(columns, 10_001, 10_001),
    ):
        total, count = table.total(summand)
        assert np.array_equal(np.asarray(total), exact)
        assert float(count) == 10_001
        assert np.array_equal(np.asarray(table.take(jnp.array([3, 10_000]))["x"]), columns["x"][[3, 10_000]])


def test_a_streamed_run_gives_the_draws_of_the_run_in_memory(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, RECORDS["x"])
    mapped = Stream({"x": np.load(path, mmap_mode="r")}, block=128)
    for method in (Penalty(noise=1.0, clip=4.0, proposal=0.1), MinibatchPenalty(1.0, batch=20, clip=4.0, proposal=0.1)):
        runs = [
            sample(TARGET, records, plan(method, budget(), n=N, iterations=6), testing=True, random_seed=4)
            for records in (RECORDS, mapped)
        ]
        assert np.allclose(runs[0]["posterior"]["theta"], runs[1]["posterior"]["theta"], rtol=0, atol=1e-12)


SHARDED = """
import jax, numpy as np
import noisewise as nw
from noisewise.private import Penalty, HMC, Budget, plan, sample, targets
records = {"x": np.random.default_rng(1).normal(2.0, 1.0, (301, 1))}
target = targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)
method = HMC(noise=1.0, gradient_noise=1.0, clip=4.0, gradient_clip=4.0, step=0.05, leapfrog=2)
def go(devices):
    made = plan(method, Budget(epsilon=9.0, delta=1e-5), n=301, iterations=20)
    return sample(target, records, made, testing=True, random_seed=4, devices=devices)["posterior"]["theta"].values
assert len(jax.devices()) == 2
print(np.max(np.abs(go(None) - go(jax.devices()))))
"""


def test_records_spread_over_devices_give_the_same_draws():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-12


# The baseline -----------------------------------------------------------------------------------------------------------------


def test_oneshot_posterior_is_calibrated_against_its_own_noise():
    """Over data sets from the prior, the posterior's normal scores of the true theta are standard normal."""
    rng = np.random.default_rng(5)
    target = targets.Banana(a=0.5, variances=[1.0, 2.0], prior_variance=1.0)
    scores = []
    for repeat in range(40):
        u = rng.normal(size=2)
        records = {"x": u + rng.normal(size=(50, 2)) * np.sqrt([1.0, 2.0])}
        tree = oneshot(
            target, records, Budget(1.0, 1e-4), n=50, centre=[0.0, 0.0], radius=9.0, testing=True, random_seed=repeat
        )
        straight = np.asarray(target.straighten(tree["posterior"]["theta"].values[0]))
        scores.append((u - straight.mean(axis=0)) / straight.std(axis=0))
    flat = np.ravel(scores)
    assert abs(flat.mean()) < 4 / math.sqrt(flat.size)
    assert abs(np.mean(flat**2) - 1) < 4 * math.sqrt(2 / flat.size)


def test_oneshot_spends_all_that_is_left_and_no_more():
    promise = budget(1.0)
    sample(TARGET, RECORDS, plan(Penalty(noise=2.0, clip=4.0, proposal=0.1), promise, n=N, iterations=30))
    tree = oneshot(TARGET, RECORDS, promise, n=N, centre=[0.0], radius=6.0)
    assert 0.99e-5 < promise.spent_delta() <= 1e-5
    step = promise.ledger[-1]
    assert isinstance(step, GaussianStep)
    assert step.sensitivity == 12 / N
    assert float(tree["observed_data"]["noise_sd"]) == pytest.approx(step.scale, rel=1e-6)
    refuses("wider than the radius", lambda: oneshot(TARGET, RECORDS, promise, n=N, centre=[0.0], radius=6.0))
    assert tree.attrs["accountant"] == "tight"
    mixed = budget(4.0)
    batches = MinibatchPenalty(noise=9.0, batch=30, clip=4.0, proposal=0.1)
    mixed.spend(batches.steps(N))
    tree = oneshot(TARGET, RECORDS, mixed, n=N, centre=[0.0], radius=6.0)
    assert tree.attrs["accountant"] == "pld"
    alone = budget(4.0)
    oneshot(TARGET, RECORDS, alone, n=N, centre=[0.0], radius=6.0)
    refuses("wider than the radius", lambda: oneshot(TARGET, RECORDS, alone, n=N, centre=[0.0], radius=6.0))
    refuses("oneshot takes a Budget", lambda: oneshot(TARGET, RECORDS, 4.0, n=N, centre=[0.0], radius=6.0))


@pytest.mark.parametrize("accountant", ["tight", "zcdp", "rdp_improved"])
def test_the_noise_found_for_many_iterations_affords_not_one_more(accountant):
    wanted = Penalty(clip=4.0, proposal=0.1)
    made = plan(wanted, budget(), n=N, iterations=50_000, accountant=accountant)
    assert plan(made.method, budget(), n=N, accountant=accountant).iterations == 50_000
    if accountant == "tight":
        least = math.sqrt(50_000 / (2 * N * nw.private.accounting.max_mu(4.0, 1e-5)))
        assert made.noise == pytest.approx(least, rel=1e-11)
