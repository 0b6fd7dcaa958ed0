r"""The step function under which a direct sampler draws u, and how far it is from the truth (Raim 2021, section 2).

With A_u = {x : w(x) > u c} and c = sup w, the pair (x, u) of density g(x) 1[x in A_u] has the weighted density w g as the law
of x; u has density proportional to the nonincreasing function P(A_u), P under g. On knots u_0 < ... < u_N the step function

    h*(u) = P(A_0) on [0, u_0),     P(A_{u_{j-1}}) on [u_{j-1}, u_j),     0 beyond u_N

lies above it everywhere: an envelope that needs no further constant. Let R_j be the rectangles between the two values of
P(A_u) at the ends of each piece. Then  psi/c = int P(A_u) du >= int h* - sum |R_j| = L,  which is the area of the lower step
function, so that

    total variation between the laws of u   <=  (c/psi) sum |R_j|  <=  sum |R_j| / L       (Result 2.1)
    probability of accepting a draw from h* >=  1 - sum |R_j| / int h*.

Both are computed, in logs. ``log_u`` is the argument everywhere: u spans tens of decades. Knots: halve, at the midpoint of log
u, the piece whose rectangle is largest (Algorithm 1 with geometric midpoints). The outer knots: P(A_u) = 0 beyond u_N, found
by bisection; below u_0 there is less than e^-42 of the whole area.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from noisewise.direct.bases import Base
from noisewise.direct.tails import log1mexp
from noisewise.direct.weights import Pair, Weight

_GOLDEN = 0.6180339887498949
_GOLDEN_STEPS = 64
_BISECTIONS = 64
_NEGLIGIBLE = 42.0
_DEEPEST = -(2.0**60)


class Target(eqx.Module):
    """One weighted density ``w(x) g(x)``, or ``w(released - x) g(x)`` when a released value is given."""

    weight: Weight
    base: Base
    released: Float[Array, "..."] | None

    def resolved(self) -> Target:
        return Target(self.weight.resolved(), self.base, self.released)

    def latent(self, x: Array) -> Array:
        """The argument of the weight at ``x`` (and the other way round)."""
        return x if self.released is None else self.released - x

    def log_weight(self, x: Array) -> Array:
        return self.weight.log_weight(self.latent(x))

    def log_density(self, x: Array) -> Array:
        """The log of ``w g`` relative to the weight's largest value, not normalised."""
        return self.log_weight(x) + self.base.log_prob(x)

    def support(self) -> Pair:
        """The interval on which the weight is positive, in the coordinate of the base."""
        low, high = self.weight.support()
        return (low, high) if self.released is None else (self.released - high, self.released - low)

    def interval(self, log_u: Array) -> Pair:
        """The open interval A_u, in the coordinate of the base."""
        low, high = self.weight.roots(log_u)
        return (low, high) if self.released is None else (self.released - high, self.released - low)

    def log_probability(self, log_u: Array) -> Array:
        """``log P(A_u)``."""
        return self.base.log_interval(*self.interval(log_u))


class StepFunction(eqx.Module):
    """An upper step function of P(A_u): knots ``log_u`` (..., N+1), ``log_p = log P(A_u)`` there, and ``log P(A_0)``."""

    log_u: Float[Array, "... knots"]
    log_p: Float[Array, "... knots"]
    log_p_zero: Float[Array, "..."]

    @property
    def heights(self) -> Array:
        """Log heights of the pieces, the first one being [0, u_0)."""
        return jnp.concatenate([self.log_p_zero[..., None], self.log_p[..., :-1]], axis=-1)

    @property
    def log_widths(self) -> Array:
        steps = self.log_u[..., 1:] + log1mexp(self.log_u[..., 1:] - self.log_u[..., :-1])
        return jnp.concatenate([self.log_u[..., :1], steps], axis=-1)

    @property
    def log_areas(self) -> Array:
        """Log areas of the pieces of h*."""
        return self.heights + self.log_widths

    @property
    def log_excess(self) -> Array:
        """``log sum |R_j|``."""
        upper, lower = self.heights, self.log_p
        return logsumexp(_log_difference(upper, lower) + self.log_widths, axis=-1)

    @property
    def bound(self) -> Array:
        """An upper bound on the total-variation distance between the step law of u (hence of x) and the exact one."""
        log_lower = logsumexp(self.log_p + self.log_widths, axis=-1)
        return jnp.minimum(jnp.exp(self.log_excess - log_lower), 1.0)

    @property
    def acceptance(self) -> Array:
        """A lower bound on the probability that a draw of the step law is accepted as exact."""
        log_total = logsumexp(self.log_areas, axis=-1)
        log_lower = logsumexp(self.log_p + self.log_widths, axis=-1)
        return jnp.exp(log_lower - log_total)

    def draw(self, pick: Array, within: Array) -> Pair:
        """``(log u, log h*(u))`` for two arrays of uniforms; for one target (no leading axes)."""
        areas = self.log_areas
        shares = jnp.cumsum(jnp.exp(areas - jnp.max(areas)))
        piece = jnp.minimum(jnp.searchsorted(shares, pick * shares[-1], side="right"), areas.shape[0] - 1)
        top = jnp.take(self.log_u, piece)
        gap = top - jnp.take(jnp.concatenate([jnp.array([-jnp.inf]), self.log_u]), piece)
        return top + jnp.log1p(within * jnp.expm1(-gap)), jnp.take(self.heights, piece)

    def with_knot(self, log_u: Array, log_p: Array, wanted: Array) -> StepFunction:
        """One more knot where ``wanted``, in place of the last one (which must be spare); for one target."""
        place = jnp.searchsorted(self.log_u, log_u)
        index = jnp.arange(self.log_u.shape[0])

        def put(old: Array, new: Array) -> Array:
            shifted = jnp.roll(old, 1)
            return jnp.where(wanted & (index == place), new, jnp.where(wanted & (index > place), shifted, old))

        return StepFunction(put(self.log_u, log_u), put(self.log_p, log_p), self.log_p_zero)


