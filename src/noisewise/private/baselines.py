r"""What to compare a private posterior with: the posterior on the records themselves, and one-posterior sampling.

They read confidential records, so they are the data holder's, for studies of what privacy costs; nothing they return may be
published. :func:`posterior_given_totals` is the conjugate posterior given exact totals of the sufficient statistic, with no privacy at all.
The *naive* posterior is the same with the noisy totals in their place (see also :func:`noisewise.naive`).

*One-posterior sampling* (Dimitrakakis et al. 2014; Wang, Fienberg and Smola 2015; Foulds et al. 2016) releases draws of the
tempered posterior ``p(theta) exp(epsilon / (2 D) sum_i log f(x_i | theta))`` on a truncated parameter space, which is the
exponential mechanism with the log-likelihood as utility and ``D = max |log f(x | theta) - log f(x' | theta)|`` as its sensitivity
under ``replace_one``. Each draw costs epsilon. For Bernoulli records and p in [a, 1 - a], D = log((1 - a)/a).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.exponential_family import exponential_form
from noisewise.release.tables import read_columns
from noisewise.typing import Key, Theta

_GRID = 4001


def posterior_on_records(
    model: Model, records: Any, *, draws: int = 1000, random_seed: int = 0
) -> dict[str, np.ndarray]:
    """Draws from ``p(theta | records)``, not private: the data holder's own comparison, never to be published.

    >>> import noisewise as nw
    >>> theta = nw.private.posterior_on_records(nw.models.Poisson(2, 1), {"visits": [3, 4, 5]}, draws=2000)
    Traceback (most recent call last):
    ...
    ValueError: The records have no column 'x'; they have 'visits'. Rename the columns of the records, or those of the query.
    >>> theta = nw.private.posterior_on_records(nw.models.Poisson(2, 1, column="visits"), {"visits": [3, 4, 5]}, draws=2000)
    >>> abs(float(theta["rate"].mean()) - 14 / 4) < 0.1
    True
    """
    _check_draws(draws)
    columns = {name: jnp.asarray(values) for name, values in read_columns(records, model.columns).items()}
    form = exponential_form(model)
    if form is not None and model.conjugate:
        rows = form.statistic(columns[model.columns[0]])
        found = posterior_given_totals(
            model, np.asarray(jnp.sum(rows, axis=0))[None], len(rows), draws=draws, random_seed=random_seed
        )
        return {name: value[0] for name, value in found.items()}
    if form is not None and form.levels is not None:
        columns = {name: values.astype(int) for name, values in columns.items()}
    return {
        name: np.asarray(value) for name, value in _chain(model, columns, jax.random.key(random_seed), draws).items()
    }


def posterior_given_totals(
    model: Model, totals: ArrayLike, n: int, *, draws: int = 1000, random_seed: int = 0
) -> dict[str, np.ndarray]:
    """Conjugate draws given exact totals (one row a data set) of the sufficient statistic of n records: (rows, draws, ...)."""
    _check_draws(draws)
    form = exponential_form(model)
    if form is None or not model.conjugate:
        raise ValueError(
            f"{type(model).__name__} has no conjugate draw given totals; use posterior_on_records with the records themselves."
        )
    rows = jnp.atleast_2d(jnp.asarray(totals, dtype=float))
    count = jnp.asarray(float(n))
    bad = ~np.asarray(jax.vmap(lambda total: form.possible(total, count))(rows))
    if np.any(bad):
        raise ValueError(
            f"{int(np.sum(bad))} of the totals are impossible for n={n} records, the first is {np.asarray(rows)[bad][0]}; a noisy total "
            "must be brought into its range first."
        )
    return {name: np.asarray(v) for name, v in _draw(model, rows, count, jax.random.key(random_seed), draws).items()}


def one_posterior_sampling(
    model: Bernoulli, total: ArrayLike, n: int, *, epsilon: float, truncate: float, draws: int = 1, random_seed: int = 0
) -> np.ndarray:
    """``draws`` private draws of p, for ``epsilon`` in all: ``epsilon / draws`` each; one row for every total.

    This simulates the mechanism for studies; a real release needs noise that does not come from a seed.

    >>> import noisewise as nw
    >>> draws = nw.private.one_posterior_sampling(nw.models.Bernoulli(), 300, 1000, epsilon=50.0, truncate=0.1, draws=10)
    >>> draws.shape, bool(((draws > 0.1) & (draws < 0.9)).all())
    ((1, 10), True)
    """
    _check_draws(draws)
    if not isinstance(model, Bernoulli):
        raise ValueError(f"One-posterior sampling is written for the Bernoulli model; got {type(model).__name__}.")
    if not (np.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be positive and finite; got {epsilon!r}.")
    if not 0 < truncate < 0.5:
        raise ValueError(
            f"truncate must lie strictly between 0 and 1/2: p is kept in [truncate, 1 - truncate]; got {truncate!r}."
        )
    power = epsilon / draws / (2 * np.log((1 - truncate) / truncate))
    ones = np.atleast_1d(np.asarray(total, dtype=float))[:, None]
    edges = np.linspace(truncate, 1 - truncate, _GRID)
    log_density = (float(model.a) - 1 + power * ones) * np.log(edges) + (
        float(model.b) - 1 + power * (n - ones)
    ) * np.log1p(-edges)
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    mass = np.cumsum(0.5 * (density[:, 1:] + density[:, :-1]), axis=1)
    mass = np.concatenate([np.zeros_like(ones), mass], axis=1) / mass[:, -1:]
    place = np.random.default_rng(random_seed).uniform(size=(len(ones), draws))
    return np.stack([np.interp(u, upto, edges) for u, upto in zip(place, mass, strict=True)])


@eqx.filter_jit
def _draw(model: Model, totals: Float[Array, "rows d"], n: Array, key: Key, draws: int) -> Theta:
    form = exponential_form(model)
    assert form is not None
    keys = jax.random.split(key, (totals.shape[0], draws))
    return jax.vmap(lambda total, some: jax.vmap(lambda k: form.update(k, {}, total, n))(some))(totals, keys)


@eqx.filter_jit
def _chain(model: Model, columns: dict[str, Array], key: Key, draws: int) -> Theta:
    first, later = jax.random.split(key)

    def step(theta: Theta, key: Key) -> tuple[Theta, Theta]:
        theta = model.update(key, theta, columns)
        return theta, theta

    found = jax.lax.scan(step, model.sample_prior(first), jax.random.split(later, draws + draws // 4))[1]
    return {name: value[draws // 4 :] for name, value in found.items()}


def _check_draws(draws: int) -> None:
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"draws must be a positive whole number; got {draws!r}.")
