"""The tables and figures of ``docs/private/experiments.md`` from what the studies have finished so far.

``python benchmarks/private_tables.py OUT`` after any of ``noisewise study raisa-accountants | raisa-clipping | raisa-samplers``
with ``--out OUT``: cells that are not there yet are left out, and said to be. Everything after the line ``<!-- tables -->`` of the
page is written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import noisewise
from noisewise.private.experiments import ALGORITHMS, NAMES, experiment
from noisewise.studies.base import Rows, Study, group
from noisewise.studies.raisa import STUDIES, median
from noisewise.studies.storage import Folder

DOCS = Path(__file__).parents[1] / "docs"
ORDER = (*ALGORITHMS, "oneshot")


def finished(study: Study, out: Path) -> tuple[Rows, int, int]:
    """The rows of the cells that are whole, their number, and the number there should be."""
    folder = Folder(out / study.name, {"study": study.name, "seed": 0, "version": noisewise.__version__})
    cells = study.cells(study.settings)
    whole = [cell for cell in cells if not folder.missing(cell, study.replicates, study.batch)]
    rows = folder.collect(whole, study.replicates)[0] if whole else {}
    return rows, len(whole), len(cells)


def head(first: str, columns: list[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]


def accountants(rows: Rows) -> list[str]:
    lines = []
    for (algorithm,), part in group(rows, "algorithm"):
        epsilons = sorted(set(part["epsilon"].tolist()))
        lines += ["", *head(ALGORITHMS[algorithm], [f"eps {e:g}" for e in epsilons])]
        for (accountant,), some in group(part, "accountant"):
            counts = dict(zip(some["epsilon"].tolist(), some["iterations"].tolist(), strict=True))
            lines.append(f"| `{accountant}` | " + " | ".join(str(counts.get(e, "")) for e in epsilons) + " |")
    return lines


def clipping(rows: Rows) -> list[str]:
    lines = []
    for (d,), part in group(rows, "d"):
        bounds = sorted(set(part["bound"].tolist()))
        lines += ["", *head(f"d = {d}", [f"bound {b:g}" for b in bounds])]
        for (sampler,), some in group(part, "sampler"):
            name = "random walk" if sampler == "walk" else "HMC"
            by = {bound: cell for (bound,), cell in group(some, "bound")}
            middle = ["{:.3f} ± {:.3f}".format(*median(by[b]["discrepancy"])) if b in by else "" for b in bounds]
            clipped = [f"{np.mean(by[b]['clip_fraction']):.3f}" if b in by else "" for b in bounds]
            lines += [
                f"| {name}: MMD | " + " | ".join(middle) + " |",
                f"| {name}: clipped | " + " | ".join(clipped) + " |",
            ]
    return lines


def samplers(rows: Rows) -> list[str]:
    lines = []
    for name in NAMES:
        parts = {a: part for (where, a), part in group(rows, "experiment", "algorithm") if where == name}
        if not parts:
            continue
        made = experiment(name)
        floor = f"; exact draws {np.median(parts['exact']['discrepancy']):.3f}" if "exact" in parts else ""
        lines += ["", f"**{made.name}** (`{name}`, n = {made.n}{floor})", ""]
        lines += head(
            "", [f"eps {e:g}" for e in made.epsilons] + ["iterations", "accepted", "clipped", "gradients clipped"]
        )
        for algorithm in ORDER:
            if algorithm in parts:
                lines.append(sampler_line(algorithm, parts[algorithm]))
    return lines


def sampler_line(algorithm: str, part: Rows) -> str:
    cells = [cell for _, cell in group(part, "epsilon")]
    middle = ["" if np.isnan(m) else f"{m:.3f} ± {e:.3f}" for m, e in (median(cell["discrepancy"]) for cell in cells)]
    if algorithm == "oneshot":
        return "| one shot | " + " | ".join(middle) + " | 1 | | | |"
    last = cells[-1]
    seen = [np.mean(last[key]) for key in ("accepted", "clip_fraction", "gradient_clip_fraction")]
    shown = " | ".join("" if np.isnan(value) else f"{value:.3f}" for value in seen)
    counts = f"{cells[0]['iterations'][0]} to {last['iterations'][0]}"
    return f"| {ALGORITHMS[algorithm]} | " + " | ".join(middle) + f" | {counts} | {shown} |"


def main() -> None:
    """Write tables and figures of what is there."""
    out, page = Path(sys.argv[1]), DOCS / "private" / "experiments.md"
    figures = DOCS / "figures" / "private"
    figures.mkdir(parents=True, exist_ok=True)
    text = [page.read_text().split("<!-- tables -->")[0].rstrip(), "", "<!-- tables -->"]
    titles = {
        "raisa-accountants": "Iterations by accountant",
        "raisa-clipping": "Clipping alone",
        "raisa-samplers": "The samplers",
    }
    writers = {"raisa-accountants": accountants, "raisa-clipping": clipping, "raisa-samplers": samplers}
    for study in STUDIES:
        rows, there, wanted = finished(study, out)
        if not there:
            continue
        text += ["", f"## {titles[study.name]}", "", f"{study.shows}. {there} of {wanted} cells of the study are here."]
        for path in study.plots(rows, figures):
            text += ["", f"![Figure {path.stem[7:].replace('_', '.')}](../figures/private/{path.name})"]
        text += writers[study.name](rows)
    page.write_text("\n".join(text) + "\n")
    print(page)


if __name__ == "__main__":
    main()
