r"""Truncated sums for columns without bounds, and bounds chosen privately.

A record outside public bounds [a, b] contributes nothing at all (Bernstein and Sheldon 2018, section 3.3), where
:class:`~noisewise.release.moments.Moments` would move it to the bound: the row is ``t(x) 1[a <= x <= b]``. Replacing one record
moves ``t_j`` between two values of ``{0} U t_j([a, b])``, so with ``low_j <= t_j <= high_j`` on [a, b] by at most

    max(high_j, 0) - min(low_j, 0) = max(max |t_j|, high_j - low_j).

:class:`PrivateQuantile` is the exponential mechanism over a public list of candidate bounds (Smith 2011), with the utility
``-|#{x < c} - p n|`` of candidate c for the p-quantile; replacing one record moves every utility by at most one, so the
probabilities ``exp(epsilon utility / 2)`` give epsilon-differential privacy. The utilities depend on the records through the
counts ``#{x < c}`` alone, so the choice is a record-additive mechanism and a measurement of the release like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.noise import positive_scale
from noisewise.release.privacy import Privacy
from noisewise.release.query import UNIT, Neighbours, Norm, Query, check_neighbours, check_norm, length
from noisewise.release.tables import read_columns
from noisewise.typing import Key, Records

Statistic = Callable[[Array], Array]

STATISTICS: dict[str, Statistic] = {
    "1": jnp.ones_like,
    "x": lambda x: x,
    "x^2": jnp.square,
    "log x": jnp.log,
}
_OPERATIONS = 12.0


class TruncatedSum(Query):
    """Sums of statistics of the records with ``lower <= x <= upper``; the others count for nothing.

    ``statistics`` is one or more of ``"1"`` (how many records are inside), ``"x"``, ``"x^2"`` and ``"log x"``, or a JAX function of an
    array of x that returns one array of the same shape; for a function give ``ranges``, the smallest and largest value
    it takes on [lower, upper], from which the sensitivity follows. ``origin`` says where the bounds came from.

    >>> import noisewise as nw
    >>> from noisewise.release.truncated_sum import TruncatedSum
    >>> query = TruncatedSum("x", 1.0, 5.0, statistics=("x", "log x"))
    >>> query({"x": [0.5, 1.0, 2.0, 7.0]}).round(4)
    array([3.    , 0.6931])
    >>> round(query.sensitivity("l1"), 4)
    6.6094
    """

    column: str = eqx.field(static=True)
    lower: float = eqx.field(static=True)
    upper: float = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    function: Statistic | None = eqx.field(static=True)
    given: tuple[float, float] | None = eqx.field(static=True)
    origin: str = eqx.field(static=True)

    def __init__(
        self,
        column: str = "x",
        lower: float = -math.inf,
        upper: float = math.inf,
        statistics: str | Sequence[str] | Statistic = "x",
        *,
        ranges: tuple[float, float] | None = None,
        origin: str = "public",
    ) -> None:
        ends = _pair((lower, upper))
        if ends is None or not ends[0] < ends[1]:
            raise ValueError(
                f"TruncatedSum needs finite public bounds with lower < upper; got lower={lower!r}, upper={upper!r}. Give bounds that "
                "do not come from the confidential records, or choose them with private_bounds."
            )
        if not isinstance(column, str) or not column:
            raise ValueError(f"column must be the name of a column; got {column!r}.")
        if (
            not isinstance(origin, str)
            or not origin.strip()
            or origin.strip().lower() in {"data", "records", "confidential"}
        ):
            raise ValueError(f"origin must say in public terms where the bounds came from; got {origin!r}.")
        self.column, (self.lower, self.upper), self.origin = column, ends, origin
        self.function = statistics if callable(statistics) else None
        if callable(statistics):
            self.names = ("t(x)",)
        elif isinstance(statistics, str):
            self.names = (statistics,)
        else:
            self.names = tuple(statistics) if isinstance(statistics, Sequence) else ()
        self.given = _pair(ranges)
        self._check(statistics, ranges)

    def _check(self, statistics: object, ranges: object) -> None:
        if self.function is None:
            unknown = [name for name in self.names if not isinstance(name, str) or name not in STATISTICS]
            if unknown or not self.names or len(set(self.names)) < len(self.names):
                raise ValueError(
                    f"statistics must be distinct names among {', '.join(map(repr, STATISTICS))}, or a function; got {statistics!r}."
                )
            if ranges is not None:
                raise ValueError(
                    "ranges belong to a statistic that is a function; those of named statistics are known."
                )
            if "log x" in self.names and self.lower <= 0:
                raise ValueError(f"The statistic 'log x' needs a positive lower bound; got lower={self.lower}.")
        elif ranges is not None and (self.given is None or self.given[0] > self.given[1]):
            raise ValueError(f"ranges must be the smallest and the largest value of the statistic; got {ranges!r}.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def integer(self) -> bool:
        return self.names == ("1",)

    @property
    def admits_integers(self) -> bool:
        return all(name in ("1", "x", "x^2") for name in self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"{name.replace('x', self.column)} inside" for name in self.names)

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        x = jnp.asarray(records[self.column], dtype=float)
        inside = (x >= self.lower) & (x <= self.upper)
        safe = jnp.where(inside, x, self.upper)
        rows = [self.function(safe)] if self.function is not None else [STATISTICS[name](safe) for name in self.names]
        return jnp.stack([jnp.where(inside, row, 0.0) for row in rows], axis=-1)

    def total(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The exact sums; values of a function outside its stated ``ranges`` are refused."""
        if self.function is not None and self.given is not None:
            rows = np.asarray(self.statistics({self.column: jnp.asarray(columns[self.column])}))
            low, high = self.extremes[:, 0].min(), self.extremes[:, 1].max()
            if np.any((rows < low) | (rows > high)):
                raise ValueError(
                    f"The statistic of a TruncatedSum left its stated ranges {self.given} on the records; correct ranges."
                )
        return super().total(columns)

    @property
    def extremes(self) -> np.ndarray:
        """The smallest and the largest number that a record can contribute, (size, 2); zero is always among the numbers."""
        if self.function is not None:
            if self.given is None:
                raise ValueError(
                    "The sensitivity of this TruncatedSum is unknown: give ranges=(smallest, largest) of its function on the bounds."
                )
            found = [self.given]
        else:
            ends = np.asarray([self.lower, self.upper])
            found = []
            for name in self.names:
                values = [float(value) for value in np.asarray(STATISTICS[name](jnp.asarray(ends)))]
                found.append((min(values), max(values)))
        return np.asarray([(min(low, 0.0), max(high, 0.0)) for low, high in found])

    def sensitivity(
        self,
        norm: Norm = "l1",
        neighbours: Neighbours = "replace_one",
        *,
        weights: np.ndarray | None = None,
    ) -> float:
        """The norm of the largest changes, one for each statistic."""
        low, high = self.extremes.T
        change = high - low if check_neighbours(neighbours) == "replace_one" else np.maximum(-low, high)
        return length(change if weights is None else np.asarray(weights) * change, check_norm(norm))

    def rounding(self, n: int) -> np.ndarray:
        largest = np.max(np.abs(self.extremes), axis=1)
        exact = np.asarray([name == "1" for name in self.names])
        return np.where(exact, 0.0, 2 * UNIT * largest * (_OPERATIONS + n))

    @property
    def counts_of_records(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return ()


def _pair(values: object) -> tuple[float, float] | None:
    """Two finite numbers, if that is what they are."""
    if not isinstance(values, Sequence | np.ndarray | Array) or len(values) != 2:
        return None
    ends = [np.asarray(value) for value in values]
    if not all(end.shape == () and end.dtype.kind in "iuf" and np.isfinite(end) for end in ends):
        return None
    return float(ends[0]), float(ends[1])


class PrivateQuantile(Mechanism):
    """A quantile of a column, chosen among public candidates by the exponential mechanism; the value is the chosen candidate.

    >>> from noisewise.release.truncated_sum import PrivateQuantile
    >>> chosen = PrivateQuantile("x", 0.5, candidates=[0.0, 1.0, 2.0, 3.0], epsilon=1.0, n=3)
    >>> total = chosen.statistics({"x": jnp.asarray([0.5, 1.5, 1.7])}, jnp.asarray([1.0])).sum(axis=0)
    >>> jnp.exp(jnp.stack([chosen.log_density(jnp.asarray([c]), total) for c in (0.0, 1.0, 2.0, 3.0)])).round(4).tolist()
    [0.2151, 0.3547, 0.2151, 0.2151]
    """

    candidates: Float[Array, " candidates"]
    probability: Float[Array, ""]
    epsilon: Float[Array, ""]
    column: str = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self, column: str, probability: ArrayLike, *, candidates: ArrayLike, epsilon: ArrayLike, n: int
    ) -> None:
        values = np.asarray(candidates)
        if (
            values.dtype.kind not in "iuf"
            or values.ndim != 1
            or values.size < 2
            or not np.all(np.isfinite(values))
            or np.any(np.diff(values) <= 0)
        ):
            raise ValueError(f"candidates must be two or more finite numbers in increasing order; got {candidates!r}.")
        chance = np.asarray(probability)
        if chance.dtype.kind not in "iuf" or chance.shape != () or not 0 <= chance <= 1:
            raise ValueError(f"The probability of a quantile must lie in [0, 1]; got {probability!r}.")
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be the public number of records, a positive integer; got {n!r}.")
        self.candidates = jnp.asarray(values, dtype=float)
        self.probability = jnp.asarray(probability, dtype=float)
        self.epsilon = positive_scale(epsilon, "epsilon")
        self.column, self.n = column, int(n)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def size(self) -> int:
        return int(self.candidates.size)

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return (jnp.asarray(records[self.column])[:, None] < self.candidates).astype(float)

    def log_probabilities(self, total: Float[Array, " size"]) -> Float[Array, " size"]:
        """The log probability of each candidate, given how many records lie below each."""
        return jax.nn.log_softmax(-0.5 * self.epsilon * jnp.abs(total - self.probability * self.n))

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        chosen = self.candidates == jnp.reshape(released, ())
        return jnp.max(jnp.where(chosen, self.log_probabilities(total), -jnp.inf))

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        return self.candidates[jax.random.categorical(key, self.log_probabilities(total))][None]

    def check(self, value: Any) -> Array:
        array = super().check(np.reshape(np.asarray(value, dtype=float), (-1,)))
        if array.shape != (1,) or not np.any(np.asarray(self.candidates) == np.asarray(array)):
            raise ValueError(f"The value of a PrivateQuantile must be one of its candidates; got {value!r}.")
        return array

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """``epsilon`` under ``replace_one``; unknown under ``add_remove_one``, where n is confidential."""
        return Privacy("pure", self.epsilon) if check_neighbours(neighbours) == "replace_one" else None


