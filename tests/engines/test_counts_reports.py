"""Randomised response in the counts engine, against the enumeration of every database behind the reports."""

import itertools
import math

import jax
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.counts import Counts

KEY = jax.random.key(0)


def dirichlet_evidence(weights, counts):
    total, n = sum(weights), sum(counts)
    log = math.lgamma(total) - math.lgamma(total + n)
    return math.exp(log + sum(math.lgamma(w + c) - math.lgamma(w) for w, c in zip(weights, counts, strict=True)))


def every_database(weights, n, likelihood):
    """Means and sds of the probabilities, and the log evidence, summing over the codes of all records."""
    size = len(weights)
    total, first, second = 0.0, np.zeros(size), np.zeros(size)
    for database in itertools.product(range(size), repeat=n):
        counts = np.bincount(database, minlength=size)
        chance = dirichlet_evidence(weights, counts) * likelihood(database)
        posterior, whole = counts + np.array(weights), n + sum(weights)
        total += chance
        first += chance * posterior / whole
        second += chance * posterior * (posterior + 1) / (whole * (whole + 1))
    mean = first / total
    return mean, np.sqrt(second / total - mean**2), math.log(total)


def warner(flip, levels, report, code):
    return 1 - flip if report == code else flip / (levels - 1)


def reports_release(reports, flip, levels, *more):
    measurement = nw.Measurement(
        nw.queries.Records(columns=("x",)), nw.noise.RandomisedResponse(flip, levels), np.array(reports)[:, None]
    )
    return nw.Release([measurement, *more], n=len(reports))


def check(model, release, weights, likelihood, *, binary=False):
    mean, sd, log_evidence = every_database(weights, release.n, likelihood)
    exact = Counts().build(model, release, KEY).exact()
    np.testing.assert_allclose(exact.means["p"], mean[1] if binary else mean, rtol=1e-9)
    np.testing.assert_allclose(exact.sds["p"], sd[1] if binary else sd, rtol=1e-8)
    assert exact.log_marginal == pytest.approx(log_evidence, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("weights", "reports", "flip", "levels"),
    [
        ((1.0, 1.0), [1, 0, 1, 1], 0.25, 2),
        ((0.3, 2.5), [0, 0, 0, 0, 1], 0.01, 2),
        ((1.0, 4.0), [1, 1, 1], 0.9, 2),
        ((2.0, 2.0), [0, 1, 1, 0], 0.5, 2),
        ((1.0, 1.0, 1.0), [2, 0, 1, 1, 2], 0.3, 3),
        ((0.4, 3.0, 0.7), [0, 0, 0, 2], 0.02, 3),
        ((1.0, 0.5, 2.0), [1, 2, 2], 2 / 3, 3),
        ((0.2, 1.5, 1.0, 1.0), [3, 3, 0, 1], 0.6, 4),
        ((1.0, 1.0, 2.0), [3, 0, 3, 1], 0.4, 4),
    ],
)
def test_randomised_response_matches_the_enumeration_of_every_database(weights, reports, flip, levels):
    release = reports_release(reports, flip, levels)

    def likelihood(database):
        return math.prod(warner(flip, levels, s, x) for s, x in zip(reports, database, strict=True))

    check(nw.models.Categorical(weights), release, weights, likelihood)
    if len(weights) == 2:
        check(nw.models.Bernoulli(weights[1], weights[0]), release, weights, likelihood, binary=True)


def test_two_reports_and_a_noisy_count_of_the_same_records_are_all_used():
    first, second, count, flips = [1, 0, 1, 1, 0], [1, 1, 0, 1, 0], 4.3, (0.2, 0.4)
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    other = nw.Measurement(
        nw.queries.Records(columns=("x",)), nw.noise.RandomisedResponse(flips[1]), np.array(second)[:, None]
    )
    noise = nw.noise.Laplace(0.7)
    release = reports_release(first, flips[0], 2, other, nw.Measurement(query, noise, [count]))

    def likelihood(database):
        chance = math.exp(-abs(count - sum(database)) / 0.7) / 1.4
        for reports, flip in zip((first, second), flips, strict=True):
            chance *= math.prod(warner(flip, 2, s, x) for s, x in zip(reports, database, strict=True))
        return chance

    check(nw.models.Bernoulli(1.5, 0.5), release, (0.5, 1.5), likelihood, binary=True)


