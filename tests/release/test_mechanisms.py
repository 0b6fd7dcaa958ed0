"""The augmentation engine under every mechanism, against the sum over all databases; forgotten normalisers are seen.

All mechanisms, right and wrong, are the branches of one compiled program.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats import ess
from mechanism_cases import CASES, DATABASES, N, X, Y
from scipy import special

import noisewise as nw
from noisewise.engines.surrogate import Surrogate
from noisewise.release.mechanism import Mechanism

PRIOR = 1.0
MODEL = nw.models.NaiveBayes(classes=2, features=[2], prior=PRIOR)
RIGHT = [case.mechanism for case in CASES.values()]
WRONG = [case.twin for case in CASES.values()]
VALUES = [case.mechanism.check(case.value) for case in CASES.values()]
ENDS = np.cumsum([mechanism.size for mechanism in RIGHT])
ENGINE = nw.engines.Augmentation(moves=3)


class OneOf(Mechanism):
    """The mechanism number ``which`` of a list, chosen when the program runs; twins, which share its rows, come after."""

    mechanisms: tuple[Mechanism, ...]
    twins: tuple[Mechanism, ...]
    values: tuple[jax.Array, ...]
    which: jax.Array

    @property
    def columns(self):
        return ("y", "x1")

    @property
    def size(self):
        return int(ENDS[-1])

    @property
    def per_record(self):
        return True

    @property
    def simulates(self):
        return False

    def statistics(self, records, released):
        return jnp.concatenate(
            [m.statistics(records, value) for m, value in zip(self.mechanisms, self.values, strict=True)], axis=-1
        )

    def log_density(self, released, total):
        parts = jnp.split(total, ENDS[:-1])
        branches = [
            lambda m=m, value=value, part=part: m.log_density(value, part)
            for law in (self.mechanisms, self.twins)
            for m, value, part in zip(law, self.values, parts, strict=True)
        ]
        return jax.lax.switch(self.which, branches)

    def simulate(self, key, total):
        raise NotImplementedError


EVERY = OneOf(tuple(RIGHT), tuple(WRONG), tuple(VALUES), jnp.asarray(0))
RELEASE = nw.Release([nw.Measurement(mechanism=EVERY, value=np.zeros((N, 1)))], n=N)


def exact(log_eta) -> np.ndarray:
    """First and second moments of P(y = 1), P(x1 = 1 | y = 0) and P(x1 = 1 | y = 1), over all databases."""
    pairs = [(Y.sum(1), (1 - Y).sum(1))]
    pairs += [((X * member).sum(1), ((1 - X) * member).sum(1)) for member in (1 - Y, Y)]
    a, b = (PRIOR + np.stack(part) for part in zip(*pairs, strict=True))
    log_weight = special.betaln(a, b).sum(0) + log_eta(Y, X)
    weight = special.softmax(log_weight)
    first = a / (a + b)
    return np.concatenate([first @ weight, (first * (a + 1) / (a + b + 1)) @ weight])


def errors(which: int, expected: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The standardised errors of the six moments, and their effective sample sizes."""
    release = eqx.tree_at(lambda r: r.measurements[0].mechanism.which, RELEASE, jnp.asarray(which))
    dt = nw.sample(MODEL, release, method=ENGINE, draws=2000, tune=300, random_seed=seed, progressbar=False)
    posterior = dt.posterior
    first = [
        posterior["class_probs"].values[..., 1],
        posterior["feature_probs_1"].values[..., 0, 1],
        posterior["feature_probs_1"].values[..., 1, 1],
    ]
    draws = [*first, *(x**2 for x in first)]
    effective = np.asarray([float(ess(x, chain_axis=0, draw_axis=1, method="mean")) for x in draws])
    means, sds = np.asarray([x.mean() for x in draws]), np.asarray([x.std() for x in draws])
    return (means - expected) / (sds / np.sqrt(effective)), effective


@pytest.fixture(autouse=True)
def rough_start(monkeypatch):
    """Start anywhere: fitting a surrogate under thirty-six mechanisms is a long compilation and changes no result."""
    rough = Surrogate(jnp.zeros(MODEL.free_size), jnp.eye(MODEL.free_size))
    monkeypatch.setattr("noisewise.engines.augmentation.fit_surrogate", lambda *_, **__: rough)


@pytest.mark.parametrize("name", CASES)
def test_augmentation_matches_the_sum_over_databases_and_the_wrong_twin_does_not(name):
    at = list(CASES).index(name)
    expected = exact(CASES[name].log_eta)
    z, effective = errors(at, expected, seed=at)
    assert np.all(effective >= 2000)
    assert np.all(np.abs(z) < 4)
    assert np.max(np.abs(errors(at + len(CASES), expected, seed=at)[0])) > 6


@pytest.mark.parametrize("name", CASES)
def test_log_density_is_the_written_formula(name):
    """Over all databases, up to one constant for the laws whose constant the formula leaves out."""
    case = CASES[name]
    value = case.mechanism.check(case.value)

    @jax.jit
    @jax.vmap
    def found(y, x):
        rows = case.mechanism.statistics({"y": y, "x1": x}, value)
        return case.mechanism.log_density(value, jnp.sum(rows, axis=0))

    difference = np.asarray(found(DATABASES[:, 0], DATABASES[:, 1])) - case.log_eta(Y, X)
    leaves_constant = name.startswith("k-norm")
    np.testing.assert_allclose(difference - leaves_constant * difference[0], 0, atol=1e-9)
