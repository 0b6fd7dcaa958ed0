"""The numbers of a posterior, one row for each parameter: location, spread, interval, and how well they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

LEVEL = 0.9
"""The probability in an interval unless another is asked for: the papers' choice."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and the equal-tailed interval of a set of draws."""

    mean: float
    sd: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: np.ndarray, level: float = LEVEL) -> Spread:
        low, high = np.quantile(draws, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return cls(float(np.mean(draws)), float(np.std(draws, ddof=1)), float(low), float(high))


@dataclass(frozen=True)
class Row:
    """One scalar parameter."""

    name: str
    posterior: Spread
    rhat: float
    ess_bulk: float
    ess_tail: float
    missing_information: float | None
    naive: Spread | None = None
    prior: Spread | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as plain numbers, for JSON; what is not finite or not there is null."""
        return _finite(asdict(self))


def scalars(group: xr.Dataset) -> dict[str, np.ndarray]:
    """Every scalar of a group of draws as an array (chain, draw), named ``beta[intercept]`` and the like."""
    found = {}
    for name, variable in group.data_vars.items():
        inner = variable.dims[2:]
        labels = [[str(label) for label in variable[dim].values] for dim in inner]
        for place in np.ndindex(*variable.shape[2:]):
            at = ",".join(labels[axis][index] for axis, index in enumerate(place))
            found[f"{name}[{at}]" if at else str(name)] = np.asarray(
                variable.values[(slice(None), slice(None), *place)]
            )
    return found


def check_level(level: float) -> float:
    """The probability of an interval, or a sentence."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise ValueError(f"level must be the probability of an interval, between 0 and 1; got {level!r}.")
    return float(level)


def rows_of(rows: Iterable[Row], variable: str) -> list[Row]:
    """The rows of one variable, scalar or array."""
    return [row for row in rows if row.name.partition("[")[0] == variable]


def summarise(tree: xr.DataTree, *, level: float = LEVEL) -> list[Row]:
    """One row for each scalar parameter; ``naive`` and ``prior`` are filled where the tree has those groups."""
    level = check_level(level)
    posterior = tree["posterior"].to_dataset()
    shares = {
        name: share
        for variable, draws in posterior.data_vars.items()
        for name, share in zip(scalars(posterior[[variable]]), _shares(draws), strict=True)
    }
    others = {kind: scalars(tree[kind].to_dataset()) if kind in tree.children else {} for kind in ("naive", "prior")}
    rows = []
    for name, draws in scalars(posterior).items():
        naive, prior = (
            Spread.of(others[kind][name], level) if name in others[kind] else None for kind in ("naive", "prior")
        )
        rows.append(Row(name, Spread.of(draws, level), *_judged(draws), shares[name], naive, prior))
    return rows


def _shares(variable: xr.DataArray) -> list[float | None]:
    size = int(np.prod(variable.shape[2:]))
    known = variable.attrs.get("missing_information")
    return [None] * size if known is None else [float(share) for share in np.atleast_1d(known)]


def _judged(draws: np.ndarray) -> tuple[float, float, float]:
    """R-hat, bulk and tail ESS; NaN where there are too few draws or they do not move."""
    if np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan"), float("nan"), float("nan")
    from arviz_stats.base import array_stats

    def measure(name: str, **how: Any) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(getattr(array_stats, name)(draws, chain_axis=0, draw_axis=1, **how))

    rhat = measure("rhat") if draws.shape[0] > 1 else float("nan")
    return rhat, measure("ess", method="bulk"), measure("ess", method="tail", prob=(0.05, 0.95))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
