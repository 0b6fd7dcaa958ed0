r"""Google's differential privacy libraries (C++, Go, Java, PyDP), by the parameters of an aggregation.

With ``l0`` partitions at most a person and ``linf`` contributions at most to each, a count changes by
``L1 = l0 linf`` and ``L2 = sqrt(l0) linf``; a sum of values clamped to [lower, upper] by these times ``max(|lower|, |upper|)``.

- ``laplace``: scale ``L1 / epsilon``.
- ``gaussian``: the standard deviation that the libraries' own search returns, which stops at the first value within a relative
  1e-3 above the exact one: it doubles from ``L2`` until the exact delta is met, then halves the interval.

The libraries round the noise of an integer to an integer. A continuous noise is never whole, so a whole-numbered count is
read as rounded (:class:`~noisewise.release.mechanisms.CensoredNoise`), and any other as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from noisewise.release.document import Release
from noisewise.release.importers.known import count_query, measurement, needed, numbers, sum_query
from noisewise.release.noise import Gaussian, Laplace, Noise
from noisewise.release.privacy import gaussian_delta
from noisewise.release.query import Neighbours, Query

Kind = Literal["laplace", "gaussian"]

_ACCURACY = 1e-3
"""The relative width at which the libraries' search for the standard deviation stops."""


def google_sigma(epsilon: float, delta: float, l2: float) -> float:
    """The standard deviation of Gaussian noise that the libraries use for this L2 sensitivity."""
    low, high = 0.0, l2
    while gaussian_delta(epsilon, l2**2 / (2 * high**2)) > delta:
        low, high = high, 2 * high
    while high - low > _ACCURACY * low:
        middle = 0.5 * (low + high)
        if gaussian_delta(epsilon, l2**2 / (2 * middle**2)) > delta:
            low = middle
        else:
            high = middle
    return high


def from_google_dp(
    value: Any,
    *,
    aggregation: Literal["count", "sum"],
    noise: Kind,
    epsilon: float,
    delta: float | None = None,
    l0: int = 1,
    linf: int = 1,
    column: str = "x",
    bounds: Sequence[float] | None = None,
    query: Query | None = None,
    rounded: bool | None = None,
    n: int | None = None,
    neighbours: Neighbours = "add_remove_one",
) -> Release:
    """A release by Google's libraries (see :meth:`noisewise.Release.from_google_dp`)."""
    if aggregation not in ("count", "sum"):
        raise ValueError(f"aggregation must be 'count' or 'sum', whose noise is added to a total; got {aggregation!r}.")
    for name, number in (("epsilon", epsilon), ("l0", l0), ("linf", linf)):
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not (math.isfinite(number) and number > 0)
        ):
            raise ValueError(f"{name} must be positive and finite; got {number!r}.")
        if name != "epsilon" and number != int(number):
            raise ValueError(f"{name} is a number of contributions, so it must be whole; got {number!r}.")
    if rounded not in (None, True, False):
        raise ValueError(f"rounded must be True, False, or None to be seen from the value; got {rounded!r}.")
    largest = 1.0
    if aggregation == "sum":
        if bounds is None:
            raise needed("The clamping interval of the sum", "the noise grows with it", "Give bounds=(lower, upper).")
        interval = dict(sum_query(column, bounds, "Google").bounds)[column]
        largest = max(abs(float(interval.lower)), abs(float(interval.upper)))
    law = _law(noise, epsilon, delta, l1=l0 * linf * largest, l2=math.sqrt(l0) * linf * largest)
    released = numbers(value, "The value")
    if query is None:
        if linf != 1 or l0 != 1:
            raise needed(
                "The query",
                f"with l0={l0} and linf={linf} a person may have several records, and a record here is one person's",
                "Give query= if every row is a record of its own, such as nw.queries.Counts for a count by partitions.",
            )
        query = count_query(column, "Google") if aggregation == "count" else sum_query(column, bounds or (), "Google")
    whole = bool(np.all(released == np.round(released))) and aggregation == "count" if rounded is None else rounded
    return Release([measurement(query, law, released, rounding=1.0 if whole else None)], n, neighbours=neighbours)


def _law(noise: str, epsilon: float, delta: float | None, *, l1: float, l2: float) -> Noise:
    if noise == "laplace":
        if delta:
            raise ValueError(
                f"Laplace noise has no delta; got delta={delta!r}. Leave it out, or give noise='gaussian'."
            )
        return Laplace(l1 / epsilon)
    if noise != "gaussian":
        raise ValueError(f"noise must be 'laplace' or 'gaussian'; got {noise!r}.")
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise ValueError(f"Gaussian noise needs delta strictly between 0 and 1; got delta={delta!r}.")
    return Gaussian(google_sigma(epsilon, delta, l2))
