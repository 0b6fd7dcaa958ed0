"""Tumult Analytics: an answer with the noise information of its query (``session._noise_info(query, budget)``).

| mechanism | its parameter | law |
|---|---|---|
| LAPLACE | scale | ``Laplace(scale)`` |
| GEOMETRIC | alpha, mass proportional to exp(-|k| / alpha) | ``DiscreteLaplace(alpha)`` |
| GAUSSIAN, DISCRETE_GAUSSIAN | the square of sigma | ``Gaussian(sigma)``, ``DiscreteGaussian(sigma)`` |

Noise information does not hold the query, which is given. A query with several noises (an average is a noisy
sum over a noisy count) releases a number whose parts were not released, and is refused; so is EXPONENTIAL, a quantile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from noisewise.release.document import Measurement, Release
from noisewise.release.importers.known import needed, numbers
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise
from noisewise.release.query import Neighbours, Query


def from_tumult(
    noise_info: Any,
    value: Any,
    query: Query | None = None,
    *,
    n: int | None = None,
    neighbours: Neighbours = "add_remove_one",
) -> Release:
    """A release by Tumult Analytics (see :meth:`noisewise.Release.from_tumult`)."""
    infos = list(noise_info) if isinstance(noise_info, list | tuple) else [noise_info]
    if len(infos) != 1:
        raise ValueError(
            f"The noise information holds {len(infos)} noises, so the released number was computed from several noisy ones; "
            "release a count and a sum instead of an average."
        )
    info = infos[0]
    if not isinstance(info, Mapping):
        raise needed("The noise information", f"it is {info!r}", "Give session._noise_info(...).")
    for field in ("noise_mechanism", "noise_parameter"):
        if field not in info:
            raise needed(f"{field!r} of the noise information", f"it holds {info!r}", "Give session._noise_info(...).")
    if not isinstance(query, Query):
        raise needed(
            "The query",
            "Tumult's noise information does not say what was counted or summed, nor its clamping interval",
            "Give query=, such as nw.queries.Counts(...) or nw.queries.Moments(...).",
        )
    parameter = numbers(info["noise_parameter"], "The noise_parameter")
    if parameter.ndim > 0:
        raise ValueError(f"The noise_parameter must be one number; got {info['noise_parameter']!r}.")
    law = _law(info["noise_mechanism"], float(parameter))
    return Release([Measurement(query, law, numbers(value, "The answer"))], n, neighbours=neighbours)


def _law(mechanism: Any, parameter: float) -> Noise:
    name = str(getattr(mechanism, "name", mechanism)).upper()
    if name == "LAPLACE":
        return Laplace(parameter)
    if name == "GEOMETRIC":
        return DiscreteLaplace(parameter)
    if name in ("GAUSSIAN", "DISCRETE_GAUSSIAN") and parameter > 0:
        return (Gaussian if name == "GAUSSIAN" else DiscreteGaussian)(math.sqrt(parameter))
    raise ValueError(
        f"The noise mechanism {name} with parameter {parameter:g} is not read here; LAPLACE, GEOMETRIC, GAUSSIAN and "
        "DISCRETE_GAUSSIAN with a positive parameter are."
    )
