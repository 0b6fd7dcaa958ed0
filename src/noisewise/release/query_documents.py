"""How queries and noise laws are written in a release document, and read from it, and where long numbers go.

To teach the document another query, write a model with its ``kind``, ``of`` and ``build``, and add it to ``AnyQuery`` and
``QUERY_DOCUMENTS``; a noise law needs only its name in ``LawName``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from noisewise.release.noise import LAWS, Noise
from noisewise.release.queries import Column, Counts, Moments, Query
from noisewise.release.truncated_sum import TruncatedSum


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


def names_of(documents: dict[type, Any]) -> str:
    """The names of what documents know."""
    return ", ".join(known.__name__ for known in documents)
