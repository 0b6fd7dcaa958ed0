"""noisewise against what a Python user would run today, in one run on one machine: ``make bench``, or

    python benchmarks/run.py [--quick] [--limit SECONDS] [--out FOLDER]

The problem is the regression of ``augmentation.py``, the alternatives are in ``contenders.py``, each in a fresh process with four
chains. Writes ``results.md``, ``results.json`` and ``results.png``; an alternative that is not installed is left out, and that is said.
Runs are kept in ``results.json`` as they end, and a benchmark that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import augmentation
import contenders
import jax
import numpy as np

HERE = Path(__file__).parent
EPSILONS, SIZES = (0.1, 1.0, 10.0), (100, 1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (100, 10_000)
MIDDLE = 1.0
LIMIT, QUICK_LIMIT = 100.0, 40.0
NEEDS = {"NumPyro": "numpyro", "PyMC": "pymc", "CLT": "numpyro"}
PACKAGES = ("noisewise", "jax", "jaxlib", "numpy", "numpyro", "pymc", "pytensor")


def missing(method: str) -> str | None:
    """The package that a method needs and that is not there."""
    for start, package in NEEDS.items():
        if method.startswith(start) and importlib.util.find_spec(package) is None:
            return package
    return None


def compete(method: str, epsilon: float, n: int, limit: float) -> dict[str, Any]:
    """The last look at a method's draws before it was done, or before its time was up."""
    with tempfile.TemporaryDirectory() as cache:
        # nothing compiled before
        environment = {**os.environ, "NOISEWISE_CACHE": cache}
        command = [sys.executable, str(HERE / "contenders.py"), method, str(epsilon), str(n)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, problem = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, problem = process.communicate()
        else:
            if process.returncode:
                raise RuntimeError(f"{method} failed at epsilon = {epsilon:g}, n = {n}: {problem[-2000:]}")
    looks = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found: dict[str, Any] = {
        "method": method,
        "epsilon": epsilon,
        "n": n,
        "limit": limit,
        **(looks[-1] if looks else {}),
    }
    print(f"  {method}, epsilon = {epsilon:g}, n = {n:,}: {outcome(found)}", flush=True)
    return found


def outcome(found: dict[str, Any]) -> str:
    """Seconds to 400 effective draws, or how far it came."""
    if found.get("reached") is not None:
        return f"{found['reached']:,.0f} s"
    if "ess" not in found:
        return "no draws yet"
    return f"ESS {found['ess']:,.0f}, R-hat {found['rhat']:.3f}"


def rate(found: dict[str, Any]) -> str:
    """Effective draws a second of a run that converged."""
    if found.get("reached") is None:
        return "not converged"
    return "not measured" if found.get("rate") is None else f"{found['rate']:,.3g}"


def privacy_table(runs: list[dict[str, Any]], n: int) -> str:
    """By epsilon at one n."""
    lines = [
        f"## By epsilon, n = {n}\n",
        "| epsilon | method | ESS/s, warm | seconds to 400 effective draws, cold | peak memory, MB | beta1, mean ± sd |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        if run["n"] == n:
            mean = f"{run['mean'][1]:.2f} ± {run['sd'][1]:.2f}" if "mean" in run else ""
            memory = f"{run['megabytes']:,.0f}" if "megabytes" in run else ""
            lines.append(f"| {run['epsilon']:g} | {run['method']} | {rate(run)} | {outcome(run)} | {memory} | {mean} |")
    return "\n".join(lines) + "\n"


def size_table(runs: list[dict[str, Any]], sizes: list[int], methods: list[str]) -> str:
    """By n at the middle epsilon."""
    lines = [
        f"## Seconds to 400 effective draws from a cold start, by n, epsilon = {MIDDLE:g}\n",
        "| method | " + " | ".join(f"n = {n:,}" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    found = {(run["method"], run["n"]): run for run in runs if run["epsilon"] == MIDDLE}
    for method in methods:
        cells = []
        for n in sizes:
            run = found.get((method, n))
            memory = f", {run['megabytes']:,.0f} MB" if run and "megabytes" in run else ""
            cells.append(outcome(run) + memory if run else "not tried")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def floor(sizes: list[int]) -> list[list[Any]]:
    """Nanoseconds a record of a sweep in C, one chain: n, time, share of proposals taken."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "sweep.so"
        subprocess.run(
            ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(HERE / "sweep.c"), "-lm"],
            check=True,
        )
        sweep = ctypes.CDLL(str(library)).sweep
    pointer = ctypes.POINTER(ctypes.c_double)
    sweep.restype = ctypes.c_double
    sweep.argtypes = [
        *(pointer, ctypes.c_long, pointer, ctypes.c_double, pointer, pointer),
        *(ctypes.c_double, ctypes.c_long, ctypes.c_uint64),
    ]
    rows = []
    for n in sizes:
        value, scale, _ = contenders.published(augmentation.release(MIDDLE, n))
        u = np.random.default_rng(1).standard_normal((3, n))
        records = np.ascontiguousarray(np.stack(contenders.transformed(augmentation.BETA, u, np), axis=1))
        arrays = [np.ascontiguousarray(v, dtype=float).ctypes.data_as(pointer) for v in (records, value)]
        beta, mean = (v.ctypes.data_as(pointer) for v in (augmentation.BETA, augmentation.MEAN))
        sweeps = max(1, 3_000_000 // n)
        times = []
        for seed in range(3):
            began = time.perf_counter()
            taken = sweep(arrays[0], n, arrays[1], scale, beta, mean, np.sqrt(augmentation.VARIANCE), sweeps, seed + 1)
            times.append(time.perf_counter() - began)
        rows.append([n, min(times) / sweeps / n * 1e9, taken])
    return rows


def floors(quick: bool) -> list[dict[str, Any]]:
    """The sweep of noisewise beside the one in C, nanoseconds a record and chain."""
    ours = {row[0]: row[1:] for row in augmentation.cost(quick)["rows"]}
    return [{"n": n, "c": c, "accepted": taken, "noisewise": ours[n]} for n, c, taken in floor(list(ours))]


def floor_table(rows: list[dict[str, Any]]) -> str:
    """By n, for one, four and 64 chains."""
    lines = [
        "## A whole step of Algorithm 1, ns a record and chain, beside a sweep in C (one chain, one core)\n",
        "| n | C | noisewise, 1 chain | 4 chains | 64 chains | 1 chain / C |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = row["noisewise"]
        cells = [f"{v:,.0f}" if isinstance(v, float) else str(v) for v in ours]
        lines.append(f"| {row['n']:,} | {row['c']:,.0f} | " + " | ".join(cells) + f" | {ours[0] / row['c']:.1f} |")
    return "\n".join(lines) + "\n"


def plot(runs: list[dict[str, Any]], methods: list[str], path: Path) -> None:
    """Seconds to 400 effective draws against n, for the runs that came there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel = figure.subplots()
    for method in methods:
        done = [
            (r["n"], r["reached"])
            for r in runs
            if r["method"] == method and r["epsilon"] == MIDDLE and r.get("reached")
        ]
        label = method if done else f"{method}: none in time"
        panel.loglog([n for n, _ in done], [s for _, s in done], "o-", label=label)
    panel.set_xlabel("records")
    panel.set_ylabel("seconds to 400 effective draws, cold")
    panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)


class Record:
    """What was measured so far on this machine with these versions, kept in a file."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.runs: list[dict[str, Any]] = []
        self.sweep: list[dict[str, Any]] = []
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if {name: found.get(name) for name in identity} == identity:
                self.runs, self.sweep = found["runs"], found["sweep"]

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {**self.identity, "runs": self.runs, "sweep": self.sweep}
        self.path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")

    def run(self, method: str, epsilon: float, n: int) -> dict[str, Any]:
        """The run of a method, made now if it is not there."""
        for found in self.runs:
            if (found["method"], found["epsilon"], found["n"]) == (method, epsilon, n):
                return found
        self.runs.append(compete(method, epsilon, n, self.identity["limit"]))
        self.save()
        return self.runs[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one epsilon and two sizes, shorter: about ten minutes")
    parser.add_argument("--limit", type=float, help=f"seconds for each run ({LIMIT:g}; quick: {QUICK_LIMIT:g})")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    limit = arguments.limit or (QUICK_LIMIT if arguments.quick else LIMIT)
    epsilons = (MIDDLE,) if arguments.quick else EPSILONS
    sizes = list(QUICK_SIZES if arguments.quick else SIZES)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    absent = {method: missing(method) for method in contenders.METHODS}
    methods = [method for method, package in absent.items() if package is None]
    record = Record(arguments.out / "results.json", {"machine": machine, "versions": versions, "limit": limit})

    runs = [record.run(method, epsilon, sizes[0]) for epsilon in epsilons for method in methods]
    for method in methods:
        came = next(r for r in runs if (r["method"], r["epsilon"]) == (method, MIDDLE))
        for n in sizes[1:]:
            if came.get("reached") is None:
                break
            came = record.run(method, MIDDLE, n)
            runs.append(came)
    if not record.sweep:
        record.sweep = floors(arguments.quick)
        record.save()

    said = [
        "# noisewise against what a Python user would run today\n",
        f"{machine}; {', '.join(f'{name} {version}' for name, version in versions.items())}. Four chains, a fresh process for each "
        f"run with nothing compiled before, at most {limit:g} s: where 400 effective draws (bulk, the smallest over the "
        "coefficients) with R-hat below 1.01 were not reached, the table says how far the run had come, and larger n was not "
        "tried. Seconds are by the clock, with start-up and compilation.\n",
        *(f"{method} was left out: {package} is not installed.\n" for method, package in absent.items() if package),
        privacy_table(runs, sizes[0]),
        size_table(runs, sizes, methods),
        floor_table(record.sweep),
    ]
    (arguments.out / "results.md").write_text("\n".join(said), encoding="utf-8")
    plot(runs, methods, arguments.out / "results.png")
    print("\n".join(said))
    print(f"Wrote results.md, results.json and results.png in {arguments.out}.")
    return 0


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    raise SystemExit(main())
