"""Every density sums or integrates to one over the released values, and the simulators draw from it."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from mechanism_cases import CASES, SUMS
from scipy import integrate, special, stats

import noisewise as nw
from noisewise.release.mechanisms.norms import log_knorm_density, sample_knorm
from noisewise.release.mechanisms.tails import integer_log_tail, log_interval, quantile_of_log_tail, terms_of_tail
from noisewise.release.records import RecordNoise

RECORDS = {"y": jnp.asarray([1, 1, 0]), "x1": jnp.asarray([1, 0, 1])}
DRAWS = 20_000
ONE = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])


def log_densities(mechanism, values: np.ndarray) -> np.ndarray:
    """The log density of each of the values given ``RECORDS``."""

    def one(value):
        return mechanism.log_density(value, jnp.sum(mechanism.statistics(RECORDS, value), axis=0))

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(values)))


def responses(mechanism, released, size: int = DRAWS) -> np.ndarray:
    keys = jax.random.split(jax.random.key(3), size)
    return np.asarray(jax.jit(jax.vmap(lambda key: mechanism.respond(key, RECORDS, jnp.asarray(released))))(keys))


@eqx.filter_jit
def log_density_table(mechanism, values, totals):
    by_total = jax.vmap(lambda s, t: mechanism.log_density(s[None], t[None]), in_axes=(None, 0))
    return jax.vmap(by_total, in_axes=(0, None))(values, totals)


@eqx.filter_jit
def simulated(mechanism, key, total):
    return mechanism.simulate(key, total)


def of_totals(mechanism, values: np.ndarray) -> np.ndarray:
    """The density of single released numbers, of a mechanism on one number, given each of the totals 0.3 and -1.2."""
    return np.exp(np.asarray(log_density_table(mechanism, jnp.asarray(values), jnp.asarray([0.3, -1.2]))))


def gauss_legendre(*ends: float) -> tuple[np.ndarray, np.ndarray]:
    base, weight = np.polynomial.legendre.leggauss(60)
    parts = [(0.5 * (b - a) * base + 0.5 * (a + b), 0.5 * (b - a) * weight) for a, b in itertools.pairwise(ends)]
    return np.concatenate([node for node, _ in parts]), np.concatenate([weight for _, weight in parts])


@pytest.mark.parametrize("name", ["exponential", "exponential of scores"])
def test_exponential_mechanism_is_a_law_on_its_candidates_and_draws_from_it(name):
    mechanism = CASES[name].mechanism
    mass = np.exp(log_densities(mechanism, np.arange(mechanism.size, dtype=float)))
    assert np.sum(mass) == pytest.approx(1, abs=1e-12)
    counts = np.bincount(responses(mechanism, 0.0).astype(int), minlength=mechanism.size)
    assert stats.chisquare(counts, DRAWS * mass).pvalue > 1e-3
    assert stats.chisquare(counts, DRAWS * np.roll(mass, 1)).pvalue < 1e-9


def test_utilities_that_are_true_or_false_are_summed_as_numbers():
    """A sweep takes one record's row off the total and adds another's."""
    mechanism = nw.mechanisms.ExponentialMechanism(
        lambda record, c: record["x"] < c, [0.0, 1.0, 2.0], epsilon=1.0, sensitivity=1.0
    )
    rows = mechanism.statistics({"x": jnp.asarray([0, 1, 1])}, jnp.zeros(()))
    np.testing.assert_array_equal(np.asarray(rows[1] - rows[0]), [0.0, -1.0, 0.0])


def test_objective_perturbation_in_one_dimension_integrates_to_one_and_its_minimisers_follow_it():
    mechanism = CASES["objective, gaussian tilt"].mechanism
    grid = np.linspace(-100.0, 4.0, 40_001)
    density = np.exp(log_densities(mechanism, grid[:, None]))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-6)
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0)
    minimisers = responses(mechanism, [0.0], 4000)[:, 0]
    assert stats.kstest(minimisers, lambda s: np.interp(s, grid, cdf)).pvalue > 1e-3
    twin = np.exp(log_densities(CASES["objective, gaussian tilt"].twin, grid[:, None]))
    wrong = integrate.cumulative_trapezoid(twin, grid, initial=0)
    assert stats.kstest(minimisers, lambda s: np.interp(s, grid, wrong / wrong[-1])).pvalue < 1e-9


def test_objective_perturbation_in_two_dimensions_integrates_to_one_and_its_minimisers_are_stationary():
    """The tilt that a minimiser implies has a Gamma(2) length, as the l2 law says."""
    mechanism = CASES["objective, l2 tilt"].mechanism
    # the implied tilt stays within reach of ridge * s, so the map from tilt to s is integrated in polar coordinates of s
    radius, weight = gauss_legendre(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    angle = np.linspace(0, 2 * np.pi, 361)[:-1]
    points = radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    density = np.exp(log_densities(mechanism, points.reshape(-1, 2))).reshape(len(radius), -1)
    assert (radius * weight) @ np.sum(density, axis=1) * (angle[1] - angle[0]) == pytest.approx(1, abs=1e-3)
    minimisers = responses(mechanism, [0.0, 0.0], 2000)
    slopes = jax.vmap(lambda s: jnp.sum(mechanism.statistics(RECORDS, s), axis=0)[:2] + mechanism.ridge * s)
    tilts = np.asarray(slopes(jnp.asarray(minimisers)))
    lengths = np.linalg.norm(tilts, axis=1)
    assert stats.kstest(lengths, stats.gamma(2, scale=float(mechanism.scale)).cdf).pvalue > 1e-3
    assert stats.kstest(np.arctan2(*tilts.T), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("ball", "order"), [("l1", 1), ("l2", 2), ("linf", np.inf)])
def test_k_norm_noise_is_normalised_and_sampled(ball, order):
    """Importance sampling with independent Laplace numbers has mean one, and the norm of a draw is Gamma(d)."""
    d = 3
    rng = np.random.default_rng(5)
    points = rng.laplace(scale=4.0, size=(DRAWS, d))
    scale = jnp.asarray(1.3)
    log_density = jax.jit(jax.vmap(lambda r: log_knorm_density(r, scale, ball)))(points)
    ratio = np.exp(np.asarray(log_density) - stats.laplace.logpdf(points, scale=4.0).sum(1))
    assert abs(np.mean(ratio) - 1) < 4 * np.std(ratio) / np.sqrt(DRAWS)
    draws = np.asarray(
        jax.jit(jax.vmap(lambda key: sample_knorm(key, d, scale, ball)))(jax.random.split(jax.random.key(1), DRAWS))
    )
    lengths = np.linalg.norm(draws, ord=order, axis=1)
    assert stats.kstest(lengths, stats.gamma(d, scale=1.3).cdf).pvalue > 1e-3
    assert stats.kstest(lengths, stats.gamma(d + 1, scale=1.3).cdf).pvalue < 1e-9
    variance = float(nw.mechanisms.KNormNoise(nw.queries.Custom(lambda r: r["x"], d), 1.3, ball).noise_variance[0])
    squares = draws**2
    assert np.all(np.abs(squares.mean(0) - variance) < 5 * squares.std(0) / np.sqrt(DRAWS))


@pytest.mark.parametrize("ball", ["l1", "l2", "linf"])
def test_k_norm_noise_on_one_number_is_laplace(ball):
    density = log_knorm_density(jnp.asarray([-2.7]), jnp.asarray(1.3), ball)
    assert float(density) == pytest.approx(stats.laplace.logpdf(-2.7, scale=1.3), rel=1e-12)


LAWS = {
    "laplace": (nw.noise.Laplace(1.1), stats.laplace(scale=1.1)),
    "gaussian": (nw.noise.Gaussian(1.1), stats.norm(scale=1.1)),
}


def log_between(free, low, high):
    """``log P(low < noise <= high)`` of a symmetric SciPy law, from the nearer tail."""
    flip = low + high < 0
    near, far = np.where(flip, -high, low), np.where(flip, -low, high)
    return free.logsf(near) + np.log(-np.expm1(free.logsf(far) - free.logsf(near)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ends", [(-0.5, 1.0), (0.0, None), (None, 0.5)], ids=str)
def test_truncated_noise_integrates_to_one_and_is_simulated_by_its_inverse(law, ends):
    noise, free = LAWS[law]
    mechanism = nw.mechanisms.TruncatedNoise(ONE, noise, lower=ends[0], upper=ends[1])
    low, high = -np.inf if ends[0] is None else ends[0], np.inf if ends[1] is None else ends[1]
    reach = max(low, -60.0), min(high, 60.0)
    cuts = [c for c in (-30, -10, -4, -1.2, 0.3, 4, 10, 30) if reach[0] < c < reach[1]]
    nodes, weights = gauss_legendre(reach[0], *cuts, reach[1])
    np.testing.assert_allclose(weights @ of_totals(mechanism, nodes), 1, rtol=1e-9)
    for total in (0.3, -6.0, 40.0):
        draws = np.asarray(simulated(mechanism, jax.random.key(2), jnp.full(DRAWS, total)))
        whole = log_between(free, low - total, high - total)
        assert np.all((draws >= low) & (draws <= high))
        assert (
            stats.kstest(draws, lambda s, t=total, w=whole: np.exp(log_between(free, low - t, s - t) - w)).pvalue > 1e-3
        )


@pytest.mark.parametrize("name", ["truncated discrete laplace", "truncated discrete gaussian"])
def test_truncated_integer_noise_sums_to_one_and_draws_from_its_masses(name):
    noise = CASES[name].mechanism.noise
    mechanism = nw.mechanisms.TruncatedNoise(SUMS, noise, lower=-1.5, upper=2)
    support = np.stack(np.meshgrid(np.arange(-1.0, 3), np.arange(-1.0, 3), indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(log_densities(mechanism, support))
    assert np.sum(mass) == pytest.approx(1, abs=1e-12)
    draws = responses(mechanism, [0.0, 0.0])
    counts = np.bincount((4 * (draws[:, 0] + 1) + draws[:, 1] + 1).astype(int), minlength=16)
    assert stats.chisquare(counts, DRAWS * mass).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
def test_clipped_noise_has_point_masses_that_complete_its_density(law):
    noise, free = LAWS[law]
    mechanism = nw.mechanisms.CensoredNoise(ONE, noise, lower=-0.5, upper=1.5)
    nodes, weights = gauss_legendre(-0.5, 0.3, 1.5)
    atoms = of_totals(mechanism, np.asarray([-0.5, 1.5]))
    np.testing.assert_allclose(weights @ of_totals(mechanism, nodes) + atoms.sum(0), 1, rtol=1e-9)
    draws = np.asarray(simulated(mechanism, jax.random.key(4), jnp.full(DRAWS, 0.3)))
    found = np.asarray([np.mean(draws == -0.5), np.mean(draws == 1.5)])
    np.testing.assert_allclose(found, atoms[:, 0], atol=4 * np.sqrt(0.25 / DRAWS))
    assert stats.kstest(draws[(draws > -0.5) & (draws < 1.5)] - 0.3, free.cdf).pvalue < 1e-9


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ends", [(-1.0, 2.0), (None, None), (0.0, None)], ids=str)
def test_rounded_noise_sums_to_one_over_its_grid_and_draws_from_its_masses(law, ends):
    noise, _ = LAWS[law]
    mechanism = nw.mechanisms.CensoredNoise(ONE, noise, lower=ends[0], upper=ends[1], rounding=0.5)
    grid = 0.5 * np.arange(-120, 121)
    grid = grid[
        (grid >= (-np.inf if ends[0] is None else ends[0])) & (grid <= (np.inf if ends[1] is None else ends[1]))
    ]
    mass = of_totals(mechanism, grid)
    np.testing.assert_allclose(mass.sum(0), 1, rtol=1e-12)
    draws = np.asarray(simulated(mechanism, jax.random.key(4), jnp.full(DRAWS, -1.2)))
    counts = np.asarray([np.sum(draws == value) for value in grid])
    often = mass[:, 1] * DRAWS > 20
    expected = np.append(mass[often, 1] * DRAWS, DRAWS * (1 - mass[often, 1].sum()) + 1e-9)
    observed = np.append(counts[often], DRAWS - counts[often].sum())
    keep = expected > 1
    assert stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue > 1e-3


@pytest.mark.parametrize("name", ["clipped discrete laplace", "clipped discrete gaussian"])
def test_clipped_integer_noise_sums_to_one_and_draws_from_its_masses(name):
    noise = CASES[name].mechanism.noise
    mechanism = nw.mechanisms.CensoredNoise(SUMS, noise, lower=0, upper=3)
    support = np.stack(np.meshgrid(np.arange(0.0, 4), np.arange(0.0, 4), indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(log_densities(mechanism, support))
    assert np.sum(mass) == pytest.approx(1, abs=1e-12)
    draws = responses(mechanism, [0.0, 0.0])
    counts = np.bincount((4 * draws[:, 0] + draws[:, 1]).astype(int), minlength=16)
    assert stats.chisquare(counts, DRAWS * mass).pvalue > 1e-3


@pytest.mark.parametrize("levels", [2, 3])
def test_randomised_response_is_a_law_on_reports(levels):
    mechanism = RecordNoise(nw.queries.Records(columns=("x1",)), nw.noise.RandomisedResponse(0.3, levels))
    reports = np.stack(np.meshgrid(*[np.arange(float(levels))] * 3, indexing="ij"), axis=-1).reshape(-1, 3, 1)
    mass = np.exp(log_densities(mechanism, reports))
    assert np.sum(mass) == pytest.approx(1, abs=1e-12)
    draws = responses(mechanism, np.zeros((3, 1)))[..., 0]
    counts = np.bincount((draws @ levels ** np.arange(2, -1, -1)).astype(int), minlength=levels**3)
    assert stats.chisquare(counts, DRAWS * mass).pvalue > 1e-3


def test_the_normaliser_of_a_k_norm_gradient_is_constant_for_a_location_loss_only():
    """The integral over s of ``exp(-|sum of gradients|)`` for two databases, for a mean and for a mean of another scale."""
    nodes, weights = gauss_legendre(-40, -10, -2, 0, 0.5, 1, 2, 10, 40)
    integrals = {}
    for name, loss in {
        "location": lambda record, s: 0.5 * (record["x1"] - s[0]) ** 2,
        "scale": lambda record, s: 0.5 * (1 + record["x1"]) * (record["x1"] - s[0]) ** 2,
    }.items():
        mechanism = nw.mechanisms.KNormGradient(
            loss, 1, epsilon=2.0, sensitivity=1.0, normaliser="constant", columns=("x1",)
        )
        at = jax.vmap(
            lambda s, x, m=mechanism: m.log_density(s, jnp.sum(m.statistics({"x1": x}, s), axis=0)), (0, None)
        )
        integrals[name] = [weights @ np.exp(np.asarray(at(nodes[:, None], jnp.asarray(x)))) for x in ([0, 0], [1, 1])]
    assert integrals["location"][0] == pytest.approx(integrals["location"][1], rel=1e-3)
    assert integrals["scale"][0] > 1.5 * integrals["scale"][1]


def test_scales_in_the_form_of_a_table_are_those_of_its_cells():
    counts = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
    for law in (nw.mechanisms.CensoredNoise, nw.mechanisms.TruncatedNoise):
        rows, table = (law(counts, nw.noise.Laplace(scale), lower=0) for scale in ([1, 2, 3, 4], [[1, 2], [3, 4]]))
        at = jnp.asarray([0.0, 2.0, 0.4, 7.0]), jnp.asarray([1.0, 2.0, 3.0, 4.0])
        assert float(rows.log_density(*at)) == float(table.log_density(*at))


def test_tails_keep_their_digits():
    """Against MPMath, a hundred scales out on either side."""
    low = np.asarray([-100.0, -37.0, -0.1, 0.0, 2.0, 60.0, 100.0])
    high = low + np.asarray([1.0, 30.0, 0.2, 1e-6, 0.5, 1e-3, 50.0])
    with mpmath.workdps(60):
        by_law = {
            "laplace": lambda a: (
                mpmath.exp(-a / mpmath.mpf("1.1")) / 2 if a > 0 else 1 - mpmath.exp(a / mpmath.mpf("1.1")) / 2
            ),
            "gaussian": lambda a: mpmath.erfc(a / mpmath.mpf("1.1") / mpmath.sqrt(2)) / 2,
        }
        for law, sf in by_law.items():
            expected = [
                float(mpmath.log(sf(mpmath.mpf(a)) - sf(mpmath.mpf(b))))
                if b + a > 0
                else float(mpmath.log(sf(mpmath.mpf(-b)) - sf(mpmath.mpf(-a))))
                for a, b in zip(low, high, strict=True)
            ]
            noise = LAWS[law][0]
            np.testing.assert_allclose(log_interval(noise, jnp.asarray(low), jnp.asarray(high)), expected, rtol=1e-9)
    at = jnp.asarray([-3.0, -0.5, 0.0, 0.7, 5.0, 40.0, 400.0])
    for noise, free in LAWS.values():
        np.testing.assert_allclose(quantile_of_log_tail(noise, jnp.asarray(free.logsf(at))), at, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", [nw.noise.DiscreteLaplace(1.7), nw.noise.DiscreteGaussian(2.4)])
@pytest.mark.parametrize("ends", [{"lower": 0}, {"upper": -1}])
def test_integers_drawn_again_at_one_end_have_the_law_of_the_rest(noise, ends):
    mechanism = nw.mechanisms.TruncatedNoise(ONE, noise, **ends)
    inside = np.arange(0.0, 200.0) if "lower" in ends else np.arange(-200.0, 0.0)
    for total in (-40.0, -3.0, 0.0, 4.0, 30.0):
        found = np.asarray(log_density_table(mechanism, jnp.asarray(inside), jnp.asarray([total])))[:, 0]
        free = np.asarray(noise.log_prob(jnp.asarray(inside - total)))
        np.testing.assert_allclose(found, free - special.logsumexp(free), rtol=1e-10, atol=1e-12)
        drawn = np.asarray(simulated(mechanism, jax.random.key(2), jnp.full(DRAWS, total)))
        assert drawn.min() >= inside[0]
        assert drawn.max() <= inside[-1]
        mass = np.exp(found)
        mean, sd = mass @ inside, np.sqrt(mass @ inside**2 - (mass @ inside) ** 2)
        assert abs(drawn.mean() - mean) < 4 * sd / np.sqrt(DRAWS)
        likely = inside[np.argmax(mass)]
        assert abs(np.mean(drawn == likely) - mass.max()) < 4 * np.sqrt(mass.max() / DRAWS)
        if total == 0.0:
            # the density without its normaliser is another one, and draws tell
            assert abs(np.mean(drawn == likely) - np.exp(free).max()) > 10 * np.sqrt(mass.max() / DRAWS)


@pytest.mark.parametrize("noise", [nw.noise.DiscreteLaplace(1.7), nw.noise.DiscreteGaussian(2.4)])
def test_integer_tails_are_sums_of_masses(noise):
    at = np.arange(-30.0, 31)
    beyond = np.asarray(noise.log_prob(jnp.arange(-300.0, 301)))
    expected = [special.logsumexp(beyond[int(k) + 300 :]) for k in at]
    np.testing.assert_allclose(
        integer_log_tail(noise, jnp.asarray(at), terms_of_tail(noise)), expected, rtol=1e-10, atol=1e-13
    )


def test_privacy_is_known_where_it_can_be():
    laplace = nw.noise.Laplace(4.0)
    counts = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    three = nw.queries.Moments({"x": nw.Column(-1, 1), "y": nw.Column(0, 3)}, [{"x": 1}, {"y": 1}])
    known = {
        "censored": (nw.mechanisms.CensoredNoise(counts, laplace, lower=0, rounding=1), 2 / 4),
        "truncated": (nw.mechanisms.TruncatedNoise(counts, laplace, lower=0), 2 * 2 / 4),
        "largest": (nw.mechanisms.KNormNoise(three, 4.0, "linf"), 3 / 4),
        "sum": (nw.mechanisms.KNormNoise(three, 4.0, "l1"), 5 / 4),
        "length": (nw.mechanisms.KNormNoise(three, 4.0, "l2"), np.sqrt(13) / 4),
        "chosen": (CASES["exponential"].mechanism, 3.0),
        "gradient": (CASES["k-norm gradient, location"].mechanism, 2.0),
        "reports": (CASES["randomised response"].mechanism, 2 * np.log(0.7 / 0.3)),
    }
    for mechanism, epsilon in known.values():
        guarantee = mechanism.privacy("replace_one")
        assert guarantee.measure == "pure"
        assert float(guarantee.loss) == pytest.approx(epsilon, rel=1e-12)
    gaussian = nw.mechanisms.CensoredNoise(counts, nw.noise.Gaussian(2.0), lower=0)
    assert gaussian.privacy("replace_one").measure == "zcdp"
    custom = nw.queries.Custom(lambda record: record["x"], 2)
    unknown = [
        nw.mechanisms.TruncatedNoise(counts, nw.noise.Gaussian(2.0), lower=0),
        nw.mechanisms.KNormNoise(custom, 1.0, "linf"),
        CASES["objective, l2 tilt"].mechanism,
    ]
    assert [mechanism.privacy("replace_one") for mechanism in unknown] == [None] * 3
    assert CASES["randomised response"].mechanism.privacy("add_remove_one") is None


def test_the_truncated_laplace_bound_holds_and_is_more_than_the_free_loss():
    """The largest log ratio of two truncated densities whose totals differ by one, over totals and values."""
    mechanism = nw.mechanisms.TruncatedNoise(ONE, nw.noise.Laplace(1.0), lower=0, upper=10)
    totals, values = jnp.linspace(-3, 13, 161), jnp.linspace(0, 10, 101)
    table = log_density_table(mechanism, values, totals)
    worst = float(jnp.max(jnp.abs(table[:, 10:] - table[:, :-10])))
    assert 1.4 < worst <= float(mechanism.privacy("replace_one").loss) + 1e-12
