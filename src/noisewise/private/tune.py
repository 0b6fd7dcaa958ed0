r"""Settings of a sampler from synthetic records, never from the confidential ones.

Tuning on the records would be a release of its own, and no accountant could price a person's choices. So :func:`tune` is given records the
data holder may look at: simulated from the prior predictive law (:func:`prior_predictive`), public, or left over from an earlier
study. It runs a random walk there, without privacy noise or clipping, and returns the sampler with

- ``proposal``: ``2.4 sd / sqrt(d)`` of the synthetic posterior (2.4 sd for one component at a time), and for HMC the mass ``1/sd^2``
  with a step such that L of them travel about one posterior sd, so that a trajectory does not turn back;
- ``clip``: the bound that clips a fraction ``clipped`` of the ratios (and gradients) met along the run;
- ``noise``: the tau at which the noise of a typical ratio has sd ``sigma``; a batch sampler keeps tau = 0.5, below which
  subsampling no longer amplifies, and takes shorter steps instead.

*Why sigma = 2.4.* A budget buys ``k ∝ tau^2`` iterations; for small steps of length s each accepts with probability ``2 Phi(-sigma/2)``,
``sigma ∝ tau s``. The squared distance travelled, ``k s^2 2 Phi(-sigma/2) ∝ sigma^2 Phi(-sigma/2)``, depends on sigma alone and is largest
at 2.38, where a step is accepted a quarter of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from noisewise.private.accounting import checked_positive, checked_whole
from noisewise.private.barker import Barker
from noisewise.private.hmc import HMC
from noisewise.private.minibatch import MinibatchPenalty
from noisewise.private.penalty import Penalty
from noisewise.private.plan import checked_n
from noisewise.private.sample import matched_columns, starting_points
from noisewise.private.target import Target, as_target
from noisewise.settings import check_seed
from noisewise.typing import Key, Records, Theta

BEST_SIGMA = 2.38
_BATCH_NOISE = 0.5


@dataclass(frozen=True)
class Tuned:
    """The sampler with its settings, and what it met on the synthetic records."""

    method: Any
    posterior_sd: Float[np.ndarray, " d"]
    clip_fraction: float
    sigma: float


def tune(
    target: Any,
    method: Penalty | MinibatchPenalty | Barker | HMC,
    synthetic: Mapping[str, Any] | np.ndarray | Array,
    *,
    n: int,
    clipped: float = 0.05,
    sigma: float = BEST_SIGMA,
    initvals: Mapping[str, Any] | None = None,
    iterations: int = 2000,
    random_seed: int = 0,
) -> Tuned:
    """Proposal, clip bounds and noise for ``method``, found on synthetic records; settings it already has are kept.

    ``n`` is the number of confidential records; with fewer synthetic ones the posterior's sd is scaled by the root of the ratio.

    >>> import noisewise as nw
    >>> target = nw.private.targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)
    >>> synthetic = {"x": np.random.default_rng(1).normal(0.0, 1.0, (500, 1))}
    >>> tuned = tune(target, Penalty(), synthetic, n=2000)
    >>> bool(0.01 < tuned.clip_fraction < 0.1)
    True
    """
    target, n = as_target(target), checked_n(n)
    if not isinstance(clipped, Real) or not 0 <= clipped < 1:
        raise ValueError(f"clipped must be a number in [0, 1); got {clipped!r}.")
    sigma = checked_positive(sigma, "sigma")
    if not isinstance(method, Penalty | MinibatchPenalty | Barker | HMC):
        raise ValueError(f"tune takes a sampler, such as Penalty(); got {method!r}.")
    columns = {name: jnp.asarray(column) for name, column in matched_columns(target, synthetic).items()}
    size = len(columns[target.columns[0]])
    if size == 0:
        raise ValueError("there are no synthetic records to tune on; simulate some, or take public ones.")
    start = starting_points(target, initvals, 1)[0]
    draws = _unnoised(target, columns, start, checked_whole(iterations, "iterations", 10), check_seed(random_seed))
    sd = np.std(draws[len(draws) // 2 :], axis=0) * math.sqrt(size / n)
    centre = jnp.asarray(np.mean(draws[len(draws) // 2 :], axis=0))
    steps = sd * jax.random.normal(jax.random.key(random_seed), (64, target.size)) / math.sqrt(target.size)

    def slopes(step: Array) -> Array:
        return jnp.abs(target.log_ratios(centre, centre + step, columns)) / jnp.linalg.norm(step)

    found = np.asarray(jax.lax.map(slopes, steps)).ravel()
    clip = float(np.quantile(found, 1 - clipped)) if clipped else float(np.max(found))
    lengths = np.linalg.norm(np.asarray(target.gradients(centre, columns)), axis=1)
    gradient_clip = float(np.quantile(lengths, 1 - clipped)) if clipped else float(np.max(lengths))
    made = _filled(method, target, sd, clip, gradient_clip, sigma, n)
    bound = clip if getattr(made, "clip", None) is None else float(made.clip)
    return Tuned(made, sd, float(np.mean(found > bound)), sigma)


def _unnoised(
    target: Target, columns: Records, start: Float[Array, " d"], iterations: int, seed: int
) -> Float[np.ndarray, "k d"]:
    """A random walk on the synthetic records without noise or clipping, its scale from the curvature at a mode found by ascent."""

    def log_posterior(theta: Array) -> Array:
        return target.temper * jnp.sum(target.log_likelihoods(theta, columns)) + target.log_prior(theta)

    objective = jax.jit(jax.value_and_grad(lambda theta: -log_posterior(theta)))
    found = minimize(lambda theta: tuple(map(np.asarray, objective(theta))), np.asarray(start), jac=True, method="BFGS")
    curvature = np.diag(np.asarray(jax.hessian(lambda theta: -log_posterior(theta))(jnp.asarray(found.x))))
    scale = 1 / np.sqrt(np.maximum(curvature, 1e-12 + 1e-6 * np.max(np.abs(curvature))))
    stride = 2.4 * scale / math.sqrt(target.size)

    def move(carry: tuple[Array, Array], key: Key) -> tuple[tuple[Array, Array], Array]:
        theta, now = carry
        one, two = jax.random.split(key)
        new = theta + stride * jax.random.normal(one, theta.shape)
        there = log_posterior(new)
        accepted = jnp.log(jax.random.uniform(two)) < there - now
        theta, now = jnp.where(accepted, new, theta), jnp.where(accepted, there, now)
        return (theta, now), theta

    mode = jnp.asarray(found.x)
    keys = jax.random.split(jax.random.key(seed), iterations)
    return np.asarray(jax.jit(lambda: jax.lax.scan(move, (mode, log_posterior(mode)), keys)[1])())


def _filled(
    method: Any, target: Target, sd: np.ndarray, clip: float, gradient_clip: float, sigma: float, n: int
) -> Any:
    known_clip = target.lipschitz
    ratio_clip = _or(getattr(method, "clip", None), clip if known_clip is None else known_clip)
    if isinstance(method, HMC):
        distance = float(np.sqrt(np.sum(sd**2)))
        return method._with(
            noise=_or(method.noise, sigma / _unit(target, ratio_clip, distance, n)),
            gradient_noise=_or(
                method.gradient_noise, _or(method.noise, sigma / _unit(target, ratio_clip, distance, n))
            ),
            clip=ratio_clip,
            gradient_clip=_or(method.gradient_clip, gradient_clip if known_clip is None else known_clip),
            step=_or(method.step_size, 1.0 / method.leapfrog),
            mass=1 / sd**2 if method.mass.ndim == 0 else method.mass,
        )
    single = getattr(method, "components", "all") != "all"
    proposal = _or(method.proposal, 2.4 * sd / (1.0 if single else math.sqrt(target.size)))
    if isinstance(method, Barker):
        return Barker(batch=method.batch, proposal=proposal)
    spread = np.broadcast_to(np.asarray(proposal, dtype=float), (target.size,))
    distance = float(np.sqrt(np.mean(spread**2) if single else np.sum(spread**2)))
    if isinstance(method, Penalty):
        noise = _or(method.noise, sigma / _unit(target, ratio_clip, distance, n))
        return Penalty(noise, clip=ratio_clip, proposal=proposal, components=method.components)
    noise = float(_or(method.noise, _BATCH_NOISE))
    room = 2 * (1 - 1 / method.batch)
    most = (math.sqrt(1 + room * sigma / math.sqrt(noise)) - 1) / room  # 2A + 2(1-1/b)A^2 = sigma/sqrt(tau)
    longest = most * method.batch / (n * float(target.temper) * float(ratio_clip))
    shorter = proposal if method.proposal is not None else spread * min(1.0, longest / distance)
    return MinibatchPenalty(noise, batch=method.batch, clip=ratio_clip, proposal=shorter, components=method.components)


def _unit(target: Target, clip: Any, distance: float, n: int) -> float:
    """The sd of a ratio's noise when tau is one, for a move of this length."""
    return float(target.temper) * math.sqrt(n) * 2 * float(clip) * distance


def _or(given: Any, found: Any) -> Any:
    return found if given is None else given


def prior_predictive(key: Key, simulate: Any, sample_prior: Any, n: int) -> tuple[Theta, Records]:
    """Theta from the prior and n records given it: ``sample_prior(key)`` and ``simulate(key, theta, n)``, as library models have them."""
    first, second = jax.random.split(key)
    theta = sample_prior(first)
    return theta, simulate(second, theta, n)
