"""The release: what was published, with the complete public description of how it was made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.moments import Moments
from noisewise.release.noise import Gaussian, Noise
from noisewise.release.privacy import Privacy, compose
from noisewise.release.query import Neighbours, Query, check_neighbours, length
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law, RecordNoise
from noisewise.typing import Key, Records

_FAR = 50.0
"""How many standard deviations of noise a released count may lie from n before the two contradict each other."""

_MOST = 2**53


class Measurement(eqx.Module):
    """One published value and the mechanism that made it: a query with added noise, or any :class:`Mechanism`.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> nw.Measurement(query, nw.noise.Laplace(2.0), [31.4]).value.tolist()
    [31.4]
    """

    mechanism: Mechanism
    value: Array
    name: str | None = eqx.field(static=True)

    def __init__(
        self,
        query: Query | RecordColumns | None = None,
        noise: Noise | RandomisedResponse | Mapping[str, Law] | None = None,
        value: Any = None,
        *,
        mechanism: Mechanism | None = None,
        name: str | None = None,
    ) -> None:
        if mechanism is None:
            if query is None or noise is None:
                raise ValueError("A Measurement needs a query and its noise, or a mechanism; one of them is missing.")
            mechanism = noise_on(query, noise)
        elif query is not None or noise is not None:
            raise ValueError("Give a Measurement either a query with its noise or a mechanism, not both.")
        elif not isinstance(mechanism, Mechanism):
            raise ValueError(f"The mechanism of a Measurement must be one of nw.mechanisms; got {mechanism!r}.")
        if value is None:
            raise ValueError("A Measurement needs the released value; got None.")
        if name is not None and (not isinstance(name, str) or "/" in name or name in ("chain", "draw")):
            raise ValueError(
                f"The name of a measurement must be a text without '/', and not chain or draw; got {name!r}."
            )
        self.mechanism = mechanism
        self.value = mechanism.check(value)
        self.name = name

    @property
    def query(self) -> Query | None:
        """The query, where the mechanism is noise added to one."""
        return self.mechanism.query if isinstance(self.mechanism, AdditiveNoise) else None

    @property
    def noise(self) -> Noise | None:
        """The noise, where the mechanism is noise added to a query."""
        return self.mechanism.noise if isinstance(self.mechanism, AdditiveNoise) else None

    @property
    def published(self) -> Any:
        """The value in the form in which it was published (for counts, a list of tables)."""
        return np.asarray(self.value) if self.query is None else self.query.unflatten(np.asarray(self.value))


class Release(eqx.Module):
    """Everything the analyst holds: the measurements, all of the same ``n`` records (``n=None``: unknown).

    ``neighbours`` is the relation under which privacy was promised and ``stated`` the promise, where one was made; what
    the engines use are the query, the noise and the values alone.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(4.0), [[61.2, 36.9]])], n=100)
    >>> print(release.privacy)
    epsilon = 0.5 (pure differential privacy)
    """

    measurements: tuple[Measurement, ...]
    stated: Privacy | None
    n: int | None = eqx.field(static=True)
    neighbours: Neighbours = eqx.field(static=True)

    def __init__(
        self,
        measurements: Sequence[Measurement],
        n: int | None = None,
        *,
        neighbours: Neighbours = "replace_one",
        stated: Privacy | None = None,
    ) -> None:
        if not isinstance(measurements, Measurement | Sequence):
            raise ValueError(f"A Release is made of a list of Measurements; got {measurements!r}.")
        self.measurements = (measurements,) if isinstance(measurements, Measurement) else tuple(measurements)
        self.n = check_n(n)
        self.neighbours = check_neighbours(neighbours)
        if stated is not None and not isinstance(stated, Privacy):
            raise ValueError(
                f"stated must be a guarantee such as release.privacy, or None; got {stated!r}. Leave it out: queries and scales say it."
            )
        self.stated = stated
        if not self.measurements:
            raise ValueError("A Release needs at least one Measurement; got none.")
        for measurement in self.measurements:
            if not isinstance(measurement, Measurement):
                raise ValueError(f"A Release is made of Measurements; got {measurement!r}.")
        names = list(self.names)
        if len(set(names)) < len(names):
            raise ValueError(f"The measurements of a release need distinct names; got {names}.")
        check_counted([m.mechanism for m in self.measurements], self.n)
        for measurement in self.measurements:
            _check_counts(measurement, self.n)
            _check_rows(measurement, self.n)

    @property
    def privacy(self) -> Privacy | None:
        """The guarantee: the stated one, or what queries, scales and composition give; ``None`` if that is unknown."""
        return self.stated if self.stated is not None else self.recomputed_privacy()

    def recomputed_privacy(self, delta: float | None = None) -> Privacy | None:
        """The guarantee that the bounds, terms and scales give, whatever was stated; with ``delta``, as (epsilon, delta)."""
        parts = [m.mechanism.privacy(self.neighbours) for m in self.measurements]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return total_privacy([m.mechanism for m in self.measurements], known, delta)

    def describe(self) -> str:
        """The release in words: what was asked, of whom, with which noise, at what price, and what came out."""
        from noisewise.release.describe import describe

        return describe(self)

    def save(self, path: str | Path, *, arrays: Literal["npy", "parquet"] = "npy", inline: int = 1000) -> Path:
        """Write the release document, JSON of format ``dp-release``; arrays longer than ``inline`` go to files beside it."""
        from noisewise.release.files import save

        return save(self, Path(path), arrays=arrays, inline=inline)

    @classmethod
    def load(cls, path: str | Path) -> Release:
        """Read a release document; warns when its stated guarantee is not the one its own numbers give."""
        from noisewise.release.files import load

        return load(Path(path))

    @classmethod
    def from_opendp(
        cls,
        measurement: Any,
        value: Any,
        columns: Sequence[str] = ("x",),
        *,
        n: int | None = None,
        query: Query | None = None,
        bounds: Mapping[str, Sequence[float]] | None = None,
        neighbours: Neighbours | None = None,
    ) -> Release:
        """What an OpenDP measurement (or its serialised form, a context query, a Polars summary) released.

        Scale, bounds, size and neighbouring relation come from the chain that ``measurement`` remembers; what it does not
        say is asked for: ``query`` for a statistic that has no name here, ``bounds`` by column for Polars sums, ``n``.

        >>> import noisewise as nw, opendp.prelude as dp
        >>> dp.enable_features("contrib")
        >>> domain = dp.vector_domain(dp.atom_domain(bounds=(0.0, 10.0), nan=False), size=50)
        >>> made = domain, dp.symmetric_distance()
        >>> made = made >> dp.t.then_sum() >> dp.m.then_laplace(20.0)
        >>> release = nw.Release.from_opendp(made, 231.7)
        >>> release.n, float(release.measurements[0].noise.scale), round(made.map(2), 9)
        (50, 20.0, 0.5)
        """
        from noisewise.release.importers.opendp import from_opendp

        return from_opendp(measurement, value, columns, n=n, query=query, bounds=bounds, neighbours=neighbours)

    @classmethod
    def from_diffprivlib(cls, mechanism: Any, value: Any, query: Query | None = None, **how: Any) -> Release:
        """What a diffprivlib mechanism made of ``query``; ``n``, ``mean=True`` for a mean, ``neighbours``."""
        from noisewise.release.importers.diffprivlib import from_diffprivlib

        return from_diffprivlib(mechanism, value, query, **how)

    @classmethod
    def from_pipelinedp(cls, outputs: Any, **how: Any) -> Release:
        """What PipelineDP put out with ``output_noise_stddev``; ``noise_kind``, ``partitions``, ``metric``, ``column``, ``bounds``."""
        from noisewise.release.importers.pipelinedp import from_pipelinedp

        return from_pipelinedp(outputs, **how)

    @classmethod
    def from_tumult(cls, noise_info: Any, value: Any, query: Query | None = None, **how: Any) -> Release:
        """What a Tumult session answered to ``query``, with the query's noise information; ``n``, ``neighbours``."""
        from noisewise.release.importers.tumult import from_tumult

        return from_tumult(noise_info, value, query, **how)

    @classmethod
    def from_google_dp(cls, value: Any, **how: Any) -> Release:
        """What Google's libraries released, by ``aggregation``, ``noise``, ``epsilon``, ``delta``, ``l0``, ``linf``, ``bounds``."""
        from noisewise.release.importers.google_dp import from_google_dp

        return from_google_dp(value, **how)

    @classmethod
    def from_census_nmf(cls, path: Any, geocodes: Sequence[str], **how: Any) -> Release:
        """Units of a census noisy measurement file; ``queries``, ``attributes``, ``level``, ``parent``, ``invariants``, ``geography``."""
        from noisewise.release.importers.census_nmf import from_census_nmf

        return from_census_nmf(path, geocodes, **how)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that any measurement reads, in order of appearance."""
        return tuple(dict.fromkeys(name for m in self.measurements for name in m.mechanism.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each measurement: its own, or m0, m1, ... by position."""
        return tuple(measurement.name or f"m{j}" for j, measurement in enumerate(self.measurements))

    @property
    def size(self) -> int:
        """The length of the statistics of all measurements together."""
        return sum(m.mechanism.size for m in self.measurements)

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        """The rows of all measurements side by side."""
        rows = [m.mechanism.statistics(records, m.value) for m in self.measurements]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=-1)

    def log_density(self, total: Float[Array, " size"]) -> Float[Array, ""]:
        """``log g(s, total)`` summed over the measurements, whose noises are independent."""
        parts = self.split(total)
        return sum(
            (m.mechanism.log_density(m.value, part) for m, part in zip(self.measurements, parts, strict=True)),
            start=jnp.zeros(()),
        )

    def simulate(self, key: Key, total: Float[Array, " size"]) -> tuple[Array, ...]:
        """A simulated release given the totals."""
        keys = jax.random.split(key, len(self.measurements))
        return tuple(
            m.mechanism.simulate(k, part) for m, k, part in zip(self.measurements, keys, self.split(total), strict=True)
        )

    def respond(self, key: Key, records: Records) -> dict[str, Array]:
        """A simulated release of these records, by measurement; empty if a mechanism cannot be simulated."""
        if not all(m.mechanism.simulates for m in self.measurements):
            return {}
        keys = jax.random.split(key, len(self.measurements))
        return {
            name: m.mechanism.respond(k, records, m.value)
            for name, m, k in zip(self.names, self.measurements, keys, strict=True)
        }

    @property
    def unnormalised(self) -> bool:
        """Whether a mechanism's density lacks a normaliser that depends on the records."""
        return any(m.mechanism.unnormalised for m in self.measurements)

    @property
    def per_record(self) -> bool:
        """Whether a released value has a part for each record."""
        return any(m.mechanism.per_record for m in self.measurements)

    def split(self, total: Array) -> list[Array]:
        """The totals of each measurement, from all of them together (last axis)."""
        ends = np.cumsum([m.mechanism.size for m in self.measurements])
        return [total[..., end - m.mechanism.size : end] for end, m in zip(ends, self.measurements, strict=True)]


