"""The normal-normal model of small areas: direct estimates with known standard errors around a regression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import stats
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.hyperparameters import column_name, pair
from noisewise.models.linear_regression import NO_LAW, LinearRegression
from noisewise.models.priors import InverseGamma
from noisewise.models.transforms import Transform
from noisewise.typing import Innovations, Key, Records, Theta

_BRACKET = 4.0
_MOST_SHRINKS = 100


class FayHerriot(Model):
    r"""Areas with true means ``m_i ~ N(x_i' beta, variance)`` and direct estimates ``y_i ~ N(m_i, se_i^2)`` (Fay and Herriot 1979).

    A record is an area: its covariates, its estimate, and the known standard error of that (``standard_error`` names the column,
    which must be public). ``beta ~ N(0, coef_scale^2 I)``, the intercept first, and ``variance ~ InverseGamma(a, b)``, the
    variance between areas. The estimates may be released with noise on each of them. The posterior holds ``beta``, ``variance``
    and ``area_mean``, the true means, which borrow strength from the other areas.

    :meth:`update` integrates the true means out: beta is drawn given the variance, the variance given beta by a slice move.

    >>> import noisewise as nw
    >>> list(nw.models.FayHerriot(("poverty",), "rent", standard_error="se").columns)
    ['poverty', 'rent', 'se']
    """

    linear: LinearRegression
    standard_error: str = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str],
        response: str,
        *,
        standard_error: str = "se",
        coef_scale: ArrayLike = 10.0,
        variance_prior: tuple[ArrayLike, ArrayLike] | InverseGamma = (2.0, 1.0),
        intercept: bool = True,
        transforms: Mapping[str, str | Transform] | None = None,
    ) -> None:
        if not isinstance(variance_prior, InverseGamma):
            variance_prior = InverseGamma(*pair(variance_prior, "variance_prior", "the inverse gamma shape and scale"))
        self.linear = LinearRegression(
            predictors,
            response,
            coef_scale=coef_scale,
            variance=variance_prior,
            intercept=intercept,
            transforms=transforms,
        )
        self.standard_error = column_name(standard_error, "standard_error")
        if self.standard_error in self.linear.columns:
            raise ValueError(f"standard_error must be a column of its own; got {standard_error!r}.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.linear.columns, self.standard_error)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.linear.parameters

    def sample_prior(self, key: Key) -> Theta:
        return self.linear.sample_prior(key)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return self.linear.log_prior(theta)

    @property
    def has_transform(self) -> bool:
        return False

    def innovations(self, key: Key, n: int) -> Innovations:
        raise ValueError(NO_LAW)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        raise ValueError(NO_LAW)

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        raise ValueError(NO_LAW)

    @property
    def conjugate(self) -> bool:
        return False

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        first, second = jax.random.split(key)
        y = records[self.linear.response]
        beta = self.linear.draw_beta(first, 1 / self.response_variance(theta, records), records, y)
        squares = (y - self.linear.line(beta, records)) ** 2
        sampling = records[self.standard_error] ** 2
        prior = self.linear.variance
        assert isinstance(prior, InverseGamma)

        def log_density(log_variance: Array) -> Array:
            total = jnp.exp(log_variance) + sampling
            likelihood = -0.5 * jnp.sum(jnp.log(total) + squares / total)
            return likelihood + prior.log_prob(jnp.exp(log_variance)) + log_variance

        return {"beta": beta, "variance": jnp.exp(_slice(second, log_density, jnp.log(theta["variance"])))}

    def response_variance(self, theta: Theta, records: Records) -> Array:
        """The variance of each estimate around the regression, over areas and sampling."""
        return theta["variance"] + records[self.standard_error] ** 2

    def area_means(self, key: Key, theta: Theta, records: Records) -> Array:
        """A draw of the true means given the estimates."""
        total = self.response_variance(theta, records)
        line = self.linear.line(theta["beta"], records)
        share = theta["variance"] / total
        spread = jnp.sqrt(share) * records[self.standard_error]
        return line + share * (records[self.linear.response] - line) + spread * jax.random.normal(key, line.shape)

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        line = self.linear.line(theta["beta"], records)
        return stats.norm.logpdf(records[self.linear.response], line, jnp.sqrt(self.response_variance(theta, records)))


def _slice(key: Key, log_density: Callable[[Array], Array], start: Array) -> Array:
    """One slice move of a number with a bracket of fixed width, shrunk until it holds a point (Neal 2003)."""
    level_key, place_key, shrink_key = jax.random.split(key, 3)
    level = log_density(start) - jax.random.exponential(level_key, dtype=float)
    low = start - _BRACKET * jax.random.uniform(place_key, dtype=float)

    def point(tries: Array, low: Array, high: Array) -> Array:
        return low + (high - low) * jax.random.uniform(jax.random.fold_in(shrink_key, tries), dtype=float)

    def shrink(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        at, low, high, tries = state
        low, high = jnp.where(at < start, at, low), jnp.where(at < start, high, at)
        return point(tries, low, high), low, high, tries + 1

    def outside(state: tuple[Array, Array, Array, Array]) -> Array:
        return ~(log_density(state[0]) > level) & (state[3] < _MOST_SHRINKS)

    zero = jnp.zeros((), dtype=int)
    begun = (point(zero, low, low + _BRACKET), low, low + _BRACKET, zero + 1)
    at, _, _, _ = lax.while_loop(outside, shrink, begun)
    return jnp.where(log_density(at) > level, at, start)
