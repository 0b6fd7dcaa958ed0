r"""The hidden values of a regression on noisy microdata (Raim 2021, section 5): responses, then covariates one by one.

On its working scale L the response is normal around the line, ``L_i | x_i ~ N(x_i' beta, 1 / w_i)``:

| model | L | 1 / w |
|---|---|---|
| linear | y | variance |
| lognormal | log y | variance |
| small areas | y | variance + se_i^2 |
| logistic | (y - 1/2) / w | w ~ PG(1, x' beta), drawn afresh |

so that with ``r_i = L_i - sum_{l != j} x_il beta_l`` a hidden covariate has density

    exp(-w (r - beta_j h(x))^2 / 2)  times its normal law given the other covariates, if it has one,  times  p(released | x),

a normal weight, or a transformed one, times the noise (equation 17, Remark 5.2). The response itself has the weight N or LN times
the noise (equation 16); a binary one has two values. Given theta all records are independent: one vectorised step.

Wide moves. For a binary response the target of theta is ``prod_i p(released_i | x_i, theta)``, y summed out. Otherwise the
innovations ``u = (L - line) sqrt(w)`` are held and y moves with theta. Integer noise ties y to a lattice ``z - k``; there a
real number v, uniform in the cell of y, moves instead, and y is the lattice point at the cell's upper end, so that the target is

    prod_i f(y(v_i) | theta) g(z_i - y(v_i)) |dv_i / du_i| / |cell of y(v_i)|.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.direct.closed import two_tails
from noisewise.direct.latent import latent_value
from noisewise.direct.weights import LognormalWeight, NormalWeight, TransformedNormalWeight
from noisewise.engines.microdata_imputer import Imputer, LogDensity
from noisewise.engines.microdata_table import Cells, Table
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.logistic_regression import LogisticRegression
from noisewise.models.lognormal_regression import LognormalRegression
from noisewise.models.polya_gamma import polya_gamma
from noisewise.models.small_area import FayHerriot
from noisewise.release.noise import Gaussian, Laplace
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.typing import Key, Records, Theta

Regression = LinearRegression | LognormalRegression | LogisticRegression | FayHerriot
_FLAT = 1e-200
_NEARLY_FLAT = 1e-8
_NO_SLOPE = 1e-12


class RegressionImputer(Imputer):
    """Draws of noisy and missing responses and covariates."""

    model: Regression
    cells: Table

    @property
    def linear(self) -> LinearRegression:
        return self.model if isinstance(self.model, LinearRegression) else self.model.linear

    @property
    def hidden(self) -> tuple[str, ...]:
        """The covariates that are not known exactly."""
        return tuple(name for name in self.linear.predictors if not self.cells[name].known)

    def respond(self, key: Key, theta: Theta, records: Records) -> Records:
        name = self.linear.response
        cells, line = self.cells[name], self.linear.line(theta["beta"], records)
        if cells.known:
            return records
        if isinstance(self.model, LogisticRegression):
            said = cells.log_codes(2)
            odds = line + said[:, 1] - said[:, 0]
            drawn = (jax.random.logistic(key, line.shape, dtype=float) < odds).astype(float)
        else:
            drawn = self._continuous_response(key, line, self._variance(theta, records), cells)
            # a draw that was not reached (probability below e^-500) leaves the value as it is
            drawn = jnp.where(jnp.isnan(drawn), records[name], drawn)
        return {**records, name: cells.settle(drawn)}

    def _continuous_response(self, key: Key, line: Array, variance: Array, cells: Cells) -> Array:
        noisy_key, missing_key = jax.random.split(key)
        variance = jnp.broadcast_to(variance, line.shape)
        logs = isinstance(self.model, LognormalRegression)
        drawn = line
        if cells.law is not None:
            assert not isinstance(cells.law, RandomisedResponse)
            if logs:
                drawn = latent_value(noisy_key, LognormalWeight(line, variance), cells.law, cells.released)
            else:
                drawn = normal_times_noise(noisy_key, 1 / variance, line / variance, cells)
        if cells.gaps:
            free = line + jnp.sqrt(variance) * jax.random.normal(missing_key, line.shape, dtype=float)
            drawn = jnp.where(cells.missing, jnp.exp(free) if logs else free, drawn)
        return drawn

    def covariates(self, key: Key, theta: Theta, records: Records) -> Records:
        if not self.hidden:
            return records
        linear, beta = self.linear, theta["beta"]
        weight_key, *keys = jax.random.split(key, len(self.hidden) + 1)
        line = linear.line(beta, records)
        working, weight = self._working(weight_key, theta, records, line)
        precision, mean = None, None
        if linear.has_transform:
            mean, covariance = linear.covariate_law(theta)
            precision = jnp.linalg.inv(covariance)
        maps = dict(linear.transforms)
        for name, now in zip(self.hidden, keys, strict=True):
            j = linear.predictors.index(name)
            slope = beta[j + linear.intercept]
            forward = maps[name].forward if name in maps else (lambda x: x)
            rest = line - slope * forward(records[name])
            residual = working - rest
            own, pull = weight * slope**2, weight * slope * residual
            if precision is not None and mean is not None:
                others = [
                    precision[j, k] * (records[other] - mean[k]) for k, other in enumerate(linear.predictors) if k != j
                ]
                own = own + precision[j, j]
                pull = pull + precision[j, j] * mean[j] - sum(others, start=jnp.zeros(()))
            cells = self.cells[name]
            if cells.coded:
                drawn = _coded_covariate(now, cells, forward, slope, residual, weight)
            elif name in maps:
                safe = jnp.where(jnp.abs(slope) > _NO_SLOPE, slope, _NO_SLOPE)
                law = TransformedNormalWeight(
                    residual / safe,
                    1 / (weight * safe**2) * jnp.ones_like(residual),
                    maps[name].forward,
                    maps[name].inverse,
                    maps[name].lower,
                    maps[name].upper,
                )
                assert not isinstance(cells.law, RandomisedResponse | None)
                drawn = latent_value(now, law, cells.law, cells.released)
            else:
                drawn = normal_times_noise(now, own * jnp.ones_like(pull), pull, cells)
            drawn = jnp.where(jnp.isnan(drawn), records[name], cells.settle(drawn))
            records = {**records, name: drawn}
            line = rest + slope * forward(drawn)
        return records

    def _working(self, key: Key, theta: Theta, records: Records, line: Array) -> tuple[Array, Array]:
        y = records[self.linear.response]
        if isinstance(self.model, LogisticRegression):
            weight = polya_gamma(key, line)
            return (y - 0.5) / weight, weight
        return jnp.log(y) if isinstance(self.model, LognormalRegression) else y, 1 / self._variance(theta, records)

    def _variance(self, theta: Theta, records: Records) -> Array:
        if isinstance(self.model, FayHerriot):
            return self.model.response_variance(theta, records)
        return self.linear.residual_variance(theta)

    def log_target(self, key: Key, theta: Theta, records: Records) -> LogDensity | None:
        linear, cells = self.linear, self.cells[self.linear.response]
        if cells.known:
            return None
        if isinstance(self.model, LogisticRegression):
            said = cells.log_codes(2)

            def summed_out(theta: Theta) -> Array:
                line = linear.line(theta["beta"], records)
                each = jnp.logaddexp(jax.nn.log_sigmoid(line) + said[:, 1], jax.nn.log_sigmoid(-line) + said[:, 0])
                return jnp.sum(each + linear.log_covariates(theta, records))

            return summed_out

        logs = isinstance(self.model, LognormalRegression)
        y = records[linear.response]

        def cell(exact: Array) -> Array:
            return jnp.minimum(exact, 1.0) if logs else jnp.ones_like(exact)

        moving = y
        if cells.discrete:
            moving = y - cell(y) * jax.random.uniform(key, y.shape, dtype=float)
        spread = jnp.sqrt(self._variance(theta, records))
        u = ((jnp.log(moving) if logs else moving) - linear.line(theta["beta"], records)) / spread

        def tied(theta: Theta) -> Array:
            line, variance = linear.line(theta["beta"], records), self._variance(theta, records)
            working = line + jnp.sqrt(variance) * u
            moved = jnp.exp(working) if logs else working
            if cells.law is None:
                # what is public stays where it is
                density = -0.5 * ((jnp.log(y) if logs else y) - line) ** 2 / variance - 0.5 * jnp.log(variance)
            elif cells.discrete:
                point = cells.released - jnp.floor(cells.released - moved)
                height = jnp.log(point) if logs else point
                log_f = -0.5 * (height - line) ** 2 / variance - (height if logs else 0.0)
                log_stretch = working if logs else 0.0
                density = log_f + log_stretch - jnp.log(cell(point)) + cells.log_noise(point)
            else:
                density = cells.log_noise(moved)
            return jnp.sum(jnp.where(cells.missing, 0.0, density) + linear.log_covariates(theta, records))

        return tied

    def log_noise(self, records: Records) -> Array:
        return sum((jnp.sum(cells.log_noise(records[name])) for name, cells in self.cells.items()), start=jnp.zeros(()))

    def first(self) -> Records:
        """Values to start from: what was released, moved to where the model allows it."""
        values = {name: cells.released for name, cells in self.cells.items()}
        for name, transform in self.linear.transforms:
            inside = (values[name] > transform.lower) & (values[name] < transform.upper)
            values[name] = jnp.where(inside, values[name], transform.inverse(jnp.zeros(())))
        name = self.linear.response
        if isinstance(self.model, LognormalRegression):
            values[name] = jnp.where(values[name] > 0, values[name], 1.0)
        if isinstance(self.model, LogisticRegression):
            values[name] = jnp.clip(jnp.round(values[name]), 0.0, 1.0)
        return values

    def derived(self, key: Key, theta: Theta, records: Records) -> Theta:
        return {"area_mean": self.model.area_means(key, theta, records)} if isinstance(self.model, FayHerriot) else {}


def regression_imputer(model: Regression, table: Table) -> RegressionImputer | str:
    """The imputer of a regression's table, or the reason why there is none."""
    made = RegressionImputer(model, table)
    linear, response = made.linear, table[made.linear.response]
    maps = dict(linear.transforms)
    for name in linear.predictors:
        cells = table[name]
        if cells.gaps and not cells.coded and not linear.has_transform:
            return f"the covariate {name!r} has missing values and no law; give covariate_mean and covariate_cov"
        if cells.coded and linear.has_transform:
            return f"the covariate {name!r} is released as codes, which no normal law describes"
        if name in maps and cells.law is None:
            inside = (cells.released > maps[name].lower) & (cells.released < maps[name].upper)
            if not bool(jnp.all(inside)):
                return f"the public covariate {name!r} has values outside the support of its transform"
    declared = getattr(model, "noisy", None)
    noisy = tuple(name for name in linear.predictors if table[name].law is not None)
    if declared is not None and set(declared) != set(noisy):
        return f"the model says noisy={declared}, but the predictors released with noise are {noisy}"
    if isinstance(model, FayHerriot):
        errors = table[model.standard_error]
        if not errors.known or not bool(jnp.all(errors.released > 0)):
            return f"the standard errors {model.standard_error!r} must be public, complete and positive"
    if isinstance(model, LogisticRegression):
        if not bool(jnp.all(jnp.any(jnp.isfinite(response.log_codes(2)), axis=1))):
            return f"the response {linear.response!r} has released values that neither 0 nor 1 explains"
    elif response.coded:
        return f"the response {linear.response!r} is released as codes; that is for nw.models.LogisticRegression"
    positive = jnp.all((response.released > 0) | response.missing)
    if isinstance(model, LognormalRegression) and response.law is None and not bool(positive):
        return f"the response {linear.response!r} is public and not positive"
    return made


