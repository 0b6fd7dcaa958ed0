r"""The calibration study of Bernstein and Sheldon (2018), section 4: Figures 1a, 1b and 1c; and the same with bounds fixed in advance.

A trial draws theta from the prior, n records and a release, and runs each method; its rank U is the share of a method's draws below the
true theta, uniform over trials if the method is calibrated. Figure 1a is the Kolmogorov-Smirnov distance of U from uniform against n,
1b the distribution of U, 1c the squared maximum mean discrepancy (standard normal kernel) to the non-private posterior of the same
records. The methods are

- ``gibbs``: the sampler of :class:`~noisewise.engines.sufficient.Sufficient`, with moves of theta and the joint theorem;
- ``paper``: Algorithms 1 and 2 to the letter, without moves, the three parts of a truncated sum taken as independent;
- ``non-private``: the posterior given the records; ``naive``: the same with the noisy totals taken as exact (moved to the nearest
  possible ones; for the exponential model a noisy sum of *all* records, the paper's "cheat");
- ``ops``: one-posterior sampling (binomial only), 100 draws of epsilon / 100 each on [0.1, 0.9].

The paper does not print its priors: ours are Beta(1, 1), Dirichlet(1, 1, 1) and Gamma(4, 1). Its ``exponential`` model takes the bounds
that keep the middle 95% of the records from the *true* rate, which no data holder may do; ``exponential-fixed`` takes them from the
prior mean rate. The sensitivity is 1 for the binomial, 2 for the multinomial (the paper's 1 is too small) and the upper bound for the
exponential model. For the multinomial model the first category is looked at.

The second study has 1,000 trials of ``exponential-fixed`` and tells the theorem from the length of the chain: the joint theorem by
quadrature and by sampling, and the independent one, at the paper's length and at four times it.

All trials of a cell run side by side in one compiled program, in which n, the noise scale, the bounds and the lengths are data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.sufficient_direct import log_normal_laplace
from noisewise.engines.truncation import SupportLaw, TruncatedLaw
from noisewise.kernels.statistics import NoiseShape, StatisticLaw, StatisticsKernel
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.exponential_family import exponential_form
from noisewise.private.baselines import one_posterior_sampling
from noisewise.studies.base import Cell, Line, Rows, Study, generator, group, key_of, seed_of
from noisewise.studies.bernstein_sheldon_figures import band, ks_distance, plot_bounds, plot_calibration
from noisewise.typing import Key

PAPER = "Bernstein and Sheldon, Differentially private Bayesian inference for exponential families (2018)"
MODELS: dict[str, tuple[Model, str]] = {
    "binomial": (Bernoulli(1.0, 1.0), "p"),
    "multinomial": (Categorical(jnp.ones(3)), "p"),
    "exponential": (Exponential(4.0, 1.0), "rate"),
    "exponential-fixed": (Exponential(4.0, 1.0), "rate"),
}
"""Each model with the name of the parameter that is looked at."""
SAMPLERS = {"gibbs": (2, True), "paper": (0, False)}
"""Moves of theta in a step, and whether the joint theorem is used."""
BOUNDS_METHODS = {
    "joint, quadrature": None,
    "joint, two moves a step": (2, True),
    "joint, no moves": (0, True),
    "independent, no moves": (0, False),
}

_PRIOR_RATE = 4.0
_TAIL = 0.025
_KEPT = 200
_TUNE_SHARE = 0.4
_NODES = 8001
_OPS_DRAWS = 100
_OPS_TRUNCATION = 0.1
_LANES = 2
_RESAMPLES = 400


class Trials(eqx.Module):
    """Simulated truths and releases, one row a trial."""

    truth: Array
    totals: Array
    values: Array
    noisy_totals: Array
    scale: Array
    lower: Array
    upper: Array


def simulate(name: str, n: int, epsilon: float, replicates: range, seed: int) -> Trials:
    """Truths, records reduced to their totals, and releases."""
    data: Cell = {"data": name, "n": n, "epsilon": epsilon}
    rows = [_trial(name, n, epsilon, generator(seed, data, r)) for r in replicates]
    return Trials(*(jnp.asarray(np.stack(column)) for column in zip(*rows, strict=True)))


def _trial(name: str, n: int, epsilon: float, rng: np.random.Generator) -> tuple[Any, ...]:
    if name == "binomial":
        truth = rng.beta(1.0, 1.0)
        total = np.array([float(rng.binomial(n, truth))])
        scale = 1 / epsilon
    elif name == "multinomial":
        probabilities = rng.dirichlet([1.0, 1.0, 1.0])
        truth = probabilities[0]
        total = rng.multinomial(n, probabilities).astype(float)
        scale = 2 / epsilon
    else:
        truth = rng.gamma(4.0, 1.0)
        reference = truth if name == "exponential" else _PRIOR_RATE
        lower, upper = -math.log1p(-_TAIL) / reference, -math.log(_TAIL) / reference
        scale = upper / epsilon
        x = rng.exponential(1 / truth, n)
        total, inside = np.array([x.sum()]), np.array([x[(x >= lower) & (x <= upper)].sum()])
        value, noisy = inside + scale * rng.laplace(size=1), total + scale * rng.laplace(size=1)
        return truth, total, value, noisy, scale, lower, upper
    value = total + scale * rng.laplace(size=total.size)
    return truth, total, value, value, scale, 0.0, 0.0


def kernel_of(
    name: str, value: Array, scale: Array, n: Array, lower: Array, upper: Array, *, moves: int, joint: bool
) -> StatisticsKernel:
    """The sampler of one trial, all of whose numbers are data."""
    model = MODELS[name][0]
    form = exponential_form(model)
    assert form is not None
    law: StatisticLaw = SupportLaw(jnp.eye(form.size), jnp.zeros(form.size), form)
    if isinstance(model, Exponential):
        law = TruncatedLaw(
            matrix=jnp.asarray([[0.0, 1.0]]),
            offset=jnp.zeros(1),
            form=form,
            lower=lower,
            upper=upper,
            slope=jnp.ones((1, 1)),
            constant=jnp.zeros(1),
            below=jnp.zeros(1),
            above=jnp.zeros(1),
            reaches_below=True,
            reaches_above=True,
            flat=True,
            independent=not joint,
        )
    noise = NoiseShape(jnp.broadcast_to(scale, value.shape), jnp.ones(value.shape, dtype=bool))
    return StatisticsKernel(model, law, value, noise, n, None, moves)


@eqx.filter_jit
def run_trials(
    keys: Key, data: Trials, n: Array, draws: Array, tune: Array, name: str, moves: int, joint: bool
) -> tuple[Array, Array, Array]:
    """For each trial the share of draws below the truth, 200 draws evenly spaced in the run, and whether all were possible."""

    def one(key: Key, data: Trials) -> tuple[Array, Array, Array]:
        kernel = kernel_of(name, data.values, data.scale, n, data.lower, data.upper, moves=moves, joint=joint)
        start, begin, chain = jax.random.split(key, 3)
        state = kernel.init(begin, kernel.model.sample_prior(start))

        def step(i: Array, carry: Any) -> Any:
            state, below, kept, found = carry
            state, info = kernel.step(jax.random.fold_in(chain, i), state)
            state = jax.tree.map(lambda new, old: jnp.where(i < tune, new, old), kernel.adapt(state, info), state)
            at = i - tune
            now = looked_at(name, kernel.theta(state))
            below = below + jnp.where((at >= 0) & (now < data.truth), 1.0, 0.0)
            slot = jnp.where(at >= 0, at * _KEPT // draws, 0)
            kept = kept.at[slot].set(now)
            return state, below, kept, jnp.minimum(found, info.stats["min_found"])

        begun = (state, jnp.zeros(()), jnp.zeros(_KEPT), jnp.ones(()))
        _, below, kept, found = jax.lax.fori_loop(0, tune + draws, step, begun)
        return below / draws, kept, found > 0

    return jax.vmap(one)(keys, data)


def looked_at(name: str, theta: Mapping[str, Array]) -> Array:
    """The parameter that is looked at, of one draw."""
    return jnp.reshape(theta[MODELS[name][1]], (-1,))[0]


@eqx.filter_jit
def conjugate_draws(keys: Key, totals: Array, n: Array, name: str) -> Array:
    """For each trial 200 draws of the posterior given exact totals."""
    form = exponential_form(MODELS[name][0])
    assert form is not None

    def one(key: Key, total: Array) -> Array:
        draws = jax.vmap(lambda k: looked_at(name, form.update(k, {}, total, n)))
        return draws(jax.random.split(key, _KEPT))

    return jax.vmap(one)(keys, totals)


@eqx.filter_jit
def ranks_by_quadrature(data: Trials, n: Array) -> Array:
    """The posterior probability of rates below the true one, for releases that share their bounds, under the joint theorem."""
    grid = jnp.linspace(math.log(0.02), math.log(40.0), _NODES)
    model = MODELS["exponential-fixed"][0]
    numbers = (data.values[0], data.scale[0], n, data.lower[0], data.upper[0])
    kernel = kernel_of("exponential-fixed", *numbers, moves=0, joint=True)
    means, covariances = jax.vmap(lambda z: kernel.law.moments(model.constrain(z[None])))(grid)
    prior = jax.vmap(lambda z: model.log_prior_free(z[None]))(grid)

    def one(value: Array, scale: Array, truth: Array) -> Array:
        log_density = prior + log_normal_laplace(value[0] - n * means[:, 1], n * covariances[:, 1, 1], scale)
        density = jnp.exp(log_density - jnp.max(log_density))
        mass = jnp.concatenate([jnp.zeros(1), jnp.cumsum(0.5 * (density[1:] + density[:-1]))])
        return jnp.interp(jnp.log(truth), grid, mass / mass[-1])

    return jax.vmap(one)(data.values, data.scale, data.truth)


def mmd_squared(left: np.ndarray, right: np.ndarray) -> float:
    """The unbiased squared maximum mean discrepancy, standard normal kernel, of two samples of one number, equally long."""
    m = len(left)

    def summed(a: np.ndarray, b: np.ndarray) -> float:
        kernel = np.exp(-0.5 * (a[:, None] - b) ** 2)
        return float(kernel.sum() - np.trace(kernel))

    return (summed(left, left) + summed(right, right) - 2 * summed(left, right)) / (m * (m - 1))


# Figure 1 ---------------------------------------------------------------------------------------------------------------------


def calibration_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Every model, epsilon and n."""
    if unknown := set(settings["models"]) - set(MODELS):
        raise ValueError(f"models must be among {', '.join(map(repr, MODELS))}; got {', '.join(map(repr, unknown))}.")
    if settings["draws"] < _KEPT or settings["tune"] < 0:
        raise ValueError(
            f"draws must be at least {_KEPT} and tune at least 0; got draws={settings['draws']}, tune={settings['tune']}."
        )
    return [
        {
            "model": name,
            "epsilon": float(epsilon),
            "n": int(n),
            "draws": settings["draws"],
            "tune": settings["tune"],
        }
        for name in settings["models"]
        for epsilon in settings["epsilons"]
        for n in settings["sizes"]
    ]


