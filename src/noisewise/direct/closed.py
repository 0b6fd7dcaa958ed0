r"""Weighted densities that need neither knots nor rejection, drawn by their quantile functions.

``normal_laplace``. With tau^2 the variance, b the scale, a_r = (centre - mean)/tau + tau/b and a_l = (mean - centre)/tau + tau/b,

    exp(-(y - mean)^2 / 2 tau^2 - |y - centre| / b)

is two truncated normals that meet at ``centre``; relative to the density there their masses are tau R(a_r) and tau R(a_l), R
being Mills' ratio, and beyond the centre the distance is tau (t - a) for t a standard normal above a.

Normal weight on the integers. exp(-(k - m)^2 / 2v - |k| / b) is, for k >= 0, the lattice normal exp(-(k - m + v/b)^2 / 2v) up
to a constant, and its mirror image for k < 0; times exp(-k^2 / 2s^2) it is one lattice normal with precision 1/v + 1/s^2. A
lattice normal is cut at its centre into the half-lines of :mod:`.tails`. A lognormal weight on a uniform base is a truncated
normal in log y.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.direct.bases import (
    DiscreteLaplaceBase,
    GaussianBase,
    LaplaceBase,
    Uniform,
)
from noisewise.direct.step import Target
from noisewise.direct.tails import lattice_log_mass, lattice_quantile, log_mills, normal_excess
from noisewise.direct.weights import LognormalWeight, NormalWeight
from noisewise.typing import Key

UNIFORMS = 3


def normal_laplace(key: Key, mean: Array, variance: Array, centre: Array, scale: Array) -> Array:
    """Exact draws of density proportional to ``exp(-(y - mean)^2 / (2 variance) - |y - centre| / scale)``, elementwise.

    This is a normal variable whose Laplace-noised release was ``centre``. No rejection, no loop: it can be used under ``jit``
    and ``vmap`` with traced arguments.

    >>> import jax, jax.numpy as jnp, noisewise as nw
    >>> y = nw.direct.normal_laplace(jax.random.key(0), jnp.zeros(3), 1.0, jnp.array([-1e6, 0.0, 1e6]), 0.5)
    >>> [round(float(value)) for value in y]
    [-2, 0, 2]
    """
    shape = jnp.broadcast_shapes(*(jnp.shape(value) for value in (mean, variance, centre, scale)))
    uniforms = jax.random.uniform(key, (2, *shape), dtype=float)
    return jnp.asarray(centre) + normal_laplace_noise(uniforms[0], uniforms[1], mean, variance, centre, scale)


def normal_laplace_noise(side: Array, v: Array, mean: Array, variance: Array, centre: Array, scale: Array) -> Array:
    """``y - centre`` for a draw ``y`` of :func:`normal_laplace` made of two uniforms."""
    deviation = jnp.sqrt(variance)
    return two_tails(side, v, (centre - mean) / deviation, deviation, scale)


def two_tails(side: Array, v: Array, offset: Array, deviation: Array, scale: Array) -> Array:
    """A draw t of density proportional to ``exp(-(t / deviation + offset)^2 / 2 - |t| / scale)``; ``deviation`` may be huge."""
    tilt = deviation / scale
    right, left = tilt + offset, tilt - offset
    on_right = side < jax.nn.sigmoid(log_mills(right) - log_mills(left))
    distance = deviation * normal_excess(v, jnp.where(on_right, right, left))
    return jnp.where(on_right, distance, -distance)


def _lattice_normal_log_masses(centre: Array, scale: Array, first: Array, last: Array) -> tuple[Array, ...]:
    """Starts, counts and log masses of the half-lines of ``exp(-(k - centre)^2 / 2 scale^2)`` on ``first <= k <= last``."""
    up = jnp.maximum(jnp.ceil(centre), first)
    down = jnp.minimum(jnp.ceil(centre) - 1, last)
    up_count, down_count = jnp.maximum(last - up + 1, 0.0), jnp.maximum(down - first + 1, 0.0)
    log_up = lattice_log_mass(jnp.maximum(up - centre, 0.0), up_count, scale)
    log_down = lattice_log_mass(jnp.maximum(centre - down, 0.0), down_count, scale)
    return up, up_count, log_up, down, down_count, log_down


def lattice_normal(
    side: Array, v: Array, centre: Array, scale: Array, first: Array, last: Array
) -> tuple[Array, Array]:
    """A draw ``k`` of mass proportional to ``exp(-(k - centre)^2 / (2 scale^2))`` on ``first <= k <= last``, and its log "
    "total mass."""
    up, up_count, log_up, down, down_count, log_down = _lattice_normal_log_masses(centre, scale, first, last)
    rises = side < jax.nn.sigmoid(log_up - log_down)
    start = jnp.where(rises, up - centre, centre - down)
    steps = lattice_quantile(v, jnp.maximum(start, 0.0), jnp.where(rises, up_count, down_count), scale)
    return jnp.where(rises, up + steps, down - steps), jnp.logaddexp(log_up, log_down)


