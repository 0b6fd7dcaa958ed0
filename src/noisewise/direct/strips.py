r"""Exact draws from a piecewise log-linear envelope of w(x) g(x): vertical strips, with a computed rejection bound.

The real line is cut at the landmarks of weight and base (modes, points of inflection, kinks), so that on each strip [a, b] log
w is concave or convex and log g is concave. Then

    log w  <=  its tangent at the middle (concave)   or its chord (convex),        log g  <=  its tangent,

and the other way round for lower bounds. A strip therefore has an upper and a lower exponential of known mass, on the real
line or on the lattice; the strip with the largest difference is cut in two until the lower masses are a given share of the
upper ones. A draw picks a strip, draws the truncated exponential (geometric) variable in it and is accepted with probability w
g / envelope: exact whatever the strips, and accepted with probability at least (sum of lower masses) / (sum of upper masses).
This is concave-convex adaptive rejection sampling (Goerur and Teh 2011) with a bounded number of strips. A weight of unknown
curvature is bounded by its values at the ends of the strip.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from noisewise.direct.step import Target
from noisewise.direct.tails import log1mexp
from noisewise.direct.weights import Pair, from_ordinal, ordinal
from noisewise.typing import Key

_FLAT = 1e-9
_BISECTIONS = 64
_TAIL = 2.0
TOLERANCE = 0.2


class Piece(eqx.Module):
    """The envelope on a strip: ``peak`` at its higher end, falling at ``rate`` inwards, and the log masses of both bounds."""

    peak: Array
    rate: Array
    from_left: Array
    log_upper: Array
    log_lower: Array


def _exponential_mass(peak: Array, rate: Array, width: Array, discrete: bool) -> Array:
    """Log mass of ``exp(peak - rate t)`` over ``0 <= t <= width``, or over the integers ``0 <= t < width``."""
    fall = rate * width
    flat = fall < _FLAT
    safe = jnp.where(flat, 1.0, rate)
    unit = log1mexp(safe) if discrete else jnp.log(safe)
    return peak + jnp.where(flat, jnp.log(width), log1mexp(jnp.where(flat, 1.0, fall)) - unit)


def _line(
    value: Array, slope: Array, reach_left: Array, reach_right: Array, width: Array, discrete: bool
) -> tuple[Array, ...]:
    """Peak, rate, side of the peak and log mass of the exponential through ``value`` with ``slope``."""
    rising = slope > 0
    distance = jnp.where(rising, reach_right, reach_left)
    rate = jnp.abs(slope)
    peak = value + jnp.where(rate > 0, rate * distance, 0.0)
    return peak, rate, ~rising, _exponential_mass(peak, rate, width, discrete)


def _heavy_end(target: Target, left: Array, right: Array, fall: Array) -> tuple[Array, Array, Array]:
    """The end of a bounded strip where the target is higher, the direction inwards, and a length over which it falls by "
    "about ``_TAIL``.

    A weight of unknown slope is followed down by ``fall`` instead.

    The length is infinite where the target rises inwards.
    """

    def height(x: Array) -> Array:
        return target.log_weight(x) + target.base.log_shape(x)

    top_left, top_right = height(left), height(right)
    end = jnp.where(top_left >= top_right, left, right)
    inward = jnp.where(top_left >= top_right, 1.0, -1.0)
    if target.weight.curved:
        side = jnp.where(left + right < 0, -1.0, 1.0)
        drop = -inward * (_turn(target) * target.weight.slope(target.latent(end)) + target.base.slope(end, side))
        return end, inward, jnp.where(drop > 0, _TAIL / jnp.where(drop > 0, drop, 1.0), jnp.inf)

    # no slope is known: bisect the distance over all floats, so that a strip 1e30 wide is still touched at the target's own scale
    goal = jnp.maximum(top_left, top_right) - fall

    def halve(_: int, ends: Pair) -> Pair:
        near, far = ends
        middle = (near + far) >> 1
        high = height(end + inward * from_ordinal(middle)) >= goal
        return jnp.where(high, middle, near), jnp.where(high, far, middle)

    span = right - left
    near, _ = jax.lax.fori_loop(0, _BISECTIONS, halve, (ordinal(jnp.zeros_like(span)), ordinal(span)))
    return end, inward, from_ordinal(near)


def _turn(target: Target) -> float:
    return 1.0 if target.released is None else -1.0


def envelope(target: Target, a: Array, b: Array) -> Piece:
    """Upper and lower exponentials on the strip from ``a`` to ``b`` (both included on the lattice, where ``b < a`` is empty)."""
    discrete = target.base.discrete
    width = b - a + 1 if discrete else b - a
    there = width > 0
    open_left, open_right = jnp.isneginf(a), jnp.isposinf(b)
    bounded = ~(open_left | open_right)
    left = jnp.where(there, jnp.where(open_left, b, a), 0.0)
    right = jnp.where(there, jnp.where(open_right, a, b), 0.0)
    end, inward, reach = _heavy_end(target, left, right, jnp.asarray(_TAIL))
    touch = end + inward * jnp.minimum(reach / _TAIL, 0.5 * (right - left))
    span = jnp.where(right > left, right - left, 1.0)

    base_left, base_touch, base_right = (target.base.log_shape(x) for x in (left, touch, right))
    base_slope = target.base.slope(touch, jnp.where(left + right < 0, -1.0, 1.0))
    base_chord = jnp.where(bounded, (base_right - base_left) / span, base_slope)

    weight_left, weight_touch, weight_right = (target.log_weight(x) for x in (left, touch, right))
    if target.weight.curved:
        latent = target.latent(touch)
        tangent = _turn(target) * target.weight.slope(latent)
        concave = target.weight.concave(target.latent(0.5 * (left + right)))
        # an end where the weight is zero has no chord; a convex tail lies below its value at the finite end
        chord = jnp.where(bounded, (weight_right - weight_left) / span, 0.0)
        usable = jnp.isfinite(chord)
        chord = jnp.where(usable, chord, 0.0)
        start = jnp.where(usable, weight_left, jnp.maximum(weight_left, weight_right))
        chord_touch = start + chord * (touch - left)
        up_value, up_slope = jnp.where(concave, weight_touch, chord_touch), jnp.where(concave, tangent, chord)
        low_value = jnp.where(concave, jnp.where(usable, chord_touch, -jnp.inf), weight_touch)
        low_slope = jnp.where(concave, chord, tangent)
    else:
        up_value, low_value = jnp.maximum(weight_left, weight_right), jnp.minimum(weight_left, weight_right)
        up_slope = low_slope = jnp.zeros_like(up_value)

    reach_left, reach_right = touch - left, right - touch
    peak, rate, from_left, log_upper = _line(
        up_value + base_touch, up_slope + base_slope, reach_left, reach_right, width, discrete
    )
    low_start = low_value + base_left + jnp.where(bounded, base_chord * reach_left, 0.0)
    _, _, _, log_lower = _line(low_start, low_slope + base_chord, reach_left, reach_right, width, discrete)
    endless = ~bounded & jnp.where(open_left, from_left, ~from_left)
    log_upper = jnp.where(there, jnp.where(endless, jnp.inf, log_upper), -jnp.inf)
    log_lower = jnp.where(there & bounded & (low_start > -jnp.inf), jnp.minimum(log_lower, log_upper), -jnp.inf)
    return Piece(peak, rate, from_left, log_upper, log_lower)


def _cut(target: Target, a: Array, b: Array, rate: Array, fall: Array) -> Array:
    """Where to cut a strip: near its higher end at the local scale, else half way on the weight's own scale."""
    open_left, open_right = jnp.isneginf(a), jnp.isposinf(b)
    tail = jnp.where(open_left, b - _TAIL / rate, a + _TAIL / rate)
    left, right = jnp.where(open_left, b - 1, a), jnp.where(open_right, a + 1, b)
    end, inward, reach = _heavy_end(target, left, right, fall)
    near, far = target.latent(left), target.latent(right)
    half = target.latent(target.weight.between(jnp.minimum(near, far), jnp.maximum(near, far)))
    local = jnp.where(reach < jnp.abs(half - end), end + inward * jnp.where(jnp.isfinite(reach), reach, 0.0), half)
    return jnp.where(open_left | open_right, tail, local)


