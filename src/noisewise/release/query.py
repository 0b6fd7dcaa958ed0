r"""What a query is: a sum over records of a row per record, and the public bounds its columns are clamped to.

A query maps one record to a row ``t(x)`` of fixed length and its exact answer is the sum of the rows. The rows, computed
by :meth:`Query.statistics`, are what engines work with; calling the query on a table of records is the data holder's side.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.tables import read_columns
from noisewise.typing import Records

Norm = Literal["l1", "l2"]
Neighbours = Literal["replace_one", "add_remove_one"]

UNIT = 2.0**-53
"""The largest relative error of one rounded operation in float64."""


def check_neighbours(neighbours: str) -> Neighbours:
    """The neighbouring relation, if it is one of the two."""
    if neighbours in ("replace_one", "add_remove_one"):
        return cast(Neighbours, neighbours)
    raise ValueError(
        f"neighbours must be 'replace_one' (n is public) or 'add_remove_one' (n is confidential); got {neighbours!r}."
    )


def check_norm(norm: str) -> Norm:
    """The norm of a sensitivity, if it is one of the two."""
    if norm in ("l1", "l2"):
        return cast(Norm, norm)
    raise ValueError(f"norm must be 'l1' (for Laplace noise) or 'l2' (for Gaussian noise); got {norm!r}.")


def positive_sensitivity(value: Any, what: str) -> float:
    """A sensitivity that was stated, if it is a positive finite number."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise ValueError(f"{what} must be positive and finite; got {value!r}.")
    return float(value)


def length(vector: np.ndarray, norm: Norm) -> float:
    """The L1 or L2 norm of a vector."""
    return math.fsum(np.abs(vector)) if norm == "l1" else math.hypot(*np.atleast_1d(vector))


def _bound(value: Any) -> float:
    try:
        if isinstance(value, str | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"Column bounds must be numbers; got {value!r}. Give public bounds, lower and upper."
        ) from None


def _interval(ends: Any) -> tuple[float, float] | None:
    if ends is None:
        return None
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        raise ValueError(
            f"rescale must be an increasing pair of numbers such as (-1, 1), or None; got {ends!r}."
        ) from None
    return low, high


class Column(eqx.Module):
    """A numeric column with public clamping bounds; ``rescale=(-1, 1)`` maps the bounds affinely to that interval.

    ``origin`` says in a few words where the bounds came from. Bounds taken from the confidential records (their
    minimum and maximum, say) are themselves a release without any privacy, and no engine can account for them.

    >>> import noisewise as nw
    >>> nw.Column(-10, 10, rescale=(-1, 1)).range
    (-1.0, 1.0)
    """

    lower: float = eqx.field(static=True, converter=_bound)
    upper: float = eqx.field(static=True, converter=_bound)
    rescale: tuple[float, float] | None = eqx.field(static=True, default=None, converter=_interval)
    origin: str = eqx.field(static=True, default="public", kw_only=True)

    def __check_init__(self) -> None:
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise ValueError(
                f"Column bounds must be finite with lower < upper; got lower={self.lower}, upper={self.upper}. "
                "Give public bounds that do not come from the confidential records."
            )
        if not math.isfinite(self.upper - self.lower):
            raise ValueError(
                f"Column bounds must lie less than 1.8e308 apart; got lower={self.lower}, upper={self.upper}. Use narrower bounds."
            )
        if self.rescale is not None and not (
            all(map(math.isfinite, self.rescale)) and self.rescale[0] < self.rescale[1]
        ):
            raise ValueError(
                f"rescale must be an increasing pair of finite numbers such as (-1, 1); got {self.rescale}."
            )
        if (
            not isinstance(self.origin, str)
            or not self.origin.strip()
            or self.origin.strip().lower() in {"data", "records", "confidential"}
        ):
            raise ValueError(
                f"origin must say in public terms where the bounds came from, such as 'public' or 'questionnaire'; got "
                f"{self.origin!r}. Bounds taken from the records themselves break the guarantee: choose them without looking."
            )

    def clamp(self, values: Array) -> Array:
        """The values clamped to the bounds and, where asked for, mapped to the ``rescale`` interval."""
        clamped = jnp.clip(values, self.lower, self.upper)
        if self.rescale is None:
            return clamped
        low, high = self.rescale
        return low + (clamped - self.lower) * ((high - low) / (self.upper - self.lower))

    @property
    def range(self) -> tuple[float, float]:
        """The interval of clamped (and mapped) values."""
        return (self.lower, self.upper) if self.rescale is None else self.rescale

    @property
    def keeps_integers(self) -> bool:
        """Whether an integer stays an integer when clamped."""
        return self.rescale is None and self.lower.is_integer() and self.upper.is_integer()


