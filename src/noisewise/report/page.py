"""One self-contained HTML page about one run: the release in words, the posterior beside prior and naive, and whether to trust it."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.report.plots import COLOURS, density_plot, interval_plot, trace_plot
from noisewise.report.summary import HIGH, LOW, Row, Spread, scalars, summarise

if TYPE_CHECKING:
    import xarray as xr

    from noisewise.models.base import Model

_DRAWN = 24


def report(tree: xr.DataTree, path: str | Path, *, model: Model | None = None) -> Path:
    """Write a run as one HTML page that needs nothing else: no network, no other files.

    ``tree`` comes from :func:`noisewise.sample` or from a file that ``noisewise fit`` wrote. Such a file holds the prior and the
    naive posterior as well; for a tree straight from ``sample``, give the ``model`` and they are drawn for the page.

    Returns the path that was written.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-10, 10)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [104.0])], n=100)
    >>> model = nw.models.Normal(mean_prior=(0, 2), sd=1)
    >>> dt = nw.sample(model, release, random_seed=1)
    >>> nw.report(dt, "report.html", model=model).name
    'report.html'
    """
    path = Path(path)
    if "posterior" not in tree.children or "noisewise_method" not in tree.attrs:
        raise ValueError("report needs a DataTree made by nw.sample; this one has no posterior of noisewise.")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"The report cannot be written to {str(path)!r}: name a file in a folder that is there.")
    if model is not None:
        tree = _with_comparisons(tree, model)
    text = _page(tree, summarise(tree))
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return path


def _with_comparisons(tree: xr.DataTree, model: Model) -> xr.DataTree:
    from noisewise.comparison import add_comparisons
    from noisewise.release.schema import ReleaseDocument, read_document

    if "release" not in tree.children:
        raise ValueError("This run holds no release to compare with; leave model out.")
    document = str(tree["release"].attrs["document"])
    if not document.startswith("{"):
        raise ValueError(f"The release of this run is {document}; leave model out to report without a comparison.")
    release = read_document(
        ReleaseDocument.model_validate_json(document), lambda numbers: np.asarray(numbers, dtype=float)
    )
    return add_comparisons(tree, model, release)


def _page(tree: xr.DataTree, rows: Sequence[Row]) -> str:
    attrs = tree.attrs
    style = resources.files("noisewise.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(
        [
            *_opening(tree),
            *_section("What is known", _results(tree, rows)),
            *_section("Densities", _densities(tree, rows)),
            *_section("Intervals", _intervals(rows)),
            *_section("The release", _release(tree)),
            *_section("The model and the engine", _engine(tree)),
            *_section("Would the model release this again?", _predictive(tree)),
            *_section("Can the draws be trusted?", _diagnostics(tree, rows)),
            *_section("Chains", _traces(tree, rows)),
            *_section("How it was made", _provenance(attrs)),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>noisewise report</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _section(title: str, content: Sequence[str]) -> list[str]:
    return [f"<section>\n<h2>{_text(title)}</h2>", *content, "</section>"] if content else []


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
        f"<h1>Posterior of {_text(names)} given a private release</h1>",
        f'<p class="verdict{"" if trusted else " bad"}"><strong>{_text(verdict)}</strong> {_text(exact + stopped)}</p>',
    ]


def _results(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    kinds = [kind for kind in ("posterior", "naive", "prior") if kind == "posterior" or kind in tree.children]
    head = ["", *[title for kind in kinds for title in (f"{kind} mean", "sd", "90% interval")]]
    body = [[row.name, *[cell for kind in kinds for cell in _cells(getattr(row, kind))]] for row in rows]
    notes = ["The posterior counts sampling, clamping and the noise of the release."]
    if "naive" in kinds:
        notes.append(
            "The naive posterior takes the released numbers as if exact: it is here to compare with, not to use."
        )
        if moved := tree["naive"].attrs.get("adjustments"):
            notes.append(f"To have one at all, {moved}.")
    elif tree.attrs.get("noisewise_naive"):
        notes.append(str(tree.attrs["noisewise_naive"]))
    return [_table(head, body), f'<p class="note">{_text(" ".join(notes))}</p>']


def _densities(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    kinds = [kind for kind in ("posterior", "naive", "prior") if kind in tree.children]
    draws = {kind: scalars(tree[kind].to_dataset()) for kind in kinds}
    plots = [
        f"<figure>{density_plot(row.name, {k: draws[k][row.name] for k in kinds}, row, number)}</figure>"
        for number, row in enumerate(rows[:_DRAWN])
    ]
    return [_key(kinds), '<div class="grid">', *plots, "</div>", *_not_drawn(rows)]


def _intervals(rows: Sequence[Row]) -> list[str]:
    plots = []
    for number, (name, group) in enumerate(_by_variable(rows[:_DRAWN])):
        plots.append(
            f"<figure>{interval_plot(group, 100 + number)}<figcaption>90% intervals of {_text(name)}</figcaption></figure>"
        )
    clipped = '<p class="note">The prior\'s interval is cut off where it is wider than the picture.</p>'
    return [*plots, *([clipped] if rows and rows[0].prior is not None else []), *_not_drawn(rows)]


def _by_variable(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    names = list(dict.fromkeys(row.name.partition("[")[0] for row in rows))
    for name in names:
        yield name, [row for row in rows if row.name.partition("[")[0] == name]


def _release(tree: xr.DataTree) -> list[str]:
    if "release" not in tree.children:
        return []
    return [f"<pre>{_text(tree['release'].attrs['description'])}</pre>"]


def _engine(tree: xr.DataTree) -> list[str]:
    attrs = tree.attrs
    lines = [f"<p>{_text(attrs.get('noisewise_reason', attrs['noisewise_method']))}</p>"]
    if attrs.get("noisewise_model"):
        lines.insert(0, f"<pre>{_text(attrs['noisewise_model'])}</pre>")
    return lines


def _predictive(tree: xr.DataTree) -> list[str]:
    if not {"posterior_predictive", "observed_data"} <= set(tree.children):
        return []
    simulated, released = tree["posterior_predictive"].to_dataset(), tree["observed_data"].to_dataset()
    body = []
    for name, value in released.data_vars.items():
        if name not in simulated:
            continue
        draws = simulated[name].values.reshape(-1, int(np.prod(value.shape)) if value.ndim else 1)
        coords = (
            value.coords[value.dims[0]].values if value.ndim and value.dims[0] in value.coords else range(value.size)
        )
        for j, (label, number) in enumerate(zip(coords, np.atleast_1d(value.values).reshape(-1), strict=False)):
            low, high = np.quantile(draws[:, j], [LOW, HIGH])
            below = float(np.mean(draws[:, j] < number) + 0.5 * np.mean(draws[:, j] == number))
            body.append([str(label), f"{number:.4g}", f"[{low:.4g}, {high:.4g}]", f"{below:.2f}"])
    if not body:
        return []
    more = len(body) - 4 * _DRAWN
    head = ["released number", "value", "90% of simulated releases", "share below"]
    note = (
        "Each number of the release beside what posterior draws of the model, with fresh noise, would release. A share "
        "near 0 or 1 says that the model does not explain that number."
    )
    hidden = [f'<p class="note">{more} more numbers are not shown.</p>'] if more > 0 else []
    return [_table(head, body[: 4 * _DRAWN]), f'<p class="note">{note}</p>', *hidden]


def _diagnostics(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    head = ["", "R-hat", "ESS bulk", "ESS tail", "MC error of the mean", "records' share"]
    body = []
    for row in rows:
        error = row.posterior.sd / np.sqrt(row.ess_bulk) if row.ess_bulk > 0 else float("nan")
        share = "-" if row.missing_information is None else f"{row.missing_information:.3f}"
        figures = [f"{row.rhat:.3f}", f"{row.ess_bulk:,.0f}", f"{row.ess_tail:,.0f}", f"{error:.2g}", share]
        body.append([row.name, *figures])
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    means = [
        [str(name), f"{float(np.mean(values)):.4g}", f"{float(np.min(values)):.4g}"] for name, values in stats.items()
    ]
    note = (
        "R-hat compares the chains (below 1.01 is good); ESS is the number of independent draws that would be as "
        "good. The records' share (missing_information) is the part of the posterior variance that would be left if "
        "the confidential records were known: near 0, privacy and not the sample decides how much is known."
    )
    extra = [_table(["sampler statistic", "mean", "smallest"], means)] if means else []
    return [_table(head, body), f'<p class="note">{_text(note)}</p>', *extra]


def _traces(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    draws = scalars(tree["posterior"].to_dataset())
    plots = [
        f"<figure>{trace_plot(row, draws[row.name], 200 + number)}</figure>" for number, row in enumerate(rows[:_DRAWN])
    ]
    return [*plots, *_not_drawn(rows)]


def _provenance(attrs: dict[Any, Any]) -> list[str]:
    shown_above = {"noisewise_model", "noisewise_reason", "noisewise_verdict", "noisewise_naive"}
    known = [(str(name), value) for name, value in attrs.items() if name not in shown_above]
    return [
        _table(["", ""], [[name, f"{value:.4g}" if isinstance(value, float) else str(value)] for name, value in known])
    ]


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-", "-", "-"]
    return [f"{spread.mean:.4g}", f"{spread.sd:.3g}", f"[{spread.low:.4g}, {spread.high:.4g}]"]


def _key(kinds: Sequence[str]) -> str:
    items = "".join(f'<span><i style="background:{COLOURS[kind]}"></i>{kind}</span>' for kind in kinds)
    return f'<p class="key">{items}</p>'


def _not_drawn(rows: Sequence[Row]) -> list[str]:
    more = len(rows) - _DRAWN
    return [f'<p class="note">{more} more parameters are in the tables and not drawn.</p>'] if more > 0 else []


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in body)
    header = f"<thead><tr>{top}</tr></thead>\n" if any(head) else ""
    return f'<div class="wide"><table>\n{header}<tbody>\n{rows}\n</tbody></table></div>'


def _text(value: object) -> str:
    return html.escape(str(value))