def check_n(n: int | None) -> int | None:
    """The number of records: a positive integer, or ``None`` when it is unknown."""
    if n is None:
        return None
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a positive integer, or None when the number of records is unknown; got {n!r}.")
    if n > _MOST:
        raise ValueError(f"n must be at most 2^53, beyond which sums over the records lose whole numbers; got {n!r}.")
    return int(n)


def check_counted(mechanisms: Sequence[Mechanism], n: int | None) -> None:
    """When n is unknown something must count the records; only queries of other kinds are given the doubt's benefit."""
    queries = [m.query for m in mechanisms if isinstance(m, AdditiveNoise)]
    silent = len(queries) == len(mechanisms) and all(
        isinstance(query, Moments) and not query.counts_of_records for query in queries
    )
    if n is None and silent:
        raise ValueError(
            "The number of records is unknown (n=None) and no measurement counts them; give n if it is public, or release "
            "a count as well, such as the empty term {} of Moments."
        )


def total_privacy(mechanisms: Sequence[Mechanism], parts: Sequence[Privacy], delta: float | None) -> Privacy:
    """The parts composed and, with ``delta``, as (epsilon, delta).

    Two routes are valid and the cheaper is taken: everything as zCDP and then converted, or the pure losses added to the
    converted loss of the rest. Where all that is converted is continuous Gaussian the conversion is exact.
    """
    whole = compose(parts)
    if delta is None or whole.measure == "approximate":
        return whole
    rest = [(m, part) for m, part in zip(mechanisms, parts, strict=True) if part.measure != "pure"]
    gaussian = all(isinstance(m, AdditiveNoise) and type(m.noise) is Gaussian for m, _ in rest)
    if not rest:
        return whole.approximate(delta)
    pure = math.fsum(float(part.loss) for part in parts if part.measure == "pure")
    converted = compose([part for _, part in rest]).approximate(delta, gaussian=gaussian)
    apart = Privacy("approximate", pure + float(converted.loss), delta)
    together = whole.approximate(delta, gaussian=gaussian and len(rest) == len(parts))
    return min(apart, together, key=lambda found: float(found.loss))


