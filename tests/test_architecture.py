"""Imports between the rooms point one way, outside packages stay in the rooms that need them, and the public names are there."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import noisewise as nw

SOURCE = Path(nw.__file__).parent

_DRIVER = {"driver", "release", "models", "engines", "kernels", "typing"}
MAY_IMPORT = {
    "typing": set(),
    "release": {"typing"},
    "models": {"typing"},
    "kernels": {"typing", "models", "release"},
    "engines": {"typing", "models", "release", "kernels", "direct"},
    "direct": {"typing", "release"},
    "private": {"typing", "release", "models", "kernels", "driver"},
    "driver": _DRIVER,
    "calibration": {*_DRIVER, "direct"},
    "studies": {*_DRIVER, "direct", "private", "calibration"},
    "report": _DRIVER,
    "commands": {*_DRIVER, "report", "studies", "calibration"},
}
"""What each room may import; a room may always import itself."""

TOP = {**dict.fromkeys(("cli", "model_file", "query_file"), "commands"), "typing": "typing"}
"""The rooms of files at the top; all others there are the driver, what the analyst calls."""

ONLY_IN = {
    "opendp": {"release"},
    "pydantic": {"release"},
    "pyarrow": {"release", "commands", "studies"},
    "dp_accounting": {"private"},
    "matplotlib": {"report", "private", "direct", "calibration", "studies"},
    "typer": {"commands"},
    "rich": {"driver", "commands"},
    "arviz_stats": {"driver", "report", "calibration"},
    "arviz_base": {"driver", "report"},
    "arviz_plots": {"report"},
    "distributed": {"studies"},
    "dask": {"studies"},
    "numpyro": {"models", "studies"},
    "formulaic": {"models"},
    "xarray": {"driver", "report", "commands", "private", "calibration", "studies"},
}
ANYWHERE = {"jax", "jaxtyping", "equinox", "numpy", "scipy"}


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module, given the parts of its name after ``noisewise``."""
    return parts[0] if (SOURCE / parts[0]).is_dir() else TOP.get(parts[0], "driver")


def imports(path: Path) -> list[tuple[str, ...]]:
    """The modules that a file imports, as parts of their names; imports under TYPE_CHECKING count."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            module = tuple((node.module or "").split("."))
            found += [(*module, alias.name) for alias in node.names] if module == ("noisewise",) else [module]
    return found


def violations(path: Path, parts: tuple[str, ...], modules: list[tuple[str, ...]]) -> list[str]:
    room = room_of(parts)
    found = []
    for module in modules:
        if module[0] == "noisewise":
            inside = module[1:]
            # the package itself (its version, its public names) is no room
            if not inside or not ((SOURCE / inside[0]).is_dir() or (SOURCE / f"{inside[0]}.py").exists()):
                continue
            other = room_of(inside)
            if other != room and other not in MAY_IMPORT[room]:
                found.append(f"{path}: {room} must not import {'.'.join(module)}, of {other}")
        elif module[0] in sys.stdlib_module_names or module[0] in ANYWHERE:
            continue
        elif room not in ONLY_IN.get(module[0], set()):
            found.append(f"{path}: {module[0]} does not belong in {room}")
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_the_way_the_architecture_says(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    assert room_of(parts) in MAY_IMPORT, f"{parts[0]} is a room without a rule: add it to MAY_IMPORT"
    assert violations(path, parts, imports(path)) == []


def test_a_forbidden_import_is_seen():
    where = Path("x.py")
    assert violations(where, ("release", "x"), [("noisewise", "engines", "base")])
    assert violations(where, ("engines", "x"), [("noisewise", "private", "budget")])
    assert violations(where, ("private", "x"), [("noisewise", "engines", "base")])
    assert violations(where, ("engines", "x"), [("noisewise", "report", "page")])
    assert violations(where, ("models", "x"), [("matplotlib", "pyplot")])
    assert not violations(where, ("engines", "x"), [("noisewise", "models", "base"), ("jax",), ("math",)])


def test_every_outside_package_is_declared():
    import tomllib

    pyproject = SOURCE.parent.parent / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {line.split(">")[0].split("[")[0].strip().replace("-", "_") for line in asked} | {"distributed"}
    used = {module[0] for path in files() for module in imports(path)} - set(sys.stdlib_module_names) - {"noisewise"}
    assert used <= declared


@pytest.mark.parametrize(
    "name",
    [
        "Column",
        "queries.Moments",
        "queries.regression_moments",
        "queries.Counts",
        "queries.Custom",
        "noise.Laplace",
        "noise.Gaussian",
        "noise.DiscreteLaplace",
        "noise.DiscreteLaplace.from_rho",
        "noise.DiscreteGaussian",
        "noise.Laplace.calibrated",
        "noise.Gaussian.calibrated",
        "Measurement",
        "Release",
        "Release.load",
        "Release.save",
        "Release.describe",
        "publish",
        "models.Bernoulli",
        "models.Categorical",
        "models.Poisson",
        "models.Exponential",
        "models.Normal",
        "models.NaiveBayes",
        "models.LinearRegression",
        "models.Custom",
        "engines.Augmentation",
        "sample",
        "explain",
        "naive",
        "report",
    ],
)
def test_a_public_name_is_there_and_documented(name):
    found = nw
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    assert found.__doc__
    assert len(found.__doc__) > 20


def test_everything_announced_is_there():
    for name in nw.__all__:
        assert getattr(nw, name) is not None
    assert set(nw.__all__) <= set(dir(nw))


def test_report_can_be_called_however_it_was_imported():
    import noisewise.report.page

    assert callable(nw.report)
    assert callable(sys.modules["noisewise.report"])
    assert callable(noisewise.report.page.report)
