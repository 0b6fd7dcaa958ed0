r"""OpenDP measurements: the chain that made the value, from the first transformation to the noise.

An OpenDP object made by a constructor remembers the constructor and its arguments (``__opendp_dict__``; its serialised form
is the same nest in JSON, which is read here as data: no constructor that a file names is ever called). The chain is walked once
from the records outward, and must be: changes that keep one value a record (casts, imputation, ``clamp``, ``resize``), one
sum, mean or count, and one noise.

| OpenDP | noisewise |
|---|---|
| ``make_sum``, ``make_mean`` (times n) with bounds from ``make_clamp`` or the domain | ``Moments``, one sum |
| ``make_count`` | ``Moments``, the empty term |
| ``make_count_by_categories`` | ``Counts``; category number k is level k, unknown categories last |
| ``make_laplace``, ``make_gaussian``, ``make_noise`` on floats / on integers | the continuous law / the discrete law |
| ``make_geometric`` (``bounds``: moved to the nearer end) | ``DiscreteLaplace`` (``CensoredNoise``) |
| ``make_randomized_response``, ``..._bool`` | ``RandomisedResponse`` on every record |
| ``make_composition`` | one measurement for each part |

Float noise is exact noise on the lattice of multiples of ``2^k``; a lattice that is not far below the scale is refused.
Tables whose size is part of the chain differ by replacing a record (two steps of the symmetric distance), all others by
adding or removing one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import count_query, measurement, needed, numbers, scaled, sum_query
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise, RandomisedResponse
from noisewise.release.privacy import Privacy, compose
from noisewise.release.queries import Counts
from noisewise.release.query import Neighbours, Query, check_neighbours
from noisewise.release.record_columns import RecordColumns

_SAME_VALUE = {
    "make_identity", "make_unordered", "make_ordered_random", "make_metric_bounded", "make_metric_unbounded",
    "make_cast", "make_cast_default", "make_cast_inherent", "make_impute_constant", "make_split_dataframe",
}  # fmt: skip
_WRAPPERS = ("make_zCDP_to_approxDP", "make_fix_delta", "make_approximate", "make_pureDP_to_zCDP",
             "make_fixed_approxDP_to_approxDP")  # fmt: skip
_TYPES = {
    "float": "f64",
    "int": "i32",
    "<class 'float'>": "f64",
    "<class 'int'>": "i32",
    "bool": "bool",
    "str": "String",
}
_FINEST = 2.0**-20
"""The widest lattice of float noise that is taken for continuous, as a share of the scale."""


@dataclass(frozen=True)
class _Chain:
    """What the chain has said so far, from the records outward."""

    atom: str | None = None
    bounds: tuple[float, float] | None = None
    size: int | None = None
    column: str | None = None
    statistic: str | None = None
    categories: int = 0


def from_opendp(
    made: Any,
    value: Any,
    columns: Sequence[str] = ("x",),
    *,
    n: int | None = None,
    query: Query | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    neighbours: Neighbours | None = None,
) -> Release:
    """A release from an OpenDP measurement (see :meth:`noisewise.Release.from_opendp`)."""
    from noisewise.release.importers.opendp_tables import from_summary, is_summary

    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise ValueError("columns must name at least one column, the one that the OpenDP chain reads; got none.")
    if hasattr(made, "summarize") or is_summary(made):
        return from_summary(made, value, n=n, bounds=bounds, neighbours=neighbours)
    if callable(getattr(made, "resolve", None)) and not _node(made):
        made = made.resolve()
    if isinstance(made, str | bytes):
        made = _parsed(made)
    parts = _parts(made)
    values = [value] if len(parts) == 1 else list(value)
    if len(values) != len(parts):
        raise ValueError(f"The OpenDP composition has {len(parts)} parts, but {len(values)} values were given.")
    if len(names) not in (1, len(parts)):
        raise ValueError(f"Give one column, or one for each of the {len(parts)} parts; got columns={names}.")
    names = names * len(parts) if len(names) == 1 else names
    read = [_read(part, one, name, n, query) for part, one, name in zip(parts, values, names, strict=True)]
    sizes = {size for _, size, _ in read if size is not None} | ({n} if n is not None else set())
    if len(sizes) > 1:
        raise ValueError(f"The OpenDP chain and n disagree on the number of records: {sorted(sizes)}. Leave n out.")
    relations = {relation for _, _, relation in read if relation is not None}
    relation = check_neighbours(neighbours) if neighbours is not None else _one_relation(relations)
    stated = [_stated(part) for part in parts]
    known = [privacy for privacy in stated if privacy is not None]
    promise = compose(known) if neighbours is None and len(known) == len(parts) else None
    found = [part for part, _, _ in read]
    return Release(found, sizes.pop() if sizes else None, neighbours=relation, stated=promise)


def _one_relation(relations: set[Neighbours]) -> Neighbours:
    if len(relations) != 1:
        raise needed(
            "The neighbouring relation",
            "the OpenDP object does not say how neighbouring tables differ",
            "Give neighbours='replace_one' or neighbours='add_remove_one'.",
        )
    return relations.pop()


def _parsed(text: str | bytes) -> dict[str, Any]:
    """A serialised measurement as plain data."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"The serialised OpenDP measurement is not JSON: {problem}.") from None
    if not _node(found):
        raise ValueError("The JSON is not a serialised OpenDP measurement: it names no constructor (__function__).")
    return dict(found)


