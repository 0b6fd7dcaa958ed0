"""The split of the posterior variance against closed forms and against exact sums with clamping."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import noisewise as nw
from noisewise.engines import augmentation
from noisewise.engines.surrogate import Surrogate
from noisewise.pricing import Price
from noisewise.result import document_of

PARTS = ("prior", "sampling", "clamping", "noise", "lost_to_clamping", "lost_to_noise")


@pytest.fixture(autouse=True)
def _plain_start(monkeypatch):
    """Chains start from a wide normal law: the surrogate has tests of its own and is slow to compile."""
    monkeypatch.setattr(
        augmentation,
        "fit_surrogate",
        lambda key, model, *_, **__: Surrogate(jnp.zeros(model.free_size), jnp.eye(model.free_size)),
    )


def tree_with(release: nw.Release, name: str, sd: float) -> xr.DataTree:
    """A result that knows the sd of its one parameter exactly."""
    value = np.asarray(release.measurements[0].value)
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({name: (("chain", "draw"), np.zeros((1, 2)))}),
            "observed_data": xr.Dataset({"m0": ("m0_dim_0", value)}),
            "exact": xr.Dataset({f"{name}_sd": sd}),
        }
    )


def split(v0: float, v1: float, v2: float, v3: float, n: int) -> dict[str, float]:
    """The parts as the documentation defines them."""
    d1, d2, d3 = (1 / (1 / v - 1 / v0) for v in (v1, v2, v3))
    data = (1 - v3 / v0) * v3
    return {
        "prior": v3**2 / v0,
        "sampling": data * d1 / d3,
        "clamping": data * (d2 - d1) / d3,
        "noise": data * (d3 - d2) / d3,
        "lost_to_clamping": n * (1 - d1 / d2),
        "lost_to_noise": n * (d1 / d2 - d1 / d3),
    }


def priced(tree, model, release, **how) -> Price:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        return nw.price(tree, model, release, random_seed=3, progressbar=False, **how)


def disagreements(found: Price, reference: dict[str, float]) -> dict[str, float]:
    return {part: float((getattr(found, part)[0] - reference[part]) / found.errors[part][0]) for part in PARTS}


TAU, SD, N = 1.0, 1.5, 30
WIDE = nw.queries.Moments({"x": nw.Column(-1000, 1000)}, [{"x": 1}])


def conjugate(noise: float) -> tuple[xr.DataTree, nw.models.Normal, nw.Release, dict[str, float]]:
    release = nw.Release([nw.Measurement(WIDE, nw.noise.Gaussian(noise), [20.0])], n=N)
    estimate = SD**2 / N + noise**2 / N**2
    variance = 1 / (1 / TAU**2 + 1 / estimate)
    tree = tree_with(release, "mean", np.sqrt(variance))
    # Var(w m0 + (1 - w) estimate) = w^2 tau^2 + (1 - w)^2 (sigma^2 / n + noise^2 / n^2), w the weight of the prior
    weight = (1 / TAU**2) / (1 / TAU**2 + 1 / estimate)
    reference = {
        "prior": weight**2 * TAU**2,
        "sampling": (1 - weight) ** 2 * SD**2 / N,
        "clamping": 0.0,
        "noise": (1 - weight) ** 2 * noise**2 / N**2,
        "lost_to_clamping": 0.0,
        "lost_to_noise": N - SD**2 / estimate,
    }
    return tree, nw.models.Normal((0, TAU), sd=SD), release, reference


@pytest.mark.parametrize("noise", [3.0, 12.0, 60.0])
def test_a_normal_mean_is_split_as_its_closed_form(noise):
    tree, model, release, reference = conjugate(noise)
    found = priced(tree, model, release)
    off = disagreements(found, reference)
    assert max(map(abs, off.values())) < 4, off
    total = found.prior + found.sampling + found.clamping + found.noise
    np.testing.assert_allclose(total, found.variance, rtol=1e-12)
    # the errors are small enough for that to mean something
    assert found.errors["lost_to_noise"][0] < 1.0
    assert found.errors["sampling"][0] < 0.1 * found.variance[0]


def test_a_split_for_another_scale_of_the_noise_is_seen_to_be_wrong():
    tree, model, release, _ = conjugate(12.0)
    *_, wrong = conjugate(15.0)
    off = disagreements(priced(tree, model, release), wrong)
    assert abs(off["lost_to_noise"]) > 4


def poisson_stages(shape, rate, n, upper, scale, value) -> tuple[float, float, float, float]:
    """V0, V1, V2, V3 of a Poisson rate: sums over the joint law of the sum of records and the sum of clamped records."""
    most = 60
    joint = np.zeros((most + 1, n * upper + 1))
    joint[0, 0] = 1.0
    # with a rate integrated out at the end, a composition of counts has the weight prod 1 / x!
    one = 1 / np.cumprod(np.concatenate([[1.0], np.arange(1.0, most + 1)]))
    for _ in range(n):
        grown = np.zeros_like(joint)
        for x in range(most + 1):
            c = min(x, upper)
            grown[x:, c:] += one[x] * joint[: most + 1 - x, : joint.shape[1] - c]
        joint = grown
    sums = np.arange(most + 1)
    # p(sum, total) = joint(sum, total) E[rate^sum exp(-n rate)]
    prior_factor = stats.nbinom.pmf(sums, shape, rate / (rate + n))
    multinomial = joint.sum(axis=1)
    mass = joint / multinomial[:, None] * prior_factor[:, None]
    mass = mass / mass.sum()
    totals = np.arange(joint.shape[1])
    given = mass * stats.laplace.pdf(value - totals, scale=scale)
    given = given / given.sum()
    a, b = shape + sums, rate + n
    mean, square = a / b, a * (a + 1) / b**2
    by_total = given.sum(axis=0)
    total_mean = (given * mean[:, None]).sum(axis=0) / by_total
    total_square = (given * square[:, None]).sum(axis=0) / by_total
    v1 = float(np.sum(given.sum(axis=1) * a / b**2))
    v2 = float(np.sum(by_total * (total_square - total_mean**2)))
    grand = float(np.sum(by_total * total_mean))
    v3 = float(np.sum(by_total * total_square) - grand**2)
    return shape / rate**2, v1, v2, v3


def test_clamped_counts_are_split_as_exact_sums_say():
    shape, rate, n, upper, scale, value = 4.0, 2.0, 12, 2, 2.0, 17.4
    query = nw.queries.Moments({"x": nw.Column(0, upper)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), [value])], n=n)
    stages = poisson_stages(shape, rate, n, upper, scale, value)
    assert stages[1] < 0.9 * stages[2] < 0.81 * stages[3]
    tree = tree_with(release, "rate", np.sqrt(stages[3]))
    found = priced(tree, nw.models.Poisson(shape, rate), release, draws=4000)
    off = disagreements(found, split(*stages, n))
    assert max(map(abs, off.values())) < 4, (off, found.stages, stages)
    # a split that takes the totals for the records has no clamping, and is seen to be wrong
    assert abs(disagreements(found, split(stages[0], stages[1], stages[1], stages[3], n))["clamping"]) > 4


def test_a_posterior_as_wide_as_the_prior_is_put_down_to_the_prior():
    _, model, release, _ = conjugate(60.0)
    found = priced(tree_with(release, "mean", 1.5 * TAU), model, release)
    assert found.prior[0] == found.variance[0] == pytest.approx(2.25)
    assert found.lost_to_noise[0] == N
    assert "as wide as the prior" in str(found)


def test_results_of_something_else_are_refused():
    tree, model, release, _ = conjugate(12.0)
    other = nw.Release([nw.Measurement(WIDE, nw.noise.Gaussian(12.0), [21.0])], n=N)
    with pytest.raises(ValueError, match="another release"):
        nw.price(tree, model, other)
    wide = nw.Release([nw.Measurement(WIDE, nw.noise.Gaussian(13.0), [20.0])], n=N)
    document = xr.Dataset(attrs={"document": document_of(release)})
    with pytest.raises(ValueError, match="its values are the same"):
        nw.price(xr.DataTree.from_dict({**tree.to_dict(), "release": document}), model, wide)
    with pytest.raises(ValueError, match=r"result of nw\.sample first"):
        nw.price(0.3, model, release)
    with pytest.raises(ValueError, match="another model"):
        nw.price(tree, nw.models.Poisson(1, 1), release)
    counted = nw.queries.Moments({"x": nw.Column(-5, 5)}, [{}, {"x": 1}])
    unknown = nw.Release(
        [nw.Measurement(counted, nw.noise.Laplace(1.0), [9.0, 4.0])], n=None, neighbours="add_remove_one"
    )
    with pytest.raises(ValueError, match="known n"):
        nw.price(tree, nw.models.UnknownSize(nw.models.Normal(), upper=20), unknown)


def test_a_result_that_holds_model_and_release_is_priced_by_itself(tmp_path):
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(3.0), [17.0])], n=40)
    model = nw.models.Bernoulli(2, 3)
    tree = nw.sample(model, release, random_seed=1, progressbar=False)
    tree.to_netcdf(tmp_path / "out.nc")
    how = {"draws": 200, "tune": 200, "random_seed": 1, "progressbar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nw.ConvergenceWarning)
        alone = nw.price(xr.open_datatree(tmp_path / "out.nc"), **how)
        assert str(alone) == str(nw.price(tree, model, release, **how))
    tree.attrs |= {"noisewise_model_expression": ""}
    with pytest.raises(ValueError, match="does not hold its model"):
        nw.price(tree)
