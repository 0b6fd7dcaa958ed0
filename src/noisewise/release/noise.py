r"""Additive noise laws: what is known, in public, about the noise of a release.

Every law is symmetric about zero and is a frozen pytree whose only leaf is its ``scale``, a number or an array that broadcasts
against the residuals. All functions are elementwise, vectorised, differentiable where the law is continuous, and keep their relative
accuracy in both tails. The noise of a real release never comes from here: see :mod:`noisewise.release.publish`.

| law | density at r |
|---|---|
| ``Laplace(b)`` | exp(-\|r\|/b) / 2b |
| ``Gaussian(s)`` | exp(-r^2/2s^2) / s sqrt(2 pi) |
| ``DiscreteLaplace(b)`` | tanh(1/2b) exp(-\|r\|/b) on the integers |
| ``DiscreteGaussian(s)`` | exp(-r^2/2s^2) / sum_k exp(-k^2/2s^2) on the integers |
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jaxtyping import Array, Float

from noisewise.typing import Key

_INTEGER_TOLERANCE = 1e-9
_THETA_TERMS = 10


def positive_scale(scale: object, name: str = "scale") -> Array:
    """Check and convert a noise scale: finite and positive everywhere."""
    if isinstance(scale, jax.core.Tracer):
        return jnp.asarray(scale, dtype=float)
    value = np.asarray(scale, dtype=float)
    if value.size == 0 or not np.all(np.isfinite(value)) or np.any(value <= 0):
        raise ValueError(f"The noise {name} must be positive and finite; got {scale!r}. Give the published {name}.")
    return jnp.asarray(value)


class Noise(eqx.Module):
    """A law of independent additive noise."""

    scale: Float[Array, "..."] = eqx.field(converter=positive_scale)
    discrete: ClassVar[bool] = False
    name: ClassVar[str]

    @abstractmethod
    def log_prob(self, residual: Array) -> Array:
        """Log density (or log mass) at ``residual = released - exact``, elementwise; ``-inf`` off the support."""

    @abstractmethod
    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Simulated noise, for posterior predictions and tests (never for a real release)."""

    @abstractmethod
    def characteristic(self, frequency: Array) -> Array:
        """The characteristic function E exp(i v e), which is real because the law is symmetric."""

    @property
    @abstractmethod
    def variance(self) -> Array:
        """The variance of the noise, elementwise."""


class Laplace(Noise):
    """Laplace noise with density ``exp(-|r|/scale) / (2 scale)``.

    >>> import noisewise as nw
    >>> float(nw.noise.Laplace(2.0).log_prob(0.0))
    -1.3862943611198906
    """

    name: ClassVar[str] = "laplace"

    def log_prob(self, residual: Array) -> Array:
        return -jnp.abs(residual) / self.scale - jnp.log(2 * self.scale)

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        return self.scale * jax.random.laplace(key, shape, dtype=float)

    def characteristic(self, frequency: Array) -> Array:
        return 1 / (1 + (self.scale * frequency) ** 2)

    @property
    def variance(self) -> Array:
        return 2 * self.scale**2


class Gaussian(Noise):
    """Normal noise with standard deviation ``scale``."""

    name: ClassVar[str] = "gaussian"

    def log_prob(self, residual: Array) -> Array:
        return stats.norm.logpdf(residual, scale=self.scale)

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        return self.scale * jax.random.normal(key, shape, dtype=float)

    def characteristic(self, frequency: Array) -> Array:
        return jnp.exp(-0.5 * (self.scale * frequency) ** 2)

    @property
    def variance(self) -> Array:
        return self.scale**2


def on_integers(residual: Array, log_mass: Array) -> Array:
    """``log_mass`` where the residual is an integer up to rounding error, ``-inf`` elsewhere."""
    whole = jnp.abs(residual - jnp.round(residual)) <= _INTEGER_TOLERANCE * jnp.maximum(1.0, jnp.abs(residual))
    return jnp.where(whole, log_mass, -jnp.inf)


