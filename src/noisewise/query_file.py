"""Query files: what to ask of the records and with how much noise, in TOML, for ``noisewise publish``.

::

    neighbours = "replace_one"                     # or "add_remove_one", where the number of records is confidential

    [columns]                                      # public bounds, for moments
    x1 = { lower = -10, upper = 10, rescale = [-1, 1], origin = "questionnaire" }
    y = { lower = -10, upper = 10, rescale = [-1, 1] }

    [[measurement]]
    name = "regression"
    query = "regression_moments"                   # predictors, response, sensitivity
    predictors = ["x1"]
    response = "y"
    noise = { law = "laplace", epsilon = 1.0 }     # or scale = ...; gaussian: rho = ..., or epsilon and delta

    [[measurement]]
    query = "moments"                              # columns, terms
    terms = [{}, { y = 1 }]
    noise = { law = "gaussian", rho = 0.1 }

    [[measurement]]
    query = "counts"                               # levels, tables
    levels = { class = 3, sex = 2 }
    tables = [["class", "sex"]]
    noise = { law = "discrete_laplace", epsilon = 0.5 }

    [[measurement]]
    query = "truncated_sum"                        # column, lower, upper, statistics, origin
    column = "hours"
    lower = 1
    upper = 60
    statistics = ["x", "log x"]
    noise = { law = "laplace", epsilon = 0.5 }

    [[measurement]]
    query = "records"                              # columns, public, missing: noise on every record
    columns = ["rent", "owner"]
    noise = { rent = { law = "laplace", scale = 50 }, owner = { law = "randomised_response", epsilon = 1.0 } }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.model_file import check_keys, read_toml
from noisewise.release.noise import LAWS, Noise, RandomisedResponse
from noisewise.release.queries import Column, Counts, Moments, regression_moments
from noisewise.release.query import Neighbours, Query, check_neighbours
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law
from noisewise.release.truncated_sum import TruncatedSum

_QUERIES = ("regression_moments", "moments", "counts", "truncated_sum", "records")
_SETTINGS = ("scale", "epsilon", "rho", "delta")
_REPORTS = "randomised_response"


@dataclass(frozen=True)
class Plan:
    """What a query file asks for: the arguments of :func:`noisewise.publish`."""

    queries: list[Query | RecordColumns]
    noises: list[Law | dict[str, Law]]
    names: list[str] | None
    neighbours: Neighbours
    n: Any
    delta: float | None


def load_plan(path: str | Path) -> Plan:
    """The plan of a query file; nothing is read of any records."""
    content = read_toml(path, "query file")
    where = f"The query file {Path(path).name!r}"
    try:
        return _plan(content, where)
    except (TypeError, AttributeError) as problem:
        raise ValueError(f"{where} has a value of the wrong kind: {problem}.") from None


def _plan(content: Mapping[str, Any], where: str) -> Plan:
    check_keys(content, where, required=["measurement"], optional=["columns", "neighbours", "n", "delta"])
    neighbours = check_neighbours(content.get("neighbours", "replace_one"))
    parts = content["measurement"]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{where} must have one or more tables [[measurement]]; got measurement = {parts!r}.")
    columns = {
        name: _column(bounds, f"{where}, column {name!r},")
        for name, bounds in _table(content.get("columns", {}), f"{where}, columns").items()
    }
    queries: list[Query | RecordColumns] = []
    noises: list[Law | dict[str, Law]] = []
    for number, part in enumerate(parts, start=1):
        here = f"{where}, measurement {number},"
        query = _query(part, columns, here)
        queries.append(query)
        if isinstance(query, RecordColumns):
            noises.append(_on_records(part["noise"], f"{here} noise"))
        else:
            noises.append(_noise(part["noise"], query, neighbours, f"{here} noise,"))
    named = [part.get("name", f"m{j}") for j, part in enumerate(parts)]
    names = named if any("name" in part for part in parts) else None
    return Plan(queries, noises, names, neighbours, content.get("n"), content.get("delta"))


def _column(bounds: Any, where: str) -> Column:
    table = _table(bounds, where)
    check_keys(table, where, required=["lower", "upper"], optional=["rescale", "origin"])
    return _made(where, lambda: Column(**{**table, "rescale": table.get("rescale")}))


def _query(part: Mapping[str, Any], columns: Mapping[str, Column], where: str) -> Query | RecordColumns:
    kind = part.get("query")
    common = ("name", "query", "noise")

    def bounded(names: Any) -> dict[str, Column]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{where} must list columns by name; got {names!r}.")
        unknown = [name for name in names if name not in columns]
        if unknown:
            raise ValueError(
                f"{where} uses the column {unknown[0]!r}, which has no public bounds; add it to [columns] with lower and upper."
            )
        return {name: columns[name] for name in names}

    if kind == "regression_moments":
        check_keys(part, where, required=["query", "noise", "predictors", "response"], optional=["name", "sensitivity"])
        return _made(
            where,
            lambda: regression_moments(
                bounded(part["predictors"]), bounded([part["response"]]), sensitivity=part.get("sensitivity")
            ),
        )
    if kind == "moments":
        check_keys(part, where, required=["query", "noise", "terms"], optional=["name", "columns"])
        terms = part["terms"]
        if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
            raise ValueError(f"{where} must list its terms as tables of powers such as {{ x = 1 }}; got {terms!r}.")
        used = part.get("columns") or [name for name in columns if any(name in term for term in terms)]
        return _made(where, lambda: Moments(bounded(used or list(columns)), terms))
    if kind == "counts":
        check_keys(part, where, required=["query", "noise", "levels", "tables"], optional=["name"])
        return _made(where, lambda: Counts(part["levels"], part["tables"]))
    if kind == "truncated_sum":
        keys = ("column", "lower", "upper", "statistics", "origin")
        check_keys(part, where, required=["query", "noise", "column", "lower", "upper"], optional=["name", *keys[3:]])
        return _made(where, lambda: TruncatedSum(**{key: part[key] for key in keys if key in part}))
    if kind == "records":
        check_keys(part, where, required=["query", "noise", "columns"], optional=["name", "public", "missing"])
        return _made(
            where,
            lambda: RecordColumns(part["columns"], part.get("public", ()), missing=part.get("missing", False)),
        )
    raise ValueError(
        f"{where} asks the query {kind!r}; the queries are {', '.join(_QUERIES)} (keys of each: {', '.join(common)}, ...)."
    )


def _on_records(noise: Any, where: str) -> Law | dict[str, Law]:
    """The noise on every record: one law, or a table of laws by column."""
    table = _table(noise, f"{where},")
    if "law" in table:
        return _law_of_records(table, f"{where},")
    return {name: _law_of_records(law, f"{where} of {name!r},") for name, law in table.items()}


def _law_of_records(noise: Any, where: str) -> Law:
    table = _table(noise, where)
    if table.get("law") == _REPORTS:
        check_keys(table, where, required=["law"], optional=["flip", "epsilon", "levels"])
        given = {key: value for key, value in table.items() if key != "law"}
        if len({"flip", "epsilon"} & set(given)) != 1:
            raise ValueError(f"{where} needs flip, the probability of a false report, or epsilon; give one of them.")
        return _made(where, lambda: (RandomisedResponse if "flip" in given else RandomisedResponse.calibrated)(**given))
    check_keys(table, where, required=["law"], optional=_SETTINGS)
    law = _law(table, where, more=(_REPORTS,))
    if set(table) != {"law", "scale"}:
        raise ValueError(f"{where} needs scale: without bounds no budget gives the noise on a number of every record.")
    return _made(where, lambda: law(table["scale"]))


def _law(table: Mapping[str, Any], where: str, more: tuple[str, ...] = ()) -> type[Noise]:
    law = LAWS.get(table["law"]) if isinstance(table["law"], str) else None
    if law is None:
        raise ValueError(f"{where} has the law {table['law']!r}; the laws are {', '.join((*LAWS, *more))}.")
    return law


def _noise(noise: Any, query: Query, neighbours: Neighbours, where: str) -> Noise:
    table = _table(noise, where)
    check_keys(table, where, required=["law"], optional=_SETTINGS)
    law = _law(table, where)
    given = {key: table[key] for key in _SETTINGS if key in table}
    if "scale" in given:
        if len(given) > 1:
            raise ValueError(f"{where} gives both scale and {', '.join(set(given) - {'scale'})}; give one of them.")
        return _made(where, lambda: law(given["scale"]))
    if not given:
        raise ValueError(f"{where} needs scale, or a budget: epsilon (laplace), rho, or epsilon with delta (gaussian).")
    budget = ("epsilon",) if law.norm == "l1" else ("epsilon", "delta", "rho")
    check_keys(given, f"{where} with the budget of {law.name} noise,", optional=budget)
    calibrating: Any = law
    return _made(where, lambda: calibrating.calibrated(query, neighbours=neighbours, **given))


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table such as {{ key = value }}; got {value!r}.")
    return value


def _made(where: str, make: Any) -> Any:
    """What ``make`` makes, its complaints put under the place in the file."""
    try:
        return make()
    except (TypeError, ValueError) as problem:
        if str(problem).startswith("The query file"):
            raise
        raise ValueError(f"{where} is refused: {problem}") from None