def _node(made: Any) -> Mapping[str, Any] | None:
    """The constructor and its arguments that an object, or its serialised form, remembers."""
    found = made if isinstance(made, Mapping) else getattr(made, "__opendp_dict__", None)
    return found if isinstance(found, Mapping) and "__function__" in found else None


def _call(made: Any, what: str) -> tuple[str, dict[str, Any]]:
    found = _node(made)
    if found is None:
        raise needed(
            f"The constructor of {what}",
            f"{type(made).__name__} does not remember how it was made",
            "Give the measurement that OpenDP's constructors returned, its serialised form, or a context query.",
        )
    return str(found["__function__"]), dict(found.get("__kwargs__") or {})


def _unwrapped(made: Any) -> Any:
    """The measurement inside conversions between privacy measures, which change no value."""
    name, given = _call(made, "the OpenDP measurement")
    return _unwrapped(given["measurement"]) if name in _WRAPPERS else made


def _parts(made: Any) -> list[Any]:
    """The measurements of a composition, or the one measurement."""
    made = _unwrapped(made)
    name, given = _call(made, "the OpenDP measurement")
    if name in ("make_composition", "make_basic_composition"):
        return [part for inner in given["measurements"] for part in _parts(inner)]
    return [made]


def _steps(made: Any) -> list[tuple[str, dict[str, Any]]]:
    """The transformations of a chain and then its measurement, from the records outward."""
    name, given = _call(made, "a part of the OpenDP chain")
    if name == "make_chain_mt":
        return _steps(given["transformation0"]) + _steps(_unwrapped(given["measurement1"]))
    if name == "make_chain_tt":
        return _steps(given["transformation0"]) + _steps(given["transformation1"])
    if name == "make_chain_pm":
        raise ValueError(
            "The OpenDP chain ends with postprocessing, and the value after it follows another law; give the measurement "
            "and the value before it."
        )
    return [(name, given)]


def _read(
    made: Any, value: Any, column: str, n: int | None, query: Query | None
) -> tuple[Measurement, int | None, Neighbours | None]:
    """The measurement of one chain, the number of records that it says, and the neighbouring relation."""
    *transformations, (noise, given) = _steps(made)
    if noise.startswith("make_randomized_response"):
        return _responses(noise, given, value, column)
    first = transformations[0] if transformations else (noise, given)
    chain = _domain(first[1].get("input_domain"), _Chain())
    metric = _metric(first[1].get("input_metric"))
    for name, arguments in transformations:
        chain = _outward(chain, name, arguments, query)
    if n is not None and chain.size is None:
        chain = replace(chain, size=n)
    noise_law, ends = _noise(noise, given, _atom(chain, given))
    asked, factor = _asked(chain, column, query)
    relation: Neighbours | None = None
    if metric is not None:
        sized = _domain_size(transformations, first[1]) is not None
        relation = "replace_one" if metric == "replace" or sized else "add_remove_one"
    released = numbers(value, "The OpenDP value")
    if factor != 1:
        released, noise_law = released * factor, scaled(noise_law, factor)
    lower, upper = ends or (None, None)
    return measurement(asked, noise_law, released, lower=lower, upper=upper), chain.size, relation


def _domain_size(transformations: list[tuple[str, dict[str, Any]]], first: dict[str, Any]) -> int | None:
    """The number of records that the domain or the chain fixes."""
    size = _domain(first.get("input_domain"), _Chain()).size
    for name, given in transformations:
        if name == "make_drop_null":
            size = None
        size = given.get("size", size) if name == "make_resize" or name.startswith("make_sized_") else size
    return size


