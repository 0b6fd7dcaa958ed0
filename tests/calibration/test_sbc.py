"""Calibration finds right engines right, for every model and noise law, and wrong samplers wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import matrix
import numpy as np
import pytest

import noisewise as nw
from noisewise.calibration.coverage import cover
from noisewise.calibration.replicates import Replicates, replicate
from noisewise.calibration.sbc import judge_ranks
from noisewise.calibration.simulate import draw_truths
from noisewise.calibration.uniformity import rank_p_value
from noisewise.engines import Counts, Draw, Sampler
from noisewise.engines.naive import Naive

SMALL = {"replicates": 80, "draws": 30, "alpha": 1e-3, "random_seed": 1}
COIN = nw.models.Bernoulli(2, 3)


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation():
    """Programs here run for moments: compile them without most optimizations."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def coin_release():
    return matrix.release("Bernoulli", [nw.noise.DiscreteLaplace], 20)[1]


@pytest.mark.parametrize("group", matrix.GROUPS)
def test_augmentation_is_calibrated_for_every_model_under_every_law(group):
    model, release = matrix.side_by_side(group, 3)
    found = nw.calibration.sbc(model, release, method=matrix.Unaided(), tune=300, thin=10, **SMALL)
    assert found.passed, found
    assert {f"{name}.{p}" for name in matrix.GROUPS[group] for p in matrix.DESIGNS[name][0].parameters} <= {
        label.split("[")[0] for label in found.labels
    }
    assert {"log_f", "log_eta", "log_release", "total[0]"} < set(found.labels)


def test_augmentation_is_calibrated_for_regressions():
    model, release = matrix.release("LinearRegression", matrix.CONTINUOUS, 3)
    found = nw.calibration.sbc(model, release, method=matrix.Unaided(), tune=300, thin=10, **SMALL)
    assert found.passed, found


def test_augmentation_is_calibrated_when_the_number_of_records_is_unknown():
    model, release = matrix.release("UnknownSize", matrix.EVERY, None)
    found = nw.calibration.sbc(model, release, tune=100, thin=10, **SMALL)
    assert found.passed, found
    assert "n" in found.labels


@pytest.mark.parametrize("name", matrix.ENGINES["counts"])
def test_counts_are_calibrated_under_all_laws_together(name):
    model, release = matrix.release(name, matrix.EVERY, 8)
    found = nw.calibration.sbc(model, release, method="counts", **SMALL)
    assert found.passed, found
    assert "log_eta" in found.labels


@pytest.mark.parametrize("name", matrix.ENGINES["fourier"])
def test_fourier_is_calibrated_under_every_law(name):
    # one released sum at a time: the ranks of the laws are judged together
    ranks = []
    for seed, law in enumerate(matrix.DESIGNS[name][3]):
        model, release = matrix.release(name, [law], 30)
        found = nw.calibration.sbc(model, release, method="fourier", replicates=12, draws=30, random_seed=seed)
        ranks.append(found.ranks)
    together = np.concatenate(ranks)
    p_values = [rank_p_value(column, 30) for column in together.T]
    assert min(p_values) > 1e-3 / len(p_values)


@pytest.mark.parametrize("name", ["Categorical", "Normal", "Poisson"])
def test_the_normal_approximation_is_calibrated_where_its_theorem_holds(name):
    laws = matrix.CONTINUOUS if name != "Poisson" else matrix.EVERY[:1]
    model, release = matrix.release(name, laws, 400, scale=4.0)
    found = nw.calibration.sbc(model, release, method="sufficient", tune=200, thin=10, **SMALL)
    assert found.passed, found


class Prior(Counts):
    """Answers with the prior, whatever was released."""

    def build(self, model, release, key):
        return FromPrior(model)


class FromPrior(Sampler):
    model: nw.models.Model

    def draw(self, key):
        return Draw(self.model.sample_prior(key), {}, {})


class Overconfident(Counts):
    """Believes in a quarter of the noise."""

    def build(self, model, release, key):
        return super().build(model, narrowed(release), key)


class OverconfidentOfTwo(Counts):
    """Believes in a quarter of the noise of two measurements: its answers for imputed records, of which there is one, are right."""

    def build(self, model, release, key):
        return super().build(model, narrowed(release) if len(release.measurements) == 2 else release, key)