def noise_on(query: Query | RecordColumns, noise: Law | Mapping[str, Law]) -> Mechanism:
    """The mechanism of noise on a query, or on every record."""
    if isinstance(query, RecordColumns):
        return RecordNoise(query, noise)
    if isinstance(noise, RandomisedResponse):
        raise ValueError(
            "Randomised response is noise on every record: its query is nw.queries.Records(columns=(...))."
        )
    if isinstance(noise, Mapping):
        raise ValueError("A law for each column is for nw.queries.Records; give this query one noise law.")
    return AdditiveNoise(query, _flat_scale(query, noise))


def _flat_scale(query: Query, noise: Noise) -> Noise:
    """The noise with its scales in a row, where they came in the form of the query's value (a table of counts)."""
    if not (isinstance(query, Query) and isinstance(noise, Noise)) or np.ndim(noise.scale) < 2:
        return noise
    try:
        flat = query.flatten(noise.scale)
    except ValueError:
        return noise
    return eqx.tree_at(lambda law: law.scale, noise, jnp.asarray(flat))


def _check_rows(measurement: Measurement, n: int | None) -> None:
    rows = measurement.value.shape[0] if measurement.mechanism.per_record else n
    if rows != n:
        raise ValueError(f"The release has n={n}, but its table of records has {rows} rows; give n={rows}.")


def _check_counts(measurement: Measurement, n: int | None) -> None:
    query, noise, value = measurement.query, measurement.noise, measurement.value
    if query is None or noise is None or n is None or isinstance(value, jax.core.Tracer):
        return
    if isinstance(noise.scale, jax.core.Tracer):
        return
    scale = np.broadcast_to(np.asarray(noise.scale), (query.size,))
    for phrase, positions in query.counts_of_records:
        at = list(positions)
        counted = float(np.sum(np.asarray(value)[at]))
        # no law here has a variance above 2 scale^2
        allowed = _FAR * (np.sqrt(2) * length(scale[at], "l2") + np.max(scale[at]))
        if abs(counted - n) > allowed:
            raise ValueError(
                f"n={n} contradicts the released counts: {phrase} adds up to {counted:.6g}, which noise of scale "
                f"{np.max(scale[at]):.6g} cannot explain. Correct n, the scale or the values."
            )
