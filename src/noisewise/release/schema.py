"""The release document: JSON of format ``dp-release``, as pydantic models.

How a query, a noise law or a mechanism is written is in :mod:`noisewise.release.mechanism_documents`. After a change of either
file write the JSON Schema afresh: ``python -m noisewise.release.schema > schema.json``.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from noisewise.release.document import Measurement, Release, total_privacy
from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanism_documents import MECHANISM_DOCUMENTS, AnyMechanism
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours, Norm
from noisewise.release.query_documents import ArrayFile, Fetch, Part, Store, TableFile, names_of

FORMAT = "dp-release"
VERSION = 1
_ROUNDING = 1e-6
_SLACK = 1e-3
"""A publisher may state slightly more than the exact loss, to cover the rounding of sums."""


class SensitivityDocument(Part):
    """The sensitivity of the query, under the release's neighbouring relation, that its price was computed from."""

    norm: Norm
    value: float = Field(ge=0)


class PurePrivacy(Part):
    """Pure differential privacy."""

    measure: Literal["pure"] = "pure"
    epsilon: float = Field(ge=0)


class ZcdpPrivacy(Part):
    """Zero-concentrated differential privacy."""

    measure: Literal["zcdp"] = "zcdp"
    rho: float = Field(ge=0)


class ApproximatePrivacy(Part):
    """Approximate differential privacy."""

    measure: Literal["approximate"] = "approximate"
    epsilon: float = Field(ge=0)
    delta: float = Field(gt=0, lt=1)


AnyPrivacy: TypeAlias = Annotated[PurePrivacy | ZcdpPrivacy | ApproximatePrivacy, Field(discriminator="measure")]


class MeasurementDocument(Part):
    """One published value, the mechanism that made it and what it cost."""

    name: str | None = None
    mechanism: AnyMechanism
    sensitivity: SensitivityDocument | None = None
    privacy: AnyPrivacy | None = None
    values: float | list[float | None] | ArrayFile | TableFile


class CountDocument(Part):
    """The number of records: a public number, or unknown."""

    value: int | None = Field(default=None, ge=1)
    status: Literal["public", "unknown"]


class ReleaseDocument(Part):
    """A release: noisy statistics with the full public description of how they were made. No seed, no exact value."""

    format: Literal["dp-release"] = "dp-release"
    version: Literal[1] = 1
    written_by: str | None = None
    n: CountDocument
    neighbours: Neighbours
    privacy: AnyPrivacy | None = None
    postprocessing: list[str] = Field(
        default_factory=list, max_length=0, description="Always empty: values are kept as the mechanism made them."
    )
    measurements: list[MeasurementDocument] = Field(min_length=1)


def write_privacy(privacy: Privacy | None) -> PurePrivacy | ZcdpPrivacy | ApproximatePrivacy | None:
    """A guarantee as a part of the document."""
    if privacy is None:
        return None
    loss = float(privacy.loss)
    if privacy.measure == "pure":
        return PurePrivacy(epsilon=loss)
    if privacy.measure == "zcdp":
        return ZcdpPrivacy(rho=loss)
    return ApproximatePrivacy(epsilon=loss, delta=float(privacy.delta))


def read_privacy(document: PurePrivacy | ZcdpPrivacy | ApproximatePrivacy | None) -> Privacy | None:
    """A guarantee from its part of the document."""
    if document is None:
        return None
    if isinstance(document, PurePrivacy):
        return Privacy("pure", document.epsilon)
    if isinstance(document, ZcdpPrivacy):
        return Privacy("zcdp", document.rho)
    return Privacy("approximate", document.epsilon, document.delta)


def write_document(release: Release, store: Store) -> ReleaseDocument:
    """The document of a release; ``store`` says what becomes of an array: numbers in place, or a file."""
    from noisewise import __version__

    measurements = [
        _write_measurement(measurement, release.neighbours, _Numbered(number, store))
        for number, measurement in enumerate(release.measurements, start=1)
    ]
    return ReleaseDocument(
        written_by=f"noisewise {__version__}",
        n=CountDocument(value=release.n, status="unknown" if release.n is None else "public"),
        neighbours=release.neighbours,
        privacy=write_privacy(release.privacy),
        measurements=measurements,
    )