def run_calibration(cell: Cell, replicates: range, seed: int) -> dict[str, Any]:
    """The rank and the discrepancy of every method in every trial."""
    name, epsilon, n = str(cell["model"]), float(cell["epsilon"]), int(cell["n"])
    lanes = range(replicates.start, max(replicates.stop, replicates.start + _LANES))
    data = simulate(name, n, epsilon, lanes, seed)
    truth, count = np.asarray(data.truth), jnp.asarray(float(n))
    draws: dict[str, np.ndarray] = {}
    ranks: dict[str, np.ndarray] = {}
    for method, (moves, joint) in SAMPLERS.items():
        ranks[method], draws[method] = sampled(cell, name, data, lanes, seed, method, moves, joint=joint)
    for method, totals in (("non-private", data.totals), ("naive", _possible(name, data.noisy_totals, n))):
        keys = key_of(seed, {**cell, "method": method}, lanes)
        draws[method] = np.asarray(conjugate_draws(keys, totals, count, name))
    if name == "binomial":
        draws["ops"] = np.concatenate([
            one_posterior_sampling(
                Bernoulli(),
                total,
                n,
                epsilon=epsilon,
                truncate=_OPS_TRUNCATION,
                draws=_OPS_DRAWS,
                random_seed=seed_of(seed, {**cell, "method": "ops"}, r),
            )
            for r, total in zip(lanes, np.asarray(data.totals)[:, 0], strict=True)
        ])  # fmt: skip
    ranks |= {method: np.mean(some < truth[:, None], axis=1) for method, some in draws.items() if method not in ranks}
    trials = range(len(replicates))
    return {
        "replicate": np.tile(np.array(replicates), len(draws)),
        "method": np.repeat(list(draws), len(replicates)),
        "rank": np.concatenate([ranks[method][trials] for method in draws]),
        "discrepancy": np.array(
            [
                mmd_squared(some[i], draws["non-private"][i, : some.shape[1]]) if method != "non-private" else np.nan
                for method, some in draws.items()
                for i in trials
            ]
        ),
    }


