"""The examples in the documentation of the room run as they are printed."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOM = ("document", "moments", "noise", "privacy", "publish", "queries", "query")


@pytest.mark.parametrize("name", ROOM)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"noisewise.release.{name}"))
    assert found.failed == 0


def test_the_page_about_releases_runs():
    page = Path(__file__).parents[2] / "docs" / "release.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
