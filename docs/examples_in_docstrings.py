"""A Griffe extension for the reference pages: what follows the first ``>>>`` of a docstring is its section of examples."""

from __future__ import annotations

import re
from typing import Any

import griffe

FIRST = re.compile(r"^>>> ", re.MULTILINE)


class ExamplesInDocstrings(griffe.Extension):
    """Without the heading, prompts would be read as quotations, or as part of the section of parameters before them."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Put the heading that the numpy style of docstrings knows before the first prompt."""
        if obj.docstring and "Examples\n--------" not in obj.docstring.value:
            obj.docstring.value = FIRST.sub("Examples\n--------\n>>> ", obj.docstring.value, count=1)
