"""The counts engine where tables are too long for whole sums, and where the number of records is unknown."""

import jax
import numpy as np
import pytest
from scipy import special, stats

import noisewise as nw
from noisewise.engines import counts, counts_bayes
from noisewise.engines.counts import Counts

KEY = jax.random.key(0)
MODEL = nw.models.NaiveBayes(3, [2, 3, 4], prior=0.7)
LAWS = ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")


def bayes_release(n, law, scale, *, model=MODEL, seed=0, skip=()):
    """Tables of the target with each feature that is not skipped, and of the target alone, of simulated records."""
    rng = np.random.default_rng(seed)
    y = rng.choice(model.classes, size=n, p=rng.dirichlet(np.ones(model.classes)))
    features = [k for k in range(1, len(model.features) + 1) if k not in skip]
    tables = []
    for k in features:
        cells = rng.dirichlet(np.ones(model.features[k - 1]), size=model.classes)
        exact = np.array([rng.multinomial(np.sum(y == i), cells[i]) for i in range(model.classes)])
        tables.append(exact + np.round(scale * rng.laplace(size=exact.shape)))
    levels = {"y": model.classes, **{f"x{k}": model.features[k - 1] for k in features}}
    alone = nw.queries.Counts(levels={"y": model.classes}, tables=[("y",)])
    classes = np.bincount(y, minlength=model.classes) + np.round(rng.normal(size=model.classes) * 3)
    measurements = [nw.Measurement(alone, nw.noise.DiscreteGaussian(3.0), [classes])]
    if features:
        query = nw.queries.Counts(levels=levels, tables=[("y", f"x{k}") for k in features])
        measurements.append(nw.Measurement(query, getattr(nw.noise, law)(scale), tables))
    return nw.Release(measurements, n=n)


def compare(one, other, slack=0.0):
    for name, mean in other.means.items():
        np.testing.assert_allclose(one.means[name], mean, rtol=1e-11 + slack, err_msg=name)
        np.testing.assert_allclose(one.sds[name], other.sds[name], rtol=1e-10 + slack, err_msg=name)
    assert one.log_marginal == pytest.approx(other.log_marginal, abs=1e-10 + slack)


def by_windows(monkeypatch, model, release):
    monkeypatch.setattr(counts_bayes, "_WHOLE_ENTRIES", 1)
    monkeypatch.setattr(counts, "_WHOLE", 1)
    sampler = Counts().build(model, release, KEY)
    monkeypatch.undo()
    return sampler


@pytest.mark.parametrize(("law", "scale"), [("Laplace", 0.5), ("Gaussian", 40.0), *((law, 2.0) for law in LAWS)])
def test_naive_bayes_windows_agree_with_whole_tables(law, scale, monkeypatch):
    release = bayes_release(80, law, scale)
    whole = Counts().build(MODEL, release, KEY)
    windows = by_windows(monkeypatch, MODEL, release)
    assert type(whole) is not type(windows)
    compare(windows.exact(), whole.exact())


@pytest.mark.parametrize("skip", [(2,), (1, 2, 3)])
def test_features_that_nobody_measured_keep_their_prior(skip, monkeypatch):
    release = bayes_release(60, "Laplace", 1.0, skip=skip)
    windows = by_windows(monkeypatch, MODEL, release).exact()
    compare(windows, Counts().build(MODEL, release, KEY).exact())
    np.testing.assert_allclose(windows.means["feature_probs_2"], 1 / 3)


def test_tables_that_contradict_each_other_take_wider_windows(monkeypatch):
    release = bayes_release(60, "Laplace", 0.2)
    value = np.asarray(release.measurements[1].value).copy()
    value[:2] += 8.0
    value[2:4] -= 8.0
    noise = release.measurements[1].noise
    release = nw.Release([release.measurements[0], nw.Measurement(release.measurements[1].query, noise, value)], n=60)
    compare(by_windows(monkeypatch, MODEL, release).exact(), Counts().build(MODEL, release, KEY).exact())


CONTRADICTIONS = [
    # classes, levels, n, prior, law, scale, how far the tables are pulled apart, whether the windows can vouch for what they find
    (3, [2], 250, 1.0, "Gaussian", 0.1, 125, True),
    (2, [3, 2], 60, 0.05, "Laplace", 0.3, 30, True),
    (3, [2, 2], 90, 2.0, "DiscreteGaussian", 0.4, 20, True),
    (2, [4], 120, 40.0, "DiscreteLaplace", 0.1, 60, True),
    (2, [2, 3], 200, 0.5, "Gaussian", 3.0, 300, False),
]