def _domain(domain: Any, chain: _Chain) -> _Chain:
    """The type, the bounds and the size that a domain says."""
    found = _node(domain)
    if found is None:
        return chain
    given = dict(found.get("__kwargs__") or {})
    if found["__function__"].endswith("_input_domain"):
        return _domain(_input(given["this"], "input_domain"), chain)
    if found["__function__"] == "vector_domain":
        return replace(_domain(given.get("atom_domain"), chain), size=given.get("size"))
    if found["__function__"] == "option_domain":
        return _domain(given.get("element_domain"), chain)
    if found["__function__"] == "atom_domain":
        return replace(chain, atom=_type(given.get("T")), bounds=_pair(given.get("bounds")))
    if found["__function__"] == "transformation_output_domain":
        for name, arguments in _steps(given["this"]):
            chain = _outward(_domain(arguments.get("input_domain"), chain), name, arguments, None)
    return chain


def _input(made: Any, space: str) -> Any:
    """The input domain or metric of whatever a constructor made: its own, or that of its first part."""
    given = _call(made, "a part of the OpenDP chain")[1]
    if space in given:
        return given[space]
    inner = given.get("transformation0") or given.get("measurement") or (given.get("measurements") or [None])[0]
    return None if inner is None else _input(inner, space)


def _type(found: Any) -> str | None:
    return None if found is None else _TYPES.get(str(found), str(found))


def _pair(found: Any) -> tuple[float, float] | None:
    if isinstance(found, Mapping):
        found = found.get("__tuple__")
    return None if found is None else (float(found[0]), float(found[1]))


def _metric(metric: Any) -> str | None:
    """How neighbouring tables differ in the first metric: by whole records, by replaced records, or unsaid."""
    found = _node(metric)
    name = "" if found is None else str(found["__function__"])
    if found is not None and name.endswith("_input_metric"):
        return _metric(_input(found["__kwargs__"]["this"], "input_metric"))
    if name in ("symmetric_distance", "insert_delete_distance"):
        return "records"
    return "replace" if name in ("change_one_distance", "hamming_distance") else None


def _outward(chain: _Chain, name: str, given: dict[str, Any], query: Query | None) -> _Chain:
    """The chain after one more transformation."""
    if chain.statistic is not None and query is None:
        raise ValueError(f"The OpenDP chain has {name} after its {chain.statistic}, which no query here describes.")
    if name in _SAME_VALUE:
        return replace(chain, atom=_cast(chain, name, _type(given.get("TOA")), query))
    if name == "make_select_column":
        return replace(chain, column=str(given["key"]), atom=_type(given.get("TOA")))
    if name == "make_drop_null":
        return replace(chain, size=None)
    if name == "make_clamp":
        return replace(chain, bounds=_within(chain.bounds, _pair(given["bounds"])))
    if name == "make_resize":
        return replace(chain, size=int(given["size"]))
    if name in ("make_sum", "make_mean") or name.endswith("_sum"):
        limits = _pair(given.get("bounds")) or chain.bounds
        kind = "mean" if name == "make_mean" else "sum"
        return replace(chain, statistic=kind, bounds=limits, size=given.get("size") or chain.size)
    if name == "make_count":
        return replace(chain, statistic="count", atom=_type(given.get("TO")) or "i32")
    if name == "make_count_by_categories":
        extra = 1 if given.get("null_category", True) else 0
        count = len(given["categories"]) + extra
        return replace(chain, statistic="table", categories=count, atom=_type(given.get("TOA")) or "i32")
    if query is not None:
        return chain
    raise needed(
        "The query",
        f"the OpenDP chain has {name}, which is not one of the clamped sums, means and counts that are read here",
        "Give query= with the noisewise query of the same statistic, whose noise will be OpenDP's.",
    )


def _cast(chain: _Chain, name: str, atom: str | None, query: Query | None) -> str | None:
    """The number type after a step that keeps values; a cast that rounds them off, or makes them true or false, does not."""
    rounds = chain.atom in ("f64", "f32") and atom is not None and atom not in ("f64", "f32", "String")
    judges = chain.atom not in (None, "String", "bool") and atom == "bool"
    if (rounds or judges) and query is None:
        raise needed(
            "The query",
            f"the OpenDP chain has {name} from {chain.atom} to {atom}, which changes the values that are summed",
            "Give query= with the noisewise query of the same statistic, whose noise will be OpenDP's.",
        )
    return atom or chain.atom


