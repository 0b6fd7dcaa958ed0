"""A release in words, for the people who decide and the people who read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from noisewise.release.moments import Moments
from noisewise.release.queries import Counts, Custom
from noisewise.release.query import Column, Query

if TYPE_CHECKING:
    from noisewise.release.document import Measurement, Release

_SHOWN = 20
_LAWS = {
    "laplace": "Laplace noise",
    "gaussian": "Gaussian noise",
    "discrete_laplace": "discrete Laplace noise (integers)",
    "discrete_gaussian": "discrete Gaussian noise (integers)",
}
_RELATIONS = {
    "replace_one": "what is hidden is the content of any one record (neighbouring tables differ by replacing one record)",
    "add_remove_one": "what is hidden is whether any one record is there (neighbouring tables differ by adding or removing one)",
}


def describe(release: Release) -> str:
    """The release in words, ready to print."""
    count = len(release.measurements)
    who = "an unknown number of records" if release.n is None else f"n = {release.n} records, a number that is public"
    lines = [f"A release of {count} {'measurement' if count == 1 else 'measurements'} of {who}.", _promise(release)]
    for number, measurement in enumerate(release.measurements, start=1):
        lines += ["", *_measurement(number, measurement, release)]
    return "\n".join(lines)


def _promise(release: Release) -> str:
    relation = f"Under {release.neighbours}, {_RELATIONS[release.neighbours]}"
    if release.privacy is None:
        return (
            f"{relation}; the guarantee is not stated, and a query that does not know its sensitivity cannot give it."
        )
    source = "as stated by the data holder" if release.stated is not None else "from bounds and scales"
    return f"{relation}; the guarantee, {source}, is {release.privacy}."


def _measurement(number: int, measurement: Measurement, release: Release) -> list[str]:
    title = f"{number}. {measurement.name}: " if measurement.name else f"{number}. "
    query, noise = measurement.query, measurement.noise
    if query is None or noise is None:
        kind = type(measurement.mechanism).__name__
        return [
            f"{title}{kind} on {_listed(measurement.mechanism.columns)}, releasing {measurement.value.size} number(s)."
        ]
    lines = [f"{title}{_asked(query)}"]
    if isinstance(query, Moments):
        lines += [f"   {_bounds(name, column)}" for name, column in query.bounds]
    lines.append(f"   Noise: independent {_LAWS.get(noise.name, noise.name)} with {_scale(np.asarray(noise.scale))}.")
    own = measurement.mechanism.privacy(release.neighbours)
    if own is not None:
        sensitivity = query.sensitivity(noise.norm, release.neighbours)
        lines.append(f"   {noise.norm.upper()} sensitivity {sensitivity:.6g}; alone it costs {own}.")
    return [*lines, *_values(measurement, query)]


def _asked(query: Query) -> str:
    if isinstance(query, Moments):
        return (
            f"Sums over the records of {query.size} monomial(s) of {_listed(query.columns)}, clamped to public bounds:"
        )
    if isinstance(query, Counts):
        tables = "; ".join(" by ".join(table) for table in query.tables)
        return f"Counts of records in {len(query.tables)} table(s), {tables}: {query.size} cells in all."
    if isinstance(query, Custom):
        return (
            f"Sums over the records of {query.size} number(s) that a custom function makes of {_listed(query.columns)}."
        )
    return f"{type(query).__name__} of {_listed(query.columns)}: {query.size} number(s)."


def _bounds(name: str, column: Column) -> str:
    mapped = "" if column.rescale is None else f", then mapped to [{column.rescale[0]:g}, {column.rescale[1]:g}]"
    return f"{name} is clamped to [{column.lower:g}, {column.upper:g}]{mapped} (origin of the bounds: {column.origin})."


def _scale(scale: np.ndarray) -> str:
    if scale.size == 1 or np.all(scale == scale.flat[0]):
        return f"scale {scale.flat[0]:.6g} on each number"
    return f"scales from {scale.min():.6g} to {scale.max():.6g}, one for each number"


def _values(measurement: Measurement, query: Query) -> list[str]:
    labels, values = query.labels[:_SHOWN], np.asarray(measurement.value)
    width = max(len(label) for label in labels)
    lines = [f"     {label:<{width}}  {value:.6g}" for label, value in zip(labels, values, strict=False)]
    hidden = query.size - len(labels)
    return ["   Released:", *lines, *([f"     ... and {hidden} more."] if hidden else [])]


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
