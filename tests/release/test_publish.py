"""Publishing: the noise has the stated law, the guarantee is OpenDP's own, and nothing takes a seed.

The noise cannot be seeded, so the statistical tests use thresholds (1e-7) that chance does not cross in the life of the project.
"""

import inspect

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from opendp.mod import GLOBAL_FEATURES
from scipy import stats

import noisewise as nw
from noisewise.release import privacy
from noisewise.release.publish import _opendp, publish, sampler

LEVELS = 3000
MANY = nw.queries.Counts(levels={"k": LEVELS}, tables=[("k",)])
RECORDS = {"k": np.arange(LEVELS), "x": np.linspace(-4, 9, LEVELS), "y": np.ones(LEVELS)}
UNIT = nw.Column(-10, 10, rescale=(-1, 1))
MOMENTS = nw.queries.regression_moments({"x": UNIT}, {"y": UNIT})
LAWS = (nw.noise.Laplace, nw.noise.Gaussian, nw.noise.DiscreteLaplace, nw.noise.DiscreteGaussian)


def residuals(noise) -> np.ndarray:
    """The noise of one publish on thousands of cells, each of exact count one."""
    return np.asarray(publish(RECORDS, MANY, noise).measurements[0].value) - 1.0


def p_value(noise, seen: np.ndarray) -> float:
    """Kolmogorov-Smirnov for the continuous laws, chi-square with pooled tails for the integer ones."""
    scale = float(noise.scale)
    if isinstance(noise, nw.noise.Laplace):
        return float(stats.kstest(seen, stats.laplace(scale=scale).cdf).pvalue)
    if isinstance(noise, nw.noise.Gaussian):
        return float(stats.kstest(seen, stats.norm(scale=scale).cdf).pvalue)
    inside = np.arange(-8, 9.0)
    mass = np.exp(np.asarray(noise.log_prob(jnp.asarray(inside))))
    counts = np.asarray([np.sum(seen == k) for k in inside])
    return float(
        stats.chisquare(np.append(counts, seen.size - counts.sum()), seen.size * np.append(mass, 1 - mass.sum())).pvalue
    )


def test_published_noise_follows_the_stated_law_and_a_wrong_law_is_seen():
    seen = {law: residuals(law(2.5)) for law in LAWS}
    for law, noise in seen.items():
        assert p_value(law(2.5), noise) > 1e-7
    wrong = [
        (nw.noise.Laplace(2.5 / np.sqrt(2)), nw.noise.Gaussian),
        (nw.noise.Gaussian(2.5 * np.sqrt(2)), nw.noise.Laplace),
        (nw.noise.DiscreteLaplace(2.5 / np.sqrt(2)), nw.noise.DiscreteGaussian),
        (nw.noise.DiscreteGaussian(2.5 * np.sqrt(2)), nw.noise.DiscreteLaplace),
    ]
    for law, other in wrong:  # the same variance, another shape
        assert p_value(law, seen[other]) < 1e-7


def test_each_number_has_its_own_noise_and_its_own_scale():
    scale = np.where(np.arange(LEVELS) % 3 == 0, 1.0, 20.0)
    seen = residuals(nw.noise.Laplace(scale))
    assert len(np.unique(seen)) == LEVELS
    assert p_value(nw.noise.Laplace(1.0), seen[scale == 1]) > 1e-7
    assert p_value(nw.noise.Laplace(20.0), seen[scale == 20]) > 1e-7
    assert p_value(nw.noise.Laplace(1.0), seen[scale == 20]) < 1e-7


@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove_one"])
@pytest.mark.parametrize("law", LAWS)
def test_the_guarantee_is_opendps_own_map_of_the_sensitivity(law, neighbours):
    noise = law(3.0)
    found = float(publish(RECORDS, MANY, noise, neighbours=neighbours).privacy.loss)
    sensitivity = MANY.sensitivity(noise.norm, neighbours)
    with _opendp() as dp:
        distance = int(sensitivity) if noise.discrete and noise.norm == "l1" else sensitivity
        own = sampler(dp, noise, 3.0).map(distance)
    assert own * (1 - 1e-15) <= found <= own * (1 + 1e-11)


