"""Leaps of theta: the normal law they are drawn from, and the law they leave invariant; with a twin that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from noisewise.kernels.tangent import Reference, Tangent, leap
from noisewise.models import triangular


@pytest.mark.parametrize(("m", "d"), [(1, 1), (2, 1), (3, 2), (2, 3), (9, 7)])
def test_the_reference_is_the_posterior_of_a_linear_normal_model(m, d):
    rng = np.random.default_rng(m + d)
    slope, anchor, released = rng.normal(size=(m, d)), rng.normal(size=d), rng.normal(size=m)
    root, other = rng.normal(size=(m, m)), rng.normal(size=(d, d))
    spread, curvature = root @ root.T, other @ other.T + np.eye(d)
    prior_mean, value, variances = rng.normal(size=d), rng.normal(size=m), rng.gamma(2.0, size=m)
    pull = -curvature @ (anchor - prior_mean)
    tangent = Tangent(*map(jnp.asarray, (anchor, released, slope, spread, pull, curvature)))
    found = tangent.reference(jnp.asarray(value), jnp.asarray(variances))
    # prior N(prior_mean, curvature^-1), value ~ N(released + slope (theta - anchor), spread + variances), by conditioning the joint
    prior = np.linalg.inv(curvature)
    gain = prior @ slope.T @ np.linalg.inv(slope @ prior @ slope.T + spread + np.diag(variances))
    mean = prior_mean + gain @ (value - released - slope @ (prior_mean - anchor))
    covariance = prior - gain @ slope @ prior
    factor = np.asarray(
        found.factor if d > 5 else [[float(value) for value in row] for row in triangular.rows(found.factor)]
    )
    assert np.allclose(found.mean, mean, rtol=1e-9, atol=1e-11)
    assert np.allclose(np.linalg.inv(factor @ factor.T), covariance, rtol=1e-8, atol=1e-11)


def leapt(log_target, reference, d):
    def one(key):
        def step(i, position):
            return leap(jax.random.fold_in(key, i), log_target, position, reference).position

        return jax.lax.fori_loop(0, 60, step, jnp.full(d, 0.5))

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 20_000)))


@pytest.mark.parametrize("d", [1, 7])
def test_leaps_leave_an_asymmetric_target_invariant(d):
    """Independent Gumbel numbers, in coordinates that a triangular matrix mixes, from a normal law that is off and too wide."""
    rng = np.random.default_rng(3)
    mixing = np.eye(d) + np.tril(rng.normal(size=(d, d)), -1) * 0.3
    unmix = jnp.asarray(np.linalg.inv(mixing))

    def log_target(z):
        e = unmix @ z
        return jnp.sum(-e - jnp.exp(-e))

    precision = 0.35 * np.linalg.inv(mixing @ mixing.T)
    factor = triangular.matrix(jnp.asarray(np.linalg.cholesky(precision)))
    reference = Reference(jnp.asarray(mixing @ np.full(d, 0.4)), factor)
    found = leapt(log_target, reference, d) @ np.asarray(unmix).T
    critical = 1.95 / np.sqrt(len(found))
    for j in range(d):
        assert stats.kstest(found[:, j], stats.gumbel_r.cdf).statistic < critical
    # the twin: a ratio that forgets the reference
    flat = leapt(lambda z: log_target(z) - 0.5 * z @ jnp.asarray(precision) @ z, reference, d) @ np.asarray(unmix).T
    assert stats.kstest(flat[:, 0], stats.gumbel_r.cdf).statistic > 3 * critical


def test_a_leap_out_of_the_domain_is_refused():
    # three times as wide as the target: a narrower one would come into the tail too seldom
    reference = Reference(jnp.zeros(1), triangular.matrix(jnp.full((1, 1), 1 / 3)))
    found = leapt(lambda z: jnp.where(z[0] > 0, -z[0], jnp.nan), reference, 1)
    assert np.all(found > 0)
    assert stats.kstest(found[:, 0], stats.expon.cdf).statistic < 1.95 / np.sqrt(len(found))
