"""The examples of the private room run as they are printed, and the room keeps to itself."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from noisewise.private import accounting, losses

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "src" / "noisewise" / "private"
MODULES = sorted(path.stem for path in ROOM.glob("*.py") if ">>>" in path.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(f"noisewise.private.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_page_on_accounting_runs():
    page = (ROOT / "docs" / "private" / "accounting.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "accounting.md", "exec"), {})


def test_every_accounting_function_says_its_neighbouring_relation():
    names = [*accounting.__all__, *losses.__all__]
    functions = [getattr(accounting, name) for name in names if name != "ORDERS"]
    assert len(functions) > 12
    for function in functions:
        assert "eighbours" in function.__doc__, function.__name__


def test_the_room_imports_from_no_engine():
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any("engines" in name or "kernels" in name for name in names), path.name


def test_importing_the_room_reads_neither_dp_accounting_nor_matplotlib():
    code = "import sys, noisewise.private; print('dp_accounting' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