@pytest.mark.parametrize("case", CONTRADICTIONS, ids=str)
def test_windows_find_what_explains_contradictions_best_or_say_that_nothing_does(case, monkeypatch):
    """Thousands of standard deviations apart, windows around what was released hold nothing of the posterior."""
    classes, levels, n, prior, law, scale, apart, found = case
    rng = np.random.default_rng(5)
    model = nw.models.NaiveBayes(classes, levels, prior=prior)
    share = rng.dirichlet(np.ones(classes))
    totals = rng.multinomial(n, share)
    tables = []
    for size in levels:
        exact = np.array([rng.multinomial(t, rng.dirichlet(np.ones(size))) for t in totals])
        signs = np.resize([1, -1], exact.size).reshape(exact.shape)
        tables.append(np.round(exact + apart * signs + rng.laplace(size=exact.shape) * scale))
    names = [f"x{k}" for k in range(1, len(levels) + 1)]
    query = nw.queries.Counts({"y": classes, **dict(zip(names, levels, strict=True))}, [("y", name) for name in names])
    release = nw.Release([nw.Measurement(query, getattr(nw.noise, law)(scale), tables)], n=n)
    if not found:
        with pytest.raises(ValueError, match="contradict each other"):
            by_windows(monkeypatch, model, release)
        return
    whole = Counts().build(model, release, KEY).exact()
    # logarithms of densities this small have lost as many digits as they have before the point
    rounding = 10 * np.finfo(float).eps * abs(whole.log_marginal)
    compare(by_windows(monkeypatch, model, release).exact(), whole, slack=rounding)


# tables of two classes by two levels: exact counts, noise and scales, and what the noise was
NARROW = [
    ([[[3181, 1766], [3, 50]]], 2.0, "DiscreteGaussian", 0.3, [[[0, 0], [0, 1]]]),
    (
        [[[14, 40], [4601, 345]], [[42, 12], [1213, 3733]]],
        20.0,
        "Gaussian",
        1.5,
        [[[-2, 1], [-4, -3]], [[-1, 0], [0, 1]]],
    ),
]


@pytest.mark.parametrize("case", NARROW, ids=str)
def test_narrow_noise_on_thousands_of_records_matches_a_sum_over_all_tables_near_them(case):
    """Narrow noise falls from total to total by more than any one tilt of the classes follows to the ends of their range."""
    tables, prior, law, scale, off = case
    n, count = 5000, len(tables)
    levels = {"y": 2, **{f"x{k}": 2 for k in range(1, count + 1)}}
    query = nw.queries.Counts(levels, [("y", f"x{k}") for k in range(1, count + 1)])
    value = [np.add(table, noise) for table, noise in zip(tables, off, strict=True)]
    release = nw.Release([nw.Measurement(query, getattr(nw.noise, law)(scale), value)], n=n)
    found = Counts().build(nw.models.NaiveBayes(2, [2] * count, prior=prior), release, KEY).exact()

    def rising(c, a):
        return np.where(
            c >= 0,
            special.gammaln(np.maximum(c, 0) + a) - special.gammaln(a) - special.gammaln(np.maximum(c, 0) + 1),
            -np.inf,
        )

    near = np.arange(-40, 41)
    first = np.sum(tables[0][0]) + near
    totals = np.stack([first, n - first])
    log_law = np.zeros(near.size)
    means = {}
    for i, t in enumerate(totals):
        log_law += rising(t, prior)
        for k, table in enumerate(value, start=1):
            c = np.maximum(table[i][0] + near, -1)
            rest = t[:, None] - c
            log_joint = rising(c, prior) + rising(rest, prior) - rising(t, 2 * prior)[:, None]
            log_joint = log_joint + np.log(np.maximum(noise_density(law, scale, table[i][0] - c), 1e-300))
            log_joint = log_joint + np.log(np.maximum(noise_density(law, scale, table[i][1] - rest), 1e-300))
            share = special.logsumexp(log_joint, axis=1)
            log_law += share
            means[k, i] = (np.exp(log_joint - share[:, None]) @ (c + prior)) / (t + 2 * prior)
    log_total = special.logsumexp(log_law)
    weight = np.exp(log_law - log_total)
    assert found.log_marginal == pytest.approx(log_total - rising(n, 2 * prior), abs=1e-8)
    np.testing.assert_allclose(
        found.means["class_probs"], totals @ weight / (n + 2 * prior) + prior / (n + 2 * prior), rtol=1e-10
    )
    for (k, i), mean in means.items():
        np.testing.assert_allclose(found.means[f"feature_probs_{k}"][i, 0], weight @ mean, rtol=1e-9)


