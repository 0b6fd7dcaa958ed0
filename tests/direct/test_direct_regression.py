"""The full conditionals of Raim's Gibbs sampler and the joint law it leaves invariant."""

import jax
import jax.numpy as jnp
import numpy as np
from direct_reference import p_value
from scipy import stats

from noisewise.direct import regression
from noisewise.release.noise import DiscreteLaplace, Laplace


def test_covariate_update_follows_the_integrated_conditional():
    """Coefficients from zero to steep, by quadrature on a grid fine at the kink."""
    coefficients = np.array([0.0, 1e-8, -0.3, 2.0, -40.0])
    residual, variance, released, scale = 1.5, 0.8, 0.7, 0.4
    columns = jnp.broadcast_to(jnp.asarray(coefficients), (20_000, 5))
    args = (jnp.full((20_000, 5), residual), columns, variance, jnp.full((20_000, 5), released), scale)
    draws = np.asarray(regression.draw_covariate(jax.random.key(0), *args))
    x = released + np.linspace(-20, 20, 400_001)
    for i, coefficient in enumerate(coefficients):
        log_f = -0.5 * (residual - coefficient * x) ** 2 / variance - np.abs(x - released) / scale
        f = np.exp(log_f - log_f.max())
        reached = np.append(0, np.cumsum(0.5 * (f[1:] + f[:-1])))
        assert p_value(np.interp(draws[:, i], x, reached / reached[-1])) > 1e-4
        assert p_value(np.interp(draws[:, i] + 0.05 * draws[:, i].std(), x, reached / reached[-1])) < 1e-4


SWEEPS, N = 12_000, 4


@jax.jit
def redrawn(key, noisier):
    """Redraw x, y and the release from their laws given theta, then sweep: beta and sigma2 must keep their prior."""
    published = jnp.asarray(np.random.default_rng(1).normal(size=(N, 2)))
    scale = jnp.full((N, 1), 0.3)

    def sweep(state, key):
        first, second, third, fourth = jax.random.split(key, 4)
        covariates = published.at[:, :1].add(-Laplace(scale).sample(first, (N, 1)))
        mean = covariates @ state.beta
        response = jnp.exp(mean + jnp.sqrt(state.variance) * jax.random.normal(second, (N,)))
        released = response + DiscreteLaplace(2.0 * noisier).sample(third, (N,))
        problem = regression.NoisyRegression(released, published, jnp.asarray(2.0), scale, 0.5, 5.0, 4.0)
        state = regression.step(fourth, problem, regression.State(response, covariates, state.beta, state.variance))
        return state, (state.beta, state.variance)

    start = regression.State(jnp.ones(N), published, jnp.zeros(2), jnp.asarray(1.0))
    return jax.lax.scan(sweep, start, jax.random.split(key, SWEEPS))[1]


def p_values(noisier):
    beta, variance = (np.asarray(values)[200::12] for values in redrawn(jax.random.key(3), jnp.asarray(noisier)))
    return [
        *(stats.kstest(beta[:, j], stats.norm(0, np.sqrt(0.5)).cdf).pvalue for j in range(2)),
        stats.kstest(variance, stats.invgamma(5, scale=4).cdf).pvalue,
    ]


def test_sweeps_keep_the_prior_when_the_release_is_redrawn():
    assert min(p_values(1.0)) > 1e-3


def test_a_release_noisier_than_it_says_is_seen():
    assert min(p_values(6.0)) < 1e-3
