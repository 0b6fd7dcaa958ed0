r"""Targets by name: the thesis's Gaussian, banana and circle, logistic and Poisson regression with their Lipschitz bounds.

What a target owes is in :mod:`noisewise.private.target`; :func:`from_functions` makes one of two functions of your own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.private.accounting import checked_whole
from noisewise.private.target import (
    FromModel,
    Functions,
    Target,
    as_float,
    as_target,
    from_functions,
    positive,
    project,
)
from noisewise.typing import Key, Records, Theta

__all__ = [
    "Banana",
    "Circle",
    "FromModel",
    "Functions",
    "Gaussian",
    "LogisticRegression",
    "PoissonRegression",
    "Target",
    "as_target",
    "from_functions",
]


def check_shape(columns: Mapping[str, np.ndarray], name: str, *shape: int) -> None:
    """Refuse a column whose records are of another shape."""
    found = columns[name].shape[1:]
    if found != shape:
        rows = len(columns[name])
        raise ValueError(f"the column {name!r} must have shape {(rows, *shape)} for this target; got {(rows, *found)}.")


class Gaussian(Target):
    r"""``x ~ N(theta, covariance)``, ``theta ~ N(0, prior_variance I)``: the thesis's Gaussian model. Column ``x`` of
    shape (n, d).

    >>> import numpy as np
    >>> target = Gaussian(covariance=np.eye(2), prior_variance=100.0)
    >>> mean, covariance = target.posterior({"x": np.ones((100, 2))})
    >>> bool(abs(mean[0] - 1 / (1 + 1 / 1e4)) < 1e-12)
    True
    """

    precision: Float[Array, "d d"]
    prior_variance: Float[Array, ""]
    temper: Float[Array, ""]

    def __init__(self, *, covariance: Any, prior_variance: Any, temper: Any = 1.0) -> None:
        if not isinstance(covariance, jax.core.Tracer):
            matrix = np.asarray(covariance, dtype=float)
            square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and np.allclose(matrix, matrix.T)
            if not square or not np.all(np.linalg.eigvalsh(matrix) > 0):
                raise ValueError(f"covariance must be a symmetric positive definite matrix; got {covariance!r}.")
        self.precision = jnp.linalg.inv(as_float(covariance))
        self.prior_variance, self.temper = positive(prior_variance, "prior_variance"), positive(temper, "temper")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.zeros(self.precision.shape[0])

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        check_shape(columns, "x", self.size)

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum(theta**2) / self.prior_variance

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        residual = records["x"] - theta
        return -0.5 * jnp.sum(residual * (residual @ self.precision), axis=-1)

    def log_ratios(self, theta: Float[Array, " d"], new: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        weights = self.precision @ (new - theta)
        return project(records["x"], weights) - jnp.dot(0.5 * (new + theta), weights)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        return (records["x"] - theta) @ self.precision

    def posterior(self, records: Records) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """The closed-form posterior's mean and covariance."""
        x = as_float(records["x"])
        information = self.temper * len(x) * self.precision
        covariance = jnp.linalg.inv(information + jnp.eye(self.size) / self.prior_variance)
        return covariance @ (information @ jnp.mean(x, axis=0)), covariance


