r"""The law of one clamped record of a user's own model, by quadrature of its density.

The line is cut at places that follow the record's law: quartiles of simulated records give a middle m and a width d for each
parameter value, and panels end at m, at 1 to 64 times d on either side, at zero and at the clamping bounds. Between the
bounds the nodes carry the density; beyond them their weights add up to the atoms. The whole line must add up to one: that is
the check that panels are fine enough and that the user's function is a density.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.fourier_density import Law
from noisewise.models.custom import Custom
from noisewise.release.queries import Column
from noisewise.typing import Theta

_MULTIPLES = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0])
_SIMULATED = 401
_TRIALS = 20
_BALANCE = 1e-9


class Unsupported(ValueError):
    """A model or release whose sum has no computable transform, with the reason."""


def check_density(model: Custom) -> None:
    """Refuse a model whose records are not one real number with a density."""
    if not (model.has_log_prior and model.has_log_likelihood):
        raise Unsupported("the model has no log_prior and log_likelihood, of which it makes the transform")
    if len(model.columns) != 1:
        raise Unsupported(f"its records have the columns {list(model.columns)}, and a sum of one is transformed")
    keys = jax.random.split(jax.random.key(1), _TRIALS)
    records = np.asarray(_simulated(model, jax.vmap(model.sample_prior)(keys)))
    if records.ndim != 2:
        raise Unsupported("its records are not single numbers")
    if np.unique(records).size < records.size // 2:
        raise Unsupported("its records repeat, so they have no density to integrate")


def custom_law(model: Custom, column: Column, statistic: Callable[[np.ndarray], np.ndarray]) -> Law:
    """The law of the clamped record's statistic."""

    def law(theta: dict[str, np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
        x, mass = _line(model, theta, (column.lower, column.upper), order // 4)
        inside = (x > column.lower) & (x < column.upper)
        below = np.sum(np.where(x <= column.lower, mass, 0.0), axis=1)
        above = np.sum(np.where(x >= column.upper, mass, 0.0), axis=1)
        total = mass.sum(axis=1, keepdims=True)
        ends = np.ones((x.shape[0], 1))
        # nodes beyond the bounds stay, without weight, inside them
        places = np.clip(x, column.lower, column.upper)
        nodes = np.concatenate([column.lower * ends, places, column.upper * ends], axis=1)
        weights = np.concatenate([below[:, None], np.where(inside, mass, 0.0), above[:, None]], axis=1)
        return statistic(nodes), weights / np.where(total > 0, total, 1.0)

    return law


def density_integrates(model: Custom) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """For which parameters the density adds up to one."""

    def trusted(theta: dict[str, np.ndarray]) -> np.ndarray:
        _, mass = _line(model, theta, (), 16)
        return np.asarray(np.abs(mass.sum(axis=1) - 1) <= _BALANCE)

    return trusted


def _line(
    model: Custom, theta: dict[str, np.ndarray], bounds: tuple[float, ...], nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Places on the real line with their probabilities; axes (parameter value, node)."""
    inner = {name: jnp.asarray(value) for name, value in theta.items()}
    low, middle, high = np.quantile(np.asarray(_simulated(model, inner)), [0.25, 0.5, 0.75], axis=1)
    width = np.maximum(high - low, 1e-12 * (1 + np.abs(middle)))[:, None]
    steps = np.concatenate([-_MULTIPLES[:0:-1], _MULTIPLES])
    edges = middle[:, None] + width * steps
    cuts = np.broadcast_to(np.array([*bounds, 0.0]), (edges.shape[0], len(bounds) + 1))
    first, last, unit = edges[:, :1], edges[:, -1:], _MULTIPLES[-1] * width
    inside, share = _panels(np.concatenate([edges, np.clip(cuts, first, last)], axis=1), nodes)
    places, weights = [inside], [share]
    # the rays beyond: x = end +- unit t / (1 - t), cut where a bound lies
    for end, sign in ((first, -1.0), (last, 1.0)):
        away = np.maximum(sign * (cuts - end), 0.0)
        zero, one = np.zeros(end.shape), np.ones(end.shape)
        t, share = _panels(np.concatenate([zero, away / (away + unit), one], axis=1), nodes)
        places.append(end + sign * unit * t / (1 - t))
        weights.append(share * unit / (1 - t) ** 2)
    x, weight = np.concatenate(places, axis=1), np.concatenate(weights, axis=1)
    log_density = np.asarray(_log_density(model, inner, jnp.asarray(x)))
    return x, weight * np.exp(np.where(np.isnan(log_density), -np.inf, log_density))


def _panels(edges: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on the panels between the sorted edges of each row."""
    edges = np.sort(edges, axis=1)
    nodes, weights = _legendre(order)
    half = 0.5 * np.diff(edges, axis=1)[..., None]
    places = edges[:, :-1, None] + half * (nodes + 1)
    return places.reshape(edges.shape[0], -1), (half * weights).reshape(edges.shape[0], -1)


@functools.cache
def _legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return nodes, weights


@eqx.filter_jit
def _simulated(model: Custom, theta: Theta) -> Array:
    (name,) = model.columns
    return jax.vmap(lambda one: model.simulate(jax.random.key(0), one, _SIMULATED)[name])(theta)


@eqx.filter_jit
def _log_density(model: Custom, theta: Theta, x: Array) -> Array:
    (name,) = model.columns
    return jax.vmap(lambda one, at: model.log_likelihood(one, {name: at}))(theta, x)
