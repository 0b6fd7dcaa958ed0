"""Maximum likelihood against enumeration and quadrature, directly and by cloning."""

from __future__ import annotations

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

import noisewise as nw
from noisewise.engines import exact_likelihood
from noisewise.engines.counts_cells import Unsupported
from noisewise.engines.exact_likelihood import exact_log_likelihood
from noisewise.likelihood import Estimate
from reference import enumeration

ONES = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])


def bernoulli_release(value: float, scale: float, n: int = 20) -> nw.Release:
    return nw.Release([nw.Measurement(ONES, nw.noise.Laplace(scale), [value])], n=n)


def bernoulli_log_likelihood(p: float, value: float, scale: float, n: int = 20) -> float:
    k = np.arange(n + 1)
    return float(special.logsumexp(stats.binom.logpmf(k, n, p) + stats.laplace.logpdf(value - k, scale=scale)))


def maximum(log_likelihood, low: float, high: float) -> tuple[float, float]:
    """The argument of the maximum and the standard error from the second difference."""
    at = float(
        optimize.minimize_scalar(
            lambda x: -log_likelihood(x), bounds=(low, high), method="bounded", options={"xatol": 1e-9}
        ).x
    )
    h = 1e-3 * (high - low)
    bend = (log_likelihood(at + h) - 2 * log_likelihood(at) + log_likelihood(at - h)) / h**2
    return at, 1 / np.sqrt(-bend)


def test_the_direct_maximum_of_a_bernoulli_release():
    found = nw.mle(nw.models.Bernoulli(5, 1), bernoulli_release(7.3, 4.0))
    at, error = maximum(lambda p: bernoulli_log_likelihood(p, 7.3, 4.0), 0.05, 0.95)
    assert found.converged
    assert found.method == "direct"
    assert float(found.theta["p"]) == pytest.approx(at, abs=1e-6)
    assert float(found.standard_errors["p"]) == pytest.approx(error, rel=1e-4)
    assert found.log_likelihood == pytest.approx(bernoulli_log_likelihood(at, 7.3, 4.0), abs=1e-9)
    assert "0.36134" in str(found)


def test_a_maximum_at_the_edge_is_not_called_good():
    with pytest.warns(nw.ConvergenceWarning, match="NOT an interior maximum"):
        found = nw.mle(nw.models.Bernoulli(), bernoulli_release(-4.0, 4.0))
    assert not found.converged
    assert np.isnan(found.standard_errors["p"])


def test_a_flat_likelihood_is_said_to_be_flat():
    found = nw.mle(nw.models.Bernoulli(), bernoulli_release(9.0, 40.0))
    assert "standard errors say little" in found.verdict


def test_the_categorical_likelihood_sums_every_table():
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    value = np.array([4.2, -0.7, 3.1])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.3), [value])], n=6)
    likelihood = exact_log_likelihood(nw.models.Categorical([1, 1, 1]), release)
    p = np.array([0.5, 0.2, 0.3])
    counts = enumeration.compositions(6, 3)
    reference = special.logsumexp(
        stats.multinomial.logpmf(counts, 6, p) + stats.laplace.logpdf(value - counts, scale=1.3).sum(axis=1)
    )
    assert float(likelihood({"p": jnp.asarray(p)})) == pytest.approx(reference, rel=1e-12)


