"""Rubin's rules against hand-worked numbers and a closed form, and a calibration of the interval they give."""

from __future__ import annotations

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import noisewise as nw
from noisewise.engines import augmentation
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.surrogate import Surrogate
from noisewise.imputation import rubin

N, SD, TAU, NOISE = 20, 1.0, 10.0, 8.0


def test_rubins_rules_by_hand():
    # Q = 2, U = 0.5, B = 1, T = 0.5 + 4/3, lambda = 8/11, nu_m = 2 (11/8)^2, nu_o = (3/11) 9 10 / 12
    combined = rubin([1.0, 2.0, 3.0], [0.4, 0.5, 0.6], complete_df=9)
    assert combined.estimate == pytest.approx(2)
    assert combined.within == pytest.approx(0.5)
    assert combined.between == pytest.approx(1)
    assert combined.variance == pytest.approx(11 / 6)
    assert combined.missing == pytest.approx(8 / 11)
    nu_m, nu_o = 2 * (11 / 8) ** 2, 3 / 11 * 90 / 12
    assert combined.df == pytest.approx(1 / (1 / nu_m + 1 / nu_o))
    low, high = combined.interval(0.9)
    reach = stats.t.ppf(0.95, combined.df) * np.sqrt(11 / 6)
    assert (low, high) == pytest.approx((2 - reach, 2 + reach))


def test_degrees_of_freedom_at_the_ends():
    assert rubin([1.0, 1.0], [2.0, 2.0]).df == np.inf
    assert rubin([1.0, 1.0], [2.0, 2.0], complete_df=7).df == pytest.approx(7 * 8 / 10)
    assert rubin([0.0, 1.0], [0.0, 0.0], complete_df=7).df == 0
    assert rubin([0.0, 1.0, 2.0], [0.0, 0.0, 0.0]).df == pytest.approx(2)


def test_many_quantities_are_combined_at_once():
    tables = [{"x": np.arange(4.0) + shift, "y": np.ones(4)} for shift in (0.0, 1.0, 5.0)]

    def analysis(table):
        means = np.array([table["x"].mean(), table["y"].mean()])
        return means, np.array([table["x"].var(ddof=1), table["y"].var(ddof=1)]) / 4

    combined = nw.combine(tables, analysis, complete_df=3)
    alone = rubin([1.5, 2.5, 6.5], [5 / 12] * 3, complete_df=3)
    assert combined.estimate[0] == pytest.approx(alone.estimate)
    assert combined.df[0] == pytest.approx(alone.df)
    assert combined.variance[1] == 0


@pytest.mark.parametrize(
    ("estimates", "variances", "how", "says"),
    [
        ([1.0], [1.0], {}, "at least 2 imputations"),
        ([1.0, 2.0], [1.0, 1.0, 1.0], {}, "one shape"),
        ([1.0, np.nan], [1.0, 1.0], {}, "finite"),
        ([1.0, 2.0], [1.0, -1.0], {}, "not negative"),
        ([1.0, 2.0], [1.0, 1.0], {"complete_df": 0}, "complete_df"),
    ],
)
def test_impossible_analyses_are_refused(estimates, variances, how, says):
    with pytest.raises(ValueError, match=says):
        rubin(estimates, variances, **how)


def test_too_few_tables_are_refused():
    with pytest.raises(ValueError, match="keep_latent"):
        nw.combine([{"x": np.ones(3)}], lambda table: (1.0, 1.0))
    two = [{"x": np.ones(3)}, {"x": np.zeros(3)}]
    with pytest.raises(ValueError, match=r"must return a pair.*got 1\.0"):
        nw.combine(two, lambda table: 1.0)
    with pytest.raises(ValueError, match="must be numbers"):
        nw.combine(two, lambda table: ("high", 1.0))
    with pytest.raises(ValueError, match="analysis must be a function"):
        nw.combine(two, 3)
    with pytest.raises(ValueError, match="the list of imputed tables"):
        nw.combine(xr.DataTree(), lambda table: (1.0, 1.0))
    with pytest.raises(ValueError, match="complete_df must be positive; got 'n - 1'"):
        nw.combine(two, lambda table: (1.0, 1.0), complete_df="n - 1")
    with pytest.raises(ValueError, match="level"):
        rubin([1.0, 2.0], [1.0, 1.0]).interval(95)


def test_a_result_without_databases_is_refused():
    with pytest.raises(ValueError, match=r"takes the result of nw\.sample"):
        nw.impute("result.nc")
    with pytest.raises(ValueError, match="keep_latent=20"):
        nw.impute(xr.DataTree.from_dict({"posterior": xr.Dataset()}))


