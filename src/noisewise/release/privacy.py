r"""What a release costs: pure epsilon, rho of zero-concentrated privacy, or (epsilon, delta), and the scales that buy them.

| noise | guarantee of one measurement |
|---|---|
| Laplace, discrete Laplace | pure: ``epsilon = max ||change / scale||_1`` |
| Gaussian, discrete Gaussian | zCDP: ``rho = max ||change / scale||_2^2 / 2`` |

Pure losses add, and ``epsilon`` is also ``epsilon^2 / 2`` of zCDP (Bun and Steinke 2016), whose losses add as well. A
release of Gaussian measurements has the *tight* delta of the Gaussian mechanism (Balle and Wang 2018) with
``mu = rho``, because independent Gaussian measurements are one Gaussian measurement; every other mixture goes from
``rho`` to ``(epsilon, delta)`` by the optimised tail bound of Canonne, Kamath and Steinke (2020, Corollary 13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

Measure = Literal["pure", "zcdp", "approximate"]


class Privacy(eqx.Module):
    """A guarantee. ``loss`` is epsilon (``pure``, ``approximate``) or rho (``zcdp``); its numbers are array leaves."""

    measure: Measure = eqx.field(static=True)
    loss: Float[Array, ""]
    delta: Float[Array, ""]

    def __init__(self, measure: Measure, loss: ArrayLike, delta: ArrayLike = 0.0) -> None:
        self.measure = measure
        self.loss = jnp.asarray(loss, dtype=float)
        self.delta = jnp.asarray(delta, dtype=float)
        if self.measure not in ("pure", "zcdp", "approximate"):
            raise ValueError(f"A privacy measure is 'pure', 'zcdp' or 'approximate'; got {self.measure!r}.")
        if not (math.isfinite(float(self.loss)) and float(self.loss) >= 0):
            raise ValueError(f"A privacy loss must be a number of at least 0; got {float(self.loss)}.")
        if (self.measure == "approximate") != (0 < float(self.delta) < 1):
            raise ValueError(
                f"delta must lie strictly between 0 and 1 for an (epsilon, delta) guarantee and be left out of the others; "
                f"got delta={float(self.delta)} with {self.measure!r}."
            )

    def __str__(self) -> str:
        loss = f"{float(self.loss):.6g}"
        if self.measure == "pure":
            return f"epsilon = {loss} (pure differential privacy)"
        if self.measure == "zcdp":
            return f"rho = {loss} (zero-concentrated differential privacy)"
        return f"epsilon = {loss}, delta = {float(self.delta):.6g} (approximate differential privacy)"

    def approximate(self, delta: float, *, gaussian: bool = False) -> Privacy:
        """The same promise as (epsilon, delta); ``gaussian`` says that all the noise was continuous Gaussian."""
        _open_unit("delta", delta)
        if self.measure == "pure":
            return Privacy("approximate", self.loss, delta)
        if self.measure == "approximate":
            if delta < float(self.delta):
                raise ValueError(
                    f"A guarantee at delta={float(self.delta):.6g} says nothing at the smaller delta={delta:.6g}."
                )
            return Privacy("approximate", self.loss, delta)
        rho = float(self.loss)
        return Privacy("approximate", gaussian_epsilon(delta, rho) if gaussian else zcdp_epsilon(rho, delta), delta)


def compose(parts: Sequence[Privacy]) -> Privacy:
    """The guarantee of several measurements of the same records together."""
    losses = [float(part.loss) for part in parts]
    measures = {part.measure for part in parts}
    if measures == {"pure"}:
        return Privacy("pure", math.fsum(losses))
    if "approximate" not in measures:
        rhos = [loss if part.measure == "zcdp" else loss * loss / 2 for loss, part in zip(losses, parts, strict=True)]
        return Privacy("zcdp", math.fsum(rhos))
    if "zcdp" not in measures:
        return Privacy("approximate", math.fsum(losses), math.fsum(float(part.delta) for part in parts))
    raise ValueError(
        "Measurements stated as (epsilon, delta) and as rho cannot be composed without choosing a delta; "
        "convert each with .approximate(delta) first."
    )


def gaussian_delta(epsilon: float, mu: float) -> float:
    r"""The exact delta at ``epsilon`` of Gaussian noise with ``mu = sensitivity^2 / (2 sd^2)`` (Balle and Wang 2018).

    ``delta = (erfc(u) - e^epsilon erfc(v)) / 2`` with ``u, v = (epsilon -+ mu) / (2 sqrt mu)``; since ``v^2 - u^2 = epsilon``
    it is ``e^{-u^2} (erfcx(u) - erfcx(v)) / 2``, which keeps its digits in the tail.
    """
    from scipy import special

    if mu == 0:
        return 0.0
    root = 2 * math.sqrt(mu)
    u, v = (epsilon - mu) / root, (epsilon + mu) / root
    if u > 0:
        return float(0.5 * math.exp(-(u**2)) * (special.erfcx(u) - special.erfcx(v)))
    return float(0.5 * (special.erfc(u) - math.exp(-(u**2)) * special.erfcx(v)))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon with ``gaussian_delta(epsilon, mu) <= delta``."""
    _open_unit("delta", delta)
    return _first(lambda epsilon: gaussian_delta(epsilon, mu) <= delta, start=max(mu, 1e-12))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest ``mu`` with ``gaussian_delta(epsilon, mu) <= delta``."""
    _positive("epsilon", epsilon)
    _open_unit("delta", delta)
    return 1 / _first(lambda inverse: gaussian_delta(epsilon, 1 / inverse) <= delta, start=1 / epsilon)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """A delta at which ``rho``-zCDP gives ``(epsilon, delta)``: Canonne, Kamath and Steinke (2020), Corollary 13.

    Every order ``a > 1`` gives the valid ``exp((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1)``. Its logarithm is convex in
    a, with derivative ``(2a - 1) rho - epsilon + log(1 - 1/a)``, so the best order is the zero of that.
    """
    from scipy import optimize

    if rho == 0:
        return 0.0

    def slope(log_excess: float) -> float:
        excess = math.exp(log_excess)
        return (2 * excess + 1) * rho - epsilon - float(np.logaddexp(0.0, -log_excess))

    # the slope is negative where log(1 + 1/excess) >= 1 + rho - epsilon and 2 rho excess <= 1, positive past the other end
    low = min(-1.0 - max(rho - epsilon, 0.0), -math.log(2 * rho))
    log_excess = float(optimize.brentq(slope, low - 1, math.log(epsilon / rho + 1 / math.sqrt(rho)) + 1, xtol=1e-12))
    excess = math.exp(log_excess)
    order = 1 + excess
    # (1 - 1/a)^a / (a - 1) = (a - 1)^(a - 1) / a^a
    return math.exp(min(0.0, excess * (order * rho - epsilon) + excess * log_excess - order * math.log1p(excess)))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon with ``zcdp_delta(rho, epsilon) <= delta``."""
    _open_unit("delta", delta)
    return _first(lambda epsilon: zcdp_delta(rho, epsilon) <= delta, start=max(rho, 1e-12))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest rho with ``zcdp_delta(rho, epsilon) <= delta``."""
    _positive("epsilon", epsilon)
    _open_unit("delta", delta)
    return 1 / _first(lambda inverse: zcdp_delta(1 / inverse, epsilon) <= delta, start=1 / epsilon)


def _first(holds: Callable[[float], bool], start: float) -> float:
    """The smallest positive number at which a condition that stays true holds, from above, to the last digits."""
    high = start
    while not holds(high):
        high *= 2
    low = high / 2
    while low > 1e-300 and holds(low):
        high, low = low, low / 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _open_unit(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {value!r}.")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite; got {value!r}.")
