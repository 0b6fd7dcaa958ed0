r"""The Gibbs sampler of a lognormal regression on noisy microdata (Raim 2021, section 5), one vectorised sweep at a time.

    log y_i ~ N(x_i' beta, sigma2),   beta ~ N(0, s_b^2 I),   sigma2 ~ InverseGamma(a, b),
    released y_i = y_i + discrete Laplace,     released x_ij = x_ij + Laplace for the first columns, the others public.

A sweep draws every y_i from (16), the noisy covariates column by column from (17), then beta from (14) and sigma2 from (15),
each exactly from its full conditional, so the posterior is left invariant. With both scales it is Algorithm 2 of the paper,
without ``covariate_scale`` Algorithm 3, without either Algorithm 4. Records are independent given (beta, sigma2): the sweep
has no loop over them.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.direct.closed import two_tails
from noisewise.direct.latent import lognormal_discrete_laplace
from noisewise.typing import Key

_NO_SLOPE = 1e-100


class NoisyRegression(eqx.Module):
    """What was published, the noise, and the prior: ``covariate_scale`` belongs to the first columns of ``covariates``."""

    response: Float[Array, " n"]
    covariates: Float[Array, "n d"]
    response_scale: Float[Array, "..."] | None = None
    covariate_scale: Float[Array, "n noisy"] | None = None
    coefficient_variance: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=100.0)
    shape: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=2.0)
    rate: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=10.0)


class State(eqx.Module):
    """One point of the chain: latent responses and covariates, and the parameters."""

    response: Float[Array, " n"]
    covariates: Float[Array, "n d"]
    beta: Float[Array, " d"]
    variance: Float[Array, ""]


def init(problem: NoisyRegression) -> State:
    """A start: least squares on the responses; released ones below one are taken as one. It is forgotten by the chain.

    Without noise on the response (Algorithm 4) the responses are the records themselves, and stay as they are.
    """
    exact = problem.response_scale is None
    response = problem.response if exact else jnp.maximum(problem.response, 1.0)
    log_response = jnp.log(response)
    beta = jnp.linalg.lstsq(problem.covariates, log_response)[0]
    residual = log_response - problem.covariates @ beta
    variance = (problem.rate + 0.5 * residual @ residual) / (problem.shape + 0.5 * residual.size)
    return State(response, problem.covariates, beta, variance)


def step(key: Key, problem: NoisyRegression, state: State) -> State:
    """One sweep of Algorithm 2, 3 or 4, as the problem's scales say."""
    for_response, for_covariates, for_beta, for_variance = jax.random.split(key, 4)
    response, covariates = state.response, state.covariates
    if problem.response_scale is not None:
        mean = covariates @ state.beta
        response = lognormal_discrete_laplace(
            for_response, mean, state.variance, problem.response, problem.response_scale
        )
    log_response = jnp.log(response)
    if problem.covariate_scale is not None:
        for column in range(problem.covariate_scale.shape[1]):
            covariates = covariates.at[:, column].set(
                draw_covariate(
                    jax.random.fold_in(for_covariates, column),
                    log_response - covariates @ state.beta + covariates[:, column] * state.beta[column],
                    state.beta[column],
                    state.variance,
                    problem.covariates[:, column],
                    problem.covariate_scale[:, column],
                )
            )
    beta = draw_coefficients(for_beta, covariates, log_response, state.variance, problem.coefficient_variance)
    variance = draw_variance(for_variance, log_response - covariates @ beta, problem.shape, problem.rate)
    return State(response, covariates, beta, variance)


def draw_covariate(
    key: Key, residual: Array, coefficient: Array, variance: Array, released: Array, scale: Array
) -> Array:
    """x of density exp(-(residual - coefficient x)^2 / 2 variance - |released - x| / scale), elementwise (17).

    In standard units of ``x - released`` the normal factor has standard deviation sigma/|beta| and offset (beta released -
    residual) sign(beta) / sigma, which is finite at beta = 0, where the law is the plain Laplace one.

    >>> import jax, jax.numpy as jnp
    >>> x = draw_covariate(jax.random.key(0), jnp.zeros(2), jnp.array([1e9, 0.0]), 1.0, jnp.array([3.0, 3.0]), jnp.array([1.0, 1e-9]))
    >>> [round(float(value), 6) for value in jnp.abs(x)]
    [0.0, 3.0]
    """
    magnitude = jnp.maximum(jnp.abs(coefficient), _NO_SLOPE)
    sign = jnp.where(coefficient < 0, -1.0, 1.0)
    sigma = jnp.sqrt(variance)
    offset = sign * (coefficient * released - residual) / sigma
    shape = jnp.broadcast_shapes(offset.shape, jnp.shape(scale))
    uniforms = jax.random.uniform(key, (2, *shape), dtype=float)
    return released + two_tails(uniforms[0], uniforms[1], offset, sigma / magnitude, scale)


def draw_coefficients(key: Key, design: Array, outcome: Array, variance: Array, prior_variance: Array) -> Array:
    """beta of the normal law (14): precision X'X / variance + I / prior_variance."""
    precision = design.T @ design / variance + jnp.eye(design.shape[1]) / prior_variance
    factor = jnp.linalg.cholesky(precision)
    mean = jax.scipy.linalg.cho_solve((factor, True), design.T @ outcome / variance)
    normal = jax.random.normal(key, (design.shape[1],), dtype=float)
    return mean + jax.scipy.linalg.solve_triangular(factor.T, normal, lower=False)


def draw_variance(key: Key, residual: Array, shape: Array, rate: Array) -> Array:
    """sigma2 of the inverse gamma law (15)."""
    return (rate + 0.5 * residual @ residual) / jax.random.gamma(key, shape + 0.5 * residual.size, dtype=float)


@eqx.filter_jit
def chain(key: Key, problem: NoisyRegression, draws: int) -> tuple[Array, Array]:
    """``draws`` successive values of beta (draws, d) and sigma2 (draws,); compiled once per shape."""

    def sweep(state: State, key: Key) -> tuple[State, tuple[Array, Array]]:
        state = step(key, problem, state)
        return state, (state.beta, state.variance)

    return jax.lax.scan(sweep, init(problem), jax.random.split(key, draws))[1]
