"""``noisewise study``: the experiments of the papers, by name."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from noisewise import studies
from noisewise.commands.terminal import say
from noisewise.studies.base import Study

_LIST, _ALL = "list", "all"
_LINE_SECONDS = 10.0


def run(
    name: str,
    *,
    replicates: int | None,
    settings: list[str],
    tiny: bool,
    out: Path,
    seed: int,
    workers: int,
    scheduler: str | None,
    retries: int,
) -> None:
    """Say what there is, or run one study, or all of them."""
    if name == _LIST:
        for each in studies.catalogue():
            _describe(each)
        return
    changes = dict(_setting(text) for text in settings)
    for each in studies.catalogue() if name == _ALL else (studies.get(name),):
        outcome = studies.run(
            each,
            replicates=replicates,
            settings=changes,
            tiny=tiny,
            out=out,
            random_seed=seed,
            workers=workers,
            scheduler=scheduler,
            retries=retries,
            report=_Progress(each.name),
        )
        say(outcome.markdown)
        say(f"Ran {outcome.tasks} tasks; the others were there. Wrote {', '.join(map(str, outcome.files))}")


def _describe(each: Study) -> None:
    say(f"{each.name}   {each.paper}")
    say(f"    shows     {each.shows}")
    say(f"    costs     {each.cost}")
    said = " ".join(f"{name}={json.dumps(value)}" for name, value in each.settings.items())
    say(f"    settings  replicates={each.replicates} {said}")
    say()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set takes name=value, as in --set draws=2000 or --set 'epsilons=[0.1, 1]'; got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


class _Progress:
    """A line on stderr now and then: tasks done, and the time left."""

    def __init__(self, name: str) -> None:
        self.name, self.began = name, time.perf_counter()
        self.said = self.began

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self.said < (0.5 if sys.stderr.isatty() else _LINE_SECONDS) and done < total:
            return
        self.said = now
        left = (now - self.began) / done * (total - done)
        say(f"{self.name}: {done} of {total} tasks, about {left:.0f} s left", error=True)
