r"""Maximum likelihood by data cloning: the mode and the spread of ``p(theta) p(s | theta)^K`` for a large K.

In unconstrained coordinates z, with draws weighted by one over the prior,

- the mode of ``p(s | z)^K`` is the estimate. From the draws' mean m, covariance S and third moments it is
  ``m - T / 2``, ``T = E[(z - m) (z - m)' S^-1 (z - m)]``, with an error of order ``K^-2`` (the first term of an Edgeworth series);
- ``K S`` is the inverse of the observed information, with an error of order ``1/K``, which runs at K/4 and K remove:
  ``(4 K S_K - (K/4) S_{K/4}) / 3``.

The kernel is that of :mod:`noisewise.engines.cloning`. Checked by ``tests/test_likelihood.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Array

from noisewise.chains import START, in_groups
from noisewise.engines.cloning import CloneKernel, clone_kernel
from noisewise.engines.surrogate import Surrogate
from noisewise.estimate import Estimate, estimate_at
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.result import Verdict, judge, smallest_ess
from noisewise.run import run_kernel
from noisewise.settings import Settings
from noisewise.typing import Theta

_BUILD, _PILOT = 2**32 - 2, 2**32 - 3
_SMALL_ERROR = 0.1
_STAGES_APART = 0.5
_LEAST_WEIGHT = 0.3
_RATIO = 4
_MOST_RECORDS = 50_000_000


def check_clones(clones: int) -> None:
    """Refuse a number of clones that cannot be quartered."""
    if isinstance(clones, bool) or not isinstance(clones, int) or clones < 8 or clones % _RATIO:
        raise ValueError(f"clones must be a multiple of {_RATIO}, at least 8; got {clones!r}.")


def check_cloning(model: Model, release: Release, clones: int) -> None:
    """Refuse what cannot be cloned."""
    if release.unnormalised:
        raise ValueError(
            "nw.mle needs mechanisms with a density; one here lacks a normaliser that depends on the records."
        )
    if not model.has_log_prior or not (model.has_update or model.has_log_likelihood):
        raise ValueError("Cloning needs a model with a log_prior, and an update or a log_likelihood.")
    if clones * (release.n or 0) > _MOST_RECORDS:
        raise ValueError(
            f"Cloning keeps {clones} copies of all {release.n} records, more than {_MOST_RECORDS:,} rows in all, and this model "
            "and release have no direct likelihood. Ask for fewer clones=, or take the posterior, nw.sample."
        )


@dataclass(frozen=True)
class _Stage:
    """What one run of cloning says, in unconstrained coordinates; the covariances are times the number of clones."""

    mode: np.ndarray
    mode_error: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    relative_error: np.ndarray
    weight: float
    verdict: Verdict


def by_cloning(model: Model, release: Release, clones: int, settings: Settings, seed: int) -> Estimate:
    """The estimate from a run with a quarter of the clones and one with all of them."""
    root = jax.random.key(seed)
    kernel = clone_kernel(model, release, clones, jax.random.fold_in(root, _BUILD))
    pilot = _stage(eqx.tree_at(lambda k: k.active, kernel, kernel.active // _RATIO), settings, seed)
    # the second run starts from what the first one found, as wide as a single clone would be
    picture = Surrogate(jnp.asarray(pilot.mean), jnp.asarray(pilot.covariance))
    kernel = eqx.tree_at(lambda k: k.surrogate, kernel, picture)
    final = _stage(kernel, settings, int(jax.random.bits(jax.random.fold_in(root, _PILOT), dtype=jnp.uint32)))
    gain = 1 / (_RATIO - 1)
    covariance = (1 + gain) * final.covariance - gain * pilot.covariance
    relative = np.hypot((1 + gain) * final.relative_error, gain * pilot.relative_error)
    if np.min(np.linalg.eigvalsh(covariance)) <= 0:
        covariance = final.covariance
    problem = _cloning_problem(pilot, final, covariance, clones)
    spread = np.sqrt(np.diag(covariance))
    verdict = problem or (
        f"Converged: {final.verdict.sentence.removeprefix('Converged: ')} The computation's own error is at most "
        f"{np.max(final.mode_error / spread):.1%} of a standard error, and of the standard errors "
        f"{np.max(relative) / 2:.1%}."
    )
    # errors of covariances enter through the standard deviations, half as large
    errors = covariance * np.maximum(relative[:, None], relative) / 2
    return estimate_at(
        model,
        final.mode,
        covariance,
        final.mode_error,
        errors,
        log_likelihood=None,
        method=f"cloning ({clones} clones)",
        converged=not problem,
        verdict=verdict,
        seed=seed,
    )


@eqx.filter_jit
def _log_priors(model: Model, free: Array) -> Array:
    return jax.vmap(model.log_prior_free)(free)


def _stage(kernel: CloneKernel, settings: Settings, seed: int) -> _Stage:
    def starts(keys: Array) -> Theta:
        found: Theta = in_groups(jax.vmap(lambda key: kernel.start(jax.random.fold_in(key, START))), keys)
        return found

    trace = run_kernel(kernel, starts, settings, seed, identity="", effective=smallest_ess)
    draws = trace.posterior["free"]
    verdict = judge(trace.posterior)
    flat = draws.reshape(-1, draws.shape[-1])
    log_weight = -np.asarray(_log_priors(kernel.model, jnp.asarray(flat)))
    weight = np.exp(log_weight - np.max(log_weight))
    weight = weight / np.mean(weight)
    mean = np.mean(weight[:, None] * flat, axis=0)
    centred = flat - mean
    covariance = (weight[:, None] * centred).T @ centred / len(flat)
    distance = np.sum(centred * np.linalg.solve(covariance, centred.T).T, axis=1)
    lean = np.mean((weight * distance)[:, None] * centred, axis=0)
    # the influence of one draw on the mode, for a nearly normal law
    influence = weight[:, None] * centred * (1 - 0.5 * (distance - flat.shape[1] - 2))[:, None]
    squares = weight[:, None] * centred**2
    return _Stage(
        mode=mean - 0.5 * lean,
        mode_error=_errors(influence.reshape(draws.shape)),
        mean=mean,
        covariance=float(kernel.active) * covariance,
        relative_error=_errors(squares.reshape(draws.shape)) / np.mean(squares, axis=0),
        weight=float(1 / np.mean(weight**2)),
        verdict=verdict,
    )


def _errors(draws: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard errors of the means of draws (chain, draw, column)."""
    return np.asarray(
        [
            float(array_stats.mcse(draws[..., j], chain_axis=0, draw_axis=1, method="mean"))
            for j in range(draws.shape[-1])
        ]
    )


