r"""The thesis's eight experiments by name (Table 5.1), its tuned samplers, and its discrepancy.

Records are simulated, so nothing here is private: runs are made with ``probe`` and report what a private run must not.
Conventions of the thesis: delta = 0.1/n; chains start at the true theta plus normal noise of the reference sample's
average sd; the first half of a chain is dropped; utility is the maximum mean discrepancy to 1,000 exact posterior draws,
Gaussian kernel ``exp(-|x-y|^2 / 2s^2)``, s the median distance between subsamples of 500, as ``sqrt(abs(U-statistic))``;
for the circle it is the distance of the mean from the centre.

A sampler's noise does not change with epsilon, only its number of iterations does: a chain is run once, for the
largest epsilon, and a smaller one reads its first part. Figures 6.1 to 6.8 are made of these by ``noisewise study``
(:mod:`noisewise.studies.raisa`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.spatial.distance import cdist

from noisewise.private.barker import Barker
from noisewise.private.budget import Budget
from noisewise.private.hmc import HMC
from noisewise.private.ledger import AccountantName
from noisewise.private.minibatch import MinibatchPenalty
from noisewise.private.penalty import Components, Penalty
from noisewise.private.plan import Method, plan
from noisewise.private.targets import Banana, Circle, Gaussian, Target
from noisewise.typing import Key, Records

_TABLE = json.loads(Path(__file__).with_name("experiments.json").read_text())
NAMES: tuple[str, ...] = tuple(_TABLE["models"])
ALGORITHMS: dict[str, str] = {
    "dpps": "DP penalty",
    "dppa": "DP penalty, one component, guided",
    "mdpps": "minibatch DP penalty",
    "mdppa": "minibatch DP penalty, one component, guided",
    "barker": "DP Barker",
    "hmc": "DP HMC",
}
REFERENCE = 1000


@dataclass(frozen=True)
class Experiment:
    """One row of Table 5.1: a target, its records' law, its true parameters and its epsilons."""

    key: str
    name: str
    target: Target
    truth: tuple[float, ...]
    n: int
    epsilons: tuple[float, ...]

    @property
    def delta(self) -> float:
        """0.1/n."""
        return 0.1 / self.n

    def records(self, key: Key) -> Records:
        """Records simulated at the true parameters."""
        if isinstance(self.target, Circle):
            return {"r": 3.0 + jax.random.normal(key, (self.n,))}
        noise = jax.random.normal(key, (self.n, len(self.truth)))
        if isinstance(self.target, Gaussian):
            root = jnp.linalg.cholesky(jnp.linalg.inv(self.target.precision))
            return {"x": jnp.asarray(self.truth) + noise @ root.T}
        assert isinstance(self.target, Banana)
        return {"x": self.target.straighten(jnp.asarray(self.truth)) + noise / jnp.sqrt(self.target.precision)}

    def reference(self, key: Key, records: Records, size: int = REFERENCE) -> Float[np.ndarray, "size d"]:
        """Exact, independent posterior draws."""
        if isinstance(self.target, Gaussian):
            mean, covariance = self.target.posterior(records)
            root = jnp.linalg.cholesky(covariance)
            return np.asarray(mean + jax.random.normal(key, (size, len(self.truth))) @ root.T)
        assert isinstance(self.target, Banana | Circle)
        return np.asarray(self.target.sample_posterior(key, records, size))

    def starts(self, keys: Key, reference: Float[np.ndarray, "k d"]) -> Float[Array, "chains d"]:
        """A starting point for each of the keys, about the truth, at the scale of the posterior (of one for the circle)."""
        scale = 1.0 if isinstance(self.target, Circle) else float(np.mean(np.std(reference, axis=0)))
        return jnp.asarray(self.truth) + scale * jax.vmap(lambda key: jax.random.normal(key, (len(self.truth),)))(keys)


