"""Simulation-based calibration of every engine with every model under every noise law: ``make sbc``, or

    python benchmarks/sbc.py --replicates 500 [--engine counts] [--model Poisson] [--out out/sbc.md]

One row for each: replicates, draws, the p-value over all quantities (each of theta, log p(s | theta), and what the engine knows of
the records), the quantity with the smallest p-value, the smallest median effective sample size, seconds. Rows are written
as they come, and rows that are there already are not computed again. The exit status is 1 if, over all rows together, the
ranks of an exact engine are not uniform (p < 0.01).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import zlib
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import noisewise as nw

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "calibration"))
import matrix

HEAD = (
    "| engine | model | noise | n | replicates | p | quantity | smallest ESS | seconds |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)
SIZES = {"augmentation": 8, "counts": 20, "fourier": 30, "sufficient": 400}
SCALES = {"sufficient": 4.0}
THIN = 20


def run(engine: str, name: str, law: type, arguments: argparse.Namespace) -> tuple[str, float]:
    """One row of the table, and its p-value."""
    model, release = matrix.release(name, [law], SIZES[engine], SCALES.get(engine, 1.0))
    began = time.perf_counter()
    found = nw.calibration.sbc(
        model,
        release,
        method=engine,
        replicates=arguments.replicates,
        draws=arguments.draws,
        thin=THIN,
        random_seed=zlib.crc32(f"{engine} {name} {law.__name__}".encode()),
    )
    worst = found.labels[int(np.argmin(found.p_values))]
    row = (
        f"| {engine} | {name} | {law.__name__} | {release.n or 'unknown'} | {arguments.replicates} | {found.p_value:.2g} "
        f"| {worst} of {len(found.labels)} | {found.effective.min():.0f} of {found.draws} "
        f"| {time.perf_counter() - began:.0f} |"
    )
    return row, found.p_value


def forget() -> None:
    """Free the compiled programs of a row: a process may map a bounded number of regions of memory."""
    jax.clear_caches()
    eqx.clear_caches()
    gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--engine", choices=tuple(matrix.ENGINES))
    parser.add_argument("--model", choices=tuple(matrix.DESIGNS))
    parser.add_argument("--out", type=Path, default=Path("out/sbc.md"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else HEAD
    for engine, names in matrix.ENGINES.items():
        for name in names:
            for law in matrix.DESIGNS[name][3]:
                begin = f"| {engine} | {name} | {law.__name__} |"
                asked = arguments.engine in (None, engine) and arguments.model in (None, name)
                if asked and begin not in done:
                    row, _ = run(engine, name, law, arguments)
                    print(row, flush=True)
                    done += row + "\n"
                    arguments.out.write_text(done, encoding="utf-8")
                    forget()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.splitlines()[2:]]
    exact = [float(row[5]) for row in rows if row[0] != "sufficient"]
    if not exact:
        return 0
    together = min(1.0, len(exact) * min(exact))
    print(f"{len(exact)} rows of exact engines: smallest p {min(exact):.2g}, over all rows {together:.2g}")
    return int(together < 0.01)


if __name__ == "__main__":
    raise SystemExit(main())
