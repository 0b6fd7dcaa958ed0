"""Query files: what is published from them, and one sentence for every mistake in one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import noisewise as nw
from noisewise import cli
from reference.commands import QUERY, refused

RECORDS_QUERY = """
[[measurement]]
name = "table"
query = "records"
columns = ["x", "owner"]
public = ["region"]
noise = { x = { law = "laplace", scale = 2 }, owner = { law = "randomised_response", epsilon = 1.0986122886681098 } }

[[measurement]]
name = "inside"
query = "truncated_sum"
column = "x"
lower = 1
upper = 8
statistics = ["1", "x"]
noise = { law = "laplace", epsilon = 0.5 }
"""


def test_noisy_records_and_truncated_sums_are_published_from_a_file(tmp_path, capsys):
    (tmp_path / "query.toml").write_text(RECORDS_QUERY)
    rows = "\n".join(f"{i % 10},{i % 2},{i % 3}" for i in range(40))
    (tmp_path / "records.csv").write_text(f"x,owner,region\n{rows}\n")
    out = tmp_path / "release.json"
    arguments = ["publish", f"{tmp_path}/records.csv", "-c", f"{tmp_path}/query.toml", "-o", f"{out}"]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert "Published 122 numbers about 40 records" in said
    assert "without a guarantee that could be stated" in said
    assert "reported truly with probability 0.75" in said
    release = nw.Release.load(out)
    table, inside = release.measurements
    assert table.value.shape == (40, 3)
    assert sorted(np.asarray(table.value)[:, 2]) == sorted(i % 3 for i in range(40))
    assert set(np.asarray(table.value)[:, 1]) == {0.0, 1.0}
    assert inside.query.names == ("1", "x")
    # of one record, one number more and a value up to 8
    assert float(inside.noise.scale) == pytest.approx(9 / 0.5)
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guarantee"] is None
    assert found["measurements"]["table"]["columns"]["owner"] == {
        "law": "randomised_response",
        "flip": pytest.approx(0.25),
        "levels": 2,
    }


QUERY_MISTAKES = [
    ("", "lacks 'measurement'"),
    ("measurement = 3", "one or more tables [[measurement]]"),
    (
        QUERY.replace("moments", "medians"),
        "the queries are regression_moments, moments, counts, truncated_sum, records",
    ),
    (QUERY.replace("laplace", "cauchy"), "the laws are laplace"),
    (QUERY.replace(", epsilon = 2.0", ""), "needs scale, or a budget"),
    (QUERY.replace("epsilon = 2.0", "epsilon = -2.0"), "epsilon must be positive"),
    (QUERY.replace("epsilon = 2.0", "epsilon = 2.0, scale = 1.0"), "gives both scale and epsilon"),
    (QUERY.replace("epsilon = 2.0", "rho = 2.0"), "laplace noise, has the unknown key 'rho'; it may have: epsilon"),
    (QUERY.replace("upper = 10", "upper = -10"), "lower < upper"),
    (QUERY.replace("upper = 10,", ""), "lacks 'upper'"),
    (QUERY.replace("{ x = 1 }", "{ z = 1 }"), "z"),
    (QUERY.replace("terms = [{ x = 1 }]", "terms = 3"), "tables of powers such as { x = 1 }; got 3"),
    (QUERY.replace("terms = [{ x = 1 }]", "terms = [1]"), "tables of powers such as { x = 1 }; got [1]"),
    (QUERY.replace("terms", "columns = [['x']]\nterms"), "must list columns by name; got [['x']]"),
    (QUERY.replace("lower = 0", "lower = true"), "bounds must be numbers; got True"),
    (QUERY.replace("lower = 0", "lower = '0'"), "bounds must be numbers; got '0'"),
    (QUERY.replace("x", "z"), "The records have no column 'z'"),
    (QUERY.replace("x", "id"), "not numeric"),
    (RECORDS_QUERY.replace("scale = 2", "epsilon = 2"), "noise of 'x', needs scale: without bounds"),
    (
        RECORDS_QUERY.replace("epsilon = 1.0986122886681098", "levels = 2"),
        "needs flip, the probability of a false report",
    ),
    (RECORDS_QUERY.replace("randomised_response", "coin"), "has the law 'coin'; the laws are laplace"),
    (RECORDS_QUERY.replace("x = { law", "z = { law"), "a law for each of the columns ('x', 'owner')"),
    (RECORDS_QUERY.replace('["x", "owner"]', '"x"'), "columns and public must be lists of names"),
    (RECORDS_QUERY.replace("upper = 8", "upper = 0"), "lower < upper"),
    ("neighbours = 'none'\n" + QUERY, "neighbours must be"),
    ("neighbours = 'add_remove_one'\n" + QUERY, "no measurement counts them"),
]


@pytest.mark.parametrize(("text", "said"), QUERY_MISTAKES)
def test_a_wrong_query_file_gets_a_sentence_and_publishes_nothing(tmp_path, capsys, text, said):
    (tmp_path / "records.csv").write_text("id,x,owner\n" + "".join(f"p{i},{i % 10},{i % 2}\n" for i in range(40)))
    (tmp_path / "wrong.toml").write_text(text)
    out = tmp_path / "release.json"
    assert said in refused(capsys, "publish", tmp_path / "records.csv", "-c", tmp_path / "wrong.toml", "-o", out)
    assert not out.exists()
