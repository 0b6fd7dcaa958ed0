r"""Record augmentation with interweaving: the engine for any record-additive release and any model that can simulate.

Target: ``p(theta, x | s) ∝ p(theta) prod_i f(x_i | theta) g(s, sum_i t_i(x_i, s))``, whose margin in theta is the posterior.
One iteration is a cycle of kernels that each leave the target invariant, so the cycle does:

1. *records*: a sweep over all records or a window of them, theta fixed (:mod:`noisewise.kernels.records`);
2. *theta, centred*: an exact conjugate draw from ``p(theta | x)``, or random-walk or Hamiltonian moves;
3. *theta, non-centred*: moves of theta with the innovations of the records fixed (:mod:`noisewise.kernels.interweave`): a jump
   across the posterior and a few random-walk moves, the more of them the rarer the tuning phase saw jumps accepted.

With ``interweave=False`` and a conjugate model this is Algorithm 1 of Ju, Awan, Gong and Rao (2022); with a ``record_proposal`` or a
Metropolis move of theta it is their Algorithm 2. Checked by ``tests/kernels/test_invariance.py``,
``tests/engines/test_augmentation.py`` and ``tests/engines/test_geweke.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from noisewise.engines.base import Engine, Support
from noisewise.engines.elsewhere import doubts_elsewhere
from noisewise.engines.resizing import MaskedRelease, Pool, ResizingKernel, likely_size, unsizable
from noisewise.engines.surrogate import MOST_RECORDS, Surrogate, fit_surrogate
from noisewise.kernels.base import Info, Kernel
from noisewise.kernels.exchange import exchange_sweep
from noisewise.kernels.foreign import ForeignKernel, foreign
from noisewise.kernels.hamiltonian import hamiltonian
from noisewise.kernels.interweave import Move, interweave
from noisewise.kernels.records import RecordProposal, check_proposal, sweep
from noisewise.kernels.walk import HAMILTONIAN, RANDOM_WALK, LogTarget, Walk, cholesky, random_walk
from noisewise.models.base import Model, ThetaMove
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.typing import Key, Records, Theta

_BLOCK_ACCEPTANCE = 0.5
_BLOCK_GAIN = 4.0
_START_INFLATION = 2.0
_SMALL = 20_000
_MANY_MOVES = 24
_FEW_MOVES = 8
_LEAST_MOVES = 2
_DOUBT_SEED = 0x0E15
_WIDE_NOISE, _LEAST_FRACTION, _LEAST_WINDOW = 0.1, 0.1, 10


class AugmentationState(eqx.Module):
    """Theta, the imputed records, and what the tuning phase has learnt."""

    theta: Theta
    records: Records
    centred: Walk
    non_centred: Walk
    log_block: Float[Array, ""]
    ease: Float[Array, ""]
    """The acceptance probability of jumps, as the tuning phase saw it."""
    turn: Int[Array, ""]
    tuned: Float[Array, ""]


class AugmentationKernel(Kernel):
    """One iteration of record augmentation. Sizes are static; the model, the release and the surrogate are data."""

    model: Model
    release: Release
    surrogate: Surrogate
    record_proposal: RecordProposal | None = eqx.field(static=True)
    theta_move: ThetaMove | ForeignKernel = eqx.field(static=True)
    interweave: bool = eqx.field(static=True)
    move: Move = eqx.field(static=True)
    moves: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    block: int | None = eqx.field(static=True)
    n: int = eqx.field(static=True)
    jump: bool = eqx.field(static=True, default=False)

    def init(self, key: Key, start: Theta) -> AugmentationState:
        records = self.model.simulate(key, start, self.n)
        walk = Walk.start(self.surrogate.mean, self.surrogate.covariance)
        return AugmentationState(
            theta=start,
            records=records,
            centred=walk,
            non_centred=walk,
            log_block=jnp.log(jnp.asarray(float(self.block or 1))),
            ease=jnp.zeros(()),
            turn=jnp.zeros((), dtype=int),
            tuned=jnp.zeros(()),
        )

    def step(self, key: Key, state: AugmentationState) -> tuple[AugmentationState, Info]:
        sweep_key, theta_key, inverse_key, walk_key = jax.random.split(key, 4)
        model, release = self.model, self.release
        windows = -(-self.n // self.window)
        first = jnp.minimum((state.turn % windows) * self.window, self.n - self.window)
        propose = self.record_proposal or self._propose
        if release.unnormalised:
            swept = exchange_sweep(
                sweep_key, state.theta, state.records, release, propose, first=first, window=self.window
            )
        else:
            total = jnp.sum(release.statistics(state.records), axis=0)
            block = jnp.round(jnp.exp(state.log_block)).astype(int)
            swept = sweep(
                sweep_key,
                state.theta,
                state.records,
                total,
                release,
                propose,
                first=first,
                window=self.window,
                block=block,
            )
        records = swept.records
        stats = {"acceptance_rate": swept.acceptance_rate, "min_acceptance": swept.min_acceptance}

        theta = self._centred_move(theta_key, state, records, stats)
        fresh = self.theta_move == "update" and model.update_forgets
        within = jax.tree.map(lambda new, old: 0.5 * (new - old) ** 2, theta, state.theta) if fresh else {}

        if self.interweave:
            u = model.inverse(theta, records, inverse_key)
            walk = state.non_centred
            free, count = model.unconstrain(theta), self._walks(state.ease) if self.jump else None
            walked = interweave(walk_key, model, release, free, u, walk, move=self.move, moves=self.moves, count=count)
            theta = model.constrain(walked.position)
            records = model.transform(theta, u)
            stats["interweave_acceptance"] = walked.acceptance
            if walked.jump_acceptance is not None:
                stats["jump_acceptance"] = walked.jump_acceptance
        stats["noise_lp"] = release.log_density(jnp.sum(release.statistics(records), axis=0))
        if model.has_log_prior and model.has_log_likelihood:
            of_records = jnp.sum(model.log_likelihood(theta, records))
            stats["lp"] = model.log_prior(theta) + of_records + stats["noise_lp"]
        moved = eqx.tree_at(lambda s: (s.theta, s.records, s.turn), state, (theta, records, state.turn + 1))
        return moved, Info(stats, within)

    def adapt(self, state: AugmentationState, info: Info) -> AugmentationState:
        stats, position = info.stats, self.model.unconstrain(state.theta)
        centred, non_centred, log_block = state.centred, state.non_centred, state.log_block
        if "theta_acceptance" in stats:
            target = HAMILTONIAN if self.theta_move == "hmc" else RANDOM_WALK
            centred = centred.learn(position, stats["theta_acceptance"], target)
        if self.interweave:
            non_centred = non_centred.learn(position, stats["interweave_acceptance"])
        if self.block is None:
            gain = _BLOCK_GAIN * (state.tuned + 1.0) ** -0.6
            log_block = log_block + gain * (stats["acceptance_rate"] - _BLOCK_ACCEPTANCE)
            log_block = jnp.clip(log_block, 0.0, jnp.log(float(self.window)))
        ease = state.ease
        if self.jump:
            ease = ease + jnp.minimum(0.5, 3.0 / (state.tuned + 3.0)) * (stats["jump_acceptance"] - ease)
        return AugmentationState(
            state.theta, state.records, centred, non_centred, log_block, ease, state.turn, state.tuned + 1.0
        )

    def _walks(self, ease: Array) -> Int[Array, ""]:
        """How many random-walk moves follow a jump: all where jumps are never accepted, a few where they always are."""
        least = min(_LEAST_MOVES, self.moves)
        return jnp.round(least + (self.moves - least) * (1 - ease) ** 2).astype(int)

    def _propose(self, key: Key, theta: Theta, current: Records) -> tuple[Records, Float[Array, " m"]]:
        # columns that the model does not make stay as they are
        return {**current, **self.model.simulate(key, theta, self.window)}, jnp.zeros(self.window)

    def _centred_move(self, key: Key, state: AugmentationState, records: Records, stats: dict[str, Array]) -> Theta:
        if self.theta_move == "update":
            return self.model.update(key, state.theta, records)
        target, position = self._complete_data_target(records), self.model.unconstrain(state.theta)
        if self.theta_move == "random_walk":
            walked = random_walk(key, target, position, state.centred, moves=self.moves)
        elif self.theta_move == "hmc":
            walked = hamiltonian(key, target, position, state.centred)
        else:
            walked = foreign(key, target, position, state.centred, self.theta_move)
        stats["theta_acceptance"] = walked.acceptance
        return self.model.constrain(walked.position)

    def _complete_data_target(self, records: Records) -> LogTarget:
        def log_target(free: Float[Array, " d"]) -> Float[Array, ""]:
            return self.model.log_prior_free(free) + jnp.sum(
                self.model.log_likelihood(self.model.constrain(free), records)
            )

        return log_target

    def theta(self, state: AugmentationState) -> Theta:
        return state.theta

    def predict(self, key: Key, state: AugmentationState) -> dict[str, Array]:
        return self.release.respond(key, state.records)

    def latent(self, state: AugmentationState) -> Records:
        return state.records


class Augmentation(Engine):
    """Record augmentation with interweaving (exact; any record-additive release)."""

    name: ClassVar[str] = "augmentation"
    exact: ClassVar[bool] = True

    interweave: bool = True
    block: int | None = None
    fraction: float | None = None
    move: Move = "random_walk"
    moves: int | None = None
    theta_move: ThetaMove | ForeignKernel | None = None
    record_proposal: RecordProposal | None = None

    def __check_init__(self) -> None:
        if not isinstance(self.interweave, bool):
            raise ValueError(f"interweave must be True or False; got {self.interweave!r}.")
        for name, value, known in (
            ("move", self.move, get_args(Move)),
            ("theta_move", self.theta_move, (None, *get_args(ThetaMove))),
        ):
            if value not in known and not (name == "theta_move" and callable(value)):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")
        for name, count in (("block", self.block), ("moves", self.moves)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(
                    f"{name} must be a whole number of at least 1, or None to have it chosen; got {count!r}."
                )
        number = isinstance(self.fraction, int | float) and not isinstance(self.fraction, bool)
        if self.fraction is not None and not (number and 0 < self.fraction <= 1):
            raise ValueError(f"fraction must lie in (0, 1], or be None to have it chosen; got {self.fraction!r}.")
        if self.record_proposal is not None and not callable(self.record_proposal):
            raise ValueError(
                "record_proposal must be a function (key, theta, records) -> (proposed records, log ratio by record), or None "
                f"for the model's own law; got {self.record_proposal!r}."
            )

    def supports(self, model: Model, release: Release) -> Support:
        unknown = isinstance(model, UnknownSize)
        if unknown != (release.n is None):
            return Support(
                False,
                "the model leaves the number of records unknown, but the release states it"
                if unknown
                else "the number of records is unknown; wrap the model in nw.models.UnknownSize(model, upper=...)",
            )
        if unknown and unsizable(release):
            return Support(False, unsizable(release))
        if not model.has_transform:
            return Support(False, "the model cannot simulate records")
        missing = [name for name in release.columns if name not in model.columns]
        if missing:
            return Support(False, f"the release reads columns {missing} that the model does not describe")
        if release.unnormalised and self.move != "random_walk":
            return Support(False, "a mechanism without its normaliser needs move='random_walk'")
        if self.theta_move == "update" and not model.has_update:
            return Support(False, "theta_move='update' needs a model with an update")
        by_density = self.theta_move not in (None, "update")
        if by_density and not (model.has_log_prior and model.has_log_likelihood):
            return Support(False, f"theta_move={self.theta_move!r} needs a model with log_prior and log_likelihood")
        reason = "works with any record-additive release"
        if self.interweave and not self._can_interweave(model):
            lacking = "log_prior" if not model.has_log_prior else "inverse"
            reason += f", but without interweaving, because the model has no {lacking}: expect slow mixing"
        return Support(True, reason, f"O(n) per iteration, n = {release.n or 'unknown'}")

    def _can_interweave(self, model: Model) -> bool:
        return model.has_log_prior and model.has_inverse

    def build(self, model: Model, release: Release, key: Key) -> Kernel:
        if isinstance(model, UnknownSize):
            masked = MaskedRelease(release, model.upper)
            inner = self._build(Pool(model.model), masked, key, model.upper, likely_size(model, release))
            return ResizingKernel(inner, model, release)
        assert release.n is not None
        return self._build(model, release, key, release.n, jnp.asarray(float(release.n)))

    def _build(self, model: Model, release: Release, key: Key, n: int, likely: Array) -> AugmentationKernel:
        interweaves = self.interweave and self._can_interweave(model)
        moves = self.moves if self.moves is not None else (_MANY_MOVES if n <= _SMALL else _FEW_MOVES)
        records = n if release.per_record else min(n, MOST_RECORDS)
        fitted = eqx.filter_jit(fit_surrogate)(key, model, release, likely, records=records)
        wide_noise = interweaves and not isinstance(model, Pool) and _below(fitted.share, _WIDE_NOISE)
        window = n if release.per_record else self._window(n, wide_noise)
        if self.record_proposal is not None and not isinstance(model, Pool):
            check_proposal(self.record_proposal, model, window)
        return AugmentationKernel(
            model=model,
            release=release,
            surrogate=Surrogate(fitted.mean, fitted.covariance),
            record_proposal=self.record_proposal,
            theta_move=self.theta_move or model.theta_move,
            interweave=interweaves,
            move=self.move,
            moves=moves,
            window=window,
            block=1 if release.per_record or (self.block is None and not self.interweave) else self.block,
            n=n,
            jump=interweaves and self.move == "random_walk" and not release.unnormalised,
        )

    def _window(self, n: int, wide_noise: bool) -> int:
        """How many records a step proposes: all, unless they are many or the noise is so wide that they hardly matter."""
        if self.fraction is not None:
            return max(1, round(self.fraction * n))
        if not self.interweave:
            return n
        fraction = min(1.0, max(_LEAST_FRACTION, _SMALL / n))
        return max(min(n, _LEAST_WINDOW), round((_LEAST_FRACTION if wide_noise else fraction) * n))

    def start(self, kernel: Kernel, key: Key) -> Theta:
        kernel = kernel.inner if isinstance(kernel, ResizingKernel) else kernel
        assert isinstance(kernel, AugmentationKernel)
        mean, covariance = kernel.surrogate.mean, kernel.surrogate.covariance
        normals = jax.random.normal(key, mean.shape, dtype=float)
        return kernel.model.constrain(mean + _START_INFLATION * cholesky(covariance) @ normals)

    def doubts(
        self, model: Model, release: Release, posterior: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        sums = all(measurement.mechanism.noise_variance is not None for measurement in release.measurements)
        if release.n is None or release.per_record or not sums or not model.has_log_prior:
            return ()
        return doubts_elsewhere(jax.random.key(_DOUBT_SEED), model, release, posterior)


def _below(share: Array | None, limit: float) -> bool:
    """Whether a share is known to be small; inside a compiled function it is not known."""
    return share is not None and not isinstance(share, jax.core.Tracer) and float(share) < limit
