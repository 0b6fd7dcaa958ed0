"""Two regions far apart: a run whose chains all sit in one of them says so, and a run with one region has nothing to say."""

import jax
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.elsewhere import doubts_elsewhere

N = 1000
QUERY = nw.queries.Moments({"x": nw.Column(-6, 6)}, [{"x": 2}, {"x": 4}])
MODEL = nw.models.Normal(mean_prior=(0.5, 3), sd=1)


def released(mean: float) -> nw.Release:
    """Expected sums of squares and fourth powers of N(mean, 1) records: they leave the sign of the mean open."""
    value = [N * (mean**2 + 1), N * (mean**4 + 6 * mean**2 + 3)]
    return nw.Release([nw.Measurement(QUERY, nw.noise.Laplace([10.0, 300.0]), value)], n=N)


def draws(*means: float) -> dict[str, np.ndarray]:
    """Chains of the width of the posterior, 1/sqrt(N), each in a place of its own."""
    normals = np.random.default_rng(1).normal(size=(len(means), 500))
    return {"mean": np.asarray(means)[:, None] + normals / np.sqrt(N)}


def doubts(mean: float, *means: float) -> tuple[str, ...]:
    return doubts_elsewhere(jax.random.key(1), MODEL, released(mean), draws(*means))


@pytest.mark.parametrize(("here", "there"), [(3.0, -3.0), (-3.0, 3.0)])
def test_a_region_that_no_chain_visits_is_named_with_its_share(here, there):
    (doubt,) = doubts(3.0, here, here, here)
    found = float(doubt.split("mean = ")[1].split(",")[0])
    assert abs(found - there) < 0.1
    # with equal likelihoods the prior decides, as exp(1/6) to exp(-1/6); the picture's 512 records blur its weights
    share = 1 / (1 + np.exp(np.sign(here) / 3))
    assert abs(float(doubt.split("with about ")[1].split("%")[0]) / 100 - share) < 0.12


def test_nothing_is_said_where_all_regions_are_visited_or_there_is_only_one():
    assert doubts(3.0, 3.0, -3.0) == ()
    sums = nw.queries.Moments({"x": nw.Column(-6, 6)}, [{"x": 1}, {"x": 2}])
    one = nw.Release([nw.Measurement(sums, nw.noise.Laplace(10.0), [3.0 * N, 10.0 * N])], n=N)
    assert doubts_elsewhere(jax.random.key(1), MODEL, one, draws(3.0, 3.0)) == ()


def test_chains_that_agree_on_one_of_two_regions_are_not_converged():
    start = {"mean": 3.0}
    settings = {"draws": 300, "tune": 100, "initvals": start, "random_seed": 1, "progressbar": False}
    with pytest.warns(nw.ConvergenceWarning, match="another region as well, about mean = -3"):
        dt = nw.sample(MODEL, released(3.0), **settings)
    assert dt.attrs["noisewise_converged"] == 0
    assert dt.attrs["noisewise_verdict"].startswith("NOT converged, although the chains agree with each other")