def test_the_naive_bayes_likelihood_sums_every_database():
    query = nw.queries.Counts(levels={"y": 2, "x1": 2, "x2": 3}, tables=[("y", "x1"), ("y", "x2")])
    first, second = np.array([[1.4, 0.2], [2.6, -1.0]]), np.array([[0.3, 1.1, 0.4], [1.9, -0.2, 1.0]])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(0.9), [first, second])], n=3)
    likelihood = exact_log_likelihood(nw.models.NaiveBayes(2, [2, 3]), release)
    rng = np.random.default_rng(1)
    theta = {
        "class_probs": rng.dirichlet([1, 1]),
        "feature_probs_1": rng.dirichlet([1, 1], 2),
        "feature_probs_2": rng.dirichlet([1, 1, 1], 2),
    }
    terms = []
    for records in itertools.product(itertools.product(range(2), range(2), range(3)), repeat=3):
        one, two, log_mass = np.zeros((2, 2)), np.zeros((2, 3)), 0.0
        for y, a, b in records:
            one[y, a] += 1
            two[y, b] += 1
            log_mass += np.log(
                theta["class_probs"][y] * theta["feature_probs_1"][y, a] * theta["feature_probs_2"][y, b]
            )
        noise = stats.norm.logpdf(first - one, scale=0.9).sum() + stats.norm.logpdf(second - two, scale=0.9).sum()
        terms.append(log_mass + noise)
    found = float(likelihood({name: jnp.asarray(value) for name, value in theta.items()}))
    assert found == pytest.approx(special.logsumexp(terms), rel=1e-12)


def test_the_direct_maximum_of_a_categorical_release():
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    value = np.array([14.2, 5.1, 11.6])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [value])], n=30)
    found = nw.mle(nw.models.Categorical([2, 1, 1]), release)
    counts = enumeration.compositions(30, 3)
    noise = stats.laplace.logpdf(value - counts, scale=2.0).sum(axis=1)

    def log_likelihood(q):
        return special.logsumexp(stats.multinomial.logpmf(counts, 30, [q[0], q[1], 1 - q[0] - q[1]]) + noise)

    best = optimize.minimize(
        lambda q: -log_likelihood(q), [0.4, 0.2], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}
    ).x
    np.testing.assert_allclose(found.theta["p"], [*best, 1 - best.sum()], atol=1e-6)
    h = 1e-3
    steps = h * np.eye(2)
    information = np.array(
        [
            [
                -sum(a * b * log_likelihood(best + a * steps[i] + b * steps[j]) for a in (-1, 1) for b in (-1, 1))
                / (4 * h**2)
                for j in range(2)
            ]
            for i in range(2)
        ]
    )
    np.testing.assert_allclose(found.covariance[:2, :2], np.linalg.inv(information), rtol=1e-3)
    np.testing.assert_allclose(found.covariance.sum(axis=0), 0.0, atol=1e-12)


def test_counts_of_many_records_are_climbed_by_windows():
    """With Gaussian noise the counts are nearly normal: ``s ~ N(n p, n (diag p - p p') + b^2)``, to the order of 1/n."""
    n, scale = 10**6, np.array([3000.0, 800.0, 2000.0])
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    value = np.array([203_000.0, 297_500.0, 502_000.0])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(scale), [value])], n=n)
    found = nw.mle(nw.models.Categorical([1, 1, 1]), release)
    assert found.converged

    def loss(q):
        p = np.array([*q, 1 - q.sum()])
        return -stats.multivariate_normal.logpdf(value, n * p, n * (np.diag(p) - np.outer(p, p)) + np.diag(scale**2))

    best = optimize.minimize(loss, value[:2] / n, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12}).x
    spread = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(found.theta["p"], [*best, 1 - best.sum()], atol=1e-3 * spread.min())
    p = found.theta["p"]
    outer = np.linalg.inv(n * (np.diag(p) - np.outer(p, p)) + np.diag(scale**2)) * n**2
    basis = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    covariance = basis.T @ np.linalg.inv(basis @ outer @ basis.T) @ basis
    np.testing.assert_allclose(found.covariance, covariance, rtol=5e-3)
    assert found.log_likelihood == pytest.approx(-loss(best), abs=1e-2)


def test_windows_and_whole_sums_have_one_maximum(monkeypatch):
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    noise = nw.noise.DiscreteLaplace(2.0)
    release = nw.Release([nw.Measurement(query, noise, [[14, 5, 12]])], n=30)
    whole = nw.mle(nw.models.Categorical([1, 1, 1]), release)
    monkeypatch.setattr(exact_likelihood, "_MOST_PAIRS", 1)
    windows = nw.mle(nw.models.Categorical([1, 1, 1]), release)
    assert "windows" in windows.verdict
    np.testing.assert_allclose(windows.theta["p"], whole.theta["p"], atol=1e-7)
    np.testing.assert_allclose(windows.covariance, whole.covariance, rtol=1e-3, atol=1e-9)
    assert windows.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-9)


