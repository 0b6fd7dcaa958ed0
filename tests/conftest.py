"""One folder of compiled programs for all tests, so that a second run of the tests does not compile again."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.cache is not None:
        os.environ.setdefault("NOISEWISE_CACHE", str(config.cache.mkdir("compiled")))
