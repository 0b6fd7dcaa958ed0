"""Write a noisy measurement file in the layout of the 2020 census, with made numbers: a county, its tracts, their blocks.

``python make_files.py nmf.parquet`` writes rows of geocode, query_name, query_shape, value and variance, for the queries ``total``
and ``votingage`` of the redistricting schema (8 kinds of household, 2 of voting age, 2 of Hispanic origin, 63 of race).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COUNTY, TRACTS, BLOCKS = "45001", 3, 4
VARIANCES = {5: 4.0, 9: 12.0, 10: 20.0}
"""The variance of the noise by length of the geocode: county, tract, block."""
SHAPES = {"total_dpq": [1, 1, 1, 1], "votingage_dpq": [1, 2, 1, 1]}


def truth(seed: int = 7) -> np.ndarray:
    """The made population of every block: (tract, block, voting age), small, with empty blocks."""
    rng = np.random.default_rng(seed)
    people = rng.poisson(rng.gamma(0.6, 15.0, size=(TRACTS, BLOCKS)))
    adults = rng.binomial(people, 0.75)
    return np.stack([people - adults, adults], axis=-1)


def rows(people: np.ndarray, seed: int = 8) -> list[dict]:
    """The noisy rows of every unit and query."""
    rng = np.random.default_rng(seed)
    units = {COUNTY: people.sum(axis=(0, 1))}
    for tract in range(TRACTS):
        code = f"{COUNTY}{tract + 1:04d}"
        units[code] = people[tract].sum(axis=0)
        units |= {f"{code}{block + 1}": people[tract, block] for block in range(BLOCKS)}
    found = []
    for code, by_age in units.items():
        variance = VARIANCES[len(code)]
        for name, shape in SHAPES.items():
            exact = by_age if name == "votingage_dpq" else by_age.sum(keepdims=True)
            value = exact + discrete_gaussian(rng, variance, exact.size)
            found.append(
                {
                    "geocode": code,
                    "query_name": name,
                    "query_shape": shape,
                    "value": value.tolist(),
                    "variance": variance,
                }
            )
    return found


def discrete_gaussian(rng: np.random.Generator, variance: float, size: int) -> np.ndarray:
    """Integers with mass proportional to exp(-k^2 / 2 variance), for made numbers only."""
    k = np.arange(-200, 201)
    mass = np.exp(-(k**2) / (2 * variance))
    return rng.choice(k, size=size, p=mass / mass.sum())


def write(path: Path, people: np.ndarray | None = None) -> None:
    """Write the file."""
    kinds = pa.schema(
        [
            ("geocode", pa.string()),
            ("query_name", pa.string()),
            ("query_shape", pa.list_(pa.int16())),
            ("value", pa.list_(pa.int64())),
            ("variance", pa.float64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows(truth() if people is None else people), schema=kinds), path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
