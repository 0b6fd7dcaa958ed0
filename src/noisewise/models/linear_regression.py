"""Linear regression with random or with given covariates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy import stats
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import triangular
from noisewise.models.base import Model
from noisewise.models.bijections import Parameter
from noisewise.models.formula import Formula, is_formula, read_formula
from noisewise.models.hyperparameters import column_name, column_names, covariance, positive, real
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.models.transforms import Transform, read_transforms
from noisewise.typing import Innovations, Key, Records, Theta


class LinearRegression(Model):
    r"""Regression of a response on normal covariates (Ju et al. 2022, section 5), any number of them.

    ``x ~ N(covariate_mean, covariate_cov)`` and ``y | x ~ N(beta_0 + x' beta_{1..p}, variance)``, with the intercept first in
    ``beta ~ N(0, coef_scale^2 I)``. Each of the other three is a constant if it is given as numbers, or an unknown
    parameter if it is given as a prior: ``variance=InverseGamma(a, b)``, ``covariate_mean=NormalPrior(mean, cov)``,
    ``covariate_cov=InverseWishart(df, scale)``, all independent.

    :meth:`update` draws ``variance | beta``, ``beta | variance``, ``covariate_cov | covariate_mean``, ``covariate_mean |
    covariate_cov``, those of them that are unknown: a fresh exact draw (``conjugate``) unless both of a pair are unknown, and
    then a Gibbs cycle. Innovations are standard normal, one for each column: ``x = mean + L u_x`` with ``L L' =
    covariate_cov``, ``y = (1, x)' beta + sqrt(variance) u_y``.

    Without ``covariate_mean`` and ``covariate_cov`` the covariates are *given*: they have no law of their own, and a release must
    hold every one of them, public or with its own noise (the flat law of Raim 2021). Such a model makes no records
    (``has_transform`` is False); it is for releases of every record, :func:`nw.queries.Records`. ``transforms`` says under which
    map a given covariate enters, ``{"x1": "log"}`` or a :class:`nw.models.Transform`; ``intercept=False`` leaves the intercept out.

    A formula in the place of the predictors says all of these, ``LinearRegression("relief ~ age + log(dose)")``
    (:mod:`noisewise.models.formula`).

    >>> import noisewise as nw
    >>> model = nw.models.LinearRegression(("age", "dose"), "relief", covariate_mean=[0, 0], covariate_cov=[[1, 0], [0, 1]])
    >>> model.parameters["beta"].coords
    (('coefficient', ('intercept', 'age', 'dose')),)
    """

    coef_scale: Float[Array, ""]
    variance: Float[Array, ""] | InverseGamma
    covariate_mean: Float[Array, " p"] | NormalPrior | None
    covariate_cov: Float[Array, "p p"] | InverseWishart | None
    predictors: tuple[str, ...] = eqx.field(static=True)
    response: str = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    transforms: tuple[tuple[str, Transform], ...] = eqx.field(static=True)

    def __init__(
        self,
        predictors: Iterable[str] = ("x1", "x2"),
        response: str = "y",
        *,
        coef_scale: ArrayLike = 2.0,
        variance: ArrayLike | InverseGamma = 2.0,
        covariate_mean: ArrayLike | NormalPrior | None = None,
        covariate_cov: ArrayLike | InverseWishart | None = None,
        intercept: bool = True,
        transforms: Mapping[str, str | Transform] | None = None,
    ) -> None:
        if is_formula(predictors):
            predictors, response, intercept, transforms = _from_formula(str(predictors), response, transforms)
        self.predictors = column_names(predictors, "predictors")
        self.response = column_name(response, "response")
        if self.response in self.predictors:
            raise ValueError(f"response must not be one of the predictors {self.predictors}; got {response!r}.")
        self.coef_scale = positive(coef_scale, "coef_scale")
        self.variance = variance if isinstance(variance, InverseGamma) else positive(variance, "variance")
        if not isinstance(intercept, bool):
            raise ValueError(f"intercept must be True or False; got {intercept!r}.")
        self.intercept = intercept
        self.transforms = read_transforms(transforms, self.predictors)
        p = len(self.predictors)
        if (covariate_mean is None) != (covariate_cov is None):
            raise ValueError(
                "covariate_mean and covariate_cov go together; give both, or neither for covariates without a law."
            )
        if self.transforms and covariate_mean is not None:
            raise ValueError("transforms are for given covariates; leave out covariate_mean and covariate_cov.")
        if covariate_mean is None:
            self.covariate_mean = self.covariate_cov = None
            return
        if isinstance(covariate_mean, NormalPrior):
            _check_size(covariate_mean.mean.size, p, "covariate_mean")
            self.covariate_mean = covariate_mean
        else:
            self.covariate_mean = real(covariate_mean, "covariate_mean", (p,))
        if isinstance(covariate_cov, InverseWishart):
            _check_size(covariate_cov.scale.shape[0], p, "covariate_cov")
            self.covariate_cov = covariate_cov
        else:
            assert covariate_cov is not None
            self.covariate_cov = covariance(covariate_cov, "covariate_cov", p)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.predictors, self.response)

    @property
    def parameters(self) -> dict[str, Parameter]:
        p, names = len(self.predictors), (*(("intercept",) if self.intercept else ()), *self.predictors)
        by_predictor = ("predictor", self.predictors)
        found = {"beta": Parameter((len(names),), "real", ("coefficient",), (("coefficient", names),))}
        if isinstance(self.variance, InverseGamma):
            found["variance"] = Parameter(support="positive")
        if isinstance(self.covariate_mean, NormalPrior):
            found["covariate_mean"] = Parameter((p,), "real", ("predictor",), (by_predictor,))
        if isinstance(self.covariate_cov, InverseWishart):
            other = ("other_predictor", self.predictors)
            found["covariate_cov"] = Parameter((p, p), "covariance", (by_predictor[0], other[0]), (by_predictor, other))
        return found

    def sample_prior(self, key: Key) -> Theta:
        keys = jax.random.split(key, 4)
        theta = {"beta": self.coef_scale * jax.random.normal(keys[0], self.parameters["beta"].shape)}
        if isinstance(self.variance, InverseGamma):
            theta["variance"] = self.variance.sample(keys[1])
        if isinstance(self.covariate_mean, NormalPrior):
            theta["covariate_mean"] = self.covariate_mean.sample(keys[2])
        if isinstance(self.covariate_cov, InverseWishart):
            theta["covariate_cov"] = self.covariate_cov.sample(keys[3])
        return theta

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        density = jnp.sum(stats.norm.logpdf(theta["beta"], 0.0, self.coef_scale))
        if isinstance(self.variance, InverseGamma):
            density = density + self.variance.log_prob(theta["variance"])
        if isinstance(self.covariate_mean, NormalPrior):
            density = density + self.covariate_mean.log_prob(theta["covariate_mean"])
        if isinstance(self.covariate_cov, InverseWishart):
            density = density + self.covariate_cov.log_prob(theta["covariate_cov"])
        return density

    @property
    def has_transform(self) -> bool:
        return self.covariate_mean is not None

    def innovations(self, key: Key, n: int) -> Innovations:
        return dict(zip(self.columns, jax.random.normal(key, (len(self.columns), n)), strict=True))

    def transform(self, theta: Theta, u: Innovations) -> Records:
        spread = triangular.apply(self._factor(theta), [u[name] for name in self.predictors])
        x = dict(
            zip(
                self.predictors,
                [value + centre for value, centre in zip(spread, self._mean(theta), strict=True)],
                strict=True,
            )
        )
        y = self.line(theta["beta"], x) + jnp.sqrt(self.residual_variance(theta)) * u[self.response]
        return {**x, self.response: y}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return self._standardise(theta, records)

    @property
    def conjugate(self) -> bool:
        both = isinstance(self.covariate_mean, NormalPrior) and isinstance(self.covariate_cov, InverseWishart)
        return not (both or isinstance(self.variance, InverseGamma))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        keys = jax.random.split(key, 4)
        y = records[self.response]
        drawn: Theta = {}
        if isinstance(self.variance, InverseGamma):
            squares = jnp.sum((y - self.line(theta["beta"], records)) ** 2)
            drawn["variance"] = self.variance.sample(keys[0], count=y.size, squares=squares)
        drawn["beta"] = self.draw_beta(keys[1], 1 / self.residual_variance(drawn), records, y)
        drawn |= self.update_covariates(keys[2], keys[3], theta, records)
        return {name: drawn[name] for name in theta}

    def update_covariates(self, cov_key: Key, mean_key: Key, theta: Theta, records: Records) -> Theta:
        """The unknown parameters of the covariates' law given the covariates."""
        x, drawn = [records[name] for name in self.predictors], {}
        if isinstance(self.covariate_cov, InverseWishart):
            centred = [value - centre for value, centre in zip(x, self._mean(theta), strict=True)]
            products = triangular.gram(centred)
            drawn["covariate_cov"] = self.covariate_cov.sample(cov_key, count=x[0].size, products=products)
        if isinstance(self.covariate_mean, NormalPrior):
            cov = triangular.matrix(self._cov(drawn))
            totals = [jnp.sum(value) for value in x]
            drawn["covariate_mean"] = self.covariate_mean.sample_given(mean_key, cov=cov, count=x[0].size, total=totals)
        return drawn

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        variance = self.residual_variance(theta)
        residual = records[self.response] - self.line(theta["beta"], records)
        given = -0.5 * residual**2 / variance - 0.5 * jnp.log(2 * jnp.pi * variance)
        return given + self.log_covariates(theta, records)

    def log_covariates(self, theta: Theta, records: Records) -> Array:
        """The log density of each record's covariates; zero where they have no law."""
        if not self.has_transform:
            return jnp.zeros(())
        factor = self._factor(theta)
        squares = triangular.total([value**2 for value in self.standardise_covariates(theta, records).values()])
        log_det = triangular.half_log_det(factor) + 0.5 * len(self.predictors) * jnp.log(2 * jnp.pi)
        return -0.5 * squares - log_det

    def standardise_covariates(self, theta: Theta, records: Records) -> Records:
        """The covariates' innovations."""
        centred = [records[name] - centre for name, centre in zip(self.predictors, self._mean(theta), strict=True)]
        return dict(zip(self.predictors, triangular.solve(self._factor(theta), centred), strict=True))

    def design(self, records: Records) -> list[Array]:
        """The columns that the coefficients multiply: ones for the intercept, and the (transformed) covariates."""
        maps = dict(self.transforms)
        x = [maps[name].forward(records[name]) if name in maps else records[name] for name in self.predictors]
        return [jnp.ones_like(x[0]), *x] if self.intercept else x

    def line(self, beta: Array, records: Records) -> Array:
        """The linear predictor of each record."""
        if self.intercept:
            return beta[0] + triangular.dot(
                [beta[i + 1] for i in range(len(self.predictors))], self.design(records)[1:]
            )
        return triangular.dot([beta[i] for i in range(len(self.predictors))], self.design(records))

    def draw_beta(self, key: Key, precision: Array, records: Records, y: Array) -> Array:
        """beta given responses ``y`` with known precisions: one number, or one for each record."""
        design = self.design(records)
        if jnp.ndim(precision) == 0:
            products, linear = triangular.gram(design), [jnp.sum(column * y) * precision for column in design]
        else:
            root = jnp.sqrt(precision)
            products, linear = (
                triangular.gram([root * column for column in design]),
                [jnp.sum(precision * column * y) for column in design],
            )
            precision = jnp.ones(())
        prior = triangular.matrix(jnp.eye(len(design)))
        return triangular.normal_from_precision(
            key, triangular.combine(precision, products, 1 / self.coef_scale**2, prior), linear
        )

    def residual_variance(self, theta: Theta) -> Array:
        """The variance of the response around the line."""
        return theta["variance"] if isinstance(self.variance, InverseGamma) else self.variance

    def covariate_law(self, theta: Theta) -> tuple[Array, Array]:
        """Mean and covariance of the covariates."""
        return jnp.stack(self._mean(theta)), self._cov(theta)

    def _standardise(self, theta: Theta, records: Records) -> Records:
        residual = records[self.response] - self.line(theta["beta"], records)
        white = residual / jnp.sqrt(self.residual_variance(theta))
        return {**self.standardise_covariates(theta, records), self.response: white}

    def _mean(self, theta: Theta) -> list[Array]:
        mean = theta["covariate_mean"] if isinstance(self.covariate_mean, NormalPrior) else self.covariate_mean
        if mean is None:
            raise ValueError(NO_LAW)
        return [mean[i] for i in range(len(self.predictors))]

    def _cov(self, theta: Theta) -> Array:
        cov = theta["covariate_cov"] if isinstance(self.covariate_cov, InverseWishart) else self.covariate_cov
        if cov is None:
            raise ValueError(NO_LAW)
        return cov

    def _factor(self, theta: Theta) -> triangular.Matrix:
        return triangular.cholesky(triangular.matrix(self._cov(theta)))


NO_LAW = "The covariates of this regression have no law, so it makes no records; give covariate_mean and covariate_cov."


def _from_formula(text: str, response: str, transforms: Mapping[str, str | Transform] | None) -> Formula:
    found = read_formula(text)
    if response not in ("y", found.response) or transforms is not None:
        raise ValueError(
            f"The formula {text!r} says the response and the transforms; leave out response= and transforms=."
        )
    return found


def _check_size(size: int, expected: int, name: str) -> None:
    if size != expected:
        raise ValueError(
            f"{name} must have a prior of dimension {expected}, one for each predictor; got dimension {size}."
        )
