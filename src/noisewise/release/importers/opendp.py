r"""OpenDP measurements: the chain that made the value, from the first transformation to the noise.

An OpenDP object made by a constructor remembers the constructor and its arguments (``__opendp_dict__``; its serialised form
is the same nest in JSON, which is read here as data: no constructor that a file names is ever called). The chain is walked once
from the records outward, and must be: changes that keep one value a record (casts, imputation, ``clamp``, ``resize``), one
sum, mean or count, and one noise.

| OpenDP | noisewise |
|---|---|
| ``make_sum``, ``make_mean`` (times n) with bounds from ``make_clamp`` or the domain; ``make_..._bounded_..._sum`` | ``Moments``, one sum |
| ``make_count`` | ``Moments``, the empty term |
| ``make_count_by_categories`` | ``Counts``; category number k is level k, unknown categories last |
| ``make_laplace``, ``make_gaussian``, ``make_noise`` on floats / on integers | the continuous law / the discrete law |
| ``make_geometric`` (``bounds``: moved to the nearer end) | ``DiscreteLaplace`` (``CensoredNoise``) |
| ``make_randomized_response``, ``..._bool`` | ``RandomisedResponse`` on every record |
| ``make_composition``, or a list of measurements or queries | one measurement for each part |

Unsigned integers (``u32``, ``u64``) hold no negative number: OpenDP moves the noisy value up to zero, which is a
``CensoredNoise``. Float noise is exact noise on the lattice of multiples of ``2^k``; a lattice that is not far below the scale is refused.
Tables whose size is part of the chain differ by replacing a record (two steps of the symmetric distance), all others by
adding or removing one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import count_query, measurement, needed, numbers, scaled, sum_query
from noisewise.release.importers.opendp_nodes import (
    input_of,
    metric_of,
    node,
    opened,
    pair,
    parts_of,
    promise_of,
    steps_of,
    type_of,
)
from noisewise.release.importers.opendp_noise import check_noise, noise_of, responses
from noisewise.release.privacy import Privacy, compose
from noisewise.release.queries import Counts
from noisewise.release.query import Neighbours, Query, check_neighbours

_SAME_VALUE = {
    "make_identity", "make_unordered", "make_ordered_random", "make_metric_bounded", "make_metric_unbounded",
    "make_cast", "make_cast_default", "make_cast_inherent", "make_impute_constant", "make_split_dataframe",
}  # fmt: skip


@dataclass(frozen=True)
class _Chain:
    """What the chain has said so far, from the records outward."""

    atom: str | None = None
    bounds: tuple[float, float] | None = None
    size: int | None = None
    column: str | None = None
    statistic: str | None = None
    categories: int = 0
    most: int | None = None


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
    from noisewise.release.importers.opendp_tables import from_polars, is_polars

    names = _names(columns)
    several = isinstance(made, list | tuple)
    objects = list(made) if several else [made]
    listed = list(value) if isinstance(value, list | tuple | np.ndarray) else [value]
    if any(is_polars(one) for one in objects):
        values = listed if several else [value]
        return from_polars(objects, values, names, n=n, bounds=bounds, neighbours=neighbours)
    parts = [part for one in objects for part in parts_of(opened(one))]
    values = [value] if len(parts) == 1 and not several else listed
    if not parts or len(values) != len(parts):
        raise ValueError(
            f"The OpenDP measurements released {len(parts)} values, one for each part; got {len(values)}. Give them as a list, "
            "in the order of the parts."
        )
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


def _names(columns: Any) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"columns must name the column that the OpenDP chain reads, or one for each part, as in ('x',); got {columns!r}."
        )
    return names


def _one_relation(relations: set[Neighbours]) -> Neighbours:
    if len(relations) != 1:
        raise needed(
            "The neighbouring relation",
            "the OpenDP object does not say how neighbouring tables differ",
            "Give neighbours='replace_one' or neighbours='add_remove_one'.",
        )
    return relations.pop()


def _read(
    made: Any, value: Any, column: str, n: int | None, query: Query | None
) -> tuple[Measurement, int | None, Neighbours | None]:
    """The measurement of one chain, the number of records that it says, and the neighbouring relation."""
    *transformations, (noise, given) = steps_of(made)
    if noise.startswith("make_randomized_response"):
        return responses(noise, given, value, column)
    name, arguments = transformations[0] if transformations else (noise, given)
    chain = _first(name, arguments)
    metric = "records" if _is_bounded_sum(name) else metric_of(arguments.get("input_metric"))
    sized = _domain_size(chain.size, transformations) is not None
    for name, arguments in transformations:
        chain = _outward(chain, name, arguments, query)
    if n is not None and chain.size is None:
        chain = replace(chain, size=n)
    if chain.most is not None and (chain.size is None or chain.size > chain.most):
        raise needed(
            f"A number of records of at most {chain.most}",
            "the OpenDP sum has that size_limit, and leaves records of larger tables out",
            "Give n= if it is public; or sum with dp.t.then_sum() after a clamp.",
        )
    check_noise(noise)
    noise_law, ends = noise_of(noise, given, _atom(chain, given))
    asked, factor = _asked(chain, column, query)
    relation: Neighbours | None = None
    if metric is not None:
        relation = "replace_one" if metric == "replace" or sized else "add_remove_one"
    released = numbers(value, "The OpenDP value")
    if factor != 1:
        released, noise_law = released * factor, scaled(noise_law, factor)
    lower, upper = ends
    return measurement(asked, noise_law, released, lower=lower, upper=upper), chain.size, relation


def _is_bounded_sum(name: str) -> bool:
    """A sum that states bounds and type itself, without a domain, as ``make_sized_bounded_int_checked_sum``."""
    return "_bounded_" in name and name.endswith("_sum")


def _first(name: str, given: Mapping[str, Any]) -> _Chain:
    """What the first step of a chain says of the records."""
    if not _is_bounded_sum(name):
        return _domain(given.get("input_domain"), _Chain())
    atom = type_of(given.get("T")) or ("f64" if "_float_" in name else "i32")
    return _Chain(atom=atom, size=given.get("size"), most=given.get("size_limit"))


def _domain_size(size: int | None, transformations: list[tuple[str, dict[str, Any]]]) -> int | None:
    """The number of records that the domain or the chain fixes."""
    for name, given in transformations:
        if name == "make_drop_null":
            size = None
        size = given["size"] if name == "make_resize" else size
    return size


def _domain(domain: Any, chain: _Chain) -> _Chain:
    """The type, the bounds and the size that a domain says."""
    found = node(domain)
    if found is None:
        return chain
    given = dict(found.get("__kwargs__") or {})
    if found["__function__"].endswith("_input_domain"):
        return _domain(input_of(given["this"], "input_domain"), chain)
    if found["__function__"] == "vector_domain":
        return replace(_domain(given.get("atom_domain"), chain), size=given.get("size"))
    if found["__function__"] == "option_domain":
        return _domain(given.get("element_domain"), chain)
    if found["__function__"] == "atom_domain":
        return replace(chain, atom=type_of(given.get("T")), bounds=pair(given.get("bounds")))
    if found["__function__"] == "transformation_output_domain":
        for name, arguments in steps_of(given["this"]):
            chain = _outward(_domain(arguments.get("input_domain"), chain), name, arguments, None)
    return chain


def _outward(chain: _Chain, name: str, given: dict[str, Any], query: Query | None) -> _Chain:
    """The chain after one more transformation."""
    if chain.statistic is not None and query is None:
        raise ValueError(f"The OpenDP chain has {name} after its {chain.statistic}, which no query here describes.")
    if name in _SAME_VALUE:
        return replace(chain, atom=_cast(chain, name, type_of(given.get("TOA")), query))
    if name == "make_select_column":
        return replace(chain, column=str(given["key"]), atom=type_of(given.get("TOA")))
    if name == "make_drop_null":
        return replace(chain, size=None)
    if name == "make_clamp":
        return replace(chain, bounds=_within(chain.bounds, pair(given["bounds"])))
    if name == "make_resize":
        return replace(chain, size=int(given["size"]))
    if name in ("make_sum", "make_mean") or _is_bounded_sum(name):
        limits = pair(given.get("bounds")) or chain.bounds
        return replace(chain, statistic="mean" if name == "make_mean" else "sum", bounds=limits)
    if name == "make_count":
        return replace(chain, statistic="count", atom=type_of(given.get("TO")) or "i32")
    if name == "make_count_by_categories":
        extra = 1 if given.get("null_category", True) else 0
        count = len(given["categories"]) + extra
        return replace(chain, statistic="table", categories=count, atom=type_of(given.get("TOA")) or "i32")
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


def _stated(part: Any) -> Privacy | None:
    """What OpenDP's own privacy map says of one person, where the object can be asked.

    In a table of fixed size that is a replaced record, two steps of the symmetric distance; before a ``make_resize`` it is a
    record added or removed, one step, after which the resized table has a record replaced.
    """
    if isinstance(part, Mapping) or not hasattr(part, "map"):
        return None
    replaced = str(part.input_metric) in ("ChangeOneDistance()", "HammingDistance()")
    return promise_of(part, 1 if replaced or _first(*steps_of(part)[0]).size is None else 2)
