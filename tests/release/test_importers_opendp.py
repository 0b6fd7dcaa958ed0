"""Releases of OpenDP: the same scale and sensitivity as the tool says, and a sentence for what it does not say."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import opendp.prelude as dp
import polars as pl
import pytest
from opendp.mod import serialize
from scipy import stats

import noisewise as nw
from noisewise.engines.counts import Counts

dp.enable_features("contrib", "honest-but-curious")
FIXTURES = Path(__file__).parent / "fixtures"
FLOATS = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
INTEGERS = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
CLAMPED = FLOATS >> dp.t.then_clamp((-2.0, 10.0))
SIZED = CLAMPED >> dp.t.then_resize(100, constant=5.0)


def stored(tool):
    return json.loads((FIXTURES / f"{tool}.json").read_text())


def scale_of(release):
    return np.asarray(release.measurements[0].noise.scale)


OPENDP = {
    "sized sum": (SIZED >> dp.t.then_sum() >> dp.m.then_laplace(20.0), 1, nw.noise.Laplace, "replace_one", 100),
    "mean": (SIZED >> dp.t.then_mean() >> dp.m.then_laplace(0.2), 1, nw.noise.Laplace, "replace_one", 100),
    "gaussian": (SIZED >> dp.t.then_sum() >> dp.m.then_gaussian(20.0), 1, nw.noise.Gaussian, "replace_one", 100),
    "free count": (INTEGERS >> dp.t.then_count() >> dp.m.then_laplace(3.0), 1, nw.noise.DiscreteLaplace, "add_remove_one", None),
    "geometric": (INTEGERS >> dp.t.then_count() >> dp.m.then_geometric(3.0), 1, nw.noise.DiscreteLaplace, "add_remove_one", None),
    "table": (
        INTEGERS >> dp.t.then_count_by_categories([4, 7], null_category=False, MO=dp.L2Distance[int]) >> dp.m.then_gaussian(2.0),
        1,
        nw.noise.DiscreteGaussian,
        "add_remove_one",
        None,
    ),
    "table with others": (
        INTEGERS >> dp.t.then_count_by_categories([4, 7]) >> dp.m.then_laplace(2.0),
        1,
        nw.noise.DiscreteLaplace,
        "add_remove_one",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPENDP)
def test_an_opendp_chain_keeps_law_size_relation_and_privacy_map(name):
    made, steps, law, neighbours, n = OPENDP[name]
    value = [9, 3, 1][: 3 if name == "table with others" else 2] if "table" in name else 40
    release = nw.Release.from_opendp(made, value)
    assert type(release.measurements[0].noise) is law
    assert (release.n, release.neighbours) == (n, neighbours)
    assert float(release.recomputed_privacy().loss) == pytest.approx(made.map(steps), rel=1e-6)
    assert float(release.privacy.loss) == pytest.approx(made.map(steps), rel=1e-12)
    if "table" not in name:  # OpenDP cannot serialise the metric of its tables
        again = nw.Release.from_opendp(serialize(made), value)
        assert again.recomputed_privacy().loss == release.recomputed_privacy().loss


def test_an_opendp_sum_keeps_scale_bounds_and_column():
    release = nw.Release.from_opendp(OPENDP["sized sum"][0], 512.5, ("age",))
    assert scale_of(release) == 20.0
    column = dict(release.measurements[0].query.bounds)["age"]
    assert (column.lower, column.upper) == (-2.0, 10.0)
    mean = nw.Release.from_opendp(OPENDP["mean"][0], 5.125)
    assert scale_of(mean) == pytest.approx(20.0)
    assert mean.measurements[0].value.tolist() == [512.5]


def test_clamps_after_each_other_leave_the_interval_that_both_allow():
    twice = CLAMPED >> dp.t.then_clamp((5.0, 20.0)) >> dp.t.then_sum() >> dp.m.then_laplace(20.0)
    column = dict(nw.Release.from_opendp(twice, 30.0, n=4).measurements[0].query.bounds)["x"]
    assert (column.lower, column.upper) == (5.0, 10.0)


def test_a_round_trip_through_opendp_has_the_right_posterior():
    n, scale = 40, 3.0
    bits = dp.vector_domain(dp.atom_domain(T=int), size=n), dp.symmetric_distance()
    made = bits >> dp.t.then_clamp((0, 1)) >> dp.t.then_sum() >> dp.m.then_laplace(scale)
    value = made([1] * 27 + [0] * 13)
    release = nw.Release.from_opendp(made, value)
    assert made.map(2) == pytest.approx(1 / scale) == pytest.approx(float(release.recomputed_privacy().loss))
    found = Counts().build(nw.models.Bernoulli(a=2, b=3), release, jax.random.key(0)).exact()
    ones = np.arange(n + 1)
    weight = stats.betabinom.pmf(ones, n, 2, 3) * np.exp(-np.abs(value - ones) / scale)
    expected = float(np.sum(weight * (2 + ones) / (5 + n)) / np.sum(weight))
    assert float(found.means["p"]) == pytest.approx(expected, rel=1e-10)


def test_a_context_query_is_resolved():
    context = dp.Context.compositor(
        data=[1.0, 2.0, 3.0],
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=4,
        domain=dp.vector_domain(dp.atom_domain(T=float, nan=False)),
    )
    asked = context.query().clamp((0.0, 10.0)).sum().laplace()
    release = nw.Release.from_opendp(asked, 7.25, n=3)
    assert scale_of(release) == pytest.approx(asked.param(), rel=1e-12)
    assert float(release.privacy.loss) == pytest.approx(0.25)
    assert (release.n, release.neighbours) == (3, "add_remove_one")
    inside = context.query().clamp((0.0, 10.0)).resize(3, constant=1.0).mean().laplace()
    assert nw.Release.from_opendp(inside, 2.0).n == 3


def test_a_composition_is_one_release_and_conversions_change_nothing():
    made = dp.c.make_composition([SIZED >> dp.t.then_sum() >> dp.m.then_laplace(scale) for scale in (40.0, 80.0)])
    release = nw.Release.from_opendp(made, [500.0, 510.0])
    assert [float(m.noise.scale) for m in release.measurements] == [40.0, 80.0]
    assert float(release.privacy.loss) == pytest.approx(made.map(1))
    wrapped = dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(OPENDP["gaussian"][0]), 1e-6)
    assert type(nw.Release.from_opendp(wrapped, 500.0).measurements[0].noise) is nw.noise.Gaussian


def test_a_list_of_measurements_is_one_release_of_the_same_records():
    made = [SIZED >> dp.t.then_sum() >> dp.m.then_laplace(scale) for scale in (40.0, 80.0)]
    release = nw.Release.from_opendp(made, [500.0, 510.0])
    assert [float(m.noise.scale) for m in release.measurements] == [40.0, 80.0]
    for values in (500.0, [500.0]):
        with pytest.raises(ValueError, match="released 2 values, one for each part; got 1"):
            nw.Release.from_opendp(made, values)
    with pytest.raises(ValueError, match="released 2 values, one for each part; got 1"):
        nw.Release.from_opendp(dp.c.make_composition(made), 500.0)


@pytest.mark.parametrize("noise", [dp.m.then_laplace(3.0), dp.m.then_geometric(3.0), dp.m.then_gaussian(3.0)])
def test_unsigned_counts_were_moved_up_to_zero(noise):
    made = INTEGERS >> dp.t.then_count(TO="u32") >> noise
    draws = np.array([made([1]) for _ in range(400)])
    mechanism = nw.Release.from_opendp(made, 0).measurements[0].mechanism
    assert type(mechanism) is nw.mechanisms.CensoredNoise
    at_zero = math.exp(float(mechanism.log_density(np.zeros(1), np.ones(1))))
    steps = np.arange(-60, 0)
    weights = np.exp(-(steps**2) / 18.0) if type(mechanism.noise) is nw.noise.DiscreteGaussian else np.exp(steps / 3.0)
    expected = weights.sum() / (2 * weights.sum() + 1)  # one, and noise of at most minus one
    assert at_zero == pytest.approx(expected, rel=1e-9)
    assert abs(np.mean(draws == 0) - expected) < 4 * math.sqrt(expected * (1 - expected) / 400)


def test_randomised_response_is_noise_on_every_record():
    made = dp.m.make_randomized_response(["no", "yes", "maybe"], 0.75)
    release = nw.Release.from_opendp(made, ["yes", "no", "no", "maybe"], ("smokes",))
    assert release.n == 4
    assert release.measurements[0].value.ravel().tolist() == [1, 0, 0, 2]
    assert float(release.privacy.loss) == pytest.approx(made.map(1))


def test_the_stored_measurement_of_opendp_016_is_read_without_opendp_constructors():
    found = stored("opendp")
    release = nw.Release.from_opendp(json.dumps(found["measurement"]), found["value"])
    assert (release.n, release.neighbours, scale_of(release)) == (100, "replace_one", 10.0)
    evil = json.dumps(found["measurement"]).replace("make_clamp", "new_function")
    with pytest.raises(ValueError, match=r"The query is missing: the OpenDP chain has new_function"):
        nw.Release.from_opendp(evil, found["value"])


def polars_table(name):
    found = stored("opendp")["tables"][name]
    types = {column: getattr(pl, kind) for column, kind in found["types"].items()}
    return pl.DataFrame(found["summary"]), pl.DataFrame(found["values"], schema=types)


def test_polars_summaries_give_one_measurement_for_each_released_column():
    summary, values = polars_table("whole")
    release = nw.Release.from_opendp(summary, values, bounds={"age": (0, 100), "spent": (0.0, 5.0)})
    assert release.names == ("len", "age", "spent")
    assert float(release.privacy.loss) == pytest.approx(3 / 4, rel=1e-9)
    assert release.columns == ("age", "spent")  # the count asks for no column of its own
    # the count is an unsigned integer: OpenDP moved it up to zero
    assert type(release.measurements[0].mechanism) is nw.mechanisms.CensoredNoise
    assert type(release.measurements[2].noise) is nw.noise.Laplace
    summary, values = polars_table("grouped")
    counted = nw.Release.from_opendp(summary, values, n=100).measurements[0]
    assert counted.mechanism.query.levels == (("group", 2),)
    for kind in (lambda table: table.to_pandas(), lambda table: table.to_arrow()):
        again = nw.Release.from_opendp(kind(summary), kind(values), n=100).measurements[0]
        assert type(again.mechanism) is nw.mechanisms.CensoredNoise
        assert again.value.tolist() == counted.value.tolist()


def test_polars_counts_by_two_keys_are_one_table_in_the_order_of_its_cells():
    summary, values = polars_table("crossed")
    counted = nw.Release.from_opendp(summary, values, n=100).measurements[0]
    assert counted.query.levels == (("group", 2), ("sex", 2))
    codes = {key: list(dict.fromkeys(values[key])) for key in ("group", "sex")}
    for group, sex, count in values.iter_rows():
        assert counted.value.reshape(2, 2)[codes["group"].index(group), codes["sex"].index(sex)] == count
    with pytest.raises(ValueError, match=r"every combination of \['group', 'sex'\] once; 1 of 4 are not there"):
        nw.Release.from_opendp(summary, values[:3], n=100)


def test_polars_groups_that_passed_a_threshold_are_refused():
    with pytest.raises(ValueError, match="groups whose noisy count was below it were left out"):
        nw.Release.from_opendp(*polars_table("selected"), n=100)


def test_polars_summaries_that_lack_something_are_refused():
    summary, values = polars_table("whole")
    with pytest.raises(ValueError, match="The clamping interval of 'age' is missing"):
        nw.Release.from_opendp(summary, values)
    with pytest.raises(ValueError, match="The column 'scale' of the summary is missing"):
        nw.Release.from_opendp(summary.drop("scale"), values)
    with pytest.raises(ValueError, match="The released column 'spent' is missing"):
        nw.Release.from_opendp(summary, values.drop("spent"), bounds={"age": (0, 100)})
    with pytest.raises(ValueError, match="a mean is a noisy sum over a noisy count"):
        nw.Release.from_opendp(*polars_table("mean"))


class PolarsQuery:
    """What OpenDP 0.16 with Polars 1.36 says of a query; Polars 2 is too new for it, so this stands in."""

    def __init__(self, summary, plan, metric="SymmetricDistance()"):
        self.summary, self.plan, self.metric = summary, plan, metric

    def summarize(self):
        return self.summary

    def resolve(self):
        return SimpleNamespace(input_metric=self.metric, output_measure="MaxDivergence", map=lambda steps: 0.25 * steps)

    @property
    def polars_plan(self):
        return SimpleNamespace(explain=lambda optimized: self.plan)


FILTERED = """SELECT [null.lib:dp_frame_len([false])]
  FILTER [(col("age")) > (50)]
  FROM
    DF ["age", "group"]; PROJECT */2 COLUMNS"""
WHOLE = """SELECT [null.lib:dp_frame_len([false])]
  FROM
    DF ["age", "group"]; PROJECT */2 COLUMNS"""


def test_a_polars_query_says_the_relation_and_the_guarantee_that_its_summary_does_not():
    summary, values = polars_table("whole")
    count, age, tables = summary[:1], summary[1:2], [values.select("len"), values.select("age")]
    bounds = {"age": (0, 100)}
    both = nw.Release.from_opendp([PolarsQuery(count, WHOLE), PolarsQuery(age, WHOLE)], tables, bounds=bounds)
    assert both.names == ("len", "age")
    assert both.columns == ("age",)
    assert (both.n, both.neighbours, float(both.privacy.loss)) == (None, "add_remove_one", 0.5)
    changed = PolarsQuery(age, WHOLE, "ChangeOneDistance()")
    assert nw.Release.from_opendp(changed, tables[1], bounds=bounds, n=100).neighbours == "replace_one"
    with pytest.raises(
        ValueError, match="The neighbouring relation is missing: the Polars queries have different ones"
    ):
        nw.Release.from_opendp([PolarsQuery(count, WHOLE), changed], tables, bounds=bounds)
    with pytest.raises(ValueError, match=r"2 here, are read with one released table for each.*got 1 value\(s\)"):
        nw.Release.from_opendp([count, age], [values], bounds=bounds)


def test_the_records_of_a_filtered_polars_query_are_the_rows_that_pass():
    summary, values = polars_table("whole")
    filtered, bounds = PolarsQuery(summary, FILTERED), {"age": (0, 100), "spent": (0.0, 5.0)}
    assert nw.Release.from_opendp(filtered, values, bounds=bounds).n is None
    with pytest.raises(ValueError, match=r'only the rows that pass \[\(col\("age"\)\) > \(50\)\], and n=100 would be'):
        nw.Release.from_opendp(filtered, values, bounds=bounds, n=100)
    with pytest.raises(ValueError, match="keep different rows"):
        nw.Release.from_opendp([PolarsQuery(summary, WHOLE), filtered], [values, values], bounds=bounds)


BOUNDED_SUMS = {
    "sized_bounded_float_checked": (dp.t.make_sized_bounded_float_checked_sum(20, (0.0, 10.0)), nw.noise.Laplace, "replace_one"),
    "sized_bounded_float_ordered": (dp.t.make_sized_bounded_float_ordered_sum(20, (0.0, 10.0)), nw.noise.Laplace, "replace_one"),
    "sized_bounded_int_checked": (dp.t.make_sized_bounded_int_checked_sum(20, (0, 10)), nw.noise.DiscreteLaplace, "replace_one"),
    "bounded_int_split": (dp.t.make_bounded_int_split_sum((-4, 10)), nw.noise.DiscreteLaplace, "add_remove_one"),
    "bounded_float_checked": (dp.t.make_bounded_float_checked_sum(20, (0.0, 10.0)), nw.noise.Laplace, "add_remove_one"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED_SUMS)
def test_opendp_sums_that_state_their_own_bounds_cost_what_opendp_says(name):
    summed, law, neighbours = BOUNDED_SUMS[name]
    made = summed >> dp.m.then_laplace(30.0)
    release = nw.Release.from_opendp(made, 44, n=20)
    assert type(release.measurements[0].noise) is law
    assert (release.n, release.neighbours) == (20, neighbours)
    steps = 2 if neighbours == "replace_one" else 1
    assert float(release.recomputed_privacy().loss) == pytest.approx(made.map(steps), rel=1e-6)
    assert float(release.privacy.loss) == pytest.approx(made.map(steps), rel=1e-12)


def test_an_opendp_sum_that_leaves_records_out_is_refused():
    made = BOUNDED_SUMS["bounded_float_checked"][0] >> dp.m.then_laplace(30.0)
    with pytest.raises(ValueError, match="A number of records of at most 20 is missing"):
        nw.Release.from_opendp(made, 44, n=21)
    unsigned = dp.t.make_bounded_int_split_sum((0, 10), T="u32") >> dp.m.then_laplace(30.0)
    mechanism = nw.Release.from_opendp(unsigned, 0, n=20).measurements[0].mechanism
    assert (type(mechanism), float(mechanism.lower)) == (nw.mechanisms.CensoredNoise, 0.0)


@pytest.mark.parametrize("columns", [None, (), [3]])
def test_opendp_columns_are_names(columns):
    with pytest.raises(ValueError, match="columns must name the column that the OpenDP chain reads"):
        nw.Release.from_opendp(OPENDP["sized sum"][0], 3.0, columns)


WRONG_OPENDP = {
    "ends with make_sum, which adds no noise": SIZED >> dp.t.then_sum(),
    "ends with then_laplace, which adds no noise": dp.m.then_laplace(3.0),
    "is not JSON": "measurement",
    "names no constructor": "{}",
    "int does not remember how it was made": 3,
    "noise alone, without the transformation": dp.m.make_laplace(*(dp.atom_domain(T=int), dp.absolute_distance(T=int)), 2.0),
    "too coarse beside its scale": CLAMPED >> dp.t.then_sum() >> dp.m.then_laplace(20.0, k=3),
    "no measurement counts them": CLAMPED >> dp.t.then_sum() >> dp.m.then_laplace(20.0),
    "the OpenDP chain has make_variance": SIZED >> dp.t.then_variance() >> dp.m.then_laplace(1.0),
    "make_cast_default from f64 to i32, which changes the values": (
        FLOATS >> dp.t.then_cast_default(TOA=int) >> dp.t.then_clamp((0, 9)) >> dp.t.then_sum() >> dp.m.then_laplace(9.0)
    ),
    "ends with postprocessing": OPENDP["sized sum"][0] >> (lambda noisy: noisy + 1),
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG_OPENDP)
def test_opendp_objects_that_do_not_say_enough_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        nw.Release.from_opendp(WRONG_OPENDP[sentence], 3.0)


def test_a_query_of_ones_own_takes_opendp_s_noise():
    made = SIZED >> dp.t.then_variance() >> dp.m.then_laplace(1.0)
    query = nw.queries.Moments({"x": nw.Column(0, 4)}, [{"x": 2}])
    release = nw.Release.from_opendp(made, 3.0, query=query)
    assert release.measurements[0].query is query
    with pytest.raises(ValueError, match=r"disagree on the number of records: \[7, 100\]"):
        nw.Release.from_opendp(made, 3.0, query=query, n=7)