def test_real_noise_on_every_code_is_summed_as_well():
    values = np.array([0.4, 1.9, -0.7, 1.1])
    measurement = nw.Measurement(nw.queries.Records(columns=("x",)), nw.noise.Gaussian(0.8), values[:, None])
    release = nw.Release([measurement], n=4)

    def likelihood(database):
        return math.prod(
            math.exp(-0.5 * ((v - x) / 0.8) ** 2) / (0.8 * math.sqrt(2 * math.pi))
            for v, x in zip(values, database, strict=True)
        )

    check(nw.models.Bernoulli(2, 1), release, (1.0, 2.0), likelihood, binary=True)


def deviation(draws, exact):
    """How many standard errors the mean and the mean square deviation of draws are from what they should be, at worst."""
    centred = (np.asarray(draws) - exact.means["p"]) / exact.sds["p"]
    root = math.sqrt(len(centred))
    square = centred**2
    return max(
        np.max(np.abs(centred.mean(axis=0))) * root,
        np.max(np.abs(square.mean(axis=0) - 1) / square.std(axis=0)) * root,
    )


def test_draws_given_reports_have_the_exact_moments_and_those_of_another_law_do_not():
    levels, reports = 3, np.repeat(np.arange(3), [30, 60, 45])
    model = nw.models.Categorical([1.0, 0.5, 2.0])
    draw = jax.jit(lambda sampler, keys: jax.vmap(sampler.draw)(keys).theta["p"])
    keys = jax.random.split(jax.random.key(2), 4000)
    right, wrong = (Counts().build(model, reports_release(reports, flip, levels), KEY) for flip in (0.3, 0.1))
    assert deviation(draw(right, keys), right.exact()) < 4.5
    assert deviation(draw(wrong, keys), right.exact()) > 9


def test_a_million_reports_keep_their_digits():
    flip = 0.25
    reports = np.repeat([0, 1], [600_000, 400_000])
    exact = Counts().build(nw.models.Bernoulli(), reports_release(reports, flip, 2), KEY).exact()
    # quadrature over the share of ones: p(reports | p) = q^m (1 - q)^(n - m), q = flip + (1 - 2 flip) p
    nodes, weights = np.polynomial.legendre.leggauss(400)
    p = 0.3 + 0.012 * nodes
    q = flip + (1 - 2 * flip) * p
    log_density = 400_000 * np.log(q) + 600_000 * np.log1p(-q)
    mass = weights * np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = mass @ p
    np.testing.assert_allclose(exact.means["p"], mean, rtol=1e-9)
    np.testing.assert_allclose(exact.sds["p"], math.sqrt(mass @ (p - mean) ** 2), rtol=1e-8)


def test_ten_thousand_reports_of_three_levels_match_quadrature():
    counts, flip, weights = np.array([4250, 3150, 2600]), 0.3, np.array([1.0, 0.5, 2.0])
    release = reports_release(np.repeat([0, 1, 2], counts), flip, 3)
    exact = Counts().build(nw.models.Categorical(weights), release, KEY).exact()
    # p(reports | p) = prod (u + v p_s)^m_s, over a box ten sds around the posterior
    nodes, rule = np.polynomial.legendre.leggauss(120)
    u, v = flip / 2, 1 - 1.5 * flip
    first, second = np.meshgrid(0.5 + 0.09 * nodes, 0.3 + 0.09 * nodes, indexing="ij")
    p = np.stack([first, second, 1 - first - second])
    log_density = np.tensordot(counts, np.log(u + v * p), 1) + np.tensordot(weights - 1, np.log(p), 1)
    mass = np.exp(log_density - log_density.max()) * rule[:, None] * rule
    mass /= mass.sum()
    mean = np.array([np.sum(mass * level) for level in p])
    np.testing.assert_allclose(exact.means["p"], mean, rtol=1e-8)
    sd = np.array([math.sqrt(np.sum(mass * (level - centre) ** 2)) for level, centre in zip(p, mean, strict=True)])
    np.testing.assert_allclose(exact.sds["p"], sd, rtol=1e-7)


def test_reports_it_cannot_sum_are_refused_with_the_reason():
    model = nw.models.Categorical([1.0, 1.0, 1.0])
    lying = reports_release([0, 1, 2], 0.9, 3)
    assert "false than a blind guess" in Counts().supports(model, lying).reason
    assert "2 codes" in Counts().supports(model, reports_release([0, 1, 1], 0.2, 2)).reason
    counted = nw.Measurement(
        nw.queries.Counts(levels={"x": 3}, tables=[("x",)]), nw.noise.Laplace(1.0), [[1.0, 1.0, 1.0]]
    )
    assert (
        "one randomised response alone" in Counts().supports(model, reports_release([0, 1, 2], 0.2, 3, counted)).reason
    )
