r"""Noisy microdata: every record carries its own noise, so given theta the hidden values are n independent problems.

Target: ``p(theta, x | s) ∝ p(theta) prod_i f(x_i | theta) p(s_i | x_i)``. One iteration is a cycle of kernels that each leave it
invariant, so the cycle does:

1. hidden covariates, column by column, each value exactly from its full conditional;
2. theta given the complete records, the model's own update (a conjugate draw or a Gibbs cycle);
3. theta with the response summed out or held by its innovations: a random walk whose scale is that of the noise, not that of
   n complete records; the remedy where the noise is wide;
4. hidden responses, each exactly from its law given theta and its covariates.

Steps 1, 2 and 4 alone are Algorithm 2 of Raim (2021) for a lognormal regression, Algorithm 3 if no covariate is noisy, Algorithm 4 if
nothing is (``interweave=False``). All records are updated in one vectorised step. What a step 3 under y summed out leaves in y is
redrawn at once in step 4, which does not look at it. Checked by ``tests/engines/test_microdata.py`` (Geweke) and
``tests/engines/test_microdata_posteriors.py`` (independent slow implementations).
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from noisewise.engines.base import Engine, Support
from noisewise.engines.microdata_codes import code_imputer
from noisewise.engines.microdata_imputer import Imputer
from noisewise.engines.microdata_regression import regression_imputer
from noisewise.engines.microdata_table import read_table
from noisewise.engines.microdata_univariate import univariate_imputer
from noisewise.kernels.base import Info, Kernel
from noisewise.kernels.walk import Walk, cholesky, random_walk
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.logistic_regression import LogisticRegression
from noisewise.models.lognormal_regression import LognormalRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.small_area import FayHerriot
from noisewise.release.document import Release
from noisewise.typing import Key, Records, Theta

_MOVES = 8
_FIRST_DRAWS = 24
_FIRST_SWEEPS = 4
_START_INFLATION = 2.0
_MOST_PREDICTED = 2000

_IMPUTERS: dict[type[Model], Any] = {
    **dict.fromkeys((LinearRegression, LognormalRegression, LogisticRegression, FayHerriot), regression_imputer),
    **dict.fromkeys((Normal, Poisson, Exponential, GammaKnownShape), univariate_imputer),
    **dict.fromkeys((Bernoulli, Categorical, NaiveBayes), code_imputer),
}


class MicrodataState(eqx.Module):
    """Theta, the records, quantities derived from both, and what the tuning phase has learnt of theta."""

    theta: Theta
    records: Records
    derived: Theta
    walk: Walk


class MicrodataKernel(Kernel):
    """One iteration on noisy microdata. The table is data: other released values do not recompile."""

    model: Model
    release: Release
    imputer: Imputer
    walk: Walk
    interweave: bool = eqx.field(static=True)
    moves: int = eqx.field(static=True)

    def init(self, key: Key, start: Theta) -> MicrodataState:
        respond_key, derive_key = jax.random.split(key)
        records = self.imputer.respond(respond_key, start, self.imputer.first())
        return MicrodataState(start, records, self.imputer.derived(derive_key, start, records), self.walk)

    def step(self, key: Key, state: MicrodataState) -> tuple[MicrodataState, Info]:
        covariate_key, theta_key, target_key, walk_key, respond_key, derive_key = jax.random.split(key, 6)
        records = self.imputer.covariates(covariate_key, state.theta, state.records)
        theta = self.model.update(theta_key, state.theta, records)
        fresh = self.model.conjugate
        within = jax.tree.map(lambda new, old: 0.5 * (new - old) ** 2, theta, state.theta) if fresh else {}
        stats = {}
        log_density = self.imputer.log_target(target_key, theta, records) if self.interweave else None
        if log_density is not None:
            density = log_density

            def log_target(free: Array) -> Array:
                return self.model.log_prior_free(free) + density(self.model.constrain(free))

            position = self.model.unconstrain(theta)
            walked = random_walk(walk_key, log_target, position, state.walk, moves=self.moves)
            theta = self.model.constrain(walked.position)
            stats["interweave_acceptance"] = walked.acceptance
        records = self.imputer.respond(respond_key, theta, records)
        stats["noise_lp"] = self.imputer.log_noise(records)
        derived = self.imputer.derived(derive_key, theta, records)
        return MicrodataState(theta, records, derived, state.walk), Info(stats, within)

    def adapt(self, state: MicrodataState, info: Info) -> MicrodataState:
        if "interweave_acceptance" not in info.stats:
            return state
        walk = state.walk.learn(self.model.unconstrain(state.theta), info.stats["interweave_acceptance"])
        return eqx.tree_at(lambda s: s.walk, state, walk)

    def theta(self, state: MicrodataState) -> Theta:
        return {**state.theta, **state.derived}

    def predict(self, key: Key, state: MicrodataState) -> dict[str, Array]:
        numbers = sum(measurement.value.size for measurement in self.release.measurements)
        return self.release.respond(key, state.records) if numbers <= _MOST_PREDICTED else {}

    def latent(self, state: MicrodataState) -> Records:
        return state.records


class Microdata(Engine):
    """Noise on every record: exact draws of all hidden values at once, and wide moves of theta (exact).

    ``interweave=False`` leaves the wide moves out, which gives the algorithms of Raim (2021); ``moves`` is their number.
    """

    name: ClassVar[str] = "microdata"
    exact: ClassVar[bool] = True

    interweave: bool = True
    moves: int = _MOVES

    def __check_init__(self) -> None:
        if isinstance(self.moves, bool) or not isinstance(self.moves, int) or self.moves < 1:
            raise ValueError(f"moves must be a whole number of at least 1; got {self.moves!r}.")

    def supports(self, model: Model, release: Release) -> Support:
        made = _imputer(model, release)
        if isinstance(made, str):
            return Support(False, made)
        return Support(
            True, "every record carries its own noise", f"O(n) per iteration, all {release.n} records at once"
        )

    def build(self, model: Model, release: Release, key: Key) -> Kernel:
        imputer = cast(Imputer, _imputer(model, release))
        mean, covariance = _first_moments(key, model, imputer)
        return MicrodataKernel(model, release, imputer, Walk.start(mean, covariance), self.interweave, self.moves)

    def start(self, kernel: Kernel, key: Key) -> Theta:
        assert isinstance(kernel, MicrodataKernel)
        normals = jax.random.normal(key, kernel.walk.mean.shape, dtype=float)
        spread = cholesky(kernel.walk.covariance) @ normals
        return kernel.model.constrain(kernel.walk.mean + _START_INFLATION * spread)


def _imputer(model: Model, release: Release) -> Imputer | str:
    make = _IMPUTERS.get(type(model))
    if make is None:
        known = ", ".join(sorted(known.__name__ for known in _IMPUTERS))
        return f"hidden values can be drawn for {known}, not for {type(model).__name__}"
    table = read_table(model, release)
    if isinstance(table, str):
        return table
    made: Imputer | str = make(model, table)
    return made


@eqx.filter_jit
def _first_moments(key: Key, model: Model, imputer: Imputer) -> tuple[Array, Array]:
    """Mean and covariance of the unconstrained theta over a few short runs, each from the released values and the prior."""

    def one(key: Key) -> Array:
        prior_key, last_key, *keys = jax.random.split(key, _FIRST_SWEEPS + 2)
        theta, records = model.sample_prior(prior_key), imputer.first()
        for now in keys:
            first, second = jax.random.split(now)
            theta = model.update(first, theta, records)
            records = imputer.respond(second, theta, records)
        return model.unconstrain(model.update(last_key, theta, records))

    draws = lax.map(one, jax.random.split(key, _FIRST_DRAWS))
    mean = jnp.mean(draws, axis=0)
    centred = draws - mean
    covariance = centred.T @ centred / (_FIRST_DRAWS - 1)
    return mean, covariance + jnp.diag(1e-6 + 0.01 * jnp.diag(covariance))
