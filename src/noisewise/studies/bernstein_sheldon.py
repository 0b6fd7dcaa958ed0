r"""The calibration study of Bernstein and Sheldon (2018), section 4: Figures 1a, 1b and 1c.

A trial draws theta from the prior, n records and a release, and runs each method; ``U`` is the share of a method's draws below the true
theta, uniform over trials if the method is calibrated. Figure 1a is the Kolmogorov-Smirnov distance of U from uniform against n, 1b the
distribution of U, 1c the squared maximum mean discrepancy (standard normal kernel) to the non-private posterior of the same records.

The paper does not print its priors: ours are Beta(1, 1), Dirichlet(1, 1, 1) and Gamma(4, 1). Its exponential model takes the bounds that
keep the middle 95% of the records from the *true* rate, which no data holder may do; ``bounds="fixed"`` takes them from the
prior mean rate. The sensitivity is 1 for the binomial, 2 for the multinomial (the paper's 1 is too small) and the upper
bound for the exponential model.
For the multinomial model the first category is looked at. Naive totals outside what is possible are moved to the nearest possible one.

All trials of a cell run side by side in one compiled program, in which n, the noise scale and the bounds are data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
from noisewise.private.baselines import one_posterior_sampling, posterior_given_totals
from noisewise.typing import Key

Name = Literal["binomial", "multinomial", "exponential"]
Bounds = Literal["true", "fixed"]
Clt = Literal["joint", "independent"]

MODELS: dict[Name, Model] = {
    "binomial": Bernoulli(1.0, 1.0),
    "multinomial": Categorical(jnp.ones(3)),
    "exponential": Exponential(4.0, 1.0),
}
PARAMETER: dict[Name, str] = {"binomial": "p", "multinomial": "p", "exponential": "rate"}
_TAIL = 0.025
_KEPT = 200
_NODES = 8001
_OPS_DRAWS = 100
_OPS_TRUNCATION = 0.1


@dataclass(frozen=True)
class Cell:
    """One point of the figure: what a method gives over all trials of one model, epsilon and n."""

    model: str
    epsilon: float
    n: int
    method: str
    ranks: np.ndarray
    discrepancies: np.ndarray | None

    @property
    def distance(self) -> float:
        """The Kolmogorov-Smirnov distance of the ranks from uniform."""
        return ks_distance(self.ranks)

    @property
    def band(self) -> float:
        """What that distance stays below in 95% of studies of a calibrated method (asymptotically)."""
        return 1.358 / math.sqrt(len(self.ranks))


def ks_distance(ranks: np.ndarray) -> float:
    """The largest distance between the empirical distribution of the ranks and the uniform one."""
    ordered, m = np.sort(ranks), len(ranks)
    return float(max(np.max(np.arange(1, m + 1) / m - ordered), np.max(ordered - np.arange(m) / m)))


def mmd_squared(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The unbiased squared maximum mean discrepancy, standard normal kernel, of draws (trials, draws), equally many."""
    m = left.shape[1]

    def summed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kernel = np.exp(-0.5 * (a[:, :, None] - b[:, None, :]) ** 2)
        return np.asarray(kernel.sum(axis=(1, 2)) - np.trace(kernel, axis1=1, axis2=2))

    return (summed(left, left) + summed(right, right) - 2 * summed(left, right)) / (m * (m - 1))


def calibration(
    *,
    models: Sequence[Name] = ("binomial", "multinomial", "exponential"),
    sizes: Sequence[int] = (10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000),
    epsilons: Sequence[float] = (0.01, 0.1),
    trials: int = 200,
    draws: int = 5000,
    tune: int = 2000,
    moves: int = 2,
    bounds: Bounds = "true",
    clt: Clt = "joint",
    random_seed: int = 0,
    baselines: bool = True,
) -> list[Cell]:
    """Run the study; ``moves=0`` and ``clt="independent"`` is the paper's sampler to the letter."""
    for name in models:
        if name not in MODELS:
            raise ValueError(f"models must be among {', '.join(map(repr, MODELS))}; got {name!r}.")
    if trials < 2 or draws < _KEPT or tune < 0:
        raise ValueError(f"The study needs trials >= 2, draws >= {_KEPT} and tune >= 0; got {trials}, {draws}, {tune}.")
    cells = []
    for name in models:
        for epsilon in epsilons:
            for n in sizes:
                seed = np.random.SeedSequence([random_seed, list(MODELS).index(name), round(1e6 * epsilon), n])
                cells += _cell(name, epsilon, n, seed, trials, draws, tune, moves, bounds, clt, baselines=baselines)
    return cells


