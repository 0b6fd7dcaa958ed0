"""``nw.sample``: every bad argument gets its sentence before any work, and a run leaves a complete tree."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import noisewise as nw
from noisewise import result
from noisewise.run import Trace

QUERY = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
MODEL = nw.models.Bernoulli(2, 1)
ENGINE = nw.engines.Augmentation(interweave=False, block=1)
EPSILON = 1.25


def release_of(value=4.3, scale=1 / EPSILON):
    return nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(scale), [value])], n=6)


def sample(release=None, **settings):
    defaults = {"draws": 600, "tune": 50, "chains": 3, "random_seed": 5, "method": ENGINE, "progressbar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        return nw.sample(MODEL, release_of() if release is None else release, **(defaults | settings))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"draws": 0}, "draws must be a whole number of at least 1; got 0"),
        ({"tune": -5}, "tune must be a whole number of at least 0; got -5"),
        ({"chains": 1.5}, "chains must be a whole number"),
        ({"thin": 0}, "thin must be a whole number of at least 1"),
        ({"target_ess": -1.0}, "target_ess must be positive; got -1.0"),
        ({"keep_latent": -1}, "keep_latent must be a whole number of at least 0"),
        ({"random_seed": -1}, "random_seed must be a whole number from 0"),
        ({"random_seed": 1.5}, "random_seed must be a whole number from 0"),
        ({"random_seed": True}, "random_seed must be a whole number from 0"),
        ({"checkpoint": 3}, "checkpoint must be the name of a file, or None; got 3"),
        ({"initvals": [0.5]}, r"initvals must say values by parameter.*got \[0.5\]"),
        ({"progressbar": "yes"}, "progressbar must be True or False; got 'yes'"),
        ({"method": "guess"}, "method must be one of .*; got 'guess'"),
    ],
)
def test_a_bad_argument_gets_its_sentence_before_an_engine_is_built(monkeypatch, wrong, sentence):
    def build(*_):
        raise AssertionError("an engine was built")

    monkeypatch.setattr(nw.engines.Augmentation, "build", build)
    with pytest.raises(ValueError, match=sentence):
        sample(**wrong)


def test_a_pair_that_does_not_fit_gets_its_sentence():
    with pytest.raises(ValueError, match="model must be a noisewise model"):
        nw.sample("normal", release_of())
    with pytest.raises(ValueError, match=r"release must be a nw\.Release"):
        nw.sample(MODEL, [4.3])
    with pytest.raises(ValueError, match=r"reads the columns .*, which the model does not describe"):
        nw.sample(nw.models.Bernoulli(1, 1, column="z"), release_of())
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}, {}])
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="random_seed must be a whole number from 0"):
            nw.naive(MODEL, release_of(), random_seed=wrong)
    unsized = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [4.3, 6.2])])
    with pytest.raises(ValueError, match="number of records is unknown"):
        sample(unsized)


def coded(levels):
    counts = nw.queries.Counts({"x": levels}, [("x",)])
    return nw.Release([nw.Measurement(counts, nw.noise.Laplace(2.0), [np.full(levels, 60.0 / levels)])], n=60)


def integer_sum(**unused):
    clamped = nw.queries.Moments({"x": nw.Column(0, 10), **unused}, [{"x": 1}])
    return nw.Release([nw.Measurement(clamped, nw.noise.DiscreteLaplace(20.0), [300])], n=100)


def reported(levels):
    law = nw.noise.RandomisedResponse(0.2, levels)
    return nw.Release([nw.Measurement(nw.queries.Records(columns=("x",)), law, [[1.0], [0.0], [1.0]])], n=3)


def tossed(theta, u):
    return {"x": jnp.where(u < theta["p"], 1.0, 0.0), "z": u}


TOSSED = nw.models.Custom(
    sample_prior=lambda key: {"p": jax.random.uniform(key)},
    innovations=lambda key, n: jax.random.uniform(key, (n,)),
    transform=tossed,
    update=lambda key, theta, records: {"p": jax.random.beta(key, 1 + jnp.sum(records["x"]), 2.0)},
)


@pytest.mark.parametrize(
    ("model", "release", "sentence"),
    [
        (nw.models.Categorical([1, 1, 1]), coded(2), "counts 'x' at 2 levels, but the model gives it 3; give both"),
        (nw.models.Bernoulli(), coded(3), "counts 'x' at 3 levels, but the model gives it 2"),
        (nw.models.Normal(), coded(2), "counts the codes of 'x', but the Normal model's 'x' is not a code"),
        (
            nw.models.Exponential(2, 1),
            integer_sum(),
            "DiscreteLaplace noise on a sum of 'x' is for integers, but the Exponen",
        ),
        (
            nw.models.Categorical([1, 1, 1]),
            reported(2),
            "one of the codes 0 to 1, but the Categorical model gives it 3",
        ),
        (nw.models.Normal(), reported(2), "one of the codes 0 to 1, but the Normal model gives it other values"),
        (nw.models.Poisson(9, 1), reported(4), "codes 0 to 3, but the Poisson model gives it other values"),
    ],
)
def test_codes_integer_noise_and_reports_need_a_model_that_makes_them(model, release, sentence):
    with pytest.raises(ValueError, match=sentence):
        nw.explain(model, release)
    with pytest.raises(ValueError, match=sentence):
        nw.naive(model, release)


def test_codes_of_floating_point_numbers_and_columns_that_no_term_uses_are_no_mistake():
    for release in (coded(2), integer_sum(z=nw.Column(0, 1)), reported(3)):
        assert nw.explain(TOSSED, release).engine.name == "augmentation"
    assert nw.explain(nw.models.Poisson(2, 1), release_of()).engine.exact


@pytest.mark.parametrize(
    ("initvals", "sentence"),
    [
        ({"q": 0.5}, r"initvals names 'q', but the model's parameters are \['p'\]"),
        ({"p": [0.5, 0.5]}, r"initvals\['p'\] must be finite with shape \(\), or \(3,\)"),
        ({"p": "half"}, r"initvals\['p'\] must be made of numbers; got 'half'"),
        ({"p": 1.0}, "starting value that the model does not allow"),
        ({"p": [0.5, 1.5, 0.5]}, "starting value that the model does not allow"),
        ({"p": np.nan}, r"initvals\['p'\] must be finite"),
    ],
)
def test_bad_starting_values_get_their_sentence(initvals, sentence):
    with pytest.raises(ValueError, match=sentence):
        sample(initvals=initvals)


@pytest.mark.parametrize(
    ("p", "allowed"),
    [([0.2, 0.3, 0.5], True), ([0.2, 0.2, 0.2], False), ([0.0, 0.5, 0.5], False), ([-0.1, 0.6, 0.5], False)],
)
def test_starting_probabilities_add_up_to_one(p, allowed):
    def run():
        nw.sample(nw.models.Categorical([1, 1, 1]), coded(3), initvals={"p": p}, draws=5, tune=5, progressbar=False)

    if allowed:
        with pytest.warns(nw.ConvergenceWarning):
            run()
    else:
        with pytest.raises(ValueError, match="add up to one"):
            run()


def test_every_acceptance_probability_respects_epsilon_and_a_broken_sensitivity_does_not():
    honest = sample()
    assert float(honest.sample_stats["min_acceptance"].min()) >= np.exp(-EPSILON) * (1 - 1e-12)
    # noise for half the true sensitivity: the promise of epsilon is broken, and the acceptance probabilities show it
    broken = sample(release_of(scale=0.5 / EPSILON))
    assert float(broken.sample_stats["min_acceptance"].min()) < np.exp(-EPSILON) * 0.9


def test_the_tree_holds_what_the_design_promises_and_survives_netcdf(tmp_path):
    dt = sample(keep_latent=3)
    assert {"posterior", "sample_stats", "observed_data", "release", "posterior_predictive", "latent_data"} <= set(
        dt.children
    )
    assert dt.posterior["p"].dims == ("chain", "draw")
    assert 0 < dt.posterior["p"].attrs["missing_information"] < 1
    assert dt.attrs["inference_library"] == "noisewise"
    assert dt.attrs["random_seed"] == 5
    assert dt.attrs["noisewise_method"] == "augmentation"
    assert dt.attrs["noisewise_exact"] == 1
    total = dt.latent_data["x"].values.sum(axis=1)
    log_g = -np.abs(4.3 - total) * EPSILON + np.log(EPSILON / 2)
    np.testing.assert_allclose(log_g, dt.sample_stats["noise_lp"].values[:, -1], rtol=1e-12)
    p = dt.posterior["p"].values[:, -1]
    log_joint = np.log(2 * p) + total * np.log(p) + (6 - total) * np.log1p(-p) + log_g
    np.testing.assert_allclose(log_joint, dt.sample_stats["lp"].values[:, -1], rtol=1e-12)
    dt.to_netcdf(tmp_path / "run.nc")
    back = xr.open_datatree(tmp_path / "run.nc")
    for name, group in dt.children.items():
        xr.testing.assert_identical(group.to_dataset().drop_attrs(), back[name].to_dataset().drop_attrs())
    assert back["release"].attrs["document"] == dt["release"].attrs["document"]
    assert {key: back.attrs[key] for key in dt.attrs} == dict(dt.attrs)
    assert back.posterior["p"].attrs == dt.posterior["p"].attrs
    back.close()


def test_the_seed_is_recorded_and_gives_the_same_draws():
    first = sample(random_seed=None)
    again = sample(random_seed=int(first.attrs["random_seed"]))
    np.testing.assert_array_equal(first.posterior["p"], again.posterior["p"])


def test_a_checkpoint_goes_on_with_its_own_seed(tmp_path):
    whole = sample()
    sample(draws=200, checkpoint=tmp_path / "run")
    resumed = sample(checkpoint=tmp_path / "run", random_seed=None)
    np.testing.assert_array_equal(whole.posterior["p"], resumed.posterior["p"])
    with pytest.raises(ValueError, match="belongs to another run"):
        sample(release_of(value=4.4), checkpoint=tmp_path / "run")


def test_independent_draws_keep_their_seed_in_a_checkpoint_and_go_on_to_a_target(tmp_path):
    counts = {"method": "auto", "draws": 40, "random_seed": None}
    first = sample(checkpoint=tmp_path / "run", **counts)
    assert first.attrs["noisewise_method"] == "counts"
    longer = sample(checkpoint=tmp_path / "run", target_ess=1000, **counts)
    np.testing.assert_array_equal(first.posterior["p"], longer.posterior["p"][:, :40])
    assert longer.posterior["p"].size >= 1000
    with pytest.raises(ValueError, match="belongs to another run"):
        sample(release_of(value=4.4), checkpoint=tmp_path / "run", **counts)
    with pytest.raises(ValueError, match="belongs to another run"):
        sample(checkpoint=tmp_path / "run", random_seed=None)
    with pytest.warns(nw.ConvergenceWarning, match="target_ess"):
        nw.sample(MODEL, release_of(), draws=4, chains=2, target_ess=5000, random_seed=1, progressbar=False)


def test_what_only_chains_can_give_has_them_chosen():
    kept = sample(method="auto", keep_latent=3)
    assert kept.attrs["noisewise_method"] == "augmentation"
    assert "imputes no records and runs no chains, for which keep_latent asks" in kept.attrs["noisewise_reason"]
    assert kept.latent_data["x"].shape == (3, 6)
    assert sample(method="auto", initvals={"p": 0.5}).attrs["noisewise_method"] == "augmentation"
    with pytest.raises(ValueError, match="keep_latent has no meaning for it"):
        sample(method="counts", keep_latent=3)


def test_a_run_that_has_not_converged_says_so():
    with pytest.warns(nw.ConvergenceWarning, match="effective draws|converged"):
        dt = nw.sample(MODEL, release_of(), draws=20, tune=0, chains=3, random_seed=1, method=ENGINE, progressbar=False)
    assert dt.attrs["noisewise_converged"] == 0


def test_the_verdict_tells_good_chains_from_bad_ones():
    rng = np.random.default_rng(2)
    good = rng.normal(size=(4, 1000))
    assert result.judge({"a": good}).converged
    assert not result.judge({"a": good + np.arange(4)[:, None]}).converged
    assert not result.judge({"a": np.cumsum(good, axis=1)}).converged
    assert not result.judge({"a": good[:, :50]}).converged
    assert not result.judge({"a": good[:1]}).converged


def test_missing_information_is_the_share_of_variance_that_complete_records_leave():
    trace = Trace(posterior={"a": np.random.default_rng(3).normal(scale=2.0, size=(4, 5000))}, stats={}, predictive={})
    trace.within = {"a": np.asarray(1.0)}
    np.testing.assert_allclose(result.missing_information(trace)["a"], 0.25, rtol=0.03)


def test_nothing_is_traced_again_for_a_new_seed_value_scale_or_length():
    traced = []

    class Counting(nw.models.Bernoulli):
        def transform(self, theta, u):
            traced.append("transform")
            return super().transform(theta, u)

    def run(release, **settings):
        defaults = {"draws": 300, "tune": 20, "chains": 3, "random_seed": 1, "method": ENGINE, "progressbar": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nw.ConvergenceWarning)
            nw.sample(Counting(2, 1), release, **(defaults | settings))

    run(release_of())
    assert traced, "the counter does not count"
    traced.clear()
    run(release_of(value=1.7, scale=3.0), random_seed=2, draws=150, thin=2, tune=30)
    assert traced == []
