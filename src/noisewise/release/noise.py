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

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from noisewise.release import privacy
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.typing import Key

if TYPE_CHECKING:
    from noisewise.release.query import Neighbours, Query

_INTEGER_TOLERANCE = 1e-9
_THETA_TERMS = 10


def positive_scale(scale: object, name: str = "scale") -> Array:
    """Check and convert a noise scale: finite and positive everywhere."""
    if isinstance(scale, jax.core.Tracer):
        return jnp.asarray(scale, dtype=float)
    try:
        value = np.asarray(scale)
        if value.dtype.kind not in "iuf":
            raise TypeError
        value = value.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"The noise {name} must be a number or an array of numbers; got {scale!r}.") from None
    if value.size == 0 or not np.all(np.isfinite(value)) or np.any(value <= 0):
        raise ValueError(f"The noise {name} must be positive and finite; got {scale!r}. Give the published {name}.")
    return jnp.asarray(value)


class Noise(eqx.Module):
    """A law of independent additive noise."""

    scale: Float[Array, "..."]
    discrete: ClassVar[bool] = False
    norm: ClassVar[Literal["l1", "l2"]]
    """The norm of the sensitivity that the law's guarantee is about."""
    name: ClassVar[str]

    def __init__(self, scale: ArrayLike) -> None:
        self.scale = positive_scale(scale)

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


class _PureCalibration(Noise):
    """A law whose guarantee is pure: ``epsilon = L1 sensitivity / scale``."""

    norm: ClassVar[Literal["l1", "l2"]] = "l1"

    @classmethod
    def calibrated(cls, query: Query, *, epsilon: float, neighbours: Neighbours = "replace_one") -> Self:
        """The law whose noise makes the query ``epsilon``-differentially private: ``scale = L1 sensitivity / epsilon``."""
        _check_budget("epsilon", epsilon)
        return cls(jnp.asarray(_sensitivity(cls, query, neighbours) / epsilon))


class _ConcentratedCalibration(Noise):
    """A law whose guarantee is zero-concentrated: ``rho = (L2 sensitivity / scale)^2 / 2``."""

    norm: ClassVar[Literal["l1", "l2"]] = "l2"

    @staticmethod
    @abstractmethod
    def _rho(epsilon: float, delta: float) -> float:
        """The rho of the law that just meets ``(epsilon, delta)``."""

    @classmethod
    def calibrated(
        cls,
        query: Query,
        *,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: Neighbours = "replace_one",
    ) -> Self:
        """The law whose noise makes the query ``rho``-zCDP, or ``(epsilon, delta)``-differentially private.

        Give ``rho``, or ``epsilon`` and ``delta`` together: the scale is ``L2 sensitivity / sqrt(2 rho)``. From
        ``(epsilon, delta)`` :class:`Gaussian` takes the exact condition of Balle and Wang (2018), the least noise possible, and
        :class:`DiscreteGaussian` goes through zCDP (Canonne, Kamath and Steinke 2020, Corollary 13), valid in any
        dimension and slightly conservative.
        """
        if (rho is None) == (epsilon is None) or (epsilon is None) != (delta is None):
            raise ValueError(
                f"{cls.__name__}.calibrated needs rho, or epsilon and delta together; "
                f"got rho={rho!r}, epsilon={epsilon!r}, delta={delta!r}."
            )
        sensitivity = _sensitivity(cls, query, neighbours)
        if epsilon is not None and delta is not None:
            _check_budget("epsilon", epsilon)
            if not (isinstance(delta, int | float | np.number) and 0 < delta < 1):
                raise ValueError(f"delta must lie strictly between 0 and 1; got {delta!r}.")
            rho = cls._rho(epsilon, delta)
        _check_budget("rho", rho)
        return cls(jnp.asarray(sensitivity / np.sqrt(2 * np.asarray(rho))))


