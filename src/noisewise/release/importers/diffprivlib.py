"""diffprivlib mechanisms: the object that randomised the value, and the query it randomised.

| mechanism | law |
|---|---|
| ``Laplace`` | ``Laplace``, scale ``sensitivity / (epsilon - log(1 - delta))`` |
| ``Gaussian``, ``GaussianAnalytic`` | ``Gaussian`` with the mechanism's own scale |
| ``GaussianDiscrete`` | ``DiscreteGaussian`` with the mechanism's own scale |
| ``Geometric`` | ``DiscreteLaplace``, scale ``sensitivity / epsilon`` |
| ``LaplaceTruncated``, ``GeometricTruncated`` | the same, then moved to the nearer end: ``CensoredNoise`` |
| ``LaplaceBoundedDomain`` | drawn again until inside: ``TruncatedNoise`` with the mechanism's own scale |

A mechanism knows its sensitivity and not its query, which is given. ``mean=True`` says that it randomised the mean of the n
records, so that number and scale are multiplied by n.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import measurement, needed, numbers, scaled
from noisewise.release.mechanisms import TruncatedNoise
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise
from noisewise.release.query import Neighbours, Query

_READ = (
    "Laplace", "Gaussian", "GaussianAnalytic", "GaussianDiscrete", "Geometric",
    "LaplaceTruncated", "GeometricTruncated", "LaplaceBoundedDomain",
)  # fmt: skip


def from_diffprivlib(
    mechanism: Any,
    value: Any,
    query: Query | None = None,
    *,
    n: int | None = None,
    mean: bool = False,
    neighbours: Neighbours = "replace_one",
) -> Release:
    """A release by a diffprivlib mechanism (see :meth:`noisewise.Release.from_diffprivlib`)."""
    name = type(mechanism).__name__
    if not type(mechanism).__module__.startswith("diffprivlib.") or name not in _READ:
        raise ValueError(f"{name} is not a diffprivlib mechanism that is read here; {', '.join(_READ)} are.")
    if not isinstance(query, Query):
        raise needed(
            "The query",
            f"diffprivlib's {name} knows the sensitivity {mechanism.sensitivity:g} but not what it randomised",
            "Give query=, such as nw.queries.Moments(...).",
        )
    if mean and n is None:
        raise needed("The number of records", "a mean is a sum over n", "Give n=.")
    factor = float(n) if mean and n is not None else 1.0
    _compare(mechanism, query, factor, neighbours)
    released = numbers(value, "The value") * factor
    law = scaled(_law(mechanism, name), factor)
    ends = [_end(getattr(mechanism, side, None), factor) for side in ("lower", "upper")]
    if name == "LaplaceBoundedDomain":
        drawn_again = TruncatedNoise(query, law, lower=ends[0], upper=ends[1])
        return Release([Measurement(mechanism=drawn_again, value=released)], n, neighbours=neighbours)
    return Release([measurement(query, law, released, lower=ends[0], upper=ends[1])], n, neighbours=neighbours)


def _compare(mechanism: Any, query: Query, factor: float, neighbours: Neighbours) -> None:
    """Warn where the mechanism was told another sensitivity than the query has: most likely it randomised something else."""
    told = float(mechanism.sensitivity) * factor
    found = query.sensitivity("l2" if "Gaussian" in type(mechanism).__name__ else "l1", neighbours)
    if found > 0 and not math.isclose(told, found, rel_tol=1e-6):
        warnings.warn(
            f"diffprivlib's {type(mechanism).__name__} was told the sensitivity {told:g}, but the query's is {found:g} under "
            f"{neighbours}. Check the query and its bounds, and give mean=True if a mean was randomised.",
            UserWarning,
            stacklevel=4,
        )


def _law(mechanism: Any, name: str) -> Noise:
    epsilon, sensitivity = float(mechanism.epsilon), float(mechanism.sensitivity)
    if name in ("Laplace", "LaplaceTruncated"):
        return Laplace(sensitivity / (epsilon - math.log(1 - float(mechanism.delta))))
    if name in ("Geometric", "GeometricTruncated"):
        return DiscreteLaplace(sensitivity / epsilon)
    if name == "LaplaceBoundedDomain":
        mechanism.effective_epsilon()  # which makes the mechanism find its scale
        return Laplace(float(mechanism._scale))
    return (DiscreteGaussian if name == "GaussianDiscrete" else Gaussian)(float(mechanism._scale))


def _end(end: Any, factor: float) -> float | None:
    """An end of the mechanism's interval on the scale of the sum; ``None`` where there is none."""
    return None if end is None or math.isinf(float(end)) else float(end) * factor
