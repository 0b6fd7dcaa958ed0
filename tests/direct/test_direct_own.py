"""Weights and bases of a user's own: functions with parameters or without, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from direct_reference import p_value
from scipy import stats

import noisewise as nw

KEY = jax.random.key(6)
LOGISTIC = nw.direct.CustomBase(jax.nn.sigmoid, lambda p: jnp.log(p) - jnp.log1p(-p))
TWO_MODES = nw.direct.UnimodalWeight(
    lambda x, m: jnp.logaddexp(-((x - m) ** 2), -((x + m) ** 2)), jnp.array([5.0, 3.0])
)
ENDLESS = nw.direct.UnimodalWeight(lambda x: 0.5 * x)
GUMBEL = nw.direct.UnimodalWeight(lambda x: -(x + jnp.exp(-x)))


def reached(log_density, draws, low, high):
    x = np.linspace(low, high, 200_001)
    f = np.exp(log_density(x) - np.max(log_density(x)))
    return np.interp(
        np.asarray(draws), x, np.append(0, np.cumsum(0.5 * (f[1:] + f[:-1]))) / np.sum(0.5 * (f[1:] + f[:-1]))
    )


def test_functions_without_parameters_give_the_integrated_law():
    draws = nw.direct.sample(KEY, GUMBEL, LOGISTIC, 20_000, released=2.0)

    def log_density(x, shift=0.0):
        return -(2 + shift - x + np.exp(-(2 + shift - x))) + stats.logistic.logpdf(x)

    assert p_value(reached(log_density, draws, -30, 12)) > 1e-4
    assert p_value(reached(lambda x: log_density(x, 0.3), draws, -30, 12)) < 1e-6
    latent = nw.direct.latent_value(KEY, GUMBEL, LOGISTIC, jnp.full(3000, 2.0))
    assert p_value(reached(log_density, 2.0 - latent, -30, 12)) > 1e-4


def test_a_user_s_integer_law_gives_the_summed_one():
    def cdf(x, rate):
        return jnp.where(x < 0, 0.0, jax.scipy.special.gammaincc(jnp.floor(jnp.maximum(x, 0)) + 1, rate))

    def quantile(p, rate):
        return jnp.sum(p[..., None] > jax.scipy.special.gammaincc(jnp.arange(60.0) + 1, rate), axis=-1).astype(float)

    base = nw.direct.CustomBase(cdf, quantile, parameters=jnp.array(5.0), integers=True)
    draws = np.asarray(nw.direct.sample(KEY, nw.direct.NormalWeight(3.0, 4.0), base, 20_000))
    k = np.arange(0, 16)
    mass = np.exp(-((k - 3) ** 2) / 8) * stats.poisson(5).pmf(k)
    expected = 20_000 * mass / mass.sum()
    seen = np.bincount(draws.astype(int), minlength=16)
    kept = expected > 5
    assert stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue > 1e-4
    flat = 20_000 * stats.poisson(5).pmf(k)
    assert stats.chisquare(seen[kept], flat[kept] * seen[kept].sum() / flat[kept].sum()).pvalue < 1e-6


@pytest.mark.parametrize(
    "log_weight",
    [
        jax.nn.log_sigmoid,
        lambda x: jax.nn.log_sigmoid(-x),
        lambda x: -jnp.log1p(x**2),
        lambda x: -1e6 * (x - 1e-6) ** 2,
        lambda x: -(jnp.abs(x - 1e7) ** 3),
    ],
)
def test_weights_of_one_mode_or_one_plateau_are_not_refused(log_weight):
    nw.direct.UnimodalWeight(log_weight).check()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nw.direct.UnimodalWeight(3.0), "logarithm of the weight must be an elementwise function"),
        (lambda: nw.direct.CustomBase("cdf", jnp.log), "cdf of a base must be an elementwise function"),
        (lambda: nw.direct.UnimodalWeight(lambda x: -np.abs(x)), "written with jax.numpy.*which fails"),
        (lambda: nw.direct.UnimodalWeight(lambda x: -jnp.sum(x**2)), r"makes shape \(\) of 3 numbers"),
        (lambda: nw.direct.UnimodalWeight(lambda x, m, s: -((x - m) ** 2), 1.0), "missing 1 required"),
        (lambda: nw.direct.CustomBase(stats.norm.cdf, stats.norm.ppf), "cdf of a base.*written with jax.numpy"),
        (lambda: nw.direct.CustomBase(jax.nn.sigmoid, lambda p: p), "quantile must be the inverse"),
        (lambda: nw.direct.CustomBase(lambda p: jnp.log(p) - jnp.log1p(-p), jax.nn.sigmoid), "cdf must rise from 0"),
        (
            lambda: nw.direct.CustomBase(
                jax.nn.sigmoid,
                LOGISTIC.quantile,
                survival=jax.nn.sigmoid,
                upper_quantile=LOGISTIC.quantile,
            ),
            "survival must be 1 - cdf",
        ),
        (lambda: nw.direct.TransformedNormalWeight(0.0, 1.0, jnp.sqrt, jnp.square, lower=0.0), "onto the whole real"),
        (lambda: nw.direct.TransformedNormalWeight(0.0, 1.0, jnp.log, jnp.exp), "to 0 < x < inf"),
        (lambda: nw.direct.sample(KEY, TWO_MODES, nw.noise.Laplace(1.0), 3), "falls and rises again"),
        (lambda: nw.direct.sample(KEY, ENDLESS, nw.noise.Laplace(1.0), 3), "must have a largest value"),
        (lambda: nw.direct.sample(KEY, lambda x: -(x**2), LOGISTIC, 3), "becomes one by nw.direct.UnimodalWeight"),
        (lambda: nw.direct.sample(KEY, GUMBEL, LOGISTIC, 3, method="strips"), "needs a base of known slope"),
        (lambda: nw.direct.log_target(GUMBEL, LOGISTIC, jnp.zeros(2)), "has no log_density"),
    ],
)
def test_what_is_no_function_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
