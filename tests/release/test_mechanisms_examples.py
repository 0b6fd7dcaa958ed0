"""The examples of the mechanisms, in their modules and on their page, run as they are printed."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOM = (
    "mechanisms.bounded",
    "mechanisms.empirical_risk",
    "mechanisms.exponential",
    "mechanisms.norms",
    "mechanisms.refused",
    "randomised_response",
    "record_columns",
)


@pytest.mark.parametrize("name", ROOM)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"noisewise.release.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.filterwarnings("ignore::noisewise.ConvergenceWarning")
def test_the_page_about_mechanisms_runs():
    page = Path(__file__).parents[2] / "docs" / "mechanisms.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
