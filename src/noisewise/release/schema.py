"""The release document: JSON of format ``dp-release``, as pydantic models.

To teach the document another query, write a model with its ``kind``, ``of`` and ``build``, and add it to ``AnyQuery`` and
``QUERY_DOCUMENTS``; another mechanism likewise in ``AnyMechanism`` and ``MECHANISM_DOCUMENTS``; a noise law needs only its
name in ``LawName``. Then write the JSON Schema afresh: ``python -m noisewise.release.schema > schema.json``.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from noisewise.release.document import Measurement, Release, total_privacy
from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.noise import LAWS, Noise
from noisewise.release.privacy import Privacy
from noisewise.release.queries import Column, Counts, Moments, Neighbours, Norm, Query
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum

FORMAT = "dp-release"
VERSION = 1
_ROUNDING = 1e-6
_SLACK = 1e-3
"""A publisher may state slightly more than the exact loss, to cover the rounding of sums."""


class Part(BaseModel):
    """A part of the document: nothing unknown, nothing converted, nothing infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class ArrayFile(Part):
    """Numbers kept in a file beside the document, with the SHA-256 of its bytes."""

    file: str = Field(description="A plain file name, in the folder of the document.")
    encoding: Literal["npy", "parquet"]
    size: int = Field(ge=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


Numbers: TypeAlias = float | list[float] | ArrayFile
Store: TypeAlias = Callable[[str, np.ndarray], "float | list[float] | ArrayFile"]
Fetch: TypeAlias = Callable[["float | list[float] | ArrayFile"], np.ndarray]


class ColumnDocument(Part):
    """The public bounds of a column and where they came from."""

    lower: float
    upper: float
    rescale: tuple[float, float] | None = None
    origin: str = "public"


class MomentsDocument(Part):
    """Sums of monomials of clamped columns."""

    kind: Literal["moments"] = "moments"
    columns: dict[str, ColumnDocument]
    terms: list[dict[str, int]]
    l1: float | None = Field(
        default=None, description="A proved L1 sensitivity under replace_one, below the sum of ranges."
    )

    @classmethod
    def of(cls, query: Query) -> MomentsDocument:
        assert isinstance(query, Moments)
        columns = {
            name: ColumnDocument(lower=c.lower, upper=c.upper, rescale=c.rescale, origin=c.origin)
            for name, c in query.bounds
        }
        return cls(columns=columns, terms=[dict(term) for term in query.terms], l1=query.l1)

    def build(self) -> Moments:
        columns = {n: Column(c.lower, c.upper, c.rescale, origin=c.origin) for n, c in self.columns.items()}
        safe = Moments(columns, self.terms)
        if self.l1 is None:
            return safe
        try:
            return Moments(columns, self.terms, l1=self.l1)
        except ValueError as problem:
            warnings.warn(f"The release's own sensitivity is set aside. {problem}", UserWarning, stacklevel=2)
            return safe


class CountsDocument(Part):
    """Contingency tables of coded columns; the values are the cells of the tables one after another, row by row."""

    kind: Literal["counts"] = "counts"
    levels: dict[str, int]
    tables: list[list[str]]

    @classmethod
    def of(cls, query: Query) -> CountsDocument:
        assert isinstance(query, Counts)
        return cls(levels=dict(query.levels), tables=[list(table) for table in query.tables])

    def build(self) -> Counts:
        return Counts(self.levels, self.tables)


class TruncatedSumDocument(Part):
    """Sums of statistics of a column over the records inside bounds; the others count for nothing."""

    kind: Literal["truncated_sum"] = "truncated_sum"
    column: str
    lower: float
    upper: float
    statistics: list[str]
    origin: str = "public"

    @classmethod
    def of(cls, query: Query) -> TruncatedSumDocument:
        assert isinstance(query, TruncatedSum)
        if query.function is not None:
            raise ValueError(
                "A TruncatedSum of a function cannot be written: a document holds no code. Use the named statistics."
            )
        return cls(
            column=query.column, lower=query.lower, upper=query.upper, statistics=list(query.names), origin=query.origin
        )

    def build(self) -> TruncatedSum:
        return TruncatedSum(self.column, self.lower, self.upper, self.statistics, origin=self.origin)


LawName: TypeAlias = Literal["laplace", "gaussian", "discrete_laplace", "discrete_gaussian"]


class NoiseDocument(Part):
    """A law of independent noise and its scale (never epsilon alone): one number, or one for each released number."""

    law: LawName
    scale: Numbers

    @classmethod
    def of(cls, noise: Noise, store: Store) -> NoiseDocument:
        law: Any = noise.name
        return cls(law=law, scale=store("scale", np.asarray(noise.scale)))

    def build(self, fetch: Fetch) -> Noise:
        return LAWS[self.law](jnp.asarray(fetch(self.scale)))


AnyQuery: TypeAlias = Annotated[MomentsDocument | CountsDocument | TruncatedSumDocument, Field(discriminator="kind")]
QUERY_DOCUMENTS: dict[type[Query], type[MomentsDocument] | type[CountsDocument] | type[TruncatedSumDocument]] = {
    Moments: MomentsDocument,
    Counts: CountsDocument,
    TruncatedSum: TruncatedSumDocument,
}


class AdditiveNoiseDocument(Part):
    """Independent noise added to the total of a query."""

    kind: Literal["additive_noise"] = "additive_noise"
    query: AnyQuery
    noise: NoiseDocument

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> AdditiveNoiseDocument:
        assert isinstance(mechanism, AdditiveNoise)
        document = QUERY_DOCUMENTS.get(type(mechanism.query))
        if document is None or mechanism.noise.name not in LAWS:
            raise ValueError(
                f"A release with a {type(mechanism.query).__name__} query and {type(mechanism.noise).__name__} noise cannot be "
                f"written: a document holds no code. Documents know the queries {_names(QUERY_DOCUMENTS)} and the laws "
                f"{', '.join(LAWS)}."
            )
        return cls(query=document.of(mechanism.query), noise=NoiseDocument.of(mechanism.noise, store))

    def build(self, fetch: Fetch) -> Mechanism:
        return AdditiveNoise(self.query.build(), self.noise.build(fetch))


class PrivateQuantileDocument(Part):
    """A quantile chosen among public candidates by the exponential mechanism, with the count of records as utility."""

    kind: Literal["private_quantile"] = "private_quantile"
    column: str
    probability: float = Field(ge=0, le=1)
    candidates: Numbers
    epsilon: float = Field(gt=0)
    n: int = Field(ge=1)

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> PrivateQuantileDocument:
        assert isinstance(mechanism, PrivateQuantile)
        return cls(
            column=mechanism.column,
            probability=float(mechanism.probability),
            candidates=store("candidates", np.asarray(mechanism.candidates)),
            epsilon=float(mechanism.epsilon),
            n=mechanism.n,
        )

    def build(self, fetch: Fetch) -> Mechanism:
        return PrivateQuantile(
            self.column, self.probability, candidates=fetch(self.candidates), epsilon=self.epsilon, n=self.n
        )


AnyMechanism: TypeAlias = Annotated[AdditiveNoiseDocument | PrivateQuantileDocument, Field(discriminator="kind")]
MECHANISM_DOCUMENTS: dict[type[Mechanism], type[AdditiveNoiseDocument] | type[PrivateQuantileDocument]] = {
    AdditiveNoise: AdditiveNoiseDocument,
    PrivateQuantile: PrivateQuantileDocument,
}


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
    values: Numbers


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

    measurements = []
    for number, measurement in enumerate(release.measurements, start=1):

        def named(label: str, array: np.ndarray, number: int = number) -> float | list[float] | ArrayFile:
            return store(f"{number}.{label}", array)

        measurements.append(_write_measurement(measurement, release.neighbours, named))
    return ReleaseDocument(
        written_by=f"noisewise {__version__}",
        n=CountDocument(value=release.n, status="unknown" if release.n is None else "public"),
        neighbours=release.neighbours,
        privacy=write_privacy(release.privacy),
        measurements=measurements,
    )


def read_document(document: ReleaseDocument, fetch: Fetch) -> Release:
    """The release of a document, with a warning where its statements and its numbers disagree."""
    if (document.n.value is None) != (document.n.status == "unknown"):
        raise ValueError(
            f"n has status {document.n.status!r} but the value {document.n.value}; they contradict each other."
        )
    measurements = []
    for number, part in enumerate(document.measurements, start=1):
        measurement = Measurement(mechanism=part.mechanism.build(fetch), value=fetch(part.values), name=part.name)
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
            f"code. Documents know the mechanisms {_names(MECHANISM_DOCUMENTS)}."
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
        values=store("values", np.atleast_1d(np.asarray(measurement.value))),
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


def _names(documents: dict[type, type]) -> str:
    return ", ".join(known.__name__ for known in documents)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, sort_keys=True))
