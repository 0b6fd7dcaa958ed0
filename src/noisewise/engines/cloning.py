r"""Data cloning: a Markov kernel whose draws of theta close in on the maximum of the likelihood.

Target: ``p(theta) prod_{k <= K} [f(x^k | theta) g(s, total(x^k))]``, K databases that share theta and were all seen through the
same release; its margin in theta is ``p(theta) p(s | theta)^K`` (Lele, Dennis and Lutscher 2007). One step is a cycle of the
kernels of :mod:`noisewise.engines.augmentation`, each of which leaves the target invariant: a sweep of the records of
every clone, theta given the K n records, and moves of theta with all innovations held fixed. Interweaving matters here
for the same reason as there: theta given the records moves by ``1/sqrt(K n)``, while the target is as wide as the noise
allows, over ``sqrt(K)``.

Only the first ``active`` clones have been seen through the release; the others follow the model and integrate to one. The
number of clones in the target is thus data, and runs with fewer of them take no new compilation.

:mod:`noisewise.likelihood` turns the draws into an estimate. Checked by ``tests/test_likelihood.py``.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from noisewise.engines.surrogate import MOST_RECORDS, Surrogate, fit_surrogate
from noisewise.kernels.base import Info, Kernel
from noisewise.kernels.records import sweep
from noisewise.kernels.walk import Walk, cholesky, random_walk
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Records, Theta

_SWEPT = 64_000
_LEAST_SHARE = 0.1
_MOVES = 12


class SeenIf(Release):
    """A release that says something where ``seen`` is true, and nothing where it is not."""

    seen: Bool[Array, ""]

    def __init__(self, release: Release, seen: Bool[Array, ""]) -> None:
        self.measurements, self.stated = release.measurements, release.stated
        self.n, self.neighbours = release.n, release.neighbours
        self.seen = seen

    def log_density(self, total: Float[Array, " size"]) -> Float[Array, ""]:
        return jnp.where(self.seen, super().log_density(total), 0.0)


class CloneState(eqx.Module):
    """Theta, the records of all clones (clone, record), and what the tuning phase has learnt."""

    theta: Theta
    records: Records
    centred: Walk
    non_centred: Walk
    turn: Int[Array, ""]


class CloneKernel(Kernel):
    """One step of data cloning; :meth:`theta` reports the unconstrained vector, as ``free``."""

    model: Model
    release: Release
    surrogate: Surrogate
    active: Int[Array, ""]
    clones: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def init(self, key: Key, start: Theta) -> CloneState:
        theta = self.model.constrain(start["free"])
        walk = Walk.start(self.surrogate.mean, self.surrogate.covariance / self.active)
        records = self._unflatten(self.model.simulate(key, theta, self.clones * self.n))
        return CloneState(theta, records, walk, walk, jnp.zeros((), dtype=int))

    def step(self, key: Key, state: CloneState) -> tuple[CloneState, Info]:
        sweep_key, theta_key, inverse_key, walk_key = jax.random.split(key, 4)
        model, release = self.model, self.release
        windows = -(-self.n // self.window)
        first = jnp.minimum((state.turn % windows) * self.window, self.n - self.window)

        def sweep_clone(key: Key, records: Records, seen: Array) -> tuple[Records, Array]:
            swept = sweep(
                key,
                state.theta,
                records,
                jnp.sum(release.statistics(records), axis=0),
                SeenIf(release, seen),
                self._propose,
                first=first,
                window=self.window,
                block=jnp.ones((), dtype=int),
            )
            return swept.records, swept.acceptance_rate

        seen = jnp.arange(self.clones) < self.active
        keys = jax.random.split(sweep_key, self.clones)
        records, accepted = jax.vmap(sweep_clone)(keys, state.records, seen)
        stats = {"acceptance_rate": jnp.sum(jnp.where(seen, accepted, 0.0)) / self.active}
        flat = self._flatten(records)
        if model.has_update:
            theta = model.update(theta_key, state.theta, flat)
        else:
            walked = random_walk(
                theta_key,
                lambda z: model.log_prior_free(z) + jnp.sum(model.log_likelihood(model.constrain(z), flat)),
                model.unconstrain(state.theta),
                state.centred,
                moves=_MOVES,
            )
            theta = model.constrain(walked.position)
            stats["theta_acceptance"] = walked.acceptance
        if model.has_inverse:
            u = model.inverse(theta, flat, inverse_key)

            def log_target(z: Float[Array, " d"]) -> Array:
                moved = self._unflatten(model.transform(model.constrain(z), u))
                totals = jax.vmap(lambda x: jnp.sum(release.statistics(x), axis=0))(moved)
                return model.log_prior_free(z) + jnp.sum(jnp.where(seen, jax.vmap(release.log_density)(totals), 0.0))

            walked = random_walk(walk_key, log_target, model.unconstrain(theta), state.non_centred, moves=_MOVES)
            theta = model.constrain(walked.position)
            records = self._unflatten(model.transform(theta, u))
            stats["interweave_acceptance"] = walked.acceptance
        return CloneState(theta, records, state.centred, state.non_centred, state.turn + 1), Info(stats, {})

    def adapt(self, state: CloneState, info: Info) -> CloneState:
        position = self.model.unconstrain(state.theta)
        centred, non_centred = state.centred, state.non_centred
        if "theta_acceptance" in info.stats:
            centred = centred.learn(position, info.stats["theta_acceptance"])
        if "interweave_acceptance" in info.stats:
            non_centred = non_centred.learn(position, info.stats["interweave_acceptance"])
        return CloneState(state.theta, state.records, centred, non_centred, state.turn)

    def theta(self, state: CloneState) -> Theta:
        return {"free": self.model.unconstrain(state.theta)}

    def start(self, key: Key) -> Theta:
        """A starting value as wide as the posterior of a single clone, so that chains can find other maxima."""
        mean, covariance = self.surrogate.mean, self.surrogate.covariance
        return {"free": mean + cholesky(covariance) @ jax.random.normal(key, mean.shape, dtype=float)}

    def _propose(self, key: Key, theta: Theta, current: Records) -> tuple[Records, Float[Array, " m"]]:
        return self.model.simulate(key, theta, self.window), jnp.zeros(self.window)

    def _flatten(self, records: Records) -> Records:
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in records.items()}

    def _unflatten(self, records: Records) -> Records:
        return {name: column.reshape(self.clones, self.n, *column.shape[1:]) for name, column in records.items()}


def clone_kernel(model: Model, release: Release, clones: int, key: Key) -> CloneKernel:
    """The kernel with its starting picture of the likelihood; windows keep a step near 64,000 records."""
    assert release.n is not None
    n = release.n
    share = min(1.0, max(_LEAST_SHARE, _SWEPT / (clones * n)))
    records = n if release.per_record else min(n, MOST_RECORDS)
    surrogate = eqx.filter_jit(fit_surrogate)(key, model, release, jnp.asarray(float(n)), records=records)
    window = n if release.per_record else max(1, round(share * n))
    return CloneKernel(model, release, surrogate, jnp.asarray(clones), clones, window, n)
