r"""The thesis's eight experiments by name (Table 5.1), its tuned samplers, and Figures 6.1 to 6.8 as data.

Records are simulated, so nothing here is private: runs are made with ``probe`` and report what a private run must not.
Conventions of the thesis: delta = 0.1/n; chains start at the true theta plus normal noise of the reference sample's
average sd; the first half of a chain is dropped; utility is the maximum mean discrepancy to 1,000 exact posterior draws,
Gaussian kernel ``exp(-|x-y|^2 / 2s^2)``, s the median distance between subsamples of 500, as ``sqrt(abs(U-statistic))``;
for the circle it is the distance of the mean from the centre.

A sampler's noise does not change with epsilon, only its number of iterations does: each chain is run once, for the
largest epsilon, and a smaller one reads its first part. Cells of one algorithm are therefore dependent across epsilon,
and independent across chains.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy.spatial.distance import cdist

from noisewise.private.barker import Barker
from noisewise.private.budget import Budget
from noisewise.private.hmc import HMC
from noisewise.private.ledger import AccountantName
from noisewise.private.minibatch import MinibatchPenalty
from noisewise.private.oneshot import normal, oneshot
from noisewise.private.penalty import Components, Penalty
from noisewise.private.plan import Method, plan
from noisewise.private.records import make_table
from noisewise.private.sample import run, seeded_keys
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
FULL_DATA: tuple[str, ...] = ("dpps", "dppa", "hmc")
_EASY = ("easy-2d", "easy-10d", "tempered-2d", "tempered-10d")
_HARD = ("gauss-30d", "hard-2d", "hard-gauss-2d")
FIGURES: dict[str, tuple[tuple[str, ...], str]] = {
    "6.3": (_EASY, "discrepancy"),
    "6.4": (_HARD, "discrepancy"),
    "6.5": (_EASY, "clip_fraction"),
    "6.6": (_HARD, "clip_fraction"),
    "6.7": (("circle",), "discrepancy"),
    "6.8": (NAMES, "gradient_clip_fraction"),
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

    def starts(self, key: Key, reference: Float[np.ndarray, "k d"], chains: int) -> Float[Array, "chains d"]:
        """Starting points about the truth, at the scale of the posterior (of one for the circle)."""
        scale = 1.0 if isinstance(self.target, Circle) else float(np.mean(np.std(reference, axis=0)))
        return jnp.asarray(self.truth) + scale * jax.random.normal(key, (chains, len(self.truth)))


def experiment(name: str) -> Experiment:
    """An experiment of Table 5.1 by its name.

    >>> experiment("tempered-2d").target.temper
    Array(0.01, dtype=float64)
    """
    if name not in NAMES:
        raise ValueError(f"the experiments are {', '.join(NAMES)}; got {name!r}.")
    row = _TABLE["models"][name]
    d, n = row["d"], row["n"]
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


def iterations(method: Method, name: str, epsilon: float, accountant: AccountantName = "auto") -> int:
    """The iterations one chain may run for in an experiment."""
    made = experiment(name)
    return plan(method, Budget(epsilon, made.delta), n=made.n, accountant=accountant).iterations


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


def compare(name: str, algorithm: str, *, chains: int = 20, seed: int = 0) -> xr.Dataset:
    """One algorithm on one experiment: discrepancy, clip fractions and acceptance by (epsilon, chain), and iterations by epsilon."""
    made = experiment(name)
    data, first, second = jax.random.split(jax.random.key(seed), 3)
    records = made.records(data)
    reference = made.reference(first, records)
    method = tuned(algorithm, name).ready(made.target, made.n)
    lengths = [allowed(method, name, epsilon) for epsilon in made.epsilons]
    draws, seen = run(
        method,
        made.target,
        make_table({key: np.asarray(value) for key, value in records.items()}),
        made.starts(second, reference, chains),
        lengths[-1],
        seeded_keys(seed + 1),
        probe=True,
    )
    rng = np.random.default_rng(seed)

    def utility(kept: np.ndarray) -> float:
        if len(kept) < 2:
            return float("nan")
        if isinstance(made.target, Circle):
            return float(np.linalg.norm(kept.mean(axis=0)))
        return discrepancy(kept, reference, rng)

    cells = {"discrepancy": [[utility(chain[k // 2 : k]) for chain in draws] for k in lengths]}
    for variable in ("clip_fraction", "gradient_clip_fraction", "accepted"):
        if variable in seen:
            cells[variable] = [
                [float(np.mean(chain[:k])) if k else float("nan") for chain in seen[variable]] for k in lengths
            ]
    coords = {"epsilon": list(made.epsilons), "chain": np.arange(chains)}
    values: dict[str, Any] = {key: (("epsilon", "chain"), np.asarray(value)) for key, value in cells.items()}
    values["iterations"] = (("epsilon",), lengths)
    return xr.Dataset(values, coords=coords, attrs={"experiment": name, "algorithm": algorithm, "seed": seed})


def compare_oneshot(name: str, *, repeats: int = 20, seed: int = 0) -> xr.Dataset:
    """The one-shot baseline on an experiment with normal records: discrepancy by (epsilon, chain), each chain a release of its own.

    The public centre is the origin and the radius 5 (for where the mean may lie) plus four root-mean-square lengths of a
    deviation from it, so that next to no record is clipped: clipping one in a hundred would already bias the correlated Gauss.
    """
    made = experiment(name)
    data, first, _ = jax.random.split(jax.random.key(seed), 3)
    records = made.records(data)
    reference, rng = made.reference(first, records), np.random.default_rng(seed)
    target = normal(made.target)
    spread = jnp.linalg.inv(target.precision) if target.precision.ndim == 2 else jnp.diag(1 / target.precision)
    radius = 5 + 4 * float(jnp.sqrt(jnp.trace(spread)))
    columns = {key: np.asarray(value) for key, value in records.items()}
    table = make_table(columns)
    cells = []
    for epsilon in made.epsilons:
        row = []
        for repeat in range(repeats):
            tree = oneshot(
                target,
                table,
                Budget(epsilon, made.delta),
                n=made.n,
                centre=np.zeros(target.size),
                radius=radius,
                testing=True,
                random_seed=seed + repeat,
            )
            row.append(discrepancy(tree["posterior"].to_dataset()["theta"].values[0], reference, rng))
        cells.append(row)
    coords = {"epsilon": list(made.epsilons), "chain": np.arange(repeats)}
    attributes = {"experiment": name, "algorithm": "oneshot", "radius": radius, "seed": seed}
    return xr.Dataset({"discrepancy": (("epsilon", "chain"), cells)}, coords=coords, attrs=attributes)


def floor_of(name: str, *, seed: int = 0, repeats: int = 10) -> Float[np.ndarray, " repeats"]:
    """The discrepancy of further exact posterior samples: the lines at the bottom of Figures 6.2 to 6.4."""
    made = experiment(name)
    data, first, second = jax.random.split(jax.random.key(seed), 3)
    records = made.records(data)
    reference, rng = made.reference(first, records), np.random.default_rng(seed)
    samples = [made.reference(key, records) for key in jax.random.split(second, repeats)]
    if isinstance(made.target, Circle):
        return np.array([np.linalg.norm(sample.mean(axis=0)) for sample in samples])
    return np.array([discrepancy(sample, reference, rng) for sample in samples])


def figure_6_1(epsilons: Sequence[float] = (1, 2, 3, 4, 5, 6)) -> xr.Dataset:
    """Iterations allowed on the flat banana, d = 2, by algorithm, accountant and epsilon."""
    full: tuple[AccountantName, ...] = ("zcdp", "rdp", "rdp_improved", "tight")
    batch: tuple[AccountantName, ...] = ("rdp", "rdp_improved", "pld", "pld_without_replacement")
    wanted = [(key, name) for key, names in (("dpps", full), ("mdpps", batch), ("hmc", full)) for name in names]
    counts = [
        [allowed(tuned(algorithm, "easy-2d"), "easy-2d", float(e), name) for e in epsilons]
        for algorithm, name in wanted
    ]
    labels = [f"{algorithm}: {name}" for algorithm, name in wanted]
    return xr.Dataset(
        {"iterations": (("accountant", "epsilon"), counts)}, coords={"accountant": labels, "epsilon": list(epsilons)}
    )


def allowed(method: Method, name: str, epsilon: float, accountant: AccountantName = "auto") -> int:
    """As :func:`iterations`, and zero where the budget allows none."""
    try:
        return iterations(method, name, epsilon, accountant)
    except ValueError as error:
        if "allows no iteration" in str(error):
            return 0
        raise


def figure_6_2(
    *, d: int = 2, bounds: Sequence[float] = (0.1, 0.2, 0.5, 1, 2, 4, 8), chains: int = 20, seed: int = 0
) -> xr.Dataset:
    """Clipping without privacy noise: discrepancy and clip fraction by bound, random walk (3,000 iterations) and HMC (500)."""
    name = f"easy-{d}d"
    made = experiment(name)
    data, first, second = jax.random.split(jax.random.key(seed), 3)
    records = made.records(data)
    reference, rng = made.reference(first, records), np.random.default_rng(seed)
    table = make_table({key: np.asarray(value) for key, value in records.items()})
    walk, leap = (_TABLE["algorithms"][key][name] for key in ("dpps", "hmc"))
    cells: dict[str, list[list[list[float]]]] = {"discrepancy": [], "clip_fraction": []}
    for label, length in (("walk", 3000), ("hmc", 500)):
        rows: dict[str, list[list[float]]] = {"discrepancy": [], "clip_fraction": []}
        for bound in bounds:
            method: Method = Penalty(1e-9, clip=bound, proposal=walk["prop_sigma"])
            if label == "hmc":
                quiet = {"gradient_noise": 1e-9, "gradient_clip": 1e3, "step": leap["eta"], "leapfrog": leap["L"]}
                method = HMC(1e-9, clip=bound, **quiet)
            starts = made.starts(second, reference, chains)
            draws, seen = run(
                method.ready(made.target, made.n), made.target, table, starts, length, seeded_keys(seed), probe=True
            )
            rows["discrepancy"].append([discrepancy(chain[length // 2 :], reference, rng) for chain in draws])
            rows["clip_fraction"].append([float(np.mean(chain)) for chain in seen["clip_fraction"]])
        for key, row in rows.items():
            cells[key].append(row)
    coords = {"sampler": ["walk", "hmc"], "bound": list(bounds), "chain": np.arange(chains)}
    return xr.Dataset({key: (tuple(coords), np.asarray(value)) for key, value in cells.items()}, coords=coords)


def draw(figure: str, results: dict[tuple[str, str], xr.Dataset], path: str | Path) -> None:
    """Draw one of Figures 6.3 to 6.8 from the results of :func:`compare`, keyed by (experiment, algorithm)."""
    import matplotlib.pyplot as plt

    names, variable = FIGURES[figure]
    shown = [name for name in names if any(key[0] == name and variable in data for key, data in results.items())]
    panels, axes = plt.subplots(1, max(1, len(shown)), figsize=(4.2 * max(1, len(shown)), 3.4), squeeze=False)
    for axis, name in zip(axes[0], shown, strict=False):
        for (where, algorithm), data in results.items():
            if where == name and variable in data:
                middle = data[variable].median("chain")
                low, high = data[variable].quantile([0.25, 0.75], "chain")
                axis.plot(data["epsilon"], middle, marker="o", label=ALGORITHMS[algorithm])
                axis.fill_between(data["epsilon"], low, high, alpha=0.2)
        if variable == "discrepancy":
            axis.axhline(float(np.median(floor_of(name))), color="black", linewidth=0.8)
        axis.set(
            title=_TABLE["models"][name]["name"], xlabel="epsilon", ylabel=variable.replace("_", " "), ylim=(0, None)
        )
    axes[0][0].legend(fontsize=7)
    panels.tight_layout()
    panels.savefig(path)
    plt.close(panels)