def _check_budget(name: str, value: Any) -> None:
    number = isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, bool)
    if not (number and np.ndim(value) == 0 and np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite; got {value!r}.")


def _sensitivity(law: type[Noise], query: Query, neighbours: Neighbours) -> float:
    """The sensitivity that the law's scale is a multiple of, if there is one."""
    if not callable(getattr(query, "sensitivity", None)):
        raise ValueError(
            f"{law.__name__}.calibrated needs a query with a sensitivity, one of the sums of nw.queries; got {query!r}. "
            "Give any other query its scale."
        )
    if law.discrete and not query.admits_integers:
        raise ValueError(
            f"{law.__name__} is noise on the integers, and this query does not release integers; use "
            f"{'Laplace' if law.norm == 'l1' else 'Gaussian'} noise, or integer bounds without rescale."
        )
    sensitivity = query.sensitivity(law.norm, neighbours)
    if sensitivity == 0:
        raise ValueError(
            f"No record changes the total of this query under {neighbours!r} (its sensitivity is 0), so that it needs no noise; "
            "leave it out: n says as much."
        )
    return sensitivity


class Laplace(_PureCalibration):
    """Laplace noise with density ``exp(-|r|/scale) / (2 scale)``.

    >>> import noisewise as nw
    >>> float(nw.noise.Laplace(2.0).log_prob(0.0))
    -1.3862943611198906
    """

    name: ClassVar[str] = "laplace"

    def __init__(self, scale: ArrayLike) -> None:
        self.scale = positive_scale(scale)

    def log_prob(self, residual: Array) -> Array:
        return -jnp.abs(residual) / self.scale - jnp.log(2 * self.scale)

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        return self.scale * jax.random.laplace(key, shape, dtype=float)

    def characteristic(self, frequency: Array) -> Array:
        return 1 / (1 + (self.scale * frequency) ** 2)

    @property
    def variance(self) -> Array:
        return 2 * self.scale**2


class Gaussian(_ConcentratedCalibration):
    """Normal noise with standard deviation ``scale``."""

    name: ClassVar[str] = "gaussian"

    def __init__(self, scale: ArrayLike) -> None:
        self.scale = positive_scale(scale)

    @staticmethod
    def _rho(epsilon: float, delta: float) -> float:
        return privacy.gaussian_mu(epsilon, delta)

    def log_prob(self, residual: Array) -> Array:
        # in this order the square of a scale neither overflows nor underflows
        return -0.5 * (residual / self.scale) ** 2 - jnp.log(self.scale) - 0.5 * math.log(2 * math.pi)

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


class DiscreteLaplace(_PureCalibration):
    """Integer noise with mass proportional to ``exp(-|k|/scale)``, also called double geometric."""

    discrete: ClassVar[bool] = True
    name: ClassVar[str] = "discrete_laplace"

    def __init__(self, scale: ArrayLike) -> None:
        self.scale = positive_scale(scale)

    @classmethod
    def from_rho(cls, rho: float) -> DiscreteLaplace:
        """The law with mass proportional to ``(1 - rho)^|k|``, 0 < rho < 1 (Raim's parametrisation)."""
        value = np.asarray(positive_scale(rho, "rho"))
        if np.any(value <= 0) or np.any(value >= 1) or not np.all(np.isfinite(value)):
            raise ValueError(f"rho must lie strictly between 0 and 1; got {rho!r}.")
        return cls(-1 / np.log1p(-value))

    def log_prob(self, residual: Array) -> Array:
        return on_integers(residual, -jnp.abs(residual) / self.scale + jnp.log(jnp.tanh(0.5 / self.scale)))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        waits = jnp.floor(self.scale * jax.random.exponential(key, (2, *shape), dtype=float))
        return waits[0] - waits[1]

    def characteristic(self, frequency: Array) -> Array:
        # (1-q)^2 / (1 - 2 q cos v + q^2) with q = exp(-1/scale), without cancellation at small v or overflow at small scales
        return 1 / (1 + (jnp.sin(0.5 * frequency) / jnp.sinh(0.5 / self.scale)) ** 2)

    @property
    def variance(self) -> Array:
        return 0.5 / jnp.sinh(0.5 / self.scale) ** 2


class DiscreteGaussian(_ConcentratedCalibration):
    """Integer noise with mass proportional to ``exp(-k^2 / (2 scale^2))``, normalised exactly.

    The normaliser is a theta function; its direct sum is used for small scales and its dual (Poisson summation)
    for large ones, each to double precision.
    """

    discrete: ClassVar[bool] = True
    name: ClassVar[str] = "discrete_gaussian"

    def __init__(self, scale: ArrayLike) -> None:
        self.scale = positive_scale(scale)

    @staticmethod
    def _rho(epsilon: float, delta: float) -> float:
        return privacy.zcdp_rho(epsilon, delta)

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
        # beyond a scale of 10 the waves are zero, and their factor must not overflow
        small, large = jnp.minimum(scale, 1.0), jnp.clip(scale, 0.5, 10.0)
        mass = jnp.exp(-0.5 * (k / small) ** 2)
        direct = 2 * jnp.sum(k**2 * mass, axis=-1) / (1 + 2 * jnp.sum(mass, axis=-1))
        wave = jnp.exp(-2 * (jnp.pi * large * k) ** 2)
        bend = 8 * jnp.pi**2 * jnp.sum((large * k) ** 2 * wave, axis=-1) / (1 + 2 * jnp.sum(wave, axis=-1))
        return jnp.where(self.scale < 0.75, direct, self.scale**2 * (1 - bend))


LAWS: dict[str, type[Noise]] = {law.name: law for law in (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian)}

__all__ = [
    "LAWS",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Gaussian",
    "Laplace",
    "Noise",
    "RandomisedResponse",
    "positive_scale",
]
