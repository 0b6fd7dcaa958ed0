r"""The data holder's side: exact totals, floating-point-safe noise, and the guarantee that was really bought.

**The sum.** Records are clamped to the public bounds and each number of the total is the sum of its column rounded once
(:func:`math.fsum`), so it depends neither on the order of the records nor on the machine. **The noise** is OpenDP's: for
the continuous laws its samplers return the total plus exact noise on the lattice of multiples of 2^-1074, rounded to the
nearest float64; that lattice holds every float, so OpenDP adds no relaxation of its own and its privacy map is
``sensitivity / scale`` (or half its square). Integer laws run on 64-bit integers. Noise comes from the operating system's
generator and never from a seed.

**The guarantee** counts what the rounding of float sums can add: between neighbouring tables the float totals can
differ by at most ``2 u M (operations + n)`` more than the exact ones, for a monomial of largest absolute value M and
``u = 2^-53``. This is added to the sensitivity, so the stated loss exceeds the nominal one by a relative ``1e-16 n`` or so;
counts and sums of integers are exact and pay nothing. Where n is confidential the bound takes 2^30 records instead.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from noisewise.release.document import Measurement, Release, check_counted, noise_on, total_privacy
from noisewise.release.mechanism import AdditiveNoise
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours, Query, check_neighbours
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.record_columns import RecordColumns
from noisewise.release.records import Law, RecordNoise
from noisewise.release.tables import read_columns

_LAWS = (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian)
_MANY = 2**30
_LARGEST_INTEGER = 2.0**52
_WIDEST_INTEGER_NOISE = 2.0**45
"""A total plus noise of this scale stays below 2^53, so that it is an integer of float64, up to a chance of exp(-2^7)."""
_UPWARD = 1 + 2.0**-40
"""The guarantee's own arithmetic is rounded upward by more than its rounding errors."""


def publish(
    records: Any,
    query: Query | RecordColumns | Sequence[Query | RecordColumns],
    noise: Law | Mapping[str, Law] | Sequence[Law | Mapping[str, Law]],
    *,
    n: Literal["public", "unknown"] | None = None,
    neighbours: Neighbours = "replace_one",
    names: Sequence[str] | None = None,
    delta: float | None = None,
) -> Release:
    """Publish noisy answers about confidential records, with the guarantee they were made under.

    ``records`` is a dict of arrays or a pandas, polars or Arrow table; ``query`` and ``noise`` are one of each or equally long
    lists. Under ``replace_one`` the number of records is public and part of the release unless ``n="unknown"``; under
    ``add_remove_one`` it is confidential and something must count the records. ``delta`` asks for the guarantee as
    (epsilon, delta); otherwise it is pure where all the noise is Laplace, and zCDP where it is not. There is no seed.

    ``nw.queries.Records`` publishes every record with noise on each of its values, by one law or by a law for each column. Only
    randomised response has a guarantee of its own there: numbers have no bounds, so none is stated.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 10)}, [{"x": 1}])
    >>> release = publish({"x": [1.0, 2.0, 30.0]}, query, nw.noise.Laplace.calibrated(query, epsilon=0.5))
    >>> release.n, release.privacy.measure, round(float(release.privacy.loss), 6)
    (3, 'pure', 0.5)
    """
    check_neighbours(neighbours)
    mechanisms = _pair(query, noise)
    status = _status(n, neighbours)
    if status == "unknown" and any(isinstance(mechanism, RecordNoise) for mechanism in mechanisms):
        raise ValueError(
            "A release of every record publishes how many there are; use neighbours='replace_one' and leave n out."
        )
    if isinstance(names, str):
        raise ValueError(f"names must be a list with one name for each query; got the text {names!r}.")
    if names is not None and len(names) != len(mechanisms):
        raise ValueError(f"names must have one name for each query; got {len(names)} for {len(mechanisms)}.")
    if delta is not None and not (isinstance(delta, int | float | np.number) and 0 < delta < 1):
        raise ValueError(f"delta must lie strictly between 0 and 1; got {delta!r}.")
    check_counted(mechanisms, 1 if status == "public" else None)
    for mechanism in mechanisms:
        if isinstance(mechanism, AdditiveNoise):
            mechanism.query.sensitivity(mechanism.noise.norm, neighbours)
    columns = _read(records, mechanisms)
    count = len(next(iter(columns.values())))
    if status == "unknown" and count > _MANY:
        raise ValueError(
            f"With n confidential at most {_MANY} records can be published about; got more. Make n public."
        )
    totals = [_exact(m, columns) if isinstance(m, AdditiveNoise) else exact_records(m, columns) for m in mechanisms]
    slack_count = count if status == "public" else _MANY
    parts = [
        _guarantee(m, neighbours, slack_count) if isinstance(m, AdditiveNoise) else m.privacy(neighbours)
        for m in mechanisms
    ]
    known = [part for part in parts if part is not None]
    stated = total_privacy(mechanisms, known, delta) if len(known) == len(parts) else None
    with _opendp() as dp:
        values = [
            _add_noise(dp, m.noise, total) if isinstance(m, AdditiveNoise) else add_record_noise(dp, m, total)
            for m, total in zip(mechanisms, totals, strict=True)
        ]
    measurements = [
        Measurement(mechanism=mechanism, value=value, name=None if names is None else names[j])
        for j, (mechanism, value) in enumerate(zip(mechanisms, values, strict=True))
    ]
    return Release(measurements, count if status == "public" else None, neighbours=neighbours, stated=stated)


