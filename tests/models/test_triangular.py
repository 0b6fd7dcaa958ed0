"""Factors and solves in either form, small matrices by entries and larger ones by columns, against NumPy; and that nothing waits."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisewise.models import triangular

RNG = np.random.default_rng(4)
HANG = 400


def positive_definite(d):
    root = RNG.normal(size=(d, d))
    return root @ root.T + 0.1 * np.eye(d)


@pytest.mark.parametrize("d", [1, 3, 5, 6, 17])
def test_factors_and_solves_are_those_of_numpy(d):
    value, right = positive_definite(d), RNG.normal(size=(d, 4))
    factor = triangular.cholesky(triangular.matrix(jnp.asarray(value)))
    root = np.linalg.cholesky(value)
    np.testing.assert_allclose(np.stack([jnp.stack(row) for row in triangular.rows(factor)]), root, atol=1e-10)
    columns = list(jnp.asarray(right))
    np.testing.assert_allclose(triangular.solve(factor, columns), np.linalg.solve(root, right), atol=1e-8)
    np.testing.assert_allclose(triangular.solve_transposed(factor, columns), np.linalg.solve(root.T, right), atol=1e-8)
    inverse = triangular.symmetric(triangular.inverse(factor))
    np.testing.assert_allclose(inverse @ value, np.eye(d), atol=1e-7)
    assert float(triangular.half_log_det(factor)) == pytest.approx(0.5 * np.linalg.slogdet(value)[1])


def test_a_matrix_that_is_not_positive_definite_has_no_factor():
    value = positive_definite(7)
    value[3, 3] = -1.0
    assert np.isnan(triangular.factorised(jnp.asarray(value))).any()


def test_derivatives_go_through_factors_and_solves():
    value, right = jnp.asarray(positive_definite(8)), jnp.asarray(RNG.normal(size=8))

    def length(scale):
        factor = triangular.factorised(value * scale + jnp.eye(8))
        return jnp.sum(triangular.forward(factor, right) ** 2) + jnp.sum(triangular.backward(factor, right) ** 2)

    slope = jax.grad(length)(jnp.asarray(1.5))
    step = 1e-5
    assert float(slope) == pytest.approx(float(length(1.5 + step) - length(1.5 - step)) / (2 * step), rel=1e-6)
    assert np.isfinite(jax.hessian(length)(jnp.asarray(1.5)))


TWO_MEASUREMENTS = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
import noisewise as nw
from noisewise.engines.surrogate import fit_surrogate

column = nw.Column(-5, 5, rescale=(-1, 1))
query = nw.queries.regression_moments({k: column for k in ("x1", "x2", "x3")}, {"y": column})
laws = [nw.noise.Laplace(2.0), nw.noise.Gaussian(2.0)]
release = nw.Release([nw.Measurement(query, law, np.ones(query.size)) for law in laws], n=100)
model = nw.models.LinearRegression(
    ("x1", "x2", "x3"), "y", variance=2.0, covariate_mean=[0, 0, 0], covariate_cov=np.eye(3).tolist()
)
fit = eqx.filter_jit(lambda key: fit_surrogate(key, model, release, jnp.asarray(100.0), records=100))
for seed in range(3):
    assert np.all(np.isfinite(fit(jax.random.key(seed)).mean))
"""


def test_two_measurements_do_not_wait_for_each_other():
    """With a batch of LAPACK calls for each measurement, this never ends on a machine with two cores (tried)."""
    subprocess.run([sys.executable, "-c", TWO_MEASUREMENTS], check=True, timeout=HANG)
