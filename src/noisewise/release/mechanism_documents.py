"""How mechanisms are written in a release document, and read from it.

To teach the document another mechanism, write a model with its ``kind``, ``of`` and ``build``, and add it to ``AnyMechanism`` and
``MECHANISM_DOCUMENTS``; for queries and noise laws see :mod:`noisewise.release.query_documents`. A mechanism that holds code (a
utility, a loss, a simulator) has no document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from pydantic import Field

from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.mechanisms import CensoredNoise, KNormNoise, TruncatedNoise
from noisewise.release.noise import LAWS, Noise, RandomisedResponse
from noisewise.release.query_documents import (
    QUERY_DOCUMENTS,
    AnyQuery,
    Fetch,
    NoiseDocument,
    Numbers,
    Part,
    Store,
    names_of,
    write_query,
)
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law, RecordNoise
from noisewise.release.truncated_sum import PrivateQuantile


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


def _end(value: Any) -> float | None:
    return float(value) if math.isfinite(float(value)) else None
