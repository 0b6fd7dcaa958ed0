"""What all tests share: one folder of compiled programs, so that a second run does not compile again, and a bound on those in memory."""

import gc
import os
from pathlib import Path

import equinox as eqx
import jax
import pytest

# each compiled program maps a few regions of memory, and a process that reaches the kernel's bound (65,530 on Linux) is killed
_REGIONS = Path("/proc/self/maps")
_MOST_REGIONS = 20_000


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "cache", None) is not None:
        os.environ.setdefault("NOISEWISE_CACHE", str(config.cache.mkdir("compiled")))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forget the compiled programs once they are many."""
    if _REGIONS.exists() and _REGIONS.read_bytes().count(b"\n") > _MOST_REGIONS:
        jax.clear_caches()
        eqx.clear_caches()
        gc.collect()