def experiment(name: str, *, n: int | None = None) -> Experiment:
    """An experiment of Table 5.1 by its name, with the thesis's number of records or another.

    >>> experiment("tempered-2d").target.temper
    Array(0.01, dtype=float64)
    """
    if name not in NAMES:
        raise ValueError(f"the experiments are {', '.join(NAMES)}; got {name!r}.")
    row = _TABLE["models"][name]
    d, n = row["d"], row["n"] if n is None else n
    truth = (0.0, 3.0, *([0.0] * (d - 2)))
    epsilons = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    if row["family"] == "circle":
        return Experiment(name, row["name"], Circle(a=row["a"]), (0.0, 1.0), n, (0.5, 0.75, 1.0))
    target: Target
    if row["family"] == "correlated":
        target = Gaussian(covariance=[[1.0, 0.999], [0.999, 1.0]], prior_variance=row["prior_variance"])
    else:
        temper = row["n0"] / n if row["n0"] else 1.0
        variances = [20.0, 2.5, *([1.0] * (d - 2))]
        target = Banana(a=row["a"], variances=variances, prior_variance=row["prior_variance"], temper=temper)
    return Experiment(name, row["name"], target, truth, n, epsilons)


def algorithms(name: str) -> list[str]:
    """The algorithms that were tuned for an experiment."""
    return [algorithm for algorithm in ALGORITHMS if name in _TABLE["algorithms"][algorithm]]


def tuned(algorithm: str, name: str) -> Method:
    """The thesis's tuned sampler for an experiment.

    >>> tuned("dppa", "easy-2d").components
    'guided'
    """
    if algorithm not in ALGORITHMS or name not in _TABLE["algorithms"][algorithm]:
        raise ValueError(f"no settings for {algorithm!r} on {name!r}; tuned there are {algorithms(name)}.")
    row: dict[str, Any] = _TABLE["algorithms"][algorithm][name]
    if algorithm == "barker":
        return Barker(batch=row["batch_size"], proposal=row["prop_sigma"])
    if algorithm == "hmc":
        return HMC(
            row["tau"],
            gradient_noise=row["tau_g"],
            clip=row["r_clip"],
            gradient_clip=row["grad_clip"],
            step=row["eta"],
            leapfrog=row["L"],
            mass=row["mass"],
        )
    components: Components = "guided" if row["grw"] else "all"
    if algorithm.startswith("m"):
        return MinibatchPenalty(
            row["tau"],
            batch=row["batch_size"],
            clip=row["clip_bound"],
            proposal=row["prop_sd"],
            components=components,
        )
    return Penalty(row["tau"], clip=row["r_clip_bound"], proposal=row["prop_sigma"], components=components)


def discrepancy(
    draws: Float[np.ndarray, "k d"], reference: Float[np.ndarray, "m d"], rng: np.random.Generator, subsample: int = 500
) -> float:
    """The thesis's maximum mean discrepancy of two samples (see the module)."""
    if len(draws) < 2:
        raise ValueError(f"a discrepancy needs at least two draws; got {len(draws)}.")
    some = draws[rng.integers(len(draws), size=subsample)]
    others = reference[rng.integers(len(reference), size=subsample)]
    width = float(np.median(np.linalg.norm(some - others, axis=1)))

    def mean(left: np.ndarray, right: np.ndarray) -> float:
        blocks = (
            np.sum(np.exp(-cdist(left[i : i + 1000], right, "sqeuclidean") / (2 * width**2)))
            for i in range(0, len(left), 1000)
        )
        return float(sum(blocks))

    def within(sample: np.ndarray) -> float:
        return (mean(sample, sample) - len(sample)) / (len(sample) * (len(sample) - 1))

    between = mean(draws, reference) / (len(draws) * len(reference))
    return float(np.sqrt(abs(within(draws) + within(reference) - 2 * between)))


def allowed(method: Method, made: Experiment, epsilon: float, accountant: AccountantName = "auto") -> int:
    """The iterations one chain may run for in an experiment, zero where the budget allows none."""
    try:
        return plan(method, Budget(epsilon, made.delta), n=made.n, accountant=accountant).iterations
    except ValueError as error:
        if "allows no iteration" in str(error):
            return 0
        raise
