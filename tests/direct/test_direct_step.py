"""Knots, the total-variation bound, the basic sampler's failure and the errors."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from direct_reference import p_value

import noisewise as nw

INTEGERS = np.arange(-4000, 4001)


def probability(log_u, z, mu, sigma2, rho):
    """P(A_u) by summing the double geometric law over the integers of A_u."""
    y = np.where(z - INTEGERS > 0, z - INTEGERS, np.nan)
    log_weight = -0.5 * (np.log(y) - mu) ** 2 / sigma2 - np.log(y) + mu - sigma2 / 2
    mass = rho / (2 - rho) * (1 - rho) ** np.abs(INTEGERS)
    # the last knot is a jump of P(A_u) to within rounding: look just beyond
    return np.array([mass[log_weight > s + 1e-10].sum() for s in np.atleast_1d(log_u)])


EXAMPLES = [(10, 3.0, 2.0, 0.7), (2, 0.0, 1.0, 0.1), (-10, 3.5, 8.5, 0.7), (60, 4.0, 0.5, 0.02)]


@pytest.fixture(scope="module")
def steps():
    z, mu, sigma2, rho = (np.array(column) for column in zip(*EXAMPLES, strict=True))
    weight, base = nw.direct.LognormalWeight(mu, sigma2), nw.noise.DiscreteLaplace.from_rho(rho)
    return {knots: nw.direct.step_function(weight, base, released=z, knots=knots) for knots in (4, 16)}


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
@pytest.mark.parametrize("knots", [4, 16])
def test_knots_halve_the_largest_rectangle_at_each_step(steps, knots, example):
    """Algorithm 1 by its definition, with midpoints of log u, from the same outer knots."""
    found = np.asarray(steps[knots].log_u)[example]
    chosen = [found[0], found[-1]]
    for _ in range(knots - 1):
        chosen.sort()
        heights = probability(chosen, *EXAMPLES[example])
        areas = (heights[:-1] - heights[1:]) * np.diff(np.exp(chosen))
        place = int(np.argmax(areas))
        chosen.append(0.5 * (chosen[place] + chosen[place + 1]))
    np.testing.assert_allclose(found, sorted(chosen), rtol=1e-9)
    assert probability(found[-1], *EXAMPLES[example])[0] == 0


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
@pytest.mark.parametrize("knots", [4, 16])
def test_result_2_1_bounds_the_total_variation_distance(steps, knots, example):
    """Both densities of u are constant between the knots and the jumps of P(A_u): their distance is a finite sum."""
    found = np.asarray(steps[knots].log_u)[example]
    bound, acceptance = float(steps[knots].bound[example]), float(steps[knots].acceptance[example])
    z, mu, sigma2, _ = EXAMPLES[example]
    y = z - INTEGERS[z - INTEGERS > 0]
    jumps = np.sort(-0.5 * (np.log(y) - mu) ** 2 / sigma2 - np.log(y) + mu - sigma2 / 2)
    edges = np.unique(np.concatenate([[0.0], np.exp(jumps[:-1]), np.exp(found)]))
    middle = 0.5 * (edges[1:] + edges[:-1])
    exact = probability(np.log(middle), *EXAMPLES[example])
    heights = np.append(probability(-1e300, *EXAMPLES[example]), probability(found[:-1], *EXAMPLES[example]))
    upper = np.append(heights, 0.0)[np.searchsorted(np.exp(found), middle, side="right")]
    assert np.all(upper >= exact - 1e-12)
    psi, area = np.sum(exact * np.diff(edges)), np.sum(upper * np.diff(edges))
    distance = 0.5 * np.sum(np.abs(upper / area - exact / psi) * np.diff(edges))
    assert distance <= bound + 1e-12
    assert acceptance <= psi / area + 1e-12
    assert bound <= 1


def test_more_knots_tighten_the_bound(steps):
    assert np.all(np.asarray(steps[16].bound) < np.asarray(steps[4].bound))


def test_the_basic_sampler_works_on_example_4_1_and_fails_on_example_4_2():
    base = nw.noise.DiscreteLaplace.from_rho(0.7)
    draws = nw.direct.sample(
        jax.random.key(0), nw.direct.LognormalWeight(3.0, 2.0), base, 1000, released=10.0, method="basic"
    )
    mass = np.where(10 - INTEGERS > 0, 0.3 ** np.abs(INTEGERS), 0)
    y = np.where(mass > 0, 10 - INTEGERS, 1)
    mass = mass * np.exp(-0.5 * (np.log(y) - 3.0) ** 2 / 2.0) / y
    before = np.append(0, np.cumsum(mass) / mass.sum())
    place = np.searchsorted(INTEGERS, np.asarray(draws))
    v = np.random.default_rng(0).random(1000)
    assert p_value(before[place] + v * (before[place + 1] - before[place]), bins=10) > 1e-3
    with pytest.raises(ValueError, match=r"accepted no draw.*customised"):
        nw.direct.sample(
            jax.random.key(0), nw.direct.LognormalWeight(3.5, 8.5), base, 1000, released=244_388.0, method="basic"
        )


def test_few_knots_leave_the_exact_method_exact_and_the_customised_one_visibly_off():
    weight, base = nw.direct.StudentTWeight(3.0, 0.0, 1.0), nw.direct.Uniform(-2.0, 9.0)
    x = np.linspace(-2, 9, 200_001)
    density = (1 + x**2 / 3) ** -2
    reached = np.append(0, np.cumsum(0.5 * (density[1:] + density[:-1])))
    p = {}
    for method, told in (
        ("exact", contextlib.nullcontext()),
        ("customised", pytest.warns(UserWarning, match="too coarse")),
    ):
        with told:
            draws = nw.direct.sample(jax.random.key(1), weight, base, 20_000, method=method, knots=3)
        p[method] = p_value(np.interp(np.asarray(draws), x, reached / reached[-1]))
    assert p["exact"] > 1e-4
    assert p["customised"] < 1e-6


def test_roots_follow_the_corrected_examples():
    log_u = jnp.log(jnp.array([0.9, 0.5, 0.01]))
    mu, sigma2, nu = 1.3, 0.7, 2.5
    log_c = -(mu - sigma2 / 2)
    root = np.sqrt(sigma2**2 - 2 * mu * sigma2 - 2 * sigma2 * (log_c + np.asarray(log_u)))
    expected = np.exp(mu - sigma2 - root), np.exp(mu - sigma2 + root)
    np.testing.assert_allclose(nw.direct.LognormalWeight(mu, sigma2).roots(log_u), expected, rtol=1e-12)
    reach = np.sqrt(sigma2 * nu * (np.exp(log_u) ** (-2 / (nu + 1)) - 1))
    np.testing.assert_allclose(
        nw.direct.StudentTWeight(nu, mu, sigma2).roots(log_u), (mu - reach, mu + reach), rtol=1e-12
    )


def test_size_comes_before_the_batch_and_seeds_repeat():
    weight, base = nw.direct.NormalWeight(np.zeros((2, 3)), 1.0), nw.noise.Laplace(1.0)
    draws = [nw.direct.sample(jax.random.key(7), weight, base, (5, 4), method="exact") for _ in range(2)]
    assert draws[0].shape == (5, 4, 2, 3)
    assert bool(jnp.all(draws[0] == draws[1]))
    counted = nw.direct.sample(jax.random.key(7), weight, base, np.array([5, 4]), method="exact", knots=np.int64(100))
    assert bool(jnp.all(counted == draws[0]))


WEIGHT, BASE = nw.direct.NormalWeight(0.0, 1.0), nw.noise.Laplace(1.0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nw.direct.NormalWeight(0.0, -1.0), "sigma2 must be positive"),
        (lambda: nw.direct.StudentTWeight(np.nan, 0.0, 1.0), "nu must be positive"),
        (lambda: nw.direct.LognormalWeight(np.inf, 1.0), "mu must be finite"),
        (lambda: nw.direct.Uniform(1.0, 1.0), "lower must be below upper"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 3, method="fast"), "method 'fast' is not known"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, -3), "size must be"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 2.5), "size must be .* got 2.5"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, None), "size must be .* got None"),
        (lambda: nw.direct.sample(0, WEIGHT, BASE, 3), r"key must be a random key of JAX; got 0.*key\(seed\)"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 3, knots=1), "knots must be"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 3, knots="many"), "knots must be .* got 'many'"),
        (
            lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 3, released="x"),
            "released must be finite; got 'x'",
        ),
        (lambda: nw.direct.NormalWeight("x", 1.0), "mu must be finite; got 'x'"),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 3, released=np.nan), "released must be finite"),
        (
            lambda: nw.direct.sample(
                jax.random.key(0), nw.direct.NormalWeight(np.zeros(2), 1.0), nw.noise.Laplace(np.ones(3)), 1
            ),
            "broadcast",
        ),
        (lambda: nw.direct.sample(jax.random.key(0), WEIGHT, nw.noise.RandomisedResponse(0.1), 1), "is not a base law"),
        (
            lambda: nw.direct.sample(
                jax.random.key(0),
                nw.direct.LognormalWeight(0.0, 1.0),
                nw.direct.Uniform(0.0, 1.0),
                1,
                released=-1.0,
                method="exact",
            ),
            "No draw could be made for 1 of 1 targets",
        ),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_every_pair_of_ends_gives_the_same_mass_as_its_pieces():
    for base in (
        nw.noise.Laplace(0.7),
        nw.noise.Gaussian(3.0),
        nw.noise.DiscreteLaplace(2.0),
        nw.noise.DiscreteGaussian(12.0),
    ):
        law = nw.direct.bases.as_base(base)
        ends = jnp.array([-400.5, -60.5, -2.5, 0.0, 1.5, 80.5, 300.5])
        for low, middle, high in itertools.combinations(ends, 3):
            inside = jnp.logaddexp(law.log_interval(low, middle), law.log_interval(middle, high))
            if law.discrete and middle == 0.0:
                inside = jnp.logaddexp(inside, law.log_prob(middle))
            np.testing.assert_allclose(law.log_interval(low, high), inside, rtol=1e-10, atol=1e-13)