class _Numbered:
    """A store whose names begin with the number of the measurement."""

    def __init__(self, number: int, store: Store) -> None:
        self.number, self.store = number, store

    def __call__(self, name: str, array: np.ndarray, columns: Sequence[str] | None = None) -> Any:
        return self.store(f"{self.number}.{name}", array, columns)


def read_document(document: ReleaseDocument, fetch: Fetch) -> Release:
    """The release of a document, with a warning where its statements and its numbers disagree."""
    if (document.n.value is None) != (document.n.status == "unknown"):
        raise ValueError(
            f"n has status {document.n.status!r} but the value {document.n.value}; they contradict each other."
        )
    measurements = []
    for number, part in enumerate(document.measurements, start=1):
        measurement = Measurement(
            mechanism=part.mechanism.build(fetch), value=part.mechanism.shaped(fetch(part.values)), name=part.name
        )
        what = f"measurement {part.name or number}"
        _compare_sensitivity(what, part.sensitivity, measurement, document.neighbours)
        _compare_privacy(what, read_privacy(part.privacy), [measurement.mechanism], document.neighbours)
        measurements.append(measurement)
    stated = read_privacy(document.privacy)
    _compare_privacy("the release", stated, [m.mechanism for m in measurements], document.neighbours)
    return Release(measurements, document.n.value, neighbours=document.neighbours, stated=stated)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document, as shipped in ``schema.json``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ReleaseDocument.model_json_schema()}


def _write_measurement(measurement: Measurement, neighbours: Neighbours, store: Store) -> MeasurementDocument:
    document = MECHANISM_DOCUMENTS.get(type(measurement.mechanism))
    if document is None:
        raise ValueError(
            f"A release made by a {type(measurement.mechanism).__name__} mechanism cannot be written: a document holds no "
            f"code. Documents know the mechanisms {names_of(MECHANISM_DOCUMENTS)}."
        )
    mechanism = document.of(measurement.mechanism, store)
    query, noise, sensitivity = measurement.query, measurement.noise, None
    if query is not None and noise is not None:
        sensitivity = SensitivityDocument(norm=noise.norm, value=query.sensitivity(noise.norm, neighbours))
    return MeasurementDocument(
        name=measurement.name,
        mechanism=mechanism,
        sensitivity=sensitivity,
        privacy=write_privacy(measurement.mechanism.privacy(neighbours)),
        values=store("values", np.ravel(np.asarray(measurement.value)))
        if mechanism.table is None
        else store("records", np.asarray(measurement.value), mechanism.table),
    )


def _compare_sensitivity(
    what: str, stated: SensitivityDocument | None, measurement: Measurement, neighbours: Neighbours
) -> None:
    if stated is None or measurement.query is None:
        return
    found = measurement.query.sensitivity(stated.norm, neighbours)
    if not math.isclose(stated.value, found, rel_tol=_ROUNDING):
        _warn(
            f"The document states the {stated.norm} sensitivity {stated.value:.6g} for {what}, but its bounds and terms give "
            f"{found:.6g} under {neighbours}."
        )


def _compare_privacy(
    what: str, stated: Privacy | None, mechanisms: Sequence[Mechanism], neighbours: Neighbours
) -> None:
    parts = [mechanism.privacy(neighbours) for mechanism in mechanisms]
    known = [part for part in parts if part is not None]
    if stated is None or len(known) < len(parts):
        return
    found = total_privacy(mechanisms, known, float(stated.delta) or None)
    if stated.measure == "zcdp" and found.measure == "pure":
        found = Privacy("zcdp", found.loss**2 / 2)
    loss = float(found.loss)
    if stated.measure != found.measure or not (1 - _ROUNDING) * loss <= float(stated.loss) <= (1 + _SLACK) * loss:
        _warn(
            f"The document states {stated} for {what}, but its bounds, terms and noise scales give {found}. The posterior "
            "does not depend on this; the promise made to the people in the records does."
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=5)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, sort_keys=True))
