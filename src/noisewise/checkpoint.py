"""A checkpoint file: everything a run needs to go on to the very same draws, replaced atomically.

The file is an uncompressed NumPy archive. It is written beside its final name, flushed to the disk and then renamed, so
that a process killed at any moment leaves either the old checkpoint or the new one. A fingerprint of the kernel, its data
and the settings is kept in it, and a checkpoint of another run is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

_FORMAT = "noisewise-checkpoint"
_VERSION = 1


def fingerprint(*parts: Any) -> str:
    """A digest of frozen objects: their classes, fields, the bytes of their arrays, and the code of their functions."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(piece)
            digest.update(b";")
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    """What a value is made of, in an order that does not change."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__.encode()
        for each in dataclasses.fields(value):
            yield each.name.encode()
            yield from _pieces(getattr(value, each.name, None))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name).encode()
            yield from _pieces(item)
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__}{len(value)}".encode()
        for item in value:
            yield from _pieces(item)
    elif isinstance(value, types.FunctionType):
        yield value.__qualname__.encode()
        yield from _pieces(value.__code__)
        yield from _pieces(value.__defaults__)
        yield from _pieces([cell.cell_contents for cell in value.__closure__ or () if cell.cell_contents is not value])
    elif isinstance(value, types.CodeType):
        # names of variables and constants, but no line numbers: a moved function is the same function
        yield value.co_code
        yield repr(value.co_names).encode()
        yield from _pieces(value.co_consts)
    elif isinstance(value, np.ndarray | jax.Array | np.generic):
        array = np.asarray(value)
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
    else:
        yield re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode()


def save(path: Path, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write the checkpoint and put it in place in one step."""
    header = json.dumps({"format": _FORMAT, "version": _VERSION, **meta})
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **{"header": np.frombuffer(header.encode(), dtype=np.uint8)}, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def seed_of(path: Path) -> int:
    """The seed of the run whose checkpoint this is, to go on with it when none is given."""
    return int(_read(path)[0]["seed"])


def load(path: Path, expected: str, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a checkpoint of the run with this fingerprint and seed; anything else is refused with a sentence."""
    meta, arrays = _read(path)
    if meta["seed"] != seed:
        raise ValueError(
            f"The checkpoint {path} was begun with random_seed={meta['seed']}; got {seed}. "
            "Give that seed (or none) to go on, or delete the file to start afresh."
        )
    if meta["fingerprint"] != expected:
        raise ValueError(
            f"The checkpoint {path} belongs to another run: its model, release or settings differ from the ones given. "
            "Name another file, or delete it to start afresh."
        )
    return meta, arrays


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("header").tobytes())
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"The checkpoint {path} cannot be read ({error}); it is damaged or not a checkpoint. "
            "Delete it, or name another file, to start afresh."
        ) from error
    if meta.get("format") != _FORMAT or meta.get("version") != _VERSION:
        raise ValueError(
            f"The checkpoint {path} has format {meta.get('format')!r}, version {meta.get('version')!r}; "
            f"this version of noisewise reads {_FORMAT!r}, version {_VERSION}."
        )
    return meta, arrays