def _pair(query: Any, noise: Any) -> list[AdditiveNoise | RecordNoise]:
    for room, given, kinds in (
        ("nw.queries", query, (Query, RecordColumns, Sequence)),
        ("nw.noise", noise, (Noise, RandomisedResponse, Mapping, Sequence)),
    ):
        if not isinstance(given, kinds) or isinstance(given, str):
            raise ValueError(f"publish needs one of {room}, or a list of them; got {given!r}.")
    queries = [query] if isinstance(query, Query | RecordColumns) else list(query)
    noises = [noise] if isinstance(noise, Noise | RandomisedResponse | Mapping) else list(noise)
    if len(queries) != len(noises) or not queries:
        raise ValueError(
            f"publish needs one noise for each query; got {len(queries)} queries and {len(noises)} noises."
        )
    for one, given in zip(queries, noises, strict=True):
        for law in given.values() if isinstance(given, Mapping) else [given]:
            allowed = (*_LAWS, RandomisedResponse) if isinstance(one, RecordColumns) else _LAWS
            if type(law) not in allowed:
                raise ValueError(
                    f"publish has no safe sampler for {type(law).__name__} noise; it has "
                    f"{', '.join(known.__name__ for known in allowed)}."
                )
            if isinstance(law, Noise) and law.discrete and np.max(np.asarray(law.scale)) > _WIDEST_INTEGER_NOISE:
                raise ValueError(
                    f"{type(law).__name__} noise of scale {np.max(np.asarray(law.scale)):.6g} does not fit 64-bit integers; use "
                    f"a scale of at most {_WIDEST_INTEGER_NOISE:.3g}, or continuous noise."
                )
    pairs = [noise_on(one, law) for one, law in zip(queries, noises, strict=True)]
    return [pair for pair in pairs if isinstance(pair, AdditiveNoise | RecordNoise)]


def _read(records: Any, mechanisms: Sequence[AdditiveNoise | RecordNoise]) -> dict[str, np.ndarray]:
    gaps = [name for m in mechanisms if isinstance(m, RecordNoise) and m.query.missing for name in m.columns]
    names = [name for m in mechanisms for name in m.columns]
    columns = read_columns(records, names, missing=True) if gaps else {}
    return columns | read_columns(records, [name for name in names if name not in gaps])


def exact_records(mechanism: RecordNoise, columns: dict[str, np.ndarray]) -> np.ndarray:
    """The exact table of a release of every record, and whether its noise can be added to it."""
    table = np.stack([columns[name] for name in mechanism.columns], axis=-1)
    for j, (name, law) in enumerate(mechanism.laws.items()):
        there = table[:, j][~np.isnan(table[:, j])]
        if isinstance(law, RandomisedResponse):
            if np.any((there != np.round(there)) | (there < 0) | (there >= law.levels)):
                raise ValueError(f"Column {name!r} must hold codes 0 to {law.levels - 1} for this randomised response.")
        elif law.discrete and np.any((there != np.round(there)) | (np.abs(there) > _LARGEST_INTEGER)):
            raise ValueError(
                f"Column {name!r} of the records is not made of integers (below 2^52), and {type(law).__name__} noise would "
                "publish its fractional part exactly; use continuous noise, or round the column first."
            )
    mechanism.check(table)
    return table


