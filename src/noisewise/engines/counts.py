r"""The counts engine: exact independent draws when a release looks at the records through counts alone.

Target: ``p(theta, c | s) ∝ p(theta) p(c | theta) prod_j L_j(c_j)``, c the counts of cells, ``L_j`` the density of what was
released of cell j. Records are independent given theta and theta has Dirichlet priors, so theta integrates out and the
counts are summed exactly (see :mod:`noisewise.engines.counts_cells` for the factors and
:mod:`noisewise.engines.counts_tables`, :mod:`noisewise.engines.counts_windows` for the sums). A draw goes backward through
the sums, counts first, and then takes the probabilities from their Dirichlet laws: no Markov chain, no latent records.

| model | release | sums |
|---|---|---|
| ``Bernoulli`` | any sums and tables of the column | one, over the number of ones |
| ``Categorical`` | tables, or sums that look at single levels | a chain over the levels |
| ``NaiveBayes`` | tables of the target, alone or with one feature | a chain over levels in each class and feature, one over classes |

Checked against the enumeration of every database by
``tests/engines/test_counts.py::test_counts_engine_matches_enumeration_of_every_database``.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from noisewise.engines.base import Draw, Engine, Exact, Sampler, Support
from noisewise.engines.counts_cells import Cells, Unsupported, known_n, log_rising, multinomial_cells, naive_bayes_cells
from noisewise.engines.counts_draws import log_gammas, search
from noisewise.engines.counts_tables import marginals, solve_chain
from noisewise.engines.counts_windows import Remainder, envelopes, padded, solve_remainder, split_window
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

_TABLE_ENTRIES = 2**23
_WHOLE = 256
_MOST_ENTRIES = 2**25
_WIDEST = 2**21


class Counts(Engine):
    """Exact sums over the counts behind a release, and independent draws by them.

    >>> import noisewise as nw
    >>> from noisewise.engines.counts import Counts
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(1.0), [7, 3])], n=10)
    >>> sampler = Counts().build(nw.models.Bernoulli(), release, None)
    >>> round(float(sampler.exact().means["p"]), 4)
    0.3334
    """

    name: ClassVar[str] = "counts"
    exact: ClassVar[bool] = True

    def supports(self, model: Model, release: Release) -> Support:
        try:
            if isinstance(model, Bernoulli | Categorical):
                _check_windows(multinomial_cells(model, release), known_n(release))
            elif isinstance(model, NaiveBayes):
                naive_bayes_cells(model, release)
                _check_tables(model, known_n(release))
            else:
                raise Unsupported(
                    f"{type(model).__name__} is not a model of counts (Bernoulli, Categorical, NaiveBayes)"
                )
        except Unsupported as reason:
            return Support(False, str(reason))
        return Support(
            True,
            "the release looks at the records through counts with noise independent over cells, so every database is "
            "summed exactly and draws are independent",
            "milliseconds, then microseconds a draw",
        )

    def build(self, model: Model, release: Release, key: Key) -> Sampler:
        if isinstance(model, NaiveBayes):
            cells, where = naive_bayes_cells(model, release)
            return _naive_bayes(model, release, cells, where)
        if isinstance(model, Bernoulli | Categorical):
            return _multinomial(model, release, multinomial_cells(model, release))
        raise Unsupported(self.supports(model, release).reason)


def _check_windows(cells: Cells, n: int) -> None:
    scales = [layer.noise.scale[layer.slope != 0] / np.abs(layer.slope[layer.slope != 0]) for layer in cells.layers]
    scale = max((float(np.max(some)) for some in scales), default=0.0)
    width = min(n + 1.0, 100 * scale) * (cells.weights.size - 1)
    if width > _WIDEST:
        raise Unsupported(f"the noise is so wide that the sums would run over some {width:.1g} counts")


def _check_tables(model: NaiveBayes, n: int) -> None:
    entries = model.classes * sum(size - 1 for size in model.features) * (n + 1.0) ** 2
    if entries > _MOST_ENTRIES:
        raise Unsupported(f"n={n} is too large for whole tables of naive Bayes counts ({entries:.1g} entries)")


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

    def describe(self, key: Key, counts: Float[Array, " cells"]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The log density of the noise and a simulated release, given the counts of all cells."""
        total = self.offset + self.slope * counts[self.cell]
        simulated = self.release.simulate(key, total)
        return {"noise_lp": self.release.log_density(total)}, dict(zip(self.release.names, simulated, strict=True))


