r"""Maximum likelihood: the parameters under which the release is most probable, with standard errors.

The likelihood is ``p(s | theta) = E[g(s, total(x)) | theta]``; the prior plays no part. Where it can be computed it is maximised
directly. Elsewhere it is reached by data cloning: with K copies of the confidential table, all seen through the release,
the posterior is ``p(theta) p(s | theta)^K``. In unconstrained coordinates z, with draws weighted by one over the prior,

- the mode of ``p(s | z)^K`` is the estimate. From the draws' mean m, covariance S and third moments it is
  ``m - T / 2``, ``T = E[(z - m) (z - m)' S^-1 (z - m)]``, with an error of order ``K^-2`` (the first term of an Edgeworth series);
- ``K S`` is the inverse of the observed information, with an error of order ``1/K``, which runs at K/4 and K remove:
  ``(4 K S_K - (K/4) S_{K/4}) / 3``.

Plain Monte-Carlo EM would move by the share of the information that the release keeps, times the distance to go: thousands
of steps under wide noise, and it stops early without saying so. Cloning has one dial, and two runs that must agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Array
from scipy import optimize

from noisewise.compilation import use_compilation_cache
from noisewise.engines.choose import check_pair
from noisewise.engines.cloning import CloneKernel, clone_kernel
from noisewise.engines.counts_cells import Unsupported
from noisewise.engines.exact_likelihood import exact_log_likelihood
from noisewise.engines.surrogate import Surrogate
from noisewise.models.base import Model
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.result import ConvergenceWarning, Verdict, judge, smallest_ess
from noisewise.run import START, Settings, fresh_seed, run_kernel
from noisewise.typing import Theta

Method = Literal["auto", "direct", "cloning"]

_STARTS = 256
_CLIMBS = 4
_BUILD, _PILOT = 2**32 - 2, 2**32 - 3
_FLAT = 0.5
_SMALL_ERROR = 0.1
_STAGES_APART = 0.5
_LEAST_WEIGHT = 0.3
_RATIO = 4


@dataclass(frozen=True)
class Estimate:
    """A maximum-likelihood estimate.

    ``theta`` and ``standard_errors`` are by parameter name; ``covariance`` is that of all parameters in one vector, in their order.
    Standard errors are the square roots of the inverse observed information, carried to the parameters by the delta method.
    ``monte_carlo_errors`` are the standard errors of the computation itself, zero for a direct maximum;
    ``standard_error_errors`` are those of the standard errors. Where there is no interior maximum, standard errors
    of the direct method are NaN. ``log_likelihood`` is None where only ratios are known.
    Before any use, look at ``converged``: where it is False, ``verdict`` says why the numbers are not to be trusted.
    """

    theta: dict[str, np.ndarray]
    standard_errors: dict[str, np.ndarray]
    covariance: np.ndarray
    monte_carlo_errors: dict[str, np.ndarray]
    standard_error_errors: dict[str, np.ndarray]
    log_likelihood: float | None
    method: str
    converged: bool
    verdict: str
    random_seed: int | None = None

    def __str__(self) -> str:
        lines = [f"{'parameter':<24}{'estimate':>12}{'s.e.':>12}{'m.c. error':>12}"]
        for name, value in self.theta.items():
            for at in np.ndindex(value.shape):
                label = name + (f"[{', '.join(map(str, at))}]" if at else "")
                numbers = (value[at], self.standard_errors[name][at], self.monte_carlo_errors[name][at])
                lines.append(f"{label:<24}" + "".join(f"{number:>12.5g}" for number in numbers))
        return "\n".join([*lines, "", self.verdict])


def mle(
    model: Model,
    release: Release,
    *,
    method: Method = "auto",
    clones: int = 32,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_ess: float = 2000,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> Estimate:
    r"""The maximum of ``p(release | theta)`` over theta, with standard errors; the model's prior is not used.

    Parameters
    ----------
    model, release
        A model of the confidential records and what was published of them.
    method
        ``"direct"`` maximises the exact likelihood (models of counts), ``"cloning"`` is the Monte-Carlo way that works with any
        model that :func:`noisewise.sample` can augment; ``"auto"`` is the first that can.
    clones
        How many copies of the confidential table cloning uses, a multiple of 4; the error of the estimate falls like the
        inverse square.
    draws, tune, chains, target_ess, random_seed, progressbar
        As in :func:`noisewise.sample`, for each of the two runs of cloning.

    An estimate that is not a well-determined interior maximum, or that the runs have not pinned down, has
    ``converged=False``, and a warning says why.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), [31.4])], n=100)
    >>> estimate = nw.mle(nw.models.Bernoulli(), release)
    >>> float(estimate.theta["p"].round(4)), float(estimate.standard_errors["p"].round(2))
    (0.314, 0.08)
    """
    check_pair(model, release)
    if method not in ("auto", "direct", "cloning"):
        raise ValueError(f"method must be 'auto', 'direct' or 'cloning'; got {method!r}.")
    if isinstance(model, UnknownSize) or release.n is None:
        raise ValueError(
            "nw.mle needs a known number of records; take a model of the records and give the release an n."
        )
    use_compilation_cache()
    if method != "cloning":
        try:
            likelihood = exact_log_likelihood(model, release)
        except Unsupported as reason:
            if method == "direct":
                raise ValueError(f"There is no direct likelihood: {reason}. Take method='cloning'.") from None
        else:
            return _announced(_direct(model, likelihood))
    _refuse(model, release, clones)
    settings = Settings(draws, tune, chains, 1, target_ess, progressbar=progressbar)
    seed = fresh_seed() if random_seed is None else int(random_seed)
    return _announced(_by_cloning(model, release, clones, settings, seed))


def _announced(estimate: Estimate) -> Estimate:
    if not estimate.converged:
        warnings.warn(estimate.verdict, ConvergenceWarning, stacklevel=3)
    return estimate


def _refuse(model: Model, release: Release, clones: int) -> None:
    if isinstance(clones, bool) or not isinstance(clones, int) or clones < 8 or clones % _RATIO:
        raise ValueError(f"clones must be a multiple of {_RATIO}, at least 8; got {clones!r}.")
    if release.unnormalised:
        raise ValueError(
            "nw.mle needs mechanisms with a density; one here lacks a normaliser that depends on the records."
        )
    if not model.has_log_prior or not (model.has_update or model.has_log_likelihood):
        raise ValueError("Cloning needs a model with a log_prior, and an update or a log_likelihood.")


# direct ----------------------------------------------------------------------------------------------------------------


def _direct(model: Model, likelihood: Callable[[Theta], Array]) -> Estimate:
    """Newton's method with a trust region, from the best of many draws of the prior."""

    def loss(free: Array) -> Array:
        return -likelihood(model.constrain(free))

    value = jax.jit(loss)
    slope, bend = jax.jit(jax.grad(loss)), jax.jit(jax.hessian(loss))
    keys = jax.random.split(jax.random.key(0), _STARTS)
    starts = jax.vmap(lambda key: model.unconstrain(model.sample_prior(key)))(keys)
    heights = np.asarray(jax.jit(lambda all_: jax.lax.map(loss, all_))(starts))
    climbs = []
    for at in np.argsort(np.where(np.isfinite(heights), heights, np.inf))[:_CLIMBS]:
        climb = optimize.minimize(
            lambda z: float(value(z)),
            np.asarray(starts[at]),
            jac=lambda z: np.asarray(slope(z)),
            hess=lambda z: np.asarray(bend(z)),
            method="trust-exact",
            options={"gtol": 1e-9, "maxiter": 500},
        )
        climbs.append(climb)
    best = min(climbs, key=lambda climb: climb.fun)
    free, information = best.x, np.asarray(bend(best.x))
    problem, remark = _shape_of_maximum(lambda z: float(value(z)), free, np.asarray(slope(free)), information)
    covariance = np.full_like(information, np.nan) if problem else np.linalg.inv(information)
    zeros = np.zeros_like(free)
    return _estimate(
        model,
        free,
        covariance,
        zeros,
        np.zeros_like(covariance),
        log_likelihood=-float(best.fun),
        method="direct",
        converged=not problem,
        verdict=problem or f"Converged: a maximum of the exact likelihood.{remark}",
    )