def test_kept_databases_come_out_as_tables_without_the_pool(monkeypatch):
    # the surrogate that chains start from has tests of its own and is slow to compile
    monkeypatch.setattr(augmentation, "fit_surrogate", lambda *_, **__: Surrogate(jnp.zeros(1), jnp.eye(1)))
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    release = nw.Release(
        [nw.Measurement(query, nw.noise.Laplace(0.5), [6.2, 2.9])], n=None, neighbours="add_remove_one"
    )
    model = nw.models.UnknownSize(nw.models.Bernoulli(), upper=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        tree = nw.sample(
            model, release, draws=40, tune=60, keep_latent=8, random_seed=1, method="augmentation", progressbar=False
        )
    tables = nw.impute(tree)
    assert len(tables) == 8
    assert all(set(table) == {"x"} for table in tables)
    # every one of the four chains is kept in turn, at the same draws as the posterior's
    sizes = tree.posterior["n"].values[:, [19, 39]].T.reshape(-1)
    assert [table["x"].size for table in tables] == sizes.tolist()


def kernel_of(released: float = 0.0) -> AugmentationKernel:
    query = nw.queries.Moments({"x": nw.Column(-1000, 1000)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(NOISE), [released])], n=N)
    return AugmentationKernel(
        model=nw.models.Normal((0, TAU), sd=SD),
        release=release,
        surrogate=Surrogate(jnp.zeros(1), jnp.full((1, 1), (NOISE / N) ** 2)),
        record_proposal=None,
        theta_move="update",
        interweave=True,
        move="random_walk",
        moves=8,
        window=N,
        block=1,
        n=N,
    )


def calibrate(replicates: int, imputations: int, gap: int, seed: int, level: float = 0.9) -> dict[str, float]:
    """Coverage of the mean in replicates from the prior: of the combined interval, the posterior's, and that of U alone.

    A replicate draws the mean, the records and the release, then one chain; databases are ``gap`` steps apart. Larger runs:
    ``calibrate(5000, 20, 50, seed=1)``.
    """
    kernel = kernel_of()

    @eqx.filter_jit
    def replicate(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        theta_key, data_key, noise_key, init_key, run_key = jax.random.split(key, 5)
        theta = kernel.model.sample_prior(theta_key)
        records = kernel.model.simulate(data_key, theta, N)
        released = kernel.release.respond(noise_key, records)["m0"]
        mine = eqx.tree_at(lambda k: k.release.measurements[0].value, kernel, released)
        state = mine.init(init_key, {"mean": released[0] / N})

        def move(state, key):
            for_adapt, info = mine.step(key, state)
            return for_adapt, info

        def tune(state, key):
            state, info = move(state, key)
            return mine.adapt(state, info), None

        def block(state, keys):
            state, _ = jax.lax.scan(lambda s, k: (move(s, k)[0], None), state, keys)
            return state, (state.records["x"], state.theta["mean"])

        keys = jax.random.split(run_key, (imputations + 2) * gap).reshape(imputations + 2, gap)
        state, _ = jax.lax.scan(tune, state, keys[:2].reshape(-1))
        _, (x, mean) = jax.lax.scan(block, state, keys[2:])
        return theta["mean"], released[0], x, mean

    truth, released, x, _ = map(np.asarray, jax.vmap(replicate)(jax.random.split(jax.random.key(seed), replicates)))
    x = np.moveaxis(x, 1, 0)
    combined = rubin(x.mean(axis=-1), x.var(axis=-1, ddof=1) / N)
    low, high = combined.interval(level)
    data = SD**2 / N + (NOISE / N) ** 2
    precision = 1 / TAU**2 + 1 / data
    centre, spread = released / N / data / precision, stats.norm.ppf(0.5 * (1 + level)) / np.sqrt(precision)
    naive = stats.norm.ppf(0.5 * (1 + level)) * np.sqrt(combined.within)
    return {
        "combined": float(np.mean((low <= truth) & (truth <= high))),
        "posterior": float(np.mean(np.abs(truth - centre) <= spread)),
        "agree": float(np.mean(((low <= truth) & (truth <= high)) == (np.abs(truth - centre) <= spread))),
        "within alone": float(np.mean(np.abs(truth - combined.estimate) <= naive)),
        "width ratio": float(np.mean((high - low) / (2 * spread))),
    }


def test_the_combined_interval_covers_as_the_posterior_does():
    replicates, level = 600, 0.9
    found = calibrate(replicates, imputations=20, gap=10, seed=1, level=level)
    error = np.sqrt(level * (1 - level) / replicates)
    assert abs(found["combined"] - level) < 4 * error, found
    assert abs(found["posterior"] - level) < 4 * error, found
    # paired with the posterior's own interval the comparison is sharper
    apart = np.sqrt(1 - found["agree"]) / np.sqrt(replicates)
    assert abs(found["combined"] - found["posterior"]) < 4 * max(apart, 1 / replicates), found
    # the interval of the complete-data analysis alone, which forgets the noise, is seen to be wrong
    assert found["within alone"] < level - 10 * error, found