class Banana(Target):
    r"""The banana model of Theorem 5.2: ``x_j ~ N(u_j, variance_j)`` with ``u = (theta_1, theta_2 + a (theta_1 - m)^2 +
    b, theta_3, ...)``.

    The prior is ``Ban(0, prior_variance I, a, b, m)``, under which u is normal. Column ``x`` of shape (n, d). ``a = 0``
    is a Gaussian.

    >>> target = Banana(a=20.0, variances=[20.0, 2.5], prior_variance=1000.0)
    >>> [float(value) for value in target.straighten(jnp.array([1.0, 3.0]))]
    [1.0, 23.0]
    """

    a: Float[Array, ""]
    b: Float[Array, ""]
    m: Float[Array, ""]
    precision: Float[Array, " d"]
    prior_variance: Float[Array, ""]
    temper: Float[Array, ""]

    def __init__(
        self, *, a: Any, variances: Any, prior_variance: Any, b: Any = 0.0, m: Any = 0.0, temper: Any = 1.0
    ) -> None:
        self.a, self.b, self.m = as_float(a), as_float(b), as_float(m)
        self.precision = 1 / positive(variances, "variances")
        if self.precision.ndim != 1 or self.precision.shape[0] < 2:
            raise ValueError(
                f"variances must be a list of at least two numbers, one for each component; got {variances!r}."
            )
        self.prior_variance, self.temper = positive(prior_variance, "prior_variance"), positive(temper, "temper")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.zeros(self.precision.shape[0])

    def straighten(self, theta: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """u of theta: the coordinates in which prior and likelihood are normal."""
        return jnp.asarray(theta).at[..., 1].add(self.a * (theta[..., 0] - self.m) ** 2 + self.b)

    def bend(self, u: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Theta of u."""
        return jnp.asarray(u).at[..., 1].add(-self.a * (u[..., 0] - self.m) ** 2 - self.b)

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        check_shape(columns, "x", self.size)

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum(self.straighten(theta) ** 2) / self.prior_variance

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        return -0.5 * jnp.sum(self.precision * (records["x"] - self.straighten(theta)) ** 2, axis=-1)

    def log_ratios(self, theta: Float[Array, " d"], new: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        before, after = self.straighten(theta), self.straighten(new)
        weights = self.precision * (after - before)
        return project(records["x"], weights) - jnp.dot(0.5 * (after + before), weights)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        residual = self.precision * (records["x"] - self.straighten(theta))
        slope = jnp.zeros(self.size).at[0].set(2 * self.a * (theta[0] - self.m))
        return residual + residual[:, 1:2] * slope

    def posterior(self, records: Records) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Mean and variances of the posterior of u, which is normal; :meth:`bend` its draws to have theta's (Theorem 5.2)."""
        x = as_float(records["x"])
        information = self.temper * len(x) * self.precision
        total = information + 1 / self.prior_variance
        return information * jnp.mean(x, axis=0) / total, 1 / total

    def sample_posterior(self, key: Key, records: Records, size: int) -> Float[Array, "size d"]:
        """Independent exact draws of theta given the records."""
        mean, variance = self.posterior(records)
        return self.bend(mean + jnp.sqrt(variance) * jax.random.normal(key, (size, self.size)))


class Circle(Target):
    """``log f(r | theta) = -a (theta_1^2 + theta_2^2 - r^2)^2`` with a flat prior. Column ``r`` of shape (n,)."""

    a: Float[Array, ""]
    temper: Float[Array, ""]

    def __init__(self, *, a: Any, temper: Any = 1.0) -> None:
        self.a, self.temper = positive(a, "a"), positive(temper, "temper")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("r",)

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.array([0.0, 1.0])

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        check_shape(columns, "r")

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.zeros(())

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        return -self.a * (jnp.sum(theta**2) - records["r"] ** 2) ** 2

    def log_ratios(self, theta: Float[Array, " d"], new: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        before, after = jnp.sum(theta**2), jnp.sum(new**2)
        return -self.a * (after - before) * (after + before - 2 * records["r"] ** 2)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        return (-4 * self.a * (jnp.sum(theta**2) - records["r"] ** 2))[:, None] * theta

    def sample_posterior(self, key: Key, records: Records, size: int) -> Float[Array, "size 2"]:
        """Independent exact draws: the squared radius is normal, cut at zero, and the angle uniform."""
        square = as_float(records["r"]) ** 2
        sd = jnp.sqrt(0.5 / (self.temper * self.a * len(square)))
        mean = jnp.mean(square)
        one, two = jax.random.split(key)
        radius = jnp.sqrt(mean + sd * jax.random.truncated_normal(one, -mean / sd, jnp.inf, (size,)))
        angle = jax.random.uniform(two, (size,), minval=0.0, maxval=2 * math.pi)
        return radius[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


class LogisticRegression(Target):
    r"""``y ~ Bernoulli(sigmoid(x'beta))``, ``beta ~ N(0, prior_sd^2 I)``. Columns ``x`` (n, p) and ``y`` (n,) of zeros
    and ones.

    ``bound`` is the public bound on the norm of a row of ``x`` (put the column of ones for an intercept in ``x`` and
    count it). The log likelihood of a record is then ``bound``-Lipschitz, because the log sigmoid has slope at most one:
    no other clipping is needed.

    >>> float(LogisticRegression(predictors=2, prior_sd=2.0, bound=1.5).lipschitz)
    1.5
    """

    prior_sd: Float[Array, ""]
    bound: Array | None
    temper: Float[Array, ""]
    predictors: int = eqx.field(static=True)

    def __init__(self, *, predictors: int, prior_sd: Any, bound: Any = None, temper: Any = 1.0) -> None:
        self.predictors, self.prior_sd = checked_whole(predictors, "predictors"), positive(prior_sd, "prior_sd")
        self.bound = None if bound is None else positive(bound, "bound")
        self.temper = positive(temper, "temper")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.zeros(self.predictors)

    @property
    def lipschitz(self) -> Array | None:
        return self.bound

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        check_shape(columns, "x", self.predictors)
        check_shape(columns, "y")
        if not np.all(np.isin(columns["y"], (0, 1))):
            raise ValueError("the column 'y' must hold zeros and ones; recode it first.")

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum((theta / self.prior_sd) ** 2)

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        signed = (2 * records["y"] - 1) * project(records["x"], theta)
        return -jax.nn.softplus(-signed)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        error = records["y"] - jax.nn.sigmoid(project(records["x"], theta))
        return error[:, None] * records["x"]

    def named(self, theta: Float[Array, " d"]) -> Theta:
        return {"beta": theta}

    def vector(self, theta: Mapping[str, Any]) -> Float[Array, " d"]:
        return as_float(theta["beta"])


class PoissonRegression(Target):
    r"""``y ~ Poisson(exp(eta))``, ``eta = x'beta`` kept within ``+-predictor_bound``, ``beta ~ N(0, prior_sd^2 I)``.

    Columns ``x`` (n, p) and ``y`` (n,).
    With public bounds on the norm of a row of ``x``, on the counts (``largest``) and on the linear predictor, a record's
    log likelihood ``y eta - exp(eta)`` is Lipschitz with ``bound max(largest - exp(-predictor_bound),
    exp(predictor_bound))``. Without them it is not, and the sampler needs a clip bound.

    >>> target = PoissonRegression(predictors=2, prior_sd=1.0, bound=1.0, largest=20.0, predictor_bound=2.0)
    >>> round(float(target.lipschitz), 4)
    19.8647
    """

    prior_sd: Float[Array, ""]
    bound: Array | None
    largest: Array | None
    predictor_bound: Array | None
    temper: Float[Array, ""]
    predictors: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        predictors: int,
        prior_sd: Any,
        bound: Any = None,
        largest: Any = None,
        predictor_bound: Any = None,
        temper: Any = 1.0,
    ) -> None:
        self.predictors, self.prior_sd = checked_whole(predictors, "predictors"), positive(prior_sd, "prior_sd")
        self.bound = None if bound is None else positive(bound, "bound")
        self.temper = positive(temper, "temper")
        self.largest = None if largest is None else positive(largest, "largest")
        self.predictor_bound = None if predictor_bound is None else positive(predictor_bound, "predictor_bound")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.zeros(self.predictors)

    @property
    def lipschitz(self) -> Array | None:
        if self.bound is None or self.largest is None or self.predictor_bound is None:
            return None
        return self.bound * jnp.maximum(self.largest - jnp.exp(-self.predictor_bound), jnp.exp(self.predictor_bound))

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        check_shape(columns, "x", self.predictors)
        check_shape(columns, "y")
        if np.any(columns["y"] < 0) or np.any(columns["y"] != np.rint(columns["y"])):
            raise ValueError("the column 'y' must hold counts: whole numbers, not negative.")

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum((theta / self.prior_sd) ** 2)

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        eta = self._predictor(theta, records)
        return records["y"] * eta - jnp.exp(eta)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        free = project(records["x"], theta)
        error = records["y"] - jnp.exp(self._predictor(theta, records))
        if self.predictor_bound is not None:
            error = jnp.where(jnp.abs(free) <= self.predictor_bound, error, 0.0)
        return error[:, None] * records["x"]

    def _predictor(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        eta = project(records["x"], theta)
        return eta if self.predictor_bound is None else jnp.clip(eta, -self.predictor_bound, self.predictor_bound)

    def named(self, theta: Float[Array, " d"]) -> Theta:
        return {"beta": theta}

    def vector(self, theta: Mapping[str, Any]) -> Float[Array, " d"]:
        return as_float(theta["beta"])
