"""NumPyro programs as models of the records: their laws against SciPy, their posteriors against the library's own models."""

import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from jax.scipy import stats as jstats
from scipy import stats

import noisewise as nw
from noisewise.engines import augmentation
from noisewise.engines.surrogate import Surrogate
from noisewise.kernels.foreign import foreign
from noisewise.kernels.walk import Walk

numpyro = pytest.importorskip("numpyro")
dist = pytest.importorskip("numpyro.distributions")

SIZE = 20_000
LOC, SCALE = -0.7, 1.6


@pytest.fixture
def plain_start(monkeypatch):
    """Chains start from a wide normal law: the surrogate has tests of its own and is slow to compile."""
    monkeypatch.setattr(
        augmentation,
        "fit_surrogate",
        lambda key, model, *_, **__: Surrogate(jnp.zeros(model.free_size), jnp.eye(model.free_size)),
    )


def program_of(laws):
    """A program with a location and a scale, and one record site for each law of them."""

    def program(n):
        loc = numpyro.sample("loc", dist.Normal(0, 2))
        scale = numpyro.sample("scale", dist.Gamma(4, 2))
        with numpyro.plate("people", n):
            for name, law in laws.items():
                numpyro.sample(name, law(loc, scale))

    return program


CONTINUOUS = {
    "normal": (lambda m, s: dist.Normal(m, s), stats.norm(LOC, SCALE)),
    "laplace": (lambda m, s: dist.Laplace(m, s), stats.laplace(LOC, SCALE)),
    "cauchy": (lambda m, s: dist.Cauchy(m, s), stats.cauchy(LOC, SCALE)),
    "logistic": (lambda m, s: dist.Logistic(m, s), stats.logistic(LOC, SCALE)),
    "gumbel": (lambda m, s: dist.Gumbel(m, s), stats.gumbel_r(LOC, SCALE)),
    "exponential": (lambda m, s: dist.Exponential(s), stats.expon(scale=1 / SCALE)),
    "weibull": (lambda m, s: dist.Weibull(s, 1 + m**2), stats.weibull_min(1 + LOC**2, scale=SCALE)),
    "half normal": (lambda m, s: dist.HalfNormal(s), stats.halfnorm(scale=SCALE)),
    "half Cauchy": (lambda m, s: dist.HalfCauchy(s), stats.halfcauchy(scale=SCALE)),
    "uniform": (lambda m, s: dist.Uniform(m, m + s), stats.uniform(LOC, SCALE)),
    "lognormal": (lambda m, s: dist.LogNormal(m, s), stats.lognorm(SCALE, scale=np.exp(LOC))),
    "Pareto": (lambda m, s: dist.Pareto(s, 2.0), stats.pareto(2.0, scale=SCALE)),
    "truncated": (
        lambda m, s: dist.TruncatedNormal(m, s, low=-1.0, high=3.0),
        stats.truncnorm((-1 - LOC) / SCALE, (3 - LOC) / SCALE, LOC, SCALE),
    ),
}
DISCRETE = {
    "coin": (lambda m, s: dist.Bernoulli(logits=m), [1 / (1 + np.exp(LOC)), 1 / (1 + np.exp(-LOC))]),
    "levels": (
        lambda m, s: dist.Categorical(jnp.stack([s, 2.0, 1.0]) / (s + 3)),
        np.array([SCALE, 2, 1]) / (SCALE + 3),
    ),
}
NOT_CENTRED = {name: law for name, (law, _) in {**CONTINUOUS, **DISCRETE}.items()}
THETA = {"loc": jnp.array(LOC), "scale": jnp.array(SCALE)}


@pytest.fixture(scope="module")
def drawn():
    """Records of every family, their densities, and the records made again from innovations that were traced back."""
    model = nw.models.from_numpyro(program_of(NOT_CENTRED))
    assert model.has_inverse

    def look(key):
        first, second = jax.random.split(key)
        records = model.transform(THETA, model.innovations(first, SIZE))
        again = model.transform(THETA, model.inverse(THETA, records, second))
        return records, again, model.log_likelihood(THETA, records)

    return model, *jax.tree.map(np.asarray, jax.jit(look)(jax.random.key(1)))


