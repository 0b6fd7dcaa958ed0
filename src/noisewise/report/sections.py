"""The sections of the report, in its order; each is a list of HTML pieces, empty where the run has nothing to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.report import plots
from noisewise.report.drawing import COLOURS, inline_svg
from noisewise.report.markup import block, folded, note, table, text
from noisewise.report.predictive import predicted
from noisewise.report.reproduce import script
from noisewise.report.summary import Row, Spread, rows_of, scalars

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_DRAWN = 24
_NUMBERS = 96
_BROAD = 5.0


def results(tree: xr.DataTree, rows: Sequence[Row], level: float) -> list[str]:
    """The table of all parameters: posterior, naive, prior."""
    kinds = [kind for kind in ("posterior", "naive", "prior") if kind == "posterior" or kind in tree.children]
    head = ["", *["mean", "sd", f"{100 * level:.3g}% interval"] * len(kinds)]
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
    return [table(head, body, [(kind, 3) for kind in kinds]), note(" ".join(notes))]


def densities(tree: xr.DataTree, rows: Sequence[Row], level: float) -> list[str]:
    """A picture of every parameter."""
    kinds = [kind for kind in ("posterior", "naive", "prior") if kind in tree.children]
    draws = {kind: scalars(tree[kind].to_dataset()) for kind in kinds}
    pictures = [_picture(plots.density_figure([row], draws, level), number) for number, row in enumerate(rows[:_DRAWN])]
    return [_key(kinds), '<div class="grid">', *pictures, "</div>", *_not_drawn(rows)]


def interval_pictures(rows: Sequence[Row], level: float) -> list[str]:
    """The intervals, a picture for each variable."""
    pictures = [
        _picture(plots.interval_figure(group, level), 100 + number, f"{100 * level:.3g}% intervals of {name}")
        for number, (name, group) in enumerate(_by_variable(rows[:_DRAWN]))
    ]
    clipped = [note("The prior's interval is cut off where it is wider than the picture.")]
    return [*pictures, *(clipped if rows and rows[0].prior is not None else []), *_not_drawn(rows)]


def published(tree: xr.DataTree, level: float) -> list[str]:
    """The release in words, and its numbers with their noise."""
    if "release" not in tree.children:
        return []
    found = [block(tree["release"].attrs["description"])]
    try:
        figure = plots.release(tree, level=level)
    except ValueError:
        return found  # nothing in it is a number with noise of a known variance
    words = f"The released numbers with {100 * level:.3g}% intervals of their noise alone"
    return [*found, _picture(figure, 300, words)]


def engine(tree: xr.DataTree) -> list[str]:
    """The model as formulas, and which engine ran and why."""
    attrs = tree.attrs
    lines = []
    if attrs.get("noisewise_model_formulas"):
        formulas = str(attrs["noisewise_model_formulas"]).split("\n")
        lines += ['<ul class="formulas">', *(f"<li>{text(formula)}</li>" for formula in formulas), "</ul>"]
    elif attrs.get("noisewise_model"):
        lines.append(block(attrs["noisewise_model"]))
    if "release" in tree.children:
        lines.append(
            "<p>The records themselves are not known; the posterior averages over all that could be behind the release: "
            "p(theta | s) ∝ p(theta) ∫ f(x | theta) g(s | x) dx, with f the model and g the mechanism of the release.</p>"
        )
    return [*lines, f"<p>{text(attrs.get('noisewise_reason', attrs['noisewise_method']))}</p>"]


def privacy(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """The price of privacy where it was computed, and the share of the records in what is not known."""
    found = []
    if "price" in tree.children:
        group = tree["price"].to_dataset()
        body = [
            [
                str(name),
                *(
                    f"{max(0.0, float(group[part].values[j] / group['variance'].values[j])):.0%}"
                    for part in ("prior", "sampling", "clamping", "noise")
                ),
                f"{float(group['lost_to_clamping'].values[j]):.1f}",
                f"{float(group['lost_to_noise'].values[j]):.1f}",
            ]
            for j, name in enumerate(group["parameter"].values)
        ]
        head = ["", "prior", "sampling", "clamping", "noise", "records lost to clamping", "records lost to noise"]
        words = (
            f"Where the posterior variance comes from, and how many of the {int(group.attrs['n'])} records an analysis "
            "without privacy could have done without for the same precision."
        )
        found += [_picture(plots.price(tree), 400), table(head, body), note(f"{words} {group.attrs['notes']}".strip())]
    elif tree.attrs.get("noisewise_price"):
        found.append(note(str(tree.attrs["noisewise_price"])))
    shares = [[row.name, f"{row.missing_information:.3f}"] for row in rows if row.missing_information is not None]
    if shares:
        found.append(table(["", "records' share"], shares))
        found.append(
            note(
                "The records' share (missing_information) is the part of the posterior variance that would be left if the "
                "confidential records were known: near 1 the noise costs nothing; near 0, privacy and not the sample "
                "decides how much is known."
            )
        )
    return found


def sensitivity(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """How far the posterior moves when the prior counts half or twice."""
    if "prior_sensitivity" not in tree.children:
        return []
    group = tree["prior_sensitivity"].to_dataset()
    shifts: dict[str, list[str]] = {row.name: [] for row in rows}
    for power in group["power"].values:
        at = group.drop_vars("effective").sel(power=power)
        # scalars() reads draws: (chain, draw, ...) and here a mean and an sd stand in their place
        moments = scalars(at.expand_dims("chain").transpose("chain", "moment", ...))
        for row in rows:
            mean, sd = moments[row.name][0]
            known = np.isfinite(mean) and row.posterior.sd > 0
            shifts[row.name] += (
                [f"{mean:.4g}", f"{(mean - row.posterior.mean) / row.posterior.sd:+.2f}", f"{sd:.3g}"]
                if known
                else ["-", "-", "-"]
            )
    names = {0.5: "half", 2.0: "twice"}
    head = [
        "",
        *[
            title
            for power in group["power"].values
            for title in (f"mean, prior {names.get(float(power), power)}", "moved, in sds", "sd")
        ],
    ]
    words = (
        "The same draws, weighed as if the prior's density counted half (its square root) or twice (its square). A mean that moves "
        "by more than a few tenths of a posterior sd rests on the prior as well as on the release. A dash: too far away for "
        "these draws to tell; fit again with the other prior."
    )
    return [table(head, [[name, *cells] for name, cells in shifts.items()]), note(words)]


def predictive(tree: xr.DataTree, level: float) -> list[str]:
    """Every released number beside what the fitted model would release."""
    numbers = predicted(tree, level)
    if not numbers:
        return []
    head = ["released number", "value", f"{100 * level:.3g}% of simulated releases", "share below"]
    body = [[n.label, f"{n.value:.4g}", f"[{n.low:.4g}, {n.high:.4g}]", f"{n.below:.2f}"] for n in numbers[:_NUMBERS]]
    words = (
        "Each number of the release beside what posterior draws of the model, with fresh noise, would release. A share "
        "near 0 or 1 says that the model does not explain that number."
    )
    more = len(numbers) - _NUMBERS
    return [table(head, body), note(words), *([note(f"{more} more numbers are not shown.")] if more > 0 else [])]


def diagnostics(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """Convergence and Monte-Carlo error of every parameter."""
    head = ["", "R-hat", "ESS bulk", "ESS tail", "MC error of the mean"]
    body = []
    for row in rows:
        error = row.posterior.sd / np.sqrt(row.ess_bulk) if row.ess_bulk > 0 else float("nan")
        body.append([row.name, f"{row.rhat:.3f}", f"{row.ess_bulk:,.0f}", f"{row.ess_tail:,.0f}", f"{error:.2g}"])
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    means = [
        [str(name), f"{float(np.mean(values)):.4g}", f"{float(np.min(values)):.4g}"] for name, values in stats.items()
    ]
    words = (
        "R-hat compares the chains (below 1.01 is good); ESS is the number of independent draws that would be as "
        "good. The acceptance rate of a sampler says nothing about its mixing."
    )
    extra = [table(["sampler statistic", "mean", "smallest"], means)] if means else []
    return [table(head, body), note(words), *extra]


def chains(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """Traces and ranks."""
    draws = scalars(tree["posterior"].to_dataset())
    pictures = [_picture(plots.mixing_figure([row], draws), 200 + number) for number, row in enumerate(rows[:_DRAWN])]
    return [*pictures, *_not_drawn(rows)]


def provenance(attrs: Mapping[Any, Any]) -> list[str]:
    """Versions, seed and settings."""
    import platform

    shown_above = {"noisewise_reason", "noisewise_verdict", "noisewise_naive", "noisewise_price"}
    known = [
        (str(name), value)
        for name, value in attrs.items()
        if name not in shown_above and not str(name).startswith("noisewise_model")
    ]
    body = [[name, f"{value:.4g}" if isinstance(value, float) else str(value)] for name, value in known]
    return [table(["", ""], [*body, ["page written with Python", platform.python_version()]])]


def reproduction(tree: xr.DataTree) -> list[str]:
    """A script that makes the same draws, and the release document that it reads."""
    code = script(tree)
    if code is None:
        return []
    document = str(tree["release"].attrs["document"])
    return [
        "<p>Save the release document as release.json beside this script; the same version of noisewise makes the same draws.</p>",
        block(code),
        folded("release.json", document),
    ]


def _picture(figure: Figure, number: int, caption: str = "") -> str:
    """A figure; a broad one keeps a readable size on a narrow screen and scrolls in its own frame."""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    broad = ' class="broad"' if figure.get_figwidth() > _BROAD else ""
    return f"<figure{broad}>{inline_svg(figure, number)}{below}</figure>"


def _by_variable(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for name in dict.fromkeys(row.name.partition("[")[0] for row in rows):
        yield name, rows_of(rows, name)


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-", "-", "-"]
    return [f"{spread.mean:.4g}", f"{spread.sd:.3g}", f"[{spread.low:.4g}, {spread.high:.4g}]"]


def _key(kinds: Sequence[str]) -> str:
    items = "".join(f'<span><i style="background:{COLOURS[kind]}"></i>{kind}</span>' for kind in kinds)
    return f'<p class="key">{items}</p>'


def _not_drawn(rows: Sequence[Row]) -> list[str]:
    more = len(rows) - _DRAWN
    return [note(f"{more} more parameters are in the tables and not drawn.")] if more > 0 else []
