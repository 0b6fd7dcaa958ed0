"""The augmentation engine against enumeration and quadrature, with every noise law that fits and every kind of move.

Each release publishes the same total several times, once with each noise law. The scales are data: a law is singled out by
giving the others a scale so wide that they say next to nothing (the reference counts them all the same), and one compiled
program serves all laws of a model.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats

import noisewise as nw
from noisewise.engines import augmentation
from noisewise.engines.surrogate import Surrogate
from reference import enumeration

LAWS = {
    "laplace": nw.noise.Laplace,
    "gaussian": nw.noise.Gaussian,
    "discrete_laplace": nw.noise.DiscreteLaplace,
    "discrete_gaussian": nw.noise.DiscreteGaussian,
}
WIDE = 300.0
X = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])


@pytest.fixture(autouse=True)
def _plain_start(monkeypatch):
    """Chains start from a wide normal law in unconstrained space: the surrogate has tests of its own and is slow to compile."""
    monkeypatch.setattr(
        augmentation,
        "fit_surrogate",
        lambda key, model, *_, **__: Surrogate(jnp.zeros(model.free_size), jnp.eye(model.free_size)),
    )
    monkeypatch.setattr(nw.engines.Augmentation, "doubts", lambda *_: ())


def published(laws, law, scale, released):
    """One copy of the total for each law, the chosen one with its scale; ``law="all"`` gives every law the scale."""
    return [
        (
            name,
            scale if law in (name, "all") else WIDE,
            np.round(released) if "discrete" in name else np.asarray(released),
        )
        for name in laws
    ]


def release_of(query, copies, n):
    return nw.Release(
        [nw.Measurement(query, LAWS[law](np.full(query.size, scale)), value) for law, scale, value in copies], n=n
    )


def run(model, release, engine=None, *, draws=3000, seed=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        return nw.sample(
            model,
            release,
            draws=draws,
            tune=400,
            chains=4,
            random_seed=seed,
            method=engine or nw.engines.Augmentation(),
            progressbar=False,
        )


def disagreements(draws: np.ndarray, reference) -> dict[str, float]:
    """How many Monte-Carlo standard errors each summary of draws (chain, draw) is from the reference's."""

    def stat(name, **how):
        return float(getattr(array_stats, name)(draws, chain_axis=0, draw_axis=1, **how))

    assert min(stat("ess", method="bulk"), stat("ess", method="tail", prob=(0.05, 0.95))) >= 2000
    found = {
        "mean": (draws.mean() - reference.mean) / stat("mcse", method="mean"),
        "sd": (draws.std() - reference.sd) / stat("mcse", method="sd"),
    }
    for probability in enumeration.PROBABILITIES:
        error = stat("mcse", method="quantile", prob=probability)
        found[f"quantile {probability}"] = (np.quantile(draws, probability) - reference.quantile(probability)) / error
    return found


def agree(draws, reference) -> None:
    found = disagreements(np.asarray(draws), reference)
    assert max(map(abs, found.values())) < 4, found


EVERY = tuple(LAWS)
CONTINUOUS = ("laplace", "gaussian")


def bernoulli(law="all", scale=1.0):
    copies = published(EVERY, law, scale, [4.3])
    return nw.models.Bernoulli(2, 1), release_of(X, copies, 6), enumeration.bernoulli(6, 2.0, 1.0, copies)


@pytest.mark.parametrize("law", [*EVERY, "all"])
def test_beta_bernoulli_matches_enumeration(law):
    model, release, reference = bernoulli(law)
    agree(run(model, release).posterior["p"], reference)


def flip(key, theta, records):
    """A record proposal that is not the model's: ones turn to zeros more often than zeros to ones."""
    x, p = records["x"], theta["p"]
    turned = jax.random.uniform(key, x.shape) < jnp.where(x == 1, 0.8, 0.3)
    log_ratio = jnp.log(jnp.where(x == 1, 0.3 * (1 - p) / (0.8 * p), 0.8 * p / (0.3 * (1 - p))))
    return {"x": jnp.where(turned, 1 - x, x)}, jnp.where(turned, log_ratio, 0.0)


def flip_without_ratio(key, theta, records):
    proposed, _ = flip(key, theta, records)
    return proposed, jnp.zeros(records["x"].shape)