def normal_discrete_laplace_noise(
    half: Array, side: Array, v: Array, centre: Array, variance: Array, scale: Array
) -> Array:
    """A draw ``k`` of mass proportional to ``exp(-(k - centre)^2 / (2 variance) - |k| / scale)``, made of three uniforms."""
    deviation, shift = jnp.sqrt(variance), variance / scale
    zero, minus_one, end = jnp.zeros_like(centre), jnp.full_like(centre, -1.0), jnp.full_like(centre, jnp.inf)

    def log_mass(middle: Array, first: Array, last: Array, edge: Array) -> Array:
        _, _, log_up, _, _, log_down = _lattice_normal_log_masses(middle, deviation, first, last)
        return jnp.logaddexp(log_up, log_down) + 0.5 * ((edge - middle) / deviation) ** 2

    log_right = log_mass(centre - shift, zero, end, zero)
    log_left = log_mass(centre + shift, -end, minus_one, minus_one) - (0.5 + centre) / variance - 1 / scale
    on_right = half < jax.nn.sigmoid(log_right - log_left)
    middle = jnp.where(on_right, centre - shift, centre + shift)
    first, last = jnp.where(on_right, zero, -end), jnp.where(on_right, end, minus_one)
    return lattice_normal(side, v, middle, deviation, first, last)[0]


def closed_form(target: Target) -> Callable[[Array], Array] | None:
    """The sampler of a pair that has one: a function of ``(UNIFORMS, ...)`` uniforms, for one target; else None."""
    weight, base = target.weight, target.base
    match weight, base:
        case NormalWeight(), DiscreteLaplaceBase():
            centre = target.latent(weight.mu)
            return lambda u: normal_discrete_laplace_noise(
                u[0], u[1], u[2], jnp.full(u.shape[1:], centre), weight.sigma2, base.scale
            )
        case NormalWeight(), LaplaceBase():
            zero = jnp.asarray(0.0)
            return lambda u: normal_laplace_noise(u[0], u[1], target.latent(weight.mu), weight.sigma2, zero, base.scale)
        case NormalWeight(), GaussianBase():
            share = base.scale**2 / (weight.sigma2 + base.scale**2)
            centre, deviation = share * target.latent(weight.mu), jnp.sqrt(weight.sigma2 * share)
            end = jnp.asarray(jnp.inf)
            if base.discrete:
                return lambda u: lattice_normal(u[1], u[2], jnp.full(u.shape[1:], centre), deviation, -end, end)[0]
            return lambda u: centre + GaussianBase(deviation).truncated((u[1], u[2]), -end, end)
        case NormalWeight(), Uniform():
            centre = target.latent(weight.mu)
            normal = GaussianBase(jnp.sqrt(weight.sigma2))
            return lambda u: centre + normal.truncated((u[1], u[2]), base.lower - centre, base.upper - centre)
        case LognormalWeight(), Uniform():
            near, far = target.latent(base.lower), target.latent(base.upper)
            ends = (
                jnp.log(jnp.maximum(end, 0.0)) - weight.mu for end in (jnp.minimum(near, far), jnp.maximum(near, far))
            )
            low, high = ends
            normal = GaussianBase(jnp.sqrt(weight.sigma2))
            return lambda u: target.latent(jnp.exp(weight.mu + normal.truncated((u[1], u[2]), low, high)))
    return None


def discrete_window(key: Key, log_mass: Array, first: Array) -> Array:
    """Exact draws from log masses listed on consecutive integers (or any lattice of step one).

    ``log_mass[..., j]`` is the log mass, up to a constant, at ``first + j``; ``-inf`` is no mass. One uniform and one
    cumulative sum a draw: the way to take for a target whose support is short.

    >>> import jax, jax.numpy as jnp, noisewise as nw
    >>> float(nw.direct.discrete_window(jax.random.key(0), jnp.array([-jnp.inf, 0.0, -jnp.inf]), jnp.array(4.5)))
    5.5
    """
    mass = jnp.exp(log_mass - jnp.max(log_mass, axis=-1, keepdims=True))
    reached = jnp.cumsum(mass, axis=-1)
    goal = jax.random.uniform(key, reached.shape[:-1], dtype=float) * reached[..., -1]
    return first + jnp.sum(reached <= goal[..., None], axis=-1)
