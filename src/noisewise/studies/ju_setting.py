"""The numbers published with the code of Ju, Awan, Gong and Rao (2022): parameters, confidential tables, coverage."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def published() -> Mapping[str, Any]:
    """The published numbers."""
    found: Mapping[str, Any] = json.loads(
        resources.files("noisewise.studies").joinpath("ju2022.json").read_text(encoding="utf-8")
    )
    return found