def test_the_columns_are_the_sites_in_the_plate(drawn):
    model = drawn[0]
    assert model.columns == tuple(NOT_CENTRED)
    assert [(name, p.shape, p.support) for name, p in model.parameters.items()] == [
        ("loc", (), "real"),
        ("scale", (), "positive"),
    ]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_records_made_of_innovations_follow_their_law(drawn, name):
    records, law = drawn[1][name], CONTINUOUS[name][1]
    assert stats.kstest(records, law.cdf).pvalue > 1e-3
    # the same records are seen not to follow a law of another scale
    assert stats.kstest(1.1 * records, law.cdf).pvalue < 1e-6


@pytest.mark.parametrize("name", DISCRETE)
def test_levels_made_of_innovations_follow_their_law(drawn, name):
    seen, probabilities = np.bincount(drawn[1][name]), np.asarray(DISCRETE[name][1])
    assert stats.chisquare(seen, SIZE * probabilities).pvalue > 1e-3
    assert stats.chisquare(seen, SIZE * probabilities[::-1]).pvalue < 1e-6


@pytest.mark.parametrize("name", NOT_CENTRED)
def test_innovations_that_are_traced_back_make_the_same_records(drawn, name):
    np.testing.assert_allclose(drawn[2][name], drawn[1][name], rtol=1e-9, atol=1e-12)


def test_the_density_of_records_is_scipy_s(drawn):
    expected = sum(law.logpdf(drawn[1][name]) for name, (_, law) in CONTINUOUS.items())
    expected += sum(np.log(np.asarray(p))[drawn[1][name]] for name, (_, p) in DISCRETE.items())
    np.testing.assert_allclose(drawn[3], expected, rtol=1e-10)


def test_innovations_of_levels_are_drawn_from_their_law_given_the_record():
    model = nw.models.from_numpyro(program_of({"coin": NOT_CENTRED["coin"]}))

    def both(key):
        first, second = jax.random.split(key)
        u = model.innovations(first, SIZE)
        return u["coin"][0], model.inverse(THETA, model.transform(THETA, u), second)["coin"][0]

    u, back = jax.jit(both)(jax.random.key(2))
    assert stats.ks_2samp(np.log(u), np.log(back)).pvalue > 1e-3


def test_a_site_of_any_other_law_is_drawn_by_numpyro():
    laws = {"gamma": lambda m, s: dist.Gamma(s, 2.0), "count": lambda m, s: dist.Poisson(s)}
    model = nw.models.from_numpyro(program_of(laws))
    assert not model.has_inverse
    with pytest.raises(ValueError, match="has no inverse"):
        model.inverse(THETA, {}, jax.random.key(0))
    records = jax.jit(lambda key: model.transform(THETA, model.innovations(key, SIZE)))(jax.random.key(3))
    assert stats.kstest(np.asarray(records["gamma"]), stats.gamma(SCALE, scale=0.5).cdf).pvalue > 1e-3
    few = {name: value[:50] for name, value in records.items()}
    expected = stats.gamma(SCALE, scale=0.5).logpdf(few["gamma"]) + stats.poisson(SCALE).logpmf(few["count"])
    np.testing.assert_allclose(model.log_likelihood(THETA, few), expected, rtol=1e-9)