def test_float_sums_pay_for_their_rounding_and_no_more():
    for law in (nw.noise.Laplace, nw.noise.Gaussian):
        found = float(publish(RECORDS, MOMENTS, law(3.0)).privacy.loss)
        sensitivity = MOMENTS.sensitivity(law.norm)
        nominal = sensitivity / 3 if law is nw.noise.Laplace else (sensitivity / 3) ** 2 / 2
        assert nominal * (1 + 1e-13) < found < nominal * (1 + 1e-10)


def test_rounding_of_neighbouring_float_sums_stays_within_the_slack():
    from fractions import Fraction

    rng = np.random.default_rng(0)
    query = nw.queries.Moments({"x": nw.Column(0.1, 7.3, rescale=(-1, 1))}, [{"x": 1}, {"x": 3}])
    for _ in range(50):
        x = rng.uniform(0, 8, 40)
        other = np.append(x[1:], rng.uniform(0, 8))
        exact = []
        for values in (x, other):
            clamped = [min(max(Fraction(v), Fraction(0.1)), Fraction(7.3)) for v in values.tolist()]
            unit = [-1 + (v - Fraction(0.1)) * 2 / (Fraction(7.3) - Fraction(0.1)) for v in clamped]
            exact.append([sum(unit), sum(u**3 for u in unit)])
        floats = query({"x": x}) - query({"x": other})
        wanted = np.asarray([float(a - b) for a, b in zip(*exact, strict=True)])
        assert np.all(np.abs(floats - wanted) <= query.rounding(40))


def test_several_queries_compose():
    pure = publish(RECORDS, [MOMENTS, MANY], [nw.noise.Laplace(14.0), nw.noise.DiscreteLaplace(4.0)], names=["m", "c"])
    assert pure.n == LEVELS
    assert [m.name for m in pure.measurements] == ["m", "c"]
    assert pure.privacy.measure == "pure"
    assert float(pure.privacy.loss) == pytest.approx(0.5 + 0.5)
    mixed = publish(RECORDS, [MOMENTS, MANY], [nw.noise.Laplace(14.0), nw.noise.Gaussian(2.0)])
    assert mixed.privacy.measure == "zcdp"
    assert float(mixed.privacy.loss) == pytest.approx(0.5**2 / 2 + 2 / 4 / 2)


def test_delta_asks_for_the_tight_gaussian_guarantee_or_the_better_of_two_routes():
    gaussian = publish(RECORDS, MANY, nw.noise.Gaussian.calibrated(MANY, epsilon=0.7, delta=1e-6), delta=1e-6)
    assert gaussian.privacy.measure == "approximate"
    assert float(gaussian.privacy.loss) == pytest.approx(0.7, rel=1e-8)
    mixed = publish(RECORDS, [MOMENTS, MANY], [nw.noise.Laplace(7.0), nw.noise.DiscreteGaussian(10.0)], delta=1e-6)
    apart, together = 1 + privacy.zcdp_epsilon(0.01, 1e-6), privacy.zcdp_epsilon(0.51, 1e-6)
    assert float(mixed.privacy.loss) == pytest.approx(min(apart, together), rel=1e-8)
    assert float(publish(RECORDS, MANY, nw.noise.Laplace(2.0), delta=1e-6).privacy.loss) == pytest.approx(1.0)


def test_clamping_happens_before_the_noise():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = publish(pd.DataFrame({"x": [0.25, 50.0, -50.0]}), query, nw.noise.Laplace(1e-9))
    assert float(release.measurements[0].value[0]) == pytest.approx(1.25, abs=1e-6)


def test_confidential_n_stays_out_of_the_release():
    query = nw.queries.Moments({"x": nw.Column(0, 5)}, [{}, {"x": 1}])
    release = publish(RECORDS, query, nw.noise.Laplace(6.0), neighbours="add_remove_one")
    assert (release.n, release.neighbours) == (None, "add_remove_one")
    fewer = publish({"x": RECORDS["x"][:7]}, query, nw.noise.Laplace(6.0), neighbours="add_remove_one")
    assert float(fewer.privacy.loss) == float(release.privacy.loss)  # the price does not tell n either
    assert float(release.privacy.loss) == pytest.approx(1.0, rel=1e-5)


