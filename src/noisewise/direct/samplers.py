r"""Draws from weighted densities: thousands of different targets at once, in one compiled program.

=============  ==================================================================================================================
``basic``      u from Bernstein polynomials of P(A_u) on the grid k/N, x by rejection from the base (Walker et al. 2011). Fails
               where P(A_u) falls within a cell of the grid, or where A_u is rare under the base.
``customised`` u from the step function of :mod:`.step`, x by the quantile function of the base on A_u (Raim 2021). Never
               rejects; its distance from the truth is bounded by ``step_function(...).bound``.
``exact``      the closed form of :mod:`.closed` where there is one; else u from the step function accepted with probability
               P(A_u)/h*(u), rejected u becoming knots. Exact for every number of knots.
``strips``     exact rejection from the log-linear envelope of :mod:`.strips`.
=============  ==================================================================================================================

The exact methods make at most ``ROUNDS`` proposals a draw. With an acceptance probability p (its lower bound is
``step_function(...).acceptance``) all of them fail with probability (1-p)^ROUNDS: e^-693 at p = 1/2. A target for which that
happens nevertheless is refused with a sentence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.direct.bases import Base, as_base
from noisewise.direct.closed import UNIFORMS, closed_form
from noisewise.direct.step import StepFunction, Target, place_knots
from noisewise.direct.strips import build_strips, draw_from_strips
from noisewise.direct.weights import Weight, as_numbers
from noisewise.release.noise import Noise
from noisewise.typing import Key

METHODS = ("customised", "basic", "exact", "strips")
ROUNDS = 1000
BASIC_ATTEMPTS = 10_000
COARSE = 0.1
_SPARE_KNOTS = 32
_CHUNK = 256
_CHUNK_DRAWS = 2**20
_Search = tuple[Array, Key, StepFunction, Array, Array]
_Tries = tuple[Array, Key, Array, Array, Array]


def sample(
    key: Key,
    weight: Weight,
    base: Noise | Base,
    size: int | Sequence[int],
    *,
    released: Any = None,
    method: str = "exact",
    knots: int = 100,
) -> Array:
    r"""Draw from the density proportional to ``weight(x) base(x)``, or the noise behind a released value.

    Without ``released`` the draws are x, of density ``weight(x) base(x)``. With ``released = z`` they are the noise xi = z -
    y, of density ``weight(z - xi) base(xi)``: the latent value is ``z - draws``.

    Every parameter of weight and base and every released value may be an array; together they broadcast to a batch of targets.
    The result has shape ``(*size, *batch)``: ``size`` independent draws of each target. ``knots`` is the number of pieces of
    the step function (for ``strips``, of cuts).

    >>> import jax, jax.numpy as jnp, noisewise as nw
    >>> weight, base = nw.direct.LognormalWeight(mu=jnp.zeros(3), sigma2=1.0), nw.noise.DiscreteLaplace.from_rho(0.5)
    >>> noise = nw.direct.sample(jax.random.key(0), weight, base, 1000, released=jnp.array([-5, 0, 100]), method="exact")
    >>> noise.shape, bool(jnp.all(noise < jnp.array([-5, 0, 100])))      # the latent value is positive
    ((1000, 3), True)

    The customised method warns where its computed total-variation bound is above ``COARSE``: 100 knots are too few for a
    target whose P(A_u) falls gradually over hundreds of units of log u. Raises ``ValueError`` for values that are not finite,
    an unknown method, and for targets out of a method's reach.
    """
    shape = _shape(size)
    _check_key(key)
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not known. Use one of {', '.join(METHODS)}.")
    targets, batch = batch_of_targets(weight, base, released, knots)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(targets)):
        weight.check()
    knots = int(knots)
    if method == "strips" and not targets.base.sloped:
        raise ValueError(f"The method 'strips' needs a base of known slope, not {type(base).__name__}. Use 'exact'.")
    count = int(np.prod(shape))
    draws, reached, bound = _draw_batch(key, targets, method, count, knots)
    _refuse_unreached(reached, method, knots)
    _warn_of_coarse_steps(bound, knots)
    return jnp.moveaxis(draws, 0, -1).reshape(*shape, *batch)


def step_function(weight: Weight, base: Noise | Base, *, released: Any = None, knots: int = 100) -> StepFunction:
    """The step function on which the customised sampler draws u, with its total-variation ``bound`` and ``acceptance``.

    >>> import noisewise as nw
    >>> weight, base = nw.direct.LognormalWeight(3.0, 2.0), nw.noise.DiscreteLaplace.from_rho(0.7)
    >>> bool(nw.direct.step_function(weight, base, released=10, knots=100).bound < 1e-3)
    True
    """
    targets, batch = batch_of_targets(weight, base, released, knots)
    steps = _step_batch(targets, int(knots))
    return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), steps)


def log_target(weight: Weight, base: Noise | Base, x: Array, *, released: Any = None) -> Array:
    """The log of the density that ``sample`` draws from, not normalised, elementwise.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> float(nw.direct.log_target(nw.direct.NormalWeight(0.0, 1.0), nw.direct.Uniform(0.0, 1.0), jnp.array(0.5)))
    -0.125
    """
    value = None if released is None else jnp.asarray(released, dtype=float)
    return Target(weight, as_base(base), value).resolved().log_density(jnp.asarray(x, dtype=float))


def batch_of_targets(weight: Weight, base: Noise | Base, released: Any, knots: int) -> tuple[Target, tuple[int, ...]]:
    """Weight, base and released values with all their arrays broadcast to one batch axis, and the shape of the batch."""
    if not _whole(knots) or knots < 2:
        raise ValueError(f"knots must be an integer of at least 2; got {knots!r}. The default is 100.")
    if not isinstance(weight, Weight):
        raise ValueError(
            f"The weight must be one of nw.direct; got {weight!r}. A function of your own becomes one by nw.direct.UnimodalWeight."
        )
    value = None
    if released is not None:
        if not isinstance(released, jax.core.Tracer) and not np.all(np.isfinite(as_numbers(released))):
            raise ValueError(f"released must be finite; got {released!r}. Leave out records that were not released.")
        value = jnp.asarray(released, dtype=float)
    target = Target(weight, as_base(base), value)
    arrays = [leaf for leaf in jax.tree.leaves(target) if eqx.is_array(leaf)]
    try:
        batch = jnp.broadcast_shapes(*(leaf.shape for leaf in arrays))
    except ValueError as error:
        shapes = ", ".join(str(leaf.shape) for leaf in arrays)
        raise ValueError(
            f"Weight, base and released must broadcast to one shape; got {shapes}. Give one value a target."
        ) from error
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch).reshape(-1), target), batch


def _whole(value: Any) -> bool:
    number = as_numbers(value)
    return not isinstance(value, bool | str) and number.ndim == 0 and bool(np.isfinite(number) and number % 1 == 0)


def _shape(size: Any) -> tuple[int, ...]:
    lengths = (size,) if np.ndim(size) == 0 else tuple(size)
    if not all(_whole(length) and length >= 0 for length in lengths):
        raise ValueError(
            f"size must be a non-negative integer or a tuple of them; got {size!r}. Give the number of draws."
        )
    return tuple(int(length) for length in lengths)


def _check_key(key: Any) -> None:
    kind = getattr(key, "dtype", None)
    if kind is None or not (jnp.issubdtype(kind, jax.dtypes.prng_key) or kind == np.uint32):
        raise ValueError(f"key must be a random key of JAX; got {key!r}. Make one from a seed: jax.random.key(seed).")


def _refuse_unreached(reached: Array, method: str, knots: int) -> None:
    if isinstance(reached, jax.core.Tracer) or bool(jnp.all(reached)):
        return
    failed = np.asarray(~jnp.all(reached, axis=1))
    first = int(np.argmax(failed))
    targets = f"{int(failed.sum())} of {failed.size} targets (the first is target {first})"
    if method == "basic":
        raise ValueError(
            f"The basic sampler accepted no draw from the base within {BASIC_ATTEMPTS} attempts for {targets}: P(A_u) falls "
            f"inside one cell of its grid of {knots}, or A_u is rare under the base. Use method='customised' or 'exact'."
        )
    raise ValueError(
        f"No draw could be made for {targets}: weight and base share no mass there that double precision can see, or the "
        f"{ROUNDS} proposals allowed to method {method!r} with knots={knots} were all rejected. Check released value, support "
        f"and scale of target {first}, or give more knots."
    )


def _warn_of_coarse_steps(bound: Array, knots: int) -> None:
    if isinstance(bound, jax.core.Tracer) or not bool(jnp.any(bound > COARSE)):
        return
    warnings.warn(
        f"The step function of {knots} knots is too coarse for {int(jnp.sum(bound > COARSE))} of {bound.size} targets: their draws "
        f"may be off by up to {float(jnp.max(bound)):.2g} in total variation. Use method='exact', or more knots.",
        stacklevel=3,
    )


def by_chunks(function: Any, count: int, *arrays: Any) -> Any:
    """``vmap(function)`` over the leading axis, in chunks that stay in cache."""
    length = jax.tree.leaves(arrays)[0].shape[0]
    chunk = int(np.clip(_CHUNK_DRAWS // max(count, 1), 1, _CHUNK))
    if length <= chunk:
        return jax.vmap(function)(*arrays)
    pieces = -(-length // chunk)
    spare = pieces * chunk - length

    def fold(leaf: Array) -> Array:
        padded = jnp.concatenate([leaf, leaf[jnp.zeros(spare, dtype=int)]]) if spare else leaf
        return padded.reshape(pieces, chunk, *leaf.shape[1:])

    result = jax.lax.map(lambda part: jax.vmap(function)(*part), jax.tree.map(fold, arrays))
    return jax.tree.map(lambda leaf: leaf.reshape(pieces * chunk, *leaf.shape[2:])[:length], result)


@eqx.filter_jit
def _step_batch(targets: Target, knots: int) -> StepFunction:
    return by_chunks(lambda target: place_knots(target.resolved(), knots), knots, targets)


@eqx.filter_jit
def _draw_batch(key: Key, targets: Target, method: str, count: int, knots: int) -> tuple[Array, Array, Array]:
    length = jax.tree.leaves(targets)[0].shape[0]
    draw = partial(draw_one, method=method, count=count, knots=knots)
    return by_chunks(draw, count, jax.random.split(key, length), targets)


def draw_one(key: Key, target: Target, method: str, count: int, knots: int) -> tuple[Array, Array, Array]:
    """``count`` draws of one target, whether each was reached (NaN where not), and the computed bound on their error."""
    target, exact = target.resolved(), jnp.asarray(0.0)
    if method == "strips":
        return *draw_from_strips(key, target, build_strips(target, knots), count, ROUNDS), exact
    if method == "basic":
        draws, attempts = basic_draws(key, target, count, knots)
        return draws, attempts > 0, exact
    if method == "exact":
        closed = closed_form(target)
        if closed is not None:
            draws = closed(jax.random.uniform(key, (UNIFORMS, count), dtype=float))
            return draws, jnp.isfinite(draws), exact
        return *_exact(key, target, count, knots), exact
    uniforms = jax.random.uniform(key, (4, count), dtype=float)
    step = place_knots(target, knots)
    log_u, _ = step.draw(uniforms[0], uniforms[1])
    draws = target.base.truncated((uniforms[2], uniforms[3]), *target.interval(log_u))
    return draws, jnp.isfinite(draws), step.bound


def _exact(key: Key, target: Target, count: int, knots: int) -> tuple[Array, Array]:
    """Rejection from the step function: each round the first rejected u of the target becomes a knot, while there is room."""
    step = place_knots(target, knots)
    spare = jnp.full((_SPARE_KNOTS,), step.log_u[-1])
    roomy = StepFunction(
        jnp.append(step.log_u, spare), jnp.append(step.log_p, jnp.full_like(spare, -jnp.inf)), step.log_p_zero
    )

    def again(state: _Search) -> Array:
        return (state[0] < ROUNDS) & ~jnp.all(state[4])

    def attempt(state: _Search) -> _Search:
        tried, key, step, log_u, done = state
        key, now = jax.random.split(key)
        uniforms = jax.random.uniform(now, (3, count), dtype=float)
        proposed, log_height = step.draw(uniforms[0], uniforms[1])
        log_p = target.log_probability(proposed)
        accepted = jnp.log1p(-uniforms[2]) < log_p - log_height
        rejected = ~accepted & ~done
        which = jnp.argmax(rejected)
        wanted = rejected[which] & (tried < _SPARE_KNOTS)
        grown = step.with_knot(proposed[which], log_p[which], wanted)
        return tried + 1, key, grown, jnp.where(done, log_u, proposed), done | accepted

    key, last = jax.random.split(key)
    possible = jnp.isfinite(step.log_p_zero)
    start = (jnp.asarray(0), key, roomy, jnp.zeros(count), jnp.full((count,), ~possible))
    _, _, _, log_u, done = jax.lax.while_loop(again, attempt, start)
    uniforms = jax.random.uniform(last, (2, count), dtype=float)
    draws = target.base.truncated((uniforms[0], uniforms[1]), *target.interval(log_u))
    reached = done & jnp.isfinite(draws)
    return jnp.where(reached, draws, jnp.nan), reached


def basic_draws(key: Key, target: Target, count: int, knots: int) -> tuple[Array, Array]:
    """Bernstein polynomials for u on the grid k/knots, then rejection from the base, as published; for one target.

    Returns the draws, and how many candidates each took: 0 (and the draw NaN) if none of ``BASIC_ATTEMPTS`` lay in A_u.
    """
    grid = jnp.arange(knots + 1)
    log_share = target.log_probability(jnp.log(grid / knots))
    first, second, third = jax.random.split(key, 3)
    cell = jax.random.categorical(first, log_share, shape=(count,))
    log_u = jnp.log(jax.random.beta(second, cell + 1.0, knots - cell + 1.0))

    def attempt(state: _Tries) -> _Tries:
        tried, key, draws, attempts, done = state
        key, now = jax.random.split(key)
        uniforms = jax.random.uniform(now, (2, count), dtype=float)
        end = jnp.full((count,), jnp.inf)
        candidate = target.base.truncated((uniforms[0], uniforms[1]), -end, end)
        accepted = target.log_weight(candidate) > log_u
        return (
            tried + 1,
            key,
            jnp.where(done, draws, candidate),
            jnp.where(accepted & ~done, tried + 1, attempts),
            done | accepted,
        )

    def again(state: _Tries) -> Array:
        return (state[0] < BASIC_ATTEMPTS) & ~jnp.all(state[4])

    none = jnp.zeros(count, dtype=int)
    start = (jnp.asarray(0), third, jnp.zeros(count), none, jnp.zeros(count, dtype=bool))
    _, _, draws, attempts, done = jax.lax.while_loop(again, attempt, start)
    return jnp.where(done, draws, jnp.nan), attempts