def _cloning_problem(pilot: _Stage, final: _Stage, covariance: np.ndarray, clones: int) -> str:
    """Why the two runs do not pin the maximum down, if they do not."""
    for stage, count in ((pilot, clones // _RATIO), (final, clones)):
        if not stage.verdict.converged:
            return f"With {count} clones: {stage.verdict.sentence}"
    growth = np.sqrt(np.diag(final.covariance) / np.diag(pilot.covariance))
    if min(pilot.weight, final.weight) < _LEAST_WEIGHT or np.max(growth) > 1.5 or np.min(growth) < 0.67:
        return (
            "NOT converged: the spread of the draws does not shrink with the number of clones as at an interior maximum "
            f"(ratios {np.min(growth):.2f} to {np.max(growth):.2f} where 1 is wanted). The maximum may lie at the edge of the "
            "parameter space, or the release may not identify all parameters; otherwise more clones= help."
        )
    spread = np.sqrt(np.diag(covariance))
    apart = np.abs(pilot.mode - final.mode) - 4 * np.hypot(pilot.mode_error, final.mode_error)
    if np.max(apart / spread) > _STAGES_APART:
        return (
            f"NOT converged: with {clones // _RATIO} and with {clones} clones the estimates differ by "
            f"{np.max(apart / spread):.2f} standard errors beyond chance. Ask for more clones=."
        )
    if np.max(final.mode_error / spread) > _SMALL_ERROR:
        return (
            f"NOT converged: the computation's own error is {np.max(final.mode_error / spread):.0%} of a standard error. "
            "Ask for more draws= or a larger target_ess=."
        )
    return ""
