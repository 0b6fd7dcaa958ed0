"""The thesis's comparison, saved as it goes: ``python benchmarks/private_experiments.py OUT [--chains 20] [--only easy-2d ...]``.

Writes OUT/<experiment>_<algorithm>.json for every pair (skipping those already there), OUT/figure_6_1.json, OUT/figure_6_2_<d>d.json
where asked for, and OUT/table.md: medians over chains, with the floor of exact posterior samples.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import xarray as xr

from noisewise.private import experiments


def saved(path: Path, make) -> xr.Dataset:
    """A dataset from its file, or made now and written there."""
    if not path.exists():
        began = time.perf_counter()
        data = make()
        path.write_text(json.dumps(data.to_dict()))
        print(f"{path.name}: {time.perf_counter() - began:.0f} s", flush=True)
    return xr.Dataset.from_dict(json.loads(path.read_text()))


def table(results: dict[tuple[str, str], xr.Dataset]) -> str:
    """Medians over chains in Markdown."""
    lines = []
    for name in experiments.NAMES:
        rows = {key[1]: data for key, data in results.items() if key[0] == name}
        if not rows:
            continue
        made = experiments.experiment(name)
        floor = np.median(experiments.floor_of(name))
        chains = {data.sizes["chain"] for data in rows.values()}
        lines += [
            f"\n### {made.name} (n = {made.n}, {'/'.join(map(str, sorted(chains)))} chains; floor {floor:.3f})\n",
            "| sampler | " + " | ".join(f"eps {e:g}" for e in made.epsilons) + " | iterations | accepted | clipped |",
            "|---|" + "---|" * (len(made.epsilons) + 3),
        ]
        for algorithm, data in rows.items():
            middle = data["discrepancy"].median("chain").values
            counts = data["iterations"].values
            accepted, clipped = (float(data[key].isel(epsilon=-1).mean()) for key in ("accepted", "clip_fraction"))
            cells = " | ".join(f"{value:.3f}" for value in middle)
            lines.append(
                f"| {experiments.ALGORITHMS[algorithm]} | {cells} | {counts[0]}-{counts[-1]} | {accepted:.2f} | {clipped:.3f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for and is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(experiments.NAMES))
    parser.add_argument("--algorithms", nargs="*", default=list(experiments.ALGORITHMS))
    parser.add_argument("--clipping", type=int, nargs="*", default=[], help="dimensions for Figure 6.2")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    saved(chosen.out / "figure_6_1.json", experiments.figure_6_1)
    for d in chosen.clipping:
        saved(chosen.out / f"figure_6_2_{d}d.json", lambda d=d: experiments.figure_6_2(d=d, chains=chosen.chains))
    for name in chosen.only:
        for algorithm in experiments.algorithms(name):
            if algorithm in chosen.algorithms:
                path = chosen.out / f"{name}_{algorithm}.json"
                saved(path, lambda n=name, a=algorithm: experiments.compare(n, a, chains=chosen.chains))
    results = {}
    for path in sorted(chosen.out.glob("*-*_*.json")) + sorted(chosen.out.glob("circle_*.json")):
        name, algorithm = path.stem.rsplit("_", 1)
        results[name, algorithm] = saved(path, dict)
    (chosen.out / "table.md").write_text(table(results))
    for figure in experiments.FIGURES:
        experiments.draw(figure, results, chosen.out / f"figure_{figure.replace('.', '_')}.png")
    print(chosen.out / "table.md")


if __name__ == "__main__":
    main()
