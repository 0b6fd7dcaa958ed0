r"""Released values kept inside an interval: by renormalising the noise, or by clipping and rounding after it.

The two differ in the density. *Truncated* noise is drawn again until the value falls in the interval, so its normaliser
``F(upper - t) - F(lower - t)`` depends on the exact total t. *Censored* noise is moved to the interval's end, so the ends
carry point masses; *rounded* values carry the mass of their cell. Checked by ``tests/release/test_mechanisms_densities.py``
and ``tests/release/test_mechanisms.py``.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.document import noise_on
from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.mechanisms.checks import interval, positive_number, refuse_function
from noisewise.release.mechanisms.tails import (
    MOST_INTEGERS,
    integer_log_tail,
    log_interval,
    log_tail,
    quantile_of_log_tail,
    sample_integer_tail,
    terms_of_tail,
)
from noisewise.release.noise import Gaussian, Laplace, Noise
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours, Query
from noisewise.typing import Key, Records

_GRID_TOLERANCE = 1e-6


class _OnQuery(Mechanism):
    """What the two mechanisms share: a query, its noise, and an interval of released values."""

    query: Query
    noise: Noise
    lower: Float[Array, ""]
    upper: Float[Array, ""]

    @property
    def added(self) -> AdditiveNoise:
        """The same noise on the same query, free to leave the interval."""
        return AdditiveNoise(self.query, self.noise)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return self.query.size

    def check(self, value: Any) -> Array:
        array = self.added.check(value)
        if isinstance(array, jax.core.Tracer):
            return array
        outside = (np.asarray(array) < float(self.lower)) | (np.asarray(array) > float(self.upper))
        if np.any(outside):
            raise ValueError(
                f"The released value must lie in [{float(self.lower):g}, {float(self.upper):g}]; "
                f"got {np.asarray(array)[outside][0]:g}."
            )
        return array

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return self.query.statistics(records)

    @property
    def noise_variance(self) -> Array:
        return self.added.noise_variance


def _check_law(query: Query, noise: Noise) -> Noise:
    """The noise, its scales in a row, if it goes with the query."""
    refuse_function("noise", noise)
    added = noise_on(query, noise)
    if not isinstance(added, AdditiveNoise):
        raise ValueError(f"Released values in an interval are sums of nw.queries; got {query!r}.")
    if not noise.discrete and not isinstance(noise, Laplace | Gaussian):
        raise ValueError(f"Noise in an interval is known for the laws of nw.noise; got {type(noise).__name__}.")
    return added.noise


class TruncatedNoise(_OnQuery):
    r"""Noise drawn again until every released number falls in ``[lower, upper]`` (truncated and renormalised).

    The density of one number is ``f(s - t) / P(lower <= t + noise <= upper)`` inside the interval. For a discrete law the
    normaliser is the sum over the integers of the interval, or a tail where it has one end.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> mechanism = nw.mechanisms.TruncatedNoise(query, nw.noise.Laplace(2.0), lower=0, upper=10)
    >>> nw.Measurement(mechanism=mechanism, value=[0.4]).mechanism.size
    1
    """

    count: int = eqx.field(static=True)
    """How many integers the interval has, for a discrete law and two ends; else 0."""
    terms: int = eqx.field(static=True)

    def __init__(self, query: Query, noise: Noise, *, lower: float | None = None, upper: float | None = None) -> None:
        low, high = interval(lower, upper)
        if lower is None and upper is None:
            raise ValueError(
                "Truncated noise needs lower, upper or both; without them it is nw.Measurement(query, noise)."
            )
        noise = _check_law(query, noise)
        two_ends = math.isfinite(low) and math.isfinite(high)
        if noise.discrete:
            low, high = float(np.ceil(low)), float(np.floor(high))
            if two_ends and not 1 <= high - low < MOST_INTEGERS:
                raise ValueError(
                    f"Truncated noise on the integers needs an interval of 2 to {MOST_INTEGERS} integers; "
                    f"got lower={lower}, upper={upper}."
                )
        self.query, self.noise = query, noise
        self.lower, self.upper = jnp.asarray(float(low)), jnp.asarray(float(high))
        self.count = int(high - low) + 1 if noise.discrete and two_ends else 0
        self.terms = terms_of_tail(noise) if noise.discrete and not two_ends else 0

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        if self.count:
            normaliser = jax.nn.logsumexp(self._log_masses(total), axis=0)
        elif self.noise.discrete:
            normaliser = integer_log_tail(self.noise, self._inward(total), self.terms)
        else:
            normaliser = log_interval(self.noise, self.lower - total, self.upper - total)
        inside = (released >= self.lower) & (released <= self.upper)
        return jnp.sum(jnp.where(inside, self.noise.log_prob(released - total) - normaliser, -jnp.inf))

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        if self.noise.discrete and not self.count:
            noise = sample_integer_tail(key, self.noise, self._inward(total), self.terms)
            return total + jnp.where(jnp.isfinite(self.lower), noise, -noise)
        if self.noise.discrete:
            return self.lower + jax.random.categorical(key, self._log_masses(total), axis=0).astype(float)
        low, high = self.lower - total, self.upper - total
        flip = low + high < 0  # by symmetry, work in the upper tail
        near, far = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
        u = jax.random.uniform(key, total.shape, dtype=float)
        tail = jnp.logaddexp(
            jnp.log1p(-u) + log_tail(self.noise, near),
            jnp.log(u) + log_tail(self.noise, far),
        )
        noise = jnp.clip(quantile_of_log_tail(self.noise, tail), near, far)
        return jnp.clip(total + jnp.where(flip, -noise, noise), self.lower, self.upper)

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """Twice the loss of the same Laplace noise left free, because the normaliser may move as far as the density does.

        The bound holds for any query; for Gaussian noise no bound is given.
        """
        free = self.added.privacy(neighbours)
        return Privacy("pure", 2 * free.loss) if free is not None and free.measure == "pure" else None

    def _inward(self, total: Float[Array, " size"]) -> Float[Array, " size"]:
        """The least noise, or minus the most, that one end allows; the laws are symmetric."""
        return jnp.where(jnp.isfinite(self.lower), self.lower - total, total - self.upper)

    def _log_masses(self, total: Float[Array, " size"]) -> Float[Array, "count size"]:
        """The free law's log masses at every integer of the interval."""
        return self.noise.log_prob((self.lower + jnp.arange(self.count))[:, None] - total)


