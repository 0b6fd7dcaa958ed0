"""The private run itself: charge the budget, then one compiled programme over iterations and chains; only draws leave.

Random numbers. Outside ``testing`` there is no seed: every iteration of every chain has its own 64-bit key of the
operating system's generator, expanded by JAX's threefry. Under ``testing=True`` a seed is allowed, nothing is private,
and the run also reports what must never leave: clip fractions, unnoised ratios, released values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, UInt32

import noisewise
from noisewise.private.accounting import checked_whole
from noisewise.private.barker import Barker
from noisewise.private.ledger import describe
from noisewise.private.minibatch import MinibatchPenalty
from noisewise.private.plan import Method, Plan
from noisewise.private.records import Stream, Table, as_column, as_numbers, checked_finite, make_table
from noisewise.private.target import Target, as_target
from noisewise.release.tables import column_names
from noisewise.settings import check_seed
from noisewise.typing import Records

CHUNK = 256
RANDOM = "threefry2x32"
"""The generator that expands a key, whatever JAX's default was set to."""
KeyData: TypeAlias = UInt32[np.ndarray, "steps chains 2"]
KeySource: TypeAlias = Callable[[int, int, int], KeyData]


def sample(
    target: Any,
    records: Mapping[str, Any] | np.ndarray | Array | Stream,
    plan: Plan,
    *,
    initvals: Mapping[str, Any] | None = None,
    chains: int = 1,
    discard: float = 0.5,
    testing: bool = False,
    random_seed: int | None = None,
    devices: Sequence[Any] | None = None,
) -> xr.DataTree:
    """A differentially private posterior sample: runs the plan on the records and charges its budget.

    ``records`` are columns by name (a dict of arrays, a data frame), a bare array where the target reads one column, or a
    :class:`~noisewise.private.Stream`, which reads them from disk. The chains share the plan's iterations. ``initvals`` (by
    name, one value or one for each chain) must not come from the records; the default is the target's own starting point.
    The first ``discard`` of each chain is dropped. ``devices`` spreads the records over JAX devices. Returns a DataTree with
    groups ``posterior`` and ``sample_stats`` and, as root attributes, the guarantee and whether the chains agree.

    The records are checked and the programme is compiled first, so that a target that does not fit its records costs nothing (what
    such a check says is for the data holder alone); then the budget is charged, then the first record enters a sum: an interrupted run
    has spent its share.

    >>> import numpy as np
    >>> import noisewise as nw
    >>> records = {"x": np.random.default_rng(1).normal(3.0, 1.0, (2000, 1))}
    >>> target = nw.private.targets.Gaussian(covariance=[[1.0]], prior_variance=100.0)
    >>> budget = nw.private.Budget(epsilon=4.0, delta=1e-5)
    >>> plan = nw.private.plan(nw.private.Penalty(noise=0.5, clip=4.0, proposal=0.02), budget, n=2000)
    >>> dt = nw.private.sample(target, records, plan, initvals={"theta": [2.9]})
    >>> dt.attrs["neighbours"], dt.attrs["delta"]
    ('replace_one', 1e-05)
    """
    if random_seed is not None and not testing:
        raise ValueError(
            "a private run takes no seed: whoever knows it can subtract the noise. Leave random_seed out, or say testing=True on "
            "records that are not confidential."
        )
    if jnp.zeros(()).dtype != jnp.float64:
        raise ValueError(
            "private sampling needs 64-bit numbers, in which sums over records are exact; JAX was switched to 32 bits. "
            'Switch it back with jax.config.update("jax_enable_x64", True).'
        )
    if not isinstance(plan, Plan):
        raise ValueError(f"sample takes a plan made by nw.private.plan(method, budget, n=...); got {plan!r}.")
    if not isinstance(discard, Real) or not 0 <= discard < 1:
        raise ValueError(f"discard must be a number in [0, 1); got {discard!r}.")
    source = os_keys if random_seed is None else seeded_keys(check_seed(random_seed))
    target = as_target(target)
    each = per_chain(plan, chains)
    method = plan.method.ready(target, plan.n)
    table = matched_table(target, records, plan.n, devices)
    start = starting_points(target, initvals, chains)
    rehearse(method, target, table, start, probe=testing)
    refuse_impossible(target, table, start)
    plan.budget.spend(plan.steps(each * chains), plan.accountant)
    draws, stats = run(method, target, table, start, each, source, probe=testing)
    kept = int(discard * each)
    return results(target, draws[:, kept:], {k: v[:, kept:] for k, v in stats.items()}, plan, random_seed, kept)