def standardised(draws, exact):
    """The largest distance, in standard errors, of means and spreads of draws from the exact ones."""
    worst = 0.0
    for name, value in draws.items():
        centred = (np.asarray(value) - exact.means[name]) / exact.sds[name]
        root, square = np.sqrt(len(centred)), centred**2
        worst = max(worst, np.max(np.abs(centred.mean(0))) * root)
        worst = max(worst, np.max(np.abs(square.mean(0) - 1) / square.std(0)) * root)
    return worst


def test_a_hundred_thousand_records_are_drawn_exactly_and_other_noise_is_seen():
    draw = jax.jit(lambda sampler, keys: jax.vmap(sampler.draw)(keys).theta)
    keys = jax.random.split(jax.random.key(1), 3000)
    model = nw.models.NaiveBayes(2, [3, 3], prior=0.7)
    sampler = Counts().build(model, bayes_release(10**5, "DiscreteLaplace", 30.0, model=model), KEY)
    exact = sampler.exact()
    assert standardised(draw(sampler, keys), exact) < 4.5
    # the records would leave less than the noise does: a sampler that takes the values for the counts is seen
    narrow = Counts().build(model, bayes_release(10**5, "DiscreteLaplace", 20.0, model=model), KEY)
    assert standardised(draw(narrow, keys), exact) > 9


def test_exact_cells_beside_noisy_totals_are_integer_noise_too_narrow_to_move():
    """The first level of y by x is an invariant, the totals of y are noisy: every database with that cell is summed."""
    n, exact_cells, totals = 6, [2.0, 1.0], [3.6, 2.2]
    model = nw.models.NaiveBayes(2, [2], prior=1.3)
    tables = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
    scale = np.array([0.01, 3.0, 0.01, 3.0])
    noisy = [4.0, -1.0]
    value = [[exact_cells[0], noisy[0]], [exact_cells[1], noisy[1]]]
    alone = nw.queries.Counts(levels={"y": 2}, tables=[("y",)])
    release = nw.Release(
        [
            nw.Measurement(tables, nw.noise.DiscreteGaussian(scale), [value]),
            nw.Measurement(alone, nw.noise.Laplace(1.5), [totals]),
        ],
        n=n,
    )
    found = Counts().build(model, release, KEY).exact()
    weight, mean = 0.0, np.zeros(2)
    lattice = np.arange(-60, 61)
    mass = np.exp(-0.5 * (lattice / 3.0) ** 2)
    mass /= mass.sum()
    for a in range(n + 1):
        b = n - 3 - a
        if b < 0:
            continue
        classes = np.array([2 + a, 1 + b])
        log = special.gammaln(n + 1) - special.gammaln([3, a + 1, 2, b + 1]).sum()
        log += special.gammaln(1.3 + classes).sum() - special.gammaln(2.6 + n) + special.gammaln(2.6)
        log -= 2 * special.gammaln(1.3)
        for cells, t in (([2, a], 2 + a), ([1, b], 1 + b)):
            log += special.gammaln(np.array(cells) + 1.3).sum() - special.gammaln(2.6 + t)
            log += special.gammaln(2.6) - 2 * special.gammaln(1.3)
        chance = np.exp(log) * mass[60 + int(noisy[0] - a)] * mass[60 + int(noisy[1] - b)]
        chance *= np.prod(np.exp(-np.abs(np.array(totals) - classes) / 1.5) / 3)
        weight += chance
        mean += chance * (classes + 1.3) / (n + 2.6)
    np.testing.assert_allclose(found.means["class_probs"], mean / weight, rtol=1e-10)
    assert found.log_marginal == pytest.approx(np.log(weight), abs=1e-10)


# an unknown number of records -----------------------------------------------------------------------------------------

UPPER = 15
PRIOR = np.where(np.arange(UPPER + 1) == 3, 0.0, np.exp(-0.3 * np.arange(UPPER + 1)))
SIZED = [
    ("Laplace", 2.0, 7.3, (2.4, 4.1)),
    ("DiscreteGaussian", 0.4, 5.0, (9.0, 2.0)),
    ("Gaussian", 15.0, -6.0, (30.0, 4.0)),
]


def sized_release(law, scale, count, ones):
    """A noisy number of records, and a noisy table of two levels."""
    noise = getattr(nw.noise, law)(scale)
    counting = nw.queries.Moments({"x": nw.Column(0, 1)}, [{}])
    table = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    return nw.Release(
        [nw.Measurement(counting, noise, [count]), nw.Measurement(table, noise, [list(ones)])],
        n=None,
        neighbours="add_remove_one",
    )