class Trials(eqx.Module):
    """Simulated truths and releases, one row a trial."""

    truth: Array
    totals: Array
    values: Array
    noisy_totals: Array
    scale: Array
    lower: Array
    upper: Array


def simulate(name: Name, n: int, epsilon: float, trials: int, seed: np.random.SeedSequence, bounds: Bounds) -> Trials:
    """Truths, records reduced to their totals, and releases."""
    rng = np.random.default_rng(seed)
    nothing = np.zeros(trials)
    if name == "binomial":
        p = rng.beta(1.0, 1.0, trials)
        totals = rng.binomial(n, p)[:, None].astype(float)
        scale = np.full(trials, 1 / epsilon)
        truth = p
    elif name == "multinomial":
        probabilities = rng.dirichlet([1.0, 1.0, 1.0], trials)
        totals = rng.multinomial(n, probabilities).astype(float)
        scale = np.full(trials, 2 / epsilon)
        truth = probabilities[:, 0]
    else:
        truth = rng.gamma(4.0, 1.0, trials)
        reference = truth if bounds == "true" else np.full(trials, 4.0)
        lower, upper = -math.log1p(-_TAIL) / reference, -math.log(_TAIL) / reference
        scale = upper / epsilon
        sums = np.empty((trials, 2))
        for trial in range(trials):
            x = rng.exponential(1 / truth[trial], n)
            sums[trial] = x.sum(), x[(x >= lower[trial]) & (x <= upper[trial])].sum()
        values = sums[:, 1:] + scale[:, None] * rng.laplace(size=(trials, 1))
        noisy = sums[:, :1] + scale[:, None] * rng.laplace(size=(trials, 1))
        return _trials(truth, sums[:, :1], values, noisy, scale, lower, upper)
    values = totals + scale[:, None] * rng.laplace(size=totals.shape)
    return _trials(truth, totals, values, values, scale, nothing, nothing)


def _trials(*columns: np.ndarray) -> Trials:
    return Trials(*map(jnp.asarray, columns))


def kernel_of(
    name: Name, value: Array, scale: Array, n: Array, lower: Array, upper: Array, *, moves: int, clt: Clt
) -> StatisticsKernel:
    """The sampler of one trial, all of whose numbers are data."""
    model = MODELS[name]
    form = exponential_form(model)
    assert form is not None
    law: StatisticLaw
    if name == "exponential":
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
            independent=clt == "independent",
        )
    else:
        law = SupportLaw(jnp.eye(form.size), jnp.zeros(form.size), form)
    noise = NoiseShape(jnp.broadcast_to(scale, value.shape), jnp.ones(value.shape, dtype=bool))
    return StatisticsKernel(model, law, value, noise, n, None, moves)


