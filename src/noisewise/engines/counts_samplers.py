"""Samplers of the counts engine: backward through the sums for counts, then probabilities from their Dirichlet laws."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from noisewise.engines.base import Draw, Exact, Sampler
from noisewise.engines.counts_cells import Cells, Unsupported
from noisewise.engines.counts_draws import log_gammas, search
from noisewise.engines.counts_windows import Chain, Window, envelopes, padded, split_window
from noisewise.release.document import Release
from noisewise.typing import Key

_MOST_BYTES = 2**30


class Published(eqx.Module):
    """The release with the place of each released number among the cells, to look at draws of the counts with."""

    release: Release
    cell: Int[Array, " size"]
    offset: Float[Array, " size"]
    slope: Float[Array, " size"]

    def __init__(self, release: Release, cells: Cells) -> None:
        self.release = release
        self.cell, self.offset, self.slope = (
            jnp.asarray(cells.cell),
            jnp.asarray(cells.offset),
            jnp.asarray(cells.slope),
        )

    def describe(self, key: Key, counts: Float[Array, " cells"], n: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """The log density of the noise and a simulated release, given the counts of all cells and of the records."""
        total = self.offset * n + self.slope * counts[self.cell]
        simulated = self.release.simulate(key, total)
        return {"noise_lp": self.release.log_density(total)}, dict(zip(self.release.names, simulated, strict=True))


class Dirichlets(eqx.Module):
    """What is drawn once the counts are there: probabilities by table, and what is reported beside them.

    ``binary`` asks for the second probability of a single table alone, ``sized`` for the number of records. Tables of ``unseen``
    were not measured and come as zeros; where the counts are those of some of the records, all of them are ``records``.
    """

    weights: Float[Array, " cells"]
    known: Exact
    published: Published | None
    names: tuple[str, ...] = eqx.field(static=True)
    binary: bool = eqx.field(static=True, default=False)
    sized: bool = eqx.field(static=True, default=False)
    unseen: tuple[int, ...] = eqx.field(static=True, default=())
    records: Int[Array, ""] | None = None

    def draw(self, key: Key, tables: Sequence[Array], n: Array) -> Draw:
        """Theta given the counts (float or int) of every table in the order of the names."""
        theta_key, noise_key = jax.random.split(key)
        counts = jnp.concatenate([table.reshape(-1) for table in tables]).astype(float)
        log_draws = log_gammas(theta_key, self.weights + counts)
        theta, within, at = {}, {}, 0
        for k, (name, table) in enumerate(zip(self.names, tables, strict=True)):
            here = slice(at, at + table.size)
            theta[name] = jax.nn.softmax(log_draws[here].reshape(table.shape), axis=-1)
            others = jnp.zeros(()) if self.records is None else self.records - jnp.sum(table)
            more = tables[0][..., None] if k in self.unseen else others
            within[name] = dirichlet_variance(self.weights[here].reshape(table.shape) + table, more)
            at += table.size
        if self.binary:
            theta, within = {"p": theta["p"][1]}, {"p": within["p"][1]}
        if self.sized:
            theta["n"], within["n"] = n.astype(float), jnp.zeros(())
        described = ({}, {}) if self.published is None else self.published.describe(noise_key, counts, n)
        return Draw(theta, *described, within)


def dirichlet_variance(weights: Float[Array, "*rows levels"], more: Array) -> Float[Array, "*rows levels"]:
    """Variances of Dirichlet probabilities, and what is expected of them after ``more`` records.

    ``Var(p_k) = m_k (1 - m_k) / (a + 1)`` with a the sum of the weights and ``m_k = a_k / a``; ``Var(p_k)`` less the variance of the
    Dirichlet-multinomial mean is ``a / (a + more)`` of it.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    mean = weights / total
    return mean * (1 - mean) / (total + 1) * total / (total + more)


class TableSampler(Sampler):
    """Draws by whole tables: the number of records, classes (or levels), then the levels of each feature within each class.

    ``sizes`` is the cumulative law of the number of records from ``least`` on (one entry where it is known).
    ``outer[j - 1, t, c]`` is the cumulative law of the count of class j given that classes 0..j have t together. Features
    with the same number of levels are stacked, ``inner[g][j - 1, (k, i), t, c]`` being the same for level j within class i
    of the k-th feature of the group. A model of one column has no ``inner``.
    """

    sizes: Float[Array, " sizes"]
    least: Int[Array, ""]
    outer: Float[Array, "splits total count"]
    inner: tuple[Float[Array, "splits rows total count"], ...]
    rest: Dirichlets
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def draw(self, key: Key) -> Draw:
        rest_key, size_key, outer_key, *inner_keys = jax.random.split(key, len(self.inner) + 3)
        n = self.least + search(self.sizes, (), jax.random.uniform(size_key, (), dtype=float))
        top = _backward(outer_key, self.outer[:, None], n[None])[0]
        tables = {0: top}
        for group, table_key, splits in zip(self.groups, inner_keys, self.inner, strict=True):
            rows = _backward(table_key, splits, jnp.tile(top, len(group)))
            tables |= dict(zip(group, rows.reshape(len(group), top.size, -1), strict=True))
        return self.rest.draw(rest_key, [tables[k] for k in sorted(tables)], n)

    def exact(self) -> Exact:
        return self.rest.known


