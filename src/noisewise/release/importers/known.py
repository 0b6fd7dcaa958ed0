"""What importers have in common: the plain queries other tools ask, and the sentence for what a tool does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noisewise.release.document import Measurement
from noisewise.release.mechanisms import CensoredNoise
from noisewise.release.moments import Moments
from noisewise.release.noise import Laplace, Noise
from noisewise.release.query import Column, Query

EXACT = 1 / 64
"""The scale of integer noise that stands for an exact number: the mass beside zero is exp(-2048), which no float holds."""


def needed(what: str, why: str, how: str) -> ValueError:
    """The sentence that asks for what the tool does not say."""
    return ValueError(f"{what} is missing: {why}. {how}")


def sum_query(column: str, bounds: Sequence[float], origin: str) -> Moments:
    """The sum of one clamped column."""
    try:
        lower, upper = (float(end) for end in bounds)
    except (TypeError, ValueError):
        raise ValueError(f"The clamping interval of {column!r} must be (lower, upper); got {bounds!r}.") from None
    return Moments({column: Column(lower, upper, origin=origin)}, [{column: 1}])


def count_query(column: str, origin: str) -> Moments:
    """The number of records, which reads no column; the bounds stand there for form."""
    return Moments({column: Column(0, 1, origin=f"{origin}: a count reads no column")}, [{}])


def measurement(
    query: Query,
    noise: Noise,
    value: Any,
    *,
    lower: float | None = None,
    upper: float | None = None,
    rounding: float | None = None,
    name: str | None = None,
) -> Measurement:
    """A measurement of added noise; the tool rounded the noisy number, or moved it to an end, where that is given."""
    if lower is None and upper is None and rounding is None:
        return Measurement(query, noise, value, name=name)
    mechanism = CensoredNoise(query, noise, lower=lower, upper=upper, rounding=rounding)
    return Measurement(mechanism=mechanism, value=value, name=name)


def numbers(value: Any, what: str) -> np.ndarray:
    """Released numbers as an array of floats."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be released numbers; got {value!r}.") from None
    if array.size == 0 or not np.all(np.isfinite(array)):
        raise ValueError(f"{what} must be finite released numbers; got {value!r}.")
    return array


def bounds_of(bounds: Mapping[str, Sequence[float]] | Sequence[float] | None, column: str, why: str) -> Sequence[float]:
    """The public bounds of a column, or the sentence that asks for them."""
    found = bounds.get(column) if isinstance(bounds, Mapping) else bounds
    if found is None:
        raise needed(f"The clamping interval of {column!r}", why, f"Give bounds={{{column!r}: (lower, upper)}}.")
    return found


def scaled(noise: Noise, factor: float) -> Noise:
    """The noise of a number multiplied by ``factor``; a lattice of another width has no law here."""
    if factor != 1 and noise.discrete:
        raise ValueError(f"{type(noise).__name__} on a mean is not noise on the integers; import the sum instead.")
    return type(noise)(noise.scale * factor)


def laplace_of_deviation(deviation: float | np.ndarray) -> Laplace:
    """Laplace noise with this standard deviation."""
    return Laplace(deviation / np.sqrt(2.0))