def rehearse(
    method: Method, target: Target, table: Table | Stream, start: Float[Array, "chains d"], *, probe: bool
) -> None:
    """Compile the run without a single iteration of it: what cannot be evaluated is refused before anything is charged."""
    nothing = jnp.zeros((CHUNK, start.shape[0], 2), np.uint32)
    try:
        advance(method, target, table, jax.vmap(method.init)(start), nothing, jnp.asarray(0), probe)
    except KeyError as error:
        raise ValueError(
            f"the target reads {error}, which is neither one of its columns {list(target.columns)} nor one of its parameters. Name it in "
            "columns=... or initial=..."
        ) from error
    except (TypeError, IndexError) as error:
        raise ValueError(
            f"the target cannot be evaluated on these records: {str(error).splitlines()[0]}. Compare the shapes of the columns with "
            "what its log likelihood reads."
        ) from error


def refuse_impossible(target: Target, table: Table | Stream, start: Float[Array, "chains d"]) -> None:
    """Refuse records that are impossible wherever it was looked: their ratios are no numbers and would count as zero, in silence."""
    lost = int(_impossible(target, table, start))
    if lost:
        elsewhere = " nor at draws from the prior" if jax.eval_shape(target.tries).size else ""
        raise ValueError(
            f"{lost} of the {table.n} records are impossible for the target: their log likelihood is not finite at the starting point"
            f"{elsewhere}. Look for values of {list(target.columns)} outside the support, or start where every record is possible."
        )


@eqx.filter_jit
def _impossible(target: Target, table: Table | Stream, start: Float[Array, "chains d"]) -> Float[Array, ""]:
    points = jnp.concatenate([start[:1], target.tries()])

    def nowhere(records: Records) -> Array:
        there = jax.lax.map(lambda point: jnp.isfinite(target.log_likelihoods(point, records)), points)
        return 1.0 - jnp.any(there, axis=0)

    total: Float[Array, ""] = table.total(nowhere)
    return total


def per_chain(plan: Plan, chains: int) -> int:
    """The iterations of one chain, or a sentence where there is none."""
    chains = checked_whole(chains, "chains")
    if plan.iterations < chains:
        raise ValueError(
            f"{chains} chains share {plan.iterations} iterations, less than one each: run fewer chains, or more noise."
        )
    return plan.iterations // chains


def matched_table(
    target: Target,
    records: Mapping[str, Any] | np.ndarray | Array | Stream | Table,
    n: int,
    devices: Sequence[Any] | None,
) -> Table | Stream:
    """The table of the columns the target reads, with the number of records the plan stated."""
    if isinstance(records, Stream):
        check_names(target, records.source.columns)
        for part in records.blocks():
            target.check({name: checked_finite(part[name], name) for name in target.columns})
    elif isinstance(records, Table):
        check_names(target, records.columns)
    else:
        records = matched_columns(target, records)
    table = make_table(records, devices=devices)
    if table.n != n:
        raise ValueError(f"the plan was made for n = {n} records and there are {table.n}: plan again with the right n.")
    return table


def matched_columns(target: Target, records: Mapping[str, Any] | np.ndarray | Array) -> dict[str, np.ndarray]:
    """The columns the target reads, as finite real numbers of the shapes it wants; an array is the one column there is."""
    if isinstance(records, np.ndarray | jax.Array) and len(target.columns) == 1:
        records = {target.columns[0]: records}
    if not hasattr(records, "keys") and hasattr(records, "columns"):  # a table that is no mapping: polars, Arrow
        table: Any = records
        records = {name: table[name] for name in column_names(table)}
    if isinstance(records, np.ndarray | jax.Array) or not hasattr(records, "keys"):
        raise ValueError(
            f"the records must be columns by name, a dict of arrays or a Stream of them; got {type(records).__name__}. The target reads "
            f"{list(target.columns)}."
        )
    check_names(target, records)
    columns = {name: checked_finite(as_column(records[name], name), name) for name in target.columns}
    target.check(columns)
    return columns


def check_names(target: Target, names: Iterable[str]) -> None:
    """Refuse records without a column the target reads."""
    missing = set(target.columns) - set(names)
    if missing:
        raise ValueError(
            f"the records lack the columns {sorted(missing)} of the target; they have {sorted(map(str, names))}."
        )


