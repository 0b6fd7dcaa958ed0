r"""What releases of Gaussian noise cost, in closed form: tight (epsilon, delta), zCDP and Renyi accounting.

Neighbours are two data sets of the same, public size n that differ by the substitution of one record (``replace_one``);
``mu`` is the thesis's number ``sum_i Delta_i^2 / (2 sigma_i^2)`` over all Gaussian releases, ``Delta_i`` the l2
sensitivity under that relation. A composition of Gaussian mechanisms, adaptive or not, has the normal privacy loss
``N(mu, 2 mu)`` (Sommer, Meiser and Mohammadi 2019), so one additive number is the whole ledger and

    delta(epsilon) = (erfc((epsilon - mu)/(2 sqrt mu)) - e^epsilon erfc((epsilon + mu)/(2 sqrt mu))) / 2

exactly. The same number is the zCDP parameter rho, and ``alpha mu`` the Renyi divergence of order alpha.

Subsampled releases draw a batch of fixed size WITHOUT replacement; bounds for Poisson sampling under add/remove, the default
of most accountants, are not valid for them. Privacy-loss distributions are in :mod:`noisewise.private.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import erfc, erfcx, gammaln, logsumexp

ORDERS: tuple[int, ...] = (*range(2, 65), *range(68, 129, 4), *range(136, 513, 8))
"""The Renyi orders tried when a bound is turned into (epsilon, delta); subsampling bounds need integers."""

Conversion = Literal["thesis", "improved"]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def checked_epsilon(epsilon: float) -> float:
    """Epsilon as a float; refuses what is not finite and positive."""
    if not isinstance(epsilon, Real) or not math.isfinite(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon must be finite and positive; got {epsilon!r}. Common choices lie between 0.1 and 6.")
    return float(epsilon)


def checked_delta(delta: float) -> float:
    """Delta as a float; refuses zero, which Gaussian noise cannot give, and one, which promises nothing."""
    if not isinstance(delta, Real) or not 0 < delta < 1:
        raise ValueError(
            f"delta must lie strictly between 0 and 1; got {delta!r}. Gaussian noise never gives pure epsilon-DP: "
            "state a delta well below 1/n, such as 0.1/n."
        )
    return float(delta)


def checked_whole(value: float, name: str, smallest: int = 1) -> int:
    """A whole number of at least ``smallest`` as an int, whatever its type."""
    if isinstance(value, bool) or not isinstance(value, Real) or value % 1 != 0 or value < smallest:
        raise ValueError(f"{name} must be a whole number of at least {smallest}; got {value!r}.")
    return int(value)


def checked_number(value: float, name: str) -> float:
    """A finite number as a float."""
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}.")
    return float(value)


def checked_positive(value: float, name: str) -> float:
    """A finite positive number as a float."""
    if not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be finite and positive; got {value!r}.")
    return float(value)


def _checked_cost(value: float, name: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite and not negative; got {value!r}.")
    return float(value)


# Tight accounting of Gaussian releases ---------------------------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    r"""The smallest delta at which Gaussian releases worth ``mu`` are (epsilon, delta)-DP. Neighbours: replace_one, no
    sampling.

    Theorems 2.11 (3), 3.2 and 4.3 of the thesis; tight. Written with ``erfcx(t) = e^{t^2} erfc(t)`` as
    ``e^{-t^2} (erfcx(t) - erfcx(u)) / 2``, ``t, u = (epsilon -+ mu) / (2 sqrt mu)``, so that small deltas keep their digits; where t
    and u are close, their difference is the integral of ``-erfcx'(x) = 2/sqrt(pi) - 2 x erfcx(x)``.

    >>> round(gaussian_delta(1.0, 0.5), 6)
    0.126937
    """
    mu, epsilon = _checked_cost(mu, "mu"), checked_number(epsilon, "epsilon")
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    if epsilon < 0:  # the law of the loss is symmetric in the two neighbours
        return -math.expm1(epsilon) + math.exp(epsilon) * gaussian_delta(-epsilon, mu)
    root = math.sqrt(mu)
    t = 0.5 * (epsilon / root - root)
    u = t + root
    if mu < 1e-4:
        x = t + root * (0.5 + 0.5 * _NODES)
        slope = 2 / math.sqrt(math.pi) - 2 * x * erfcx(x)
        return float(0.25 * root * math.exp(-t * t) * max(0.0, np.dot(_WEIGHTS, slope)))
    if t < 0:
        return float(0.5 * (erfc(t) - math.exp(-t * t) * erfcx(u)))
    return float(0.5 * math.exp(-t * t) * (erfcx(t) - erfcx(u)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 with ``gaussian_delta(epsilon, mu) <= delta``. Neighbours: replace_one, no sampling."""
    delta, mu = checked_delta(delta), _checked_cost(mu, "mu")
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = zcdp_epsilon(mu, delta)
    while gaussian_delta(high, mu) > delta:  # mu so large that what was added to it was rounded away
        high *= 2
    step = 1e-15 * high
    root = float(brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, high, xtol=step, rtol=1e-15, maxiter=1000))
    while gaussian_delta(root, mu) > delta:  # the root finder may stop a hair on the wrong side
        root, step = root + step, 2 * step
    return root


