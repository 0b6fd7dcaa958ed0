r"""One numeric column of every record behind its own noise: each value from the model's density times the noise.

``p(x_i | released_i, theta)`` is proportional to ``f(x_i | theta) p(released_i | x_i)``: closed form or exact rejection
(:mod:`noisewise.direct.latent`). Integer noise on a continuous value ties it to a lattice, integer noise on a count to the
counts. Wide moves hold the innovations of the values, as in :mod:`noisewise.engines.microdata_regression`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.direct.gamma_poisson import GammaWeight, PoissonWeight
from noisewise.direct.latent import latent_value
from noisewise.direct.weights import Weight
from noisewise.engines.microdata_imputer import Imputer, LogDensity
from noisewise.engines.microdata_regression import normal_times_noise
from noisewise.engines.microdata_table import Cells, Table
from noisewise.models.exponential import Exponential
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.typing import Key, Records, Theta

Univariate = Normal | Poisson | Exponential | GammaKnownShape


class UnivariateImputer(Imputer):
    """Draws of the values of one column."""

    model: Univariate
    cells: Table

    @property
    def column(self) -> Cells:
        return self.cells[self.model.column]

    def first(self) -> Records:
        x = self.column.released
        if isinstance(self.model, Poisson):
            x = jnp.maximum(jnp.round(x), 0.0)
        elif not isinstance(self.model, Normal):
            x = jnp.where(x > 0, x, 1e-3 + 0 * x)
        return {self.model.column: x}

    def respond(self, key: Key, theta: Theta, records: Records) -> Records:
        name, cells = self.model.column, self.column
        if cells.known:
            return records
        noisy_key, missing_key = jax.random.split(key)
        drawn = records[name]
        if cells.law is not None and isinstance(self.model, Normal):
            variance = theta["variance"] if isinstance(self.model.variance, InverseGamma) else self.model.variance
            ones = jnp.ones_like(cells.released)
            drawn = normal_times_noise(noisy_key, ones / variance, ones * theta["mean"] / variance, cells)
        elif cells.law is not None:
            assert not isinstance(cells.law, RandomisedResponse)
            drawn = latent_value(noisy_key, self._weight(theta), cells.law, cells.released)
        if cells.gaps:
            free = self.model.simulate(missing_key, theta, cells.released.size)[name]
            drawn = jnp.where(cells.missing, free, drawn)
        # a draw that was not reached (probability below e^-500) leaves the value as it is
        return {name: cells.settle(jnp.where(jnp.isnan(drawn), records[name], drawn))}

    def _weight(self, theta: Theta) -> Weight:
        rate = jnp.broadcast_to(theta["rate"], self.column.released.shape)
        if isinstance(self.model, Poisson):
            return PoissonWeight(rate)
        shape = self.model.known if isinstance(self.model, GammaKnownShape) else jnp.ones(())
        return GammaWeight(jnp.broadcast_to(shape, rate.shape), rate)

    def log_target(self, key: Key, theta: Theta, records: Records) -> LogDensity | None:
        name, cells, model = self.model.column, self.column, self.model
        if cells.known:
            return None
        cell_key, inverse_key = jax.random.split(key)
        # counts are drawn as floats and inverted as integers
        x = records[name].astype(int) if isinstance(model, Poisson) else records[name]
        lattice = cells.discrete and not isinstance(model, Poisson)

        def cell(exact: Array) -> Array:
            return jnp.ones_like(exact) if isinstance(model, Normal) else jnp.minimum(exact, 1.0)

        moving = x - cell(x) * jax.random.uniform(cell_key, x.shape, dtype=float) if lattice else x
        u = model.inverse(theta, {name: moving}, inverse_key)

        def tied(theta: Theta) -> Array:
            def move(u: Array) -> Array:
                return model.transform(theta, u)[name]

            if cells.law is None:
                density = model.log_likelihood(theta, {name: x})
            elif lattice:
                moved, stretch = jax.jvp(move, (u,), (jnp.ones_like(u),))
                point = cells.released - jnp.floor(cells.released - moved)
                density = model.log_likelihood(theta, {name: point}) + jnp.log(stretch) - jnp.log(cell(point))
                density = density + cells.log_noise(point)
            else:
                density = cells.log_noise(move(u))
            return jnp.sum(jnp.where(cells.missing, 0.0, density))

        return tied

    def log_noise(self, records: Records) -> Array:
        return jnp.sum(self.column.log_noise(records[self.model.column]))


def univariate_imputer(model: Univariate, table: Table) -> UnivariateImputer | str:
    """The imputer of a numeric column, or the reason why there is none."""
    cells = table[model.column]
    if cells.coded:
        return f"the column {model.column!r} is released as codes, which {type(model).__name__} does not describe"
    if isinstance(model, Poisson) and cells.law is not None:
        if not cells.discrete:
            return "counts behind continuous noise are left to the augmentation engine"
        if not bool(jnp.all(cells.released == jnp.round(cells.released))):
            return (
                f"the column {model.column!r} holds counts with integer noise, but not all released values are integers"
            )
    if isinstance(model, GammaKnownShape) and float(model.known) < 1:
        return "gamma records with a shape below 1 have a density without a mode"
    if cells.law is None and not isinstance(model, Normal):
        least = -0.5 if isinstance(model, Poisson) else 0.0
        if not bool(jnp.all((cells.released > least) | cells.missing)):
            return f"the column {model.column!r} is public and has values that {type(model).__name__} excludes"
    return UnivariateImputer(model, table)
