"""The noise laws against arbitrary-precision arithmetic, and their calibration against the guarantees it must give."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.release import privacy

SCALES = [1e-200, 1e-4, 0.05, 0.3, 0.7499, 0.75, 0.8, 1.0, 2.5, 40.0, 1e4, 1e200]
INTEGERS = [0, 1, -1, 2, -7, 40, -1000, 10**6]
mp.mp.dps = 60


@eqx.filter_jit
def log_prob(noise, residual):
    """Compiled: one program for each law and shape."""
    return noise.log_prob(residual)


@eqx.filter_jit
def sampled(noise, key):
    """Twenty thousand simulated draws."""
    return noise.sample(key, (20_000,))


@eqx.filter_jit
def moments(noise, frequency):
    """The variance and the characteristic function."""
    return noise.variance, noise.characteristic(frequency)


def exact_log_prob(law: str, scale: float, r: float) -> mp.mpf:
    s, r = mp.mpf(scale), mp.mpf(r)
    if law == "Laplace":
        return -abs(r) / s - mp.log(2 * s)
    if law == "Gaussian":
        return -(r**2) / (2 * s**2) - mp.log(s * mp.sqrt(2 * mp.pi))
    if law == "DiscreteLaplace":
        return -abs(r) / s + mp.log(mp.tanh(1 / (2 * s)))
    return -(r**2) / (2 * s**2) - mp.log(theta(s))


def theta(s: mp.mpf) -> mp.mpf:
    """The normaliser of the discrete Gaussian, by the third Jacobi theta function."""
    if s < 1e-3:
        return mp.mpf(1)
    return mp.jtheta(3, 0, mp.exp(-1 / (2 * s**2))) if s < 30 else s * mp.sqrt(2 * mp.pi)


@pytest.mark.parametrize("law", ["Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian"])
def test_log_prob_keeps_its_digits_far_into_both_tails(law):
    scales = np.asarray(SCALES)[:, None]
    residuals = np.asarray(INTEGERS if law.startswith("Discrete") else [*INTEGERS, 0.37, -1e-9, 1e8], dtype=float)
    found = np.asarray(log_prob(getattr(nw.noise, law)(scales), residuals))
    wanted = [[exact_log_prob(law, float(s), float(r)) for r in residuals] for s in SCALES]
    np.testing.assert_allclose(found, np.asarray(wanted, dtype=float), rtol=2e-14, atol=1e-15)


@pytest.mark.parametrize("law", ["DiscreteLaplace", "DiscreteGaussian"])
def test_integer_laws_give_no_mass_off_the_integers(law):
    noise = getattr(nw.noise, law)(3.0)
    assert np.all(np.isneginf(log_prob(noise, jnp.asarray([0.5, -1.25, 1e-6]))))
    assert np.isfinite(log_prob(noise, jnp.asarray([1e6 + 1e-6] * 3))[0])  # rounding of a large float sum


def test_discrete_gaussian_is_normalised_and_wrongly_normalised_twin_is_not():
    k = jnp.arange(-400, 401.0)
    for scale in (0.2, 0.74, 0.76, 3.0):
        assert float(jnp.sum(jnp.exp(log_prob(nw.noise.DiscreteGaussian(scale), k)))) == pytest.approx(1, abs=1e-14)
    twin = float(jnp.sum(jnp.exp(log_prob(nw.noise.Gaussian(0.4), k))))  # the continuous density read as a mass
    assert abs(twin - 1) > 1e-3


def integral(law: str, scale: float, function) -> float:
    """E function(e) by summation or quadrature, in 60 digits."""
    if law.startswith("Discrete"):
        top = int(60 * scale + 60) if law == "DiscreteGaussian" else int(140 * scale + 60)
        return float(mp.fsum(mp.exp(exact_log_prob(law, scale, k)) * function(k) for k in range(-top, top + 1)))
    grid = [k * scale for k in (-150, -40, -10, -3, 0, 3, 10, 40, 150)]
    return float(mp.quad(lambda r: mp.exp(exact_log_prob(law, scale, r)) * function(r), grid))


@pytest.mark.parametrize("law", ["Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian"])
@pytest.mark.parametrize("scale", [0.3, 0.76, 2.0])
def test_variance_and_characteristic_function_are_those_of_the_law(law, scale):
    frequencies = np.asarray([1e-3, 0.4, 3.0])
    variance, characteristic = moments(getattr(nw.noise, law)(scale), frequencies)
    with mp.workdps(25):
        assert float(variance) == pytest.approx(integral(law, scale, lambda r: r * r), rel=1e-12)
        for frequency, found in zip(frequencies.tolist(), characteristic, strict=True):
            wanted = integral(law, scale, lambda r, v=frequency: mp.cos(mp.mpf(v) * r))
            assert float(found) == pytest.approx(wanted, rel=1e-11, abs=1e-15)


def test_tiny_scales_of_integer_laws_are_points_at_zero():
    for law in (nw.noise.DiscreteLaplace, nw.noise.DiscreteGaussian):
        variance, characteristic = moments(law(1e-4), np.asarray([1e-3, 0.4, 3.0]))
        assert float(variance) == 0.0
        assert characteristic.tolist() == [1.0, 1.0, 1.0]


def test_variances_of_wide_integer_laws_are_those_of_the_continuous_ones():
    for law, wanted in ((nw.noise.DiscreteLaplace, 2e200), (nw.noise.DiscreteGaussian, 1e200)):
        assert float(law(1e100).variance) == pytest.approx(wanted, rel=1e-14)


def chi_square_p(law: str, sampled: np.ndarray, scale: float) -> float:
    """P-value of the integers seen against the law's masses, the tails pooled."""
    edge = int(4 * scale)
    mass = np.exp(log_prob(getattr(nw.noise, law)(scale), jnp.arange(-edge, edge + 1.0)))
    counts = np.asarray([np.sum(sampled == k) for k in range(-edge, edge + 1)])
    observed = np.append(counts, sampled.size - counts.sum())
    return float(stats.chisquare(observed, sampled.size * np.append(mass, 1 - mass.sum())).pvalue)


