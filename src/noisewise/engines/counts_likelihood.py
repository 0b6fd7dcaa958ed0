r"""The likelihood of released counts of one column at any number of records, with its slope and bend.

Multinomial counts are Poisson counts given their total, so with ``L_j(c)`` the density of what was released of cell j

    p(s | p) = sum_{c: sum c = n} prod_j Poisson(c_j; n p_j) L_j(c_j)  /  Poisson(n; n),

which the windows of :mod:`noisewise.engines.counts_windows` sum. In log odds against the last cell the slope is Fisher's
identity, ``E[c_j | s] - n p_j``, and the bend its differences of fourth order. Checked by ``tests/test_likelihood.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, xlogy

from noisewise.engines.counts import Counts
from noisewise.engines.counts_cells import Cells, Unsupported, known_n, multinomial_cells
from noisewise.engines.counts_windows import Window, moments, remainder, solve
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.release.document import Release

_STEP = 0.1
_NEWTON = 40
_HALVINGS = 30
_ENOUGH = 1e-14


@dataclass(frozen=True)
class PoissonFactors:
    """Poisson probabilities of the counts of cells, times what the release says of them."""

    cells: Cells
    means: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """Ones, whose rising factors are one: everything is in the likelihood, which is log-concave."""
        return np.ones(self.means.size)

    def log_likelihood(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """``log Poisson(c; n p) + log L(c)``."""
        return _log_poisson(counts, self.means[cells, None]) + self.cells.log_likelihood(counts, cells)

    def log_factors(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """The same."""
        return self.log_likelihood(counts, cells)


def _log_poisson(counts: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """``log Poisson(c; m)`` with its digits at means of 1e8: far from zero as ``-m ((1+e) log(1+e) - e)`` and Stirling's series."""
    c = np.asarray(counts, dtype=float)
    apart = (c - mean) / mean
    large = np.maximum(c, 32.0)
    series = -0.5 * np.log(2 * np.pi * large) - (1 / 12 - (1 / 360 - 1 / (1260 * large**2)) / large**2) / large
    with np.errstate(divide="ignore", invalid="ignore"):
        far = -mean * ((1 + apart) * np.log1p(apart) - apart) + series
    return np.where(c >= 32, far, xlogy(c, mean) - mean - gammaln(c + 1))


class CountSurface:
    """``z -> log p(s | p(z))`` in the free coordinates of a Bernoulli or categorical model."""

    def __init__(self, model: Bernoulli | Categorical, release: Release) -> None:
        if release.per_record:
            raise Unsupported("the release does not depend on the records through counts alone")
        self.model, self.n = model, known_n(release)
        self.cells = multinomial_cells(model, release)
        flat = Bernoulli(1, 1, column=model.column) if isinstance(model, Bernoulli) else _flat(model)
        support = Counts().supports(flat, release)
        if not support.ok:
            raise Unsupported(support.reason)
        known = Counts().build(flat, release, jax.random.key(0)).exact()
        assert known is not None
        self.start = np.asarray(model.unconstrain(known.means))
        p, sd = (np.atleast_1d(np.asarray(part["p"])) for part in (known.means, known.sds))
        self.steps = np.minimum(_STEP * sd / (p * (1 - p)), _STEP)[: self.start.size]
        self._map = jax.jit(lambda z: model.constrain(z)["p"])

    def value(self, z: np.ndarray) -> float:
        """The log likelihood."""
        return self._sums(z)[0]

    def slope(self, z: np.ndarray) -> np.ndarray:
        """Its derivatives."""
        apart = self._sums(z)[1] - self.n * self._probabilities(z)
        return apart[1:] if isinstance(self.model, Bernoulli) else apart[:-1]

    def bend(self, z: np.ndarray) -> np.ndarray:
        """Its second derivatives, by differences of fourth order a tenth of a posterior sd to either side."""
        rows = []
        for move, step in zip(np.diag(self.steps), self.steps, strict=True):
            near = self.slope(z + move) - self.slope(z - move)
            far = self.slope(z + 2 * move) - self.slope(z - 2 * move)
            rows.append((8 * near - far) / (12 * step))
        found = np.stack(rows)
        return 0.5 * (found + found.T)

    def climb(self) -> np.ndarray:
        """The highest point by Newton's method with halved steps, from the mean under a flat prior."""
        z, here = self.start, self.value(self.start)
        for _ in range(_NEWTON):
            slope, bend = self.slope(z), self.bend(z)
            axes, turn = np.linalg.eigh(-bend)
            step = turn @ ((turn.T @ slope) / np.maximum(np.abs(axes), 1e-12 * np.max(np.abs(axes))))
            for _ in range(_HALVINGS):
                there = self.value(z + step)
                if there >= here:
                    break
                step = step / 2
            else:
                break
            z, gain, here = z + step, float(slope @ step), there
            if gain < _ENOUGH:
                break
        return z

    def _probabilities(self, z: np.ndarray) -> np.ndarray:
        p = np.asarray(self._map(jnp.asarray(z)))
        return np.array([1 - p, p]) if isinstance(self.model, Bernoulli) else p

    def _sums(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The log likelihood and the expected counts."""
        factors = PoissonFactors(self.cells, self.n * self._probabilities(z))
        size = factors.means.size
        last = int(np.argmax(factors.means))
        others = np.array([k for k in range(size) if k != last])
        sums = solve(factors, others, self.n, remainder(factors, last, self.n), last=last)
        counts = np.empty(size)
        counts[others] = [moments(law)[0] for law in sums.laws]
        counts[last] = moments(Window(self.n - sums.law.first - sums.law.mass.size + 1, sums.law.mass[::-1]))[0]
        alone = float(_log_poisson(np.array([float(self.n)]), np.array([float(self.n)]))[0])
        return sums.log_total - alone + float(self.cells.log_size(self.n)), counts


def _flat(model: Categorical) -> Categorical:
    return Categorical(np.ones(model.alpha.size), column=model.column)