def normal_times_noise(key: Key, precision: Array, pull: Array, cells: Cells) -> Array:
    """x of density ``exp(-precision x^2 / 2 + pull x) p(released | x)``; a missing value has the first factor alone."""
    noisy_key, missing_key = jax.random.split(key)
    law, released = cells.law, cells.released
    if isinstance(law, Laplace):
        precision = jnp.maximum(precision, _FLAT)
        uniforms = jax.random.uniform(noisy_key, (2, *pull.shape), dtype=float)
        root = jnp.sqrt(precision)
        offset = released * root - pull / root
        drawn = released + two_tails(uniforms[0], uniforms[1], offset, 1 / root, law.scale)
    elif isinstance(law, Gaussian):
        total = precision + 1 / law.scale**2
        drawn = (pull + released / law.scale**2) / total
        drawn = drawn + jax.random.normal(noisy_key, pull.shape, dtype=float) / jnp.sqrt(total)
    elif law is None:
        drawn = released
    else:
        assert not isinstance(law, RandomisedResponse)
        # a weight that is flat over the noise is made as wide as its digits allow, about the released value
        flat = jnp.maximum(_NEARLY_FLAT / law.variance - precision, 0.0)
        precision, pull = precision + flat, pull + flat * released
        drawn = latent_value(noisy_key, NormalWeight(pull / precision, 1 / precision), law, released)
    if cells.gaps:
        free = (pull / precision) + jax.random.normal(missing_key, pull.shape, dtype=float) / jnp.sqrt(precision)
        drawn = jnp.where(cells.missing, free, drawn)
    return drawn


def _coded_covariate(
    key: Key, cells: Cells, forward: Callable[[Array], Array], slope: Array, residual: Array, weight: Array
) -> Array:
    """A covariate of codes 0, 1, ..., all alike before the release, behind randomised response."""
    assert isinstance(cells.law, RandomisedResponse)
    codes = jnp.arange(cells.law.levels, dtype=float)
    fit = -0.5 * jnp.reshape(weight, (-1, 1)) * (residual[:, None] - slope * forward(codes)) ** 2
    return jax.random.categorical(key, fit + cells.log_codes(cells.law.levels), axis=-1).astype(float)
