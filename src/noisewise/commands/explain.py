"""``noisewise explain``: which engine, and why."""

from __future__ import annotations

from pathlib import Path

import noisewise as nw
from noisewise.commands.terminal import existing, say
from noisewise.model_file import load_model
from noisewise.release.document import Release


def run(release_path: Path, model_path: Path, *, method: str) -> None:
    """Print the engines with their answers for this pair."""
    release = Release.load(existing(release_path, "release document"))
    say(str(nw.explain(load_model(model_path), release, method)))
