"""The examples in the documentation of the room run as they are printed."""

import doctest
import importlib

import pytest

ROOM = ("document", "moments", "noise", "privacy", "publish", "queries", "query")


@pytest.mark.parametrize("name", ROOM)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"noisewise.release.{name}"))
    assert found.failed == 0
