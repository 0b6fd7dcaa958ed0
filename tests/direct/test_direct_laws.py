"""Draws against summed and integrated laws, over parameters that span decades."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from direct_reference import cdf, p_value, random_parameters

import noisewise as nw
from noisewise.direct import closed

TARGETS, DRAWS = 10, 4000
ALPHA = 1e-4


def cube(y, parameters):
    mu, sigma = parameters
    return -(jnp.abs((y - mu) / sigma) ** 3)


def build(weight, base, p):
    weights = {
        "normal": lambda: nw.direct.NormalWeight(p["mu"], p["sigma2"]),
        "lognormal": lambda: nw.direct.LognormalWeight(p["mu"], p["sigma2"]),
        "log-normal, transformed": lambda: nw.direct.TransformedNormalWeight(
            p["mu"], p["sigma2"], jnp.log, jnp.exp, lower=0.0
        ),
        "student": lambda: nw.direct.StudentTWeight(p["nu"], p["mu"], p["sigma2"]),
        "cubic": lambda: nw.direct.UnimodalWeight(cube, (jnp.asarray(p["mu"]), jnp.sqrt(p["sigma2"]))),
    }
    bases = {
        "laplace": lambda: nw.noise.Laplace(p["scale"]),
        "gaussian": lambda: nw.noise.Gaussian(p["scale"]),
        "discrete laplace": lambda: nw.noise.DiscreteLaplace(p["scale"]),
        "discrete gaussian": lambda: nw.noise.DiscreteGaussian(p["scale"]),
        "uniform": lambda: nw.direct.Uniform(1.0 - p["scale"], 1.0 + p["scale"]),
    }
    return weights[weight](), bases[base]()


def parameters_for(weight, base, seed):
    p = random_parameters(np.random.default_rng(seed), TARGETS)
    if base == "uniform":  # the latent value must be within reach of the interval
        p["released"] = np.exp(np.minimum(p["mu"], 6)) if weight.startswith("log") else p["mu"] + 1
    return p


def uniforms(weight, base, p, draws):
    rows = [{name: float(value[i]) for name, value in p.items()} for i in range(TARGETS)]
    return [cdf(weight, base, row, np.asarray(draws)[:, i], seed=i) for i, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("weight", "base", "method"),
    [
        ("lognormal", "discrete laplace", "exact"),
        ("lognormal", "discrete laplace", "strips"),
        ("lognormal", "gaussian", "strips"),
        ("lognormal", "uniform", "exact"),
        ("lognormal", "discrete gaussian", "strips"),
        ("log-normal, transformed", "laplace", "exact"),
        ("student", "discrete gaussian", "exact"),
        ("student", "discrete laplace", "strips"),
        ("student", "uniform", "customised"),
        ("normal", "laplace", "exact"),
        ("normal", "gaussian", "exact"),
        ("normal", "discrete laplace", "exact"),
        ("normal", "discrete gaussian", "exact"),
        ("normal", "uniform", "exact"),
        ("cubic", "laplace", "strips"),
    ],
)
def test_draws_follow_the_summed_or_integrated_law(weight, base, method):
    p = parameters_for(weight, base, seed=3)
    draws = nw.direct.sample(jax.random.key(5), *build(weight, base, p), DRAWS, released=p["released"], method=method)
    assert draws.shape == (DRAWS, TARGETS)
    values = uniforms(weight, base, p, draws)
    assert min(p_value(row) for row in values) > ALPHA / TARGETS
    assert p_value(values) > ALPHA


def test_a_law_off_by_one_standard_unit_is_seen():
    p = parameters_for("normal", "discrete laplace", seed=3)
    draws = nw.direct.sample(
        jax.random.key(5), *build("normal", "discrete laplace", p), DRAWS, released=p["released"], method="exact"
    )
    wrong = {**p, "scale": 1.1 * p["scale"], "sigma2": 1.1 * p["sigma2"]}
    assert p_value(uniforms("normal", "discrete laplace", wrong, draws)) < 1e-6


def test_draws_without_a_release_weight_the_base_itself():
    draws = nw.direct.sample(
        jax.random.key(0), nw.direct.NormalWeight(50.0, 1.0), nw.noise.Laplace(0.5), 20_000, method="exact"
    )
    row = {"mu": 50.0, "sigma2": 1.0, "scale": 0.5, "released": None}
    assert p_value(cdf("normal", "laplace", row, np.asarray(draws))) > ALPHA
    naive_tail = (
        np.asarray(draws) - 2.0
    )  # the difference of CDFs near one makes this target look like its weight, at 50
    assert p_value(cdf("normal", "laplace", row, naive_tail)) < 1e-6


def test_per_record_draws_are_exact_under_jit_with_traced_parameters():
    p = random_parameters(np.random.default_rng(8), TARGETS)
    spread = {name: jnp.repeat(jnp.asarray(value), 2000) for name, value in p.items()}
    draw = jax.jit(nw.direct.lognormal_discrete_laplace)
    y = draw(jax.random.key(2), spread["mu"], spread["sigma2"], spread["released"], spread["scale"])
    noise = (spread["released"] - y).reshape(TARGETS, 2000).T
    assert bool(jnp.all(y > 0))
    assert p_value(uniforms("lognormal", "discrete laplace", p, noise)) > ALPHA
    y = jax.jit(nw.direct.normal_laplace)(
        jax.random.key(3), spread["mu"], spread["sigma2"], spread["released"], spread["scale"]
    )
    noise = (spread["released"] - y).reshape(TARGETS, 2000).T
    assert p_value(uniforms("normal", "laplace", p, noise)) > ALPHA
    assert draw._cache_size() == 1


def test_discrete_window_draws_listed_masses():
    log_mass = jnp.log(jnp.array([0.1, 0.0, 0.6, 0.3]))
    draws = closed.discrete_window(jax.random.key(0), jnp.broadcast_to(log_mass, (50_000, 4)), jnp.asarray(-1.0))
    share = np.bincount(np.asarray(draws).astype(int) + 1, minlength=4) / 50_000
    error = np.sqrt(np.array([0.1, 0.0, 0.6, 0.3]) * np.array([0.9, 1.0, 0.4, 0.7]) / 50_000)
    assert np.all(np.abs(share - [0.1, 0.0, 0.6, 0.3]) <= 4.5 * error)
    assert not np.all(np.abs(share - [0.11, 0.0, 0.59, 0.3]) <= 4.5 * error)
