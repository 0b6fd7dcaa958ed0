"""How often do intervals hold the truth, and how wide are they, for a model and a release design?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from noisewise.calibration.replicates import Replicates, replicate
from noisewise.calibration.simulate import check_replicates, draw_truths
from noisewise.engines.base import Engine
from noisewise.engines.choose import choose
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.settings import check_seed


@dataclass(frozen=True)
class Coverage:
    """By parameter: the share of equal-tailed intervals of probability ``level`` that hold the truth, their widths and sds.

    Every figure has its Monte-Carlo standard error; that of ``covered`` is the one under ``level``. ``p_values`` are two-sided
    and exact, for ``covered`` being ``level`` on average, which is so for a right posterior when truths come from the prior.
    """

    labels: tuple[str, ...]
    level: float
    replicates: int
    covered: np.ndarray
    covered_error: float
    width: np.ndarray
    width_error: np.ndarray
    sd: np.ndarray
    sd_error: np.ndarray
    p_values: np.ndarray
    engine: str

    def to_dict(self) -> dict[str, list[Any]]:
        """The table as columns, for ``pandas.DataFrame``."""
        return {
            "parameter": list(self.labels),
            "covered": list(self.covered),
            "width": list(self.width),
            "sd": list(self.sd),
            "p_value": list(self.p_values),
        }

    def __str__(self) -> str:
        width = max(12, *(len(label) + 2 for label in self.labels))
        lines = [f"{'parameter':<{width}}{'covered':>9}{'width':>22}{'sd':>11}{'p':>9}"]
        for j, label in enumerate(self.labels):
            lines.append(
                f"{label:<{width}}{self.covered[j]:>9.3f}{self.width[j]:>13.4g} ± {self.width_error[j]:<6.2g}"
                f"{self.sd[j]:>11.4g}{self.p_values[j]:>9.2g}"
            )
        lines.append(
            f"{self.level:.0%} intervals of {self.replicates} replicates, {self.engine} engine; the standard error of a "
            f"coverage is {self.covered_error:.3f}"
        )
        return "\n".join(lines)


def coverage(
    model: Model,
    release: Release,
    *,
    level: float = 0.9,
    truth: Mapping[str, Any] | None = None,
    replicates: int = 200,
    draws: int = 400,
    tune: int = 500,
    thin: int = 5,
    method: str | Engine = "auto",
    random_seed: int | None = None,
    progressbar: bool = False,
) -> Coverage:
    """Count how often posterior intervals hold the truth behind simulated releases of a design.

    Truths come from the prior, where a right posterior covers ``level`` on average; parameters named in ``truth`` are held at
    the value given there, where it may cover more or less. Other arguments as in :func:`noisewise.calibration.sbc`.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(2.0), [9, 11])], n=20)
    >>> found = nw.calibration.coverage(nw.models.Bernoulli(), release, random_seed=1)
    >>> abs(float(found.covered[0]) - 0.9) < 3 * found.covered_error
    True
    """
    check_level(level)
    check_replicates(replicates)
    seed = check_seed(random_seed)
    engine = choose(model, release, method).engine
    truths = draw_truths(model, release, replicates, seed, truth)
    made = replicate(
        model, release, engine, truths, draws=draws, tune=tune, thin=thin, seed=seed, progressbar=progressbar
    )
    return cover(made, level)


def check_level(level: float) -> None:
    """Refuse a probability that is not between 0 and 1."""
    if isinstance(level, bool | str) or not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1; got {level!r}.")


def cover(made: Replicates, level: float) -> Coverage:
    """The coverage of equal-tailed intervals of replicates."""
    draws, truth = made.draws[..., : made.parameters], made.truth[:, : made.parameters]
    # of all rules for quantiles, this one's intervals of a few draws hold a further draw with the probability asked for
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=1, method="weibull")
    number = len(truth)
    inside = np.sum((low <= truth) & (truth <= high), axis=0)
    spread, sds = high - low, draws.std(axis=1, ddof=1)
    return Coverage(
        made.labels[: made.parameters],
        level,
        number,
        inside / number,
        float(np.sqrt(level * (1 - level) / number)),
        spread.mean(axis=0),
        spread.std(axis=0, ddof=1) / np.sqrt(number),
        sds.mean(axis=0),
        sds.std(axis=0, ddof=1) / np.sqrt(number),
        np.array([stats.binomtest(int(count), number, level).pvalue for count in inside]),
        made.engine,
    )