def sampled(
    cell: Cell, name: str, data: Trials, lanes: range, seed: int, method: str, moves: int, *, joint: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks and kept draws of one of the samplers."""
    keys = key_of(seed, {**cell, "method": method}, lanes)
    lengths = (jnp.asarray(int(cell["draws"])), jnp.asarray(int(cell["tune"])))
    count = jnp.asarray(float(cell["n"]))
    ranks, kept, found = run_trials(keys, data, count, *lengths, name, moves, joint)
    lost = int(np.sum(~np.asarray(found)))
    if lost:
        raise ValueError(f"In {lost} trials no possible totals were drawn ({dict(cell)}, {method}).")
    return np.asarray(ranks), np.asarray(kept)


def _possible(name: str, totals: Array, n: int) -> Array:
    return jnp.clip(totals, 0.0, float(n)) if name == "binomial" else jnp.maximum(totals, 0.0)


def calibration_table(rows: Rows) -> list[Line]:
    """Kolmogorov-Smirnov distances with the band of a calibrated method, and mean discrepancies."""
    lines = []
    for (name, epsilon, n, method), part in group(rows, "model", "epsilon", "n", "method"):
        said, ranks = f"{name}, epsilon = {epsilon:g}, n = {n:,}, {method}", part["rank"]
        claimed = f"calibrated: below {band(ranks.size):.3f}" if method in ("gibbs", "paper", "non-private") else None
        lines.append(Line(f"KS distance, {said}", claimed, ks_distance(ranks), distance_error(ranks)))
        found = part["discrepancy"]
        if not np.any(np.isnan(found)):
            error = float(np.std(found, ddof=1) / math.sqrt(found.size)) if found.size > 1 else math.nan
            lines.append(Line(f"MMD^2, {said}", None, float(np.mean(found)), error))
    return lines


def distance_error(ranks: np.ndarray) -> float:
    """The standard error of a Kolmogorov-Smirnov distance by the bootstrap."""
    again = np.random.default_rng(0).choice(ranks, (_RESAMPLES, ranks.size))
    return float(np.std([ks_distance(some) for some in again]))


# Bounds fixed in advance --------------------------------------------------------------------------------------------------------


def bounds_cells(settings: Mapping[str, Any]) -> list[Cell]:
    """Every method: samplers without moves at every length of the chain, that with moves at the first."""
    if unknown := set(settings["methods"]) - set(BOUNDS_METHODS):
        known = ", ".join(map(repr, BOUNDS_METHODS))
        raise ValueError(f"methods must be among {known}; got {', '.join(map(repr, unknown))}.")
    return [
        {
            "method": method,
            "n": int(settings["n"]),
            "epsilon": float(settings["epsilon"]),
            "draws": draws,
            "tune": int(_TUNE_SHARE * draws),
        }
        for method in settings["methods"]
        for draws in _lengths(BOUNDS_METHODS[method], settings["lengths"])
    ]


def _lengths(sampler: tuple[int, bool] | None, lengths: Sequence[int]) -> Sequence[int]:
    if sampler is None:
        return (0,)
    moves, _ = sampler
    return lengths[:1] if moves else lengths


def run_bounds(cell: Cell, replicates: range, seed: int) -> dict[str, Any]:
    """The rank of every trial."""
    lanes = range(replicates.start, max(replicates.stop, replicates.start + _LANES))
    data = simulate("exponential-fixed", int(cell["n"]), float(cell["epsilon"]), lanes, seed)
    sampler = BOUNDS_METHODS[str(cell["method"])]
    if sampler is None:
        ranks = np.asarray(ranks_by_quadrature(data, jnp.asarray(float(cell["n"]))))
    else:
        moves, joint = sampler
        ranks, _ = sampled(cell, "exponential-fixed", data, lanes, seed, "", moves, joint=joint)
    return {"replicate": np.array(replicates), "rank": ranks[: len(replicates)]}


def bounds_table(rows: Rows) -> list[Line]:
    """Kolmogorov-Smirnov distances, and how often central 90% intervals hold the truth."""
    lines = []
    for (method, draws), part in group(rows, "method", "draws"):
        said = method if draws == 0 else f"{method}, {draws:,} draws"
        ranks = part["rank"]
        within = np.mean((ranks > 0.05) & (ranks < 0.95))
        claimed = f"calibrated: below {band(ranks.size):.3f}"
        lines += [
            Line(f"KS distance, {said}", claimed, ks_distance(ranks), distance_error(ranks)),
            Line(f"coverage of 90% intervals, {said}", 0.9, float(within), math.sqrt(0.09 / ranks.size)),
        ]
    return lines


STUDIES = (
    Study(
        name="bernstein-sheldon",
        paper=f"{PAPER}, Figure 1",
        shows="Calibration and utility against n: ranks of the truth are uniform where noise is counted, not where it is ignored.",
        cost="72 cells, each one program over its 200 trials: about 8 minutes of CPU",
        replicates=200,
        settings={
            "models": tuple(MODELS),
            "sizes": (10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000),
            "epsilons": (0.01, 0.1),
            "draws": 5000,
            "tune": 2000,
        },
        cells=calibration_cells,
        run=run_calibration,
        table=calibration_table,
        plots=plot_calibration,
        batch=1000,
        tiny={"models": ("binomial", "exponential"), "sizes": (10, 1000), "epsilons": (0.1,), "draws": 200, "tune": 50},
    ),
    Study(
        name="bernstein-sheldon-bounds",
        paper=f"{PAPER}, section 4 with bounds that do not come from the true rate",
        shows="The joint central limit theorem for truncated sums is calibrated, that of three independent parts is not.",
        cost="1,000 trials by quadrature and by three samplers, two of them at two lengths: about 3 minutes of CPU",
        replicates=1000,
        settings={"methods": tuple(BOUNDS_METHODS), "n": 1000, "epsilon": 0.1, "lengths": (5000, 20_000)},
        cells=bounds_cells,
        run=run_bounds,
        table=bounds_table,
        plots=plot_bounds,
        batch=1000,
        tiny={"methods": ("joint, quadrature", "independent, no moves"), "lengths": (200,)},
    ),
)