class Strips(eqx.Module):
    """Strips ``[a, b]`` with their envelopes."""

    a: Float[Array, "... strips"]
    b: Float[Array, "... strips"]
    piece: Piece

    @property
    def acceptance(self) -> Array:
        """A lower bound on the probability that a proposal is accepted."""
        return jnp.exp(logsumexp(self.piece.log_lower, axis=-1) - logsumexp(self.piece.log_upper, axis=-1))

    def propose(self, target: Target, pick: Array, within: Array, accept: Array) -> tuple[Array, Array]:
        """Proposals and whether they are accepted, for three arrays of uniforms; for one target."""
        log_upper = self.piece.log_upper
        shares = jnp.cumsum(jnp.exp(log_upper - jnp.max(log_upper)))
        strip = jnp.sum(pick[..., None] * shares[-1] >= shares, axis=-1)
        strip = jnp.minimum(strip, shares.shape[0] - 1)
        a, b, piece = jax.tree.map(lambda leaf: jnp.take(leaf, strip), (self.a, self.b, self.piece))
        width = b - a + 1 if target.base.discrete else b - a
        fall = piece.rate * width
        flat = fall < _FLAT
        rate = jnp.where(flat, 1.0, piece.rate)
        step = jnp.where(flat, within * width, -jnp.log1p(within * jnp.expm1(-jnp.where(flat, 1.0, fall))) / rate)
        if target.base.discrete:
            step = jnp.minimum(jnp.floor(step), width - 1)
        x = jnp.where(piece.from_left, a + step, b - step)
        height = target.log_weight(x) + target.base.log_shape(x)
        return x, jnp.log(accept) <= height - (piece.peak - piece.rate * step)


