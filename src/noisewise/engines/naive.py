r"""The naive posterior: the conjugate update with the released numbers taken as if they were exact.

Nothing here is a posterior given the release: it ignores the noise and the clamping, which is what the other engines are there
to count. It shows what that costs. For a model with sufficient statistics ``S`` the law drawn from is ``p(theta | S = s)``, with
``s`` read from the release by :mod:`noisewise.engines.taken_as_exact`. Draws are independent; where two blocks of parameters are only
conditionally conjugate each draw is the end of a Gibbs cycle of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from noisewise.engines.base import Draw, Engine, Sampler, Support
from noisewise.engines.taken_as_exact import NotHeld, Reading
from noisewise.models import triangular
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.gamma import dirichlet, log_gamma
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

Statistics = dict[str, Array]

_CYCLES = 64


def _read_bernoulli(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, Bernoulli)
    if reading.holds_table((model.column,)):
        zeros, ones = reading.table((model.column,), (2,))
    else:
        ones = reading.total(model.column, (0.0, 1.0))
        zeros = reading.n - ones
    return {"ones": ones, "zeros": zeros}


def _draw_bernoulli(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, Bernoulli)
    logs = log_gamma(key, jnp.stack([model.a + known["ones"], model.b + known["zeros"]]))
    return {"p": jax.nn.sigmoid(logs[0] - logs[1])}


def _read_categorical(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, Categorical)
    return {"counts": reading.table((model.column,), (model.alpha.size,))}


def _draw_categorical(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, Categorical)
    return {"p": dirichlet(key, model.alpha + known["counts"])}


def _read_sum(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, Poisson | Exponential)
    return {"n": reading.n, "total": reading.total(model.column, (0.0, np.inf))}


def _draw_poisson(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, Poisson)
    return {"rate": jnp.exp(log_gamma(key, model.shape + known["total"])) / (model.rate + known["n"])}


def _draw_exponential(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, Exponential)
    return {"rate": jnp.exp(log_gamma(key, model.shape + known["n"])) / (model.rate + known["total"])}


def _read_naive_bayes(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, NaiveBayes)
    found: dict[str, np.ndarray | float] = {"class_probs": reading.table((model.target,), (model.classes,))}
    for k, size in enumerate(model.features, start=1):
        found[f"feature_probs_{k}"] = reading.table((model.target, model.columns[k]), (model.classes, size))
    return found


def _draw_naive_bayes(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, NaiveBayes)
    keys = jax.random.split(key, len(known))
    return {name: dirichlet(k, model.prior + known[name]) for k, name in zip(keys, model.parameters, strict=True)}


def _read_normal(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, Normal)
    if isinstance(model.variance, InverseGamma):
        moments = reading.moment_matrix((model.column,))
        return {"n": reading.n, "total": moments[0, 1], "squares": moments[1, 1]}
    return {"n": reading.n, "total": reading.total(model.column)}


def _draw_normal(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, Normal)
    law, n, total = model, known["n"], known["total"]

    def mean_given(key: Key, variance: Array) -> Array:
        precision = 1 / law.prior_sd**2 + n / variance
        centre = (law.prior_mean / law.prior_sd**2 + total / variance) / precision
        return centre + jax.random.normal(key, ()) / jnp.sqrt(precision)

    if not isinstance(law.variance, InverseGamma):
        return {"mean": mean_given(key, law.variance)}
    prior = law.variance

    def cycle(theta: Theta, key: Key) -> tuple[Theta, None]:
        first, second = jax.random.split(key)
        mean = theta["mean"]
        squares = jnp.maximum(known["squares"] - 2 * mean * total + n * mean**2, 0.0)
        variance = prior.sample(first, count=n, squares=squares)
        return {"mean": mean_given(second, variance), "variance": variance}, None

    return lax.scan(cycle, {"mean": total / n, "variance": jnp.ones(())}, jax.random.split(key, _CYCLES))[0]


def _read_regression(model: Model, reading: Reading) -> dict[str, np.ndarray | float]:
    assert isinstance(model, LinearRegression)
    if not (model.has_transform and model.intercept):
        raise NotHeld("the update from sums is that of a regression with an intercept and normal covariates")
    p = len(model.predictors)
    if isinstance(model.variance, InverseGamma):
        moments = reading.moment_matrix((*model.predictors, model.response))
        return {"gram": moments[: p + 1, : p + 1], "cross": moments[: p + 1, p + 1], "squares": moments[p + 1, p + 1]}
    gram = reading.moment_matrix(model.predictors)
    return {"gram": gram, "cross": reading.cross_moments(model.predictors, model.response, gram[:, 0])}


def _draw_regression(model: Model, known: Statistics, key: Key) -> Theta:
    assert isinstance(model, LinearRegression)
    law, gram, cross = model, known["gram"], known["cross"]
    size, n, total = cross.size, known["gram"][0, 0], known["gram"][0, 1:]

    def cycle(theta: Theta, key: Key) -> tuple[Theta, None]:
        keys = jax.random.split(key, 4)
        drawn: Theta = {}
        variance = law.variance
        if isinstance(variance, InverseGamma):
            beta = theta["beta"]
            squares = jnp.maximum(known["squares"] - 2 * beta @ cross + beta @ gram @ beta, 0.0)
            variance = drawn["variance"] = variance.sample(keys[0], count=n, squares=squares)
        precision = gram / variance + jnp.eye(size) / law.coef_scale**2
        drawn["beta"] = triangular.normal_from_precision(
            keys[1], triangular.matrix(precision), [cross[i] / variance for i in range(size)]
        )
        covariance = law.covariate_cov
        if isinstance(covariance, InverseWishart):
            mean = theta["covariate_mean"] if isinstance(law.covariate_mean, NormalPrior) else law.covariate_mean
            assert mean is not None
            products = gram[1:, 1:] - jnp.outer(mean, total) - jnp.outer(total, mean) + n * jnp.outer(mean, mean)
            covariance = covariance.sample(keys[2], count=n, products=triangular.matrix(products))
            drawn["covariate_cov"] = covariance
        if isinstance(law.covariate_mean, NormalPrior):
            assert covariance is not None
            drawn["covariate_mean"] = law.covariate_mean.sample_given(
                keys[3], cov=triangular.matrix(covariance), count=n, total=[total[i] for i in range(size - 1)]
            )
        return {name: drawn[name] for name in theta}, None

    start = {name: jnp.zeros(parameter.shape) for name, parameter in law.parameters.items()}
    if "covariate_mean" in start:
        start["covariate_mean"] = total / n
    return lax.scan(cycle, start, jax.random.split(key, 1 if law.conjugate else _CYCLES))[0]


class _Rule(NamedTuple):
    read: Callable[[Model, Reading], dict[str, np.ndarray | float]]
    draw: Callable[[Model, Statistics, Key], Theta]


_RULES: dict[type[Model], _Rule] = {
    Bernoulli: _Rule(_read_bernoulli, _draw_bernoulli),
    Categorical: _Rule(_read_categorical, _draw_categorical),
    Poisson: _Rule(_read_sum, _draw_poisson),
    Exponential: _Rule(_read_sum, _draw_exponential),
    Normal: _Rule(_read_normal, _draw_normal),
    NaiveBayes: _Rule(_read_naive_bayes, _draw_naive_bayes),
    LinearRegression: _Rule(_read_regression, _draw_regression),
}


class NaiveSampler(Sampler):
    """Draws of theta given statistics taken as exact. The statistics are data: other released values do not recompile."""

    model: Model
    known: Statistics

    def draw(self, key: Key) -> Draw:
        return Draw(_RULES[type(self.model)].draw(self.model, self.known, key), {}, {})


class Naive(Engine):
    """The posterior that takes the released numbers as exact (never exact, never chosen: a comparison)."""

    name: ClassVar[str] = "naive"
    exact: ClassVar[bool] = False

    def supports(self, model: Model, release: Release) -> Support:
        try:
            self.read(model, release)
        except NotHeld as reason:
            return Support(False, str(reason))
        return Support(True, "the model has a conjugate update from the released statistics", "independent draws")

    def read(self, model: Model, release: Release) -> tuple[Statistics, list[str]]:
        """The statistics taken as exact, and notes on those that had to be moved to be possible."""
        rule = _RULES.get(type(model))
        if rule is None:
            known = ", ".join(sorted(model.__name__ for model in _RULES))
            raise NotHeld(
                f"{type(model).__name__} has no conjugate update from released statistics (those that have: {known})"
            )
        reading = Reading(model, release)
        found = rule.read(model, reading)
        return {name: jnp.asarray(value, dtype=float) for name, value in found.items()}, reading.notes

    def build(self, model: Model, release: Release, key: Key) -> NaiveSampler:
        return NaiveSampler(model, self.read(model, release)[0])
