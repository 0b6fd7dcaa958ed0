"""Randomised response: every record's code is reported truly, or as another code, with public probabilities."""

from __future__ import annotations

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.privacy import Privacy
from noisewise.typing import Key


class RandomisedResponse(eqx.Module):
    r"""Codes 0..levels-1 reported truly with probability ``1 - flip``, else as one of the others, uniformly.

    ``P(s | x) = 1 - flip`` if s = x, else ``flip / (levels - 1)`` (Warner 1965; Kairouz, Bonawitz and Ramage 2016).

    >>> import noisewise as nw
    >>> law = nw.noise.RandomisedResponse(0.25)
    >>> print(law.privacy())
    epsilon = 1.09861 (pure differential privacy)
    """

    flip: Float[Array, ""]
    levels: int = eqx.field(static=True)

    def __init__(self, flip: float, levels: int = 2) -> None:
        if isinstance(levels, bool) or not isinstance(levels, int | np.integer) or levels < 2:
            raise ValueError(f"levels must be a whole number of at least 2; got {levels!r}.")
        if callable(flip):
            raise ValueError(f"flip must be one public probability, not a function of the records; got {flip!r}.")
        if not isinstance(flip, jax.core.Tracer):
            value = np.asarray(flip)
            value = value.astype(float) if value.dtype.kind in "iuf" else np.asarray(np.nan)
            if value.shape != () or not 0 < value < 1:
                raise ValueError(f"flip must be one probability strictly between 0 and 1; got {flip!r}.")
        self.flip = jnp.asarray(flip, dtype=float)
        self.levels = int(levels)

    @classmethod
    def calibrated(cls, epsilon: float, levels: int = 2) -> Self:
        """The law that gives every record ``epsilon`` of local differential privacy."""
        if not (isinstance(epsilon, int | float | np.number) and math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon must be positive and finite; got {epsilon!r}.")
        return cls((levels - 1) / (math.exp(epsilon) + levels - 1), levels)

    def privacy(self) -> Privacy:
        """Pure epsilon of one report: the log of the largest ratio of two report probabilities."""
        return Privacy("pure", jnp.abs(jnp.log1p(-self.flip) - jnp.log(self.flip / (self.levels - 1))))

    def log_likelihood(self, released: Array, exact: Array) -> Array:
        """``log P(released | exact)``, elementwise."""
        return jnp.where(released == exact, jnp.log1p(-self.flip), jnp.log(self.flip / (self.levels - 1)))

    def respond(self, key: Key, exact: Array) -> Array:
        """Simulated reports, elementwise."""
        flip_key, other_key = jax.random.split(key)
        lies = jax.random.uniform(flip_key, exact.shape, dtype=float) < self.flip
        other = (exact + jax.random.randint(other_key, exact.shape, 1, self.levels)) % self.levels
        return jnp.where(lies, other, exact).astype(float)
