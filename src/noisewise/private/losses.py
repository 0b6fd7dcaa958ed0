r"""Privacy-loss distributions of releases from a batch drawn without replacement, composed by dp-accounting.

Sampling: fixed size, WITHOUT replacement; neighbours: replace_one. One release adds ``N(0, scale^2)`` to a statistic of
the batch whose sensitivity, when one record OF THE BATCH is substituted, is ``sensitivity``; ``q = batch/n``. Two bounds
on its privacy profile ``delta(epsilon)``, measured in units where the sensitivity is 1 and the noise ``s =
scale/sensitivity``:

- ``"poisson"``, the default and what the thesis does: the pair ``q N(1, s^2) + (1-q) N(0, s^2)`` against
  ``q N(-1, s^2) + (1-q) N(0, s^2)``. It lets the substitution move the statistic by twice its sensitivity, so it is
  conservative: never below the second, see the end.
- ``"without_replacement"``: ``delta(log(1 + q(e^x - 1))) = q delta_G(x)`` for x >= 0, with ``delta_G`` the profile of the Gaussian
  release on the batch, and the profile for negative epsilon by symmetry.

*Proof of the second.* Let record i differ. ``M(X) = q P + (1-q) R`` and ``M(X') = q Q + (1-q) R``: P, Q the laws given that the batch
holds i, R the law given that it does not. For ``a = e^x >= 1``, ``a' = 1 + q(a - 1)``, advanced joint convexity of the hockey-stick
divergence (Balle, Barthe and Gaboardi 2018, Theorem 2) gives, with ``beta = a'/a``,

    H_a'(M(X) || M(X')) = q H_a(P || (1-beta) R + beta Q) <= q ((1-beta) H_a(P || R) + beta H_a(P || Q)).

P and Q run the mechanism on batches that differ by one record. So do P and R under a coupling: draw the b-1 others of
the batch uniformly from the n-1 common records, then replace i by a uniform record of the remaining ones: this is R. By joint
convexity both divergences are at most ``delta_G(x)``. The relation is symmetric, so the profile for epsilon < 0 follows
from ``H_{1/a}(P||Q) = 1 - 1/a + H_a(Q||P)/a``; a profile that bounds H_a for every a > 0 is realised by a dominating pair, and
dominating pairs compose adaptively (Zhu, Dong and Wang 2022, Theorem 10). The discretisation below connects the dots of
the profile (Doroshenko et al. 2022), which rounds up only.

*The first is never below the second.* The second is the hockey stick of ``A = q N(1) + (1-q) N(0)`` against ``N(0)`` at
``a >= 1``, attained on ``S = {z > t}``, ``t = s^2 log((a - 1 + q)/q) + 1/2 > 0``. There ``N(-1)`` has less density than ``N(0)``, so
``H_a(A || q N(-1) + (1-q) N(0)) >= A(S) - a (q N(-1) + (1-q) N(0))(S) >= A(S) - a N(0)(S)``. Both are symmetric in the two
neighbours, so the same holds for a < 1: the pair dominates every release, and its compositions theirs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import erfc, erfcx

from noisewise.private.accounting import checked_batch, checked_delta, checked_number, checked_positive, checked_whole

Pair = Literal["poisson", "without_replacement"]
INTERVAL = 1e-4
_TAIL = 1e-15
_MOST = 2_000_000


def pld_subsampled(
    *, sensitivity: float, scale: float, batch: int, n: int, pair: Pair = "poisson", interval: float = INTERVAL
) -> Any:
    """The privacy-loss distribution of one noisy statistic of a batch: a dp-accounting pmf, an upper bound.

    ``sensitivity`` is of the batch statistic under replace_one, ``scale`` the standard deviation of its noise; their ratio is
    formed here and nowhere else. Sampling: fixed size, without replacement; neighbours: replace_one.

    >>> one = pld_subsampled(sensitivity=2.0, scale=2.0, batch=100, n=10_000)
    >>> pld_delta(one, epsilon=1.0, count=500) < pld_delta(one, epsilon=1.0, count=1000)
    True
    """
    batch, n = checked_batch(batch, n)
    for name, value in (("sensitivity", sensitivity), ("scale", scale), ("interval", interval)):
        checked_positive(value, name)
    if pair not in ("poisson", "without_replacement"):
        raise ValueError(f"pair must be 'poisson' or 'without_replacement'; got {pair!r}.")
    return _subsampled(scale / sensitivity, batch / n, pair, interval)


@lru_cache(maxsize=32)
def _subsampled(multiplier: float, q: float, pair: Pair, interval: float) -> Any:
    if pair == "poisson":
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution

        if 2 * (1 + 10 * multiplier) / multiplier**2 / interval > _MOST:  # before it asks for that much memory
            raise _too_much(interval)
        # Under REPLACE_ONE dp-accounting's sensitivity is one record's, the two neighbours twice that apart
        return privacy_loss_distribution.from_gaussian_mechanism(
            multiplier,
            sensitivity=1.0,
            value_discretization_interval=interval,
            sampling_prob=q,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )._pmf_remove
    return _symmetric_pmf(lambda epsilon: without_replacement_profile(epsilon, multiplier, q), interval)


def without_replacement_profile(
    epsilon: Float[np.ndarray, " k"], multiplier: float, q: float
) -> Float[np.ndarray, " k"]:
    """The bound ``q delta_G(log(1 + (e^epsilon - 1)/q))`` on one release's delta, for epsilon >= 0 (see the module)."""
    small = np.minimum(epsilon, 1.0)
    decay = np.exp(-epsilon)
    inner = np.where(epsilon < 1, np.log1p(np.expm1(small) / q), epsilon + np.log(decay + (1 - decay) / q))
    return q * gaussian_profile(inner, 0.5 / multiplier**2)