class Bounds(NamedTuple):
    """Bounds that were chosen privately, and the measurements that say so: put them into the release."""

    lower: float
    upper: float
    measurements: tuple[Any, ...]


def private_bounds(
    records: Any,
    column: str,
    *,
    candidates: ArrayLike,
    epsilon: float,
    quantiles: tuple[float, float] = (0.025, 0.975),
) -> Bounds:
    """Choose truncation bounds for ``epsilon`` in all, half for each quantile; the data holder's side, without a seed.

    ``candidates`` is a public increasing list. The choice is made by OpenDP's exponential mechanism (Gumbel noise on
    exact integer scores). The measurements returned belong in the release, whose price then counts the choice.

    >>> import numpy as np
    >>> import noisewise as nw
    >>> waits = {"x": np.linspace(0.01, 3, 2000)}
    >>> bounds = private_bounds(waits, "x", candidates=np.linspace(0, 10, 101), epsilon=2.0)
    >>> bounds.lower < bounds.upper, len(bounds.measurements)
    (True, 2)
    """
    from noisewise.release.document import Measurement

    values = read_columns(records, (column,))[column]
    ends = _pair(quantiles)
    if ends is None or not 0 <= ends[0] < ends[1] <= 1:
        raise ValueError(f"quantiles must be two increasing probabilities; got {quantiles!r}.")
    price = positive_scale(epsilon, "epsilon")
    if price.shape != ():
        raise ValueError(f"epsilon must be one number, the budget of both quantiles; got {epsilon!r}.")
    choices = [
        PrivateQuantile(column, probability, candidates=candidates, epsilon=price / 2, n=len(values))
        for probability in ends
    ]
    lower, upper = (_choose(choice, values) for choice in choices)
    if not lower < upper:
        raise ValueError(
            f"The private quantiles came out in the wrong order or equal ({lower:g}, {upper:g}), and their budget is spent; they need "
            "a larger epsilon, more records, or coarser candidates. Do not publish bounds that were chosen another way."
        )
    measurements = tuple(
        Measurement(mechanism=choice, value=[value], name=f"{column}_{end}_bound")
        for choice, value, end in zip(choices, (lower, upper), ("lower", "upper"), strict=True)
    )
    return Bounds(lower, upper, measurements)


def _choose(choice: PrivateQuantile, values: np.ndarray) -> float:
    """One draw of the exponential mechanism, by OpenDP, on integer scores ``|1000 #{x < c} - round(1000 p) n|``."""
    from noisewise.release.publish import _opendp

    parts = 1000
    probability = float(choice.probability)
    if abs(probability * parts - round(probability * parts)) > 1e-9:
        raise ValueError(f"The probability of a quantile must be a multiple of 0.001; got {probability!r}.")
    candidates = np.asarray(choice.candidates)
    counts = np.searchsorted(np.sort(values), candidates, side="left")
    scores = [abs(parts * int(count) - round(probability * parts) * len(values)) for count in counts]
    with _opendp() as dp:
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
        # a record moves a score by at most `parts`; under this divergence the noise is Gumbel, so that P(c) is proportional to
        # exp(-score / scale), the law of the document (under max_divergence it would be permute-and-flip, another law)
        divergence = dp.zero_concentrated_divergence()
        mechanism = dp.m.make_noisy_max(*space, divergence, scale=2 * parts / float(choice.epsilon), negate=True)
        return float(candidates[mechanism(scores)])
