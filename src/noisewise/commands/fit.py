"""``noisewise fit``: a release and a model file in, draws and a summary out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import noisewise as nw
from noisewise.commands.terminal import existing, print_price, print_summary, said_of_run, say, writable, write_tree
from noisewise.comparison import add_comparisons
from noisewise.model_file import load_model
from noisewise.release.document import Release
from noisewise.report.summary import check_level, summarise


def run(
    release_path: Path,
    model_path: Path,
    output: Path | None,
    *,
    settings: dict[str, Any],
    compare: bool,
    price: bool,
    level: float,
    as_json: bool,
) -> None:
    """Sample, judge, print and write."""
    check_level(level)
    if output is not None:
        writable(output, ".nc")
    release = Release.load(existing(release_path, "release document"))
    model = load_model(model_path)
    tree = nw.sample(model, release, **settings)
    if compare or price or output is not None:
        tree = add_comparisons(tree, model, release, price=price)
    rows = summarise(tree, level=level)
    if output is not None:
        write_tree(tree, output)
    if as_json:
        say(json.dumps(as_object(tree, rows, output, level), indent=2, allow_nan=False))
        return
    say(f"Fitted {type(model).__name__} to {release_path}. {tree.attrs['noisewise_reason']}")
    print_summary(rows, level=level)
    if compare:
        say()
        print_summary(rows, level=level, compare=True)
        if tree.attrs["noisewise_naive"]:
            say(tree.attrs["noisewise_naive"])
        elif tree["naive"].attrs["adjustments"]:
            say(f"For the naive posterior, {tree['naive'].attrs['adjustments']}.")
    if price:
        say()
        print_price(tree)
    say()
    for line in said_of_run(tree):
        say(line)
    if output is None:
        say("Nothing was written; give -o OUT.nc to keep the draws.")
    else:
        say(f"Wrote {output}. A page to look at: noisewise report {output}")


def as_object(tree: Any, rows: list[Any], output: Path | None, level: float) -> dict[str, Any]:
    """The summary as one JSON object."""
    attrs = tree.attrs
    return {
        "method": attrs["noisewise_method"],
        "exact": bool(attrs["noisewise_exact"]),
        "reason": attrs["noisewise_reason"],
        "converged": bool(attrs["noisewise_converged"]),
        "verdict": attrs["noisewise_verdict"],
        "interrupted": bool(attrs["interrupted"]),
        "random_seed": int(attrs["random_seed"]),
        "chains": int(tree["posterior"].sizes["chain"]),
        "draws": int(tree["posterior"].sizes["draw"]),
        "sampling_seconds": float(attrs["sampling_time"]),
        "level": level,
        "parameters": [row.as_dict() for row in rows],
        "output": None if output is None else str(output),
        "version": attrs["inference_library_version"],
    }
