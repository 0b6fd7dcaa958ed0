"""What the commands share: where output may go, and how a summary looks on a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from noisewise.report.summary import LEVEL, Row, Spread

if TYPE_CHECKING:
    import xarray as xr


def say(text: str = "", *, error: bool = False) -> None:
    """One line of plain text, never wrapped."""
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def existing(path: Path, what: str, remedy: str = "check the name and the folder") -> Path:
    """A file that is there."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise ValueError(f"There is no {what} {str(path)!r} (found {found}); {remedy}.")
    return path


def writable(path: Path, suffix: str) -> Path:
    """A file that can be written, checked before any long work."""
    if path.suffix != suffix:
        raise ValueError(f"The output {str(path)!r} must end in {suffix}; name it {str(path.with_suffix(suffix))!r}.")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"The output {str(path)!r} cannot be written: its folder {str(path.parent)!r} is not there, or it is a folder "
            "itself; make the folder first or name another."
        )
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"The folder {str(path.parent)!r} cannot be written to; name another.")
    return path


def write_tree(tree: xr.DataTree, path: Path) -> None:
    """Write NetCDF under a temporary name and rename, so that a reader never sees half a file."""
    part = path.with_name(f"{path.name}.part")
    try:
        tree.to_netcdf(part, engine="h5netcdf")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def print_price(tree: xr.DataTree) -> None:
    """Where the posterior variance comes from, in percent, or why that cannot be said."""
    if "price" not in tree.children:
        say(str(tree.attrs.get("noisewise_price", "")))
        return
    group = tree["price"].to_dataset()
    say("Of the posterior variance:")
    for j, name in enumerate(group["parameter"].values):
        shares = [
            f"{float(group[part].values[j] / group['variance'].values[j]):.0%} {words}"
            for part, words in (
                ("prior", "prior"),
                ("sampling", "sampling"),
                ("clamping", "clamping"),
                ("noise", "noise"),
            )
        ]
        lost = float(group["lost_to_clamping"].values[j] + group["lost_to_noise"].values[j])
        say(f"  {name}: {', '.join(shares)}; {lost:.1f} of {int(group.attrs['n'])} records' worth was lost to privacy")


def print_summary(
    rows: Sequence[Row], *, level: float = LEVEL, compare: bool = False, truth: dict[str, float] | None = None
) -> None:
    """The summary as a table; with ``compare`` the naive posterior and the prior beside it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    interval = f"{100 * level:.3g}% interval"
    heads = ["mean", "sd", interval, "R-hat", "ESS", "records' share"]
    if compare:
        heads = ["posterior", interval, "naive", interval, "prior", interval]
    if truth:
        heads = [*heads, "made with"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = _beside(row) if compare else _alone(row)
        if truth:
            cells = [*cells, f"{truth[row.name]:.3f}"]
        table.add_row(Text(row.name), *map(Text, cells))
    terminal = Console()
    width = terminal.width if terminal.is_terminal else 160
    Console(width=max(width, 100), highlight=False).print(table)


def _alone(row: Row) -> list[str]:
    share = "-" if row.missing_information is None else f"{row.missing_information:.3f}"
    return [*_numbers(row.posterior), f"{row.rhat:.3f}", f"{row.ess_bulk:,.0f}", share]


def _beside(row: Row) -> list[str]:
    cells = []
    for spread in (row.posterior, row.naive, row.prior):
        mean, sd, interval = _numbers(spread)
        cells += [f"{mean} ± {sd}" if spread else "-", interval]
    return cells


def _numbers(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "-", "-", "-"
    digits = _digits(spread.sd)

    def show(value: float) -> str:
        return f"{value:.{digits}f}" if digits is not None else f"{value:.4g}"

    return show(spread.mean), show(spread.sd), f"[{show(spread.low)}, {show(spread.high)}]"


def _digits(sd: float) -> int | None:
    """Decimals that show three digits of the sd; None where that would be silly."""
    if not (math.isfinite(sd) and sd > 0):
        return None
    digits = 2 - math.floor(math.log10(sd))
    return digits if 0 <= digits <= 6 else None


def said_of_run(tree: xr.DataTree) -> list[str]:
    """The verdict and what made the draws, in words."""
    attrs = tree.attrs
    chains, draws = tree["posterior"].sizes["chain"], tree["posterior"].sizes["draw"]
    kind = "exact" if attrs["noisewise_exact"] else "approximate"
    lines = [
        f"{chains} {'chain' if chains == 1 else 'chains'} of {draws:,} {'draw' if draws == 1 else 'draws'} "
        f"by the {attrs['noisewise_method']} engine ({kind}), "
        f"{float(attrs['sampling_time']):.1f} s of sampling, seed {attrs['random_seed']}.",
        str(attrs["noisewise_verdict"]),
    ]
    if attrs.get("interrupted"):
        lines.append("Stopped with Ctrl-C: these are the draws made until then.")
    return lines
