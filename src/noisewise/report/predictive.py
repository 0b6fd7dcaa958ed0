"""The release beside what the fitted model would release again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Predicted:
    """One released number, the interval of simulated ones, and the share of them below it (ties count half)."""

    label: str
    value: float
    low: float
    high: float
    below: float


def predicted(tree: xr.DataTree, level: float) -> list[Predicted]:
    """Every released number with its posterior predictive interval; empty where the run has no predictive draws."""
    if not {"posterior_predictive", "observed_data"} <= set(tree.children):
        return []
    simulated, released = tree["posterior_predictive"].to_dataset(), tree["observed_data"].to_dataset()
    found = []
    for name, value in released.data_vars.items():
        if name not in simulated:
            continue
        draws = simulated[name].values.reshape(-1, int(np.prod(value.shape)) if value.ndim else 1)
        labels = (
            value.coords[value.dims[0]].values if value.ndim and value.dims[0] in value.coords else range(value.size)
        )
        for j, (label, number) in enumerate(zip(labels, np.atleast_1d(value.values).reshape(-1), strict=False)):
            low, high = np.quantile(draws[:, j], [0.5 - 0.5 * level, 0.5 + 0.5 * level])
            below = float(np.mean(draws[:, j] < number) + 0.5 * np.mean(draws[:, j] == number))
            found.append(Predicted(str(label), float(number), float(low), float(high), below))
    return found
