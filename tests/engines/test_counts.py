"""The counts engine against the enumeration of every database, and its draws against its own exact moments."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.counts import Counts

KEY = jax.random.key(0)


def noise_density(law, scale, r):
    """The density of one noise at r, from its definition."""
    if law == "Laplace":
        return math.exp(-abs(r) / scale) / (2 * scale)
    if law == "Gaussian":
        return math.exp(-0.5 * (r / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    assert abs(r - round(r)) < 1e-9
    return discrete_mass(law, scale, abs(r)) / normaliser(law, scale)


def discrete_mass(law, scale, k):
    return math.exp(-k / scale if law == "DiscreteLaplace" else -0.5 * (k / scale) ** 2)


@functools.cache
def normaliser(law, scale):
    return 1 + 2 * math.fsum(discrete_mass(law, scale, k) for k in range(1, int(60 * scale) + 60))


def dirichlet_moments(weights):
    total = sum(weights)
    return [w / total for w in weights], [w * (w + 1) / (total * (total + 1)) for w in weights]


def dirichlet_evidence(weights, counts):
    """The probability of one sequence of records with these counts."""
    total, n = sum(weights), sum(counts)
    log = math.lgamma(total) - math.lgamma(total + n)
    return math.exp(log + sum(math.lgamma(w + c) - math.lgamma(w) for w, c in zip(weights, counts, strict=True)))


def enumerate_databases(levels, n, evidence, moments, measurements):
    """Posterior means, sds and log evidence, summing over every database of n records.

    ``measurements`` are (rows, laws, scales, values): a function from a record to its row, and vectors over the row.
    """
    total, first, second = 0.0, 0.0, 0.0
    for database in itertools.product(itertools.product(*(range(size) for size in levels)), repeat=n):
        weight = evidence(database)
        for rows, law, scales, values in measurements:
            exact = np.sum([rows(record) for record in database], axis=0)
            for value, mean, scale in zip(values, exact, scales, strict=True):
                weight *= noise_density(law, scale, value - mean)
        one, two = moments(database)
        total, first, second = total + weight, first + weight * np.array(one), second + weight * np.array(two)
    mean = first / total
    return mean, np.sqrt(second / total - mean**2), math.log(total)


def column_counts(database, size):
    return [sum(record[0] == level for record in database) for level in range(size)]


def one_hot(size):
    return lambda record: np.eye(size)[record[0]]


def multinomial_reference(weights, n, measurements):
    size = len(weights)
    return enumerate_databases(
        [size],
        n,
        lambda database: dirichlet_evidence(weights, column_counts(database, size)),
        lambda database: dirichlet_moments(np.add(weights, column_counts(database, size))),
        measurements,
    )


LAWS = ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")


def multinomial_cases():
    """(weights, n, measurements as (law, scale, values)), eps = 2 / scale from 0.01 to 20."""
    rng = np.random.default_rng(1)
    cases = []
    for number in range(24):
        size = 2 + number % 3
        n = 1 + number % 5
        weights = [(1.0,) * size, (0.3,) * size, (2.5, *(0.7,) * (size - 1))][number % 3 - 1]
        scale = 2 / [0.01, 0.1, 1.0, 3.0, 20.0][number % 5]
        law = LAWS[number % 4]
        values = rng.multinomial(n, np.ones(size) / size) + rng.normal(size=size) * scale
        values = np.round(values) if law.startswith("Discrete") else values
        cases.append((weights, n, [(law, [scale] * size, values)]))
    cases.append(((1.0, 1.0), 4, [("Laplace", [0.3, 0.3], [19.0, -12.0])]))
    cases.append(((1.0, 2.0, 0.5), 3, [("Gaussian", [0.3, 0.5, 0.9], [9.0, -4.0, 3.3])]))
    cases.append(((2.0, 2.0), 5, [("DiscreteLaplace", [1.0, 3.0], [3, 3]), ("Laplace", [2.0, 2.0], [4.1, -0.3])]))
    cases.append(
        (
            (1.0, 1.0, 1.0),
            4,
            [("DiscreteGaussian", [0.4, 2.0, 7.0], [9, -7, 2]), ("DiscreteGaussian", [1.0] * 3, [1, 1, 2])],
        )
    )
    return cases


@pytest.mark.parametrize("case", range(28))
def test_counts_engine_matches_enumeration_of_every_database(case):
    weights, n, measured = multinomial_cases()[case]
    size = len(weights)
    mean, sd, log_evidence = multinomial_reference(
        weights, n, [(one_hot(size), law, scales, values) for law, scales, values in measured]
    )
    query = nw.queries.Counts(levels={"x": size}, tables=[("x",)])
    release = nw.Release(
        [nw.Measurement(query, getattr(nw.noise, law)(np.array(scales)), [values]) for law, scales, values in measured],
        n=n,
    )
    exact = Counts().build(nw.models.Categorical(weights), release, KEY).exact()
    np.testing.assert_allclose(exact.means["p"], mean, rtol=1e-10)
    np.testing.assert_allclose(exact.sds["p"], sd, rtol=1e-8)
    assert exact.log_marginal == pytest.approx(log_evidence, rel=1e-10, abs=1e-10)
    if size == 2:
        exact = Counts().build(nw.models.Bernoulli(weights[1], weights[0]), release, KEY).exact()
        np.testing.assert_allclose(exact.means["p"], mean[1], rtol=1e-10)
        np.testing.assert_allclose(exact.sds["p"], sd[1], rtol=1e-8)
        assert exact.log_marginal == pytest.approx(log_evidence, rel=1e-10, abs=1e-10)


CLAMPS = [
    (nw.Column(0, 1), lambda x: x),
    (nw.Column(-1, 2, rescale=(-1, 1)), lambda x: -1 + (x + 1) * 2 / 3),
    (nw.Column(0.25, 5), lambda x: max(x, 0.25)),
]


@pytest.mark.parametrize("clamp", range(3))
@pytest.mark.parametrize("value", [1.7, 3.0, -30.0])
def test_a_clamped_sum_of_zeros_and_ones_is_a_count_in_disguise(clamp, value):
    column, clamped = CLAMPS[clamp]
    query = nw.queries.Moments(columns={"x": column}, terms=[{"x": 1}, {"x": 2}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(np.array([0.8, 1.3])), [value, 2.0])], n=5)
    exact = Counts().build(nw.models.Bernoulli(1.5, 0.5), release, KEY).exact()

    def rows(record):
        return [clamped(record[0]), clamped(record[0]) ** 2]

    mean, sd, log_evidence = multinomial_reference((0.5, 1.5), 5, [(rows, "Laplace", [0.8, 1.3], [value, 2.0])])
    np.testing.assert_allclose(exact.means["p"], mean[1], rtol=1e-10)
    np.testing.assert_allclose(exact.sds["p"], sd[1], rtol=1e-8)
    assert exact.log_marginal == pytest.approx(log_evidence, abs=1e-10)


def bayes_reference(classes, features, prior, n, measurements):
    def tables(database):
        y = [sum(r[0] == i for r in database) for i in range(classes)]
        return y, [
            [[sum(r[0] == i and r[k] == j for r in database) for j in range(size)] for i in range(classes)]
            for k, size in enumerate(features, start=1)
        ]

    def evidence(database):
        y, by_feature = tables(database)
        weight = dirichlet_evidence([prior] * classes, y)
        for k, size in enumerate(features):
            for i in range(classes):
                weight *= dirichlet_evidence([prior] * size, by_feature[k][i])
        return weight

    def moments(database):
        y, by_feature = tables(database)
        one, two = dirichlet_moments([prior + c for c in y])
        for table in by_feature:
            for row in table:
                a, b = dirichlet_moments([prior + c for c in row])
                one, two = [*one, *a], [*two, *b]
        return one, two

    return enumerate_databases([classes, *features], n, evidence, moments, measurements)


BAYES_CASES = [
    (2, (2,), 2.0, 4, "Laplace", 1.0, 0.0),
    (2, (3,), 0.5, 3, "DiscreteLaplace", 20.0, 0.0),
    (2, (2, 2), 1.0, 3, "Gaussian", 0.7, 0.0),
    (2, (2, 3), 2.0, 3, "DiscreteGaussian", 3.0, 0.0),
    (3, (2, 2), 2.0, 2, "Laplace", 0.2, 0.0),
    (2, (2, 2), 2.0, 4, "Laplace", 0.2, 15.0),
]


def bayes_release(classes, features, n, law, scale, shift, with_target):
    """A release of all (target, feature) tables, far out of range with ``shift``, and of the target twice."""
    rng = np.random.default_rng(classes + sum(features))
    shapes = [(classes, size) for size in features]
    values = [
        rng.multinomial(n, np.ones(a * b) / (a * b)).reshape(a, b) + rng.normal(size=(a, b)) * scale for a, b in shapes
    ]
    values[0][0, 0] += shift
    values[0][-1, -1] -= shift
    values = [np.round(v) if law.startswith("Discrete") else v for v in values]
    names = [f"x{k}" for k in range(1, len(features) + 1)]
    levels = {"y": classes, **dict(zip(names, features, strict=True))}
    query = nw.queries.Counts(levels=levels, tables=[("y", name) for name in names])
    made = getattr(nw.noise, law)(scale)
    measurements = [nw.Measurement(query, made, values)]

    def rows(record):
        parts = []
        for k, size in enumerate(features, start=1):
            cell = np.zeros((classes, size))
            cell[record[0], record[k]] = 1
            parts.append(cell.ravel())
        return np.concatenate(parts)

    flat = np.concatenate([v.ravel() for v in values])
    reference = [(rows, law, [scale] * flat.size, flat)]
    if with_target:
        first = np.arange(classes) + 0.5
        query = nw.queries.Counts(levels={"y": classes}, tables=[("y",)])
        measurements.append(nw.Measurement(query, nw.noise.Laplace(1.3), [first]))
        turned = nw.queries.Counts(levels=levels, tables=[("x1", "y")])
        again = (values[0] + 1.0).T
        measurements.append(nw.Measurement(turned, nw.noise.Gaussian(2.0), [again]))

        def turned_rows(record):
            cell = np.zeros((features[0], classes))
            cell[record[1], record[0]] = 1
            return cell.ravel()

        reference.append((lambda record: np.eye(classes)[record[0]], "Laplace", [1.3] * classes, first))
        reference.append((turned_rows, "Gaussian", [2.0] * again.size, again.ravel()))
    return nw.Release(measurements, n=n), reference


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("case", BAYES_CASES)
def test_naive_bayes_by_convolution_matches_enumeration(case, with_target):
    classes, features, prior, n, law, scale, shift = case
    release, reference = bayes_release(classes, features, n, law, scale, shift, with_target)
    mean, sd, log_evidence = bayes_reference(classes, features, prior, n, reference)
    exact = Counts().build(nw.models.NaiveBayes(classes, features, prior=prior), release, KEY).exact()
    found = np.concatenate([np.ravel(v) for v in exact.means.values()])
    np.testing.assert_allclose(found, mean, rtol=1e-10)
    np.testing.assert_allclose(np.concatenate([np.ravel(v) for v in exact.sds.values()]), sd, rtol=1e-8)
    assert exact.log_marginal == pytest.approx(log_evidence, abs=1e-9)


def draw_deviation(draw, sampler, exact, count=6000, seed=3):
    """The largest distance, in standard errors, of the means and spreads of draws from the exact ones."""
    draws = draw(sampler, jax.random.split(jax.random.key(seed), count))
    worst = 0.0
    for name, value in draws.items():
        centred = (np.asarray(value) - exact.means[name]) / exact.sds[name]
        square = centred**2
        worst = max(worst, np.max(np.abs(centred.mean(0))) * math.sqrt(count))
        worst = max(worst, np.max(np.abs(square.mean(0) - 1) / square.std(0)) * math.sqrt(count))
    return worst


def test_draws_have_the_exact_moments_and_draws_for_another_noise_do_not_in_one_compilation():
    traces = []

    @jax.jit
    def draw(sampler, keys):
        traces.append(1)
        return jax.vmap(sampler.draw)(keys).theta

    release, _ = bayes_release(2, (2, 3), 30, "Laplace", 2.0, 0.0, True)
    other, _ = bayes_release(2, (2, 3), 30, "Laplace", 6.0, 0.0, True)
    right = Counts().build(nw.models.NaiveBayes(2, (2, 3), prior=0.7), release, KEY)
    wrong = Counts().build(nw.models.NaiveBayes(2, (2, 3), prior=0.9), other, KEY)
    assert draw_deviation(draw, right, right.exact()) < 4.5
    assert draw_deviation(draw, wrong, right.exact()) > 9
    assert len(traces) == 1


def categorical_release(n, law, scale, weights, seed=5):
    rng = np.random.default_rng(seed)
    value = rng.multinomial(n, np.array(weights) / sum(weights)) + np.round(rng.normal(size=len(weights)) * scale)
    query = nw.queries.Counts(levels={"x": len(weights)}, tables=[("x",)])
    return nw.Release([nw.Measurement(query, getattr(nw.noise, law)(scale), [value])], n=n)


@pytest.mark.parametrize("law", LAWS)
def test_windows_agree_with_whole_tables(law, monkeypatch):
    model = nw.models.Categorical([2.0, 0.4, 1.0, 0.3])
    release = categorical_release(200, law, 3.0, [5, 2, 1, 1])
    whole = Counts().build(model, release, KEY)
    monkeypatch.setattr("noisewise.engines.counts._WHOLE", 1)
    windows = Counts().build(model, release, KEY)
    assert type(whole) is not type(windows)
    np.testing.assert_allclose(windows.exact().means["p"], whole.exact().means["p"], rtol=1e-12)
    np.testing.assert_allclose(windows.exact().sds["p"], whole.exact().sds["p"], rtol=1e-11)
    assert windows.exact().log_marginal == pytest.approx(whole.exact().log_marginal, abs=1e-10)
    if law == "Laplace":
        draw = jax.jit(lambda sampler, keys: jax.vmap(sampler.draw)(keys).theta)
        assert draw_deviation(draw, windows, whole.exact()) < 4.5


def test_three_hundred_million_records_keep_their_digits():
    n = 3 * 10**8
    release = categorical_release(n, "DiscreteGaussian", 20.0, [5, 3, 2])
    exact = Counts().build(nw.models.Categorical([1.0, 1.0, 1.0]), release, KEY).exact()
    # with three equal scales and flat weights, the constraint moves each count by a third of what is missing
    value = np.asarray(release.measurements[0].value)
    counts = value + (n - value.sum()) / 3
    share = (counts + 1) / (n + 3)
    np.testing.assert_allclose(exact.means["p"], share, rtol=1e-12)
    variance = share * (1 - share) / (n + 4) + 20.0**2 * (2 / 3) / n**2
    np.testing.assert_allclose(exact.sds["p"], np.sqrt(variance), rtol=1e-7)


def test_releases_that_do_not_look_at_cells_are_refused_with_the_reason():
    model = nw.models.Categorical([1.0, 1.0, 1.0])
    mixed = nw.queries.Moments(columns={"x": nw.Column(0, 2)}, terms=[{"x": 1}])
    release = nw.Release([nw.Measurement(mixed, nw.noise.Laplace(1.0), [3.0])], n=5)
    assert "mixes several levels" in Counts().supports(model, release).reason
    assert "not a model of counts" in Counts().supports(nw.models.Normal(), release).reason
    table = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("x1",)])
    release = nw.Release([nw.Measurement(table, nw.noise.Laplace(1.0), [[2.0, 3.0]])], n=5)
    assert "leave the classes independent" in Counts().supports(nw.models.NaiveBayes(2, [2]), release).reason
    wide = categorical_release(10**8, "Laplace", 1e6, [1, 1, 1])
    assert "so wide" in Counts().supports(model, wide).reason
