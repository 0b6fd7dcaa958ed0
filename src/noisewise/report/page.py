"""One self-contained HTML page about one run: the release in words, the posterior beside prior and naive, and whether to trust it."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from noisewise.report.markup import section, text
from noisewise.report.sections import (
    chains,
    densities,
    diagnostics,
    engine,
    interval_pictures,
    predictive,
    privacy,
    provenance,
    published,
    reproduction,
    results,
    sensitivity,
)
from noisewise.report.summary import LEVEL, check_level, summarise

if TYPE_CHECKING:
    import xarray as xr

    from noisewise.models.base import Model


def report(
    tree: xr.DataTree, path: str | Path, *, model: Model | None = None, level: float = LEVEL, price: bool = False
) -> Path:
    """Write a run as one HTML page that needs nothing else: no network, no other files.

    ``tree`` comes from :func:`noisewise.sample` or from a file that ``noisewise fit`` wrote. Such a file holds the prior and the
    naive posterior as well; for a tree straight from ``sample`` they are drawn for the page. A result holds its model, unless that is
    made of functions: then give the ``model``, or the page does without a comparison. ``level`` is the
    probability of the intervals; ``price`` also splits the posterior variance by :func:`noisewise.price`.

    Returns the path that was written.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-10, 10)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [104.0])], n=100)
    >>> model = nw.models.Normal(mean_prior=(0, 2), sd=1)
    >>> dt = nw.sample(model, release, random_seed=1)
    >>> nw.report(dt, "report.html", level=0.95).name
    'report.html'
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"path must be the name of a file, such as 'report.html'; got {path!r}.")
    path = Path(path)
    if "posterior" not in getattr(tree, "children", ()) or "noisewise_method" not in tree.attrs:
        raise ValueError("report needs a DataTree made by nw.sample; this one has no posterior of noisewise.")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"The report cannot be written to {str(path)!r}: name a file in a folder that is there.")
    level = check_level(level)
    from noisewise.comparison import compared

    tree = compared(tree, model, price=price)
    page = write_page(tree, level)
    part = path.with_name(f"{path.name}.part")
    part.write_text(page, encoding="utf-8")
    os.replace(part, path)
    return path


def write_page(tree: xr.DataTree, level: float = LEVEL) -> str:
    """The page as text."""
    rows = summarise(tree, level=level)
    style = resources.files("noisewise.report").joinpath("style.css").read_text(encoding="utf-8")
    parts = [
        ("known", "What is known", results(tree, rows, level)),
        ("densities", "Densities", densities(tree, rows, level)),
        ("intervals", "Intervals", interval_pictures(rows, level)),
        ("release", "What was published", published(tree, level)),
        ("model", "The model and the engine", engine(tree)),
        ("privacy", "What privacy cost", privacy(tree, rows)),
        ("prior", "Would another prior say the same?", sensitivity(tree, rows)),
        ("predictive", "Would the model release this again?", predictive(tree, level)),
        ("trust", "Can the draws be trusted?", diagnostics(tree, rows)),
        ("chains", "Chains", chains(tree, rows)),
        ("made", "How it was made", provenance(tree.attrs)),
        ("again", "Make it again", reproduction(tree)),
    ]
    links = " ".join(f'<a href="#{name}">{text(title)}</a>' for name, title, content in parts if content)
    body = "\n".join(
        [
            *_opening(tree),
            f'<nav aria-label="sections">{links}</nav>',
            *(line for name, title, content in parts for line in section(name, title, content)),
        ]
    )
    names = ", ".join(map(str, tree["posterior"].data_vars))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Posterior of {text(names)}: noisewise report</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _opening(tree: xr.DataTree) -> list[str]:
    attrs = tree.attrs
    trusted = bool(attrs.get("noisewise_converged", 0))
    verdict = attrs.get("noisewise_verdict", "The convergence of this run was not judged.")
    names = ", ".join(map(str, tree["posterior"].data_vars))
    exact = (
        "This is the exact posterior given the release, up to the error of the simulation."
        if attrs.get("noisewise_exact", 0)
        else "This is an approximation of the posterior given the release."
    )
    stopped = " The run was stopped early; these are the draws made until then." if attrs.get("interrupted") else ""
    return [
        f"<h1>Posterior of {text(names)} given a private release</h1>",
        f'<p class="verdict{"" if trusted else " bad"}"><strong>{text(verdict)}</strong> {text(exact + stopped)}</p>',
    ]