def max_mu(epsilon: float, delta: float) -> float:
    """The largest ``mu`` with ``gaussian_delta(epsilon, mu) <= delta``. Neighbours: replace_one, no sampling.

    A run of k iterations, each worth ``mu_step``, is affordable when ``k mu_step <= max_mu``.

    >>> round(max_mu(1.0, 1e-6), 6)
    0.028014
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    low = zcdp_rho(epsilon, delta)
    high = max(2 * low, 1e-300)
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    root = float(brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, low, high, xtol=1e-300, rtol=1e-14))
    step = 1e-15 * root
    while gaussian_delta(epsilon, root) > delta:
        root, step = root - step, 2 * step
    return root


# Zero-concentrated differential privacy -----------------------------------------------------------------------------------


def zcdp_epsilon(rho: float, delta: float, *, conversion: Conversion = "thesis") -> float:
    """The epsilon of a rho-zCDP run at ``delta``. Neighbours: whatever relation rho was stated for.

    ``"thesis"``: ``rho + 2 sqrt(rho log(1/delta))`` (Theorem 2.5). ``"improved"``: the least over real alpha > 1 of
    ``alpha rho + log(1 - 1/alpha) - log(alpha delta)/(alpha - 1)`` (Canonne, Kamath and Steinke 2020, Proposition 12).

    >>> round(zcdp_epsilon(0.02, 1e-6), 4), round(zcdp_epsilon(0.02, 1e-6, conversion="improved"), 4)
    (1.0713, 0.8999)
    """
    rho, delta = _checked_cost(rho, "rho"), checked_delta(delta)
    _checked_conversion(conversion)
    loose = rho + 2 * math.sqrt(rho * -math.log(delta))
    if conversion == "thesis" or rho == 0:
        return loose

    def bound(step: float) -> float:
        alpha = 1 + math.exp(step)
        return alpha * rho + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)

    centre = 0.5 * math.log(-math.log(delta) / rho)  # the thesis's optimal alpha; the better one is near it
    grid = centre + np.linspace(-3.0, 3.0, 6001)
    return max(0.0, min(loose, min(bound(float(step)) for step in grid)))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The rho whose Theorem 2.5 conversion is exactly (epsilon, delta): ``(sqrt(epsilon - log delta) - sqrt(-log delta))^2``.

    Neighbours: whatever relation rho is stated for; of the Gaussian releases here, replace_one.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    logarithm = -math.log(delta)
    return (epsilon / (math.sqrt(epsilon + logarithm) + math.sqrt(logarithm))) ** 2


def zcdp_delta(epsilon: float, rho: float) -> float:
    """The delta of a rho-zCDP run at epsilon by Theorem 2.5: ``exp(-(epsilon - rho)^2 / (4 rho))``, one where epsilon <= rho.

    Neighbours: whatever relation rho was stated for.
    """
    rho, epsilon = _checked_cost(rho, "rho"), checked_epsilon(epsilon)
    if rho == 0:
        return 0.0
    return 1.0 if epsilon <= rho else math.exp(-((epsilon - rho) ** 2) / (4 * rho))


# Renyi differential privacy ---------------------------------------------------------------------------------------------------


def _checked_order(order: float) -> float:
    if not isinstance(order, Real) or not order > 1:
        raise ValueError(f"a Renyi order must exceed 1; got {order!r}.")
    return float(order)


def rdp_gaussian(order: float, mu: float) -> float:
    """The Renyi divergence ``order * mu`` of Gaussian releases worth mu. Neighbours: replace_one, no sampling. Exact."""
    return _checked_order(order) * _checked_cost(mu, "mu")


def rdp_subsampled(order: int, batch: int, n: int, rdp: Callable[[int], float]) -> float:
    r"""The Renyi cost of a mechanism run on a batch drawn from n records.

    Sampling: fixed size, without replacement; neighbours: replace_one. Wang, Balle and Kasiviswanathan 2019, Theorem 9, for a
    mechanism whose pure-DP epsilon is infinite, as in Theorems 3.3 and 3.5 of the thesis. With ``q = batch/n`` and
    ``rdp(j)`` the batch's own cost, replace_one among batch records:

        log(1 + q^2 C(a,2) min(4(e^{rdp(2)} - 1), 2 e^{rdp(2)}) + 2 sum_{j=3}^a q^j C(a,j) e^{(j-1) rdp(j)}) / (a - 1)

    never more than ``rdp(a)`` itself.

    >>> round(rdp_subsampled(8, 100, 10_000, lambda order: order * 0.5), 6)
    0.002684
    """
    order = checked_whole(order, "the order of a subsampling bound", 2)
    batch, n = checked_batch(batch, n)
    if not callable(rdp):
        raise ValueError(f"rdp must be a function that gives the batch's own cost at an order; got {rdp!r}.")
    q = batch / n
    whole, second = (_checked_order_cost(rdp, j) for j in (order, 2))
    terms = [0.0]
    pair = math.log(order * (order - 1) / 2) + 2 * math.log(q)
    small = math.log(4) + second + math.log(-math.expm1(-second)) if second > 0 else -math.inf
    terms.append(pair + min(small, math.log(2) + second))
    if order >= 3:
        j = np.arange(3, order + 1)
        choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        costs = np.array([_checked_order_cost(rdp, int(k)) for k in j])
        terms.extend(math.log(2) + j * math.log(q) + choose + (j - 1) * costs)
    return min(whole, float(logsumexp(terms)) / (order - 1))


def rdp_barker(order: float, batch: int) -> float:
    r"""The Renyi cost of one DP Barker release on its batch: ``lambda + N(0, 2 - s^2)`` (Theorem 3.3). Neighbours:
    replace_one.

    The log-likelihood ratios are clipped at ``sqrt(batch)/(T n)``, so that the ratio's mean of ``batch`` terms moves by
    at most ``2/sqrt(batch)`` and the variance ``s^2 <= 1`` by at most ``4 (batch - 1)/batch^2``:

        5/(2b) + log(2b/(b - 5a)) / (2(a - 1)) + 2a/(b - 5a),   1 < a < b/5

    An upper bound, infinite for orders past b/5.

    >>> round(rdp_barker(4, 1000), 6)
    0.129555
    """
    order, batch = _checked_order(order), checked_whole(batch, "batch")
    room = batch - 5 * order
    if room <= 0:
        return math.inf
    return 5 / (2 * batch) + math.log(2 * batch / room) / (2 * (order - 1)) + 2 * order / room


def rdp_epsilon(
    rdp: Sequence[float], delta: float, *, orders: Sequence[float] = ORDERS, conversion: Conversion = "thesis"
) -> float:
    """The least epsilon over the orders at which a run with these Renyi costs is (epsilon, delta)-DP.

    ``"thesis"``: ``rdp - log(delta)/(a - 1)`` (Mironov 2017); ``"improved"``: that plus ``log(1 - 1/a) - log(a)/(a - 1)``
    (Canonne, Kamath and Steinke 2020), never larger. Neighbours: whatever relation the costs were stated for.

    >>> round(rdp_epsilon([0.1 * a for a in ORDERS], 1e-5), 4)
    2.2466
    """
    delta = checked_delta(delta)
    cost, a = _checked_curve(rdp, orders, conversion)
    epsilon = cost - math.log(delta) / (a - 1)
    if conversion == "improved":
        epsilon = epsilon + np.log1p(-1 / a) - np.log(a) / (a - 1)
    return max(0.0, float(np.min(epsilon)))


def rdp_delta(
    epsilon: float, rdp: Sequence[float], *, orders: Sequence[float] = ORDERS, conversion: Conversion = "thesis"
) -> float:
    """The least delta over the orders at which a run with these Renyi costs is (epsilon, delta)-DP; the inverse of :func:`rdp_epsilon`.

    Neighbours: whatever relation the costs were stated for.
    """
    cost, a = _checked_curve(rdp, orders, conversion)
    exponent = (a - 1) * (cost - checked_number(epsilon, "epsilon"))
    if conversion == "improved":
        exponent = exponent + (a - 1) * np.log1p(-1 / a) - np.log(a)
    return math.exp(min(0.0, float(np.min(exponent))))


def _checked_curve(
    rdp: Sequence[float], orders: Sequence[float], conversion: str
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    _checked_conversion(conversion)
    cost, a = np.asarray(rdp, dtype=float), np.asarray(orders, dtype=float)
    if cost.ndim != 1 or not cost.size or cost.shape != a.shape or not np.all(a > 1) or not np.all(cost >= 0):
        raise ValueError(
            f"give one Renyi cost, not negative, for each order past 1; got {cost.size} costs for {a.size} orders."
        )
    return cost, a


def _checked_conversion(conversion: str) -> None:
    if conversion not in ("thesis", "improved"):
        raise ValueError(f"conversion must be 'thesis' or 'improved'; got {conversion!r}.")


def _checked_order_cost(rdp: Callable[[int], float], order: int) -> float:
    cost = rdp(order)
    if not isinstance(cost, Real) or not cost >= 0:
        raise ValueError(f"a Renyi cost must be a number, not negative; got {cost!r} at order {order}.")
    return float(cost)


def checked_batch(batch: int, n: int) -> tuple[int, int]:
    """The sizes of batch and data as whole numbers; refuses a batch that is empty or larger than the data."""
    n = checked_whole(n, "n")
    if isinstance(batch, bool) or not isinstance(batch, Real) or batch % 1 != 0 or not 1 <= batch <= n:
        raise ValueError(f"the batch must hold a whole number of records between 1 and n = {n}; got {batch!r}.")
    return int(batch), n


def __dir__() -> list[str]:
    return [*globals(), "pld_compose", "pld_delta", "pld_epsilon", "pld_gaussian", "pld_subsampled"]


def __getattr__(name: str) -> object:
    """The privacy-loss distributions, found here too; their module is read only when one is asked for."""
    if name.startswith("pld_"):
        from noisewise.private import losses

        return getattr(losses, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ORDERS",
    "gaussian_delta",
    "gaussian_epsilon",
    "max_mu",
    "rdp_barker",
    "rdp_delta",
    "rdp_epsilon",
    "rdp_gaussian",
    "rdp_subsampled",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
