r"""What a release would be worth, before anything is published: widths, coverage and equivalent records of designs to choose from.

For each choice of bounds, noise law, epsilon and split of the budget, releases are simulated from the model (theta from its prior, or held
at a guess) and their posteriors computed. Nothing here looks at confidential records: n, bounds and the model are public guesses.
With ``V3`` the expected posterior variance, ``V1`` that of n records in the clear and ``V0`` the prior's, the release is worth
``n (1/V3 - 1/V0) / (1/V1 - 1/V0)`` records (:mod:`noisewise.calibration.clear`).

Checked by ``tests/calibration/test_design.py``: predictions against the posteriors of 200 other simulated releases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from noisewise.calibration.clear import Clear, equivalent_records, in_the_clear
from noisewise.calibration.coverage import check_level, cover
from noisewise.calibration.replicates import replicate
from noisewise.calibration.simulate import CLEAR, check_model, check_replicates, draw_design, fixed_truth
from noisewise.compilation import use_compilation_cache
from noisewise.engines.base import Engine
from noisewise.engines.choose import choose
from noisewise.models.base import Model
from noisewise.release.noise import LAWS, Laplace, Noise
from noisewise.release.query import Neighbours, Query, check_neighbours
from noisewise.settings import check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Design:
    """One row for every choice and parameter, with Monte-Carlo standard errors under ``*_error``.

    ``width`` is the expected width of the equal-tailed interval of probability ``level``, ``sd`` the root of the expected posterior
    variance, ``covered`` the share of intervals that hold the truth, ``equivalent_n`` the number of records in the clear that would say
    as much (not a number for a model that cannot be asked for it).
    """

    rows: tuple[dict[str, Any], ...]
    n: int
    level: float
    replicates: int

    def to_dict(self) -> dict[str, list[Any]]:
        """The table as columns, for ``pandas.DataFrame``."""
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}

    def __str__(self) -> str:
        names = ("query", "noise", "split", "epsilon", "parameter")
        shown = [
            name for name in names if len({row[name] for row in self.rows}) > 1 or name in ("epsilon", "parameter")
        ]
        heads = [*shown, "sd", "width", "coverage", "records"]
        lines = [heads]
        for row in self.rows:
            cells = [f"{row[name]:g}" if name == "epsilon" else str(row[name]) for name in shown]
            cells += [f"{row['sd']:.4g}", f"{row['width']:.4g} ± {row['width_error']:.2g}", f"{row['covered']:.3f}"]
            cells.append(f"{row['equivalent_n']:,.1f} ± {row['equivalent_n_error']:,.1g}")
            lines.append(cells)
        widths = [max(len(line[j]) for line in lines) for j in range(len(heads))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        error = np.sqrt(self.level * (1 - self.level) / self.replicates)
        table.append(
            f"n = {self.n:,}; {self.level:.0%} intervals; {self.replicates} simulated releases a choice, so a coverage is known "
            f"to ± {error:.3f}; records: in the clear, worth as much as the release"
        )
        return "\n".join(table)

    def plot(self, parameter: str | None = None, path: str | Path | None = None) -> Figure:
        """Width and equivalent records of a parameter against epsilon, a line for every other choice; saved if ``path`` is given."""
        from noisewise.calibration.plots import plot_design

        names = list(dict.fromkeys(row["parameter"] for row in self.rows))
        if parameter is not None and parameter not in names:
            raise ValueError(f"parameter must be one of {names}; got {parameter!r}.")
        return plot_design(self, names[0] if parameter is None else parameter, path)


class Choice(NamedTuple):
    """One way to publish: names of what was chosen, and the queries with their noises."""

    query: str
    noise: str
    split: str
    epsilon: float
    measurements: tuple[tuple[Query, Noise], ...]


def design(
    model: Model,
    query: Query | Sequence[Query] | Mapping[str, Query | Sequence[Query]],
    noise: type[Noise] | Sequence[type[Noise]] = Laplace,
    n: int | None = None,
    *,
    epsilon: float | Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
    delta: float | None = None,
    split: Sequence[float] | Sequence[Sequence[float]] | None = None,
    neighbours: Neighbours = "replace_one",
    truth: Mapping[str, Any] | None = None,
    level: float = 0.9,
    replicates: int = 100,
    draws: int = 200,
    tune: int = 500,
    thin: int = 5,
    method: str | Engine = "auto",
    random_seed: int | None = None,
    progressbar: bool = False,
) -> Design:
    """Say what each way of publishing would be worth, before anything is published.

    Parameters
    ----------
    model, n
        What the records might be, and a guess at how many there are.
    query
        A query; or several that are published together, from the same records; or alternatives by name (other bounds, say),
        each of them a query or several.
    noise
        A noise law of ``nw.noise``, or several to compare. The normal laws need ``delta``.
    epsilon, delta
        The whole budget; each epsilon is a row.
    split
        For queries published together the share of the budget that each gets, or several such lists; equal if left out. It is epsilon
        that is shared under the Laplace laws, and rho (the square of sensitivity over scale, halved) under the normal laws.
    truth
        Parameters to hold at a guess; the others come from the prior.
    level, replicates, draws, tune, thin, method
        The intervals; and how many releases are simulated for each choice, and how their posteriors are computed.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> found = nw.design(nw.models.Bernoulli(), query, n=100, epsilon=[0.1, 1], random_seed=1)
    >>> little, much = found.rows
    >>> little["width"] > much["width"], 60 < much["equivalent_n"] < 100
    (True, True)
    """
    check_level(level)
    check_replicates(replicates)
    seed = check_seed(random_seed)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"A design needs a number of records, if only a guess; got n={n!r}.")
    check_model(model, n)
    use_compilation_cache()
    choices = list(_choices(query, noise, _numbers(epsilon, "epsilon"), delta, split, check_neighbours(neighbours)))
    clear = in_the_clear(model, n, jax.random.fold_in(jax.random.key(seed), CLEAR), fixed_truth(model, truth))
    rows: list[dict[str, Any]] = []
    for choice in choices:
        release, truths = draw_design(model, choice.measurements, n, replicates, seed, truth)
        engine = choose(model, release, method).engine
        made = replicate(
            model, release, engine, truths, draws=draws, tune=tune, thin=thin, seed=seed, progressbar=progressbar
        )
        variances = made.draws[..., : made.parameters].var(axis=1, ddof=1)
        rows += _rows(choice, cover(made, level), variances, clear, n)
    return Design(tuple(rows), int(n), level, replicates)


def _rows(choice: Choice, found: Any, variances: np.ndarray, clear: Clear | None, n: int) -> Iterator[dict[str, Any]]:
    v3 = variances.mean(axis=0)
    v3_error = variances.std(axis=0, ddof=1) / np.sqrt(len(variances))
    nothing = np.full(v3.shape, np.nan)
    number, error = (nothing, nothing) if clear is None else equivalent_records(clear, n, v3, v3_error)
    for j, label in enumerate(found.labels):
        yield {
            "query": choice.query,
            "noise": choice.noise,
            "split": choice.split,
            "epsilon": choice.epsilon,
            "parameter": label,
            "sd": float(np.sqrt(v3[j])),
            "sd_error": float(v3_error[j] / (2 * np.sqrt(v3[j]))) if v3[j] > 0 else 0.0,
            "width": float(found.width[j]),
            "width_error": float(found.width_error[j]),
            "covered": float(found.covered[j]),
            "covered_error": found.covered_error,
            "equivalent_n": float(number[j]),
            "equivalent_n_error": float(error[j]),
            "engine": found.engine,
        }


def _choices(
    query: Any, noise: Any, epsilons: list[float], delta: float | None, split: Any, neighbours: Neighbours
) -> Iterator[Choice]:
    laws = list(noise) if isinstance(noise, list | tuple) else [noise]
    for law in laws:
        if not isinstance(law, type) or law not in LAWS.values():
            raise ValueError(f"noise must be laws such as nw.noise.Laplace, not yet with a scale; got {law!r}.")
    alternatives = query if isinstance(query, Mapping) else {"": query}
    for (name, one), law in itertools.product(alternatives.items(), laws):
        queries = list(one) if isinstance(one, list | tuple) else [one]
        if not queries or not all(isinstance(part, Query) for part in queries):
            raise ValueError(f"query must be a query of nw.queries, or several, or alternatives by name; got {one!r}.")
        for shares in _splits(split, len(queries)):
            said = "" if len(queries) == 1 else ":".join(f"{share:g}" for share in shares)
            for epsilon in epsilons:
                parts = tuple(
                    (part, _calibrated(law, part, epsilon, delta, share, neighbours))
                    for part, share in zip(queries, shares, strict=True)
                )
                yield Choice(name, law.__name__, said, epsilon, parts)


def _calibrated(
    law: Any, query: Query, epsilon: float, delta: float | None, share: float, neighbours: Neighbours
) -> Noise:
    made: Noise
    if law.norm == "l1":
        made = law.calibrated(query, epsilon=share * epsilon, neighbours=neighbours)
        return made
    if delta is None:
        raise ValueError(f"{law.__name__} noise needs delta beside epsilon; give delta, such as 1e-6.")
    whole = law.calibrated(query, epsilon=epsilon, delta=delta, neighbours=neighbours)
    # rho goes with the inverse square of the scale, and the rhos of the parts add up to the whole's
    made = law(whole.scale / np.sqrt(share))
    return made


def _splits(split: Any, size: int) -> list[tuple[float, ...]]:
    if split is None:
        return [(1 / size,) * size]
    several = list(split) if len(split) and isinstance(split[0], Sequence | np.ndarray) else [split]
    found = []
    for shares in several:
        values = np.asarray(shares, dtype=float)
        if values.shape != (size,) or not np.all(values > 0) or not np.isclose(values.sum(), 1.0, rtol=1e-9):
            raise ValueError(
                f"split must give {size} positive share(s) that add up to 1, one for each query; got {shares!r}."
            )
        found.append(tuple(float(value) for value in values))
    return found


def _numbers(epsilon: Any, name: str) -> list[float]:
    try:
        values = np.atleast_1d(np.asarray(epsilon, dtype=float))
    except (TypeError, ValueError):
        values = np.full(1, np.nan)
    if values.ndim != 1 or values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"{name} must be positive numbers; got {epsilon!r}.")
    return [float(value) for value in values]
