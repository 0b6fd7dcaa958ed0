"""Bands and p-values of ranks against enumeration, and discrepancies against their definition."""

import itertools

import numpy as np
import pytest
from scipy import stats

import noisewise as nw
from noisewise.calibration.uniformity import band, below, rank_p_value

LARGEST = 3


def farthest(ranks):
    """The smallest doubled binomial tail of the counts below 1..LARGEST, by sums of the mass function."""
    worst = 1.0
    for i in range(1, LARGEST + 1):
        count = sum(rank < i for rank in ranks)
        mass = stats.binom.pmf(np.arange(len(ranks) + 1), len(ranks), i / (LARGEST + 1))
        worst = min(worst, 2 * mass[: count + 1].sum(), 2 * mass[count:].sum())
    return worst


def test_the_p_value_is_the_share_of_all_rank_tables_that_are_as_far_out():
    tables = list(itertools.product(range(LARGEST + 1), repeat=4))
    depths = np.array([farthest(table) for table in tables])
    for table, depth in zip(tables, depths, strict=True):
        expected = np.mean(depths <= depth * (1 + 1e-9))
        assert rank_p_value(np.array(table), LARGEST) == pytest.approx(expected, abs=1e-12)


def test_the_band_holds_all_of_the_distribution_as_often_as_it_says():
    z, low, high = band(80, 20, 0.9)
    ranks = np.random.default_rng(1).integers(0, 21, size=(20_000, 80))
    shares = np.array([below(row, 20) for row in ranks]) / 80
    inside = np.all((shares >= low) & (shares <= high), axis=1)
    error = np.sqrt(0.9 * 0.1 / len(ranks))
    # counts are whole, so the band cannot hold exactly 90%
    assert 0.9 - 3 * error < inside.mean() < 0.93
    pointwise = np.array(stats.binom(80, z).interval(0.9)) / 80
    assert np.all((shares >= pointwise[0]) & (shares <= pointwise[1]), axis=1).mean() < 0.7


def test_p_values_of_uniform_ranks_are_uniform_and_of_bent_ranks_are_not():
    rng = np.random.default_rng(2)
    p_values = [rank_p_value(rng.integers(0, 51, size=100), 50) for _ in range(400)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    bent = np.floor(51 * rng.beta(1.3, 1.3, size=(100, 100))).astype(int)
    assert np.mean([rank_p_value(row, 50) < 0.05 for row in bent]) > 0.15


def test_ks_uniform_is_the_largest_gap_to_the_diagonal():
    values = np.random.default_rng(3).random(40)
    ordered = np.sort(values)
    gaps = np.maximum(np.arange(1, 41) / 40 - ordered, ordered - np.arange(40) / 40)
    found = nw.calibration.ks_uniform(values)
    assert found == pytest.approx(gaps.max())
    assert found.pvalue > 0.01
    assert nw.calibration.ks_uniform(values**3).pvalue < 1e-6


@pytest.mark.parametrize("values", [[], [0.2, 1.4], [np.nan, 0.5]])
def test_ks_uniform_refuses_what_is_not_in_the_unit_interval(values):
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        nw.calibration.ks_uniform(values)


def test_mmd_is_its_definition_and_unbiased():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(7, 2)), rng.normal(size=(5, 2)) + 0.3

    def kernel(a, b):
        return np.exp(-np.sum((a - b) ** 2) / (2 * 0.8**2))

    inside_x = np.mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    inside_y = np.mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    between = np.mean([kernel(a, b) for a in x for b in y])
    expected = inside_x + inside_y - 2 * between
    assert nw.calibration.mmd(x, y, bandwidth=0.8) == pytest.approx(expected, abs=1e-14)
    assert nw.calibration.mmd(x, y, bandwidth=0.8, root=True) == pytest.approx(np.sqrt(abs(expected)))
    draws = rng.normal(size=(400, 2, 30))
    values = np.array([nw.calibration.mmd(*pair, bandwidth=1.0) for pair in draws])
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(400)
    # N(0, 1) against N(1, 1), kernel width 1: 2 / sqrt(3) (1 - exp(-1/6))
    apart = np.array([nw.calibration.mmd(a, b + 1, bandwidth=1.0) for a, b in draws])
    closed = 2 / np.sqrt(3) * (1 - np.exp(-1 / 6))
    assert abs(apart.mean() - closed) < 4 * apart.std() / np.sqrt(400)


def test_the_bandwidth_is_the_median_distance_between_the_samples():
    x, y = np.zeros(10), np.full(10, 3.0)
    assert nw.calibration.mmd(x, y) == pytest.approx(2 * (1 - np.exp(-0.5)))


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ([1.0], [1.0, 2.0], "left must be at least two finite draws"),
        ([1.0, 2.0], [1.0, np.inf], "right must be at least two finite draws"),
        (np.zeros((3, 2)), np.zeros((3, 4)), "equally long rows"),
        ([1.0, 1.0], [1.0, 1.0], "bandwidth must be positive"),
        ("draws", [1.0, 2.0], "left must be draws"),
    ],
)
def test_mmd_refuses_samples_it_cannot_compare(left, right, words):
    with pytest.raises(ValueError, match=words):
        nw.calibration.mmd(left, right)
