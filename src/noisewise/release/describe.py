"""A release in words, for the people who decide and the people who read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanisms import (
    CensoredNoise,
    ExponentialMechanism,
    KNormGradient,
    KNormNoise,
    ObjectivePerturbation,
    TruncatedNoise,
)
from noisewise.release.moments import Moments
from noisewise.release.noise import Noise
from noisewise.release.queries import Counts, Custom
from noisewise.release.query import Column, Query
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law, RecordNoise

if TYPE_CHECKING:
    from noisewise.release.document import Measurement, Release

_SHOWN = 20
_LAWS = {
    "laplace": "Laplace noise",
    "gaussian": "Gaussian noise",
    "discrete_laplace": "discrete Laplace noise (integers)",
    "discrete_gaussian": "discrete Gaussian noise (integers)",
}
_BALLS = {"l1": "sum of absolute values", "l2": "Euclidean length", "linf": "largest absolute value"}
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
            f"{relation}; the guarantee is not stated, and cannot be had from the measurements alone (a query that does not know its "
            "sensitivity, or a mechanism without a bound)."
        )
    source = "as stated by the data holder" if release.stated is not None else "from bounds and scales"
    return f"{relation}; the guarantee, {source}, is {release.privacy}."


def _measurement(number: int, measurement: Measurement, release: Release) -> list[str]:
    title = f"{number}. {measurement.name}: " if measurement.name else f"{number}. "
    query, noise = measurement.query, measurement.noise
    if query is None or noise is None:
        return _other(title, measurement, release)
    lines = [f"{title}{_asked(query)}", *_all_bounds(query), f"   Noise: {_independent(noise)}."]
    own = measurement.mechanism.privacy(release.neighbours)
    if own is not None:
        sensitivity = query.sensitivity(noise.norm, release.neighbours)
        lines.append(f"   {noise.norm.upper()} sensitivity {sensitivity:.6g}; alone it costs {own}.")
    return [*lines, *_values(measurement, query)]


def _other(title: str, measurement: Measurement, release: Release) -> list[str]:
    """A measurement by another mechanism than noise added to a query."""
    mechanism = measurement.mechanism
    query = getattr(mechanism, "query", None)
    if isinstance(query, Query):
        lines = [f"{title}{_asked(query)}", *_all_bounds(query)]
    elif isinstance(query, RecordColumns):
        rows = measurement.value.shape[0]
        names = _listed(query.columns) if query.columns else "Columns"
        lines = [f"{title}{names} of every record: a table of {rows} rows, in an order that says nothing."]
        if query.public:
            lines.append(f"   Released without noise, outside any guarantee: {_listed(query.public)}.")
        if query.missing:
            count = int(np.sum(np.isnan(np.asarray(measurement.value))))
            lines.append(f"   Missing: {count} value(s); which ones are is public.")
    else:
        lines = [f"{title}A statement about {_listed(mechanism.columns)}."]
    lines.append(f"   {mechanism_words(mechanism)}")
    own = mechanism.privacy(release.neighbours)
    if own is not None:
        lines.append(f"   Alone it costs {own}.")
    if isinstance(query, Query):
        return [*lines, *_values(measurement, query)]
    return lines if isinstance(query, RecordColumns) else [*lines, f"   Released: {_released(measurement)}."]


def mechanism_words(mechanism: Mechanism) -> str:
    """One or two sentences on how the value was made."""
    if isinstance(mechanism, KNormNoise):
        return f"Noise: one vector whose density falls with its {_BALLS[mechanism.ball]}, with scale {mechanism.scale:.6g}."
    if isinstance(mechanism, TruncatedNoise):
        return (
            f"Noise: {_independent(mechanism.noise)}, each number drawn again until it was {_within(mechanism)}. The chance of "
            "that depends on the exact number, and the posterior accounts for it."
        )
    if isinstance(mechanism, CensoredNoise):
        grid = f"rounded to multiples of {mechanism.rounding:g}" if mechanism.rounding > 0 else ""
        ends = f"moved to the nearer end unless it was {_within(mechanism)}" if _ends(mechanism) else ""
        return f"Noise: {_independent(mechanism.noise)}, after which each number was {' and then '.join(filter(None, (grid, ends)))}."
    if isinstance(mechanism, RecordNoise):
        if not mechanism.query.columns:
            return "No noise: the table is released as it is."
        if isinstance(mechanism.noise, tuple):
            return " ".join(f"On {name}: {_on_records(law)}" for name, law in mechanism.laws.items())
        return _on_records(mechanism.noise)
    if isinstance(mechanism, ExponentialMechanism):
        return (
            f"Exponential mechanism: one of {mechanism.size} public candidates, chosen with probability proportional to "
            f"exp({mechanism.epsilon / (2 * mechanism.sensitivity):.6g} score), the score a function of the records."
        )
    if isinstance(mechanism, ObjectivePerturbation):
        tilt = (
            "Gaussian with sd"
            if mechanism.noise == "gaussian"
            else "with density falling with its Euclidean length, scale"
        )
        return (
            f"Objective perturbation: the minimiser of a loss summed over the records, with a ridge of {mechanism.ridge:.6g} and "
            f"a random linear tilt ({tilt} {mechanism.scale:.6g})."
        )
    if isinstance(mechanism, KNormGradient):
        known = "taken step by step with an exact simulator" if mechanism.unnormalised else "constant in the records"
        return (
            f"K-norm gradient: a vector with density proportional to exp(-{mechanism.epsilon / (2 * mechanism.sensitivity):.6g} "
            f"times the {_BALLS[mechanism.ball]} of the summed loss gradients); its normaliser is {known}."
        )
    return f"Made by the mechanism {type(mechanism).__name__}."


def _on_records(law: Law) -> str:
    if isinstance(law, RandomisedResponse):
        others = "the other code" if law.levels == 2 else f"one of the other {law.levels - 1} codes, all alike"
        return f"Randomised response: a code is reported truly with probability {1 - law.flip:.6g}, else as {others}."
    return f"Noise on every record: {_independent(law)}."


def _released(measurement: Measurement) -> str:
    numbers = np.ravel(np.asarray(measurement.value))
    if isinstance(measurement.mechanism, ExponentialMechanism):
        chosen = np.asarray(measurement.mechanism.candidates)[int(numbers[0])]
        return f"candidate number {int(numbers[0])}, {', '.join(f'{c:.6g}' for c in np.ravel(chosen))}"
    more = f" and {numbers.size - _SHOWN} more" if numbers.size > _SHOWN else ""
    return ", ".join(f"{number:.6g}" for number in numbers[:_SHOWN]) + more


def _independent(noise: Noise) -> str:
    return f"independent {_LAWS.get(noise.name, noise.name)} with {_scale(np.asarray(noise.scale))}"


def _ends(mechanism: TruncatedNoise | CensoredNoise) -> bool:
    return bool(np.isfinite(mechanism.lower) or np.isfinite(mechanism.upper))


def _within(mechanism: TruncatedNoise | CensoredNoise) -> str:
    low, high = float(mechanism.lower), float(mechanism.upper)
    if np.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if np.isinf(low) else f"between {low:g} and {high:g}"


def _all_bounds(query: Query) -> list[str]:
    return [f"   {_bounds(name, column)}" for name, column in query.bounds] if isinstance(query, Moments) else []


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