def _log_difference(larger: Array, smaller: Array) -> Array:
    """``log(exp(larger) - exp(smaller))``, ``-inf`` where they agree."""
    gap = jnp.where(jnp.isneginf(smaller), jnp.inf, larger - smaller)
    return jnp.where(jnp.isneginf(larger), -jnp.inf, larger + log1mexp(jnp.maximum(gap, 0.0)))


def knot_range(target: Target) -> tuple[Array, Array, Array]:
    """``(log u_0, log u_N, log P(A_0))`` of one target."""
    log_p_zero = target.log_probability(jnp.asarray(-jnp.inf))

    def whole(log_u: Array) -> Array:
        return (target.log_probability(log_u) >= log_p_zero - 1e-9) | (log_u <= _DEEPEST)

    deepest = jax.lax.while_loop(lambda s: ~whole(s), lambda s: 2 * s, jnp.asarray(-1.0))

    # a large u P(A_u), which is a lower bound on the whole area: any u serves, the best one saves knots
    def area(log_u: Array) -> Array:
        return log_u + target.log_probability(log_u)

    def narrow(_: int, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        low, high, best, at = state
        step = _GOLDEN * (high - low)
        left, right = high - step, low + step
        at_left, at_right = area(jnp.stack([left, right]))
        descending = at_left >= at_right
        value, place = jnp.maximum(at_left, at_right), jnp.where(descending, left, right)
        return (
            jnp.where(descending, low, left),
            jnp.where(descending, right, high),
            jnp.maximum(best, value),
            jnp.where(value > best, place, at),
        )

    start = (deepest, jnp.zeros_like(deepest), deepest + log_p_zero - 1e-9, deepest)
    _, _, best, at = jax.lax.fori_loop(0, _GOLDEN_STEPS, narrow, start)

    def halve(_: int, ends: Pair) -> Pair:
        low, high = ends
        middle = 0.5 * (low + high)
        empty = jnp.isneginf(target.log_probability(middle))
        return jnp.where(empty, low, middle), jnp.where(empty, middle, high)

    _, top = jax.lax.fori_loop(0, _BISECTIONS, halve, (at, jnp.zeros_like(at)))
    return jnp.minimum(best - log_p_zero - _NEGLIGIBLE, -_NEGLIGIBLE), top, log_p_zero


def place_knots(target: Target, knots: int) -> StepFunction:
    """Algorithm 1 with midpoints of log u: ``knots`` pieces on [u_0, u_N], for one target."""
    log_u_low, log_u_high, log_p_zero = knot_range(target)

    def rectangle(low: Array, high: Array, p_low: Array, p_high: Array) -> Array:
        return _log_difference(p_low, p_high) + high + log1mexp(high - low)

    empty = jnp.full((knots,), -jnp.inf)
    lows, highs = empty.at[0].set(log_u_low), empty.at[0].set(log_u_high)
    p_lows, p_highs = empty.at[0].set(target.log_probability(log_u_low)), empty
    areas = empty.at[0].set(rectangle(lows[0], highs[0], p_lows[0], p_highs[0]))

    def split(count: Array, pieces: tuple[Array, ...]) -> tuple[Array, ...]:
        lows, highs, p_lows, p_highs, areas = pieces
        worst = jnp.argmax(areas)
        low, high, p_low, p_high = lows[worst], highs[worst], p_lows[worst], p_highs[worst]
        middle = 0.5 * (low + high)
        p_middle = jnp.clip(target.log_probability(middle), p_high, p_low)
        return (
            lows.at[count].set(middle),
            highs.at[worst].set(middle).at[count].set(high),
            p_lows.at[count].set(p_middle),
            p_highs.at[worst].set(p_middle).at[count].set(p_high),
            areas.at[worst]
            .set(rectangle(low, middle, p_low, p_middle))
            .at[count]
            .set(rectangle(middle, high, p_middle, p_high)),
        )

    lows, _, p_lows, _, _ = jax.lax.fori_loop(1, knots, split, (lows, highs, p_lows, p_highs, areas))
    order = jnp.argsort(lows)
    log_u = jnp.append(lows[order], log_u_high)
    return StepFunction(log_u, jnp.append(p_lows[order], -jnp.inf), log_p_zero)
