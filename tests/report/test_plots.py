"""The pictures of nw.plots say in words what they draw, and draw the numbers they are given."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import noisewise as nw
from noisewise.pricing import Price

QUERY = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
LAWS = {"prior": (1, 1), "naive": (32, 30)}


@pytest.fixture(scope="module")
def tree():
    rng = np.random.default_rng(1)
    release = nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(2.0), [31.0])], n=60)
    dt = nw.sample(nw.models.Bernoulli(), release, draws=300, chains=2, random_seed=1, progressbar=False)
    groups = {kind: xr.Dataset({"p": (("chain", "draw"), rng.beta(*law, (1, 500)))}) for kind, law in LAWS.items()}
    for kind, group in groups.items():
        dt[kind] = xr.DataTree(group)
    return dt


def test_compare_draws_prior_naive_and_posterior(tree):
    figure = nw.plots.compare(tree)
    (axes,) = figure.axes
    assert len(axes.lines) == 3
    for kind in ("prior mean", "naive mean", "posterior mean"):
        assert kind in figure.get_label()
    assert [text.get_text() for text in figure.legends[0].texts] == ["prior", "naive", "posterior"]


def test_prior_posterior_leaves_the_naive_out(tree):
    label = nw.plots.prior_posterior(tree, var_names="p").get_label()
    assert "prior mean" in label
    assert "naive" not in label


def test_intervals_are_those_of_the_draws_at_the_level(tree):
    figure = nw.plots.intervals(tree, level=0.5)
    low, high = np.quantile(tree["posterior"]["p"].values, [0.25, 0.75])
    assert tuple(figure.axes[0].lines[0].get_xdata()) == (low, high)
    assert "50% intervals" in figure.get_label()


def test_release_draws_every_number_with_the_spread_of_its_noise(tree):
    figure = nw.plots.release(tree, level=0.9)
    (bar,) = figure.axes[0].collections[0].get_segments()
    half = stats.norm.ppf(0.95) * np.sqrt(2) * 2.0  # the standard deviation of Laplace noise of scale 2
    np.testing.assert_allclose(bar[:, 0], [31 - half, 31 + half])
    assert figure.axes[0].lines[0].get_xdata()[0] == 31.0


def test_predictive_names_the_numbers_that_the_model_does_not_explain(tree):
    assert "1 inside their 90% interval" in nw.plots.predictive(tree).get_label()
    far = tree.copy(deep=True)
    far["observed_data"][next(iter(far["observed_data"].data_vars))].values[...] = 500.0
    assert "0 inside their 90% interval, outside: x" in nw.plots.predictive(far).get_label()


def test_mixing_has_a_trace_and_ranks_for_every_chain(tree):
    figure = nw.plots.mixing(tree)
    left, right = figure.axes
    assert len(left.lines) == 2
    assert len(right.patches) == 2
    assert "in 2 chains of 300 draws" in figure.get_label()


def test_price_stacks_to_the_whole_variance():
    one = np.ones(2)
    parts = {"prior": 0.1 * one, "sampling": 0.2 * one, "clamping": 0.3 * one, "noise": 0.4 * one}
    cost = Price(("a", "b"), 10, one, **parts, lost_to_clamping=one, lost_to_noise=one, stages=one, errors={}, notes=())
    figure = nw.plots.price(cost)
    ends = [patch.get_x() + patch.get_width() for patch in figure.axes[0].patches]
    np.testing.assert_allclose(max(ends), 1.0)
    assert (
        "a: 10% prior, 20% sampling of the records, 30% clamping and summing, 40% privacy noise" in figure.get_label()
    )


def test_what_cannot_be_drawn_is_said(tree):
    bare = tree.copy()
    for kind in ("prior", "naive"):
        del bare[kind]
    bare.attrs |= {"noisewise_model_expression": ""}
    with pytest.raises(ValueError, match="give model="):
        nw.plots.compare(bare)
    with pytest.raises(ValueError, match="var_names has 'q'"):
        nw.plots.compare(tree, var_names=["q"])
    for draw in (nw.plots.compare, nw.plots.intervals, nw.plots.mixing, nw.plots.release, nw.plots.predictive):
        for other in (xr.DataTree(), 3, None):
            with pytest.raises(ValueError, match="A plot needs a DataTree with a posterior"):
                draw(other)
    for draw in (nw.plots.intervals, nw.plots.release, nw.plots.predictive):
        with pytest.raises(ValueError, match="level must be"):
            draw(tree, level=1.5)
    with pytest.raises(ValueError, match="var_names must name variables"):
        nw.plots.mixing(tree, var_names=3)
    with pytest.raises(ValueError, match="model must be the model of the run"):
        nw.plots.compare(bare, model="Normal")
    with pytest.raises(ValueError, match="holds no price"):
        nw.plots.price(3)
    with pytest.raises(ValueError, match="holds no price"):
        nw.plots.price(tree)
    del bare["posterior_predictive"]
    with pytest.raises(ValueError, match="no posterior predictive"):
        nw.plots.predictive(bare)
