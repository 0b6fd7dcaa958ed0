"""``noisewise inspect``: a release in words."""

from __future__ import annotations

from pathlib import Path

from noisewise.commands.terminal import existing, say
from noisewise.release.document import Release


def run(path: Path) -> None:
    """Print the description of a release document."""
    release = Release.load(existing(path, "release document"))
    say(f"{path}:")
    say(release.describe())
    say()
    say(f"A model of it must describe the column(s) {', '.join(release.columns)}.")