def gaussian_profile(epsilon: Float[np.ndarray, " k"], mu: float) -> Float[np.ndarray, " k"]:
    """:func:`noisewise.private.accounting.gaussian_delta` over an array of epsilon >= 0."""
    root = 2 * math.sqrt(mu)
    t, u = (epsilon - mu) / root, (epsilon + mu) / root
    positive = np.maximum(t, 0.0)
    bell = np.exp(-t * t)
    above = 0.5 * np.exp(-positive * positive) * (erfcx(positive) - erfcx(u))
    return np.where(t < 0, 0.5 * (erfc(t) - bell * erfcx(u)), above)


def pld_gaussian(mu: float, *, interval: float = INTERVAL) -> Any:
    """The distribution of Gaussian releases worth ``mu``, to compose with others. Neighbours: replace_one, no sampling."""
    mu, interval = checked_positive(mu, "mu"), checked_positive(interval, "interval")
    return _symmetric_pmf(lambda epsilon: gaussian_profile(epsilon, mu), interval)


def _symmetric_pmf(profile: Any, interval: float) -> Any:
    """Connect the dots of a profile that is the same in both directions; only epsilon >= 0 is evaluated.

    The mass at -epsilon is e^-epsilon times the mass at epsilon, and what remains of one lies at a loss of zero: no
    difference of numbers near one is formed.
    """
    from dp_accounting.pld import pld_pmf

    top = 1.0
    while float(profile(np.array([top]))[0]) > _TAIL:
        top *= 2
        if top / interval > _MOST:
            raise _too_much(interval)
    epsilon = interval * np.arange(math.ceil(top / interval) + 1)
    delta = np.minimum.accumulate(profile(epsilon))
    size = int(np.argmax(delta <= _TAIL))
    epsilon, delta = epsilon[: size + 1], delta[: size + 1]
    fall = -np.diff(delta)
    mass = fall / -np.expm1(-interval) - np.append(fall[1:], 0.0) / np.expm1(interval)
    upper = np.maximum(mass, 0.0)
    lower = (upper * np.exp(-epsilon[1:]))[::-1]
    infinity = float(delta[-1])
    centre = max(0.0, 1.0 - infinity - float(upper.sum() + lower.sum()))
    probabilities = np.concatenate([lower, [centre], upper])
    return pld_pmf.DensePLDPmf(interval, -size, probabilities, infinity, True)


def _too_much(interval: float) -> ValueError:
    return ValueError(
        f"one release may lose more than a privacy-loss grid of step {interval:g} can hold: add noise, or use another accountant "
        "('tight', or 'rdp_improved' for batches)."
    )


def pld_compose(*parts: tuple[Any, int]) -> Any:
    """The distribution of several releases: each part is a one-release distribution and how often it happens.

    Sampling and neighbours: those of the parts, which must be the same for all; of the distributions made here, replace_one.
    """
    composed = None
    for pmf, count in parts:
        count = checked_whole(count, "count")
        many = pmf.self_compose(count) if count > 1 else pmf
        composed = many if composed is None else composed.compose(many)
    if composed is None:
        raise ValueError("a composition needs at least one release; got none.")
    return composed


def pld_delta(pld: Any, *, epsilon: float, count: int = 1) -> float:
    """An upper bound on delta at ``epsilon`` after ``count`` releases of this distribution. Sampling and neighbours: the distribution's."""
    epsilon = checked_number(epsilon, "epsilon")
    return min(1.0, float(pld_compose((pld, count)).get_delta_for_epsilon(epsilon)))


def pld_epsilon(pld: Any, *, delta: float, count: int = 1) -> float:
    """An upper bound on epsilon at ``delta`` after ``count`` releases of this distribution. Sampling and neighbours: the distribution's."""
    return float(pld_compose((pld, count)).get_epsilon_for_delta(checked_delta(delta)))


__all__ = ["pld_compose", "pld_delta", "pld_epsilon", "pld_gaussian", "pld_subsampled"]
