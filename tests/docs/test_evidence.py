"""What the page of evidence names is there: tests, studies and targets."""

import re
from pathlib import Path

import noisewise as nw

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")


def missing(page: str) -> set[str]:
    """The tests, studies and make targets that a page names and that are not there."""
    named = set()
    for command in re.findall(r"`pytest ([^`]+)`", page):
        for path, _, name in (part.strip('"').partition("::") for part in command.split() if "tests/" in part):
            file = ROOT / path
            if not file.exists() or (name and f"def {name}(" not in file.read_text(encoding="utf-8")):
                named.add(f"{path}::{name}")
    studies = {study.name for study in nw.studies.catalogue()} | {"NAME"}
    named |= set(re.findall(r"noisewise study ([\w-]+)", page)) - studies
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return named | {name for name in re.findall(r"`make ([\w-]+)`", page) if f"\n{name}:" not in makefile}


def test_every_command_on_the_page_of_evidence_names_something():
    assert len(re.findall("`pytest ", PAGE)) > 20
    assert missing(PAGE) == set()


def test_a_name_that_is_not_there_is_seen():
    wrong = "`pytest tests/test_run.py::test_nothing` `noisewise study no-study` `make nothing`"
    assert len(missing(wrong)) == 3