class Forgetful(Counts):
    """Reports the density of the noise at other counts than those that theta was drawn from."""

    def build(self, model, release, key):
        return Shuffled(super().build(model, release, key), release)


class Shuffled(Sampler):
    inner: Sampler
    release: nw.Release

    def draw(self, key):
        other = self.inner.draw(jax.random.fold_in(key, 7)).predictive["m0"]
        return self.inner.draw(key)._replace(stats={"noise_lp": self.release.log_density(jnp.round(other))})


def narrowed(release):
    parts = [nw.Measurement(m.query, type(m.noise)(0.25 * m.noise.scale), m.value) for m in release.measurements]
    return nw.Release(parts, release.n)


@pytest.mark.parametrize(
    ("engine", "seen_by", "unseen_by"),
    [
        (Prior(), "log_release", "p"),
        (Overconfident(), "p", None),
        (Forgetful(), "log_eta", "p"),
        (Naive(), "p", None),
    ],
)
def test_wrong_samplers_are_found_wrong_by_the_quantity_they_get_wrong(coin_release, engine, seen_by, unseen_by):
    found = nw.calibration.sbc(COIN, coin_release, method=engine, replicates=400, draws=50, random_seed=2)
    p_values = dict(zip(found.labels, found.p_values, strict=True))
    assert not found.passed
    assert "NOT calibrated" in found.verdict
    assert p_values[seen_by] < 1e-6
    # theta alone does not see a sampler that ignores the release
    assert unseen_by is None or p_values[unseen_by] > 0.01


def test_a_replicate_depends_on_the_seed_and_its_number_alone(coin_release):
    few, many = (
        nw.calibration.sbc(COIN, coin_release, replicates=number, draws=50, random_seed=5) for number in (7, 40)
    )
    np.testing.assert_array_equal(few.ranks, many.ranks[:7])
    other = nw.calibration.sbc(COIN, coin_release, replicates=7, draws=50, random_seed=6)
    assert not np.array_equal(few.ranks, other.ranks)


def test_lanes_of_replicates_are_the_chains_of_each_alone():
    model, release = matrix.release("Bernoulli", [nw.noise.Laplace], 4)
    truths = draw_truths(model, release, 3, 9)
    engine = matrix.Unaided()
    settings = {"draws": 12, "tune": 6, "thin": 2, "seed": 9}
    together = replicate(model, release, engine, truths, **settings)
    alone = replicate(model, release, engine, jax.tree.map(lambda leaf: leaf[:1], truths), **settings)
    np.testing.assert_array_equal(together.draws[0], alone.draws[0])
    # each lane has the release of its own replicate
    swapped = replicate(model, release, engine, jax.tree.map(lambda leaf: leaf[::-1], truths), **settings)
    assert not np.array_equal(swapped.draws[0], together.draws[0])


class Alternating(matrix.Unaided):
    """Proposes half of the records in a step where the first released number is positive."""

    def build(self, model, release, key):
        kernel = super().build(model, release, key)
        return dataclasses.replace(kernel, window=2) if float(release.measurements[0].value[0]) > 0 else kernel


def test_replicates_whose_kernels_have_other_settings_are_the_chains_of_each_alone():
    model, release = matrix.release("Bernoulli", [nw.noise.Gaussian], 4)
    truths = draw_truths(model, release, 6, 2)
    positive = np.asarray(truths.values[0])[:, 0] > 0
    assert 0 < positive.sum() < 6
    settings = {"draws": 12, "tune": 6, "thin": 2, "seed": 2}
    together = replicate(model, release, Alternating(), truths, **settings)
    uniform = replicate(model, release, matrix.Unaided(), truths, **settings)
    np.testing.assert_array_equal(together.draws[~positive], uniform.draws[~positive])
    assert not np.any(np.all(together.draws[positive] == uniform.draws[positive], axis=(1, 2)))


def test_posterior_calibration_of_a_release_sees_a_wrong_sampler():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(30.0), [120])], n=300)
    how = {"replicates": 200, "draws": 50, "random_seed": 3}
    right = nw.calibration.posterior_sbc(COIN, release, **how)
    assert right.passed, right
    assert not nw.calibration.posterior_sbc(COIN, release, method=OverconfidentOfTwo(), **how).passed


