"""How queries, noise laws and mechanisms are written in a release document, and read from it.

To teach the document another query, write a model with its ``kind``, ``of`` and ``build``, and add it to ``AnyQuery`` and
``QUERY_DOCUMENTS``; another mechanism likewise in ``AnyMechanism`` and ``MECHANISM_DOCUMENTS``; a noise law needs only its
name in ``LawName``. A mechanism that holds code (a utility, a loss, a simulator) has no document.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.mechanisms import CensoredNoise, KNormNoise, TruncatedNoise
from noisewise.release.noise import LAWS, Noise, RandomisedResponse
from noisewise.release.queries import Column, Counts, Moments, Query
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law, RecordNoise
from noisewise.release.truncated_sum import PrivateQuantile, TruncatedSum


class Part(BaseModel):
    """A part of the document: nothing unknown, nothing converted, nothing infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class ArrayFile(Part):
    """Numbers kept in a file beside the document, with the SHA-256 of its bytes."""

    file: str = Field(description="A plain file name, in the folder of the document.")
    encoding: Literal["npy", "parquet"]
    size: int = Field(ge=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class TableFile(Part):
    """A table kept in a Parquet file beside the document, a column by name, with the SHA-256 of its bytes."""

    file: str = Field(description="A plain file name, in the folder of the document.")
    encoding: Literal["parquet"] = "parquet"
    columns: list[str] = Field(min_length=1)
    rows: int = Field(ge=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


Numbers: TypeAlias = float | list[float] | ArrayFile
Stored: TypeAlias = float | list[float] | list[float | None] | ArrayFile | TableFile
Fetch: TypeAlias = Callable[[Stored], np.ndarray]


class Store(Protocol):
    """What becomes of numbers on writing: they stay in place, or go to a file; a table says the names of its columns."""

    def __call__(self, name: str, array: np.ndarray, columns: Sequence[str] | None = None) -> Any: ...


def in_place(name: str, array: np.ndarray, columns: Sequence[str] | None = None) -> Any:
    """Everything stays in the document; a missing value is null, and a table is read row by row."""
    if array.ndim == 0:
        return float(array)
    return [None if math.isnan(number) else number for number in np.ravel(array).tolist()]


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


def write_query(query: Query) -> MomentsDocument | CountsDocument | TruncatedSumDocument:
    """The document of a query, if it holds no code."""
    document = QUERY_DOCUMENTS.get(type(query))
    if document is None:
        raise ValueError(
            f"A release with a {type(query).__name__} query cannot be written: a document holds no code. Documents know the "
            f"queries {names_of(QUERY_DOCUMENTS)}."
        )
    return document.of(query)


class MechanismPart(Part):
    """A mechanism: by default its released numbers are one vector."""

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """The released numbers, read one after another, in the mechanism's shape."""
        return values

    @property
    def table(self) -> Sequence[str] | None:
        """The columns of the released table, where the value is one."""
        return None


class AdditiveNoiseDocument(MechanismPart):
    """Independent noise added to the total of a query."""

    kind: Literal["additive_noise"] = "additive_noise"
    query: AnyQuery
    noise: NoiseDocument

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> AdditiveNoiseDocument:
        assert isinstance(mechanism, AdditiveNoise)
        if type(mechanism.query) not in QUERY_DOCUMENTS or mechanism.noise.name not in LAWS:
            raise ValueError(
                f"A release with a {type(mechanism.query).__name__} query and {type(mechanism.noise).__name__} noise cannot be "
                f"written: a document holds no code. Documents know the queries {names_of(QUERY_DOCUMENTS)} and the laws "
                f"{', '.join(LAWS)}."
            )
        return cls(query=write_query(mechanism.query), noise=NoiseDocument.of(mechanism.noise, store))

    def build(self, fetch: Fetch) -> Mechanism:
        return AdditiveNoise(self.query.build(), self.noise.build(fetch))


class KNormNoiseDocument(MechanismPart):
    """Noise with density proportional to ``exp(-norm / scale)`` added to the total of a query."""

    kind: Literal["k_norm_noise"] = "k_norm_noise"
    query: AnyQuery
    ball: Literal["l1", "l2", "linf"]
    scale: float = Field(gt=0)

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> KNormNoiseDocument:
        assert isinstance(mechanism, KNormNoise)
        return cls(query=write_query(mechanism.query), ball=mechanism.ball, scale=float(mechanism.scale))

    def build(self, fetch: Fetch) -> Mechanism:
        return KNormNoise(self.query.build(), self.scale, self.ball)


class TruncatedNoiseDocument(MechanismPart):
    """Noise drawn again until every released number fell between the ends (``null``: no end on that side)."""

    kind: Literal["truncated_noise"] = "truncated_noise"
    query: AnyQuery
    noise: NoiseDocument
    lower: float | None = None
    upper: float | None = None

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> TruncatedNoiseDocument:
        assert isinstance(mechanism, TruncatedNoise)
        return cls(
            query=write_query(mechanism.query),
            noise=NoiseDocument.of(mechanism.noise, store),
            lower=_end(mechanism.lower),
            upper=_end(mechanism.upper),
        )

    def build(self, fetch: Fetch) -> Mechanism:
        return TruncatedNoise(self.query.build(), self.noise.build(fetch), lower=self.lower, upper=self.upper)


class CensoredNoiseDocument(MechanismPart):
    """Noise, then rounding to multiples of ``rounding``, then clipping to the ends (``null``: not done)."""

    kind: Literal["censored_noise"] = "censored_noise"
    query: AnyQuery
    noise: NoiseDocument
    lower: float | None = None
    upper: float | None = None
    rounding: float | None = Field(default=None, gt=0)

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> CensoredNoiseDocument:
        assert isinstance(mechanism, CensoredNoise)
        return cls(
            query=write_query(mechanism.query),
            noise=NoiseDocument.of(mechanism.noise, store),
            lower=_end(mechanism.lower),
            upper=_end(mechanism.upper),
            rounding=float(mechanism.rounding) or None,
        )

    def build(self, fetch: Fetch) -> Mechanism:
        return CensoredNoise(
            self.query.build(),
            self.noise.build(fetch),
            lower=self.lower,
            upper=self.upper,
            rounding=self.rounding,
        )


class PrivateQuantileDocument(MechanismPart):
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


class RecordsDocument(Part):
    """Columns of every record, the public ones last; the values are the rows of the table one after another."""

    kind: Literal["records"] = "records"
    columns: list[str]
    public: list[str] = Field(default_factory=list)
    missing: bool = Field(default=False, description="Whether values may be missing; which ones are is public.")


class RandomisedResponseDocument(Part):
    """Codes 0 to ``levels - 1`` reported truly with probability ``1 - flip``, else as one of the others."""

    law: Literal["randomised_response"] = "randomised_response"
    flip: float = Field(gt=0, lt=1)
    levels: int = Field(ge=2)


AnyLaw: TypeAlias = Annotated[NoiseDocument | RandomisedResponseDocument, Field(discriminator="law")]


class RecordNoiseDocument(MechanismPart):
    """Independent noise on columns of every record.

    One law, whose scale is one number, one a column, or one a cell, row by row; or a law for each column, whose scale is one
    number or one a record.
    """

    kind: Literal["record_noise"] = "record_noise"
    query: RecordsDocument
    noise: AnyLaw | list[AnyLaw]

    @classmethod
    def of(cls, mechanism: Mechanism, store: Store) -> RecordNoiseDocument:
        assert isinstance(mechanism, RecordNoise)
        asked, law = mechanism.query, mechanism.noise
        query = RecordsDocument(columns=list(asked.columns), public=list(asked.public), missing=asked.missing)
        if isinstance(law, tuple):
            laws = [_write_law(one, f"scale.{name}", store) for name, one in zip(asked.columns, law, strict=True)]
            return cls(query=query, noise=laws)
        if isinstance(law, Noise) and law.scale.ndim >= 2:
            law = type(law)(jnp.ravel(jnp.broadcast_to(law.scale, (law.scale.shape[0], len(asked.columns)))))
        return cls(query=query, noise=_write_law(law, "scale", store))

    def build(self, fetch: Fetch) -> Mechanism:
        query = RecordColumns(self.query.columns, self.query.public, missing=self.query.missing)
        if isinstance(self.noise, list):
            laws = tuple(_read_law(law, fetch) for law in self.noise)
            if len(laws) != len(query.columns):
                raise ValueError(f"A table with {len(query.columns)} noisy columns has {len(laws)} laws of noise.")
            return RecordNoise(query, laws)
        law, width = _read_law(self.noise, fetch), len(query.columns)
        if isinstance(law, Noise) and law.scale.size > width and width:
            if law.scale.size % width:
                raise ValueError(f"The {law.scale.size} noise scales do not fill the columns {query.columns}.")
            law = type(law)(law.scale.reshape(-1, width))
        return RecordNoise(query, law)

    @property
    def table(self) -> Sequence[str]:
        return [*self.query.columns, *self.query.public]

    def shaped(self, values: np.ndarray) -> np.ndarray:
        width = len(self.table)
        if values.size % width:
            raise ValueError(f"A table of the columns {self.table} cannot hold {values.size} numbers.")
        return values.reshape(-1, width)


def _write_law(law: Law, name: str, store: Store) -> NoiseDocument | RandomisedResponseDocument:
    if isinstance(law, RandomisedResponse):
        return RandomisedResponseDocument(flip=float(law.flip), levels=law.levels)
    known: Any = law.name
    return NoiseDocument(law=known, scale=store(name, np.asarray(law.scale)))


def _read_law(law: NoiseDocument | RandomisedResponseDocument, fetch: Fetch) -> Law:
    return RandomisedResponse(law.flip, law.levels) if isinstance(law, RandomisedResponseDocument) else law.build(fetch)


AnyMechanism: TypeAlias = Annotated[
    AdditiveNoiseDocument
    | KNormNoiseDocument
    | TruncatedNoiseDocument
    | CensoredNoiseDocument
    | RecordNoiseDocument
    | PrivateQuantileDocument,
    Field(discriminator="kind"),
]
MECHANISM_DOCUMENTS: dict[type[Mechanism], Any] = {
    AdditiveNoise: AdditiveNoiseDocument,
    KNormNoise: KNormNoiseDocument,
    TruncatedNoise: TruncatedNoiseDocument,
    CensoredNoise: CensoredNoiseDocument,
    RecordNoise: RecordNoiseDocument,
    PrivateQuantile: PrivateQuantileDocument,
}
HOLDING_CODE = ("exponential", "objective_perturbation", "k_norm_gradient")
"""Mechanisms that the library knows and a document cannot hold, because a part of them is a function."""


def names_of(documents: dict[type, Any]) -> str:
    """The names of what documents know."""
    return ", ".join(known.__name__ for known in documents)


def _end(value: Any) -> float | None:
    return float(value) if math.isfinite(float(value)) else None