def starting_points(target: Target, initvals: Mapping[str, Any] | None, chains: int) -> Float[Array, "chains d"]:
    """One starting vector for each chain, finite and of finite prior density."""
    if initvals is None:
        points = jnp.broadcast_to(target.initial, (chains, target.size))
    else:
        shapes = {name: value.shape for name, value in target.named(target.initial).items()}
        if not hasattr(initvals, "keys"):
            raise ValueError(f"initvals must give a value for each of {sorted(shapes)} by name; got {initvals!r}.")
        if set(shapes) != set(initvals):
            raise ValueError(f"initvals must name {sorted(shapes)}; got {sorted(initvals)}.")
        values = {name: jnp.asarray(as_numbers(initvals[name], f"initvals[{name!r}]")) for name in shapes}
        for name, value in values.items():
            if value.shape not in (shapes[name], (chains, *shapes[name])):
                raise ValueError(
                    f"initvals[{name!r}] has shape {value.shape}; give {shapes[name]}, or {(chains, *shapes[name])} for one each."
                )
        spread = {name: jnp.broadcast_to(value, (chains, *shapes[name])) for name, value in values.items()}
        points = jax.vmap(target.vector)(spread)
    densities = jax.vmap(target.log_prior)(points)
    if densities.shape != (chains,):
        raise ValueError(f"log_prior(theta) must return one number; got shape {densities.shape[1:]}.")
    if not bool(jnp.all(jnp.isfinite(densities))) or not bool(jnp.all(jnp.isfinite(points))):
        raise ValueError(
            "a starting point is not finite or has no finite prior density; choose initvals inside the prior's support."
        )
    return points


def os_keys(first: int, steps: int, chains: int) -> KeyData:
    """Fresh key data from the operating system, for every iteration of every chain."""
    return np.frombuffer(os.urandom(8 * steps * chains), dtype=np.uint32).reshape(steps, chains, 2)


def seeded_keys(seed: int) -> KeySource:
    """Key data of a seed, for tests: a function of seed, chain and iteration alone, whatever the chunks and the other chains."""

    return lambda first, steps, chains: np.asarray(_folded(seed, first + jnp.arange(CHUNK), jnp.arange(chains)))[:steps]


@jax.jit
def _folded(seed: Array, iterations: Array, chains: Array) -> Array:
    def one(iteration: Array, chain: Array) -> Array:
        chosen = jax.random.fold_in(jax.random.key(seed, impl=RANDOM), chain)
        return jax.random.key_data(jax.random.fold_in(chosen, iteration))

    return jax.vmap(lambda iteration: jax.vmap(lambda chain: one(iteration, chain))(chains))(iterations)