def as_numbers(value: Any) -> np.ndarray:
    """A released value as an array of float64, NaN where it is masked."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError
        return np.where(np.ma.getmaskarray(value), np.nan, array) if np.ma.isMaskedArray(value) else array.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"The released value must be made of real numbers; got {str(value)[:80]!r}.") from None


class Query(eqx.Module):
    """A sum over records of a row per record."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that the query reads."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The length of a row, and of the flattened total."""

    @property
    def integer(self) -> bool:
        """Whether every row is made of integers, whatever the records."""
        return False

    @property
    def admits_integers(self) -> bool:
        """Whether the rows of records made of integers are integers, so that integer noise makes sense."""
        return self.integer

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """A readable name for each number of the flattened total."""

    @abstractmethod
    def statistics(self, records: Records) -> Float[Array, "n size"]:
        """The rows, one for each record."""

    @abstractmethod
    def sensitivity(
        self,
        norm: Norm = "l1",
        neighbours: Neighbours = "replace_one",
        *,
        weights: np.ndarray | None = None,
    ) -> float:
        """A bound on the change of the total, in the given norm, between neighbouring tables of records.

        ``weights`` (one positive number for each number of the total) measures the change of ``weights * total``.
        """

    @abstractmethod
    def rounding(self, n: int) -> np.ndarray:
        """How far rounding can move each number of the difference of two neighbouring totals of up to ``n`` records."""

    @property
    @abstractmethod
    def counts_of_records(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The parts of the total that add up to the number of records: (a phrase, the positions)."""

    def __call__(self, records: Mapping[str, Any]) -> Any:
        """The exact total over the records, in the form in which it is published. Confidential: add noise first.

        ``records`` is a dict of arrays or a pandas, polars or Arrow table. The sum of each number is rounded once, so it
        depends neither on the order of the records nor on the machine.
        """
        return self.unflatten(self.total(read_columns(records, self.columns)))

    def total(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The exact total of columns that were read by :func:`noisewise.release.tables.read_columns`, as one vector."""
        rows = np.asarray(self.statistics({name: jnp.asarray(columns[name]) for name in self.columns}), dtype=float)
        if not np.all(np.isfinite(rows)):
            label = self.labels[int(np.argmin(np.all(np.isfinite(rows), axis=0)))]
            raise ValueError(
                f"The query's row is not finite for some record (in {label!r}); give the query a function with finite values."
            )
        return np.asarray([math.fsum(column) for column in rows.T.tolist()])

    def flatten(self, value: Any) -> np.ndarray | Array:
        """A published value as one vector."""
        if isinstance(value, jax.core.Tracer):
            return jnp.reshape(value, (self.size,))
        vector = as_numbers(value)
        if vector.shape != (self.size,) and not (self.size == 1 and vector.shape == ()):
            raise ValueError(
                f"The query releases {self.size} number(s) ({_some(self.labels)}), so its value has shape ({self.size},); "
                f"got shape {vector.shape}. Give the released numbers in that order."
            )
        return vector.reshape(-1)

    def unflatten(self, flat: np.ndarray) -> Any:
        """A vector in the published form: the inverse of :meth:`flatten`."""
        return flat


def _some(labels: tuple[str, ...]) -> str:
    return ", ".join(labels if len(labels) <= 6 else (*labels[:5], "..."))