MOVES = {
    "the paper's sampler": nw.engines.Augmentation(interweave=False, block=1),
    "random walk, blocks of two, half of the records": nw.engines.Augmentation(
        interweave=False, theta_move="random_walk", block=2, fraction=0.5
    ),
    "Hamiltonian and elliptical slice": nw.engines.Augmentation(theta_move="hmc", move="elliptical_slice"),
    "own record proposal": nw.engines.Augmentation(record_proposal=flip, block=1, fraction=0.7),
}


@pytest.mark.parametrize("moves", MOVES)
def test_every_move_matches_enumeration(moves):
    model, release, reference = bernoulli(scale=3.0)
    agree(run(model, release, MOVES[moves], draws=4000).posterior["p"], reference)


def test_a_record_proposal_without_its_ratio_is_seen_to_be_wrong():
    model, release, reference = bernoulli(scale=3.0)
    dt = run(model, release, nw.engines.Augmentation(record_proposal=flip_without_ratio, block=1, fraction=0.7))
    assert max(map(abs, disagreements(dt.posterior["p"].values, reference).values())) > 8


def test_the_naive_answer_is_seen_to_be_wrong():
    model, release, _ = bernoulli("laplace", 0.6)
    _, _, reference = bernoulli("laplace", 1.0)
    dt = run(model, release, draws=20_000)
    assert max(map(abs, disagreements(dt.posterior["p"].values, reference).values())) > 8


@pytest.mark.parametrize("law", EVERY)
def test_dirichlet_categorical_matches_enumeration(law):
    alpha = np.array([1.0, 2.0, 1.5])
    query = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])
    copies = published(EVERY, law, 1.5, [3.4, -0.7, 2.2])
    dt = run(nw.models.Categorical(alpha), release_of(query, copies, 5))
    for j, reference in enumerate(enumeration.categorical(5, alpha, copies)):
        agree(dt.posterior["p"][..., j], reference)


@pytest.mark.parametrize("law", EVERY)
def test_clamped_poisson_matches_enumeration(law):
    query = nw.queries.Moments({"x": nw.Column(0, 4)}, [{"x": 1}])
    copies = published(EVERY, law, 2.0, [9.2])
    dt = run(nw.models.Poisson(2.0, 0.8), release_of(query, copies, 4))
    agree(dt.posterior["rate"], enumeration.poisson(4, 2.0, 0.8, 4, copies))


@pytest.mark.parametrize("law", CONTINUOUS)
def test_clamped_normal_mean_matches_quadrature(law):
    query = nw.queries.Moments({"x": nw.Column(-1, 2)}, [{"x": 1}])
    copies = published(CONTINUOUS, law, 0.6, [3.1])
    dt = run(nw.models.Normal(mean_prior=(0.5, 2), sd=1.0), release_of(query, copies, 2))
    agree(dt.posterior["mean"], enumeration.normal_mean((0.5, 2.0), 1.0, (-1.0, 2.0), copies))


@pytest.mark.parametrize("law", CONTINUOUS)
def test_one_record_regression_matches_quadrature(law):
    unit = nw.Column(-4, 4, rescale=(-1, 1))
    query = nw.queries.regression_moments({"x": nw.Column(-1, 1)}, {"y": unit})
    copies = published(CONTINUOUS, law, 0.5, [0.8, 0.5, 0.4, 0.3, 0.6])
    model = nw.models.LinearRegression(
        ("x",), "y", coef_scale=2.0, variance=0.5, covariate_mean=[0.4], covariate_cov=[[0.8]]
    )

    def statistic(x, y):
        x, y = np.clip(x, -1, 1), np.clip(y, -4, 4) / 4
        return np.stack([y, x * y, y**2, x, x**2], axis=-1)

    dt = run(model, release_of(query, copies, 1), draws=4000)
    references = enumeration.regression(2.0, 0.5, (0.4, np.sqrt(0.8)), statistic, copies)
    for j, reference in enumerate(references):
        agree(dt.posterior["beta"][..., j], reference)


@pytest.mark.parametrize("law", EVERY)
def test_tiny_naive_bayes_matches_enumeration(law):
    query = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
    copies = published(EVERY, law, 1.2, [1.6, 0.3, -0.8, 3.1])
    dt = run(nw.models.NaiveBayes(2, [2], prior=1.5), release_of(query, copies, 4))
    reference = enumeration.naive_bayes(4, 1.5, copies)
    agree(dt.posterior["class_probs"][..., 0], reference["class 0"])
    for i in range(2):
        agree(dt.posterior["feature_probs_1"][..., i, 0], reference[f"feature 0 of class {i}"])