def _within(before: tuple[float, float] | None, after: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval that two clamps after each other leave."""
    if before is None or after is None:
        return after or before
    lower, upper = (min(max(end, after[0]), after[1]) for end in before)
    return lower, upper


def _asked(chain: _Chain, column: str, query: Query | None) -> tuple[Query, float]:
    """The query, and what the released number is to be multiplied by to be its sum."""
    if query is not None:
        return query, 1.0
    column = chain.column or column
    origin = "OpenDP"
    if chain.statistic is None:
        raise needed(
            "The query",
            "the OpenDP measurement is noise alone, without the transformation before it",
            "Give the whole chain, or query= with the noisewise query of the statistic.",
        )
    if chain.statistic == "count":
        return count_query(column, origin), 1.0
    if chain.statistic == "table":
        return Counts({column: chain.categories}, [(column,)]), 1.0
    if chain.bounds is None:
        raise needed("The clamping interval", "the OpenDP chain has a sum without bounds", "Give query= instead.")
    if chain.statistic == "mean" and chain.size is None:
        raise needed("The number of records", "the OpenDP chain has a mean without a size", "Give n=.")
    factor = float(chain.size) if chain.statistic == "mean" and chain.size is not None else 1.0
    return sum_query(column, chain.bounds, "clamped by OpenDP"), factor


def _atom(chain: _Chain, given: dict[str, Any]) -> str:
    """The number type that the noise is added to."""
    atom = chain.atom or _domain(given.get("input_domain"), _Chain()).atom
    if atom is None:
        raise needed(
            "The number type", "the OpenDP chain does not say whether it sums floats or integers", "Give query=."
        )
    return atom


def _noise(name: str, given: dict[str, Any], atom: str) -> tuple[Noise, tuple[float, float] | None]:
    """The law of a noise constructor, and the ends that it moves values to."""
    measure = str(given.get("MO") or given.get("output_measure") or "")
    if name == "make_geometric":
        return DiscreteLaplace(given["scale"]), _pair(given.get("bounds"))
    if name in ("make_laplace", "make_gaussian"):
        gaussian = name == "make_gaussian"
    elif name == "make_noise":
        measured = _node(given.get("output_measure"))
        measure = str(measured["__function__"]) if measured else measure
        if not any(known in measure.lower() for known in ("max_divergence", "zero_concentrated")):
            raise needed("The noise law", f"make_noise has the measure {measure or 'unsaid'}", "Use make_laplace.")
        gaussian = "zero_concentrated" in measure.lower()
    else:
        raise ValueError(
            f"The OpenDP measurement {name} is not one that is read here: make_laplace, make_gaussian, make_noise, "
            "make_geometric, make_randomized_response and make_composition are."
        )
    scale = float(given["scale"])
    if atom not in ("f64", "f32"):
        return (DiscreteGaussian if gaussian else DiscreteLaplace)(scale), None
    lattice = given.get("k")
    if lattice is not None and 2.0 ** float(lattice) > _FINEST * scale:
        raise ValueError(
            f"The OpenDP noise lives on multiples of 2^{lattice}, too coarse beside its scale {scale:g} to be taken for "
            "continuous; leave k out in OpenDP."
        )
    return (Gaussian if gaussian else Laplace)(scale), None


def _responses(name: str, given: dict[str, Any], value: Any, column: str) -> tuple[Measurement, int, Neighbours]:
    """Randomised response: the value is one answer for each record, coded by the position of its category."""
    categories = [False, True] if name == "make_randomized_response_bool" else list(given.get("categories") or ())
    if not categories:
        raise ValueError(f"{name} is not read here; make_randomized_response and make_randomized_response_bool are.")
    answers = list(np.ravel(np.asarray(value)).tolist())
    unknown = [answer for answer in answers if answer not in categories]
    if unknown:
        raise ValueError(f"The answers {unknown[:3]} are not among the categories {categories} of {name}.")
    codes = np.asarray([[float(categories.index(answer))] for answer in answers])
    law = RandomisedResponse(1 - float(given["prob"]), len(categories))
    return Measurement(RecordColumns((column,)), law, codes), len(answers), "replace_one"


def _stated(part: Any) -> Privacy | None:
    """What OpenDP's own privacy map says of one person, where the object can be asked.

    In a table of fixed size that is a replaced record, two steps of the symmetric distance; before a ``make_resize`` it is a
    record added or removed, one step, after which the resized table has a record replaced.
    """
    if isinstance(part, Mapping) or not hasattr(part, "map"):
        return None
    metric, measure = str(part.input_metric), str(part.output_measure)
    if measure not in ("MaxDivergence", "ZeroConcentratedDivergence"):
        return None
    if metric in ("SymmetricDistance()", "InsertDeleteDistance()"):
        steps = 1 if _domain(_input(part, "input_domain"), _Chain()).size is None else 2
    elif metric in ("ChangeOneDistance()", "HammingDistance()"):
        steps = 1
    else:
        return None
    return Privacy("pure" if measure == "MaxDivergence" else "zcdp", float(part.map(steps)))