def first_strips(target: Target, spare: int) -> Strips:
    """The strips between the landmarks, with ``spare`` empty ones after them; for one target."""
    discrete = target.base.discrete
    low, high = target.support()
    base_low, base_high = target.base.support()
    low, high = jnp.maximum(low, base_low), jnp.minimum(high, base_high)
    marks = jnp.concatenate([target.latent(target.weight.landmarks()), target.base.landmarks()])
    marks = jnp.sort(jnp.clip(jnp.where(jnp.isnan(marks), low, marks), low, high))
    edges = jnp.concatenate([low[None], marks, high[None]])
    a, b = edges[:-1], edges[1:]
    if discrete:
        a = jnp.floor(a) + 1
        b = jnp.where(jnp.arange(b.shape[0]) == b.shape[0] - 1, jnp.ceil(b) - 1, jnp.floor(b))
        b = jnp.minimum(b, jnp.ceil(high) - 1)
    piece = jax.vmap(envelope, in_axes=(None, 0, 0))(target, a, b)
    none, flag = jnp.full((spare,), -jnp.inf), jnp.zeros((spare,), dtype=bool)
    empty = Strips(none, none, Piece(none, none, flag, none, none))
    return jax.tree.map(lambda some, spares: jnp.concatenate([some, spares]), Strips(a, b, piece), empty)


def build_strips(target: Target, spare: int, tolerance: float = TOLERANCE) -> Strips:
    """Cut the worst strip until at least ``1 - tolerance`` of the proposals are accepted or ``spare`` cuts are made; for one "
    "target."""
    start = first_strips(target, spare)
    count = start.a.shape[0] - spare

    def unfinished(state: tuple[Array, Strips]) -> Array:
        used, strips = state
        return (used < start.a.shape[0]) & ~(strips.acceptance >= 1 - tolerance)

    def cut(state: tuple[Array, Strips]) -> tuple[Array, Strips]:
        used, strips = state
        upper, lower = strips.piece.log_upper, strips.piece.log_lower
        gap = jnp.where(jnp.isneginf(upper), 0.0, upper - lower)
        excess = jnp.where(jnp.isneginf(upper), -jnp.inf, upper + log1mexp(gap))
        worst = jnp.argmax(excess)
        a, b = strips.a[worst], strips.b[worst]
        fall = jnp.clip(0.5 * (upper[worst] - jnp.max(lower)), _TAIL, 1e300)
        at = _cut(target, a, b, strips.piece.rate[worst], fall)
        if target.base.discrete:
            at = jnp.clip(jnp.floor(at), a, b - 1)
            beyond = at + 1
        else:
            at = jnp.clip(at, a, b)
            beyond = at
        lefts, rights = jnp.stack([a, beyond]), jnp.stack([at, b])
        halves = Strips(lefts, rights, jax.vmap(envelope, in_axes=(None, 0, 0))(target, lefts, rights))
        slots = jnp.stack([worst, used])
        return used + 1, jax.tree.map(lambda old, new: old.at[slots].set(new), strips, halves)

    return jax.lax.while_loop(unfinished, cut, (jnp.asarray(count), start))[1]


def draw_from_strips(key: Key, target: Target, strips: Strips, count: int, rounds: int) -> tuple[Array, Array]:
    """``count`` exact draws and whether each was reached within ``rounds`` proposals; for one target."""

    def again(state: tuple[Array, Key, Array, Array]) -> Array:
        return (state[0] < rounds) & ~jnp.all(state[3])

    def attempt(state: tuple[Array, Key, Array, Array]) -> tuple[Array, Key, Array, Array]:
        tried, key, draws, done = state
        key, now = jax.random.split(key)
        uniforms = jax.random.uniform(now, (3, count), dtype=float)
        x, accepted = strips.propose(target, uniforms[0], uniforms[1], 1 - uniforms[2])
        return tried + 1, key, jnp.where(done, draws, x), done | accepted

    possible = jnp.isfinite(jnp.max(strips.piece.log_upper))
    start = (jnp.asarray(0), key, jnp.full((count,), jnp.nan), jnp.full((count,), ~possible))
    _, _, draws, done = jax.lax.while_loop(again, attempt, start)
    reached = done & possible
    return jnp.where(reached, draws, jnp.nan), reached