class CensoredNoise(_OnQuery):
    """Released numbers that were rounded to multiples of ``rounding`` and then clipped to ``[lower, upper]``, after the noise.

    A number at an end carries the mass of everything beyond it, a number on the grid the mass of its cell, any other number its
    density. Being post-processing, it costs what the noise costs.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> mechanism = nw.mechanisms.CensoredNoise(query, nw.noise.Laplace(2.0), lower=0, rounding=1)
    >>> nw.Measurement(mechanism=mechanism, value=[[0.0, 13.0]]).value.tolist()
    [0.0, 13.0]
    """

    rounding: Float[Array, ""]
    terms: int = eqx.field(static=True)

    def __init__(
        self,
        query: Query,
        noise: Noise,
        *,
        lower: float | None = None,
        upper: float | None = None,
        rounding: float | None = None,
    ) -> None:
        low, high = interval(lower, upper)
        if lower is None and upper is None and rounding is None:
            raise ValueError(
                "Censored noise needs lower, upper or rounding; without them it is nw.Measurement(query, noise)."
            )
        noise = _check_law(query, noise)
        if noise.discrete and rounding is not None:
            raise ValueError("Noise on the integers is not rounded again; leave rounding out.")
        step = 0.0 if rounding is None else float(positive_number("rounding", rounding))
        grid = 1.0 if noise.discrete else step
        for name, end in (("lower", low), ("upper", high)):
            if grid > 0 and math.isfinite(end) and abs(end / grid - round(end / grid)) > _GRID_TOLERANCE:
                raise ValueError(
                    f"{name} must be a multiple of the released grid's step {grid:g}, as otherwise the end lies between "
                    f"two released values; got {end:g}."
                )
        self.query, self.noise = query, noise
        self.lower, self.upper = jnp.asarray(low), jnp.asarray(high)
        self.rounding = jnp.asarray(step)
        self.terms = terms_of_tail(noise) if noise.discrete else 0

    def check(self, value: Any) -> Array:
        array = super().check(value)
        if isinstance(array, jax.core.Tracer):
            return array
        step = float(self.rounding)
        if step > 0:
            cells = np.asarray(array) / step
            off = np.abs(cells - np.round(cells)) > _GRID_TOLERANCE
            if np.any(off):
                raise ValueError(
                    f"The released value must be a multiple of the rounding {step:g}; got {np.asarray(array)[off][0]:g}."
                )
        return array

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        residual = released - total
        if self.noise.discrete:
            below = integer_log_tail(self.noise, -residual, self.terms)
            above = integer_log_tail(self.noise, residual, self.terms)
            inside = self.noise.log_prob(residual)
        else:
            half = self.rounding / 2
            below = log_tail(self.noise, -(residual + half))
            above = log_tail(self.noise, residual - half)
            width = jnp.where(self.rounding > 0, half, 1.0)
            cell = log_interval(self.noise, residual - width, residual + width)
            inside = jnp.where(self.rounding > 0, cell, self.noise.log_prob(residual))
        value = jnp.where(released <= self.lower, below, jnp.where(released >= self.upper, above, inside))
        return jnp.sum(value)

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        value = total + self.noise.sample(key, total.shape)
        step = jnp.where(self.rounding > 0, self.rounding, 1.0)
        value = jnp.where(self.rounding > 0, step * jnp.round(value / step), value)
        return jnp.clip(value, self.lower, self.upper)

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        """What the noise alone costs: clipping and rounding after it cost nothing."""
        return self.added.privacy(neighbours)
