"""What OpenDP objects remember of how they were made: a nest of constructors and their arguments, read as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from noisewise.release.importers.known import needed
from noisewise.release.privacy import Privacy

_WRAPPERS = ("make_zCDP_to_approxDP", "make_fix_delta", "make_approximate", "make_pureDP_to_zCDP",
             "make_fixed_approxDP_to_approxDP", "make_population_amplification")  # fmt: skip
_TYPES = {
    "float": "f64",
    "int": "i32",
    "<class 'float'>": "f64",
    "<class 'int'>": "i32",
    "bool": "bool",
    "str": "String",
}


def opened(made: Any) -> Any:
    """A measurement, from a context query or a serialised form."""
    if callable(getattr(made, "resolve", None)) and not node(made):
        return made.resolve()
    return _parsed(made) if isinstance(made, str | bytes) else made


def _parsed(text: str | bytes) -> dict[str, Any]:
    """A serialised measurement as plain data."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"The serialised OpenDP measurement is not JSON: {problem}.") from None
    if not node(found):
        raise ValueError("The JSON is not a serialised OpenDP measurement: it names no constructor (__function__).")
    return dict(found)


def node(made: Any) -> Mapping[str, Any] | None:
    """The constructor and its arguments that an object, or its serialised form, remembers."""
    found = made if isinstance(made, Mapping) else getattr(made, "__opendp_dict__", None)
    return found if isinstance(found, Mapping) and "__function__" in found else None


def call(made: Any, what: str) -> tuple[str, dict[str, Any]]:
    found = node(made)
    if found is None:
        raise needed(
            f"The constructor of {what}",
            f"{type(made).__name__} does not remember how it was made",
            "Give the measurement that OpenDP's constructors returned, its serialised form, or a context query.",
        )
    return str(found["__function__"]), dict(found.get("__kwargs__") or {})


def unwrapped(made: Any) -> Any:
    """The measurement inside conversions between privacy measures, which change no value."""
    name, given = call(made, "the OpenDP measurement")
    return unwrapped(given["measurement"]) if name in _WRAPPERS else made


def parts_of(made: Any) -> list[Any]:
    """The measurements of a composition, or the one measurement."""
    made = unwrapped(made)
    name, given = call(made, "the OpenDP measurement")
    if name in ("make_composition", "make_basic_composition"):
        return [part for inner in given["measurements"] for part in parts_of(inner)]
    return [made]


def steps_of(made: Any) -> list[tuple[str, dict[str, Any]]]:
    """The transformations of a chain and then its measurement, from the records outward."""
    name, given = call(made, "a part of the OpenDP chain")
    if name == "make_chain_mt":
        return steps_of(given["transformation0"]) + steps_of(unwrapped(given["measurement1"]))
    if name == "make_chain_tt":
        return steps_of(given["transformation0"]) + steps_of(given["transformation1"])
    if name == "make_chain_pm":
        raise ValueError(
            "The OpenDP chain ends with postprocessing, and the value after it follows another law; give the measurement "
            "and the value before it."
        )
    return [(name, given)]


def input_of(made: Any, space: str) -> Any:
    """The input domain or metric of whatever a constructor made: its own, or that of its first part."""
    given = call(made, "a part of the OpenDP chain")[1]
    if space in given:
        return given[space]
    inner = given.get("transformation0") or given.get("measurement") or (given.get("measurements") or [None])[0]
    return None if inner is None else input_of(inner, space)


def type_of(found: Any) -> str | None:
    return None if found is None else _TYPES.get(str(found), str(found))


def pair(found: Any) -> tuple[float, float] | None:
    if isinstance(found, Mapping):
        found = found.get("__tuple__")
    return None if found is None else (float(found[0]), float(found[1]))


def metric_of(metric: Any) -> str | None:
    """How neighbouring tables differ in the first metric: by whole records, by replaced records, or unsaid."""
    found = node(metric)
    name = "" if found is None else str(found["__function__"])
    if found is not None and name.endswith("_input_metric"):
        return metric_of(input_of(found["__kwargs__"]["this"], "input_metric"))
    if name in ("symmetric_distance", "insert_delete_distance"):
        return "records"
    return "replace" if name in ("change_one_distance", "hamming_distance") else None


def promise_of(made: Any, steps: int = 1) -> Privacy | None:
    """What an OpenDP measurement's own privacy map says of tables that are this many steps apart."""
    metric, measure = str(made.input_metric), str(made.output_measure)
    known = ("SymmetricDistance()", "InsertDeleteDistance()", "ChangeOneDistance()", "HammingDistance()")
    if metric not in known or measure not in ("MaxDivergence", "ZeroConcentratedDivergence"):
        return None
    return Privacy("pure" if measure == "MaxDivergence" else "zcdp", float(made.map(steps)))
