"""Every conditional draw of the statistics kernel against its closed form or quadrature, with twins that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import noisewise as nw
from noisewise.engines.truncation import SupportLaw
from noisewise.kernels.statistics import (
    NoiseShape,
    Picture,
    StatisticsKernel,
    draw_joint,
    mixture_scale,
    semidefinite_factor,
)
from noisewise.models.exponential_family import exponential_form

DRAWS = 200_000


def mixture_moment(ratio: float, power: int) -> float:
    """E w^power of w^(-1/2) exp(-(ratio^2/w + w)/2): ratio^power K_(power + 1/2)(ratio) / K_(1/2)(ratio), which is elementary."""
    return {1: ratio + 1, 2: ratio**2 + 3 * ratio + 3}[power]


def test_the_elementary_moments_are_the_bessel_functions():
    for ratio in (0.1, 2.0, 30.0):
        for power in (1, 2):
            bessel = ratio**power * special.kve(power + 0.5, ratio) / special.kve(0.5, ratio)
            assert mixture_moment(ratio, power) == pytest.approx(bessel, rel=1e-12)


def standard_errors(sample: np.ndarray, mean: float) -> float:
    return abs(sample.mean() - mean) / (sample.std() / np.sqrt(sample.size))


@pytest.fixture(scope="module")
def draw_mixture():
    return jax.jit(lambda key, ratio: mixture_scale(key, jnp.full(DRAWS, ratio)))


@pytest.mark.parametrize("ratio", [1e-3, 0.1, 1.0, 30.0, 1e5])
def test_mixture_scales_have_the_moments_of_their_law(draw_mixture, ratio):
    w = np.asarray(draw_mixture(jax.random.key(1), ratio))
    assert standard_errors(w, mixture_moment(ratio, 1)) < 4
    assert standard_errors(w**2, mixture_moment(ratio, 2)) < 4
    # 1/w is inverse Gaussian with mean 1/ratio; its variance 1/ratio^3 is too wide to test at small ratios
    if ratio >= 0.1:
        assert standard_errors(1 / w, 1 / ratio) < 4


@pytest.mark.parametrize("ratio", [0.0, 1e-18, 1e-12, 0.3, 50.0])
def test_mixture_scales_have_the_distribution_of_an_inverse_gaussian_reciprocal(draw_mixture, ratio):
    w = np.asarray(draw_mixture(jax.random.key(2), ratio))[:20_000]
    assert np.all(np.isfinite(w))
    assert np.all(w >= 0)
    law = stats.chi2(1) if ratio < 1e-9 else None
    distance = stats.kstest(
        w, law.cdf if law else lambda x: stats.invgauss.sf(1 / x, mu=1 / ratio, scale=1.0)
    ).statistic
    assert distance < 1.63 / np.sqrt(w.size)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("gap", [1e-12, 1.0, 1e7])
def test_noise_variances_are_finite_and_right_at_every_scale(scale, gap):
    noise = NoiseShape(jnp.full(DRAWS, scale), jnp.ones(DRAWS, dtype=bool))
    w = np.asarray(noise.draw_mixture(jax.random.key(3), jnp.full(DRAWS, gap)))
    assert np.all(np.isfinite(w) & (w > 0))
    assert standard_errors(w, mixture_moment(gap / scale, 1)) < 4


def test_a_mixture_with_the_paper_mean_inverted_is_seen_to_be_wrong(draw_mixture):
    """The twin: 1/w with mean ratio in place of 1/ratio."""
    w = np.asarray(draw_mixture(jax.random.key(1), 1 / 3.0))
    assert standard_errors(w, mixture_moment(3.0, 1)) > 20


def test_laplace_noise_is_the_mixture_it_is_taken_for():
    """Averaged over its own prior w ~ Exp(1/2), a normal of variance w has the Laplace density."""
    for r in (0.0, 0.5, 4.0):
        found = integrate.quad(lambda w, r=r: 0.5 * np.exp(-w / 2) * stats.norm.pdf(r, scale=np.sqrt(w)), 0, np.inf)[0]
        assert found == pytest.approx(0.5 * np.exp(-r), rel=1e-7)


@pytest.mark.parametrize("size", [3, 9])
def test_semidefinite_factor_reproduces_singular_covariances(size):
    p = np.random.default_rng(size).dirichlet(np.ones(size))
    covariance = 1e4 * (np.diag(p) - np.outer(p, p))
    factor = np.asarray(semidefinite_factor(jnp.asarray(covariance)))
    assert np.allclose(factor @ factor.T, covariance, rtol=0, atol=1e-10 * covariance.max())
    assert np.allclose(factor.sum(axis=0), 0, atol=1e-5 * np.sqrt(covariance.max()))
    assert np.allclose(factor, np.tril(factor))


def categorical_law():
    model = nw.models.Categorical([1.0, 1.0, 1.0])
    return SupportLaw(jnp.eye(3), jnp.zeros(3), exponential_form(model))


def test_totals_are_drawn_from_the_product_of_the_normals_when_the_covariance_is_singular():
    p, n = np.asarray([0.5, 0.3, 0.2]), 200.0
    covariance, variances = n * (np.diag(p) - np.outer(p, p)), np.asarray([30.0, 5.0, 80.0])
    value = np.asarray([110.0, 55.0, 45.0])
    # the product on the plane where the counts sum to n, by eliminating the last count
    basis = np.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    precision = np.linalg.inv(covariance[:2, :2]) + basis.T @ np.diag(1 / variances) @ basis
    gap = value - np.asarray([0.0, 0.0, n])
    linear = np.linalg.solve(covariance[:2, :2], n * p[:2]) + basis.T @ (gap / variances)
    spread = np.linalg.inv(precision)
    mean = spread @ linear

    picture = Picture(jnp.asarray(n * p), jnp.asarray(covariance))
    draw = jax.jit(
        jax.vmap(
            lambda key: draw_joint(
                key, categorical_law(), picture, jnp.asarray(value), jnp.asarray(variances), jnp.asarray(n), tries=10
            )
        )
    )
    joint, found, _ = draw(jax.random.split(jax.random.key(4), 50_000))
    joint = np.asarray(joint)
    assert np.all(np.asarray(found))
    assert np.allclose(joint.sum(axis=1), n, atol=1e-9)
    centred = joint[:, :2] - mean
    assert np.all(np.abs(centred.mean(axis=0)) < 4 * np.sqrt(np.diag(spread) / 50_000))
    assert np.allclose(centred.T @ centred / 50_000, spread, rtol=0.03, atol=0.03 * spread.max())
    # the twin: leaving the noise out of the gap would be seen
    assert np.any(np.abs(joint[:, :2].mean(axis=0) - value[:2]) > 20 * np.sqrt(np.diag(spread) / 50_000))


def test_totals_that_are_impossible_are_drawn_again_and_the_bound_is_kept():
    law = SupportLaw(jnp.ones((1, 1)), jnp.zeros(1), exponential_form(nw.models.Bernoulli()))
    n = jnp.asarray(100.0)

    def draw(key, value, variance):
        picture = Picture(jnp.asarray([1.0]), jnp.asarray([[4.0]]))
        return draw_joint(key, law, picture, value[None], variance[None], n, tries=200)

    compiled = jax.jit(jax.vmap(draw, in_axes=(0, None, None)))
    keys = jax.random.split(jax.random.key(5), 40_000)
    joint, found, redraws = compiled(keys, jnp.asarray(-3.0), jnp.asarray(4.0))
    sample = np.asarray(joint)[:, 0]
    assert np.all(np.asarray(found))
    assert np.all(sample >= 0)
    # the product is N(-1, 2), cut at 0
    law_of_sample = stats.truncnorm(1 / np.sqrt(2), np.inf, loc=-1.0, scale=np.sqrt(2.0))
    assert standard_errors(sample, law_of_sample.mean()) < 4
    assert np.asarray(redraws).mean() == pytest.approx(1 / stats.norm.sf(1 / np.sqrt(2)) - 1, rel=0.05)
    _, found, redraws = compiled(keys[:40_000], jnp.asarray(-1e4), jnp.asarray(1.0))
    assert not np.any(np.asarray(found))
    assert np.all(np.asarray(redraws) == 200)


def test_with_theta_fixed_the_cycle_leaves_the_normal_model_invariant():
    """Totals and mixture scales alternate; the totals' law must be N(s; m, V) exp(-|y - s|/b), by quadrature."""

    class Fixed(SupportLaw):
        def update(self, key, theta, joint, n):
            return theta

    model = nw.models.Bernoulli()
    law = Fixed(jnp.ones((1, 1)), jnp.zeros(1), exponential_form(model))
    noise = NoiseShape(jnp.asarray([6.0]), jnp.asarray([True]))
    n, p, y = 400.0, 0.3, 140.0
    kernel = StatisticsKernel(model, law, jnp.asarray([y]), noise, jnp.asarray(n), None, 0)

    @jax.jit
    def run(key):
        start, later = jax.random.split(key)
        state = kernel.init(start, {"p": jnp.asarray(p)})

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.joint[0]

        return jax.lax.scan(step, state, jax.random.split(later, 500))[1]

    totals = np.asarray(jax.vmap(run)(jax.random.split(jax.random.key(6), 200)))[:, 20:]
    density = lambda s: stats.norm.pdf(s, n * p, np.sqrt(n * p * (1 - p))) * np.exp(-abs(y - s) / 6.0)  # noqa: E731
    mass = integrate.quad(density, 0, n, points=[n * p, y])[0]
    mean = integrate.quad(lambda s: s * density(s), 0, n, points=[n * p, y])[0] / mass
    second = integrate.quad(lambda s: (s - mean) ** 2 * density(s), 0, n, points=[n * p, y])[0] / mass
    by_chain = totals.mean(axis=1)
    error = by_chain.std() / np.sqrt(len(by_chain))
    assert abs(by_chain.mean() - mean) < 4 * error
    squares = ((totals - mean) ** 2).mean(axis=1)
    assert abs(squares.mean() - second) < 4 * squares.std() / np.sqrt(len(squares))
    # the twin: normal noise of the same variance gives another mean
    normal = (n * p / (n * p * (1 - p)) + y / 72) / (1 / (n * p * (1 - p)) + 1 / 72)
    assert abs(by_chain.mean() - normal) > 10 * error
