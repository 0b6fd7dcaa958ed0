"""The diagnostic trusts large tables and flags the bad corner: few records, rare cells, heavy cutting."""

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import noisewise as nw
from noisewise.engines.edgeworth import doubts_of
from noisewise.engines.trust import check_normality


def counts(values, n, scale=2.0):
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), [values])], n=n)


def test_the_edgeworth_constant_is_the_integral():
    from noisewise.engines.edgeworth import ABSOLUTE_CUBIC

    found = 2 * sum(
        abs(integrate.quad(lambda z: (z**3 - 3 * z) * stats.norm.pdf(z), *part)[0])
        for part in ((0, 3**0.5), (3**0.5, 30))
    )
    assert pytest.approx(found, rel=1e-10) == ABSOLUTE_CUBIC


@pytest.mark.parametrize(
    ("value", "n", "scale", "ok"),
    [(300_012.0, 10**6, 2.0, True), (3.1, 10**6, 0.2, False), (0.6, 20, 0.5, False), (20.0, 100, 100.0, True)],
)
def test_few_records_and_rare_events_are_flagged_unless_noise_hides_them(value, n, scale, ok):
    found = check_normality(nw.models.Bernoulli(), counts(value, n, scale), compare=False)
    assert found.ok is ok
    assert ("trusted" in str(found)) is ok


def test_heavy_cutting_is_flagged():
    query = nw.queries.TruncatedSum("x", 0.0, 0.1)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), [1200.0])], n=100_000)
    found = check_normality(nw.models.Exponential(4, 1), release, compare=False)
    assert not found.ok
    assert any("outside the bounds of 'x'" in doubt for doubt in found.doubts)


@pytest.mark.parametrize(("value", "remote"), [(-300.0, True), (-2.0, False), (24.0, False), (90.0, True)])
def test_a_count_in_a_tail_that_the_normal_law_has_wrong_is_flagged(value, remote):
    """The normal law explains -300 of 50 records, with noise of one, by a p near a half, where its variance is largest; p is near 0."""
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(1.0), [value])], n=50)
    dt = nw.sample(nw.models.Bernoulli(), release, method="sufficient", random_seed=1, progressbar=False)
    assert ("standard deviations from where" in dt.attrs["noisewise_doubts"]) is remote
    if value == -300.0:
        # the exact posterior, a sum over counts: Beta(1 + s, 51 - s) with weights that a Gaussian of sd 1 puts on s = 0
        assert float(dt.posterior["p"].mean()) > 5 / 52


def test_an_engine_of_another_kind_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"must be a nw\.engines\.Sufficient"):
        check_normality(nw.models.Bernoulli(), counts(20.0, 100), engine="sufficient")


def regression(bound, n, noise=100.0):
    model = nw.models.LinearRegression(("x",), "y", variance=1.0, covariate_mean=0.0, covariate_cov=1.0)
    query = nw.queries.regression_moments({"x": nw.Column(-bound, bound)}, {"y": nw.Column(-40, 40)})
    # y, xy, yy, x, xx of y = 1 + 2 x + e
    value = n * np.asarray([1.0, 2.0, 6.0, 0.0, 1.0])
    return model, nw.Release([nw.Measurement(query, nw.noise.Laplace(noise), value)], n=n)


@pytest.mark.parametrize(("bound", "n", "moved"), [(3.0, 10**6, True), (3.0, 1000, False), (8.0, 10**6, False)])
def test_clamping_that_the_regression_law_leaves_out_is_flagged_where_it_moves_a_sum(bound, n, moved):
    """Bounds at three standard deviations take 2 (Q + 3 phi) - 18 Q = 0.0050 from the second moment: 3.5 sd of a million records."""
    model, release = regression(bound, n)
    theta = {"beta": np.broadcast_to([1.0, 2.0], (64, 2))}
    distance, doubts = doubts_of(model, release, theta, jax.random.key(1))
    assert any("clamping" in doubt for doubt in doubts) is moved
    if moved:
        q, phi = stats.norm.sf(3.0), stats.norm.pdf(3.0)
        lost = n * (2 * (q + 3 * phi) - 18 * q)
        sd = np.sqrt(2 * n + 2 * 100.0**2)
        assert distance == pytest.approx(2 * stats.norm.cdf(lost / sd / 2) - 1, abs=0.05)
