r"""The normal law of a statistic and of what was released of it: at few levels, or truncated or clamped at public bounds.

Public bounds [a, b] cut the line into below, centre and above. Inside, the released row is affine in the family's statistic,
``r(x) = L t(x) + c``; below and above it is constant (zero for a truncated sum, the value at the bound for a clamped moment). With
``log q_j(eta)`` the log probability of piece j, ``g_j`` its gradient and ``G_j`` its Hessian (Bernstein and Sheldon 2018, Lemma 1),

    E[t | j] = mu + g_j,   Var[t | j] = Sigma + G_j,   mu = A'(eta),   Sigma = A''(eta).

*Joint* central limit theorem: the sums of ``(t, r)`` over n records are normal with n times the mean and covariance of one
record's ``(t, r)``. The pieces enter through the central moments ``f_j = E[(t - mu) 1_j] = q_j g_j`` and ``S_j = q_j (Sigma + G_j + g_j
g_j')``, which keep their digits. *Independent* one, the paper's Algorithms 2 and 3: each piece's sum of t has variance ``q_j
Var[t | j] + q_j (1 - q_j) E[t | j] E[t | j]'`` a record and the three are taken as independent, which they are not: their counts are
multinomial, so that the covariances ``-E[t 1_j] E[t 1_k]'`` are missing. Checked by ``tests/engines/test_sufficient_truncation.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from noisewise.kernels.statistics import Picture, StatisticLaw
from noisewise.models.form import ExponentialForm
from noisewise.typing import Key, Theta


class Piece(NamedTuple):
    """The probability of a piece, and its first and second moments of ``t - mu``, over the piece (not given it)."""

    probability: Float[Array, ""]
    first: Float[Array, " d"]
    second: Float[Array, "d d"]


def piece(log_probability: Callable[[Array], Array], eta: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Piece:
    """The moments of one piece from its log probability as a function of eta."""
    value, gradient = jax.value_and_grad(log_probability)(eta)
    hessian = jax.hessian(log_probability)(eta)
    probability = jnp.exp(value)
    return Piece(
        probability, probability * gradient, probability * (covariance + hessian + jnp.outer(gradient, gradient))
    )


class SupportLaw(StatisticLaw):
    """Totals of t that fix the released totals: t on finitely many levels, or a release that is affine in t everywhere."""

    form: ExponentialForm

    def moments(self, theta: Theta) -> Picture:
        eta = self.form.natural(theta)
        return Picture(self.form.mean(eta), self.form.covariance(eta))

    def update(self, key: Key, theta: Theta, joint: Float[Array, " k"], n: Float[Array, ""]) -> Theta:
        return self.form.update(key, theta, joint, n)

    def possible(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return self.form.possible(joint, n)


class LevelsLaw(StatisticLaw):
    """Totals ``J = (sum t, sum r)`` of a family on the levels 0, 1, ... and of any released row, one of ``rows`` for each level."""

    form: ExponentialForm
    rows: Float[Array, "levels m"]

    def moments(self, theta: Theta) -> Picture:
        eta = self.form.natural(theta)
        x = jnp.arange(self.rows.shape[0])
        both = jnp.concatenate([self.form.statistic(x), self.rows], axis=1)
        weights = jax.nn.softmax(self.form.log_density(x, eta))
        centred = both - weights @ both
        return Picture(weights @ both, (weights[:, None] * centred).T @ centred)

    def update(self, key: Key, theta: Theta, joint: Float[Array, " k"], n: Float[Array, ""]) -> Theta:
        return self.form.update(key, theta, joint[: self.form.size], n)

    def possible(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return self.form.possible(joint[: self.form.size], n)


class TruncatedLaw(StatisticLaw):
    """Totals ``J = (sum t, sum r)`` of a family's statistic and of a truncated or clamped released row."""

    form: ExponentialForm
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    slope: Float[Array, "m d"]
    constant: Float[Array, " m"]
    below: Float[Array, " m"]
    above: Float[Array, " m"]
    reaches_below: bool = eqx.field(static=True)
    reaches_above: bool = eqx.field(static=True)
    flat: bool = eqx.field(static=True)
    independent: bool = eqx.field(static=True)

    def moments(self, theta: Theta) -> Picture:
        eta = self.form.natural(theta)
        mean, covariance = self.form.mean(eta), self.form.covariance(eta)
        centre = piece(lambda e: self.form.log_between(e, self.lower, self.upper), eta, covariance)
        if self.independent:
            return self._independent(eta, mean, covariance, centre)
        inside = self.slope @ mean + self.constant
        low, high = self.below - inside, self.above - inside
        if self.flat or not self.reaches_below:
            # all the outside is above: its central moments are what the centre lacks
            q_low, first_low = jnp.zeros(()), jnp.zeros_like(mean)
            q_high = 1 - centre.probability
        else:
            lower = piece(lambda e: self.form.log_below(e, self.lower), eta, covariance)
            q_low, first_low = lower.probability, lower.first
            q_high = jnp.maximum(0.0, 1 - centre.probability - q_low)
        first_high = -centre.first - first_low
        if not (self.reaches_below or self.reaches_above):
            q_high, first_high = jnp.zeros(()), jnp.zeros_like(mean)
        released = self.slope @ centre.first + q_low * low + q_high * high
        middle = self.slope @ centre.second @ self.slope.T
        spread = middle + q_low * jnp.outer(low, low) + q_high * jnp.outer(high, high) - jnp.outer(released, released)
        cross = centre.second @ self.slope.T + jnp.outer(first_low, low) + jnp.outer(first_high, high)
        return _joined(mean, inside + released, covariance, cross, spread)

    def _independent(self, eta: Array, mean: Array, covariance: Array, centre: Piece) -> Picture:
        first, variance = _random_sum(centre, mean)
        total = variance
        if self.reaches_below:
            lower = piece(lambda e: self.form.log_below(e, self.lower), eta, covariance)
            total = total + _random_sum(lower, mean)[1]
        if self.reaches_above:
            upper = piece(lambda e: self.form.log_above(e, self.upper), eta, covariance)
            total = total + _random_sum(upper, mean)[1]
        slope = self.slope
        return _joined(mean, slope @ first, total, variance @ slope.T, slope @ variance @ slope.T)

    def update(self, key: Key, theta: Theta, joint: Float[Array, " k"], n: Float[Array, ""]) -> Theta:
        return self.form.update(key, theta, joint[: self.form.size], n)

    def possible(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Bool[Array, ""]:
        return self.form.possible(joint[: self.form.size], n)


def _random_sum(part: Piece, mean: Float[Array, " d"]) -> tuple[Array, Array]:
    """Mean and variance, a record, of the sum of t over the records that fall in one piece."""
    first = part.first + part.probability * mean
    shift = jnp.outer(part.first, mean)
    second = part.second + shift + shift.T + part.probability * jnp.outer(mean, mean)
    return first, second - jnp.outer(first, first)


def _joined(mean: Array, released: Array, covariance: Array, cross: Array, spread: Array) -> Picture:
    return Picture(jnp.concatenate([mean, released]), jnp.block([[covariance, cross], [cross.T, spread]]))
