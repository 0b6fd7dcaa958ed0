"""Accounting against mpmath, quadrature and dp-accounting; every accountant monotone in each argument."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from noisewise.private import accounting, losses
from noisewise.private.ledger import (
    BarkerStep,
    BatchGaussianStep,
    GaussianStep,
    affordable,
    choose,
    repeated,
    spent_delta,
    spent_epsilon,
)

mpmath.mp.dps = 50
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0)
DELTAS = (1e-7, 1e-6, 1e-5)


def precise_delta(epsilon, mu):
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
    root = 2 * mpmath.sqrt(mu)
    return (mpmath.erfc((epsilon - mu) / root) - mpmath.exp(epsilon) * mpmath.erfc((epsilon + mu) / root)) / 2


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gaussian_delta_matches_fifty_digits(epsilon):
    for mu in np.geomspace(1e-5, 100, 40):
        exact = precise_delta(epsilon, mu)
        if exact > mpmath.mpf("1e-250"):
            assert abs(accounting.gaussian_delta(epsilon, mu) / exact - 1) < 1e-8


@pytest.mark.parametrize(("epsilon", "delta"), list(itertools.product(EPSILONS, DELTAS)))
def test_max_mu_and_gaussian_epsilon_invert_the_fifty_digit_delta(epsilon, delta):
    mu = accounting.max_mu(epsilon, delta)
    assert precise_delta(epsilon, mu) <= delta * (1 + 1e-10)
    exact = mpmath.findroot(
        lambda x: mpmath.log(precise_delta(epsilon, x) / delta), (mu * 0.9, mu * 1.1), solver="secant"
    )
    assert mu == pytest.approx(float(exact), rel=1e-11)
    assert accounting.gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.5])
def test_faint_noise_costs_keep_their_digits_and_are_inverted_without_end(delta):
    """Costs so small that the two terms of delta agree to 15 digits: their difference said nothing, and a search for epsilon crept."""
    for mu in np.geomspace(1e-40, 1e-3, 38):
        for epsilon in (0.0, 0.1 * math.sqrt(mu), 5 * math.sqrt(mu)):
            exact = precise_delta(epsilon, mu)
            assert accounting.gaussian_delta(epsilon, float(mu)) == pytest.approx(float(exact), rel=1e-12)
        epsilon = accounting.gaussian_epsilon(float(mu), delta)
        assert precise_delta(epsilon, mu) <= delta * (1 + 1e-12)
        if epsilon > 0:
            assert precise_delta(epsilon - 1e-12 * accounting.zcdp_epsilon(float(mu), delta), mu) > delta * (1 - 1e-12)
    for epsilon in (1e-30, 1e-10, 1e-3, 50.0):
        mu = accounting.max_mu(epsilon, delta)
        assert abs(precise_delta(epsilon, mu) / delta - 1) < 1e-12
    assert accounting.gaussian_epsilon(1e300, delta) == pytest.approx(1e300)


def test_thousands_of_steps_cost_their_sum():
    step = GaussianStep(sensitivity=2.0, scale=63.0)
    for count in (1, 1000, 5000):
        mu = mpmath.mpf(count) * (mpmath.mpf(2) / 63) ** 2 / 2
        assert spent_delta(repeated([step], count), 4.0) == pytest.approx(float(precise_delta(4.0, mu)), rel=1e-9)
    mixed = [GaussianStep(2.0, 63.0, 10), GaussianStep(1.0, 9.0, 40)]
    mu = 10 * (mpmath.mpf(2) / 63) ** 2 / 2 + 40 * mpmath.mpf(1) / 81 / 2
    assert spent_epsilon(mixed, 1e-6) == pytest.approx(accounting.gaussian_epsilon(float(mu), 1e-6), rel=1e-12)


@pytest.mark.parametrize("count", [1, 20, 3000])
def test_tight_bound_equals_dp_accounting_where_both_apply(count):
    """Each epsilon at the noise that makes its delta 1e-5 exactly, so that no other digit could hide a difference."""
    from dp_accounting.pld import privacy_loss_distribution

    for epsilon in (0.1, 1.0, 6.0):
        mu = accounting.max_mu(epsilon, 1e-5)
        scale = math.sqrt(0.5 * count / mu)
        one = privacy_loss_distribution.from_gaussian_mechanism(
            scale, sensitivity=1.0, value_discretization_interval=5e-5 if count < 100 else 5e-6
        )
        theirs = one.self_compose(count).get_delta_for_epsilon(epsilon)
        ours = spent_delta([GaussianStep(1.0, scale, count)], epsilon)
        assert ours == pytest.approx(theirs, abs=1e-8)
        assert ours <= theirs + 1e-12  # theirs rounds up


@pytest.mark.parametrize(("epsilon", "delta"), list(itertools.product(EPSILONS, DELTAS)))
def test_zcdp_conversions_match_fifty_digits(epsilon, delta):
    rho = (mpmath.sqrt(mpmath.mpf(epsilon) - mpmath.log(delta)) - mpmath.sqrt(-mpmath.log(delta))) ** 2
    assert accounting.zcdp_rho(epsilon, delta) == pytest.approx(float(rho), rel=1e-13)
    assert accounting.zcdp_epsilon(float(rho), delta) == pytest.approx(epsilon, rel=1e-12)
    assert accounting.zcdp_delta(epsilon, float(rho)) == pytest.approx(delta, rel=1e-9)

    def bound(alpha):
        return alpha * rho + mpmath.log(1 - 1 / alpha) - (mpmath.log(delta) + mpmath.log(alpha)) / (alpha - 1)

    improved = accounting.zcdp_epsilon(float(rho), delta, conversion="improved")
    centre = 1 + mpmath.sqrt(-mpmath.log(delta) / rho)
    least = min(bound(1 + (centre - 1) * mpmath.mpf(factor)) for factor in np.geomspace(0.3, 3, 2001))
    assert improved == pytest.approx(float(least), rel=1e-6)
    assert accounting.gaussian_epsilon(float(rho), delta) <= improved < epsilon  # tight, then improved, then the thesis


def test_rdp_conversions_match_fifty_digits():
    costs = [accounting.rdp_gaussian(order, 0.07) for order in accounting.ORDERS]
    for delta in DELTAS:
        thesis = min(mpmath.mpf(c) - mpmath.log(delta) / (a - 1) for a, c in zip(accounting.ORDERS, costs, strict=True))
        better = min(
            mpmath.mpf(c) + mpmath.log(1 - mpmath.mpf(1) / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)
            for a, c in zip(accounting.ORDERS, costs, strict=True)
        )
        assert accounting.rdp_epsilon(costs, delta) == pytest.approx(float(thesis), rel=1e-12)
        assert accounting.rdp_epsilon(costs, delta, conversion="improved") == pytest.approx(float(better), rel=1e-12)
        for conversion in ("thesis", "improved"):
            epsilon = accounting.rdp_epsilon(costs, delta, conversion=conversion)
            assert accounting.rdp_delta(epsilon, costs, conversion=conversion) == pytest.approx(delta, rel=1e-10)


def precise_subsampled(order, q, rdp):
    q = mpmath.mpf(q)
    total = 1 + q**2 * mpmath.binomial(order, 2) * min(4 * (mpmath.exp(rdp(2)) - 1), 2 * mpmath.exp(rdp(2)))
    for j in range(3, order + 1):
        total += 2 * q**j * mpmath.binomial(order, j) * mpmath.exp((j - 1) * rdp(j))
    return mpmath.log(total) / (order - 1)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0])
def test_subsampled_rdp_matches_fifty_digits(mu):
    for order in (2, 3, 8, 40, 128):
        exact = min(
            precise_subsampled(order, mpmath.mpf(1) / 100, lambda j: mpmath.mpf(mu) * j), mpmath.mpf(mu) * order
        )
        ours = accounting.rdp_subsampled(order, 100, 10_000, lambda j: mu * j)
        assert ours == pytest.approx(float(exact), rel=1e-10)


def precise_barker(order, batch):
    room = mpmath.mpf(batch) - 5 * order
    return mpmath.mpf(5) / (2 * batch) + mpmath.log(2 * batch / room) / (2 * (order - 1)) + 2 * order / room


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-7), (1.0, 1e-6), (6.0, 1e-5)])
def test_thousands_of_subsampled_steps_cost_what_fifty_digits_say(epsilon, delta):
    """Batches and Barker together, 3,000 of each, both conversions; the least over the orders taken in full precision."""
    steps = [BatchGaussianStep(2.0, 2.4, 100, 100_000, 3000), BarkerStep(600, 200_000, 3000)]
    mu, once = mpmath.mpf(2) ** 2 / (2 * mpmath.mpf(2.4) ** 2), mpmath.mpf(1) / 1000
    totals = {}
    for order in accounting.ORDERS:
        if order < 80:
            batch = min(precise_subsampled(order, once, lambda j: mu * j), mu * order)
            barker = min(
                precise_subsampled(order, mpmath.mpf(3) / 1000, lambda j: precise_barker(j, 600)),
                precise_barker(order, 600),
            )
            totals[order] = 3000 * (batch + barker)
    exact = {
        "rdp": min(cost - mpmath.log(delta) / (a - 1) for a, cost in totals.items()),
        "rdp_improved": min(
            cost + mpmath.log(1 - mpmath.mpf(1) / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)
            for a, cost in totals.items()
        ),
    }
    for name, wanted in exact.items():
        assert spent_epsilon(steps, delta, name) == pytest.approx(float(wanted), rel=1e-9)
        assert spent_delta(steps, float(wanted), name) == pytest.approx(delta, rel=1e-6)
        assert (spent_delta(steps, epsilon, name) <= delta) == (float(wanted) <= epsilon)


def test_thousands_of_batches_by_a_privacy_loss_grid_of_our_own():
    """The symmetric pair on a fine grid of z, its losses shared between neighbouring points of a grid so that their mean is
    kept, composed by one power of a Fourier transform: neither rounding up nor a line of dp-accounting."""
    q, s, count, epsilons = 0.01, 0.84, 2000, np.array([1.0, 3.0, 6.0])
    z = np.linspace(-1 - 12 * s, 1 + 12 * s, 400_001)
    plus, minus, middle = (norm.pdf(z, mean, s) for mean in (1, -1, 0))
    loss = np.log((q * plus + (1 - q) * middle) / (q * minus + (1 - q) * middle))
    mass = (q * plus + (1 - q) * middle) * (z[1] - z[0])
    size, step = 2**20, 2e-4
    place = loss / step + size / 2
    low = np.floor(place).astype(int)
    grid = np.bincount(low, mass * (1 - place + low), size) + np.bincount(low + 1, mass * (place - low), size)
    composed = np.fft.irfft(np.fft.rfft(np.roll(grid, size // 2)) ** count, size)
    losses_of_all = step * (np.arange(size) - size * (np.arange(size) >= size // 2))
    one = losses.pld_subsampled(sensitivity=1.0, scale=s, batch=1000, n=100_000)
    for epsilon in epsilons:
        above = losses_of_all > epsilon
        exact = np.sum(composed[above] * -np.expm1(epsilon - losses_of_all[above]))
        assert losses.pld_delta(one, epsilon=epsilon, count=count) == pytest.approx(exact, rel=2e-3, abs=1e-9)
        assert losses.pld_delta(one, epsilon=epsilon, count=count // 2) < 0.7 * exact


def renyi_by_quadrature(order, p, q):
    """D_order(p || q) of two densities on the line."""

    def integrand(z):
        return math.exp(order * p(z) + (1 - order) * q(z))

    return math.log(quad(integrand, -30, 60, limit=400, points=[-1, 0, 1, order])[0]) / (order - 1)


def test_subsampled_rdp_bounds_the_divergence_of_the_worst_pairs():
    q, s = 0.05, 1.5

    def log_mix(mean):
        return lambda z: float(
            np.logaddexp(math.log(q) + norm.logpdf(z, mean, s), math.log1p(-q) + norm.logpdf(z, 0, s))
        )

    def log_plain(z):
        return float(norm.logpdf(z, 0, s))

    for order in (2, 4, 8):
        bound = accounting.rdp_subsampled(order, 50, 1000, lambda j: 0.5 * j / s**2)
        assert renyi_by_quadrature(order, log_mix(1.0), log_plain) < bound
        assert renyi_by_quadrature(order, log_plain, log_mix(1.0)) < bound
        assert renyi_by_quadrature(order, log_mix(0.5), log_mix(-0.5)) < bound


@pytest.mark.parametrize("batch", [500, 1300, 2600])
def test_barker_rdp_bounds_every_pair_of_normals_a_substitution_can_make(batch):
    """Renyi divergence of N(m, v) and N(m', v'), |m-m'| <= 2/sqrt(b), v in [1, 2], |v-v'| <= 4(b-1)/b^2, in closed form."""
    shift, change = 2 / math.sqrt(batch), 4 * (batch - 1) / batch**2
    for order in (2, 3, 8, 32, min(90, batch // 5 - 1)):
        worst = 0.0
        for v in np.linspace(1, 2, 21):
            for w in (v - change, v, v + change):
                if not 1 <= w <= 2:
                    continue
                middle = order * w + (1 - order) * v
                logs = math.log(middle) - (1 - order) * math.log(v) - order * math.log(w)
                worst = max(worst, order * shift**2 / (2 * middle) + logs / (2 * (1 - order)))
        assert 0 < worst <= accounting.rdp_barker(order, batch)


def test_poisson_pair_dominates_the_exact_worst_case_without_replacement():
    one = losses.pld_subsampled(sensitivity=1.0, scale=0.9, batch=100, n=10_000, pair="poisson")
    epsilon = np.linspace(0, 4, 81)
    profile = losses.without_replacement_profile(epsilon, 0.9, 0.01)
    assert all(one.get_delta_for_epsilon(e) >= p for e, p in zip(epsilon, profile, strict=True))


@pytest.mark.parametrize("multiplier", [0.7, 2.0])
def test_without_replacement_profile_is_the_hockey_stick_of_the_mixture_by_quadrature(multiplier):
    """H_a(q N(1) + (1-q) N(0) || N(0)): a pair of neighbours that attains the bound of advanced joint convexity."""
    q = 0.02
    for epsilon in (0.0, 0.01, 0.1, 1.0):

        def gap(z, epsilon=epsilon):
            mix = q * norm.pdf(z, 1, multiplier) + (1 - q) * norm.pdf(z, 0, multiplier)
            return max(0.0, mix - math.exp(epsilon) * norm.pdf(z, 0, multiplier))

        root = multiplier**2 * math.log((math.expm1(epsilon) + q) / q) + 0.5
        exact = quad(gap, root, root + 12 * multiplier, epsabs=1e-14)[0]
        ours = float(losses.without_replacement_profile(np.array([epsilon]), multiplier, q)[0])
        assert ours == pytest.approx(exact, rel=1e-7)


def test_without_replacement_distribution_reproduces_its_profile_and_beats_the_conservative_one():
    settings = {"sensitivity": 1.0, "scale": 0.84, "batch": 1000, "n": 100_000}
    tight = losses.pld_subsampled(**settings, pair="without_replacement")
    safe = losses.pld_subsampled(**settings, pair="poisson")
    grid = np.array([0.0, 0.1, 1.0, 2.0])
    for e, p in zip(grid, losses.without_replacement_profile(grid, 0.84, 0.01), strict=True):
        assert tight.get_delta_for_epsilon(e) == pytest.approx(p, rel=1e-6)
    for epsilon in (0.5, 1.0):
        assert losses.pld_delta(tight, epsilon=epsilon, count=300) < losses.pld_delta(safe, epsilon=epsilon, count=300)


def test_a_gaussian_distribution_composes_with_itself_into_the_closed_form():
    half = losses.pld_gaussian(0.02)
    assert losses.pld_delta(half, epsilon=1.0, count=2) == pytest.approx(accounting.gaussian_delta(1.0, 0.04), rel=1e-4)
    assert losses.pld_delta(half, epsilon=1.0, count=2) >= accounting.gaussian_delta(1.0, 0.04)


def test_every_accountant_is_monotone_in_each_argument():
    full = {"scale": (4.0, 5.0, 7.0), "sensitivity": (1.0, 0.9, 0.5)}
    batch = {
        "scale": (0.9, 1.2, 2.0),
        "sensitivity": (1.0, 0.8, 0.5),
        "batch": (500, 300, 100),
        "n": (50_000, 80_000, 200_000),
    }
    cases = [(name, GaussianStep(1.0, 4.0, 3), full) for name in ("tight", "zcdp", "rdp", "rdp_improved")]
    cases += [
        (name, BatchGaussianStep(1.0, 0.9, 500, 50_000, 20), batch)
        for name in ("pld", "pld_without_replacement", "rdp", "rdp_improved")
    ]
    for name, step, grid in cases:
        for field, values in grid.items():
            less_and_less = [spent_delta([type(step)(**{**vars(step), field: value})], 1.0, name) for value in values]
            assert less_and_less[0] > less_and_less[1] > less_and_less[2], (name, field)
        more = [spent_delta([type(step)(**{**vars(step), "count": count})], 1.0, name) for count in (5, 10, 40)]
        assert more[0] < more[1] < more[2], name
        wider = [spent_delta([step], epsilon, name) for epsilon in (0.8, 1.0, 1.5)]
        assert wider[0] > wider[1] > wider[2], name
        dearer = [spent_epsilon([step], delta, name) for delta in (1e-7, 1e-6, 1e-5)]
        assert dearer[0] > dearer[1] > dearer[2], name


def test_the_tight_accountant_allows_the_most_iterations_and_the_last_one_it_allows_is_the_last():
    step = GaussianStep(2.0, 2 * 0.1 * math.sqrt(100_000))
    counts = {name: affordable([step], epsilon=4.0, delta=1e-6, accountant=name) for name in ("tight", "zcdp", "rdp")}
    assert counts["tight"] > counts["zcdp"] >= counts["rdp"] > 0
    assert counts["tight"] == math.floor(accounting.max_mu(4.0, 1e-6) / step.mu)
    assert spent_delta(repeated([step], counts["tight"]), 4.0) <= 1e-6
    assert spent_delta(repeated([step], counts["tight"] + 1), 4.0) > 1e-6


def test_a_mixed_ledger_is_charged_as_a_whole():
    gaussian, batch, barker = (
        GaussianStep(1.0, 20.0, 30),
        BatchGaussianStep(1.0, 1.0, 100, 10_000, 50),
        BarkerStep(1000, 100_000, 5),
    )
    assert choose([gaussian, batch]) == "pld"
    assert choose([gaussian, batch, barker]) == "rdp_improved"
    both = spent_delta([gaussian, batch], 1.0)
    assert both > max(spent_delta([gaussian], 1.0, "pld"), spent_delta([batch], 1.0, "pld"))
    with pytest.raises(ValueError, match="cannot account for BarkerStep"):
        choose([barker], "tight")


@pytest.mark.parametrize("delta", [0, 1, -1e-6, float("nan")])
def test_a_delta_that_promises_nothing_or_cannot_be_kept_is_refused(delta):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        accounting.max_mu(1.0, delta)


def test_a_conversion_that_is_not_known_is_refused():
    for call in (
        lambda: accounting.zcdp_epsilon(0.1, 1e-6, conversion="best"),
        lambda: accounting.rdp_epsilon([1.0], 1e-6, orders=[2], conversion="best"),
        lambda: accounting.rdp_delta(1.0, [1.0], orders=[2], conversion="best"),
    ):
        with pytest.raises(ValueError, match="conversion must be"):
            call()


def test_a_release_too_loud_for_a_privacy_loss_grid_is_refused_before_it_fills_the_memory():
    for pair in ("poisson", "without_replacement"):
        with pytest.raises(ValueError, match="can hold"):
            losses.pld_subsampled(sensitivity=1.0, scale=1e-3, batch=10, n=100, pair=pair)


def test_a_broken_relation_is_seen():
    """Reading the noise as relative to one record's bound b, when a substitution moves the sum by 2b, overstates privacy."""
    right, broken = GaussianStep(2.0, 20.0, 50), GaussianStep(1.0, 20.0, 50)
    exact = float(precise_delta(1.0, mpmath.mpf(50) * 4 / 400 / 2))
    assert spent_delta([right], 1.0) == pytest.approx(exact, rel=1e-9)
    assert spent_delta([broken], 1.0) < 0.2 * exact


def test_dp_accounting_reads_a_sensitivity_under_replace_one_as_one_records_so_we_convert_in_one_place():
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        5.0, sensitivity=1.0, neighboring_relation=NeighboringRelation.REPLACE_ONE
    )
    assert theirs.get_delta_for_epsilon(0.3) == pytest.approx(
        accounting.gaussian_delta(0.3, 0.5 * (2 / 5) ** 2), rel=1e-5
    )
