"""Every kind of bad input about a release gets a sentence with what was wrong, what was seen and what to do."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import noisewise as nw
from noisewise.release.mechanism import Mechanism

X, Y = nw.Column(0, 1), nw.Column(-2, 2)
MOMENTS = nw.queries.Moments({"x": X, "y": Y}, [{"x": 1}, {"x": 1, "y": 1}])
COUNTS = nw.queries.Counts(levels={"k": 3, "j": 2}, tables=[("k", "j"), ("j",)])
ONE_TABLE = nw.queries.Counts(levels={"k": 3}, tables=[("k",)])
LAPLACE, INTEGERS = nw.noise.Laplace(1.0), nw.noise.DiscreteLaplace(1.0)
GOOD = nw.Measurement(MOMENTS, LAPLACE, [1.0, 2.0], name="sums")
RECORDS = {"x": [0.5, 1.0], "y": [0.0, 1.0], "k": [0, 2], "j": [0, 1]}


def moments(columns, terms, **options):
    return lambda: nw.queries.Moments(columns, terms, **options)


def counts(levels, tables):
    return lambda: nw.queries.Counts(levels, tables)


def measured(query, noise, value, **options):
    return lambda: nw.Measurement(query, noise, value, **options)


def asked(query, **changes):
    return lambda: query({**RECORDS, **changes})


CASES = {
    "reversed bounds": (lambda: nw.Column(2, 1), "lower < upper; got lower=2.0, upper=1.0"),
    "equal bounds": (lambda: nw.Column(1, 1), "lower < upper"),
    "infinite bounds": (lambda: nw.Column(0, np.inf), "must be finite"),
    "bounds too far apart": (lambda: nw.Column(-1e308, 1e308, rescale=(-1, 1)), "less than 1.8e308 apart"),
    "bounds as text": (lambda: nw.Column("low", 1), "bounds must be numbers; got 'low'"),
    "no bounds": (lambda: nw.Column(None, 1), "bounds must be numbers; got None"),
    "rescale of one number": (
        lambda: nw.Column(0, 1, rescale=(1,)),
        r"rescale must be an increasing pair .* got \(1,\)",
    ),
    "rescale a number": (lambda: nw.Column(0, 1, rescale=3), "rescale must be an increasing pair .* got 3"),
    "columns as a list": (moments(["x"], [{"x": 1}]), r"at least one column .* got \['x'\]"),
    "levels as a list": (counts(["k"], [("k",)]), r"how many levels each column has.*got \['k'\]"),
    "tables missing": (counts({"k": 3}, None), "list of tuples .* got None"),
    "predictors as a list": (
        lambda: nw.queries.regression_moments(["x"], {"y": Y}),
        r"predictors of a regression are given with their bounds.*got \['x'\]",
    ),
    "scale of texts": (lambda: nw.noise.Laplace(["wide"]), r"a number or an array of numbers; got \['wide'\]"),
    "epsilon as text": (
        lambda: nw.noise.Laplace.calibrated(MOMENTS, epsilon="1"),
        "epsilon must be positive .* got '1'",
    ),
    "value of texts": (measured(MOMENTS, LAPLACE, ["a", 2.0]), "made of real numbers; got"),
    "value complex": (measured(MOMENTS, LAPLACE, [1j, 2.0]), "made of real numbers; got"),
    "tables complex": (measured(ONE_TABLE, LAPLACE, [[1j, 2, 3]]), "made of real numbers; got"),
    "tables of texts": (measured(ONE_TABLE, LAPLACE, [["1", "2", "3"]]), "made of real numbers; got"),
    "value masked": (
        measured(MOMENTS, LAPLACE, np.ma.masked_array([1, 2], mask=[True, False])),
        "must be finite; got nan at position 0",
    ),
    "guarantee as text": (
        lambda: nw.Release([GOOD], n=3, stated="epsilon = 1"),
        "stated must be a guarantee.*got 'eps",
    ),
    "value ragged": (measured(MOMENTS, LAPLACE, [[1.0], [2.0, 3.0]]), "made of real numbers; got"),
    "measurements None": (lambda: nw.Release(None, n=3), "list of Measurements; got None"),
    "noise as text": (lambda: nw.publish(RECORDS, MOMENTS, "laplace"), "publish needs one of nw.noise.*got 'laplace'"),
    "query missing": (lambda: nw.publish(RECORDS, None, LAPLACE), "publish needs one of nw.queries.*got None"),
    "reversed rescale": (lambda: nw.Column(0, 1, rescale=(1, -1)), "rescale must be an increasing pair"),
    "bounds from the data": (lambda: nw.Column(0, 1, origin="data"), "break the guarantee"),
    "no columns": (moments({}, [{"x": 1}]), "at least one column"),
    "bounds not a Column": (moments({"x": (0, 1)}, [{"x": 1}]), "'x' must be a Column with public bounds"),
    "no terms": (moments({"x": X}, []), "non-empty list"),
    "one bare term": (moments({"x": X}, {"x": 1}), "non-empty list such as"),
    "terms as a generator": (moments({"x": X}, ({"x": k} for k in (1, 2))), "non-empty list such as .* got <generator"),
    "terms as a number": (moments({"x": X}, 3), "non-empty list such as .* got 3"),
    "column name a number": (moments({1: X}, [{1: 1}]), "name of a column must be a text; got 1"),
    "level name a number": (counts({1: 2}, [(1,)]), "name of a column must be a text; got 1"),
    "more cells than memory": (counts({"k": 10**12}, [("k",)]), "at most 2147483648 cells"),
    "bounds as digits": (lambda: nw.Column("0", 1), "bounds must be numbers; got '0'"),
    "unknown column in a term": (moments({"x": X}, [{"z": 1}]), "'z' that have no bounds; columns with bounds: 'x'"),
    "power that overflows": (moments({"x": nw.Column(0, 1e200)}, [{"x": 2}]), "overflows on its bounds"),
    "power without end": (moments({"x": X}, [{"x": 2**70}]), "positive integers; got 1180591620717411303424"),
    "name with a slash": (measured(MOMENTS, LAPLACE, [1, 2], name="a/b"), "text without '/'.*got 'a/b'"),
    "name a list": (measured(MOMENTS, LAPLACE, [1, 2], name=["a"]), r"must be a text.*got \['a'\]"),
    "name of an axis": (measured(MOMENTS, LAPLACE, [1, 2], name="chain"), "not chain or draw"),
    "delta of a publication": (lambda: nw.publish(RECORDS, MOMENTS, LAPLACE, delta="1e-6"), "delta must lie strictly"),
    "power zero": (moments({"x": X}, [{"x": 0}]), "positive integers; got 0 for 'x'"),
    "negative power": (moments({"x": X}, [{"x": -1}]), "positive integers; got -1"),
    "fractional power": (moments({"x": X}, [{"x": 0.5}]), "positive integers; got 0.5"),
    "boolean power": (moments({"x": X}, [{"x": True}]), "positive integers; got True"),
    "sensitivity too small": (moments({"x": X}, [{"x": 1}, {"x": 2}], l1=1.9), "change the total by 2"),
    "sensitivity not positive": (moments({"x": X}, [{"x": 1}], l1=-1.0), "positive and finite; got -1"),
    "two responses": (lambda: nw.queries.regression_moments({"x": X}, {"y": Y, "z": Y}), "one response"),
    "response among predictors": (lambda: nw.queries.regression_moments({"y": X}, {"y": Y}), "other than its response"),
    "unknown sensitivity": (
        lambda: nw.queries.regression_moments({"x": X}, {"y": Y}, sensitivity="best"),
        "'paper', 'joint' or 'ranges'; got 'best'",
    ),
    "no levels": (counts({"k": 0}, [("k",)]), "levels of 'k' must be a positive integer; got 0"),
    "table as a string": (counts({"k": 3}, ["k"]), "list of tuples"),
    "no tables": (counts({"k": 3}, []), "at least one table"),
    "unknown column in a table": (counts({"k": 3}, [("k", "z")]), "distinct columns that have levels"),
    "column twice in a table": (counts({"k": 3}, [("k", "k")]), "distinct columns that have levels"),
    "size of a custom query": (lambda: nw.queries.Custom(lambda r: r["x"], 0), "size .* positive integer; got 0"),
    "custom query without a function": (lambda: nw.queries.Custom(3, 1), "needs a function"),
    "custom sensitivity": (lambda: nw.queries.Custom(lambda r: r["x"], 1, l1=0.0), "l1 sensitivity .* positive"),
    "custom sensitivity as text": (lambda: nw.queries.Custom(lambda r: r["x"], 1, l1="2"), "l1 .* finite; got '2'"),
    "custom row of another length": (
        lambda: nw.queries.Custom(lambda r: jnp.stack([r["x"], r["x"]]), 3)({"x": [1.0]}),
        r"must return size=3 numbers for a record; it returned shape \(2,\)",
    ),
    "custom function of numpy": (lambda: nw.queries.Custom(lambda r: np.sin(r["x"]), 1), "written with jax.numpy"),
    "custom function with an if": (
        lambda: nw.queries.Custom(lambda r: r["x"] if r["x"] > 0 else 0.0, 1, columns=("x",))({"x": [1.0]}),
        "written with jax.numpy, without Python's if",
    ),
    "unknown norm": (lambda: MOMENTS.sensitivity("l3"), "norm must be 'l1'"),
    "unknown relation": (lambda: MOMENTS.sensitivity("l1", "both"), "neighbours must be 'replace_one'"),
    "scale zero": (lambda: nw.noise.Laplace(0.0), "scale must be positive and finite; got 0.0"),
    "scale negative in an array": (lambda: nw.noise.Gaussian([1.0, -2.0]), "positive and finite"),
    "scale NaN": (lambda: nw.noise.DiscreteGaussian(np.nan), "positive and finite; got nan"),
    "scale not a number": (lambda: nw.noise.Laplace("wide"), "a number or an array of numbers; got 'wide'"),
    "rho outside": (lambda: nw.noise.DiscreteLaplace.from_rho(1.0), "strictly between 0 and 1; got 1.0"),
    "epsilon zero": (
        lambda: nw.noise.Laplace.calibrated(MOMENTS, epsilon=0),
        "epsilon must be positive and finite; got 0",
    ),
    "epsilon without delta": (
        lambda: nw.noise.Gaussian.calibrated(MOMENTS, epsilon=1),
        "rho, or epsilon and delta together",
    ),
    "rho and epsilon": (
        lambda: nw.noise.Gaussian.calibrated(MOMENTS, rho=1, epsilon=1, delta=1e-6),
        "rho, or epsilon and delta together",
    ),
    "delta one": (lambda: nw.noise.Gaussian.calibrated(MOMENTS, epsilon=1, delta=1), "delta must lie strictly"),
    "noise calibrated for no query": (
        lambda: nw.noise.Laplace.calibrated(None, epsilon=1),
        "needs a query with a sensitivity.*got None",
    ),
    "noise calibrated for microdata": (
        lambda: nw.noise.Gaussian.calibrated(nw.queries.Records(("x",)), rho=1),
        "needs a query with a sensitivity.*got RecordColumns",
    ),
    "noise calibrated for what is public": (
        lambda: nw.noise.Laplace.calibrated(nw.queries.Moments({"x": X}, [{}]), epsilon=1),
        "No record changes the total",
    ),
    "integer noise calibrated for reals": (
        lambda: nw.noise.DiscreteLaplace.calibrated(
            nw.queries.Moments({"x": nw.Column(0, 0.5)}, [{"x": 1}]), epsilon=1
        ),
        "DiscreteLaplace is noise on the integers",
    ),
    "no noise": (measured(MOMENTS, None, [1, 2]), "one of them is missing"),
    "no value": (measured(MOMENTS, LAPLACE, None), "needs the released value"),
    "query of another kind": (measured("sum", LAPLACE, [1]), "must be one of nw.queries"),
    "noise of another kind": (measured(MOMENTS, 2.0, [1, 2]), "must be one of nw.noise"),
    "value NaN": (measured(MOMENTS, LAPLACE, [1.0, np.nan]), "must be finite; got nan at position 1"),
    "value infinite": (measured(ONE_TABLE, LAPLACE, [[np.inf, 1, 2]]), "must be finite; got inf at position 0"),
    "value too long": (measured(MOMENTS, LAPLACE, [1.0, 2.0, 3.0]), r"2 number\(s\) \(x, x y\).*got shape \(3,\)"),
    "value a matrix": (measured(MOMENTS, LAPLACE, [[1.0, 2.0]]), r"got shape \(1, 2\)"),
    "tables of other shapes": (measured(COUNTS, LAPLACE, [np.zeros((2, 3)), np.zeros(2)]), r"got \[\(2, 3\), \(2,\)\]"),
    "a table missing": (measured(COUNTS, LAPLACE, [np.zeros((3, 2))]), "one array for each table"),
    "ragged table": (measured(ONE_TABLE, LAPLACE, [[1, 2, [3]]]), "one array for each table"),
    "scale of another shape": (
        measured(MOMENTS, nw.noise.Laplace([1.0, 1, 1]), [1, 2]),
        r"each of the 2 numbers.*\(3,\)",
    ),
    "fraction with integer noise": (
        measured(ONE_TABLE, INTEGERS, [[1, 2.5, 3]]),
        "releases integers.*2.5 at position 1",
    ),
    "integer noise on rescaled columns": (
        measured(nw.queries.Moments({"x": nw.Column(0, 2, rescale=(0, 1))}, [{"x": 1}]), INTEGERS, [1]),
        "does not release integers",
    ),
    "integer noise on fractional bounds": (
        measured(nw.queries.Moments({"x": nw.Column(0, 2.5)}, [{"x": 1}]), INTEGERS, [1]),
        "does not release integers",
    ),
    "integer noise on a real custom query": (
        measured(nw.queries.Custom(lambda r: r["x"], 1), INTEGERS, [1]),
        "integers",
    ),
    "query and mechanism": (measured(MOMENTS, LAPLACE, [1, 2], mechanism=GOOD.mechanism), "not both"),
    "no measurements": (lambda: nw.Release([], n=3), "at least one Measurement"),
    "not measurements": (lambda: nw.Release([MOMENTS], n=3), "made of Measurements"),
    "n zero": (lambda: nw.Release([GOOD], n=0), "n must be a positive integer.*got 0"),
    "n fractional": (lambda: nw.Release([GOOD], n=10.5), "n must be a positive integer.*got 10.5"),
    "n boolean": (lambda: nw.Release([GOOD], n=True), "n must be a positive integer.*got True"),
    "n beyond counting": (lambda: nw.Release([GOOD], n=10**30), r"n must be at most 2\^53"),
    "n unknown and uncounted": (lambda: nw.Release([GOOD]), "no measurement counts them"),
    "unknown neighbours": (lambda: nw.Release([GOOD], n=3, neighbours="swap"), "neighbours must be .* got 'swap'"),
    "names twice": (lambda: nw.Release([GOOD, GOOD], n=3), "distinct names"),
    "n against a table": (
        lambda: nw.Release([nw.Measurement(ONE_TABLE, LAPLACE, [[400, 300, 300]])], n=100),
        "n=100 contradicts the released counts: the table of k adds up to 1000",
    ),
    "n against the constant term": (
        lambda: nw.Release([nw.Measurement(nw.queries.Moments({"x": X}, [{}]), LAPLACE, [1000])], n=100),
        r"number 1 of the value \(the constant term\) adds up to 1000",
    ),
    "missing column": (lambda: MOMENTS({"x": [1.0]}), "no column 'y'; they have 'x'"),
    "missing column in pandas": (lambda: MOMENTS(pd.DataFrame({"x": [1.0]})), "no column 'y'; they have 'x'"),
    "records of no known kind": (lambda: MOMENTS([1.0, 2.0]), "dict of arrays .* got list"),
    "lengths differ": (asked(MOMENTS, y=[0.0]), "differ in length: {'x': 2, 'y': 1}"),
    "no rows": (asked(MOMENTS, x=[], y=[]), "no rows"),
    "NaN in the records": (asked(MOMENTS, y=[np.nan, 1]), r"'y' .* has 1 value\(s\) that are missing, NaN or infinite"),
    "infinite records": (asked(MOMENTS, y=[-np.inf, np.inf]), r"2 value\(s\)"),
    "text in the records": (asked(MOMENTS, y=["a", "b"]), "'y' of the records is not numeric"),
    "missing values of pandas": (
        lambda: MOMENTS(pd.DataFrame({"x": [0.5, 1.0], "y": pd.array([1, None], dtype="Int64")})),
        "'y' of the records",
    ),
    "masked values": (
        asked(MOMENTS, y=np.ma.masked_array([0, 1], mask=[True, False])),
        r"'y' .* has 1 value\(s\) that are missing",
    ),
    "nulls in an Arrow batch": (
        lambda: MOMENTS(pa.RecordBatch.from_pydict({"x": pa.array([0.5, 1.0]), "y": pa.array([None, 1.0])})),
        r"'y' .* has 1 value\(s\) that are missing",
    ),
    "lazy table": (lambda: MOMENTS(pl.LazyFrame(RECORDS)), r"lazy table.*give records.collect\(\)"),
    "ragged column": (asked(MOMENTS, y=[[1], [1, 2]]), "'y' of the records must have one value for each record"),
    "matrix as a column": (asked(MOMENTS, y=np.zeros((2, 2))), r"one value for each record; got shape \(2, 2\)"),
    "huge integers": (asked(MOMENTS, y=[2**60, 1]), "beyond 2.53"),
    "code too large": (asked(COUNTS, k=[0, 3]), r"'k' .* codes 0, 1, ..., 2; 1 value\(s\)"),
    "code negative": (asked(COUNTS, k=[-1, 0]), "codes 0, 1, ..., 2"),
    "code fractional": (asked(COUNTS, k=[0.5, 0]), "codes 0, 1, ..., 2"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_its_sentence(case):
    action, sentence = CASES[case]
    with pytest.raises(ValueError, match=sentence) as caught:
        action()
    assert str(caught.value).strip()[-1] in ".?)}" or "got" in str(caught.value)


def test_good_values_pass_in_every_shape_they_may_come_in():
    flat = [1.0, 2, 3, 4, 5, 6, 7, 8]
    tables = [np.arange(1.0, 7).reshape(3, 2), np.asarray([7.0, 8])]
    for value in (flat, np.asarray(flat), jnp.asarray(flat), tables, [table.tolist() for table in tables]):
        assert nw.Measurement(COUNTS, INTEGERS, value).value.tolist() == flat
    for value in ([1, 2, 3], [[1, 2, 3]], np.asarray([[1, 2, 3]])):
        assert nw.Measurement(ONE_TABLE, INTEGERS, value).value.tolist() == [1, 2, 3]
    assert nw.Measurement(nw.queries.Moments({"x": X}, [{"x": 1}]), LAPLACE, 3.5).value.tolist() == [3.5]
    assert nw.Release(GOOD, n=np.int64(7)).n == 7


def test_scales_may_come_in_the_form_of_the_table_they_belong_to():
    query = nw.queries.Counts(levels={"k": 3, "j": 2}, tables=[("k", "j")])
    scale, value = np.asarray([[1.0, 2], [3, 4], [5, 6]]), np.zeros((3, 2))
    made = nw.Measurement(query, nw.noise.Laplace(scale), value)
    assert made.noise.scale.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match=r"one for each of the 6 numbers.*got shape \(2, 3\)"):
        nw.Measurement(query, nw.noise.Laplace(scale.T), value)


def test_a_count_that_noise_explains_is_not_called_a_contradiction():
    value = [[40.0, 30.0, 33.0 + 60.0]]
    assert nw.Release([nw.Measurement(ONE_TABLE, nw.noise.Laplace(10.0), value)], n=100).n == 100


def test_a_mechanism_of_the_users_own_may_be_measured():
    class Constant(Mechanism):
        """Says nothing about anyone."""

        columns = ("x",)
        size = 1

        def statistics(self, records, released):
            return jnp.zeros((len(records["x"]), 1))

        def log_density(self, released, total):
            return jnp.zeros(())

        def simulate(self, key, total):
            return total

    release = nw.Release([nw.Measurement(mechanism=Constant(), value=[1.0])], n=2)
    assert release.columns == ("x",)
    assert release.privacy is None
    assert "the guarantee is not stated" in release.describe()
