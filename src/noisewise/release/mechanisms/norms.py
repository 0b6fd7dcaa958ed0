r"""Noise of a vector with density falling in one norm: the K-norm mechanism (Hardt and Talwar 2010)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanisms.checks import positive_number
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours, Query
from noisewise.typing import Key, Records

Ball = Literal["l1", "l2", "linf"]


def check_ball(ball: Any) -> Ball:
    """The norm's name, if it is one of the three."""
    if ball not in ("l1", "l2", "linf"):
        raise ValueError(f"ball must be 'l1', 'l2' or 'linf'; got {ball!r}.")
    return ball


def norm_of(vector: Array, ball: Ball) -> Array:
    """The norm of a vector."""
    if ball == "l1":
        return jnp.sum(jnp.abs(vector))
    if ball == "l2":
        return jnp.linalg.norm(vector)
    return jnp.max(jnp.abs(vector))


def log_ball_volume(dimension: int, ball: Ball) -> float:
    """The log volume of the unit ball."""
    if ball == "l1":
        return dimension * math.log(2) - math.lgamma(dimension + 1)
    if ball == "l2":
        return 0.5 * dimension * math.log(math.pi) - math.lgamma(0.5 * dimension + 1)
    return dimension * math.log(2)


def log_knorm_density(residual: Array, scale: Array, ball: Ball) -> Array:
    """The log of ``exp(-||r|| / scale) / (d! scale^d vol)``, the K-norm density in d dimensions."""
    d = residual.shape[0]
    constant = math.lgamma(d + 1) + log_ball_volume(d, ball)
    return -norm_of(residual, ball) / scale - constant - d * jnp.log(scale)


def sample_knorm(key: Key, dimension: int, scale: Array, ball: Ball) -> Array:
    """K-norm noise: a Gamma(d + 1) radius times a uniform point of the ball."""
    radius_key, direction_key, inner_key = jax.random.split(key, 3)
    if ball == "linf":
        point = jax.random.uniform(direction_key, (dimension,), dtype=float, minval=-1, maxval=1)
    else:
        raw = jax.random.laplace if ball == "l1" else jax.random.normal
        direction = raw(direction_key, (dimension,), dtype=float)
        inner = jax.random.uniform(inner_key, dtype=float) ** (1 / dimension)
        point = inner * direction / norm_of(direction, ball)
    return scale * jax.random.gamma(radius_key, dimension + 1.0, dtype=float) * point


def sensitivity_in(query: Query, ball: Ball, neighbours: Neighbours) -> float | None:
    """A bound on the query's change in a norm; ``None`` for a query that does not know it.

    In the maximum norm it is the largest change of a single number, and no more than a change in L2.
    """
    if ball != "linf":
        return _known(lambda: query.sensitivity(ball, neighbours))
    one_number = _known(lambda: max(query.sensitivity("l1", neighbours, weights=only) for only in np.eye(query.size)))
    length = _known(lambda: query.sensitivity("l2", neighbours))
    return min((bound for bound in (one_number, length) if bound is not None), default=None)


def _known(sensitivity: Callable[[], float]) -> float | None:
    try:
        return sensitivity()
    except ValueError:
        return None


class KNormNoise(Mechanism):
    """Noise with density proportional to ``exp(-||r|| / scale)`` added to the total of a query.

    In one dimension it is Laplace noise, and for ``ball="l1"`` it is independent Laplace noise in any. The guarantee is pure, the
    query's sensitivity in the same norm over the scale.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-1, 1)}, [{"x": 1}, {"x": 2}])
    >>> mechanism = nw.mechanisms.KNormNoise(query, scale=3.0, ball="linf")
    >>> nw.Measurement(mechanism=mechanism, value=[4.0, 9.0]).value.shape
    (2,)
    """

    query: Query
    scale: Float[Array, ""]
    ball: Ball = eqx.field(static=True)

    def __init__(self, query: Query, scale: float, ball: Ball = "linf") -> None:
        if not isinstance(query, Query):
            raise ValueError(f"The query of a mechanism must be one of nw.queries; got {query!r}.")
        self.query, self.ball = query, check_ball(ball)
        self.scale = positive_number("scale", scale)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.query.columns

    @property
    def size(self) -> int:
        return self.query.size

    def check(self, value: Any) -> Array:
        return super().check(self.query.flatten(value))

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return self.query.statistics(records)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        return log_knorm_density(released - total, self.scale, self.ball)

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        return total + sample_knorm(key, self.size, self.scale, self.ball)

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        bound = sensitivity_in(self.query, self.ball, neighbours)
        return None if bound is None else Privacy("pure", bound / self.scale)

    @property
    def noise_variance(self) -> Array:
        d = self.size
        mean_square = {"l1": 2 / ((d + 1) * (d + 2)), "l2": 1 / (d + 2), "linf": 1 / 3}[self.ball]
        return jnp.full(d, (d + 1) * (d + 2) * mean_square * self.scale**2)
