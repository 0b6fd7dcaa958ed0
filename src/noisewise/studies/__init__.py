"""The experiments of the papers by name (``noisewise study list``), and the runner that any study of your own can use."""

from __future__ import annotations

import importlib

from noisewise.studies.base import Line, Study
from noisewise.studies.runner import Outcome, run

MODULES: tuple[str, ...] = ("bernstein_sheldon", "ju_loglinear", "ju_regression", "raim", "raisa")
"""The modules of this folder that hold studies, in the order of the list."""

__all__ = ["Line", "Outcome", "Study", "catalogue", "get", "run"]


def catalogue() -> tuple[Study, ...]:
    """Every study there is.

    >>> import noisewise as nw
    >>> all(study.shows for study in nw.studies.catalogue())
    True
    """
    modules = [importlib.import_module(f"noisewise.studies.{name}") for name in MODULES]
    return tuple(study for module in modules for study in module.STUDIES)


def get(name: str) -> Study:
    """The study of this name."""
    studies = {study.name: study for study in catalogue()}
    if name not in studies:
        raise ValueError(f"There is no study {name!r}; there are {', '.join(studies)}.")
    return studies[name]