def hierarchical(n):
    """Parameters of every kind of support, one whose interval is another's, and five groups as many as records are traced."""
    top = numpyro.sample("top", dist.Gamma(3, 1))
    share = numpyro.sample("share", dist.Uniform(0, top))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate("groups", 5):
        effect = numpyro.sample("effect", dist.Normal(0, top))
    cuts = numpyro.sample("cuts", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.deterministic("sum", top + share)
    with numpyro.plate("people", n):
        group = numpyro.sample("group", dist.Categorical(weights))
        numpyro.sample("y", dist.Normal(effect[group] + share, 1 + jnp.exp(cuts[0])))


def test_constrained_and_grouped_parameters_go_to_free_vectors_and_back():
    model = nw.models.from_numpyro(hierarchical)
    assert model.columns == ("group", "y")
    assert list(model.parameters) == ["top", "share", "weights", "effect", "cuts"]
    assert model.parameters["weights"].support == "simplex"
    assert model.free_size == 1 + 1 + 4 + 5 + 3

    @jax.jit
    def look(key):
        theta = model.sample_prior(key)
        free = model.unconstrain(theta)
        back = model.constrain(free)

        # the last weight follows from the others, so that the Jacobian is that of the first four
        def flat(z):
            parts = model.constrain(z).items()
            return jnp.concatenate([jnp.ravel(v)[: 4 if name == "weights" else None] for name, v in parts])

        jacobian = jnp.linalg.slogdet(jax.jacfwd(flat)(free))[1]
        return theta, back, model.log_prior_free(free), model.log_prior(theta) + jacobian, model.log_prior(theta)

    theta, back, free, expected, prior = look(jax.random.key(4))
    for name, value in theta.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-9, err_msg=name)
    assert float(free) == pytest.approx(float(expected), rel=1e-9)
    top = float(theta["top"])
    law = stats.gamma(3).logpdf(top) - np.log(top) + stats.dirichlet(np.ones(5)).logpdf(theta["weights"])
    law += stats.norm(0, top).logpdf(theta["effect"]).sum() + stats.norm.logpdf(theta["cuts"]).sum()
    assert float(prior) == pytest.approx(law, rel=1e-9)


def wrong(kind):
    def program(n):
        mean = numpyro.sample(
            "mean", dist.Bernoulli(0.5) if kind == "discrete" else dist.Normal(0, n if kind == "prior" else 1)
        )
        if kind == "observed":
            numpyro.sample("seen", dist.Normal(mean, 1), obs=jnp.array(1.0))
        if kind == "factor":
            numpyro.factor("more", -(mean**2))
        if kind == "control":
            mean = mean if mean > 0 else -mean
        with numpyro.plate("people", n if kind != "no plate" else 3):
            if kind == "wide":
                return numpyro.sample("x", dist.Normal(jnp.zeros(2), 1).to_event(1))
            hidden = numpyro.sample("hidden", dist.Normal(0, 1)) if kind == "left" else 0.0
            return numpyro.sample("x", dist.Normal(mean + hidden, jnp.arange(1.0, n + 1) if kind == "by place" else 1))

    return program


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("discrete", "parameter site 'mean' is discrete; sum it out"),
        ("prior", "the prior free of n"),
        ("by place", "each with the same law"),
        ("observed", "NumPyro site 'seen' is a parameter to optimise, observed"),
        ("factor", "NumPyro site 'more' is .* a factor"),
        ("control", r"could not be run as model\(5\), 5 records: TracerBoolConversionError"),
        ("no plate", r"record site 'x' must be one number for each record.* has shape \(3,\) and it is in no such plate"),
        ("wide", r"record site 'x' must be one number for each record.* has shape \(5, 2\)"),
        ("left", r"sites \['hidden'\] are in a plate of the records, but are not named"),
    ],
)  # fmt: skip
def test_programs_that_are_no_model_of_records_get_a_sentence(kind, sentence):
    with pytest.raises(ValueError, match=sentence):
        nw.models.from_numpyro(wrong(kind), records=["x"])


def test_records_that_are_not_there_get_a_sentence():
    with pytest.raises(ValueError, match=r"records must name sites .*\['mean', 'x'\]; got \['y'\]"):
        nw.models.from_numpyro(wrong("fine"), records=["y"])
    with pytest.raises(ValueError, match=r"None of the NumPyro model's sites \['mean', 'x'\] is in a numpyro.plate"):
        nw.models.from_numpyro(wrong("no plate"))
    with pytest.raises(ValueError, match="has no parameters"):
        nw.models.from_numpyro(in_plate)
    with pytest.raises(ValueError, match="must be a NumPyro program"):
        nw.models.from_numpyro("normal")
    with pytest.raises(ValueError, match=r"could not be run as model\(5\), 5 records: TypeError"):
        nw.models.from_numpyro(lambda: None)


def test_without_numpyro_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ValueError, match=r"pip install 'noisewise\[numpyro\]'"):
        nw.models.from_numpyro(in_plate)


def in_plate(n):
    with numpyro.plate("people", n):
        numpyro.sample("x", dist.Normal(0, 1))


# the same regression three times ---------------------------------------------------------------------------------------

