r"""The moves on unconstrained vectors keep a skewed target: exact draws, moved, are still exact draws.

Target in two dimensions: ``z1 = log g1`` with ``g1 ~ Gamma(2)``, ``z2 | z1 ~ N(z1 / 2, 0.7^2)``. Each of many exact draws is moved
once, from its own key, by a walk whose mean and covariance are not the target's. The draws are independent, so the standard error of
each mean is plain.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from noisewise.kernels import walk as walks
from noisewise.kernels.hamiltonian import hamiltonian
from noisewise.kernels.walk import Walk, cholesky, elliptical_slice, jump, random_walk

SIZE = 100_000
COVARIANCE = jnp.array([[0.8, -0.3], [-0.3, 1.5]])
WALK = Walk.start(jnp.array([0.3, -0.6]), COVARIANCE)


def log_target(z):
    return 2 * z[0] - jnp.exp(z[0]) - 0.5 * ((z[1] - 0.5 * z[0]) / 0.7) ** 2


def exact(key):
    first, second = jax.random.split(key)
    z1 = jnp.log(jax.random.gamma(first, 2.0, (SIZE,)))
    return jnp.stack([z1, 0.5 * z1 + 0.7 * jax.random.normal(second, (SIZE,))], axis=-1)


def summaries(z):
    z = np.asarray(z)
    return np.column_stack([z, z**2, z[:, 0] * z[:, 1], np.exp(z[:, 0]), z[:, 0] ** 3, z[:, 1] ** 3, z > 0.5])


# the means of the summaries under the target, from a draw four times as large as each test's
LARGE = np.concatenate([summaries(exact(jax.random.key(100 + i))) for i in range(8)])


def errors(move) -> np.ndarray:
    """How many standard errors the summaries of moved exact draws are from those of the target."""
    start = exact(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), SIZE)
    moved = jax.jit(jax.vmap(lambda key, z: move(key, z).position))(keys, start)
    assert np.mean(np.any(np.asarray(moved) != np.asarray(start), axis=1)) > 0.2, "the move hardly moves"
    seen = summaries(moved)
    spread = np.sqrt(seen.var(axis=0) / SIZE + LARGE.var(axis=0) / len(LARGE))
    return (seen.mean(axis=0) - LARGE.mean(axis=0)) / spread


MOVES = {
    "random walk": lambda key, z: random_walk(key, log_target, z, WALK, moves=4),
    "first two of four random-walk moves": lambda key, z: random_walk(
        key, log_target, z, WALK, moves=4, count=jnp.asarray(2)
    ),
    "jump": lambda key, z: jump(key, log_target, z, WALK),
    "elliptical slice": lambda key, z: elliptical_slice(key, log_target, z, WALK),
    "Hamiltonian": lambda key, z: hamiltonian(
        key, log_target, z, Walk(WALK.mean, COVARIANCE, WALK.factor, jnp.log(0.6), WALK.seen), leaps=3
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_exact_draws_stay_exact(name):
    found = errors(MOVES[name])
    assert np.max(np.abs(found)) < 4, found


def without_reference(key, z):
    """Elliptical slice sampling that forgets to divide the target by the reference."""
    return elliptical_slice(key, lambda v: log_target(v) - 0.5 * jnp.sum(white(v) ** 2), z, WALK)


def white(z):
    return jax.scipy.linalg.solve_triangular(WALK.factor, z - WALK.mean, lower=True)


def jump_without_reference(key, z):
    """A jump that forgets to divide the target by the reference."""
    return jump(key, lambda v: log_target(v) - 0.5 * jnp.sum(white(v) ** 2), z, WALK)


def always(key, z):
    """A random walk that is always accepted."""
    return random_walk(key, lambda v: 0.0 * v[0], z, WALK, moves=1)


def without_momentum(key, z):
    """A Hamiltonian move whose energy has the wrong potential."""
    wide = Walk(WALK.mean, COVARIANCE, WALK.factor, jnp.log(0.6), WALK.seen)
    return hamiltonian(key, lambda v: 0.9 * log_target(v), z, wide, leaps=3)


@pytest.mark.parametrize("wrong", [without_reference, jump_without_reference, always, without_momentum])
def test_a_wrong_move_is_seen_to_be_wrong(wrong):
    assert np.max(np.abs(errors(wrong))) > 8


def test_a_jump_is_in_detailed_balance_with_its_target():
    rng = np.random.default_rng(2)
    c, spread = walks._OVERRELAXATION, np.asarray(COVARIANCE)
    points = np.asarray(WALK.mean) + rng.normal(size=(2, 50, 2)) @ np.asarray(WALK.factor).T

    def accepted(here, there):
        """The probability of accepting ``there``, asked of the jump with the normal numbers that lead to it."""
        e = (white(there) + c * white(here)) / np.sqrt(1 - c**2)
        with mock.patch.object(jax.random, "normal", return_value=e):
            return jump(jax.random.key(0), log_target, here, WALK).acceptance

    def log_flow(here, there):
        centre = np.asarray(WALK.mean) - c * (here - np.asarray(WALK.mean))
        proposal = [
            stats.multivariate_normal.logpdf(b, a, (1 - c**2) * spread) for a, b in zip(centre, there, strict=True)
        ]
        probability = jax.vmap(accepted)(jnp.asarray(here), jnp.asarray(there))
        return np.asarray(jax.vmap(log_target)(jnp.asarray(here))) + np.asarray(proposal) + np.log(probability)

    np.testing.assert_allclose(log_flow(*points), log_flow(*points[::-1]), rtol=0, atol=1e-12)


def test_a_walk_of_no_more_moves_than_asked_for_is_the_same_in_any_company():
    keys, starts = jax.random.split(jax.random.key(3), 3), exact(jax.random.key(4))[:3]

    def walk(key, z, count):
        return random_walk(key, log_target, z, WALK, moves=6, count=count)

    together = jax.vmap(walk)(keys, starts, jnp.asarray([1, 3, 6]))
    for j, count in enumerate([1, 3, 6]):
        alone = walk(keys[j], starts[j], jnp.asarray(count))
        np.testing.assert_allclose(together.position[j], alone.position, rtol=1e-13)
        np.testing.assert_allclose(together.acceptance[j], alone.acceptance, rtol=1e-13)


def test_the_factor_is_the_cholesky_factor_and_survives_a_degenerate_covariance():
    rng = np.random.default_rng(1)
    for d in (1, 3, 8, 12):
        root = rng.normal(size=(d, d + 2))
        np.testing.assert_allclose(
            cholesky(jnp.asarray(root @ root.T)), np.linalg.cholesky(root @ root.T), rtol=1e-7, atol=1e-7
        )
        degenerate = jnp.ones((d, d))
        factor = cholesky(degenerate)
        assert np.all(np.isfinite(factor))
        np.testing.assert_allclose(factor @ factor.T, degenerate, atol=1e-4)


def test_the_walk_learns_the_moments_and_the_scale_of_its_target():
    draws = exact(jax.random.key(5))[:4000]

    def learn(walk, z):
        acceptance = jnp.exp(-jnp.exp(walk.log_scale))
        return walk.learn(z, acceptance), None

    learnt, _ = jax.lax.scan(learn, Walk.start(jnp.full(2, 50.0), 100 * jnp.eye(2)), draws)
    np.testing.assert_allclose(learnt.mean, draws.mean(axis=0), atol=0.15)
    np.testing.assert_allclose(learnt.covariance, np.cov(np.asarray(draws).T), atol=0.2)
    assert abs(float(jnp.exp(-jnp.exp(learnt.log_scale))) - walks.RANDOM_WALK) < 0.03
