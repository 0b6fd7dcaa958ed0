r"""Moments: sums of monomials of clamped columns, and the ones a linear regression needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.query import (
    UNIT,
    Column,
    Neighbours,
    Norm,
    Query,
    check_neighbours,
    check_norm,
    length,
    positive_sensitivity,
)
from noisewise.release.sensitivity import joint_maximum
from noisewise.typing import Records


class Moments(Query):
    """Sums of monomials of clamped columns: ``terms=[{"x": 1}, {"x": 1, "y": 1}]`` releases sum x and sum x y.

    The empty term ``{}`` is the constant 1: its sum counts the records. ``l1`` replaces the L1 sensitivity under
    ``replace_one`` by a smaller one that you can prove; a value below the largest change found by
    :meth:`joint_sensitivity` is refused.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 2)}, [{"x": 1}, {"x": 2}])
    >>> query({"x": [0.5, 1.0, 7.0]})
    array([3.5 , 5.25])
    >>> query.sensitivity("l1"), query.sensitivity("l1", "add_remove_one")
    (6.0, 6.0)
    """

    bounds: tuple[tuple[str, Column], ...] = eqx.field(static=True)
    terms: tuple[tuple[tuple[str, int], ...], ...] = eqx.field(static=True)
    l1: float | None = eqx.field(static=True, default=None)

    def __init__(
        self, columns: Mapping[str, Column], terms: Sequence[Mapping[str, int]], l1: float | None = None
    ) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(
                f"Moments needs at least one column with its bounds, as in {{'x': Column(0, 1)}}; got {columns!r}."
            )
        for name, column in columns.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"The name of a column must be a text; got {name!r}.")
            if not isinstance(column, Column):
                raise ValueError(f"Column {name!r} must be a Column with public bounds; got {column!r}.")
        if isinstance(terms, str) or not isinstance(terms, Sequence) or not terms:
            raise ValueError(f"terms must be a non-empty list such as [{{'x': 1}}, {{'x': 2}}]; got {terms!r}.")
        for term in terms:
            _check_term(term, columns)
        self.bounds = tuple((str(name), column) for name, column in columns.items())
        self.terms = tuple(tuple(sorted((str(name), int(power)) for name, power in term.items())) for term in terms)
        if not np.all(np.isfinite(self.extremes)):
            raise ValueError(
                "A monomial of Moments overflows on its bounds; use smaller powers, or rescale the columns."
            )
        if l1 is None:
            self.l1 = None
        else:
            self.l1 = positive_sensitivity(l1, "The l1 sensitivity of Moments")
            self._check_l1(self.l1)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.bounds)

    @property
    def size(self) -> int:
        return len(self.terms)

    @property
    def integer(self) -> bool:
        return all(not term for term in self.terms)

    @property
    def admits_integers(self) -> bool:
        bounds = dict(self.bounds)
        return all(bounds[name].keeps_integers for term in self.terms for name, _ in term)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(
            " ".join(name if power == 1 else f"{name}^{power}" for name, power in term) or "1" for term in self.terms
        )

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        clamped = {name: column.clamp(records[name]) for name, column in self.bounds}
        ones = jnp.ones_like(next(iter(clamped.values())))
        rows = []
        for term in self.terms:
            product = ones
            for name, power in term:
                product = product * clamped[name] ** power
            rows.append(product)
        return jnp.stack(rows, axis=-1)

    @property
    def extremes(self) -> np.ndarray:
        """The smallest and the largest value of each monomial on the box of bounds, (size, 2).

        The factors of a monomial are different columns, which vary independently: the interval product is attained.
        """
        bounds = dict(self.bounds)
        found = []
        for term in self.terms:
            low, high = 1.0, 1.0
            for name, power in term:
                with np.errstate(over="ignore"):
                    ends = [float(np.float64(end) ** power) for end in bounds[name].range]
                if power % 2 == 0 and bounds[name].range[0] < 0 < bounds[name].range[1]:
                    ends.append(0.0)
                products = [a * b for a in (low, high) for b in (min(ends), max(ends))]
                low, high = min(products), max(products)
            found.append((low, high))
        return np.asarray(found)

    def sensitivity(
        self,
        norm: Norm = "l1",
        neighbours: Neighbours = "replace_one",
        *,
        weights: np.ndarray | None = None,
    ) -> float:
        """The norm of the vector of largest changes, one for each monomial: safe, and tight for a single term.

        Under ``replace_one`` a monomial changes by at most its range, under ``add_remove_one`` by its largest absolute
        value. The monomials need not reach these together: :meth:`joint_sensitivity` searches for how far they can.
        """
        low, high = self.extremes.T
        replace = check_neighbours(neighbours) == "replace_one"
        widths = high - low if replace else np.maximum(np.abs(low), np.abs(high))
        scaled = np.ones(self.size) if weights is None else np.asarray(weights, dtype=float)
        bound = length(scaled * widths, check_norm(norm))
        if norm == "l1" and replace and self.l1 is not None:
            return self.l1 if weights is None else min(bound, float(np.max(scaled)) * self.l1)
        return bound

    def joint_sensitivity(self, norm: Norm = "l1", neighbours: Neighbours = "replace_one") -> float:
        """The largest joint change of all monomials that a search over pairs of records finds.

        It never exceeds the true sensitivity and in practice equals it, but a search is no proof: calibrate noise with
        :meth:`sensitivity`, and read from this how much room that leaves. For the moments of a regression on [-1, 1]
        the closed form is proved: see :func:`regression_moments`.
        """
        names = self.columns
        exponents = tuple(tuple(dict(term).get(name, 0) for name in names) for term in self.terms)
        ranges = tuple(column.range for _, column in self.bounds)
        return joint_maximum(exponents, ranges, check_norm(norm), check_neighbours(neighbours))

    def rounding(self, n: int) -> np.ndarray:
        largest = np.max(np.abs(self.extremes), axis=1)
        operations = np.asarray([2.0 + sum(12.0 * power for _, power in term) for term in self.terms])
        return np.where([not term for term in self.terms], 0.0, 2 * UNIT * largest * (operations + n))

    @property
    def counts_of_records(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(
            (f"number {j + 1} of the value (the constant term)", (j,)) for j, t in enumerate(self.terms) if not t
        )

    def _check_l1(self, l1: float) -> None:
        if _quadratic_on_unit_box(self) and l1 >= complete_quadratic_sensitivity(len(self.bounds)):
            return
        found = self.joint_sensitivity("l1", "replace_one")
        if l1 < found * (1 - 1e-9):
            raise ValueError(
                f"The l1 sensitivity {l1:.6g} given to Moments is too small: replacing one record can change the total by "
                f"{found:.6g}. Leave l1 out to use the safe bound {float(np.sum(np.ptp(self.extremes, axis=1))):.6g}."
            )


def complete_quadratic_sensitivity(count: int) -> float:
    r"""The L1 sensitivity, under ``replace_one``, of all monomials of degree 1 and 2 in ``count`` numbers of [-1, 1].

    Write ``a_i = |z_i - z'_i|``; then ``|z_i + z'_i| <= 2 - a_i``, so ``|z_i^2 - z'_i^2| <= a_i (2 - a_i)`` and
    ``|z_i z_j - z'_i z'_j| <= a_i + a_j - a_i a_j``. Summed over everything this is, with ``A = sum a_i``,
    ``(q + 2) A - A^2/2 - sum a_i^2 / 2 <= (q + 2) A - A^2 (q + 1) / 2q``, largest at ``A = q (q + 2)/(q + 1)``, where it is
    ``q (q + 2)^2 / (2 (q + 1))``; the pair ``z = (1, ..., 1)``, ``z' = -1/(q + 1) (1, ..., 1)`` attains it.
    """
    return count * (count + 2) ** 2 / (2 * (count + 1))


def regression_moments(
    predictors: Mapping[str, Column],
    response: Mapping[str, Column],
    *,
    sensitivity: Literal["paper", "joint", "ranges"] | None = None,
) -> Moments:
    r"""The moments a linear regression needs: x'y (intercept first), y'y, the unique entries of x'x without the constant.

    With p predictors the order is ``y; x_1 y, ..., x_p y; y^2; x_1, ..., x_p; x_1^2, x_1 x_2, ..., x_1 x_p, x_2^2, ...,
    x_p^2``. The L1 sensitivity under ``replace_one``, for columns mapped into [-1, 1]:

    - ``"paper"`` (the default there): ``p^2 + 3p + 3`` (Ju, Awan, Gong and Rao 2022, section 5), safe and loose;
    - ``"joint"``: ``(p + 1)(p + 3)^2 / (2 (p + 2))``, the exact maximum, proved in
      :func:`complete_quadratic_sensitivity` (16/3, 9.375, 14.4 for p = 1, 2, 3): the least noise;
    - ``"ranges"``: the sum of the ranges of the monomials, ``p^2 + 4p + 3``.

    Columns with any other range get the sum of the ranges: the other two values do not hold for them.

    >>> import noisewise as nw
    >>> unit = nw.Column(-10, 10, rescale=(-1, 1))
    >>> query = nw.queries.regression_moments({"x1": unit, "x2": unit}, {"y": unit})
    >>> query.labels
    ('y', 'x1 y', 'x2 y', 'y^2', 'x1', 'x2', 'x1^2', 'x1 x2', 'x2^2')
    >>> query.sensitivity("l1")
    13.0
    """
    for what, given in (("predictors", predictors), ("response", response)):
        if not isinstance(given, Mapping):
            raise ValueError(
                f"The {what} of a regression are given with their bounds, as in {{'x': Column(0, 1)}}; got {given!r}."
            )
    if len(response) != 1:
        raise ValueError(f"A regression has one response; got {tuple(response)}.")
    (target, target_column) = next(iter(response.items()))
    names = tuple(predictors)
    if not names or target in names:
        raise ValueError(f"A regression needs predictors other than its response {target!r}; got predictors {names}.")
    terms: list[dict[str, int]] = [{target: 1}]
    terms += [{name: 1, target: 1} for name in names]
    terms += [{target: 2}]
    terms += [{name: 1} for name in names]
    for i, first in enumerate(names):
        terms += [{first: 2} if other == first else {first: 1, other: 1} for other in names[i:]]
    columns = {**predictors, target: target_column}
    ranges = Moments(columns, terms)
    inside = _quadratic_on_unit_box(ranges)
    if sensitivity not in (None, "paper", "joint", "ranges"):
        raise ValueError(f"sensitivity must be 'paper', 'joint' or 'ranges'; got {sensitivity!r}.")
    if sensitivity in ("paper", "joint") and not inside:
        raise ValueError(
            f"The {sensitivity!r} sensitivity holds for columns mapped into [-1, 1]; got the ranges "
            f"{ {name: column.range for name, column in columns.items()} }. Add rescale=(-1, 1), or ask for 'ranges'."
        )
    if sensitivity == "ranges" or not inside:
        return ranges
    p = len(names)
    return Moments(
        columns, terms, l1=complete_quadratic_sensitivity(p + 1) if sensitivity == "joint" else float(p * p + 3 * p + 3)
    )


def _quadratic_on_unit_box(query: Moments) -> bool:
    """Whether the terms are distinct, of degree at most two, in columns with values in [-1, 1]."""
    inside = all(column.range[0] >= -1 and column.range[1] <= 1 for _, column in query.bounds)
    degrees = all(1 <= sum(power for _, power in term) <= 2 for term in query.terms)
    return inside and degrees and len(set(query.terms)) == len(query.terms)


def _check_term(term: Mapping[str, int], columns: Mapping[str, Column]) -> None:
    if not isinstance(term, Mapping):
        raise ValueError(f"A term of Moments is a dict of powers such as {{'x': 1, 'y': 2}}; got {term!r}.")
    unknown = [name for name in term if name not in columns]
    if unknown:
        raise ValueError(
            f"The term {dict(term)} names column(s) {', '.join(map(repr, unknown))} that have no bounds; "
            f"columns with bounds: {', '.join(map(repr, columns))}."
        )
    for name, power in term.items():
        if isinstance(power, bool) or not isinstance(power, int | np.integer) or not 1 <= power < 2**31:
            raise ValueError(f"Powers must be positive integers; got {power!r} for {name!r} in the term {dict(term)}.")