def add_record_noise(dp: Any, mechanism: RecordNoise, table: np.ndarray) -> np.ndarray:
    """The table with noise on each value of its noisy columns that is there."""
    released = table.copy()
    for j, law in enumerate(mechanism.laws.values()):
        there = ~np.isnan(table[:, j])
        if isinstance(law, RandomisedResponse):
            released[there, j] = [_respond(law, int(code)) for code in table[there, j]]
        else:
            scale = np.broadcast_to(np.asarray(law.scale), there.shape)[there]
            released[there, j] = _add_noise(dp, type(law)(scale), table[there, j]) if np.any(there) else table[there, j]
    return released


def _respond(law: RandomisedResponse, code: int) -> int:
    """A report of one code, in whole numbers from the operating system's generator: the probabilities are exact."""
    lies, out_of = float(law.flip).as_integer_ratio()
    if secrets.randbelow(out_of) >= lies:
        return code
    return (code + 1 + secrets.randbelow(law.levels - 1)) % law.levels


def _status(n: str | None, neighbours: Neighbours) -> Literal["public", "unknown"]:
    if n not in (None, "public", "unknown"):
        raise ValueError(f"n must be 'public' or 'unknown' (the records themselves say how many they are); got {n!r}.")
    if n == "public" and neighbours == "add_remove_one":
        raise ValueError(
            "Under 'add_remove_one' the number of records is confidential and cannot be public; use neighbours='replace_one', "
            "or leave n out and release a count."
        )
    return "unknown" if n == "unknown" or neighbours == "add_remove_one" else "public"


def _exact(mechanism: AdditiveNoise, columns: dict[str, np.ndarray]) -> np.ndarray:
    query = mechanism.query
    if mechanism.noise.discrete and not query.integer:
        for name in query.columns:
            if np.any(columns[name] != np.round(columns[name])):
                raise ValueError(
                    f"Column {name!r} of the records is not made of integers, but {type(mechanism.noise).__name__} noise is; "
                    "use continuous noise, or code the column as integers."
                )
    total = query.total(columns)
    if mechanism.noise.discrete and (np.any(total != np.round(total)) or np.any(np.abs(total) > _LARGEST_INTEGER)):
        raise ValueError(
            "The totals for integer noise must be integers below 2^52; use smaller bounds or continuous noise."
        )
    return total


def _guarantee(mechanism: AdditiveNoise, neighbours: Neighbours, n: int) -> Privacy:
    size = mechanism.query.size
    slack = np.zeros(size) if mechanism.noise.discrete else mechanism.query.rounding(n)
    found = mechanism.privacy_at(neighbours, slack)
    if found is None:
        raise ValueError("The query does not know its sensitivity, so nothing can be promised; give it one.")
    return Privacy(found.measure, found.loss * _UPWARD)


@contextmanager
def _opendp() -> Iterator[Any]:
    """OpenDP with its ``contrib`` samplers enabled for as long as they are needed."""
    import opendp.prelude as dp
    from opendp.mod import GLOBAL_FEATURES

    enabled = "contrib" in GLOBAL_FEATURES
    dp.enable_features("contrib")
    try:
        yield dp
    finally:
        if not enabled:
            dp.disable_features("contrib")


def sampler(dp: Any, noise: Noise, scale: float) -> Any:
    """OpenDP's measurement that adds this law, with this scale, to a vector."""
    atom = dp.atom_domain(T="i64") if noise.discrete else dp.atom_domain(T=float, nan=False)
    if noise.norm == "l1":
        metric = dp.l1_distance(T="i64" if noise.discrete else float)
        return dp.m.make_laplace(dp.vector_domain(atom), metric, scale=scale)
    return dp.m.make_gaussian(dp.vector_domain(atom), dp.l2_distance(T=float), scale=scale)


def _add_noise(dp: Any, noise: Noise, total: np.ndarray) -> np.ndarray:
    scales = np.broadcast_to(np.asarray(noise.scale), total.shape)
    released = np.empty(total.shape)
    for scale in np.unique(scales):
        at = np.flatnonzero(scales == scale)
        exact = [int(number) for number in total[at]] if noise.discrete else total[at].tolist()
        released[at] = sampler(dp, noise, float(scale))(exact)
    if not all(map(math.isfinite, released)):
        raise ValueError("The noise is so wide that the released value overflows; use a smaller scale.")
    return released