class TableSampler(Sampler):
    """Draws by whole tables: classes (or levels) first, then the levels of each feature within each class.

    ``outer[j - 1, t, c]`` is the cumulative law of the count of class j given that classes 0..j have t together. Features
    with the same number of levels are stacked, ``inner[g][j - 1, (k, i), t, c]`` being the same for level j within class i
    of the k-th feature of the group. A model of one column has no ``inner``.
    """

    outer: Float[Array, "splits total count"]
    inner: tuple[Float[Array, "splits rows total count"], ...]
    weights: Float[Array, " cells"]
    known: Exact
    published: Published
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def draw(self, key: Key) -> Draw:
        n = self.outer.shape[-1] - 1
        theta_key, noise_key, outer_key, *inner_keys = jax.random.split(key, len(self.inner) + 3)
        top = _backward(outer_key, self.outer[:, None], jnp.array([n]))[0]
        tables = {0: top}
        for group, table_key, splits in zip(self.groups, inner_keys, self.inner, strict=True):
            rows = _backward(table_key, splits, jnp.tile(top, len(group)))
            tables |= dict(zip(group, rows.reshape(len(group), top.size, -1), strict=True))
        return dirichlet_draw(theta_key, noise_key, [tables[k] for k in sorted(tables)], self)

    def exact(self) -> Exact:
        return self.known


def dirichlet_draw(theta_key: Key, noise_key: Key, tables: list[Array], sampler: TableSampler | WindowSampler) -> Draw:
    """The probabilities given the counts, with what is reported beside them."""
    counts = jnp.concatenate([table.reshape(-1) for table in tables]).astype(float)
    log_draws = log_gammas(theta_key, sampler.weights + counts)
    theta, at = {}, 0
    for name, table in zip(sampler.names, tables, strict=True):
        theta[name] = jax.nn.softmax(log_draws[at : at + table.size].reshape(table.shape), axis=-1)
        at += table.size
    if sampler.known.means.keys() == {"p"} and sampler.known.means["p"].ndim == 0:
        theta = {"p": theta["p"][1]}
    return Draw(theta, *sampler.published.describe(noise_key, counts))


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


