"""Truncated sums and privately chosen bounds: values, sensitivities by brute force, the exponential mechanism, the document."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum, _choose, private_bounds

GRID = np.concatenate([np.linspace(-4.0, 8.0, 241), [1.0 - 1e-9, 5.0 + 1e-9]])


def test_records_outside_the_bounds_count_for_nothing():
    query = TruncatedSum("x", 1.0, 5.0, ("1", "x", "x^2", "log x"))
    x = np.asarray([-2.0, 0.0, 1.0, 2.5, 5.0, 5.1])
    inside = np.asarray([1.0, 2.5, 5.0])
    assert np.allclose(query({"x": x}), [3, inside.sum(), (inside**2).sum(), np.log(inside).sum()], rtol=1e-14)


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 5.0), (-3.0, 2.0), (-4.0, -1.0)])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sensitivity_bounds_every_pair_and_is_attained_number_by_number(lower, upper, norm):
    names = ("1", "x") if lower < 0 else ("1", "x", "log x")
    query = TruncatedSum("x", lower, upper, names)
    rows = np.asarray(query.statistics({"x": jnp.asarray(GRID)}))
    changes = np.abs(rows[:, None, :] - rows[None, :, :]).reshape(-1, len(names))
    order = 1 if norm == "l1" else 2
    bound = query.sensitivity(norm)
    assert np.max(np.linalg.norm(changes, ord=order, axis=1)) <= bound * (1 + 1e-12)
    for j, name in enumerate(names):
        alone = TruncatedSum("x", lower, upper, name)
        assert alone.sensitivity(norm) == pytest.approx(np.max(changes[:, j]), rel=1e-6)
    added = np.max(np.linalg.norm(rows, ord=order, axis=1))
    assert added <= query.sensitivity(norm, "add_remove_one") * (1 + 1e-12)


def test_the_papers_bound_is_the_same():
    query = TruncatedSum("x", -3.0, 2.0)
    assert query.sensitivity("l1") == max(3.0, 2.0 - -3.0)
    assert query.sensitivity("l1", weights=np.asarray([0.5])) == 2.5


def test_a_function_needs_its_ranges_and_keeps_to_them():
    wave = TruncatedSum("x", 0.0, 1.0, lambda x: jnp.sin(x), ranges=(0.0, math.sin(1.0)))
    assert wave.sensitivity("l1") == pytest.approx(math.sin(1.0))
    with pytest.raises(ValueError, match="give ranges"):
        TruncatedSum("x", 0.0, 1.0, lambda x: jnp.sin(x)).sensitivity("l1")
    liar = TruncatedSum("x", 0.0, 1.0, lambda x: 2 * x, ranges=(0.0, 1.0))
    with pytest.raises(ValueError, match="left its stated ranges"):
        liar({"x": [0.9]})
    release = nw.Release([nw.Measurement(wave, nw.noise.Laplace(1.0), [0.3])], n=5)
    with pytest.raises(ValueError, match="holds no code"):
        release.save("never.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lower": 2.0, "upper": 1.0}, "lower < upper"),
        ({"lower": 0.0, "upper": math.inf}, "finite"),
        ({"lower": 0.0, "upper": 1.0, "statistics": "log x"}, "positive lower bound"),
        ({"lower": 0.0, "upper": 1.0, "statistics": ("x", "x")}, "distinct"),
        ({"lower": 0.0, "upper": 1.0, "statistics": "cube"}, "cube"),
        ({"lower": 0.0, "upper": 1.0, "origin": "data"}, "public terms"),
        ({"lower": 0.0, "upper": 1.0, "ranges": (0.0, 1.0)}, "named statistics"),
        ({"lower": "low", "upper": 1.0}, "finite public bounds"),
        ({"lower": False, "upper": True}, "finite public bounds"),
        ({"lower": np.zeros(2), "upper": 1.0}, "finite public bounds"),
        ({"lower": 0.0, "upper": 1.0, "statistics": 5}, "distinct names"),
        ({"lower": 0.0, "upper": 1.0, "statistics": jnp.square, "ranges": (0.0,)}, "smallest and the largest"),
        ({"lower": 0.0, "upper": 1.0, "origin": None}, "public terms"),
    ],
)
def test_bad_truncated_sums_are_refused_in_a_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        TruncatedSum("x", **arguments)


def choice(epsilon=1.3, n=4):
    return PrivateQuantile("x", 0.5, candidates=[0.0, 1.0, 2.0, 3.0], epsilon=epsilon, n=n)


def probabilities(mechanism, x):
    total = mechanism.statistics({"x": jnp.asarray(x)}, jnp.zeros(1)).sum(axis=0)
    return np.exp([float(mechanism.log_density(c[None], total)) for c in mechanism.candidates])


def test_the_private_quantile_keeps_its_promise_for_every_pair_of_neighbours():
    mechanism, values, worst = choice(), (-1.0, 0.5, 1.5, 2.5, 9.0), 0.0
    for rest in itertools.combinations_with_replacement(values, 3):
        laws = [probabilities(mechanism, [*rest, last]) for last in values]
        assert np.allclose([law.sum() for law in laws], 1.0)
        for a, b in itertools.permutations(laws, 2):
            worst = max(worst, float(np.max(np.log(a / b))))
    assert 0.5 * 1.3 < worst <= 1.3 + 1e-12
    assert float(mechanism.privacy("replace_one").loss) == 1.3
    assert mechanism.privacy("add_remove_one") is None


def test_the_choice_is_made_with_the_probabilities_of_the_document():
    mechanism, x = choice(), np.asarray([0.5, 1.5, 1.7, 2.2])
    drawn = [_choose(mechanism, x) for _ in range(3000)]
    expected = probabilities(mechanism, x)
    for candidate, probability in zip((0.0, 1.0, 2.0, 3.0), expected, strict=True):
        error = math.sqrt(probability * (1 - probability) / 3000)
        assert abs(np.mean(np.asarray(drawn) == candidate) - probability) < 5 * error
    # the twin: permute-and-flip, another law with the same guarantee, would put more on the best candidate
    assert expected.max() < 0.6


def test_chosen_bounds_are_paid_for_and_written_down(tmp_path):
    x = {"x": np.random.default_rng(1).exponential(0.25, 4000)}
    bounds = private_bounds(x, "x", candidates=np.linspace(0, 4, 401), epsilon=1.0)
    assert 0 <= bounds.lower < 0.05
    assert 0.7 < bounds.upper < 1.3
    query = TruncatedSum("x", bounds.lower, bounds.upper, origin="private quantiles")
    published = nw.publish(x, query, nw.noise.Laplace.calibrated(query, epsilon=0.5))
    release = nw.Release([*bounds.measurements, *published.measurements], n=4000)
    assert float(release.privacy.loss) == pytest.approx(1.5)
    again = nw.Release.load(release.save(tmp_path / "release.json"))
    assert again.measurements[2].query == query
    assert float(again.privacy.loss) == pytest.approx(1.5)
    assert [float(m.value[0]) for m in again.measurements[:2]] == [bounds.lower, bounds.upper]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: PrivateQuantile("x", 0.5, candidates=[1.0, 1.0], epsilon=1.0, n=3), "increasing order"),
        (lambda: PrivateQuantile("x", 1.5, candidates=[0.0, 1.0], epsilon=1.0, n=3), r"\[0, 1\]"),
        (lambda: PrivateQuantile("x", 0.5, candidates=[0.0, 1.0], epsilon=-1.0, n=3), "positive"),
        (lambda: PrivateQuantile("x", 0.5, candidates=[0.0, 1.0], epsilon=1.0, n=0), "positive integer"),
        (lambda: choice().check([0.5]), "one of its candidates"),
        (lambda: private_bounds({"x": [1.0]}, "x", candidates=[0, 1], epsilon=1.0, quantiles=(0.9, 0.1)), "increasing"),
        (lambda: private_bounds({"x": [1.0]}, "x", candidates=[0, 1], epsilon=1.0, quantiles=(0.9,)), "two increasing"),
        (lambda: private_bounds({"x": [1.0]}, "x", candidates="01", epsilon=1.0), "increasing order"),
        (lambda: private_bounds({"x": [1.0]}, "x", candidates=[0, 1], epsilon="one"), "epsilon must be a number"),
        (lambda: private_bounds({"x": [1.0]}, "x", candidates=[0, 1], epsilon=[1.0, 2.0]), "budget of both"),
        (lambda: PrivateQuantile("x", "half", candidates=[0.0, 1.0], epsilon=1.0, n=3), r"\[0, 1\]"),
    ],
)
def test_bad_private_quantiles_are_refused_in_a_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()
