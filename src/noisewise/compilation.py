"""Compiled programs are kept in the user's cache folder, so that a second process starts quickly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax


def cache_folder() -> Path:
    """The folder of compiled programs: ``$NOISEWISE_CACHE`` or the platform's cache folder."""
    if named := os.environ.get("NOISEWISE_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "noisewise" / "compiled"


def use_compilation_cache() -> None:
    """Turn on JAX's persistent compilation cache, unless the user has set one up or NOISEWISE_CACHE is empty."""
    if os.environ.get("NOISEWISE_CACHE") == "" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
