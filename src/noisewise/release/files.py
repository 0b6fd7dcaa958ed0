"""Release documents on disk: JSON, and long arrays in files beside it, each with its SHA-256."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from noisewise.release.document import Release
from noisewise.release.mechanism_documents import (
    HOLDING_CODE,
    MECHANISM_DOCUMENTS,
    RandomisedResponseDocument,
    RecordsDocument,
)
from noisewise.release.mechanisms.refused import REASONS
from noisewise.release.noise import LAWS
from noisewise.release.query_documents import QUERY_DOCUMENTS, ArrayFile, Stored, TableFile, in_place
from noisewise.release.schema import FORMAT, VERSION, ReleaseDocument, read_document, write_document
from noisewise.release.tables import read_columns

Encoding = Literal["npy", "parquet"]


def save(release: Release, path: Path, *, arrays: Encoding = "npy", inline: int = 1000) -> Path:
    """Write the document; arrays of more than ``inline`` numbers go to ``<stem>.<name>.npy`` (or ``.parquet``) beside it.

    A table of records always goes to a Parquet file, a column by name, a null where a value is missing.
    Nothing is written before the whole document is known to be valid, and the document itself last and at once.
    """
    if arrays not in ("npy", "parquet"):
        raise ValueError(f"arrays must be 'npy' or 'parquet'; got {arrays!r}.")
    if not path.parent.is_dir():
        raise ValueError(f"The folder {str(path.parent)!r} for the release document does not exist; create it first.")
    beside: dict[str, bytes] = {}

    def store(name: str, array: np.ndarray, columns: Sequence[str] | None = None) -> Any:
        if columns is not None:
            content = _encode_table(array, columns)
            file = f"{path.stem}.{name}.parquet"
            beside[file] = content
            digest = hashlib.sha256(content).hexdigest()
            return TableFile(file=file, columns=list(columns), rows=array.shape[0], sha256=digest)
        if array.size <= inline:
            return in_place(name, array)
        content = _encode(array, arrays)
        file = f"{path.stem}.{name}.{arrays}"
        beside[file] = content
        return ArrayFile(file=file, encoding=arrays, size=array.size, sha256=hashlib.sha256(content).hexdigest())

    text = json.dumps(write_document(release, store).model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    for file, content in beside.items():
        _write(path.with_name(file), content)
    _write(path, text.encode())
    return path


def load(path: Path) -> Release:
    """Read a document, check it and the files it names, and build the release."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"The release document {path.name!r} cannot be read: {problem}.") from None
    try:
        raw = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise ValueError(f"{path.name!r} is not a release document: it is not JSON ({problem}).") from None
    try:
        _check_known(raw)
        document = ReleaseDocument.model_validate_json(text)
        return read_document(document, lambda numbers: _fetch(numbers, path.parent))
    except pydantic.ValidationError as problem:
        raise ValueError(f"The release document {path.name!r} is not valid {_first_error(problem)}.") from None
    except ValueError as problem:
        raise ValueError(f"The release document {path.name!r} is refused. {problem}") from None


def _check_known(raw: Any) -> None:
    """Refuse what this version of noisewise does not know, saying what it does know."""
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        raise ValueError(f"Its format is {found!r}; supported is {FORMAT!r}.")
    if raw.get("version") != VERSION:
        raise ValueError(
            f"Its version is {raw.get('version')!r}; supported is {VERSION}. Update noisewise, or write it afresh."
        )
    if raw.get("postprocessing"):
        raise ValueError(
            f"Its values were post-processed ({raw['postprocessing']}); supported are values as the mechanism made them, "
            "without rounding, truncation or consistency. Ask for those, or, where every number was rounded or clipped alone, "
            "for a document with the mechanism censored_noise."
        )
    kinds = {document.model_fields["kind"].default for document in (*QUERY_DOCUMENTS.values(), RecordsDocument)}
    mechanisms = {document.model_fields["kind"].default for document in MECHANISM_DOCUMENTS.values()}
    laws = {*LAWS, RandomisedResponseDocument.model_fields["law"].default}
    for number, part in enumerate(_list(raw.get("measurements")), start=1):
        mechanism = _dict(_dict(part).get("mechanism"))
        _check_name(number, "mechanism", mechanism.get("kind"), mechanisms)
        _check_name(number, "query", _dict(mechanism.get("query")).get("kind"), kinds)
        noise = mechanism.get("noise")
        for law in noise if isinstance(noise, list) else [noise]:
            _check_name(number, "noise law", _dict(law).get("law"), laws)


