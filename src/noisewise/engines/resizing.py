r"""Record augmentation when the number of records is unknown.

Keep ``upper`` records, independent given theta, of which the first n are in the confidential table and the others are not:

``p(theta, x, n | s) ∝ p(theta) p(n) prod_{i <= upper} f(x_i | theta) g(s, sum_{i <= n} t_i)``.

Records outside the table integrate to one, so the margin in (theta, n) is the posterior of the trans-dimensional model, with no
jumps: given the records, n is drawn exactly from all of its values at once, with weights ``p(n) g(s, cumulative sum at n)``
(the pseudo-priors of Carlin and Chib 1995, here the model's own law). The rest of a step is that of
:mod:`noisewise.engines.augmentation` with the rows of records outside the table set to zero. Checked by
``tests/engines/test_resizing.py``.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.kernels.base import Info, Kernel, State
from noisewise.models.base import Model, ThetaMove
from noisewise.models.bijections import Parameter
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.typing import Innovations, Key, Records, Theta

INCLUDED = "included"


class MaskedRelease(Release):
    """A release that sees only the included records of a larger pool."""

    def __init__(self, release: Release, capacity: int) -> None:
        self.measurements, self.stated = release.measurements, release.stated
        self.n, self.neighbours = capacity, release.neighbours

    def statistics(self, records: Records) -> Float[Array, "n size"]:
        return super().statistics(records) * records[INCLUDED][:, None]

    def respond(self, key: Key, records: Records) -> dict[str, Array]:
        if not all(m.mechanism.simulates_from_total for m in self.measurements):
            return {}
        return dict(zip(self.names, self.simulate(key, jnp.sum(self.statistics(records), axis=0)), strict=True))


class Pool(Model):
    """A model of the pool: the records carry along whether they are included, as data that theta does not touch."""

    model: Model

    @property
    def columns(self) -> tuple[str, ...]:
        return self.model.columns

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.model.parameters

    @property
    def conjugate(self) -> bool:
        return self.model.conjugate

    @property
    def theta_move(self) -> ThetaMove:
        return self.model.theta_move

    def sample_prior(self, key: Key) -> Theta:
        return self.model.sample_prior(key)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return self.model.log_prior(theta)

    def innovations(self, key: Key, n: int) -> Innovations:
        return {"of": self.model.innovations(key, n), INCLUDED: jnp.ones(n)}

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return {**self.model.transform(theta, u["of"]), INCLUDED: u[INCLUDED]}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return {"of": self.model.inverse(theta, self._own(records), key), INCLUDED: records[INCLUDED]}

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        return self.model.update(key, theta, self._own(records))

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return self.model.log_likelihood(theta, self._own(records))

    def simulate(self, key: Key, theta: Theta, n: int) -> Records:
        return self.model.simulate(key, theta, n)

    @property
    def has_update(self) -> bool:
        return self.model.has_update

    @property
    def has_log_prior(self) -> bool:
        return self.model.has_log_prior

    @property
    def has_log_likelihood(self) -> bool:
        return self.model.has_log_likelihood

    @property
    def has_inverse(self) -> bool:
        return self.model.has_inverse

    def _own(self, records: Records) -> Records:
        return {name: records[name] for name in self.model.columns}


class ResizingKernel(Kernel):
    """A step of augmentation on the pool, then an exact draw of n given the pool."""

    inner: Kernel
    model: UnknownSize
    release: Release

    def init(self, key: Key, start: Theta) -> State:
        state = self.inner.init(key, start)
        records = {**state.records, INCLUDED: jnp.ones(self.model.upper)}
        return self._resize(key, eqx.tree_at(lambda s: s.records, state, records))

    def step(self, key: Key, state: State) -> tuple[State, Info]:
        step_key, size_key = jax.random.split(key)
        state, info = self.inner.step(step_key, state)
        state = self._resize(size_key, state)
        total = self.release.statistics(state.records).T @ state.records[INCLUDED]
        # theta given the whole pool varies less than given the table, so the inner kernel's share is left out
        stats = {**info.stats, "noise_lp": self.release.log_density(total)}
        if "lp" in stats:
            size = jnp.sum(state.records[INCLUDED]).astype(int) - self.model.lower
            stats["lp"] += stats["noise_lp"] - info.stats["noise_lp"] + self.model.log_weights[size]
        return state, Info(stats, {})

    def adapt(self, state: State, info: Info) -> State:
        return self.inner.adapt(state, info)

    def _resize(self, key: Key, state: State) -> State:
        lower, upper = self.model.lower, self.model.upper
        rows = self.release.statistics(state.records)
        totals = jnp.concatenate([jnp.zeros((1, rows.shape[1])), jnp.cumsum(rows, axis=0)])[lower : upper + 1]
        log_weights = self.model.log_weights + jax.vmap(self.release.log_density)(totals)
        n = lower + jax.random.categorical(key, log_weights)
        included = (jnp.arange(upper) < n).astype(float)
        return eqx.tree_at(lambda s: s.records[INCLUDED], state, included)

    def theta(self, state: State) -> Theta:
        return {**self.inner.theta(state), "n": jnp.sum(state.records[INCLUDED])}

    def predict(self, key: Key, state: State) -> dict[str, Array]:
        return self.inner.predict(key, state)

    def latent(self, state: State) -> Records:
        return self.inner.latent(state)


def unsizable(release: Release) -> str:
    """Why the number of records must be known for this release; empty if it need not be."""
    if release.unnormalised or release.per_record:
        return "an unknown number of records needs mechanisms that release sums"
    if any(m.mechanism.needs_n for m in release.measurements):
        return (
            "the normaliser of a mechanism is a constant at a known number of records only, and the number is unknown"
        )
    return ""


def likely_size(model: UnknownSize, release: Release) -> Array:
    """A rough number of records to start from: what the first count of the records says, or the prior's mean."""
    sizes = jnp.arange(model.lower, model.upper + 1)
    for measurement in release.measurements:
        if measurement.query is not None:
            for _, positions in measurement.query.counts_of_records:
                return jnp.clip(jnp.sum(measurement.value[jnp.asarray(positions)]), max(model.lower, 1), model.upper)
    return jnp.maximum(jnp.sum(jnp.exp(model.log_weights) * sizes), 1.0)