def _shape_of_maximum(
    value: Callable[[np.ndarray], float], free: np.ndarray, slope: np.ndarray, information: np.ndarray
) -> tuple[str, str]:
    """What is wrong with a supposed maximum, if anything, and a remark on its standard errors.

    At an interior maximum the likelihood falls along every axis of the information; a maximum at the edge of the parameter space
    is at infinity here, where it is flat.
    """
    curvature, axes = np.linalg.eigh(information)
    if curvature[0] <= 0:
        return _NOT_INTERIOR, ""
    if float(slope @ np.linalg.solve(information, slope)) > 1e-6:
        return "NOT converged: the climb stopped before a maximum. The likelihood may have no maximum at all.", ""
    here = value(free)
    falls = []
    for axis, size in zip(axes.T, 1 / np.sqrt(curvature), strict=True):
        for sign in (-4.0, 4.0):
            fall = value(free + sign * size * axis) - here
            falls.append(fall if np.isfinite(fall) else np.inf)
    if min(falls) < 1e-3:
        return _NOT_INTERIOR, ""
    if min(falls) < _FLAT:
        return "", (
            f" But four standard errors away the log-likelihood has fallen by as little as {min(falls):.2g} (a normal one "
            "would by 8), so the standard errors say little; look at the posterior instead."
        )
    return "", ""