def _check_name(number: int, what: str, found: Any, known: set[str]) -> None:
    if not isinstance(found, str):
        return
    if found in REASONS:
        raise ValueError(f"Measurement {number} has the {what} {found!r}, which cannot be analysed: {REASONS[found]}.")
    if found in HOLDING_CODE:
        raise ValueError(
            f"Measurement {number} has the {what} {found!r}, part of which is a function, and a document holds no code; "
            "write the release down in Python, with nw.mechanisms."
        )
    if found not in known:
        raise ValueError(f"Measurement {number} has the {what} {found!r}; supported: {', '.join(sorted(known))}.")


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def _first_error(problem: pydantic.ValidationError) -> str:
    first = problem.errors(include_url=False)[0]
    where = ".".join(str(step) for step in first["loc"]) or "as a whole"
    more = f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
    return f"at {where}: {first['msg'].lower()}; got {str(first.get('input'))[:80]!r}{more}"


def _fetch(numbers: Stored, folder: Path) -> np.ndarray:
    if not isinstance(numbers, ArrayFile | TableFile):
        return np.asarray(numbers, dtype=float)
    name = numbers.file
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name or Path(name).name != name:
        raise ValueError(f"It names the array file {name!r}; only plain names of files in the same folder are read.")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise ValueError(
            f"Its array file {name!r} is not an ordinary file in the same folder; keep the files together."
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != numbers.sha256:
        raise ValueError(
            f"Its array file {name!r} is not the one it was written with (the SHA-256 differs); copy both again."
        )
    if isinstance(numbers, TableFile):
        table = _decode_table(content, numbers.columns)
        if table.shape[0] != numbers.rows:
            raise ValueError(f"Its table {name!r} has {table.shape[0]} rows; {numbers.rows} were announced.")
        return np.ravel(table)
    array = _decode(content, numbers.encoding)
    if array.shape != (numbers.size,):
        raise ValueError(
            f"Its array file {name!r} has shape {array.shape}; {numbers.size} numbers in a row were announced."
        )
    return array


def _encode(array: np.ndarray, encoding: Encoding) -> bytes:
    if encoding == "npy":
        buffer = io.BytesIO()
        np.save(buffer, array.astype("<f8"), allow_pickle=False)
        return buffer.getvalue()
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"values": array.astype(float)}), sink)
    return bytes(sink.getvalue().to_pybytes())


def _decode(content: bytes, encoding: Encoding) -> np.ndarray:
    try:
        if encoding == "npy":
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=float)
        import pyarrow as pa
        from pyarrow import parquet

        return np.asarray(parquet.read_table(pa.BufferReader(content)).column("values").to_numpy(), dtype=float)
    except Exception as problem:
        raise ValueError(f"An array file is not {encoding} of numbers: {problem}.") from None


def _encode_table(table: np.ndarray, columns: Sequence[str]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {name: pa.array(table[:, j].astype(float), from_pandas=True) for j, name in enumerate(columns)}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue().to_pybytes())


def _decode_table(content: bytes, columns: Sequence[str]) -> np.ndarray:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(pa.BufferReader(content))
    except Exception as problem:
        raise ValueError(f"A table of records is not a Parquet file: {problem}.") from None
    found = read_columns(table, columns, missing=True)
    return np.stack([found[name] for name in columns], axis=-1)


def _write(path: Path, content: bytes) -> None:
    """Write to a temporary name and rename, so that a reader never sees half a file."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
