r"""Simulation-based calibration of a model and a release design (Talts et al. 2018), with quantities that depend on the data.

Draw theta from the prior, records from the model and a release from its mechanisms; compute the posterior of that release. If the
computation is right, the truth is one more draw from the posterior: the rank of any function ``q(theta, x, s)`` of the truth
among those of L posterior draws is uniform on 0..L. Ranks of theta alone cannot tell a posterior from the prior;
functions of the release too can (Modrák et al. 2023), so ``log p(s | theta)`` and, where the engine imputes records, their total,
their density and the density of the noise are looked at as well. Ties, up to rounding, are broken at random.

:func:`posterior_sbc` asks the same of one release (Säilynoja et al. 2025): theta and records are drawn from the posterior of the
release, the same mechanisms answer once more for those records, and theta is ranked in the posterior of both releases together.

Checked by ``tests/calibration/test_sbc.py``, with samplers that are wrong in known ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats

from noisewise.calibration.replicates import Replicates, replicate
from noisewise.calibration.simulate import TIES, Truths, check_replicates, draw_truths
from noisewise.calibration.uniformity import rank_p_value
from noisewise.engines.base import Engine
from noisewise.engines.choose import choose
from noisewise.inference import sample
from noisewise.models.base import Model
from noisewise.release.document import Measurement, Release
from noisewise.settings import check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Quantity = Callable[[dict[str, Any], dict[str, Any]], Any]

_FEW_EFFECTIVE = 0.5
_CHAINS = 4
_JUDGED = 40
_FIRST, _APART = 500, 10
_SAME = 1e-10
"""Values that are this close (relatively) are tied: truth and draws come from two programs, which round in two ways."""


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth among ``draws`` posterior draws, (replicate, label), with the p-value of each label's being uniform.

    ``effective`` is the median effective sample size of the draws of a replicate: ranks among autocorrelated draws are not
    quite uniform even for a right sampler. ``passed`` is whether the smallest p-value, times the number of labels, is above ``alpha``.
    """

    labels: tuple[str, ...]
    ranks: np.ndarray
    draws: int
    p_values: np.ndarray
    effective: np.ndarray
    alpha: float
    engine: str

    @property
    def p_value(self) -> float:
        """The p-value of all labels together (Bonferroni)."""
        return float(min(1.0, len(self.labels) * np.min(self.p_values)))

    @property
    def passed(self) -> bool:
        """Whether the ranks are compatible with a right posterior."""
        return self.p_value > self.alpha

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        worst = self.labels[int(np.argmin(self.p_values))]
        replicates = f"{len(self.ranks)} replicates, {self.draws} draws each, {self.engine} engine"
        if self.passed:
            said = f"Calibrated as far as can be seen: p = {self.p_value:.2g} over {len(self.labels)} quantities ({replicates})."
        else:
            said = f"NOT calibrated: ranks of {worst} are not uniform, p = {self.p_value:.2g} over all quantities ({replicates})."
        few = self.effective < _FEW_EFFECTIVE * self.draws
        if np.any(few):
            said += (
                f" The draws of {', '.join(self._some(few))} are autocorrelated (median ESS {np.min(self.effective):.0f} of "
                f"{self.draws}), which alone can bend ranks; raise thin."
            )
        return said

    def _some(self, which: np.ndarray) -> list[str]:
        names = [label for label, yes in zip(self.labels, which, strict=True) if yes]
        return names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} others"]

    def to_dict(self) -> dict[str, list[Any]]:
        """The table as columns, for ``pandas.DataFrame``."""
        return {
            "quantity": list(self.labels),
            "mean_rank": list(self.ranks.mean(axis=0) / self.draws),
            "ess": list(self.effective),
            "p_value": list(self.p_values),
        }

    def __str__(self) -> str:
        width = max(12, *(len(label) + 2 for label in self.labels))
        lines = [f"{'quantity':<{width}}{'mean rank':>10}{'ESS':>8}{'p':>10}"]
        for label, mean, ess, p in zip(*self.to_dict().values(), strict=True):
            lines.append(f"{label:<{width}}{mean:>10.3f}{ess:>8.0f}{p:>10.2g}")
        return "\n".join([*lines, self.verdict])

    def plot(self, path: str | Path | None = None, *, level: float = 0.95) -> Figure:
        """The empirical distribution of every label's ranks, less the uniform one, in its simultaneous band; saved if ``path``."""
        from noisewise.calibration.plots import plot_ranks

        return plot_ranks(self.labels, self.ranks, self.draws, self.p_values, path, level=level)


