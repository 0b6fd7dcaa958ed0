"""The examples in the documentation of the room run as they are printed."""

import doctest
import importlib

import pytest

ROOM = ("coverage", "design", "discrepancy", "geweke", "sbc", "simulate", "uniformity")


@pytest.mark.parametrize("name", ROOM)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"noisewise.calibration.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
