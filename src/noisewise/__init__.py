"""noisewise: Bayesian inference that is wise to privacy noise.

Importing noisewise switches JAX to float64 (``jax_enable_x64``): posteriors of sums over many records need the digits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import jax

jax.config.update("jax_enable_x64", True)

__version__ = "0.1.0"

_ROOMS = {
    "calibration": "noisewise.calibration",
    "direct": "noisewise.direct",
    "engines": "noisewise.engines",
    "mechanisms": "noisewise.release.mechanisms",
    "models": "noisewise.models",
    "noise": "noisewise.release.noise",
    "plots": "noisewise.report.plots",
    "private": "noisewise.private",
    "queries": "noisewise.release.queries",
    "report": "noisewise.report",
    "studies": "noisewise.studies",
}
_NAMES = {
    "Column": "noisewise.release.queries",
    "ConvergenceWarning": "noisewise.result",
    "Measurement": "noisewise.release.document",
    "Release": "noisewise.release.document",
    "combine": "noisewise.imputation",
    "design": "noisewise.calibration.design",
    "explain": "noisewise.inference",
    "impute": "noisewise.imputation",
    "mle": "noisewise.likelihood",
    "naive": "noisewise.comparison",
    "price": "noisewise.pricing",
    "publish": "noisewise.release.publish",
    "sample": "noisewise.inference",
}

if TYPE_CHECKING:
    from noisewise import calibration as calibration
    from noisewise import direct as direct
    from noisewise import engines as engines
    from noisewise import models as models
    from noisewise import private as private
    from noisewise import studies as studies
    from noisewise.calibration.design import design as design
    from noisewise.comparison import naive as naive
    from noisewise.imputation import combine as combine
    from noisewise.imputation import impute as impute
    from noisewise.inference import explain as explain
    from noisewise.inference import sample as sample
    from noisewise.likelihood import mle as mle
    from noisewise.pricing import price as price
    from noisewise.release import mechanisms as mechanisms
    from noisewise.release import noise as noise
    from noisewise.release import queries as queries
    from noisewise.release.document import Measurement as Measurement
    from noisewise.release.document import Release as Release
    from noisewise.release.publish import publish as publish
    from noisewise.release.queries import Column as Column
    from noisewise.report import plots as plots
    from noisewise.report import report as report
    from noisewise.result import ConvergenceWarning as ConvergenceWarning

__all__ = ["__version__", *_ROOMS, *_NAMES]


def __getattr__(name: str) -> Any:
    """Load a room the first time it is named, so that ``import noisewise`` stays quick."""
    if name in _ROOMS:
        value = importlib.import_module(_ROOMS[name])
    elif name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    else:
        raise AttributeError(f"module 'noisewise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