def noise_density(law, scale, r):
    if law == "Laplace":
        return np.exp(-np.abs(r) / scale) / (2 * scale)
    if law == "Gaussian":
        return stats.norm.pdf(r, scale=scale)
    k = np.arange(-200, 201)
    return np.exp(-0.5 * (r / scale) ** 2) / np.exp(-0.5 * (k / scale) ** 2).sum()


@pytest.mark.parametrize("case", SIZED)
def test_an_unknown_number_of_records_matches_the_double_sum(case, monkeypatch):
    law, scale, count, table = case
    model = nw.models.UnknownSize(nw.models.Bernoulli(1.5, 0.6), upper=UPPER, lower=0, prior=PRIOR)
    n, k = (grid.ravel() for grid in np.meshgrid(np.arange(UPPER + 1), np.arange(UPPER + 1), indexing="ij"))
    n, k = n[k <= n], k[k <= n]
    chance = PRIOR[n] / PRIOR.sum() * special.comb(n, k) * special.beta(1.5 + k, 0.6 + n - k) / special.beta(1.5, 0.6)
    for value, total in ((count, n), (table[0], n - k), (table[1], k)):
        chance = chance * noise_density(law, scale, value - total)
    weight = chance / chance.sum()
    a, b = 1.5 + k, 0.6 + n - k
    p, n_mean = weight @ (a / (a + b)), weight @ n
    p_sd = np.sqrt(weight @ (a * (a + 1) / ((a + b) * (a + b + 1))) - p**2)
    release = sized_release(law, scale, count, table)
    assert nw.explain(model, release).engine.name == "counts"
    for sampler in (Counts().build(model, release, KEY), by_windows(monkeypatch, model, release)):
        exact = sampler.exact()
        np.testing.assert_allclose([exact.means["p"], exact.means["n"]], [p, n_mean], rtol=1e-10)
        np.testing.assert_allclose(exact.sds["p"], p_sd, rtol=1e-8)
        np.testing.assert_allclose(exact.sds["n"], np.sqrt(weight @ (n - n_mean) ** 2), rtol=1e-8)
        assert exact.log_marginal == pytest.approx(np.log(chance.sum()), abs=1e-10)


def test_draws_of_an_unknown_number_have_the_exact_moments_and_forgetting_its_prior_is_seen():
    model = nw.models.UnknownSize(nw.models.Bernoulli(1.5, 0.6), upper=UPPER, lower=0, prior=PRIOR)
    flat = nw.models.UnknownSize(nw.models.Bernoulli(1.5, 0.6), upper=UPPER, lower=0)
    release = sized_release(*SIZED[0])
    draw = jax.jit(lambda sampler, keys: jax.vmap(sampler.draw)(keys).theta)
    keys = jax.random.split(jax.random.key(4), 4000)
    exact = Counts().build(model, release, KEY).exact()
    assert standardised(draw(Counts().build(model, release, KEY), keys), exact) < 4.5
    assert standardised(draw(Counts().build(flat, release, KEY), keys), exact) > 9


def test_naive_bayes_tables_of_unknown_number_match_a_sum_over_known_numbers():
    weights = np.exp(-0.2 * np.arange(7))
    inner = nw.models.NaiveBayes(2, [2, 3], prior=1.5)
    query = nw.queries.Counts(levels={"y": 2, "x1": 2, "x2": 3}, tables=[("y", "x1"), ("x2", "y")])
    value = [np.array([[1.7, 0.4], [2.2, -0.6]]), np.array([[0.3, 1.9], [2.2, 0.1], [-0.4, 1.0]])]
    known = []
    for n in range(1, 8):
        release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.2), value)], n=n)
        known.append(Counts().build(inner, release, KEY).exact())
    chance = weights / weights.sum() * np.exp([exact.log_marginal for exact in known])
    share = chance / chance.sum()
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.2), value)], n=None, neighbours="add_remove_one")
    found = Counts().build(nw.models.UnknownSize(inner, upper=7, lower=1, prior=weights), release, KEY).exact()
    assert found.log_marginal == pytest.approx(np.log(chance.sum()), abs=1e-10)
    np.testing.assert_allclose(found.means["n"], share @ np.arange(1, 8), rtol=1e-10)
    for name in ("class_probs", "feature_probs_1", "feature_probs_2"):
        means, sds = (
            np.array([np.asarray(getattr(exact, what)[name]) for exact in known]) for what in ("means", "sds")
        )
        mean = np.tensordot(share, means, 1)
        np.testing.assert_allclose(found.means[name], mean, rtol=1e-10)
        np.testing.assert_allclose(
            found.sds[name], np.sqrt(np.tensordot(share, sds**2 + (means - mean) ** 2, 1)), rtol=1e-9
        )
