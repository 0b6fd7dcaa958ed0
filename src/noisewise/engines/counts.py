r"""The counts engine: exact independent draws when a release looks at the records through counts alone.

Target: ``p(theta, c | s) ∝ p(theta) p(c | theta) prod_j L_j(c_j)``, c the counts of cells, ``L_j`` the density of what was
released of cell j. Records are independent given theta and theta has Dirichlet priors, so theta integrates out and the
counts are summed exactly (see :mod:`noisewise.engines.counts_cells` for the factors and
:mod:`noisewise.engines.counts_tables`, :mod:`noisewise.engines.counts_windows` for the sums). A draw goes backward through
the sums, counts first, and then takes the probabilities from their Dirichlet laws: no Markov chain, no latent records.
With :class:`~noisewise.models.unknown_size.UnknownSize` the number of records is one more sum, and drawn first.

| model | release | sums |
|---|---|---|
| ``Bernoulli`` | any sums and tables of the column | one, over the number of ones |
| ``Categorical`` | tables, or sums that look at single levels | a chain over the levels |
| ``Bernoulli``, ``Categorical`` | randomised response of every record | :mod:`noisewise.engines.counts_reports` |
| ``NaiveBayes`` | tables of the target, alone or with one feature | :mod:`noisewise.engines.counts_bayes` |

Checked against the enumeration of every database by
``tests/engines/test_counts.py::test_counts_engine_matches_enumeration_of_every_database``.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from noisewise.engines import counts_bayes
from noisewise.engines.base import Engine, Exact, Sampler, Support
from noisewise.engines.counts_bayes import cumulated, law_of_size, with_size
from noisewise.engines.counts_cells import Cells, Unsupported, known_n, log_rising, multinomial_cells, naive_bayes_cells
from noisewise.engines.counts_moments import given_total, over_totals, over_windows
from noisewise.engines.counts_reports import by_reports, reported
from noisewise.engines.counts_samplers import Dirichlets, Published, TableSampler, Totals, WindowSampler, splits_of
from noisewise.engines.counts_tables import solve_chain
from noisewise.engines.counts_windows import Window, cut, moments, remainder, solve
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.typing import Key

_WHOLE_ENTRIES = 2**23
_WHOLE = 256
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
    independent: ClassVar[bool] = True

    def supports(self, model: Model, release: Release) -> Support:
        try:
            inner, sizes = _records_of(model, release)
            if isinstance(inner, NaiveBayes):
                cells, _ = naive_bayes_cells(inner, release)
                if not counts_bayes.whole_tables_fit(inner, sizes.largest):
                    if sizes.unknown:
                        raise Unsupported(
                            f"{sizes.largest} records are too many for whole tables with an unknown number"
                        )
                    counts_bayes.check_windows(inner, cells, sizes.largest)
            elif isinstance(inner, Bernoulli | Categorical):
                if release.per_record:
                    reported(inner, release)
                else:
                    _check_windows(multinomial_cells(inner, release), sizes.largest)
            else:
                raise Unsupported(
                    f"{type(inner).__name__} is not a model of counts (Bernoulli, Categorical, NaiveBayes)"
                )
        except Unsupported as reason:
            return Support(False, str(reason))
        return Support(
            True,
            "the release looks at the records through counts with noise independent over cells, so every database is "
            "summed exactly and draws are independent",
            "milliseconds to seconds, then microseconds a draw",
        )

    def build(self, model: Model, release: Release, key: Key) -> Sampler:
        inner, sizes = _records_of(model, release)
        if isinstance(inner, NaiveBayes):
            cells, where = naive_bayes_cells(inner, release)
            if counts_bayes.whole_tables_fit(inner, sizes.largest):
                return counts_bayes.by_tables(inner, release, cells, where, sizes.log_prior(cells), sizes.least)
            return counts_bayes.by_windows(inner, release, cells, where, sizes.largest)
        if isinstance(inner, Bernoulli | Categorical):
            if release.per_record:
                return by_reports(inner, release, reported(inner, release))
            return _multinomial(inner, release, multinomial_cells(inner, release), sizes)
        raise Unsupported(self.supports(model, release).reason)


class Sizes:
    """The possible numbers of records: one, or those of a prior."""

    def __init__(self, model: Model, release: Release) -> None:
        self.unknown = isinstance(model, UnknownSize)
        if isinstance(model, UnknownSize):
            if release.n is not None:
                raise Unsupported(f"the model leaves the number of records open, and the release says n={release.n}")
            self.least, self.largest = model.lower, model.upper
            self._weights = np.asarray(model.log_weights)
        else:
            self.least = self.largest = known_n(release)
            self._weights = np.zeros(1)

    def log_prior(self, cells: Cells) -> np.ndarray:
        """The log weight of each size, with what was released of the number of records alone."""
        return self._weights + cells.log_size(np.arange(self.least, self.largest + 1.0))


def _records_of(model: Model, release: Release) -> tuple[Model, Sizes]:
    sizes = Sizes(model, release)
    return (model.model if isinstance(model, UnknownSize) else model), sizes


def _check_windows(cells: Cells, n: int) -> None:
    scales = [layer.noise.scale[layer.slope != 0] / np.abs(layer.slope[layer.slope != 0]) for layer in cells.layers]
    scale = max((float(np.max(some)) for some in scales), default=0.0)
    width = min(n + 1.0, 100 * scale) * (cells.weights.size - 1)
    if width > _WIDEST:
        raise Unsupported(f"the noise is so wide that the sums would run over some {width:.1g} counts")


def _multinomial(model: Bernoulli | Categorical, release: Release, cells: Cells, sizes: Sizes) -> Sampler:
    n, size = sizes.largest, cells.weights.size
    if n <= _WHOLE and (size - 1) * (n + 1) ** 2 <= _WHOLE_ENTRIES:
        return _by_tables(model, release, cells, sizes)
    whole = float(cells.weights.sum())
    if sizes.unknown:
        prior = sizes.log_prior(cells)

        def log_weight(total: np.ndarray) -> np.ndarray:
            possible = (total >= sizes.least) & (total <= n)
            at = np.clip(total - sizes.least, 0, n - sizes.least).astype(int)
            return np.where(possible, prior[at] - log_rising(total, whole), -np.inf)

        sums = solve(cells, np.arange(size), n, log_weight, least=sizes.least)
        share = np.sum(sums.chain.total.mass * sums.message.mass)
        mean, sd = over_windows(sums.chain, Window(sums.message.first, sums.message.mass / share), cells.weights)
        order, log_marginal = list(range(size)), sums.log_total
    else:
        measured = np.any([layer.slope != 0 for layer in cells.layers], axis=0)
        last = int(np.flatnonzero(~measured)[0]) if not np.all(measured) else 0 if size == 2 else size - 1
        others = np.array([k for k in range(size) if k != last])
        sums = solve(cells, others, n, remainder(cells, last, n), last=last)
        counted = np.empty((size, 2))
        counted[others] = [moments(law) for law in sums.laws]
        left = n - sums.law.first - sums.law.mass.size + 1
        counted[last] = moments(Window(left, sums.law.mass[::-1]))
        mean, sd = given_total(counted[:, 0], counted[:, 1], cells.weights, n)
        order = [*others, last]
        log_marginal = sums.log_total - float(log_rising(n, whole)) + float(cells.log_size(n))
    known = _known(model, mean, sd, log_marginal)
    if sizes.unknown:
        law = cut(sums.law, sizes.least, n - sizes.least + 1).mass
        known = with_size(known, law, sizes.least)
    return WindowSampler(
        Totals(sums.law),
        splits_of([sums.chain])[0],
        jnp.asarray(np.argsort(order)),
        None if sizes.unknown else jnp.asarray(n),
        _rest(model, release, cells, known, sizes),
    )


def _by_tables(model: Bernoulli | Categorical, release: Release, cells: Cells, sizes: Sizes) -> Sampler:
    n, size = sizes.largest, cells.weights.size
    counts = np.arange(n + 1.0)
    chain = solve_chain(cells.log_factors(np.broadcast_to(counts, (size, n + 1))))
    log_weight = np.full(n + 1, -np.inf)
    log_weight[sizes.least :] = sizes.log_prior(cells) - log_rising(counts[sizes.least :], cells.weights.sum())
    law, log_marginal = law_of_size(log_weight + chain.log_total, sizes.least)
    share = np.concatenate([np.zeros(sizes.least), law])
    mean, sd = over_totals(chain.means[None], chain.variances[None], cells.weights[None], counts, share[None])
    known = with_size(_known(model, mean[0], sd[0], log_marginal), law, sizes.least)
    return TableSampler(
        jnp.asarray(cumulated(law)),
        jnp.asarray(sizes.least),
        jnp.asarray(chain.splits),
        (),
        _rest(model, release, cells, known, sizes),
        (),
    )


def _known(model: Bernoulli | Categorical, mean: np.ndarray, sd: np.ndarray, log_marginal: float) -> Exact:
    if isinstance(model, Bernoulli):
        mean, sd = mean[1], sd[1]
    return Exact({"p": jnp.asarray(mean)}, {"p": jnp.asarray(sd)}, float(log_marginal))


def _rest(model: Bernoulli | Categorical, release: Release, cells: Cells, known: Exact, sizes: Sizes) -> Dirichlets:
    return Dirichlets(
        jnp.asarray(cells.weights),
        known,
        Published(release, cells),
        ("p",),
        binary=isinstance(model, Bernoulli),
        sized=sizes.unknown,
    )