_NOT_INTERIOR = (
    "NOT an interior maximum: the likelihood still rises, or is flat, towards the edge of the parameter space, so there are no "
    "standard errors. The posterior (nw.sample) remains well defined."
)


# cloning ---------------------------------------------------------------------------------------------------------------


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


def _by_cloning(model: Model, release: Release, clones: int, settings: Settings, seed: int) -> Estimate:
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
    return _estimate(
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
        return jax.vmap(lambda key: kernel.start(jax.random.fold_in(key, START)))(keys)

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


# both ------------------------------------------------------------------------------------------------------------------


def _estimate(
    model: Model,
    free: np.ndarray,
    covariance: np.ndarray,
    mode_error: np.ndarray,
    covariance_error: np.ndarray,
    *,
    log_likelihood: float | None,
    method: str,
    converged: bool,
    verdict: str,
    seed: int | None = None,
) -> Estimate:
    """The estimate in the parameters' own coordinates."""
    sizes = {name: int(np.prod(parameter.shape)) for name, parameter in model.parameters.items()}

    def vector(z: Array) -> Array:
        theta = model.constrain(z)
        return jnp.concatenate([theta[name].reshape(-1) for name in sizes])

    point = jnp.asarray(free)
    jacobian = np.asarray(jax.jacfwd(vector)(point))
    whole = jacobian @ covariance @ jacobian.T
    spread = np.sqrt(np.maximum(np.diag(whole), 0.0))
    relative = np.max(np.divide(np.diag(covariance_error), np.diag(covariance)), initial=0.0)
    parts = {
        "theta": np.asarray(vector(point)),
        "spread": spread,
        "error": np.sqrt((jacobian**2) @ mode_error**2),
        "spread_error": spread * relative,
    }
    ends = np.cumsum(list(sizes.values()))

    def named(values: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: values[end - sizes[name] : end].reshape(model.parameters[name].shape)
            for name, end in zip(sizes, ends, strict=True)
        }

    return Estimate(
        theta=named(parts["theta"]),
        standard_errors=named(parts["spread"]),
        covariance=whole,
        monte_carlo_errors=named(parts["error"]),
        standard_error_errors=named(parts["spread_error"]),
        log_likelihood=log_likelihood,
        method=method,
        converged=converged,
        verdict=verdict,
        random_seed=seed,
    )