def poisson_log_likelihood(rate: float, value: float, scale: float, n: int, upper: int) -> float:
    """A sum of n counts clamped at the upper bound, convolved, with discrete Gaussian noise."""
    pmf = stats.poisson.pmf(np.arange(upper + 1), rate)
    pmf[-1] = stats.poisson.sf(upper - 1, rate)
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, pmf)
    k = np.arange(-400, 401)
    noise = np.exp(-0.5 * ((value - np.arange(total.size)) / scale) ** 2) / np.exp(-0.5 * (k / scale) ** 2).sum()
    return float(np.log(total @ noise))


def test_the_curve_of_one_released_sum_is_climbed_and_its_bend_measured():
    query = nw.queries.Moments({"x": nw.Column(0, 4)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.DiscreteGaussian(6.0), [61])], n=25)
    found = nw.mle(nw.models.Poisson(7, 1), release)
    at, error = maximum(lambda rate: poisson_log_likelihood(rate, 61, 6.0, 25, 4), 1.0, 6.0)
    assert found.converged
    assert found.method == "direct"
    assert float(found.theta["rate"]) == pytest.approx(at, abs=1e-6)
    assert float(found.standard_errors["rate"]) == pytest.approx(error, rel=1e-4)
    assert found.log_likelihood == pytest.approx(poisson_log_likelihood(at, 61, 6.0, 25, 4), abs=1e-9)


def test_three_hundred_million_records_have_a_maximum_whatever_the_prior():
    n, scale = 3 * 10**8, 20_000.0
    query = nw.queries.Moments({"x": nw.Column(-50, 50)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(scale), [2.5 * n])], n=n)
    found = nw.mle(nw.models.Normal((-3, 0.001), sd=1.0), release)
    assert found.converged
    assert float(found.theta["mean"]) == pytest.approx(2.5, abs=1e-9)
    assert float(found.standard_errors["mean"]) == pytest.approx(np.sqrt(n + scale**2) / n, rel=1e-5)


def test_a_sum_beyond_every_possible_one_has_its_maximum_at_the_edge():
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [40.0])], n=30)
    with pytest.warns(nw.ConvergenceWarning, match="NOT an interior maximum"):
        assert not nw.mle(nw.models.Poisson(1, 1), release).converged


@pytest.mark.parametrize(
    ("model", "bounds", "noise", "value", "end"),
    [
        (nw.models.Poisson(1, 1), (0, 30), nw.noise.Laplace(2.0), -3.0, ("rate", 0.0)),
        (nw.models.Exponential(1, 1), (0, 4), nw.noise.Laplace(2.0), -3.0, ("rate", np.inf)),
        (nw.models.Exponential(1, 1), (0, 4), nw.noise.Gaussian(2.0), 97.0, ("rate", 0.0)),
        (nw.models.Normal((0, 2), sd=1), (-1, 1), nw.noise.Laplace(2.0), 33.0, ("mean", np.inf)),
    ],
)
def test_sums_beyond_all_possible_ones_have_no_interior_maximum_whatever_the_integral_does(
    model, bounds, noise, value, end
):
    """Where all records are clamped, or none is above zero, Laplace noise leaves the Fourier integral no decay."""
    query = nw.queries.Moments({"x": nw.Column(*bounds)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, noise, [value])], n=20)
    with pytest.warns(nw.ConvergenceWarning, match="NOT an interior maximum"):
        found = nw.mle(model, release, method="direct")
    name, where = end
    assert np.isnan(found.standard_errors[name])
    assert float(found.theta[name]) < 1e-9 if where == 0 else float(found.theta[name]) > 10


REPORTED = nw.queries.Records(columns=("x",))