BOUNDS = nw.Column(-6, 6, rescale=(-1, 1))
QUERY = nw.queries.regression_moments({"dose": BOUNDS}, {"relief": BOUNDS})
RELEASE = nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(0.6), [2.7, 3.9, 2.4, 2.1, 1.2])], n=20)
BUILT_IN = nw.models.LinearRegression(
    ("dose",), "relief", coef_scale=1.5, variance=1.2, covariate_mean=[0.6], covariate_cov=[[1.0]]
)


def regression():
    def program(n):
        beta = numpyro.sample("beta", dist.Normal(0, 1.5).expand([2]).to_event(1))
        with numpyro.plate("people", n):
            dose = numpyro.sample("dose", dist.Normal(0.6, 1.0))
            numpyro.sample("relief", dist.Normal(beta[0] + beta[1] * dose, jnp.sqrt(1.2)))

    return nw.models.from_numpyro(program, records=["dose", "relief"])


def custom():
    def transform(theta, u):
        dose = 0.6 + u[:, 0]
        return {"dose": dose, "relief": theta["beta"][0] + theta["beta"][1] * dose + jnp.sqrt(1.2) * u[:, 1]}

    def log_likelihood(theta, records):
        centre = theta["beta"][0] + theta["beta"][1] * records["dose"]
        return jstats.norm.logpdf(records["dose"], 0.6) + jstats.norm.logpdf(records["relief"], centre, jnp.sqrt(1.2))

    return nw.models.Custom(
        sample_prior=lambda key: {"beta": 1.5 * jax.random.normal(key, (2,))},
        innovations=lambda key, n: jax.random.normal(key, (n, 2)),
        transform=transform,
        log_prior=lambda theta: jnp.sum(jstats.norm.logpdf(theta["beta"], 0, 1.5)),
        log_likelihood=log_likelihood,
    )