def test_integer_noise_on_clamped_integers():
    query = nw.queries.Moments({"k": nw.Column(0, 10)}, [{"k": 1}])
    release = publish({"k": [3, 99]}, query, nw.noise.DiscreteLaplace(0.01))
    assert release.measurements[0].value.tolist() == [13.0]


@pytest.mark.parametrize("enabled", [False, True])
def test_publishing_takes_no_seed_and_leaves_opendp_as_it_was(enabled):
    assert not {"seed", "random_seed", "key", "rng"} & set(inspect.signature(publish).parameters)
    before = GLOBAL_FEATURES.copy()
    try:
        GLOBAL_FEATURES.difference_update({"contrib"})
        GLOBAL_FEATURES.update({"contrib"} if enabled else ())
        first, second = (publish(RECORDS, MOMENTS, nw.noise.Laplace(1.0)).measurements[0].value for _ in range(2))
        assert ("contrib" in GLOBAL_FEATURES) == enabled
    finally:
        GLOBAL_FEATURES.clear()
        GLOBAL_FEATURES.update(before)
    assert not np.any(np.asarray(first) == np.asarray(second))


X = nw.Column(0, 1)
SUM = nw.queries.Moments({"x": X}, [{"x": 1}])
LAPLACE = nw.noise.Laplace(1.0)


class Cauchy(nw.noise.Laplace):
    """A law of the user's own."""


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (({"x": [1.0]}, [SUM, SUM], LAPLACE), {}, "one noise for each query; got 2 queries and 1 noises"),
        (({"x": [1.0]}, SUM, Cauchy(1.0)), {}, "no safe sampler for Cauchy noise"),
        (({"x": [1.0]}, SUM, LAPLACE), {"n": 12}, "n must be 'public' or 'unknown'"),
        (({"x": [1.0]}, SUM, LAPLACE), {"neighbours": "neither"}, "neighbours must be 'replace_one'"),
        (({"x": [1.0]}, SUM, LAPLACE), {"n": "public", "neighbours": "add_remove_one"}, "cannot be public"),
        (({"x": [1.0]}, SUM, LAPLACE), {"neighbours": "add_remove_one"}, "no measurement counts them"),
        (({"x": [1.0]}, SUM, LAPLACE), {"names": ["a", "b"]}, "one name for each query; got 2 for 1"),
        (({"x": [1.0]}, SUM, LAPLACE), {"names": "a"}, "a list with one name for each query; got the text 'a'"),
        (({"x": [1.0]}, SUM, nw.noise.DiscreteLaplace(1e15)), {}, "scale 1e.15 does not fit 64-bit integers"),
        (({"x": [1.0]}, SUM, nw.noise.Gaussian(1e-200)), {}, "privacy loss must be a number of at least 0; got inf"),
        (({"x": [1.0]}, SUM, nw.noise.Gaussian(1.0)), {"delta": 2.0}, "delta must lie strictly between 0 and 1"),
        (({"x": [0.5]}, SUM, nw.noise.DiscreteLaplace(1.0)), {}, "'x' of the records is not made of integers"),
        (({"x": [1.0]}, nw.queries.Custom(lambda r: r["x"], 1), LAPLACE), {}, "does not know its l1 sensitivity"),
        (
            ({"x": [0.0, 9.0]}, nw.queries.Custom(lambda r: r["x"], 1, l1=1.0, neighbours="replace_one"), LAPLACE),
            {},
            "vary by more than its stated sensitivity 1",
        ),
        (
            ({"x": [1e6, 1e6]}, nw.queries.Custom(lambda r: r["x"], 1, l1=1.0, neighbours="replace_one"), LAPLACE),
            {},
            "subtract a public centre",
        ),
        (
            ({"x": [-1.0]}, nw.queries.Custom(lambda r: jnp.log(r["x"]), 1, l1=1.0, neighbours="replace_one"), LAPLACE),
            {},
            "not finite for some record",
        ),
    ],
)
def test_bad_arguments_get_their_sentence(arguments, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        publish(*arguments, **options)