def sbc(
    model: Model,
    release: Release,
    *,
    replicates: int = 200,
    draws: int = 100,
    tune: int = 500,
    thin: int = 10,
    method: str | Engine = "auto",
    quantities: Mapping[str, Quantity] | None = None,
    alpha: float = 0.01,
    random_seed: int | None = None,
    progressbar: bool = False,
) -> Calibration:
    """Check that the posteriors of a model and a release design are right, by the ranks of simulated truths.

    Parameters
    ----------
    model, release
        The model and the design: queries, noise and n count, the released values do not. :func:`simulate` makes a
        release of a design that has no values yet.
    replicates, draws, tune, thin
        Simulated releases; and for each of them draws kept, tuning steps and steps a draw (the latter two for Markov chains).
    method
        The engine, as in :func:`noisewise.sample`.
    quantities
        Further functions of (theta, released values by name), each with one number or an array of them.
    alpha
        How probable a false alarm is.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(2.0), [9, 11])], n=20)
    >>> found = nw.calibration.sbc(nw.models.Bernoulli(), release, random_seed=1)
    >>> found.passed, found.ranks.shape
    (True, (200, 3))
    """
    seed = check_seed(random_seed)
    engine = choose(model, release, method).engine
    check_replicates(replicates)
    _check_alpha(alpha)
    truths = draw_truths(model, release, replicates, seed)
    made = replicate(
        model,
        release,
        engine,
        truths,
        draws=draws,
        tune=tune,
        thin=thin,
        seed=seed,
        progressbar=progressbar,
        extra=quantities,
    )
    return judge_ranks(made, seed, alpha)


def posterior_sbc(
    model: Model,
    release: Release,
    *,
    replicates: int = 200,
    draws: int = 100,
    tune: int = 500,
    thin: int = 10,
    method: str | Engine = "auto",
    alpha: float = 0.01,
    random_seed: int | None = None,
    progressbar: bool = False,
) -> Calibration:
    """Check that the posterior of this very release is right, where it matters: for parameters that the release supports.

    Truths come from the posterior itself, and are ranked in the posterior of the release together with a second answer of the same
    mechanisms to the same imputed records. Arguments as in :func:`sbc`.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(2.0), [3, 18])], n=20)
    >>> nw.calibration.posterior_sbc(nw.models.Bernoulli(), release, random_seed=2).passed
    True
    """
    seed = check_seed(random_seed)
    check_replicates(replicates)
    _check_alpha(alpha)
    twice = _twice(release)
    engine = choose(model, twice, method).engine
    choose(model, release, engine)
    first = sample(
        model,
        release,
        draws=max(_FIRST, _APART * -(-replicates // _CHAINS)),
        tune=max(tune, 1),
        chains=_CHAINS,
        thin=thin,
        method=engine,
        random_seed=seed,
        progressbar=progressbar,
    )
    if "posterior_predictive" not in first.children:
        raise ValueError(
            f"The {engine.name} engine cannot answer once more for the records behind its draws; "
            'use method="augmentation".'
        )

    def spaced(value: Any) -> Any:
        # every tenth draw of all chains in turn
        array = np.swapaxes(np.asarray(value)[:, ::-_APART], 0, 1)
        return jnp.asarray(array.reshape(-1, *array.shape[2:])[:replicates])

    theta = {name: spaced(first["posterior"][name]) for name in model.parameters}
    again = tuple(spaced(first["posterior_predictive"][name]) for name in release.names)
    given = tuple(jnp.broadcast_to(m.value, (replicates, *m.value.shape)) for m in release.measurements)
    made = replicate(
        model,
        twice,
        engine,
        Truths(theta, {}, (*given, *again)),
        draws=draws,
        tune=tune,
        thin=thin,
        seed=seed,
        progressbar=progressbar,
    )
    return judge_ranks(made, seed, alpha)


def _twice(release: Release) -> Release:
    again = [
        Measurement(mechanism=m.mechanism, value=m.published, name=f"{name}_again")
        for name, m in zip(release.names, release.measurements, strict=True)
    ]
    named = [
        Measurement(mechanism=m.mechanism, value=m.published, name=name)
        for name, m in zip(release.names, release.measurements, strict=True)
    ]
    return Release([*named, *again], release.n, neighbours=release.neighbours)


def judge_ranks(made: Replicates, seed: int, alpha: float) -> Calibration:
    """The ranks of replicates and what they say."""
    truth = made.truth[:, None]
    with np.errstate(invalid="ignore"):
        near = np.abs(made.draws - truth) <= _SAME * np.abs(truth)
    tied = near | (made.draws == truth)
    less = np.sum((made.draws < truth) & ~tied, axis=1)
    ties = np.sum(tied, axis=1)
    rng = np.random.default_rng([seed, TIES])
    # one row of uniforms a replicate: a replicate's ranks do not depend on the others
    ranks = less + np.floor(rng.random(less.shape) * (ties + 1)).astype(int)
    largest = made.draws.shape[1]
    p_values = np.array([rank_p_value(column, largest) for column in ranks.T])
    if made.independent:
        effective = np.full(len(made.labels), float(largest))
    else:
        effective = np.array([_effective(made.draws[..., j]) for j in range(len(made.labels))])
    return Calibration(made.labels, ranks, largest, p_values, effective, alpha, made.engine)


def _effective(draws: np.ndarray) -> float:
    """The median effective sample size over some of the replicates, capped at the number of draws."""
    some = draws[:_JUDGED]
    moving = some[np.all(np.isfinite(some), axis=1) & (some != some[:, :1]).any(axis=1)]
    if draws.shape[1] < 4 or not len(moving):
        return float(draws.shape[1])
    each = [float(array_stats.ess(row[None], chain_axis=0, draw_axis=1, method="bulk")) for row in moving]
    return min(float(np.median(each)), float(draws.shape[1]))


def _check_alpha(alpha: float) -> None:
    if isinstance(alpha, bool | str) or not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1; got {alpha!r}.")