def test_randomised_response_has_the_maximum_of_its_binomial_proportion():
    """13 of 40 reports are ones: ``P(report) = 0.2 + 0.6 p`` is 13/40."""
    reports = np.repeat([[1.0], [0.0]], [13, 27], axis=0)
    release = nw.Release([nw.Measurement(REPORTED, nw.noise.RandomisedResponse(0.2), reports)], n=40)
    share = 13 / 40
    error = np.sqrt(share * (1 - share) / 40) / 0.6
    found = nw.mle(nw.models.Bernoulli(5, 1), release)
    assert found.method == "direct"
    assert float(found.theta["p"]) == pytest.approx((share - 0.2) / 0.6, abs=1e-8)
    assert float(found.standard_errors["p"]) == pytest.approx(error, rel=1e-6)
    assert found.log_likelihood == pytest.approx(13 * np.log(share) + 27 * np.log(1 - share), abs=1e-10)
    both = nw.mle(nw.models.Categorical([1, 1]), release)
    np.testing.assert_allclose(both.theta["p"], [1 - found.theta["p"], found.theta["p"]], atol=1e-8)


def test_reports_of_more_codes_than_levels_are_climbed_as_the_multinomial_they_are():
    counts = np.array([40, 30, 25, 11])
    reports = np.repeat(np.arange(4.0)[:, None], counts, axis=0)
    release = nw.Release([nw.Measurement(REPORTED, nw.noise.RandomisedResponse(0.3, 4), reports)], n=106)
    found = nw.mle(nw.models.Categorical([1, 1, 1]), release)

    def log_likelihood(q):
        return counts[:3] @ np.log(0.1 + 0.6 * np.array([*q, 1 - q[0] - q[1]])) + counts[3] * np.log(0.1)

    best = optimize.minimize(
        lambda q: -log_likelihood(q), [0.4, 0.3], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13}
    )
    np.testing.assert_allclose(found.theta["p"][:2], best.x, atol=1e-6)
    assert found.log_likelihood == pytest.approx(-best.fun, abs=1e-9)
    rates = 0.1 + 0.6 * found.theta["p"]
    information = np.diag(0.36 * counts[:2] / rates[:2] ** 2) + 0.36 * counts[2] / rates[2] ** 2
    np.testing.assert_allclose(found.covariance[:2, :2], np.linalg.inv(information), rtol=1e-6)


# cloning -----------------------------------------------------------------------------------------------------------------

NORMAL_SUMS = nw.queries.Moments({"x": nw.Column(-2, 3)}, [{"x": 1}])
NORMAL_N, NORMAL_VALUE, NORMAL_SCALE, NORMAL_SD = 2, 2.4, 1.5, 1.2


def normal_release(query=NORMAL_SUMS) -> nw.Release:
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(NORMAL_SCALE), [NORMAL_VALUE])], n=NORMAL_N)


def normal_log_likelihood(mean: float) -> float:
    """Two records clamped to [-2, 3], summed: atoms at the bounds and quadrature between."""
    nodes, weights = enumeration.clamped_nodes(-2, 3, (-0.6, 0.0, 1.2), 80)
    values = np.concatenate([[-2.0], nodes, [3.0]])
    mass = np.concatenate(
        [
            [stats.norm.cdf(-2, mean, NORMAL_SD)],
            stats.norm.pdf(nodes, mean, NORMAL_SD) * weights,
            [stats.norm.sf(3, mean, NORMAL_SD)],
        ]
    )
    noise = stats.laplace.pdf(NORMAL_VALUE - values[:, None] - values, scale=NORMAL_SCALE)
    return float(np.log(mass @ noise @ mass))


def by_cloning(model, release, **how) -> Estimate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        return nw.mle(model, release, method="cloning", random_seed=2, progressbar=False, **how)


def off(found: Estimate, name: str, at: float, error: float) -> tuple[float, float]:
    """How many Monte-Carlo errors the estimate and its standard error are from the reference."""
    return (
        abs(float(found.theta[name]) - at) / float(found.monte_carlo_errors[name]),
        abs(float(found.standard_errors[name]) - error) / float(found.standard_error_errors[name]),
    )


