"""Prior laws that stand where a known constant could: unknown variances, means and covariance matrices."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, multigammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from noisewise.models import triangular
from noisewise.models.gamma import log_gamma
from noisewise.models.hyperparameters import covariance, positive, real
from noisewise.typing import Key


class InverseGamma(eqx.Module):
    """A variance v with density ``b^a v^(-a-1) exp(-b/v) / Gamma(a)``, a = ``shape``, b = ``scale``.

    >>> import noisewise as nw
    >>> float(nw.models.InverseGamma(1, 1).log_prob(1.0))
    -1.0
    """

    shape: Float[Array, ""]
    scale: Float[Array, ""]

    def __init__(self, shape: ArrayLike, scale: ArrayLike) -> None:
        self.shape = positive(shape, "the inverse gamma shape")
        self.scale = positive(scale, "the inverse gamma scale")

    def log_prob(self, value: ArrayLike) -> Float[Array, ""]:
        """The log density."""
        normaliser = self.shape * jnp.log(self.scale) - gammaln(self.shape)
        return normaliser - (self.shape + 1) * jnp.log(value) - self.scale / jnp.asarray(value)

    def sample(self, key: Key, *, count: ArrayLike = 0, squares: ArrayLike = 0.0) -> Float[Array, ""]:
        """A draw given ``count`` normal numbers of mean zero and this variance, whose squares sum to ``squares``."""
        rate = self.scale + 0.5 * jnp.asarray(squares)
        return rate * jnp.exp(-log_gamma(key, self.shape + 0.5 * jnp.asarray(count)))


class NormalPrior(eqx.Module):
    """A vector with law ``N(mean, cov)``.

    >>> import noisewise as nw
    >>> nw.models.NormalPrior([0, 0], [[4, 0], [0, 4]]).mean.shape
    (2,)
    """

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        size = np.size(np.asarray(mean, dtype=object))
        self.mean = real(mean, "the mean of a normal prior", (size,))
        self.cov = covariance(cov, "the covariance of a normal prior", size)

    def log_prob(self, value: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density."""
        factor = triangular.cholesky(triangular.matrix(self.cov))
        z = triangular.solve(factor, [value[i] - self.mean[i] for i in range(self.mean.size)])
        return -0.5 * triangular.dot(z, z) - triangular.half_log_det(factor) - 0.5 * len(z) * jnp.log(2 * jnp.pi)

    def sample(self, key: Key) -> Float[Array, " d"]:
        """A draw."""
        factor = triangular.cholesky(triangular.matrix(self.cov))
        return self.mean + jnp.stack(triangular.apply(factor, list(jax.random.normal(key, self.mean.shape))))

    def sample_given(
        self, key: Key, *, cov: triangular.Matrix, count: ArrayLike, total: Sequence[Array]
    ) -> Float[Array, " d"]:
        """A draw given ``count`` normal vectors with this mean and covariance ``cov``, whose sum is ``total``."""
        ours = triangular.inverse(triangular.cholesky(triangular.matrix(self.cov)))
        theirs = triangular.inverse(triangular.cholesky(cov))
        linear = [
            a + b
            for a, b in zip(triangular.multiply(ours, list(self.mean)), triangular.multiply(theirs, total), strict=True)
        ]
        return triangular.normal_from_precision(key, triangular.combine(1.0, ours, jnp.asarray(count), theirs), linear)


class InverseWishart(eqx.Module):
    r"""A covariance matrix with density proportional to ``|S|^(-(df+d+1)/2) exp(-tr(scale S^-1)/2)``, ``df > d - 1``.

    Its mean is ``scale / (df - d - 1)`` where ``df > d + 1``.

    >>> import noisewise as nw
    >>> nw.models.InverseWishart(5, [[1, 0], [0, 1]]).scale.shape
    (2, 2)
    """

    df: Float[Array, ""]
    scale: Float[Array, "d d"]

    def __init__(self, df: ArrayLike, scale: ArrayLike) -> None:
        size = np.shape(scale)[0] if np.ndim(scale) else 1
        self.scale = covariance(scale, "the scale of an inverse Wishart prior", size)
        self.df = positive(df, "the degrees of freedom of an inverse Wishart prior")
        if not isinstance(self.df, jax.core.Tracer) and float(self.df) <= size - 1:
            raise ValueError(
                f"the degrees of freedom of an inverse Wishart prior must exceed {size - 1} for a {size} by {size} matrix; "
                f"got {df!r}."
            )

    def log_prob(self, value: Float[Array, "d d"]) -> Float[Array, ""]:
        """The log density, with respect to the entries up to the diagonal."""
        d = self.scale.shape[0]
        ours = triangular.cholesky(triangular.matrix(self.scale))
        theirs = triangular.cholesky(triangular.matrix(value))
        rows = [triangular.solve(theirs, column) for column in triangular.columns(ours)]
        trace = triangular.total([triangular.dot(z, z) for z in rows])
        normaliser = self.df * (triangular.half_log_det(ours) - 0.5 * d * jnp.log(2.0)) - multigammaln(0.5 * self.df, d)
        return normaliser - (self.df + d + 1) * triangular.half_log_det(theirs) - 0.5 * trace

    def sample(
        self, key: Key, *, count: ArrayLike = 0, products: triangular.Matrix | None = None
    ) -> Float[Array, "d d"]:
        """A draw given ``count`` normal vectors of mean zero and this covariance, whose products sum to ``products``.

        Bartlett (1933): with ``scale = L L'`` and A lower triangular, standard normal below the diagonal and
        ``A_ii^2 ~ chi^2(df - i)``, i = 0, ..., d-1, the draw is ``M M'`` with ``M' = A^-1 L'``.
        """
        d = self.scale.shape[0]
        scale = triangular.matrix(self.scale)
        factor = triangular.cholesky(scale if products is None else triangular.combine(1.0, scale, 1.0, products))
        first, second = jax.random.split(key)
        chi = jnp.sqrt(2.0) * jnp.exp(0.5 * log_gamma(first, 0.5 * (self.df + jnp.asarray(count) - np.arange(d))))
        bartlett = jnp.tril(jax.random.normal(second, (d, d)), -1) + jnp.diag(chi)
        # row i of L is column i of L', and row i of M solves for it
        rows = [triangular.solve(triangular.matrix(bartlett), row) for row in triangular.rows(factor)]
        return triangular.symmetric([[triangular.dot(rows[i], rows[j]) for j in range(i + 1)] for i in range(d)])
