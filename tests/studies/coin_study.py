"""A study small enough to know by heart: tosses of coins, in cells of different probability."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.studies.base import Cell, Line, Rows, Study, generator, group


def cells(settings: Mapping[str, Any]) -> list[Cell]:
    return [{"p": p, "tosses": settings["tosses"], "broken": settings["broken"]} for p in settings["probabilities"]]


def run(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    if cell["broken"] and Path(str(cell["broken"])).exists():
        raise RuntimeError("the coin is lost")
    return [
        {"replicate": r, "heads": int(generator(seed, cell, r).binomial(cell["tosses"], cell["p"])), "side": "heads"}
        for r in replicates
    ]


def table(rows: Rows) -> list[Line]:
    return [
        Line(
            f"p = {p:g}",
            p,
            float(np.mean(part["heads"] / n)),
            float(np.std(part["heads"] / n) / len(part["heads"]) ** 0.5),
        )
        for (p, n), part in group(rows, "p", "tosses")
    ]


def plots(rows: Rows, folder: Path) -> list[Path]:
    return []


COINS = Study(
    name="coins",
    paper="none",
    shows="the mean of tosses is the probability of heads",
    cost="nothing",
    replicates=10,
    settings={"probabilities": (0.2, 0.7), "tosses": 100, "broken": ""},
    cells=cells,
    run=run,
    table=table,
    plots=plots,
    batch=4,
)


def slow_cells(settings: Mapping[str, Any]) -> list[Cell]:
    return [{"p": p, "tosses": settings["tosses"], "log": settings["log"]} for p in settings["probabilities"]]


def slow_run(cell: Cell, replicates: range, seed: int) -> list[dict[str, Any]]:
    """Say who begins a task and who ends it, and take a while."""
    log = Path(str(cell["log"]))
    name = f"{os.getpid()}-{cell['p']}-{replicates.start}"
    (log / f"{name}.begun").touch()
    time.sleep(0.3)
    tosses = [generator(seed, {"p": cell["p"]}, r).uniform(size=int(cell["tosses"])) for r in replicates]
    (log / f"{name}.ended").touch()
    return [
        {"replicate": r, "heads": int(np.sum(u < cell["p"])), "side": "heads"}
        for r, u in zip(replicates, tosses, strict=True)
    ]


SLOW_COINS = dataclasses.replace(
    COINS,
    name="slow-coins",
    settings={"probabilities": (0.2, 0.7), "tosses": 100, "log": ""},
    cells=slow_cells,
    run=slow_run,
    batch=1,
)
