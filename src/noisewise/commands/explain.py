"""``noisewise explain``: which engine, and why."""

from __future__ import annotations

import json
from pathlib import Path

import noisewise as nw
from noisewise.commands.terminal import existing, say
from noisewise.model_file import load_model
from noisewise.release.document import Release


def run(release_path: Path, model_path: Path, *, method: str, as_json: bool = False) -> None:
    """Print the engines with their answers for this pair."""
    release = Release.load(existing(release_path, "release document"))
    choice = nw.explain(load_model(model_path), release, method)
    if not as_json:
        say(str(choice))
        return
    engines = [
        {
            "engine": candidate.engine.name,
            "exact": candidate.engine.exact,
            "can": candidate.support.ok,
            "why": candidate.support.reason,
            "cost": candidate.support.cost,
        }
        for candidate in choice.candidates
    ]
    say(json.dumps({"chosen": choice.engine.name, "reason": choice.reason, "engines": engines}, indent=2))
