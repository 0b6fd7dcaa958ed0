"""Plots and the HTML report. ``nw.report`` is this room and the function at once: calling it writes the page."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

    from noisewise.models.base import Model


def report(
    tree: xr.DataTree, path: str | Path, *, model: Model | None = None, level: float = 0.9, price: bool = False
) -> Path:
    """Write a run as one self-contained HTML page; see :func:`noisewise.report.page.report`."""
    from noisewise.report.page import report as write

    return write(tree, path, model=model, level=level, price=price)


class _Room(types.ModuleType):
    # importing the folder binds it to the name of the function, so the folder itself can be called
    def __call__(self, tree: xr.DataTree, path: str | Path, **how: Any) -> Path:
        return report(tree, path, **how)


sys.modules[__name__].__class__ = _Room