def _backward(key: Key, splits: Float[Array, "splits rows total count"], totals: Array) -> Array:
    """Counts of rows with the given totals, drawn from the last factor to the first; axes (row, factor)."""
    rows = jnp.arange(splits.shape[1])
    uniforms = jax.random.uniform(key, splits.shape[:2], dtype=float)

    def split(left: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        j, u = step
        count = search(splits, (jnp.broadcast_to(j, rows.shape), rows, left), u)
        return left - count, count

    first, counts = jax.lax.scan(split, totals, (jnp.arange(splits.shape[0]), uniforms), reverse=True)
    return jnp.concatenate([first[None], counts]).T


class Splits(eqx.Module):
    """The tables by which the total of a chain of windows is split over its cells, from the last to the first."""

    first: Int[Array, " others"]
    mass: Float[Array, "others width"]
    high: Float[Array, "others blocks"]
    before_first: Int[Array, " others"]
    before: Float[Array, "others width"]
    reach: Float[Array, "others longer"]

    def __call__(self, key: Key, total: Int[Array, ""]) -> Int[Array, " cells"]:
        def split(left: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
            key, *tables = step
            count = split_window(key, left, *tables)
            return left - count, count

        tables = (self.first, self.mass, self.high, self.before_first, self.before, self.reach)
        keys = jax.random.split(key, self.first.shape[0])
        first, counts = jax.lax.scan(split, total, (keys, *tables), reverse=True)
        return jnp.concatenate([first[None], counts])


def splits_of(chains: Sequence[Chain]) -> list[Splits]:
    """The tables of chains with the same number of cells, padded to the same widths."""
    width = _power(max(window.mass.size for chain in chains for window in chain.windows))
    before_width = _power(max(window.mass.size for chain in chains for window in chain.prefix))
    if 8 * sum(len(chain.windows) for chain in chains) * (2 * before_width + width) > _MOST_BYTES:
        raise Unsupported("the noise is so wide that the tables to draw from would not fit into memory")
    return [_splits(chain, width, before_width) for chain in chains]


def _power(size: int) -> int:
    return 1 << max(9, (size - 1).bit_length())


def _splits(chain: Chain, width: int, before_width: int) -> Splits:
    steps = list(zip(chain.windows[1:], chain.prefix[:-1], strict=True))
    bounds = [envelopes(window, before, width, before_width) for window, before in steps]

    def stacked(parts: list[np.ndarray], length: int) -> Array:
        return jnp.asarray(np.stack(parts) if parts else np.zeros((0, length)))

    return Splits(
        first=jnp.asarray([window.first for window, _ in steps], dtype=int),
        mass=stacked([padded(window, width) for window, _ in steps], width),
        high=stacked([high for high, _ in bounds], 1),
        before_first=jnp.asarray([before.first for _, before in steps], dtype=int),
        before=stacked([padded(before, before_width) for _, before in steps], before_width),
        reach=stacked([reach for _, reach in bounds], 1),
    )


class Totals(eqx.Module):
    """The cumulative law of a total, to draw it from."""

    low: Int[Array, ""]
    cumulative: Float[Array, " width"]

    def __init__(self, law: Window) -> None:
        cumulative = np.cumsum(padded(law, _power(law.mass.size)))
        # a draw below one must find a count of positive mass: the law reaches one where its mass ends
        self.cumulative = jnp.asarray(np.where(cumulative >= cumulative[-1], 1.0, cumulative / cumulative[-1]))
        self.low = jnp.asarray(law.first)

    def __call__(self, key: Key) -> Int[Array, ""]:
        return self.low + search(self.cumulative, (), jax.random.uniform(key, (), dtype=float))


class WindowSampler(Sampler):
    """Draws of one column's counts by windows: what the cells of a chain have together, then cell by cell.

    With ``n`` given one more cell takes the remainder. ``order`` puts the cells into the model's order.
    """

    totals: Totals
    splits: Splits
    order: Int[Array, " cells"]
    n: Int[Array, ""] | None
    rest: Dirichlets

    def draw(self, key: Key) -> Draw:
        rest_key, total_key, split_key = jax.random.split(key, 3)
        total = self.totals(total_key)
        found = self.splits(split_key, total)
        if self.n is not None:
            found = jnp.concatenate([found, (self.n - total)[None]])
        return self.rest.draw(rest_key, [found[self.order]], total if self.n is None else self.n)

    def exact(self) -> Exact:
        return self.rest.known


class NestedSampler(Sampler):
    """Draws of naive Bayes tables by windows: the classes, then the levels of each feature within each class.

    ``inner[g]`` holds the tables of the chains of a group of features with the same number of levels, one a (feature, class).
    Features in no group were not measured; their counts are taken as zero, which draws them from their prior.
    """

    totals: Totals
    splits: Splits
    order: Int[Array, " classes"]
    n: Int[Array, ""]
    inner: tuple[Splits, ...]
    rest: Dirichlets
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    features: tuple[int, ...] = eqx.field(static=True)

    def draw(self, key: Key) -> Draw:
        rest_key, total_key, split_key, *inner_keys = jax.random.split(key, len(self.inner) + 3)
        total = self.totals(total_key)
        top = jnp.concatenate([self.splits(split_key, total), (self.n - total)[None]])[self.order]
        tables = {0: top}
        tables |= {k: jnp.zeros((top.size, size)) for k, size in enumerate(self.features, start=1)}
        for group, table_key, splits in zip(self.groups, inner_keys, self.inner, strict=True):
            keys = jax.random.split(table_key, len(group) * top.size)
            rows = jax.vmap(lambda splits, key, total: splits(key, total))(splits, keys, jnp.tile(top, len(group)))
            tables |= dict(zip(group, rows.reshape(len(group), top.size, -1), strict=True))
        return self.rest.draw(rest_key, [tables[k] for k in sorted(tables)], self.n)

    def exact(self) -> Exact:
        return self.rest.known
