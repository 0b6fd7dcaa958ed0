"""Build the wheel, install it in a clean environment of every interpreter here, and try what a new user tries.

    python tests/packaging/interpreters.py            # every Python 3.11, 3.12 and 3.13 that is found
    python tests/packaging/interpreters.py 3.12       # one of them

The environments hold the dependencies alone and no extra. Not collected with the other tests: it downloads packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
LONGEST_IMPORT = 1.0
"""Processor seconds that ``import noisewise`` may take; what the clock says depends on the machine's other work."""

IMPORT = """
    import sys, time
    began = time.process_time()
    import noisewise
    seconds = time.process_time() - began
    heavy = [name for name in ("pandas", "matplotlib", "xarray", "opendp", "pyarrow", "arviz_stats") if name in sys.modules]
    assert not heavy, f"import noisewise loads {heavy}"
    print(f"import {seconds:.2f} s of processor time")
    sys.exit(seconds > float(sys.argv[1]))
"""
MODULES = """
    import importlib, pkgutil, noisewise
    from importlib import metadata, resources
    names = [found.name for found in pkgutil.walk_packages(noisewise.__path__, "noisewise.")]
    for name in names:
        importlib.import_module(name)
    for name in noisewise.__all__:
        getattr(noisewise, name)
    assert metadata.version("noisewise") == noisewise.__version__
    assert resources.files("noisewise").joinpath("py.typed").is_file()
    print(f"{len(names)} modules import without extras")
"""
EXTRAS = """
    import noisewise as nw
    for ask, words in (
        (lambda: nw.models.from_numpyro(lambda n: None), "noisewise[numpyro]"),
        (lambda: nw.models.LinearRegression("y ~ x"), "noisewise[formula]"),
    ):
        try:
            ask()
        except ValueError as refused:
            assert words in str(refused) and "\\n" not in str(refused), refused
        else:
            raise AssertionError(f"{words} was not asked for")
    print("what needs an extra says which")
"""
FIT = """
    import noisewise as nw
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.publish({"x": [0, 1, 1, 1, 0, 1]}, query, nw.noise.Laplace(1.0))
    tree = nw.sample(nw.models.Bernoulli(), release, draws=50, random_seed=1, progressbar=False)
    release.save("release.json")
    open("model.toml", "w").write('[model]\\nname = "Bernoulli"\\n')
    print("published and fitted:", tree.attrs["noisewise_method"])
"""
COMMANDS = (
    ("--version",),
    ("inspect", "release.json"),
    ("fit", "release.json", "model.toml", "--draws", "50", "--seed", "1", "-o", "out.nc"),
    ("report", "out.nc"),
)


def interpreters(wanted: tuple[str, ...]) -> dict[str, str]:
    """The interpreter of each version that is on the path or in pyenv's folder."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in wanted:
        kept = sorted(folder.glob(f"{version}.*/bin/python{version}"))
        for candidate in [shutil.which(f"python{version}"), *map(str, kept)]:
            asked = candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
            if candidate and asked and asked.returncode == 0:
                found[version] = candidate
                break
    return found


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    if command[1] == "-c":
        print("   ", done.stdout.strip())


def try_one(interpreter: str, wheel: Path, folder: Path) -> None:
    run(interpreter, "-m", "venv", str(folder / "env"), cwd=folder)
    python = str(folder / "env" / "bin" / "python")
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(ROOT / "requirements.lock"),
        str(wheel),
        cwd=folder,
    )
    run(python, "-c", "import noisewise", cwd=folder)  # which compiles to bytecode
    for script, arguments in ((IMPORT, [str(LONGEST_IMPORT)]), (MODULES, []), (EXTRAS, []), (FIT, [])):
        run(python, "-c", textwrap.dedent(script), *arguments, cwd=folder)
    for command in COMMANDS:
        run(str(folder / "env" / "bin" / "noisewise"), *command, cwd=folder)
    assert "<html" in (folder / "out.html").read_text(encoding="utf-8")
    print(f"    noisewise {', '.join(command[0] for command in COMMANDS)}: done")


def main(wanted: tuple[str, ...]) -> None:
    found = interpreters(wanted)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(ROOT), cwd=folder)
        wheel = next(folder.glob("noisewise-*.whl"))
        print(wheel.name)
        for version in wanted:
            if version not in found:
                print(f"Python {version}: not here")
                continue
            print(f"Python {version}: {found[version]}")
            inside = folder / version
            inside.mkdir()
            try_one(found[version], wheel, inside)
    if not found:
        raise SystemExit(f"None of Python {', '.join(wanted)} is here.")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or VERSIONS)
