"""``noisewise inspect``: a release in words."""

from __future__ import annotations

import json
from pathlib import Path

from noisewise.commands.terminal import existing, say
from noisewise.release.document import Release


def run(path: Path, *, as_json: bool = False) -> None:
    """Print the description of a release document."""
    release = Release.load(existing(path, "release document"))
    if as_json:
        found = {
            "n": release.n,
            "columns": list(release.columns),
            "measurements": dict(zip(release.names, (m.mechanism.size for m in release.measurements), strict=True)),
            "guarantee": None if release.privacy is None else str(release.privacy),
            "description": release.describe(),
        }
        say(json.dumps(found, indent=2))
        return
    say(f"{path}:")
    say(release.describe())
    say()
    say(f"A model of it must describe the column(s) {', '.join(release.columns)}.")
