"""Every block of Python in the documentation and the README runs, page by page, top to bottom."""

from __future__ import annotations

import doctest
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


def run_page(text: str, name: str) -> int:
    """Run the blocks of a page in one namespace; those with prompts must print what they say. Returns how many ran."""
    names: dict[str, object] = {"__name__": "__main__"}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    count = 0
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        count += 1
        if ">>>" in block[1]:
            example = parser.get_doctest(block[1], names, name, name, line)
            runner.run(example, clear_globs=False)
            names.update(example.globs)
            assert runner.summarize(verbose=False).failed == 0, f"{name}, line {line}"
        else:
            exec(compile("\n" * line + block[1], name, "exec"), names)
    return count


@pytest.mark.filterwarnings("ignore::noisewise.ConvergenceWarning")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*.nc"))
    monkeypatch.chdir(tmp_path)
    assert run_page(page.read_text(encoding="utf-8"), page.name) > 0


def test_a_page_that_is_wrong_is_seen(capsys):
    with pytest.raises(NameError):
        run_page("```python\nnothing_of_this_name\n```\n", "wrong")
    with pytest.raises(AssertionError):
        run_page("```python\n>>> 1 + 1\n3\n\n```\n", "wrong")


@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_the_cells_of_the_notebook_run(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        assert cell["outputs"] == []  # what it prints depends on the version; the notebook is kept without
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)
    assert (tmp_path / "smoking.html").exists()