def test_cloning_finds_the_maximum_of_a_bernoulli_release_whatever_the_prior():
    at, error = maximum(lambda p: bernoulli_log_likelihood(p, 7.3, 4.0), 0.05, 0.95)
    found = by_cloning(nw.models.Bernoulli(2, 3), bernoulli_release(7.3, 4.0))
    assert found.converged, found.verdict
    assert max(off(found, "p", at, error)) < 4
    assert float(found.monte_carlo_errors["p"]) < 0.02 * error
    another = by_cloning(nw.models.Bernoulli(4, 1), bernoulli_release(7.3, 4.0))
    assert another.converged, another.verdict
    assert max(off(another, "p", at, error)) < 4
    # the same program refuses a release whose likelihood has its maximum at the edge
    edge = by_cloning(nw.models.Bernoulli(2, 3), bernoulli_release(-4.0, 4.0))
    assert not edge.converged
    assert "edge of the parameter space" in edge.verdict


def test_cloning_finds_the_maximum_of_a_clamped_normal_release():
    at, error = maximum(normal_log_likelihood, -1.0, 4.0)
    found = by_cloning(nw.models.Normal((0, 2), sd=NORMAL_SD), normal_release(), clones=64)
    assert found.converged, found.verdict
    assert max(off(found, "mean", at, error)) < 4
    # a likelihood that forgets the clamping is seen to have another maximum
    wide = NORMAL_VALUE / NORMAL_N
    assert off(found, "mean", wide, error)[0] > 4


def test_too_short_a_run_is_not_called_good():
    found = by_cloning(nw.models.Bernoulli(2, 3), bernoulli_release(7.3, 4.0), draws=20, tune=5, target_ess=1)
    assert not found.converged


def test_what_cannot_be_estimated_is_refused():
    counted = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}, {"x": 1}])
    unknown = nw.Release(
        [nw.Measurement(counted, nw.noise.Laplace(1.0), [9.0, 4.0])], n=None, neighbours="add_remove_one"
    )
    with pytest.raises(ValueError, match="known number of records"):
        nw.mle(nw.models.UnknownSize(nw.models.Bernoulli(), upper=20), unknown)
    with pytest.raises(ValueError, match="multiple of 4"):
        nw.mle(nw.models.Normal(), normal_release(), clones=10)
    both = nw.queries.Moments({"x": nw.Column(-2, 3)}, [{"x": 1}, {"x": 2}])
    with pytest.raises(ValueError, match=r"no direct likelihood.*one released sum"):
        nw.mle(
            nw.models.Normal(),
            nw.Release([nw.Measurement(both, nw.noise.Laplace(1.0), [2.0, 3.0])], n=2),
            method="direct",
        )
    many = nw.Release([nw.Measurement(both, nw.noise.Laplace(1.0), [2e6, 3e6])], n=2_000_000)
    with pytest.raises(ValueError, match="32 copies of all 2000000 records"):
        nw.mle(nw.models.Normal(), many)
    with pytest.raises(ValueError, match="random_seed must be a whole number"):
        nw.mle(nw.models.Normal(), normal_release(), random_seed="seven")
    with pytest.raises(ValueError, match="method must be"):
        nw.mle(nw.models.Normal(), normal_release(), method="em")
    with pytest.raises(Unsupported, match="not a model of counts"):
        exact_log_likelihood(nw.models.Normal(), normal_release())


def test_gradients_are_finite_where_counts_are_impossible():
    """Integer noise gives half-way counts no mass at all; derivatives of the sum stay numbers."""
    query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(0.001), [[3, 2]])], n=5)
    likelihood = exact_log_likelihood(nw.models.Categorical([1, 1]), release)
    slope = jax.grad(lambda q: likelihood({"p": jnp.stack([q, 1 - q])}))(0.4)
    assert float(slope) == pytest.approx(3 / 0.4 - 2 / 0.6)
