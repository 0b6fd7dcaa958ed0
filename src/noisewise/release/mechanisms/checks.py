"""Checks that the mechanisms share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def positive_number(name: str, value: Any) -> Array:
    """A positive finite number as an array leaf."""
    if isinstance(value, jax.core.Tracer):
        return value
    array = np.asarray(value, dtype=float)
    if array.shape != () or not np.isfinite(array) or array <= 0:
        raise ValueError(f"{name} must be one positive finite number; got {value!r}.")
    return jnp.asarray(array)


def interval(lower: float | None, upper: float | None, *, both: bool) -> tuple[float, float]:
    """An interval of released values; ``None`` is an end that does not exist."""
    low = -np.inf if lower is None else float(lower)
    high = np.inf if upper is None else float(upper)
    if np.isnan(low) or np.isnan(high) or not low < high or (both and not (np.isfinite(low) and np.isfinite(high))):
        raise ValueError(f"The interval of released values needs lower < upper; got lower={lower}, upper={upper}.")
    return low, high
