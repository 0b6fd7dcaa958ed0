"""``noisewise report``: the results of a fit as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from noisewise.commands.terminal import existing, say, writable
from noisewise.report.page import report
from noisewise.report.summary import LEVEL, check_level


def run(results: Path, output: Path | None, *, level: float = LEVEL, as_json: bool = False) -> None:
    """Read the NetCDF file and write the page."""
    check_level(level)
    output = writable(output if output is not None else results.with_suffix(".html"), ".html")
    tree = load_tree(existing(results, "file of results", "noisewise fit -o OUT.nc writes one"))
    report(tree, output, level=level)
    if as_json:
        say(json.dumps({"output": str(output), "bytes": output.stat().st_size, "level": level}, indent=2))
        return
    say(f"Wrote {output} ({output.stat().st_size / 1e6:.1f} MB, one file, no network needed).")


def load_tree(path: Path) -> Any:
    """A DataTree written by ``noisewise fit``."""
    import xarray as xr

    try:
        tree = xr.open_datatree(path, engine="h5netcdf").load()
        tree.close()
    except Exception as problem:
        raise ValueError(
            f"{str(path)!r} is not a NetCDF file of results ({problem}); noisewise fit -o writes one."
        ) from None
    if "posterior" not in tree.children or "noisewise_method" not in tree.attrs:
        raise ValueError(f"{str(path)!r} holds no results of noisewise; noisewise fit -o writes such a file.")
    return tree
