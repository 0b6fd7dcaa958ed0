r"""Linear regression from noisy second moments at any n, in the spirit of Bernstein and Sheldon (2019).

The totals J are the sums of ``z_i`` and ``z_i z_j``, i <= j, over the records, where z are the covariates and the response as the query
reads them (mapped by ``rescale``, *not* clamped: the engine takes the public bounds as wide enough for clamping not
to matter, and a run whose parameters say otherwise says so, :mod:`noisewise.engines.edgeworth`).
Under the model z is normal with a mean mu and a covariance S that follow from theta, and the covariances of the sums need its
moments up to the fourth:

    Cov(z_i, z_j z_k) = mu_j S_ik + mu_k S_ij,
    Cov(z_i z_j, z_k z_l) = S_ik S_jl + S_il S_jk + mu_i mu_k S_jl + mu_i mu_l S_jk + mu_j mu_k S_il + mu_j mu_l S_ik.

Given J the parameters are drawn from the model's own conditionals. Totals that no n records can have, whose
centred second moments are not positive definite, are drawn again. Checked by ``tests/engines/test_sufficient_regression.py``.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from noisewise.kernels.statistics import Picture, StatisticLaw
from noisewise.models import triangular
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.release.document import Release
from noisewise.release.moments import Moments
from noisewise.typing import Key, Records, Theta

Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]


class RegressionLaw(StatisticLaw):
    """Totals of degree one and two of the mapped columns ``z = gain * column + shift``, the response last."""

    model: LinearRegression
    gain: Float[Array, " q"]
    shift: Float[Array, " q"]

    def moments(self, theta: Theta) -> Picture:
        mean, spread = self.mapped(theta)
        i, j = self._pairs()
        second = spread + jnp.outer(mean, mean)
        cross = mean[i] * spread[:, j] + mean[j] * spread[:, i]
        # E of products of pairs about the mean, and the terms in which one of each pair is its mean
        fourth = spread[jnp.ix_(i, i)] * spread[jnp.ix_(j, j)] + spread[jnp.ix_(i, j)] * spread[jnp.ix_(j, i)]
        means = (
            jnp.outer(mean[i], mean[i]) * spread[jnp.ix_(j, j)] + jnp.outer(mean[j], mean[j]) * spread[jnp.ix_(i, i)]
        )
        mixed = jnp.outer(mean[i], mean[j]) * spread[jnp.ix_(j, i)]
        squares = fourth + means + mixed + mixed.T
        return Picture(jnp.concatenate([mean, second[i, j]]), jnp.block([[spread, cross], [cross.T, squares]]))

    def unclamped(self, records: Records) -> Float[Array, "n m"]:
        """What each record would add to the released sums if nothing were clamped."""
        z = self.gain * jnp.stack([records[name] for name in self.model.columns], axis=-1) + self.shift
        i, j = self._pairs()
        return jnp.concatenate([z, z[:, i] * z[:, j]], axis=-1) @ self.matrix.T + self.offset

    def mapped(self, theta: Theta) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """The mean and the covariance of z."""
        model = self.model
        mean = theta["covariate_mean"] if isinstance(model.covariate_mean, NormalPrior) else model.covariate_mean
        cov = theta["covariate_cov"] if isinstance(model.covariate_cov, InverseWishart) else model.covariate_cov
        variance = theta["variance"] if isinstance(model.variance, InverseGamma) else model.variance
        assert mean is not None
        assert cov is not None
        slopes = theta["beta"][1:]
        with_response = cov @ slopes
        whole = jnp.block(
            [[cov, with_response[:, None]], [with_response[None, :], (variance + slopes @ with_response)[None, None]]]
        )
        centre = jnp.concatenate([mean, (theta["beta"][0] + slopes @ mean)[None]])
        return self.gain * centre + self.shift, whole * jnp.outer(self.gain, self.gain)

    def update(self, key: Key, theta: Theta, joint: Float[Array, " k"], n: Float[Array, ""]) -> Theta:
        model, keys = self.model, jax.random.split(key, 4)
        first, second = self.sums(joint, n)
        p = first.shape[0] - 1
        products = jnp.block([[n[None, None], first[None, :p]], [first[:p, None], second[:p, :p]]])
        linear = jnp.concatenate([first[p:], second[:p, p]])
        drawn: Theta = {}
        if isinstance(model.variance, InverseGamma):
            beta = theta["beta"]
            squares = jnp.maximum(second[p, p] - 2 * beta @ linear + beta @ products @ beta, 0.0)
            variance = model.variance.sample(keys[0], count=n, squares=squares)
            drawn["variance"] = variance
        else:
            variance = model.variance
        precision = products / variance + jnp.eye(p + 1) / model.coef_scale**2
        right = [linear[i] / variance for i in range(p + 1)]
        drawn["beta"] = triangular.normal_from_precision(keys[1], triangular.matrix(precision), right)
        if isinstance(model.covariate_cov, InverseWishart):
            mean = theta["covariate_mean"] if isinstance(model.covariate_mean, NormalPrior) else model.covariate_mean
            assert mean is not None
            shifted = jnp.outer(first[:p], mean)
            about = second[:p, :p] - shifted - shifted.T + n * jnp.outer(mean, mean)
            drawn["covariate_cov"] = model.covariate_cov.sample(
                keys[2], count=n, products=triangular.matrix(0.5 * (about + about.T))
            )
        if isinstance(model.covariate_mean, NormalPrior):
            known = model.covariate_cov
            assert known is not None
            cov = triangular.matrix(drawn["covariate_cov"] if isinstance(known, InverseWishart) else known)
            total = [first[i] for i in range(p)]
            drawn["covariate_mean"] = model.covariate_mean.sample_given(keys[3], cov=cov, count=n, total=total)
        return {name: drawn[name] for name in model.parameters}

    def sums(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """The sums of the columns, and of their products, in their own units."""
        first, second = self._square(joint)
        inverse = 1 / self.gain
        centred = jnp.outer(first, self.shift)
        moved = second - centred - centred.T + n * jnp.outer(self.shift, self.shift)
        return inverse * (first - n * self.shift), moved * jnp.outer(inverse, inverse)

    def possible(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Bool[Array, ""]:
        first, second = self._square(joint)
        factor = triangular.cholesky(triangular.matrix(second - jnp.outer(first, first) / n))
        pivots = jnp.stack([row[-1] for row in factor]) if isinstance(factor, list) else jnp.diag(factor)
        return jnp.all(pivots > 0)

    def _square(self, joint: Float[Array, " k"]) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        q = self.gain.shape[0]
        i, j = self._pairs()
        half = jnp.zeros((q, q)).at[i, j].set(joint[q:])
        return joint[:q], half + half.T - jnp.diag(jnp.diag(half))

    def _pairs(self) -> Pairs:
        i, j = np.triu_indices(self.gain.shape[0])
        return i, j


def regression_law(model: LinearRegression, release: Release) -> RegressionLaw | str:
    """The law of the totals of a regression's moments, or the reason why there is none."""
    if not (model.has_transform and model.intercept):
        return "the moments are known for a regression with an intercept and normal covariates"
    columns = model.columns
    gains: dict[str, float] = {}
    shifts: dict[str, float] = {}
    rows, constants = [], []
    q = len(columns)
    i, j = np.triu_indices(q)
    place = {frozenset({columns[a]: 2}.items()) if a == b else frozenset({columns[a]: 1, columns[b]: 1}.items()): q + k
             for k, (a, b) in enumerate(zip(i, j, strict=True))}  # fmt: skip
    place |= {frozenset({name: 1}.items()): a for a, name in enumerate(columns)}
    for measurement in release.measurements:
        query = measurement.query
        if not isinstance(query, Moments):
            return "only Moments queries release the sums of a regression"
        for name, column in query.bounds:
            low, high = column.range
            gain = (high - low) / (column.upper - column.lower)
            if (
                gains.setdefault(name, gain) != gain
                or shifts.setdefault(name, low - gain * column.lower) != low - gain * column.lower
            ):
                return f"the measurements map the column {name!r} differently"
        for term in query.terms:
            if term and frozenset(term) not in place:
                return f"the term {dict(term)} is not a moment of degree one or two of the model's columns"
            row = np.zeros(q + len(i))
            if term:
                row[place[frozenset(term)]] = 1.0
            rows.append(row)
            constants.append(0.0 if term else 1.0)
    return RegressionLaw(
        matrix=jnp.asarray(np.stack(rows)),
        offset=jnp.asarray(constants),
        model=model,
        gain=jnp.asarray([gains.get(name, 1.0) for name in columns]),
        shift=jnp.asarray([shifts.get(name, 0.0) for name in columns]),
    )
