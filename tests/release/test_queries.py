"""Exact totals from every kind of table, and sensitivities against brute force over pairs of records."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import noisewise as nw

UNIT = nw.Column(-10, 10, rescale=(-1, 1))
RAW = {"x": [0.5, -12.0, 3.0, 9.0], "y": [2.0, 2.0, -1.0, 30.0], "k": [0, 2, 1, 2], "j": [1, 1, 0, 1]}
MOMENTS = nw.queries.Moments({"x": nw.Column(-4, 8), "y": nw.Column(0, 10)}, [{}, {"x": 1}, {"x": 2, "y": 1}])
COUNTS = nw.queries.Counts(levels={"k": 3, "j": 2}, tables=[("k", "j"), ("j",)])


def regression(p: int, column: nw.Column = UNIT, **options):
    return nw.queries.regression_moments({f"x{i + 1}": column for i in range(p)}, {"y": column}, **options)


TABLES = {
    "dict of lists": RAW,
    "dict of numpy": {name: np.asarray(values) for name, values in RAW.items()},
    "dict of jax": {name: jnp.asarray(values) for name, values in RAW.items()},
    "pandas": pd.DataFrame(RAW),
    "polars": pl.DataFrame(RAW),
    "arrow": pa.table(RAW),
    "arrow batch": pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in RAW.items()}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_totals_are_exact_from_every_kind_of_table(kind):
    # x clamped: .5, -4, 3, 8; y clamped: 2, 2, 0, 10
    assert MOMENTS(TABLES[kind]).tolist() == [4.0, 7.5, 0.25 * 2 + 16 * 2 + 0 + 64 * 10]
    joint, margin = COUNTS(TABLES[kind])
    assert joint.tolist() == [[0, 1], [1, 0], [0, 2]]
    assert margin.tolist() == [1, 3]


def test_booleans_of_arrow_are_numbers_in_every_container():
    query = nw.queries.Moments({"b": nw.Column(0, 1)}, [{"b": 1}])
    flags = pa.array([True, False, True, True])
    for records in ({"b": flags}, pa.table({"b": flags}), pa.RecordBatch.from_arrays([flags], ["b"])):
        assert query(records).tolist() == [3.0]


def test_totals_are_the_sums_of_the_rows_that_engines_use():
    records = {name: jnp.asarray(values) for name, values in RAW.items()}
    for query in (MOMENTS, COUNTS):
        np.testing.assert_allclose(query.flatten(query(RAW)), query.statistics(records).sum(axis=0), rtol=1e-15)


def test_float_sums_are_rounded_once_whatever_the_order():
    values = np.random.default_rng(3).normal(size=500) * 10.0 ** np.random.default_rng(4).integers(-8, 8, 500)
    query = nw.queries.Moments({"x": nw.Column(-1e9, 1e9)}, [{"x": 1}])
    wanted = float(sum(map(Fraction, values.tolist())))
    assert query({"x": values})[0] == query({"x": values[::-1]})[0] == wanted
    assert float(np.cumsum(values)[-1]) != wanted  # a plain running sum is seen to be wrong


def test_rescaled_columns_map_their_bounds_to_the_interval():
    clamped = nw.Column(0, 4, rescale=(-1, 1)).clamp(jnp.asarray([-1.0, 0.0, 1.0, 4.0, 9.0]))
    assert clamped.tolist() == [-1, -1, -0.5, 1, 1]


def test_regression_moments_come_in_the_documented_order():
    assert regression(2).labels == ("y", "x1 y", "x2 y", "y^2", "x1", "x2", "x1^2", "x1 x2", "x2^2")
    assert [regression(p).size for p in (1, 2, 4)] == [5, 9, 20]  # (p + 1)(p + 2)/2 + (p + 1), as the paper counts


def brute_sensitivity(query, points, norm: str, neighbours: str) -> float:
    """The largest change over all pairs of the given records (columns of a grid)."""
    rows = np.asarray(query.statistics({name: jnp.asarray(column) for name, column in points.items()}))
    change = rows[:, None, :] - rows[None, :, :] if neighbours == "replace_one" else rows
    return float(np.max(np.linalg.norm(change, ord=1 if norm == "l1" else 2, axis=-1)))


def grid(query, count: int):
    axes = [np.linspace(column.lower, column.upper, count) for _, column in query.bounds]
    mesh = np.meshgrid(*axes)
    return {name: part.reshape(-1) for name, part in zip(query.columns, mesh, strict=True)}


MIXED = nw.queries.Moments({"x": nw.Column(-1, 2), "y": nw.Column(-3, -1)}, [{"x": 2, "y": 1}, {"y": 3}, {"x": 1}, {}])


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove_one"])
@pytest.mark.parametrize("query", [MOMENTS, MIXED, regression(1), regression(1, nw.Column(1, 3))], ids=range(4))
def test_moments_sensitivity_is_safe_and_the_joint_search_meets_brute_force(query, norm, neighbours):
    brute = brute_sensitivity(query, grid(query, 31), norm, neighbours)
    joint = query.joint_sensitivity(norm, neighbours)
    assert query.sensitivity(norm, neighbours) >= joint * (1 - 1e-12)
    assert joint >= brute * (1 - 1e-12)
    assert joint <= brute * 1.01  # the grid's own coarseness


def test_sensitivity_of_one_monomial_is_attained():
    for power, wanted, added in ((1, 3.0, 2.0), (2, 4.0, 4.0), (3, 9.0, 8.0)):
        query = nw.queries.Moments({"x": nw.Column(-1, 2)}, [{"x": power}])
        assert query.sensitivity("l1", "replace_one") == wanted
        assert query.sensitivity("l2", "add_remove_one") == added


def test_the_joint_search_takes_powers_without_end_in_its_stride():
    n = 10**6
    query = nw.queries.Moments({"x": nw.Column(-1, 1)}, [{"x": 1}, {"x": n}])
    far = n ** (-1 / (n - 1))  # from 1 to -far, where the slope of x + x^n vanishes
    assert query.joint_sensitivity("l1") == pytest.approx(1 + far + 1 - far**n, rel=1e-9)
    assert query.joint_sensitivity("l1", "add_remove_one") == 2.0


@pytest.mark.parametrize(("p", "paper", "joint"), [(1, 7, 16 / 3), (2, 13, 9.375), (3, 21, 14.4)])
def test_regression_moments_have_the_papers_value_and_the_exact_joint_maximum(p, paper, joint):
    query = regression(p)
    assert query.sensitivity("l1") == paper
    assert query.joint_sensitivity("l1") == pytest.approx(joint, rel=1e-12)
    assert regression(p, sensitivity="joint").sensitivity("l1") == pytest.approx(joint, rel=1e-15)
    assert regression(p, sensitivity="ranges").sensitivity("l1") == p**2 + 4 * p + 3
    ends = {name: np.asarray([10.0, -10 / (p + 2)]) for name in query.columns}
    assert brute_sensitivity(query, ends, "l1", "replace_one") == pytest.approx(joint, rel=1e-14)


def test_the_papers_value_is_not_used_where_it_does_not_hold():
    wide = regression(1, nw.Column(-10, 10))
    assert wide.sensitivity("l1") == 20 + 200 + 100 + 20 + 100
    assert wide.joint_sensitivity("l1") > 7  # the paper's value would have been a false promise
    assert regression(2).sensitivity("l1", "add_remove_one") == 9
    for sensitivity in ("paper", "joint"):
        with pytest.raises(ValueError, match=r"holds for columns mapped into \[-1, 1\]"):
            regression(1, nw.Column(-10, 10), sensitivity=sensitivity)


def test_the_papers_value_and_the_proved_one_hold_on_random_pairs_in_more_dimensions():
    rng = np.random.default_rng(5)
    for p in (4, 6):
        query = regression(p)
        pairs = rng.choice([-10, -5, -1.0, 1, 5, 10], size=(400, p + 1))
        points = {name: pairs[:, j] for j, name in enumerate(query.columns)}
        assert brute_sensitivity(query, points, "l1", "replace_one") <= (p + 1) * (p + 3) ** 2 / (2 * (p + 2))
        assert query.joint_sensitivity("l1") == pytest.approx((p + 1) * (p + 3) ** 2 / (2 * (p + 2)), rel=1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove_one"])
def test_counts_sensitivity_is_that_of_every_pair_of_records(norm, neighbours):
    cells = np.asarray(list(itertools.product(range(3), range(2))))
    points = {"k": cells[:, 0], "j": cells[:, 1]}
    assert COUNTS.sensitivity(norm, neighbours) == pytest.approx(brute_sensitivity(COUNTS, points, norm, neighbours))


def test_naive_bayes_tables_have_the_papers_sensitivity():
    features = {f"x{k}": 3 for k in range(5)}
    query = nw.queries.Counts(levels={"y": 5, **features}, tables=[("y", name) for name in features])
    assert query.sensitivity("l1") == 10
    assert query.sensitivity("l2") == pytest.approx(math.sqrt(10))


def test_weighted_sensitivity_is_safe_and_tighter_than_the_largest_weight():
    weights = np.asarray([1, 1, 1, 1, 1, 1, 0.1, 0.1])
    assert COUNTS.sensitivity("l1", weights=weights) == pytest.approx(2.2)
    low, high = MOMENTS.extremes.T
    assert MOMENTS.sensitivity("l1", weights=np.asarray([5, 1, 2.0])) == pytest.approx(np.sum([0, 1, 2] * (high - low)))
    assert regression(1).sensitivity("l1", weights=np.full(5, 2.0)) == 14


def test_custom_sensitivity_belongs_to_its_relation():
    def tanh(record):
        return jnp.tanh(record["x"])

    replaced = nw.queries.Custom(tanh, 1, l1=2.0, neighbours="replace_one")
    added = nw.queries.Custom(tanh, 1, l1=1.0, l2=1.0, neighbours="add_remove_one")
    assert (replaced.sensitivity("l1"), added.sensitivity("l2", "add_remove_one"), added.sensitivity("l1")) == (2, 1, 2)
    assert added({"x": [0.0, 100.0]}).tolist() == [1.0]
    with pytest.raises(ValueError, match="bounds nothing under 'add_remove_one'"):
        replaced.sensitivity("l1", "add_remove_one")
    with pytest.raises(ValueError, match="does not know its l2 sensitivity"):
        replaced.sensitivity("l2")
    assert nw.queries.Custom(tanh, 1, l1=2.0) == replaced


def test_a_custom_query_finds_the_columns_its_function_reads():
    def row(record):
        product = record["a"] * record["b"]
        return jnp.stack([product, jnp.where(record["b"] > 0, record["c"], 0.0)])

    assert nw.queries.Custom(row, 2).columns == ("a", "b", "c")
    assert nw.queries.Custom(lambda r: jnp.eye(3)[r["level"]], 3).columns == ("level",)
    assert nw.queries.Custom(row, 2, columns=("c", "b", "a")).columns == ("c", "b", "a")
    with pytest.raises(ValueError, match=r"could not be found by tracing it; name them"):
        nw.queries.Custom(lambda r: sum(r.values()), 1)


def test_queries_are_static_and_their_rows_trace_once():
    traces = []

    @jax.jit
    def rows(records):
        traces.append(None)
        return jax.vmap(COUNTS.statistics)(records), jax.vmap(MOMENTS.statistics)(records)

    for seed in range(3):
        key = jax.random.key(seed)
        rows({name: jax.random.randint(key, (2, 4), 0, 2).astype(float) for name in RAW})
    assert len(traces) == 1
    assert hash(regression(2)) == hash(regression(2))
    assert regression(2) == regression(2)
    assert not jax.tree.leaves([MOMENTS, COUNTS, UNIT])


def test_a_code_outside_its_levels_counts_in_no_cell():
    query = nw.queries.Counts({"a": 2, "b": 3}, tables=[("a", "b"), ("b",)])
    rows = np.asarray(query.statistics({"a": jnp.asarray([1, 1, -1, 2]), "b": jnp.asarray([2, 3, 1, 0])}))
    cells, margin = rows[:, :6].reshape(-1, 2, 3), rows[:, 6:]
    assert [row.sum() for row in cells] == [1, 0, 0, 0]
    assert cells[0, 1, 2] == 1
    assert margin.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0]]
