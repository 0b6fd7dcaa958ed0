r"""The exact transition matrix of every kernel, on two binary records and a theta with three values.

The kernels are run with their randomness replaced: uniform numbers take one value in each cell on which the outcome is
constant, the steps of a random walk are -1 and +1, and every Metropolis test is forced both ways, weighted by the
acceptance probability that the kernel reports. Summed, these give the transition matrix with no Monte-Carlo error.
``test_the_drawn_kernel_has_the_enumerated_matrix`` ties the scripted kernel to the one that draws from keys.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import noisewise as nw
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.surrogate import Surrogate
from noisewise.kernels.records import sweep
from noisewise.kernels.walk import Walk

LATTICE = np.array([-1.0, 0.5, 2.0])
GAP = 1.5
P = special.expit(LATTICE)
A, B = 1.5, 0.7
SCALE, RELEASED = 0.8, 1.4
STATES = [(k, x1, x2) for k in range(3) for x1 in (0, 1) for x2 in (0, 1)]
INDEX = {state: i for i, state in enumerate(STATES)}
THETA = jnp.asarray([P[k] for k, _, _ in STATES])
RECORDS = jnp.asarray([[x1, x2] for _, x1, x2 in STATES])


class Lattice(nw.models.Bernoulli):
    """A beta prior restricted to three points of the logit; its density there is the one of the logit."""

    def log_prior(self, theta):
        free = jnp.log(theta["p"]) - jnp.log1p(-theta["p"])
        return jnp.where((free > LATTICE[0] - 0.1) & (free < LATTICE[-1] + 0.1), super().log_prior(theta), -jnp.inf)

    def update(self, key, theta, records):
        free = jnp.asarray(LATTICE)
        log_weight = jax.vmap(
            lambda z: self.log_prior_free(z[None]) + jnp.sum(self.log_likelihood(self.constrain(z[None]), records))
        )(free)
        return {"p": jax.nn.sigmoid(free[jax.random.categorical(key, log_weight)])}


class WithoutJacobian(Lattice):
    def log_prior_free(self, free):
        return self.log_prior(self.constrain(free))


class StaleInnovations(Lattice):
    """The innovation of a record is the middle of its interval, instead of a fresh uniform number on it."""

    def inverse(self, theta, records, key):
        p = theta["p"]
        return jnp.where(records["x"] == 1, 0.5 * p, 0.5 * (1 + p))


QUERY = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
RELEASE = nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(SCALE), [RELEASED])], n=2)


def flip(key, theta, records, *, ratio=True):
    """An asymmetric proposal: a zero turns to one with probability 0.7, a one to zero with 0.2."""
    x, p = records["x"], theta["p"]
    turned = jax.random.uniform(key, x.shape) < jnp.where(x == 1, 0.2, 0.7)
    log_ratio = jnp.log(jnp.where(x == 1, 0.7 * (1 - p) / (0.2 * p), 0.2 * p / (0.7 * (1 - p))))
    return {"x": jnp.where(turned, 1 - x, x)}, jnp.where(turned & ratio, log_ratio, 0.0)


def flip_without_ratio(key, theta, records):
    return flip(key, theta, records, ratio=False)


def target() -> np.ndarray:
    """The enumerated target, from SciPy alone."""
    weights = []
    for k, x1, x2 in STATES:
        prior = stats.beta.pdf(P[k], A, B) * P[k] * (1 - P[k])
        likelihood = np.prod([P[k] if x else 1 - P[k] for x in (x1, x2)])
        weights.append(prior * likelihood * stats.laplace.pdf(RELEASED - x1 - x2, scale=SCALE))
    return np.asarray(weights) / np.sum(weights)


@contextmanager
def scripted(**draws: list) -> Iterator[None]:
    """Let the functions of ``jax.random`` return the given arrays, in the order of their calls."""
    with mock.patch.multiple(
        jax.random, **{name: (lambda it: lambda *_, **__: next(it))(iter(values)) for name, values in draws.items()}
    ):
        yield


def cells(ends: np.ndarray) -> list[tuple[float, float]]:
    """The middles and the lengths of the cells of (0, 1) between the given ends."""
    ends = np.unique(np.concatenate([[0.0], ends, [1.0]]))
    return [(0.5 * (a + b), b - a) for a, b in itertools.pairwise(ends)]


PROPOSAL_CELLS = cells(P)
FLIP_CELLS = cells(np.array([0.2, 0.7]))
RETRACE_CELLS = cells(
    np.array(
        [P[j] / P[k] for k in range(3) for j in range(k)]
        + [(P[j] - P[k]) / (1 - P[k]) for k in range(3) for j in range(k + 1, 3)]
    )
)
BOTH = [(0.0, 1.0), (np.inf, 1.0)]
SIGNS = [(-1.0, 0.5), (1.0, 0.5)]
STILL = [(0.0, 1.0)]


def tuples(one: list[tuple[float, float]], count: int) -> list[tuple[tuple[float, ...], float]]:
    """Every script of so many numbers, with its weight."""
    return [
        (tuple(value for value, _ in row), float(np.prod([weight for _, weight in row])))
        for row in itertools.product(one, repeat=count)
    ]


def kernel_of(model=None, **options) -> AugmentationKernel:
    settings = {
        "record_proposal": None,
        "theta_move": "random_walk",
        "interweave": True,
        "window": 2,
        "block": 2,
    } | options
    return AugmentationKernel(
        model=Lattice(A, B) if model is None else model,
        release=RELEASE,
        surrogate=Surrogate(jnp.zeros(1), jnp.eye(1)),
        move="random_walk",
        moves=1,
        n=2,
        **settings,
    )


WALK = Walk(jnp.zeros(1), jnp.eye(1), jnp.full((1, 1), GAP), jnp.zeros(()), jnp.ones(()))


def state_of(kernel: AugmentationKernel, theta, records, turn):
    state = kernel.init(jax.random.key(0), {"p": jnp.asarray(0.5)})
    return eqx.tree_at(
        lambda s: (s.theta, s.records, s.turn, s.centred, s.non_centred),
        state,
        ({"p": theta}, {"x": records}, jnp.asarray(turn), WALK, WALK),
    )


def found_index(theta: np.ndarray, records: np.ndarray) -> np.ndarray:
    k = np.argmin(np.abs(theta[:, None] - P), axis=1)
    np.testing.assert_allclose(theta, P[k], rtol=1e-12)
    return 4 * k + 2 * records[:, 0] + records[:, 1]


def step_matrix(kernel: AugmentationKernel, turn: int = 0) -> np.ndarray:
    """The transition matrix of a whole step, whose sweep has a single block.

    The script is (proposal, sweep test, centred move, centred test, innovations, non-centred step, its test); an unused part
    has a single entry.
    """
    walk, conjugate = kernel.interweave, kernel.theta_move == "update"
    proposals = FLIP_CELLS if kernel.record_proposal else PROPOSAL_CELLS
    axes = [
        tuples(proposals, kernel.window),
        BOTH,
        [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)] if conjugate else SIGNS,
        STILL if conjugate else BOTH,
        tuples(RETRACE_CELLS, 2) if walk else tuples([(0.5, 1.0)], 2),
        SIGNS if walk else STILL,
        BOTH if walk else STILL,
    ]
    at = np.asarray(list(itertools.product(range(len(STATES)), *(range(len(axis)) for axis in axes)))).T
    script = [
        jnp.asarray(np.asarray([value for value, _ in axis])[entry]) for axis, entry in zip(axes, at[1:], strict=True)
    ]

    def run(theta, records, proposal, test, centred, centred_test, innovation, step, step_test):
        state = state_of(kernel, theta, records, turn)
        draws = {
            "uniform": [proposal, innovation],
            "exponential": [
                jnp.full((kernel.window,), test),
                *([] if conjugate else [centred_test[None]]),
                step_test[None],
            ],
            "normal": [*([] if conjugate else [centred[None, None]]), step[None, None]],
            "categorical": [centred.astype(int)],
        }
        with scripted(**draws):
            state, info = kernel.step(jax.random.key(0), state)
        return state.theta["p"], state.records["x"], info.stats

    theta, records, reported = jax.jit(jax.vmap(run))(THETA[at[0]], RECORDS[at[0]], *script)
    after = found_index(np.asarray(theta), np.asarray(records))
    weight = np.prod(
        [np.asarray([w for _, w in axis])[entry] for axis, entry in zip(axes, at[1:], strict=True)], axis=0
    )
    tests = {"acceptance_rate": 2, "theta_acceptance": 4, "interweave_acceptance": 7}
    for name, place in tests.items():
        if name in reported:
            weight *= np.where(at[place] == 1, reported[name], 1 - np.asarray(reported[name]))
    if conjugate:  # theta was forced: its law given the records is the enumerated one
        weight *= centred_law()[np.asarray(records) @ [2, 1], at[3]]
    matrix = np.zeros((len(STATES), len(STATES)))
    np.add.at(matrix, (at[0], after), weight)
    return matrix


def centred_law() -> np.ndarray:
    """``p(theta | x)`` for x = (0, 0), (0, 1), (1, 0), (1, 1)."""
    prior = stats.beta.pdf(P, A, B) * P * (1 - P)
    rows = np.asarray([prior * P ** (x1 + x2) * (1 - P) ** (2 - x1 - x2) for x1 in (0, 1) for x2 in (0, 1)])
    return rows / rows.sum(axis=1, keepdims=True)


def sweep_matrix(propose, proposals) -> np.ndarray:
    """The transition matrix of the sweep of two records in blocks of one, theta fixed."""
    scripts = [(v, w, t1, t2) for v, w in tuples(proposals, 2) for t1 in (0.0, np.inf) for t2 in (0.0, np.inf)]
    at = np.asarray(list(itertools.product(range(len(STATES)), range(len(scripts))))).T
    values, weights, first, second = (np.asarray(part)[at[1]] for part in zip(*scripts, strict=True))

    def run(theta, x, value, tests, *, window):
        total = jnp.sum(RELEASE.statistics({"x": x}), axis=0)
        with scripted(uniform=[value[:window]], exponential=[tests[:window]]):
            swept = sweep(
                jax.random.key(0),
                {"p": theta},
                {"x": x},
                total,
                RELEASE,
                propose,
                first=jnp.asarray(0),
                window=window,
                block=jnp.asarray(1),
            )
        return swept.records["x"], swept.acceptance_rate

    def all_of(window):
        tests = jnp.asarray(np.stack([first, second], axis=1))
        run_one = jax.jit(jax.vmap(lambda *script: run(*script, window=window)))
        return [np.asarray(v) for v in run_one(THETA[at[0]], RECORDS[at[0]], jnp.asarray(values), tests)]

    records, mean = all_of(2)
    _, of_first = all_of(1)
    of_second = 2 * mean - of_first
    weight = weights * np.where(first > 0, of_first, 1 - of_first) * np.where(second > 0, of_second, 1 - of_second)
    matrix = np.zeros((len(STATES), len(STATES)))
    np.add.at(matrix, (at[0], found_index(np.asarray(THETA)[at[0]], records)), weight)
    return matrix


def model_proposal(key, theta, current):
    return Lattice(A, B).simulate(key, theta, current["x"].shape[0]), jnp.zeros(current["x"].shape[0])


KERNELS = {
    "sweep in blocks of one": lambda: sweep_matrix(model_proposal, PROPOSAL_CELLS),
    "sweep with its own proposal": lambda: sweep_matrix(flip, FLIP_CELLS),
    "conjugate update, block of two": lambda: step_matrix(kernel_of(theta_move="update", interweave=False)),
    "first window, random walk": lambda: step_matrix(kernel_of(window=1, block=1, interweave=False)),
    "second window, random walk": lambda: step_matrix(kernel_of(window=1, block=1, interweave=False), turn=1),
    "own proposal, random walk, interweaved": lambda: step_matrix(kernel_of(record_proposal=flip)),
    "block of two, random walk, interweaved": lambda: step_matrix(kernel_of()),
}
WRONG = {
    "sweep without the proposal's ratio": lambda: sweep_matrix(flip_without_ratio, FLIP_CELLS),
    "step without the proposal's ratio": lambda: step_matrix(
        kernel_of(record_proposal=flip_without_ratio, interweave=False)
    ),
    "walk without the Jacobian": lambda: step_matrix(kernel_of(WithoutJacobian(A, B), interweave=False)),
    "innovations that are not fresh": lambda: step_matrix(kernel_of(StaleInnovations(A, B), window=1, block=1)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_leaves_the_enumerated_target_invariant(name):
    matrix = KERNELS[name]()
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert matrix.min() > -1e-15
    np.testing.assert_allclose(target() @ matrix, target(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_moves_the_enumerated_target(name):
    matrix = WRONG[name]()
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert np.max(np.abs(target() @ matrix - target())) > 1e-3


def chi_square(kernel: AugmentationKernel, matrix: np.ndarray, size: int = 5_000) -> float:
    """The p-value of steps drawn from keys against a transition matrix (the steps of the walk are random signs)."""
    from_state = np.repeat(np.arange(len(STATES)), size)

    def run(key, theta, records):
        state, _ = kernel.step(key, state_of(kernel, theta, records, 0))
        return state.theta["p"], state.records["x"]

    def sign(key, shape, dtype=float):
        return jax.random.rademacher(key, shape, dtype)

    keys = jax.random.split(jax.random.key(1), len(from_state))
    with mock.patch.object(jax.random, "normal", sign):
        theta, records = jax.jit(jax.vmap(run))(keys, THETA[from_state], RECORDS[from_state])
    seen = np.zeros_like(matrix)
    np.add.at(seen, (from_state, found_index(np.asarray(theta), np.asarray(records))), 1)
    expected = size * matrix
    assert np.all(seen[expected < 1e-9] == 0)
    usual = expected > 5
    statistic = np.sum((seen[usual] - expected[usual]) ** 2 / expected[usual])
    return float(stats.chi2.sf(statistic, np.sum(usual) - len(STATES)))


def test_the_drawn_kernel_has_the_enumerated_matrix():
    kernel = kernel_of()
    assert chi_square(kernel, step_matrix(kernel)) > 1e-3


def test_a_wrong_kernel_drawn_from_keys_has_another_matrix():
    assert chi_square(kernel_of(StaleInnovations(A, B)), step_matrix(kernel_of())) < 1e-12