@eqx.filter_jit
def run_trials(
    key: Key, data: Trials, n: Array, draws: Array, tune: Array, name: Name, moves: int, clt: Clt
) -> tuple[Array, Array, Array]:
    """For each trial the share of draws below the truth, 200 draws evenly spaced in the run, and whether all were possible."""

    def first(theta: dict[str, Array]) -> Array:
        return jnp.reshape(theta[PARAMETER[name]], (-1,))[0]

    def one(
        key: Key, value: Array, scale: Array, lower: Array, upper: Array, truth: Array
    ) -> tuple[Array, Array, Array]:
        kernel = kernel_of(name, value, scale, n, lower, upper, moves=moves, clt=clt)
        start, begin, chain = jax.random.split(key, 3)
        state = kernel.init(begin, kernel.model.sample_prior(start))

        def step(i: Array, carry: Any) -> Any:
            state, below, kept, found = carry
            state, info = kernel.step(jax.random.fold_in(chain, i), state)
            state = jax.tree.map(lambda new, old: jnp.where(i < tune, new, old), kernel.adapt(state, info), state)
            at = i - tune
            now = first(kernel.theta(state))
            below = below + jnp.where((at >= 0) & (now < truth), 1.0, 0.0)
            slot = jnp.where(at >= 0, at * _KEPT // draws, 0)
            kept = kept.at[slot].set(now)
            return state, below, kept, jnp.minimum(found, info.stats["min_found"])

        begun = (state, jnp.zeros(()), jnp.zeros(_KEPT), jnp.ones(()))
        _, below, kept, found = jax.lax.fori_loop(0, tune + draws, step, begun)
        return below / draws, kept, found > 0

    keys = jax.random.split(key, data.values.shape[0])
    return jax.vmap(one)(keys, data.values, data.scale, data.lower, data.upper, data.truth)


def ranks_by_quadrature(n: int, epsilon: float, *, trials: int = 1000, random_seed: int = 0) -> np.ndarray:
    """Ranks of the exponential model with bounds fixed in advance, each by quadrature of the normal model's likelihood."""
    seed = np.random.SeedSequence([random_seed, 2, round(1e6 * epsilon), n])
    data = simulate("exponential", n, epsilon, trials, seed, "fixed")
    return np.asarray(_quadrature(data, jnp.asarray(float(n))))


@eqx.filter_jit
def _quadrature(data: Trials, n: Array) -> Array:
    grid = jnp.linspace(math.log(0.02), math.log(40.0), _NODES)
    model = MODELS["exponential"]
    kernel = kernel_of(
        "exponential", data.values[0], data.scale[0], n, data.lower[0], data.upper[0], moves=0, clt="joint"
    )
    means, covariances = jax.vmap(lambda z: kernel.law.moments(model.constrain(z[None])))(grid)
    prior = jax.vmap(lambda z: model.log_prior_free(z[None]))(grid)

    def one(value: Array, scale: Array, truth: Array) -> Array:
        log_density = prior + log_normal_laplace(value[0] - n * means[:, 1], n * covariances[:, 1, 1], scale)
        density = jnp.exp(log_density - jnp.max(log_density))
        mass = jnp.concatenate([jnp.zeros(1), jnp.cumsum(0.5 * (density[1:] + density[:-1]))])
        return jnp.interp(jnp.log(truth), grid, mass / mass[-1])

    return jax.vmap(one)(data.values, data.scale, data.truth)


def _cell(
    name: Name,
    epsilon: float,
    n: int,
    seed: np.random.SeedSequence,
    trials: int,
    draws: int,
    tune: int,
    moves: int,
    bounds: Bounds,
    clt: Clt,
    *,
    baselines: bool,
) -> list[Cell]:
    data = simulate(name, n, epsilon, trials, seed, bounds)
    word = int(seed.generate_state(1)[0])
    ranks, kept, found = run_trials(
        jax.random.key(word), data, jnp.asarray(float(n)), jnp.asarray(draws), jnp.asarray(tune), name, moves, clt
    )
    if not np.all(np.asarray(found)):
        raise ValueError(
            f"{int(np.sum(~np.asarray(found)))} trials ({name}, epsilon={epsilon}, n={n}) ran out of possible totals."
        )
    found_draws = {"gibbs": np.asarray(kept)}
    cells = {"gibbs": np.asarray(ranks)}
    if baselines:
        truth, totals = np.asarray(data.truth), np.asarray(data.totals)
        found_draws["non-private"] = _exact(name, totals, n, word + 1)
        found_draws["naive"] = _exact(name, _nearest(name, np.asarray(data.noisy_totals), n), n, word + 2)
        if name == "binomial":
            found_draws["ops"] = one_posterior_sampling(
                Bernoulli(),
                totals[:, 0],
                n,
                epsilon=epsilon,
                truncate=_OPS_TRUNCATION,
                draws=_OPS_DRAWS,
                random_seed=word,
            )
        cells |= {k: np.mean(v < truth[:, None], axis=1) for k, v in found_draws.items() if k != "gibbs"}
    reference = found_draws.get("non-private")
    return [
        Cell(name, epsilon, n, method, rank, _discrepancy(found_draws[method], reference, method))
        for method, rank in cells.items()
    ]


def _discrepancy(draws: np.ndarray, reference: np.ndarray | None, method: str) -> np.ndarray | None:
    if reference is None or method == "non-private":
        return None
    return mmd_squared(draws, reference[:, : draws.shape[1]])


def _exact(name: Name, totals: np.ndarray, n: int, seed: int) -> np.ndarray:
    found = posterior_given_totals(MODELS[name], totals, n, draws=_KEPT, random_seed=seed)[PARAMETER[name]]
    return found[..., 0] if found.ndim == 3 else found


def _nearest(name: Name, totals: np.ndarray, n: int) -> np.ndarray:
    if name == "binomial":
        return np.clip(totals, 0.0, float(n))
    return np.maximum(totals, 0.0)


def table(cells: Sequence[Cell]) -> str:
    """The study as a Markdown table: distances with their 95% band, discrepancies with their standard errors."""
    lines = [
        "| model | epsilon | n | method | KS distance | 95% band | MMD^2 (s.e.) |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        found = cell.discrepancies
        shown = "" if found is None else f"{np.mean(found):.2e} ({np.std(found, ddof=1) / math.sqrt(len(found)):.0e})"
        lines.append(
            f"| {cell.model} | {cell.epsilon:g} | {cell.n:,} | {cell.method} | {cell.distance:.3f} | {cell.band:.3f} | {shown} |"
        )
    return "\n".join(lines)