def test_samples_follow_their_law_and_a_wrong_law_is_seen():
    draws = {
        law: np.asarray(sampled(getattr(nw.noise, law)(1.7), jax.random.key(8)))
        for law in ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")
    }
    assert stats.kstest(draws["Laplace"], stats.laplace(scale=1.7).cdf).pvalue > 1e-3
    assert stats.kstest(draws["Gaussian"], stats.norm(scale=1.7).cdf).pvalue > 1e-3
    assert chi_square_p("DiscreteLaplace", draws["DiscreteLaplace"], 1.7) > 1e-3
    assert chi_square_p("DiscreteGaussian", draws["DiscreteGaussian"], 1.7) > 1e-3
    assert chi_square_p("DiscreteLaplace", np.round(draws["Laplace"]), 1.7) < 1e-6
    assert chi_square_p("DiscreteGaussian", draws["DiscreteLaplace"], 1.7) < 1e-6


def test_from_rho_is_the_double_geometric_law():
    mass = np.exp(nw.noise.DiscreteLaplace.from_rho(0.3).log_prob(jnp.arange(0.0, 6.0)))
    np.testing.assert_allclose(mass, 0.3 / 1.7 * 0.7 ** np.arange(6), rtol=1e-13)


QUERY = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])


def test_calibrated_laplace_laws_divide_the_l1_sensitivity_by_epsilon():
    for law in (nw.noise.Laplace, nw.noise.DiscreteLaplace):
        assert float(law.calibrated(QUERY, epsilon=0.5).scale) == 4.0
        assert float(law.calibrated(QUERY, epsilon=0.5, neighbours="add_remove_one").scale) == 2.0


def test_calibrated_gaussian_laws_meet_rho():
    for law in (nw.noise.Gaussian, nw.noise.DiscreteGaussian):
        assert float(law.calibrated(QUERY, rho=0.25).scale) == pytest.approx(2.0, rel=1e-15)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-6), (8.0, 1e-12), (0.01, 0.1)])
def test_calibrated_gaussian_is_the_least_noise_that_gives_epsilon_and_delta(epsilon, delta):
    scale = float(nw.noise.Gaussian.calibrated(QUERY, epsilon=epsilon, delta=delta).scale)

    def true_delta(sd: float) -> mp.mpf:
        d, e = mp.sqrt(2), mp.mpf(epsilon)
        return mp.ncdf(d / (2 * sd) - e * sd / d) - mp.exp(e) * mp.ncdf(-d / (2 * sd) - e * sd / d)

    assert true_delta(mp.mpf(scale) * (1 + mp.mpf(10) ** -9)) < delta
    assert true_delta(mp.mpf(scale) * (1 - mp.mpf(10) ** -9)) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (3.0, 1e-8)])
def test_calibrated_discrete_gaussian_gives_epsilon_and_delta_and_little_more_noise(epsilon, delta):
    """Its exact delta, by summing the masses of two laws that differ by one integer."""
    query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    scale = float(
        nw.noise.DiscreteGaussian.calibrated(query, epsilon=epsilon, delta=delta, neighbours="add_remove_one").scale
    )
    k = np.arange(-int(40 * scale), int(40 * scale) + 1.0)
    one, other = (np.exp(nw.noise.DiscreteGaussian(scale).log_prob(k - shift)) for shift in (0, 1))
    assert np.sum(np.maximum(0, other - np.exp(epsilon) * one)) < delta
    continuous = float(
        nw.noise.Gaussian.calibrated(query, epsilon=epsilon, delta=delta, neighbours="add_remove_one").scale
    )
    assert continuous < scale < 1.35 * continuous


@pytest.mark.parametrize(("rho", "epsilon"), [(1e-3, 0.1), (0.5, 0.4), (2.0, 9.0), (30.0, 25.0)])
def test_zcdp_conversion_takes_the_best_of_all_orders(rho, epsilon):
    excess = np.exp(np.linspace(-60, 20, 400_001))
    logs = excess * ((1 + excess) * rho - epsilon) + excess * np.log(excess) - (1 + excess) * np.log1p(excess)
    assert privacy.zcdp_delta(rho, epsilon) == pytest.approx(np.exp(np.min(logs)), rel=1e-6)


def test_zcdp_conversion_beats_the_simple_bound_and_is_never_below_the_exact_gaussian():
    for rho in (0.01, 0.3, 5.0):
        for delta in (1e-3, 1e-9):
            found = privacy.zcdp_epsilon(rho, delta)
            assert found <= rho + 2 * np.sqrt(rho * np.log(1 / delta))
            assert found >= privacy.gaussian_epsilon(delta, rho)
            assert privacy.zcdp_rho(found, delta) == pytest.approx(rho, rel=1e-6)


def test_a_loss_beyond_all_numbers_is_refused():
    with pytest.raises(ValueError, match="privacy loss must be a number of at least 0; got inf"):
        privacy.compose([privacy.Privacy("pure", 1e200), privacy.Privacy("zcdp", 1.0)])


def test_noise_scales_are_leaves_so_that_new_ones_do_not_recompile():
    traces = []

    @jax.jit
    def density(noise, residual):
        traces.append(None)
        return noise.log_prob(residual)

    for scale in (1.0, 2.0, 3.0):
        density(nw.noise.DiscreteGaussian(scale), jnp.zeros(2))
    assert len(traces) == 1
