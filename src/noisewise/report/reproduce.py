"""The Python script that makes a run again from its release document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr


def script(tree: xr.DataTree) -> str | None:
    """Code for the same draws, or None where the run cannot be told in code (a model or an engine of functions, a run cut short)."""
    attrs = tree.attrs
    model = str(attrs.get("noisewise_model_expression", ""))
    known = "release" in tree.children and str(tree["release"].attrs["document"]).startswith("{")
    engine = str(attrs.get("noisewise_engine", ""))
    if not model or not engine or not known or attrs.get("interrupted") or "tuning_steps" not in attrs:
        return None
    # the plain engine of a name is asked for by its name
    method = f'"{attrs["noisewise_method"]}"' if engine.endswith("()") else engine
    sizes = tree["posterior"].sizes
    arguments = {
        "draws": sizes["draw"],
        "tune": attrs["tuning_steps"],
        "chains": sizes["chain"],
        "thin": attrs["thin"],
        "random_seed": attrs["random_seed"],
    }
    settings = ", ".join(f"{name}={int(value)}" for name, value in arguments.items() if name != "tune" or value)
    lines = [
        "import noisewise as nw",
        "",
        'release = nw.Release.load("release.json")',
        f"model = {model}",
        f"dt = nw.sample(model, release, {settings}, method={method})",
        'nw.report(dt, "report.html")',
    ]
    return "\n".join(lines)
