"""PipelineDP: the metrics of partitions, each with the standard deviation of its noise (``output_noise_stddev=True``).

An output is a list of ``(partition, MetricsTuple(count=..., count_noise_stddev=..., ...))``. Counts of public partitions are one
``Counts`` table whose level k is ``partitions[k]``; a sum is read for one partition. The noise kind is in the parameters of the
aggregation, not in the output. Laplace noise with standard deviation s has scale ``s / sqrt 2``.

Partitions that PipelineDP selects privately appear only when they were large: that is a statement about the records as well, which
no query here describes, so the public list of partitions is asked for and must be complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from noisewise.release.document import Release
from noisewise.release.importers.known import laplace_of_deviation, measurement, needed, numbers, sum_query
from noisewise.release.noise import Gaussian, Noise
from noisewise.release.queries import Counts
from noisewise.release.query import Neighbours, Query

_COUNTS = ("count", "privacy_id_count")


def from_pipelinedp(
    outputs: Any,
    *,
    noise_kind: Any,
    partitions: Iterable[Any],
    metric: str = "count",
    column: str = "x",
    bounds: Sequence[float] | None = None,
    n: int | None = None,
    neighbours: Neighbours = "add_remove_one",
) -> Release:
    """A release by PipelineDP (see :meth:`noisewise.Release.from_pipelinedp`)."""
    found = _by_partition(outputs)
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise ValueError(f"partitions must list the public partitions, as in ['north', 'south']; got {partitions!r}.")
    partitions = list(partitions)
    missing = [key for key in partitions if key not in found]
    extra = [key for key in found if key not in partitions]
    if missing or extra:
        raise ValueError(
            f"partitions must be the complete public list: {missing or extra} {'have no output' if missing else 'are not in it'}. "
            "Partitions that were selected privately are a statement about the records that cannot be read here."
        )
    values: list[float] = []
    deviations: list[float] = []
    for key in partitions:
        for name, into in ((metric, values), (f"{metric}_noise_stddev", deviations)):
            if name not in found[key]:
                raise needed(
                    f"{name} of partition {key!r}",
                    f"its metrics are {sorted(found[key])}",
                    "Aggregate with output_noise_stddev=True, which PipelineDP knows for COUNT, PRIVACY_ID_COUNT and SUM.",
                )
            into.append(found[key][name])
    law = _law(noise_kind, numbers(deviations, "The noise standard deviations"))
    if metric in _COUNTS:
        asked: Query = Counts({column: len(partitions)}, [(column,)])
    elif metric == "sum" and len(partitions) == 1:
        if bounds is None:
            raise needed(
                "The clamping interval of the sum", "the output does not hold it", "Give bounds=(lower, upper)."
            )
        asked = sum_query(column, bounds, "clamped by PipelineDP")
    else:
        raise ValueError(
            f"The metric {metric!r} of {len(partitions)} partition(s) is not read here; counts are, and the sum of one partition."
        )
    return Release([measurement(asked, law, numbers(values, metric), name=metric)], n, neighbours=neighbours)


def _by_partition(outputs: Any) -> dict[Any, dict[str, Any]]:
    """The metrics of every partition: a mapping, or pairs."""
    try:
        pairs = list(outputs.items() if isinstance(outputs, Mapping) else outputs)
        found = {key: _fields(metrics) for key, metrics in pairs}
    except TypeError:
        raise ValueError(f"The outputs must be pairs of a partition and its MetricsTuple; got {outputs!r}.") from None
    if len(found) < len(pairs):
        raise ValueError("The outputs have a partition twice; give those of one aggregation.")
    return found


def _fields(metrics: Any) -> dict[str, Any]:
    """The metrics of one partition by name: a MetricsTuple, or a mapping."""
    as_dict = getattr(metrics, "_asdict", None)
    if not callable(as_dict) and not isinstance(metrics, Mapping):
        raise ValueError(f"The outputs must be pairs of a partition and its MetricsTuple; got {metrics!r}.")
    return dict(as_dict()) if callable(as_dict) else dict(metrics)


def _law(noise_kind: Any, deviations: np.ndarray) -> Noise:
    name = str(getattr(noise_kind, "value", noise_kind)).lower()
    if name not in ("laplace", "gaussian"):
        raise ValueError(f"noise_kind must be PipelineDP's NoiseKind, 'laplace' or 'gaussian'; got {noise_kind!r}.")
    return laplace_of_deviation(deviations) if name == "laplace" else Gaussian(deviations)
