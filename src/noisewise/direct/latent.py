r"""One exact draw per record of the latent value behind a noisy release: the moves of a Gibbs sampler on microdata.

Pure functions of traced arrays, for use under ``jit``, ``vmap`` and ``scan``: nothing is checked and nothing is raised. A
record whose law can be drawn in closed form is; the others go through the strips of :mod:`.strips`, whose first cuts at the
landmarks of weight and base usually suffice, or, for a base of unknown slope, the step function of :mod:`.step`. At most
``CUTS`` cuts and ``ROUNDS`` proposals are made a record; NaN marks a record that was not reached, which needs an acceptance
probability near zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.direct.bases import Base, as_base
from noisewise.direct.closed import UNIFORMS, closed_form
from noisewise.direct.samplers import ROUNDS, by_chunks, draw_one
from noisewise.direct.step import Target
from noisewise.direct.strips import build_strips, draw_from_strips
from noisewise.direct.weights import LognormalWeight, Weight
from noisewise.release.noise import DiscreteLaplace, Noise
from noisewise.typing import Key

CUTS = 16
_TOLERANCE = 0.5
_KNOTS = 50


def latent_value(key: Key, weight: Weight, base: Noise | Base, released: Array) -> Array:
    """One draw of y per record, of density ``weight(y) base(released - y)``; all parameters broadcast to the shape of the result.

    >>> import jax, jax.numpy as jnp, noisewise as nw
    >>> weight, base = nw.direct.StudentTWeight(3.0, 0.0, 1.0), nw.noise.Laplace(jnp.array([1e-6, 1e6]))
    >>> bool(jnp.abs(nw.direct.latent_value(jax.random.key(0), weight, base, jnp.array([5.0, 5.0]))[0] - 5) < 1e-4)
    True
    """
    target = Target(weight, as_base(base), jnp.asarray(released, dtype=float))
    shape = jnp.broadcast_shapes(*(leaf.shape for leaf in jax.tree.leaves(target)))
    records = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape).reshape(-1), target)
    count = records.released.shape[0]
    noise = by_chunks(_one, 1, jax.random.split(key, count), records)
    return (records.released - noise).reshape(shape)


def _one(key: Key, target: Target) -> Array:
    target = target.resolved()
    closed = closed_form(target)
    if closed is not None:
        return closed(jax.random.uniform(key, (UNIFORMS, 1), dtype=float))[0]
    if not target.base.sloped:
        return draw_one(key, target, "exact", 1, _KNOTS)[0][0]
    return draw_from_strips(key, target, build_strips(target, CUTS, _TOLERANCE), 1, ROUNDS)[0][0]


def lognormal_discrete_laplace(key: Key, mean: Array, variance: Array, released: Array, scale: Array) -> Array:
    r"""One draw of y per record given ``released = y + discrete Laplace noise`` and ``log y ~ N(mean, variance)``.

    The law (Raim 2021, equation 16) is on the lattice of positive numbers ``released - k``, k an integer:
    p(y) proportional to exp(-(log y - mean)^2 / 2 variance - |released - y| / scale) / y. With rho the parameter of the double
    geometric law, ``scale = -1 / log(1 - rho)``.

    >>> import jax, jax.numpy as jnp, noisewise as nw
    >>> y = nw.direct.lognormal_discrete_laplace(jax.random.key(1), 3.0, 2.0, jnp.array([-20.0, 10.25, 1e6]), 1.5)
    >>> [float(value) for value in y % 1]
    [0.0, 0.25, 0.0]
    """
    return latent_value(key, LognormalWeight(mean, variance), DiscreteLaplace(scale), released)