class WindowSampler(Sampler):
    """Draws of one column's counts by windows: what all cells but one have together, then cell by cell."""

    low: Int[Array, ""]
    cumulative: Float[Array, " total"]
    first: Int[Array, " others"]
    mass: Float[Array, "others width"]
    high: Float[Array, "others blocks"]
    before_first: Int[Array, " others"]
    before: Float[Array, "others width"]
    reach: Float[Array, "others longer"]
    order: Int[Array, " cells"]
    n: Int[Array, ""]
    weights: Float[Array, " cells"]
    known: Exact
    published: Published
    names: tuple[str, ...] = eqx.field(static=True, default=("p",))

    def draw(self, key: Key) -> Draw:
        theta_key, noise_key, total_key, key = jax.random.split(key, 4)
        total = self.low + search(self.cumulative, (), jax.random.uniform(total_key, (), dtype=float))

        def split(left: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
            key, *tables = step
            count = split_window(key, left, *tables)
            return left - count, count

        tables = (self.first, self.mass, self.high, self.before_first, self.before, self.reach)
        keys = jax.random.split(key, self.first.shape[0])
        first, counts = jax.lax.scan(split, total, (keys, *tables), reverse=True)
        found = jnp.concatenate([first[None], counts, (self.n - total)[None]])
        return dirichlet_draw(theta_key, noise_key, [found[self.order]], self)

    def exact(self) -> Exact:
        return self.known


def _multinomial(model: Bernoulli | Categorical, release: Release, cells: Cells) -> Sampler:
    n = known_n(release)
    size = cells.weights.size
    whole = n <= _WHOLE and (size - 1) * (n + 1) ** 2 <= _TABLE_ENTRIES
    if whole:
        chain = solve_chain(cells.log_factors(np.broadcast_to(np.arange(n + 1.0), (size, n + 1))))
        log_total, counted, varied = _possible(chain.log_total[n]), chain.means[:, n], chain.variances[:, n]
    else:
        sums = solve_remainder(cells, n)
        log_total, counted, varied = sums.log_total, sums.means, sums.variances
    log_marginal = log_total - float(log_rising(n, cells.weights.sum())) + cells.constant
    mean, sd = _probabilities(counted, varied, cells.weights, n)
    if isinstance(model, Bernoulli):
        mean, sd = mean[1], sd[1]
    known = Exact({"p": jnp.asarray(mean)}, {"p": jnp.asarray(sd)}, float(log_marginal))
    published, weights = Published(release, cells), jnp.asarray(cells.weights)
    if whole:
        return TableSampler(jnp.asarray(chain.splits), (), weights, known, published, (), ("p",))
    return _window_sampler(sums, n, weights, known, published)


def _window_sampler(sums: Remainder, n: int, weights: Array, known: Exact, published: Published) -> WindowSampler:
    width, before_width = (
        1 << max(9, (max(window.mass.size for window in some) - 1).bit_length()) for some in (sums.windows, sums.prefix)
    )
    steps = list(zip(sums.windows[1:], sums.prefix[:-1], strict=True))
    bounds = [envelopes(window, before, width, before_width) for window, before in steps]

    def stacked(parts: list[np.ndarray], length: int) -> Array:
        return jnp.asarray(np.stack(parts) if parts else np.zeros((0, length)))

    cumulative = np.cumsum(padded(sums.total, before_width))
    cumulative = np.where(cumulative >= cumulative[-1], 1.0, cumulative / cumulative[-1])
    others = [k for k in range(weights.shape[0]) if k != sums.cell]
    return WindowSampler(
        low=jnp.asarray(sums.total.first),
        cumulative=jnp.asarray(cumulative),
        first=jnp.asarray([window.first for window, _ in steps], dtype=int),
        mass=stacked([padded(window, width) for window, _ in steps], width),
        high=stacked([high for high, _ in bounds], 1),
        before_first=jnp.asarray([before.first for _, before in steps], dtype=int),
        before=stacked([padded(before, before_width) for _, before in steps], before_width),
        reach=stacked([reach for _, reach in bounds], before_width),
        order=jnp.asarray(np.argsort([*others, sums.cell])),
        n=jnp.asarray(n),
        weights=weights,
        known=known,
        published=published,
    )


def _naive_bayes(model: NaiveBayes, release: Release, cells: Cells, where: list[np.ndarray]) -> Sampler:
    n = known_n(release)
    counts = np.arange(n + 1.0)
    log_factors = cells.log_factors(np.broadcast_to(counts, (cells.weights.size, n + 1)))
    chains = [solve_chain(log_factors[cell]) for cell in where[1:]]
    log_classes = log_factors[where[0]].copy()
    for cell, chain in zip(where[1:], chains, strict=True):
        log_classes += chain.log_total - log_rising(counts, cells.weights[cell].sum(axis=-1)[:, None])
    top = solve_chain(log_classes)
    log_marginal = _possible(top.log_total[n]) - log_rising(n, cells.weights[where[0]].sum()) + cells.constant
    laws = marginals(log_classes, n)
    mean, sd = _probabilities(top.means[:, n], top.variances[:, n], cells.weights[where[0]], n)
    means: Theta = {"class_probs": jnp.asarray(mean)}
    sds: Theta = {"class_probs": jnp.asarray(sd)}
    for k, (cell, chain) in enumerate(zip(where[1:], chains, strict=True), start=1):
        mean, sd = _probabilities_within(chain.means, chain.variances, cells.weights[cell], counts, laws)
        means[f"feature_probs_{k}"], sds[f"feature_probs_{k}"] = jnp.asarray(mean), jnp.asarray(sd)
    groups = tuple(
        tuple(k for k, levels in enumerate(model.features, start=1) if levels == size)
        for size in sorted(set(model.features))
    )
    inner = tuple(jnp.asarray(np.concatenate([chains[k - 1].splits for k in group], axis=1)) for group in groups)
    known = Exact(means, sds, float(log_marginal))
    return TableSampler(
        jnp.asarray(top.splits),
        inner,
        jnp.asarray(cells.weights),
        known,
        Published(release, cells),
        groups,
        tuple(means),
    )


def _possible(log_total: float) -> float:
    if not np.isfinite(log_total):
        raise ValueError("The released counts are impossible under the model; check the values, the noise law and n.")
    return float(log_total)


def _probabilities(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, total: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of Dirichlet probabilities from the moments of the counts, which have a fixed total."""
    whole = total + weights.sum()
    centre = (mean + weights) / whole
    # E p(1-p) under the Dirichlet, plus the variance of the conditional mean
    spread = (centre * (1 - centre) - variance / whole**2) / (whole + 1) + variance / whole**2
    return centre, np.sqrt(spread)


def _probabilities_within(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, totals: np.ndarray, laws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same when the total is itself uncertain: moments (class, level, total), laws of the totals (class, total)."""
    whole = totals + weights.sum(axis=-1)[:, None, None]
    given = (mean + weights[..., None]) / whole
    centre = np.sum(laws[:, None, :] * given, axis=-1)
    within = (given * (1 - given) - variance / whole**2) / (whole + 1) + variance / whole**2
    between = (given - centre[..., None]) ** 2
    return centre, np.sqrt(np.sum(laws[:, None, :] * (within + between), axis=-1))
