"""Truths to calibrate against: parameters from the prior, records from the model, a release from the mechanisms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.choose import makes_integers
from noisewise.engines.resizing import INCLUDED
from noisewise.engines.surrogate import surrogate_log_likelihood
from noisewise.models.base import Model
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Measurement, Release, check_n, noise_on
from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.settings import check_seed
from noisewise.typing import Key, Records, Theta

_RECORDS = 256
TRUTH, TIES, INNOVATIONS, BUILD, CLEAR = (2**32 - 10 - j for j in range(5))
"""Parts of a seed: each use of randomness folds in its own number, far from those of the chains."""

Values = tuple[Array, ...]


class Simulated(NamedTuple):
    """A simulated release with the truth behind it: its parameters and its confidential records."""

    release: Release
    theta: Theta
    records: Records


class Truths(NamedTuple):
    """Replicates of (theta, records, released values), the replicates along the first axis; records are ``{}`` if unknown."""

    theta: Theta
    records: Records
    values: Values


def simulate(
    model: Model,
    measurements: Sequence[tuple[Any, Any] | Mechanism],
    *,
    n: int | None,
    truth: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
) -> Simulated:
    """Simulate a release before there is any data: theta from the prior, n records from the model, noise from the design.

    ``measurements`` is the design: pairs (query, noise), or mechanisms. Parameters named in ``truth`` take the value given
    there instead of one from the prior. The noise comes from a seed, so a simulated release is for planning, never
    for publishing.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> made = nw.calibration.simulate(
    ...     nw.models.Bernoulli(), [(query, nw.noise.Laplace(2.0))], n=50, truth={"p": 0.25}, random_seed=3
    ... )
    >>> made.release.n, float(made.theta["p"])
    (50, 0.25)
    """
    release, made = draw_design(model, measurements, n, 1, check_seed(random_seed), truth)
    return Simulated(release, *jax.tree.map(lambda leaf: leaf[0], (made.theta, made.records)))


def draw_design(
    model: Model,
    measurements: Sequence[tuple[Any, Any] | Mechanism],
    n: int | None,
    replicates: int,
    seed: int,
    truth: Mapping[str, Any] | None,
) -> tuple[Release, Truths]:
    """Replicates of a design, and the first of them as a release."""
    parts = tuple(_mechanism(part) for part in measurements)
    if not parts:
        raise ValueError("A design needs at least one measurement, a pair (query, noise) or a mechanism; got none.")
    places = tuple(jnp.zeros(getattr(part, "dimension", 1)) for part in parts)
    made = _draw_all(model, parts, places, check_n(n), replicates, seed, truth)
    for part, values in zip(parts, made.values, strict=True):
        if isinstance(part, AdditiveNoise) and part.noise.discrete and not _whole(model, part, values):
            raise ValueError(
                f"{type(part.noise).__name__} noise is for whole numbers, and the totals of this query are not whole under the "
                "model; use a continuous law, or a query that counts."
            )
    shown = [Measurement(mechanism=part, value=value[0]) for part, value in zip(parts, made.values, strict=True)]
    return Release(shown, n), made


def _whole(model: Model, part: AdditiveNoise, values: Array) -> bool:
    """Whether totals are integers; clamped records may be by chance, so the model is asked too."""
    made = part.query.integer or all(makes_integers(model, name) for name in part.columns)
    return made and bool(np.all(np.round(values) == values))


def draw_truths(
    model: Model, release: Release, replicates: int, seed: int, truth: Mapping[str, Any] | None = None
) -> Truths:
    """Replicates of the design that ``release`` shows (its values are not looked at); each depends on the seed and its number."""
    mechanisms = tuple(m.mechanism for m in release.measurements)
    places = tuple(m.value for m in release.measurements)
    return _draw_all(model, mechanisms, places, release.n, replicates, seed, truth)


def _draw_all(
    model: Model,
    mechanisms: tuple[Mechanism, ...],
    places: Values,
    n: int | None,
    replicates: int,
    seed: int,
    truth: Mapping[str, Any] | None,
) -> Truths:
    check_model(model, n)
    unknown = sorted({column for part in mechanisms for column in part.columns} - set(model.columns))
    if unknown:
        raise ValueError(
            f"The release reads {', '.join(map(repr, unknown))}, which records of the model do not have; its columns are "
            f"{list(model.columns)}. Rename the one or the other."
        )
    silent = [type(mechanism).__name__ for mechanism in mechanisms if not mechanism.simulates]
    if silent:
        raise ValueError(f"{', '.join(silent)} cannot be simulated, so there are no replicates; give it a simulator.")
    key = jax.random.fold_in(jax.random.key(seed), TRUTH)
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(replicates))
    return _draw_many(model, mechanisms, places, n, keys, fixed_truth(model, truth))


@eqx.filter_jit
def _draw_many(
    model: Model, mechanisms: tuple[Mechanism, ...], places: Values, n: int | None, keys: Key, fixed: Theta
) -> Truths:
    return jax.vmap(lambda key: _draw(model, mechanisms, places, n, key, fixed))(keys)


def _draw(
    model: Model, mechanisms: tuple[Mechanism, ...], places: Values, n: int | None, key: Key, fixed: Theta
) -> Truths:
    """One truth. ``places`` are released values of the right shape, which say where rows are evaluated, not what comes out."""
    theta_key, records_key, noise_key = jax.random.split(key, 3)
    theta = {**model.sample_prior(theta_key), **fixed}
    size = model.upper if isinstance(model, UnknownSize) else n
    assert size is not None
    records = model.simulate(records_key, theta, size)
    if isinstance(model, UnknownSize):
        records = {**records, INCLUDED: (jnp.arange(size) < theta["n"]).astype(float)}
    values = []
    for mechanism, place, k in zip(mechanisms, places, jax.random.split(noise_key, len(mechanisms)), strict=True):
        if INCLUDED in records:
            value = mechanism.simulate(k, mechanism.statistics(records, place).T @ records[INCLUDED])
        else:
            value = mechanism.respond(k, records, place)
        values.append(value.astype(float))
    return Truths(theta, records, tuple(values))


def with_values(release: Release, values: Values) -> Release:
    """The same release with other values; nothing is checked, so the values may be traced."""
    return eqx.tree_at(lambda r: tuple(m.value for m in r.measurements), release, values)


def total_of(release: Release, records: Records) -> Array:
    """The total of the rows of all records that are in the table."""
    rows = release.statistics(records)
    return rows.T @ records[INCLUDED] if INCLUDED in records else jnp.sum(rows, axis=0)


class Quantities(eqx.Module):
    """Functions of (theta, records, release) whose ranks are looked at.

    ``theta`` by name; ``log_release``, a normal approximation of ``log p(s | theta)`` (a fixed function of theta and s, so its ranks are
    uniform whatever its quality); given the records, ``total`` (the exact statistic), ``log_f`` (the density of
    the records) and ``log_eta`` (the density of the noise).
    """

    model: Model
    release: Release
    u: Any

    def __init__(self, model: Model, release: Release, key: Key) -> None:
        self.model, self.release = model, release
        size = release.n if release.per_record and release.n is not None else min(release.n or _RECORDS, _RECORDS)
        self.u = model.innovations(key, max(2, size))

    def of_theta(self, theta: Theta, values: Values) -> dict[str, Array]:
        """What needs no records."""
        model = self.model.model if isinstance(self.model, UnknownSize) else self.model
        release = with_values(self.release, values)
        n = theta["n"] if isinstance(self.model, UnknownSize) else jnp.asarray(float(release.n or 0))
        approximate = surrogate_log_likelihood(model, release, model.unconstrain(theta), self.u, n)
        return {**theta, "log_release": jnp.where(jnp.isnan(approximate), -jnp.inf, approximate)}

    def of_records(self, theta: Theta, records: Records, values: Values) -> dict[str, Array]:
        """What is known with the records."""
        release = with_values(self.release, values)
        total = total_of(release, records)
        found = {"total": total, "log_eta": release.log_density(total)}
        if self.model.has_log_likelihood:
            own = {name: records[name] for name in self.model.columns}
            found["log_f"] = jnp.sum(records.get(INCLUDED, 1.0) * self.model.log_likelihood(theta, own))
        return {**self.of_theta(theta, values), **{name: v for name, v in found.items() if name not in theta}}


def check_replicates(replicates: int) -> None:
    """Refuse fewer than two replicates."""
    if isinstance(replicates, bool) or not isinstance(replicates, int | np.integer) or replicates < 2:
        raise ValueError(f"replicates must be a whole number of at least 2; got {replicates!r}.")


def _mechanism(part: tuple[Any, Any] | Mechanism) -> Mechanism:
    if isinstance(part, Mechanism):
        return part
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise ValueError(f"A measurement of a design is a pair (query, noise) or a mechanism; got {part!r}.")
    return noise_on(part[0], part[1])


def check_model(model: Model, n: int | None) -> None:
    """Refuse what is no model, and a number of records that does not fit it."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a noisewise model, for example nw.models.Normal(...); got {model!r}.")
    if isinstance(model, UnknownSize) != (n is None):
        raise ValueError(
            f"n={n} does not fit the model: n=None (unknown) goes with nw.models.UnknownSize, a number with other models."
        )


def fixed_truth(model: Model, truth: Mapping[str, Any] | None) -> Theta:
    """The parameters whose true values are given, checked against the model's shapes."""
    if not isinstance(truth or {}, Mapping):
        raise ValueError(f'truth must give values by parameter, as in {{"p": 0.25}}; got {truth!r}.')
    fixed = {}
    for name, given in (truth or {}).items():
        if name not in model.parameters:
            raise ValueError(f"truth names {name!r}, but the model's parameters are {list(model.parameters)}.")
        parameter, value = model.parameters[name], jnp.asarray(given, dtype=float)
        if value.shape != parameter.shape or not np.all(np.isfinite(value)):
            raise ValueError(f"truth[{name!r}] must be finite with shape {parameter.shape}; got shape {value.shape}.")
        again = parameter.constrain(parameter.unconstrain(value))
        if not np.allclose(again, value, rtol=1e-6, atol=1e-9):
            raise ValueError(f"truth[{name!r}] must lie in its support ({parameter.support}); got {given!r}.")
        fixed[name] = value
    return fixed
