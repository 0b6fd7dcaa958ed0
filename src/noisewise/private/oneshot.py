r"""The one-shot alternative: one noisy clipped mean, then inference that knows about the noise.

Records are moved towards a public ``centre`` until no further from it than ``radius``; the mean of what results has l2
sensitivity ``2 radius / n`` (neighbours replace_one), and one Gaussian release with the least noise that what is left of
the budget allows is the only thing the records ever tell. For a target whose likelihood is normal in coordinates u (the
Gaussian and banana models) the released mean is

    s ~ N(u, V / (T n) + sd^2 I)

when nothing was clipped, V the known covariance of a record, so the posterior of u is normal in closed form and
independent draws are free. On the thesis's linear-Gaussian targets this beats every private sampler; those earn their
cost where no low-dimensional statistic exists. For other models with a low-dimensional statistic: ``nw.publish`` it and
``nw.sample`` from the release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

import noisewise
from noisewise.private.accounting import checked_whole
from noisewise.private.budget import Budget
from noisewise.private.clipping import clip_gradients, unit_bits
from noisewise.private.ledger import GaussianStep, choose
from noisewise.private.mechanism import noisy
from noisewise.private.plan import checked_n, least, slack
from noisewise.private.records import Stream, Table, as_numbers
from noisewise.private.sample import RANDOM, matched_table, os_keys, seeded_keys
from noisewise.private.targets import Banana, Gaussian, as_target
from noisewise.settings import check_seed


def oneshot(
    target: Any,
    records: Mapping[str, Any] | np.ndarray | Array | Stream | Table,
    budget: Budget,
    *,
    n: int,
    centre: Any,
    radius: float,
    draws: int = 1000,
    testing: bool = False,
    random_seed: int | None = None,
) -> xr.DataTree:
    """A posterior from one noisy clipped mean that spends all that is left of the budget: the baseline of the private samplers.

    ``centre`` (d,) and ``radius`` are public: chosen without the records. A ``radius`` that most records keep costs
    little noise and no bias. The DataTree has groups ``posterior`` (independent draws) and ``observed_data`` (the
    released mean and its noise's sd).

    >>> import numpy as np
    >>> import noisewise as nw
    >>> records = {"x": np.random.default_rng(1).normal(3.0, 1.0, (2000, 1))}
    >>> target = nw.private.targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)
    >>> dt = nw.private.oneshot(target, records, nw.private.Budget(1.0, 1e-5), n=2000, centre=[0.0], radius=8.0)
    >>> bool(abs(float(dt["posterior"]["theta"].mean()) - 3) < 0.2)
    True
    """
    if random_seed is not None and not testing:
        raise ValueError("a private release takes no seed: leave random_seed out, or say testing=True.")
    target, n = normal(target), checked_n(n)
    if not isinstance(budget, Budget):
        raise ValueError(f"oneshot takes a Budget(epsilon, delta); got {budget!r}.")
    middle = jnp.asarray(as_numbers(centre, "centre"))
    if middle.shape != (target.size,) or not bool(jnp.all(jnp.isfinite(middle))):
        raise ValueError(f"centre must be {target.size} finite public numbers; got {centre!r}.")
    if not isinstance(radius, Real) or not math.isfinite(radius) or radius <= 0:
        raise ValueError(f"radius must be positive and finite; got {radius!r}.")
    draws = checked_whole(draws, "draws")
    keys = os_keys if random_seed is None else seeded_keys(check_seed(random_seed))
    table = matched_table(target, records, n, None)
    multiplier = least(
        lambda value: budget.allows([GaussianStep(1.0, value)]), slack(choose([*budget.ledger, GaussianStep(1.0, 1.0)]))
    )
    step = GaussianStep(sensitivity=2 * radius / n, scale=2 * radius / n * multiplier * (1 + 1e-12))
    if step.scale > radius:
        raise ValueError(
            f"what is left of the budget affords only noise of sd {step.scale:.3g}, wider than the radius {radius:g}: "
            "the release would say nothing. State a new budget."
        )
    budget.spend([step])
    releasing, drawing = (jax.random.wrap_key_data(data, impl=RANDOM) for data in jnp.asarray(keys(0, 1, 2))[0])
    bits = unit_bits(n)
    total = table.total(lambda part: clip_gradients(part["x"] - middle, jnp.asarray(radius), bits))
    unit = radius / 2.0**bits / n
    released = noisy(releasing, total, jnp.asarray(step.scale / unit))
    mean, sd = middle + unit * released.value, unit * jnp.sqrt(released.variance)
    posterior_mean, posterior_covariance = noise_aware(target, mean, sd, n)
    root = jnp.linalg.cholesky(posterior_covariance)
    straight = posterior_mean + jax.random.normal(drawing, (draws, target.size)) @ root.T
    theta = target.bend(straight) if isinstance(target, Banana) else straight
    return _results(theta, mean, sd, budget)


def normal(target: Any) -> Gaussian | Banana:
    """A target whose records are normal about u, or a sentence."""
    target = as_target(target)
    if isinstance(target, Gaussian | Banana):
        return target
    raise ValueError(
        f"{type(target).__name__} has no normal mean to release. Publish a statistic with nw.publish and infer with "
        "nw.sample, or use a private sampler."
    )


def noise_aware(
    target: Gaussian | Banana, mean: Float[Array, " d"], sd: Float[Array, ""], n: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean and covariance of u given the released mean: normal prior, normal sampling error, normal noise."""
    precision = target.precision if target.precision.ndim == 2 else jnp.diag(target.precision)
    covariance = jnp.linalg.inv(precision)
    size = len(mean)
    information = jnp.linalg.inv(covariance / (target.temper * n) + sd**2 * jnp.eye(size))
    spread = jnp.linalg.inv(information + jnp.eye(size) / target.prior_variance)
    return spread @ (information @ mean), spread


def _results(theta: Array, mean: Array, sd: Array, budget: Budget) -> xr.DataTree:
    coords = {"chain": np.arange(1), "draw": np.arange(len(theta))}
    posterior = xr.Dataset({"theta": (("chain", "draw", "theta_dim_0"), np.asarray(theta)[None])}, coords=coords)
    observed = xr.Dataset({"mean": (("theta_dim_0",), np.asarray(mean)), "noise_sd": ((), float(sd))})
    tree = xr.DataTree.from_dict({"posterior": posterior, "observed_data": observed})
    tree.attrs = {
        "inference_library": "noisewise",
        "inference_library_version": noisewise.__version__,
        "created_at": datetime.now(UTC).isoformat(),
        "noisewise_method": "one-shot clipped mean",
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "neighbours": budget.neighbours,
        "accountant": choose(budget.ledger),
        "epsilon_spent": budget.spent_epsilon(),
        "noisewise_exact": 0,
        "noisewise_reason": "exact if no record lies beyond the radius; how many do is not public",
        "noisewise_converged": 1,
        "noisewise_verdict": "Independent draws: nothing to converge.",
    }
    return tree
