r"""Released values kept inside an interval: by renormalising the noise, or by clipping and rounding after it.

The two differ in the density. *Truncated* noise is drawn again until the value falls in the interval, so its normaliser
``F(upper - t) - F(lower - t)`` depends on the exact total t. *Censored* noise is moved to the interval's end, so the ends
carry point masses; *rounded* values carry the mass of their cell.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanisms.checks import interval
from noisewise.release.noise import DiscreteGaussian, Gaussian, Laplace, Noise
from noisewise.release.query import Query
from noisewise.typing import Key, Records

_TRIES = 10_000
_MOST_INTEGERS = 100_000


def log_tail(noise: Noise, at: Array) -> Array:
    """``log P(noise > at)`` for a continuous law, elementwise and accurate in both tails."""
    if isinstance(noise, Laplace):
        far = -jnp.abs(at) / noise.scale - jnp.log(2.0)
        return jnp.where(at > 0, far, jnp.log1p(-jnp.exp(jnp.minimum(far, -jnp.log(2.0)))))
    return stats.norm.logsf(at / noise.scale)


def log_interval(noise: Noise, low: Array, high: Array) -> Array:
    """``log P(low < noise <= high)`` for a symmetric continuous law, from the nearer tail."""
    flip = low + high < 0  # by symmetry, work in the upper tail
    near, far = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    above, beyond = log_tail(noise, near), log_tail(noise, far)
    return above + jnp.log(-jnp.expm1(jnp.minimum(beyond - above, -1e-300)))


def _check_law(noise: Noise, *, discrete: bool) -> None:
    if not discrete and not isinstance(noise, Laplace | Gaussian):
        raise ValueError(f"Clipping or rounding after noise is known for Laplace and Gaussian noise; got {noise!r}.")


class _OnQuery(Mechanism):
    """What the two mechanisms share: a query, its noise, and an interval of released values."""

    query: Query
    noise: Noise
    lower: Float[Array, ""]
    upper: Float[Array, ""]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return self.query.size

    def check(self, value: Any) -> Array:
        array = super().check(self.query.flatten(value))
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
        return jnp.broadcast_to(self.noise.variance, (self.size,))


class TruncatedNoise(_OnQuery):
    """Noise drawn again until every released number falls in ``[lower, upper]`` (truncated and renormalised).

    For a discrete law the normaliser is the sum over the integers of the interval, which must then be finite.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> mechanism = nw.mechanisms.TruncatedNoise(query, nw.noise.Laplace(2.0), lower=0, upper=10)
    >>> nw.Measurement(mechanism=mechanism, value=[0.4]).mechanism.size
    1
    """

    count: int = eqx.field(static=True)

    def __init__(self, query: Query, noise: Noise, *, lower: float | None = None, upper: float | None = None) -> None:
        low, high = interval(lower, upper, both=noise.discrete)
        _check_law(noise, discrete=noise.discrete)
        low, high = (np.ceil(low), np.floor(high)) if noise.discrete else (low, high)
        self.query, self.noise = query, noise
        self.lower, self.upper = jnp.asarray(low), jnp.asarray(high)
        self.count = int(high - low) + 1 if noise.discrete else 0
        if self.count > _MOST_INTEGERS:
            raise ValueError(f"An interval of {self.count} integers is too long; the most is {_MOST_INTEGERS}.")

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        if self.noise.discrete:
            support = self.lower + jnp.arange(self.count)
            normaliser = jax.nn.logsumexp(jax.vmap(lambda value: self.noise.log_prob(value - total))(support), axis=0)
        else:
            normaliser = log_interval(self.noise, self.lower - total, self.upper - total)
        inside = (released >= self.lower) & (released <= self.upper)
        return jnp.sum(jnp.where(inside, self.noise.log_prob(released - total) - normaliser, -jnp.inf))

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        def draw(carry: Any) -> Any:
            key, value, tries = carry
            key, now = jax.random.split(key)
            candidate = total + self.noise.sample(now, total.shape)
            inside = (value >= self.lower) & (value <= self.upper)
            return key, jnp.where(inside, value, candidate), tries + 1

        def wanting(carry: Any) -> Array:
            return jnp.any((carry[1] < self.lower) | (carry[1] > self.upper)) & (carry[2] < _TRIES)

        start = (key, jnp.full(total.shape, jnp.nan).astype(float), jnp.zeros((), dtype=int))
        start = draw(start)
        return jax.lax.while_loop(wanting, draw, start)[1]


class CensoredNoise(_OnQuery):
    """Released numbers that were rounded to multiples of ``rounding`` and then clipped to ``[lower, upper]``, after the noise.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> mechanism = nw.mechanisms.CensoredNoise(query, nw.noise.Laplace(2.0), lower=0, rounding=1)
    >>> nw.Measurement(mechanism=mechanism, value=[[0.0, 13.0]]).value.tolist()
    [0.0, 13.0]
    """

    rounding: Float[Array, ""]

    def __init__(
        self,
        query: Query,
        noise: Noise,
        *,
        lower: float | None = None,
        upper: float | None = None,
        rounding: float | None = None,
    ) -> None:
        low, high = interval(lower, upper, both=False)
        if rounding is not None and not (np.isfinite(rounding) and rounding > 0):
            raise ValueError(f"rounding must be a positive grid step, or None; got {rounding!r}.")
        if noise.discrete and rounding is not None:
            raise ValueError("Noise on the integers is not rounded again; leave rounding out.")
        _check_law(noise, discrete=noise.discrete)
        if noise.discrete and isinstance(noise, DiscreteGaussian):
            raise ValueError("Clipping after noise is known for Laplace, Gaussian and discrete Laplace noise.")
        self.query, self.noise = query, noise
        self.lower, self.upper = jnp.asarray(low), jnp.asarray(high)
        self.rounding = jnp.asarray(0.0 if rounding is None else float(rounding))

    def check(self, value: Any) -> Array:
        array = super().check(value)
        step = float(self.rounding)
        if step > 0 and not isinstance(array, jax.core.Tracer):
            at_end = (np.asarray(array) == float(self.lower)) | (np.asarray(array) == float(self.upper))
            cells = np.asarray(array) / step
            off = ~at_end & (np.abs(cells - np.round(cells)) > 1e-6)
            if np.any(off):
                raise ValueError(
                    f"The released value must be a multiple of the rounding {step:g}; got {np.asarray(array)[off][0]:g}."
                )
        return array

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        residual = released - total
        if self.noise.discrete:
            # P(noise <= k) and P(noise >= k) of the discrete Laplace law: q^|k| / (1 + q) beyond zero, q = exp(-1/scale)
            below, above = (
                discrete_laplace_log_cdf(self.noise, residual),
                discrete_laplace_log_cdf(self.noise, -residual),
            )
            inside = self.noise.log_prob(residual)
        else:
            half = self.rounding / 2
            below = log_tail(self.noise, -(residual + half))
            above = log_tail(self.noise, residual - half)
            step = jnp.maximum(self.rounding, 1e-300)
            cell = log_interval(self.noise, residual - step / 2, residual + step / 2)
            inside = jnp.where(self.rounding > 0, cell, self.noise.log_prob(residual))
        value = jnp.where(released <= self.lower, below, jnp.where(released >= self.upper, above, inside))
        return jnp.sum(value)

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        value = total + self.noise.sample(key, total.shape)
        step = jnp.where(self.rounding > 0, self.rounding, 1.0)
        value = jnp.where(self.rounding > 0, step * jnp.round(value / step), value)
        return jnp.clip(value, self.lower, self.upper)


def discrete_laplace_log_cdf(noise: Noise, at: Array) -> Array:
    """``log P(noise <= at)`` of the discrete Laplace law at integers."""
    log_q = -1 / noise.scale
    below = at * -log_q - jnp.log1p(jnp.exp(log_q))
    above = jnp.log1p(-jnp.exp((jnp.maximum(at, 0.0) + 1) * log_q - jnp.log1p(jnp.exp(log_q))))
    return jnp.where(at < 0, below, above)
