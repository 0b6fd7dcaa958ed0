r"""Maximum likelihood: the parameters under which the release is most probable, with standard errors.

The likelihood is ``p(s | theta) = E[g(s, total(x)) | theta]``; the prior plays no part. Where it can be computed it is maximised
directly: sums over counts are differentiated and climbed (:mod:`noisewise.engines.exact_likelihood`), and the Fourier
integral of one released sum is followed along its one parameter (:mod:`noisewise.engines.fourier_likelihood`). Elsewhere the
maximum is reached by data cloning (:mod:`noisewise.likelihood_cloning`): with K copies of the confidential table, all seen
through the release, the posterior is ``p(theta) p(s | theta)^K``.

Plain Monte-Carlo EM would move by the share of the information that the release keeps, times the distance to go: thousands
of steps under wide noise, and it stops early without saying so. Cloning has one dial, and two runs that must agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
from jaxtyping import Array
from scipy import optimize

from noisewise.compilation import use_compilation_cache
from noisewise.engines.choose import check_pair
from noisewise.engines.counts_cells import Unsupported
from noisewise.engines.counts_likelihood import CountSurface
from noisewise.engines.exact_likelihood import exact_log_likelihood
from noisewise.engines.fourier_custom import Unsupported as Untransformed
from noisewise.engines.fourier_likelihood import Curve, likelihood_curve
from noisewise.estimate import Estimate, estimate_at
from noisewise.likelihood_cloning import by_cloning, check_clones, check_cloning
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.result import ConvergenceWarning
from noisewise.settings import Settings, check_seed
from noisewise.typing import Theta

Method = Literal["auto", "direct", "cloning"]

_STARTS = 256
_CLIMBS = 4
_FLAT = 0.5


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

    An estimate that is not a well-determined interior maximum, or that the runs have not pinned down, has
    ``converged=False``, and a warning says why.

    Parameters
    ----------
    model, release
        A model of the confidential records and what was published of them.
    method
        ``"direct"`` maximises the exact likelihood (models of counts; one parameter and one released sum), ``"cloning"`` is the
        Monte-Carlo way that works with any model that :func:`noisewise.sample` can augment; ``"auto"`` is the first that can.
    clones
        How many copies of the confidential table cloning uses, a multiple of 4; the error of the estimate falls like the
        inverse square.
    draws, tune, chains, target_ess, random_seed, progressbar
        As in :func:`noisewise.sample`, for each of the two runs of cloning.

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
    check_clones(clones)
    seed = check_seed(random_seed)
    use_compilation_cache()
    if method != "cloning":
        found = _directly(model, release)
        if isinstance(found, Estimate):
            return _announced(found)
        if method == "direct":
            raise ValueError(f"There is no direct likelihood: {found}. Take method='cloning'.")
    check_cloning(model, release, clones)
    settings = Settings(draws, tune, chains, 1, target_ess, progressbar=progressbar)
    return _announced(by_cloning(model, release, clones, settings, seed))


def _directly(model: Model, release: Release) -> Estimate | str:
    """The maximum of a likelihood that can be computed, or why it cannot."""
    try:
        likelihood = exact_log_likelihood(model, release)
    except Unsupported as reason:
        try:
            return _along(model, likelihood_curve(model, release))
        except Untransformed as another:
            if not isinstance(model, Bernoulli | Categorical):
                return f"{reason}; {another}"
            try:
                return _over(model, CountSurface(model, release))
            except Unsupported as windows:
                return f"{reason}; {another}; {windows}"
    return _climb(model, likelihood)


def _announced(estimate: Estimate) -> Estimate:
    if not estimate.converged:
        warnings.warn(estimate.verdict, ConvergenceWarning, stacklevel=3)
    return estimate


def _climb(model: Model, likelihood: Callable[[Theta], Array]) -> Estimate:
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
    return estimate_at(
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


def _along(model: Model, curve: Curve) -> Estimate:
    """The highest point of a curve, and whether it is a maximum."""
    free = np.array([curve.top])
    covariance, problem, remark = np.full((1, 1), np.nan), _NOT_INTERIOR, ""
    if curve.interior:
        slope, bend = curve.derivatives(curve.top)
        information = np.array([[-bend]])
        problem, remark = _shape_of_maximum(lambda z: -curve.value(float(z[0])), free, np.array([-slope]), information)
        covariance = covariance if problem else 1 / information
    return estimate_at(
        model,
        free,
        covariance,
        np.zeros(1),
        np.zeros((1, 1)),
        log_likelihood=curve.height,
        method="direct",
        converged=not problem,
        verdict=problem or f"Converged: a maximum of the exact likelihood, a Fourier integral.{remark}",
    )


def _over(model: Model, surface: CountSurface) -> Estimate:
    """The highest point of a surface, and whether it is a maximum."""
    free = surface.climb()
    information = -surface.bend(free)
    problem, remark = _shape_of_maximum(lambda z: -surface.value(z), free, -surface.slope(free), information)
    return estimate_at(
        model,
        free,
        np.full_like(information, np.nan) if problem else np.linalg.inv(information),
        np.zeros_like(free),
        np.zeros_like(information),
        log_likelihood=surface.value(free),
        method="direct",
        converged=not problem,
        verdict=problem or f"Converged: a maximum of the exact likelihood, a sum over windows of counts.{remark}",
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
    stopped = float(slope @ np.linalg.solve(information, slope)) > 1e-6
    here = value(free)
    falls = []
    for axis, size in zip(axes.T, 1 / np.sqrt(curvature), strict=True):
        for sign in (-4.0, 4.0):
            fall = value(free + sign * size * axis) - here
            falls.append(fall if np.isfinite(fall) else np.inf)
    if -1e-3 < min(falls) < 1e-3 or (min(falls) < 0 and not stopped):
        return _NOT_INTERIOR, ""
    if stopped:
        return "NOT converged: the climb stopped before a maximum. The likelihood may have no maximum at all.", ""
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