def posterior(model, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        tree = nw.sample(model, RELEASE, draws=2500, tune=500, chains=4, random_seed=1, progressbar=False, **how)
    return tree.posterior["beta"].values


def gaps(found, expected):
    """Differences of means, squares and cross products, in their standard errors."""

    def functions(beta):
        return [beta[..., 0], beta[..., 1], beta[..., 0] ** 2, beta[..., 1] ** 2, beta[..., 0] * beta[..., 1]]

    def error(draws):
        assert array_stats.ess(draws, chain_axis=0, draw_axis=1) > 500
        return float(array_stats.mcse(draws, chain_axis=0, draw_axis=1, method="mean"))

    pairs = zip(functions(found), functions(expected), strict=True)
    return np.asarray([(a.mean() - b.mean()) / np.hypot(error(a), error(b)) for a, b in pairs])


def test_numpyro_custom_and_built_in_regressions_have_the_same_posterior(plain_start):
    expected = posterior(BUILT_IN)
    for model in (regression(), custom()):
        assert model.has_inverse
        assert np.max(np.abs(gaps(posterior(model), expected))) < 4
    # a prior of half the width is seen
    narrow = eqx.tree_at(lambda model: model.coef_scale, BUILT_IN, jnp.asarray(0.75))
    assert np.max(np.abs(gaps(posterior(narrow), expected))) > 8


def test_a_program_without_inverse_matches_an_exact_posterior(plain_start):
    def visits(n):
        rate = numpyro.sample("rate", dist.Gamma(3, 1))
        with numpyro.plate("people", n):
            numpyro.sample("x", dist.Poisson(rate))

    query = nw.queries.Moments({"x": nw.Column(0, 6)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(3.0), [14.0])], n=6)
    exact = nw.sample(nw.models.Poisson(3, 1), release, method="fourier", draws=4000, random_seed=1, progressbar=False)
    model = nw.models.from_numpyro(visits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        tree = nw.sample(model, release, draws=6000, tune=500, random_seed=2, progressbar=False)
    assert tree.attrs["noisewise_method"] == "augmentation"
    for power in (1, 2):
        draws = tree.posterior["rate"].values ** power
        error = float(array_stats.mcse(draws, chain_axis=0, draw_axis=1, method="mean"))
        truth = exact.posterior["rate"].values ** power
        assert abs(draws.mean() - truth.mean()) < 4 * np.hypot(error, truth.std() / np.sqrt(truth.size))


# kernels of BlackJAX ---------------------------------------------------------------------------------------------------

NORMAL = nw.models.Normal(mean_prior=(0.5, 1.0), variance_prior=(3.0, 2.0))
CLAMPED = nw.queries.Moments({"x": nw.Column(-1, 2)}, [{"x": 1}, {"x": 2}])
THREE = nw.Release([nw.Measurement(CLAMPED, nw.noise.Laplace(np.array([0.5, 1.0])), [0.0, 0.0])], n=3)


def mala(log_density, covariance):
    import blackjax

    return blackjax.mala(log_density, 0.3)


def nuts(log_density, covariance):
    import blackjax

    return blackjax.nuts(log_density, 0.5, covariance, max_num_doublings=2)


def tempered(log_density, covariance):
    return mala(lambda z: 0.6 * log_density(z), covariance)


def moved(build):
    engine = nw.engines.Augmentation(interweave=False, theta_move=build)
    return nw.calibration.geweke(NORMAL, THREE, method=engine, copies=6000, cycles=6, random_seed=3)


@pytest.mark.parametrize("build", [mala, nuts])
def test_a_blackjax_kernel_as_the_move_of_theta_keeps_the_joint_law(plain_start, build):
    pytest.importorskip("blackjax")
    found = moved(build)
    assert found.passed, str(found)


def test_a_kernel_of_another_target_is_seen_to_break_it(plain_start):
    pytest.importorskip("blackjax")
    found = moved(tempered)
    assert np.max(np.abs(found.z)) > 8


def test_what_is_no_algorithm_is_refused():
    walk = Walk(jnp.zeros(2), jnp.eye(2), jnp.eye(2), jnp.zeros(()), jnp.zeros(()))
    with pytest.raises(ValueError, match=r"theta_move must return an algorithm with init and step.*; got 3"):
        foreign(jax.random.key(0), jnp.sum, jnp.zeros(2), walk, lambda log_density, covariance: 3)
    with pytest.raises(ValueError, match="theta_move is called with the log density and the covariance, and failed"):
        foreign(jax.random.key(0), jnp.sum, jnp.zeros(2), walk, lambda log_density: None)


def test_a_kernel_that_carries_a_momentum_is_refused():
    blackjax = pytest.importorskip("blackjax")
    walk = Walk(jnp.zeros(2), jnp.eye(2), jnp.eye(2), jnp.zeros(()), jnp.zeros(()))

    def persistent(log_density, covariance):
        return blackjax.ghmc(log_density, 0.1, jnp.ones(2), 0.1, 0.1)

    with pytest.raises(ValueError, match="theta_move's algorithm must start from a position alone"):
        foreign(jax.random.key(0), lambda z: -jnp.sum(z**2), jnp.zeros(2), walk, persistent)


def test_a_hierarchy_written_non_centred_is_a_program_like_any_other():
    from numpyro.infer.reparam import LocScaleReparam

    def groups(n):
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 2):
            centre = numpyro.sample("centre", dist.Normal(0.5, spread))
        with numpyro.plate("people", n):
            numpyro.sample("x", dist.Normal(centre[0], 1.0))
            numpyro.sample("y", dist.Normal(centre[1], 1.0))

    model = nw.models.from_numpyro(numpyro.handlers.reparam(groups, config={"centre": LocScaleReparam(0)}))
    assert list(model.parameters) == ["spread", "centre_decentered"]
    assert model.has_inverse
    theta = {"spread": jnp.asarray(2.0), "centre_decentered": jnp.asarray([1.0, -1.0])}
    records = {"x": jnp.asarray([2.5, 3.0]), "y": jnp.asarray([-1.5, 0.0])}
    expected = stats.norm.logpdf([2.5, 3.0], 2.5) + stats.norm.logpdf([-1.5, 0.0], -1.5)
    np.testing.assert_allclose(model.log_likelihood(theta, records), expected, rtol=1e-12)
    prior = stats.halfnorm.logpdf(2.0) + stats.norm.logpdf([1.0, -1.0]).sum()
    np.testing.assert_allclose(model.log_prior(theta), prior, rtol=1e-12)
