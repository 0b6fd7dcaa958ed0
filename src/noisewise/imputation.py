r"""Multiple imputation: an ordinary analysis of confidential records, carried over to the imputed databases of a run.

``nw.sample(..., keep_latent=m)`` keeps m databases drawn from ``p(x | release)``. An analysis gives each of them an estimate
``Q_l`` with a variance ``U_l``, and Rubin's rules (1987) combine them:

    Q = mean Q_l,   U = mean U_l,   B = sum (Q_l - Q)^2 / (m - 1),   T = U + (1 + 1/m) B.

``(q - Q) / sqrt(T)`` is referred to Student's t with the degrees of freedom of Barnard and Rubin (1999): with
``lambda = (1 + 1/m) B / T`` and ``v`` the degrees of freedom that the analysis of complete records has,

    nu = 1 / (1/nu_m + 1/nu_o),   nu_m = (m - 1) / lambda^2,   nu_o = (1 - lambda) v (v + 1) / (v + 3).

The interval covers as the posterior does where the analysis and the model agree; U alone would leave the privacy noise out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from noisewise.engines.resizing import INCLUDED

if TYPE_CHECKING:
    import xarray as xr

Table = dict[str, np.ndarray]


def impute(tree: xr.DataTree) -> list[Table]:
    """The imputed confidential databases of a run, one table of columns each.

    They are draws from ``p(x | release)`` and hold nobody's records. When the number of records is unknown, tables differ
    in length.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-5, 5)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(5.0), [31.0])], n=30)
    >>> dt = nw.sample(nw.models.Normal(), release, keep_latent=20, random_seed=1, method="augmentation", progressbar=False)
    >>> tables = nw.impute(dt)
    >>> len(tables), tables[0]["x"].shape
    (20, (30,))
    """
    if not hasattr(tree, "children"):
        raise ValueError(f"nw.impute takes the result of nw.sample(..., keep_latent=20); got {str(tree)[:80]}.")
    if "latent_data" not in tree.children:
        raise ValueError(
            "This result holds no imputed databases; draw them with nw.sample(..., keep_latent=20, "
            'method="augmentation").'
        )
    group = tree["latent_data"].to_dataset()
    columns = {str(name): np.asarray(value) for name, value in group.data_vars.items() if name != INCLUDED}
    kept = (
        np.asarray(group[INCLUDED]) > 0 if INCLUDED in group else np.ones(next(iter(columns.values())).shape[:2], bool)
    )
    return [{name: value[i][kept[i]] for name, value in columns.items()} for i in range(kept.shape[0])]


@dataclass(frozen=True)
class Combined:
    """One analysis combined over imputed databases: arrays of the shape of the analysis's estimate.

    ``variance`` is T, ``within`` U and ``between`` B of the module's formulas; ``missing`` is ``lambda``, the share of the
    variance that comes from not having seen the records.
    """

    estimate: np.ndarray
    variance: np.ndarray
    within: np.ndarray
    between: np.ndarray
    df: np.ndarray
    missing: np.ndarray
    imputations: int

    @property
    def standard_error(self) -> np.ndarray:
        """The square root of the variance."""
        return np.sqrt(self.variance)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The two-sided interval at this level."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie strictly between 0 and 1; got {level!r}.")
        reach = stats.t.ppf(0.5 * (1 + level), self.df) * self.standard_error
        return self.estimate - reach, self.estimate + reach


def combine(
    tables: Sequence[Mapping[str, np.ndarray]],
    analysis: Callable[[Mapping[str, np.ndarray]], tuple[Any, Any]],
    *,
    complete_df: float = np.inf,
) -> Combined:
    """An analysis of every table, combined by Rubin's rules.

    Parameters
    ----------
    tables
        Imputed databases, as :func:`impute` gives them.
    analysis
        A function of one table that returns an estimate and its variance: numbers, or arrays of one shape (elementwise).
    complete_df
        The degrees of freedom the analysis has for complete records, for example ``n - 1`` for a mean; infinite for a large
        sample.

    >>> import numpy as np
    >>> tables = [{"x": np.array([0.0, 2.0])}, {"x": np.array([1.0, 3.0])}, {"x": np.array([2.0, 4.0])}]
    >>> combined = combine(tables, lambda table: (table["x"].mean(), table["x"].var(ddof=1) / table["x"].size))
    >>> float(combined.estimate), round(float(combined.variance), 4)
    (2.0, 2.3333)
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError(f"tables must be the list of imputed tables that nw.impute(dt) gives; got {str(tables)[:80]}.")
    if not callable(analysis):
        raise ValueError(
            f"analysis must be a function of one table that returns an estimate and its variance; got {analysis!r}."
        )
    if len(tables) < 2:
        raise ValueError(f"Rubin's rules need at least 2 imputed databases; got {len(tables)}. Ask for keep_latent=20.")
    results = [analysis(table) for table in tables]
    wrong = [result for result in results if not isinstance(result, tuple | list) or len(result) != 2]
    if wrong:
        raise ValueError(f"analysis must return a pair, an estimate and its variance; got {wrong[0]!r}.")
    return rubin([q for q, _ in results], [u for _, u in results], complete_df=complete_df)


def rubin(estimates: Any, variances: Any, *, complete_df: float = np.inf) -> Combined:
    """Rubin's rules for estimates and variances whose first axis is the imputations.

    >>> rubin([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).df.round(3)
    np.float64(6.125)
    """
    try:
        q, u = np.asarray(estimates, dtype=float), np.asarray(variances, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(
            "Estimates and variances must be numbers, or arrays of one shape for every table; check the analysis."
        ) from None
    if q.shape != u.shape or q.ndim < 1 or q.shape[0] < 2:
        raise ValueError(
            "Estimates and variances need one shape, with at least 2 imputations along the first axis; got "
            f"{q.shape} and {u.shape}."
        )
    if not np.all(np.isfinite(q)) or not np.all(np.isfinite(u)) or np.any(u < 0):
        raise ValueError("Estimates must be finite and variances finite and not negative; check the analysis.")
    if isinstance(complete_df, bool) or not isinstance(complete_df, int | float | np.number) or not complete_df > 0:
        raise ValueError(f"complete_df must be positive; got {complete_df!r}. Records cannot be fewer than parameters.")
    m = q.shape[0]
    within, between = u.mean(axis=0), q.var(axis=0, ddof=1)
    extra = (1 + 1 / m) * between
    variance = within + extra
    missing = np.divide(extra, variance, out=np.zeros_like(extra), where=variance > 0)
    # 1/nu_m and 1/nu_o, each of which may be 0 (infinitely many degrees of freedom) or infinite (none)
    from_imputations = missing**2 / (m - 1)
    with np.errstate(divide="ignore"):
        from_records = (
            np.zeros_like(missing)
            if np.isinf(complete_df)
            else (complete_df + 3) / ((1 - missing) * complete_df * (complete_df + 1))
        )
        df = 1 / (from_imputations + from_records)
    return Combined(q.mean(axis=0), variance, within, between, df, missing, m)