@eqx.filter_jit
def advance(
    method: Method,
    target: Target,
    table: Table | Stream,
    state: Any,
    key_data: Int[Array, "chunk chains 2"],
    steps: Int[Array, ""],
    probe: bool,
) -> tuple[Any, Float[Array, "chunk chains d"], dict[str, Array]]:
    """``steps`` iterations of every chain, at most a chunk: one programme for any number of iterations, seed or setting."""

    def one(data: Array, state: Any) -> tuple[Any, dict[str, Array]]:
        return method.step(jax.random.wrap_key_data(data, impl=RANDOM), state, target, table, probe=probe)

    def iterate(index: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, seen = carry
        state, info = jax.vmap(one)(key_data[index], state)
        seen = jax.tree.map(lambda buffer, value: buffer.at[index].set(value), seen, (state.theta, info))
        return state, seen

    shapes = jax.eval_shape(jax.vmap(one), key_data[0], state)
    empty = jax.tree.map(
        lambda leaf: jnp.zeros((key_data.shape[0], *leaf.shape), leaf.dtype), (shapes[0].theta, shapes[1])
    )
    state, (draws, infos) = jax.lax.fori_loop(0, steps, iterate, (state, empty))
    return state, draws, infos


def run(
    method: Method,
    target: Target,
    table: Table | Stream,
    start: Float[Array, "chains d"],
    iterations: int,
    keys: KeySource,
    *,
    probe: bool,
) -> tuple[Float[np.ndarray, "chains draws d"], dict[str, np.ndarray]]:
    """The chains' draws and what was seen of each iteration, ``(chains, iterations, ...)``. Charges nothing: see :func:`sample`."""
    chains = start.shape[0]
    state = jax.vmap(method.init)(start)
    draws: list[np.ndarray] = []
    infos: list[dict[str, np.ndarray]] = []
    for first in range(0, iterations, CHUNK):
        steps = min(CHUNK, iterations - first)
        data = np.zeros((CHUNK, chains, 2), np.uint32)
        data[:steps] = keys(first, steps, chains)
        state, some, info = advance(method, target, table, state, jnp.asarray(data), jnp.asarray(steps), probe)
        draws.append(np.asarray(some[:steps]))
        infos.append({name: np.asarray(value[:steps]) for name, value in info.items()})
    stats = {name: np.swapaxes(np.concatenate([info[name] for info in infos]), 0, 1) for name in infos[0]}
    return np.swapaxes(np.concatenate(draws), 0, 1), stats


def results(
    target: Target,
    draws: Float[np.ndarray, "chains draws d"],
    stats: Mapping[str, np.ndarray],
    plan: Plan,
    seed: int | None,
    discarded: int,
) -> xr.DataTree:
    """The DataTree: the draws under their names, the decisions visible from them, and the guarantee."""
    named = jax.vmap(jax.vmap(target.named))(jnp.asarray(draws))
    chains, kept = draws.shape[:2]
    coords = {"chain": np.arange(chains), "draw": np.arange(kept)}
    groups = {"posterior": named, "sample_stats": stats}
    tree = xr.DataTree.from_dict(
        {
            group: xr.Dataset({k: labelled(k, v) for k, v in some.items()}, coords=coords)
            for group, some in groups.items()
        }
    )
    tree.attrs = guarantee(plan) | {
        "inference_library": "noisewise",
        "inference_library_version": noisewise.__version__,
        "created_at": datetime.now(UTC).isoformat(),
        "noisewise_method": plan.method.name,
        "discarded_draws": discarded,
        **honesty(target, plan),
        **verdict(named),
    }
    if seed is not None:
        tree.attrs["random_seed"] = seed
    return tree


def labelled(name: str, value: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """A variable of shape (chain, draw, ...) with its dimensions named."""
    return ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 2))), np.asarray(value)


def honesty(target: Target, plan: Plan) -> dict[str, Any]:
    """Whether the draws' invariant law is the posterior itself, and why (or why not)."""
    if float(target.temper) != 1:
        return {
            "noisewise_exact": 0,
            "noisewise_reason": f"the likelihood is tempered, to the power {float(target.temper):g}",
        }
    if isinstance(plan.method, MinibatchPenalty | Barker):
        return {"noisewise_exact": 0, "noisewise_reason": "the error of a batch is taken to be normal"}
    clip, bound = getattr(plan.method, "clip", None), target.lipschitz
    if bound is not None and (clip is None or float(clip) >= float(bound)):
        reason = "all records, and no ratio of a record that keeps the declared bounds can meet the clip bound"
        return {"noisewise_exact": 1, "noisewise_reason": reason}
    return {"noisewise_exact": 0, "noisewise_reason": "ratios are clipped per record, and how often is not public"}


def verdict(posterior: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the chains agree: R-hat and effective sample size of what is released anyway, in words and as attributes.

    There is no warning: a private run cannot be lengthened without a larger budget, and most of them are short.
    """
    from noisewise.result import judge

    found = judge({name: np.asarray(value) for name, value in posterior.items()})
    size = f"largest R-hat {found.rhat:.3f}, smallest ESS {found.ess_bulk:,.0f} (bulk), {found.ess_tail:,.0f} (tail)"
    if found.converged:
        said = f"Converged: {size}."
    elif found.chains < 2:
        said = f"Convergence cannot be judged from one chain: {size}. Let 2 chains or more share the iterations."
    else:
        said = (
            f"NOT converged: {size}. A larger budget, steps and noise tuned on synthetic records (nw.private.tune), or one noisy "
            "statistic (nw.private.oneshot, nw.publish) would help; more draws of this plan would break its promise."
        )
    return {"noisewise_converged": int(found.converged), "noisewise_verdict": said}


def guarantee(plan: Plan) -> dict[str, Any]:
    """What the data holder promises, as attributes: (epsilon, delta), the relation, the accountant, and the ledger's total."""
    budget = plan.budget
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "neighbours": budget.neighbours,
        "accountant": plan.accountant,
        "accountant_says": describe(plan.accountant),
        "epsilon_spent": budget.spent_epsilon(plan.accountant),
        "number_of_records": plan.n,
    }