def test_coverage_counts_intervals_that_hold_the_truth(coin_release):
    found = nw.calibration.coverage(COIN, coin_release, replicates=400, draws=50, random_seed=2)
    assert found.p_values[0] > 1e-3
    wrong = nw.calibration.coverage(COIN, coin_release, method=Overconfident(), replicates=400, draws=50, random_seed=2)
    assert wrong.p_values[0] < 1e-3
    assert wrong.covered[0] < found.covered[0]
    assert "400 replicates" in str(found)


def test_intervals_of_few_draws_cover_their_level_and_those_of_the_usual_quantiles_do_not():
    # a right posterior: truth and draws are exchangeable
    values = np.random.default_rng(1).normal(size=(20_000, 26, 1))
    made = Replicates(("x",), 1, values[:, 0], values[:, 1:], "none", True)
    found = cover(made, 0.9)
    assert abs(found.covered[0] - 0.9) < 3.5 * found.covered_error
    usual = np.quantile(values[:, 1:], [0.05, 0.95], axis=1)
    assert np.mean((usual[0] <= values[:, 0]) & (values[:, 0] <= usual[1])) < 0.9 - 10 * found.covered_error


def test_quantities_of_the_user_are_ranked_too(coin_release, tmp_path):
    found = nw.calibration.sbc(
        COIN,
        coin_release,
        quantities={"odds of the sum": lambda theta, values: theta["p"] * values["m0"][0]},
        replicates=50,
        draws=50,
        random_seed=1,
    )
    assert "odds of the sum" in found.labels
    found.plot(tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 5000


def test_ties_are_broken_at_random_though_programs_round_differently():
    # a quantity of three values, of which the truth is computed one way and the draws another
    values = np.random.default_rng(1).choice([-3.1, -2.7, -0.9], size=(400, 51, 1))
    truth, draws = values[:, 0], values[:, 1:] * (1 + 1e-15)
    assert np.all(draws != truth[:, None])
    made = Replicates(("c",), 1, truth, draws, "counts", True)
    assert judge_ranks(made, 1, 0.01).passed
    # values that are not equal are no ties, and infinite ones may be
    apart = dataclasses.replace(made, draws=draws * (1 + 1e-8))
    assert not judge_ranks(apart, 1, 0.01).passed
    assert judge_ranks(dataclasses.replace(made, truth=truth - np.inf, draws=draws - np.inf), 1, 0.01).passed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicates": 1}, "replicates must be a whole number"),
        ({"alpha": 0.0}, "alpha must lie strictly between"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"method": "fouriers"}, "method must be one of"),
        ({"random_seed": -1}, "random_seed must be"),
        ({"quantities": {"p": lambda theta, values: theta["p"]}}, "looked at already"),
    ],
)
def test_bad_requests_are_refused(coin_release, options, words):
    with pytest.raises(ValueError, match=words):
        nw.calibration.sbc(COIN, coin_release, **({"replicates": 5, "draws": 5} | options))


def test_a_design_that_does_not_fit_the_model_is_refused():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    with pytest.raises(ValueError, match="does not fit the model"):
        nw.calibration.simulate(COIN, [(query, nw.noise.Laplace(1.0))], n=None)
    with pytest.raises(
        ValueError, match="reads 'x', which records of the model do not have; its columns are \\['z'\\]"
    ):
        nw.calibration.simulate(nw.models.Bernoulli(column="z"), [(query, nw.noise.Laplace(1.0))], n=5)
    normal = nw.models.Normal((0, 2), sd=1)
    with pytest.raises(ValueError, match="DiscreteLaplace noise is for whole numbers"):
        nw.calibration.simulate(normal, [(query, nw.noise.DiscreteLaplace(1.0))], n=5)


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ({"p": [0.1, 0.2]}, "truth\\['p'\\] must be finite"),
        ({"p": 1.5}, "truth\\['p'\\] must lie in its support \\(unit\\); got 1.5"),
        (0.5, "truth must give values by parameter"),
    ],
)
def test_truths_that_the_model_cannot_have_are_refused(truth, words):
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    with pytest.raises(ValueError, match=words):
        nw.calibration.simulate(COIN, [(query, nw.noise.Laplace(1.0))], n=5, truth=truth)