class DiscreteLaplace(Noise):
    """Integer noise with mass proportional to ``exp(-|k|/scale)``, also called double geometric."""

    discrete: ClassVar[bool] = True
    name: ClassVar[str] = "discrete_laplace"

    @classmethod
    def from_rho(cls, rho: float) -> DiscreteLaplace:
        """The law with mass proportional to ``(1 - rho)^|k|``, 0 < rho < 1 (Raim's parametrisation)."""
        value = np.asarray(rho, dtype=float)
        if np.any(value <= 0) or np.any(value >= 1) or not np.all(np.isfinite(value)):
            raise ValueError(f"rho must lie strictly between 0 and 1; got {rho!r}.")
        return cls(-1 / np.log1p(-value))

    def log_prob(self, residual: Array) -> Array:
        return on_integers(residual, -jnp.abs(residual) / self.scale + jnp.log(jnp.tanh(0.5 / self.scale)))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        waits = jnp.floor(self.scale * jax.random.exponential(key, (2, *shape), dtype=float))
        return waits[0] - waits[1]

    def characteristic(self, frequency: Array) -> Array:
        # (1-q)^2 / (1 - 2 q cos v + q^2) with q = exp(-1/scale), written without cancellation at small v
        sinh = jnp.sinh(0.5 / self.scale)
        return sinh**2 / (sinh**2 + jnp.sin(0.5 * frequency) ** 2)

    @property
    def variance(self) -> Array:
        return 0.5 / jnp.sinh(0.5 / self.scale) ** 2


class DiscreteGaussian(Noise):
    """Integer noise with mass proportional to ``exp(-k^2 / (2 scale^2))``, normalised exactly.

    The normaliser is a theta function; its direct sum is used for small scales and its dual (Poisson summation)
    for large ones, each to double precision.
    """

    discrete: ClassVar[bool] = True
    name: ClassVar[str] = "discrete_gaussian"

    def log_prob(self, residual: Array) -> Array:
        return on_integers(residual, -0.5 * (residual / self.scale) ** 2 - self.log_normaliser())

    def log_normaliser(self) -> Array:
        """``log sum_k exp(-k^2 / (2 scale^2))`` over all integers."""
        k = jnp.arange(1, _THETA_TERMS + 1, dtype=float)
        scale = self.scale[..., None]
        small, large = jnp.minimum(scale, 1.0), jnp.maximum(scale, 0.5)
        direct = jnp.log1p(2 * jnp.sum(jnp.exp(-0.5 * (k / small) ** 2), axis=-1))
        dual = jnp.log1p(2 * jnp.sum(jnp.exp(-2 * (jnp.pi * large * k) ** 2), axis=-1))
        return jnp.where(self.scale < 0.75, direct, dual + 0.5 * jnp.log(2 * jnp.pi) + jnp.log(self.scale))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Rejection from the discrete Laplace law (Canonne, Kamath and Steinke 2020, Algorithm 3)."""
        scale = jnp.broadcast_to(self.scale, shape)
        width = jnp.floor(scale) + 1
        proposal = DiscreteLaplace(width)

        def propose(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
            key, value, done = carry
            key, first, second = jax.random.split(key, 3)
            candidate = proposal.sample(first, shape)
            log_accept = -0.5 * ((jnp.abs(candidate) - scale**2 / width) / scale) ** 2
            accept = jnp.log(jax.random.uniform(second, shape)) < log_accept
            return key, jnp.where(done, value, candidate), done | accept

        start = (key, jnp.zeros(shape), jnp.zeros(shape, dtype=bool))
        return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, start)[1]

    def characteristic(self, frequency: Array) -> Array:
        k = jnp.arange(-_THETA_TERMS, _THETA_TERMS + 1, dtype=float)
        scale = self.scale[..., None]
        turn = jnp.asarray(frequency)[..., None]
        small, large = jnp.minimum(scale, 1.0), jnp.maximum(scale, 0.5)
        direct = jnp.sum(jnp.exp(-0.5 * (k / small) ** 2) * jnp.cos(k * turn), axis=-1)
        wrapped = turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi))
        dual = jnp.sum(jnp.exp(-0.5 * (large * (wrapped - 2 * jnp.pi * k)) ** 2), axis=-1)
        dual = dual * jnp.sqrt(2 * jnp.pi) * self.scale
        return jnp.where(self.scale < 0.75, direct, dual) * jnp.exp(-self.log_normaliser())

    @property
    def variance(self) -> Array:
        k = jnp.arange(1, _THETA_TERMS + 1, dtype=float)
        scale = self.scale[..., None]
        small, large = jnp.minimum(scale, 1.0), jnp.maximum(scale, 0.5)
        mass = jnp.exp(-0.5 * (k / small) ** 2)
        direct = 2 * jnp.sum(k**2 * mass, axis=-1) / (1 + 2 * jnp.sum(mass, axis=-1))
        wave = jnp.exp(-2 * (jnp.pi * large * k) ** 2)
        bend = 8 * jnp.pi**2 * self.scale**4 * jnp.sum(k**2 * wave, axis=-1) / (1 + 2 * jnp.sum(wave, axis=-1))
        return jnp.where(self.scale < 0.75, direct, self.scale**2 - bend)


LAWS: dict[str, type[Noise]] = {law.name: law for law in (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian)}

__all__ = ["LAWS", "DiscreteGaussian", "DiscreteLaplace", "Gaussian", "Laplace", "Noise", "positive_scale"]
