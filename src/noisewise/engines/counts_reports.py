r"""The sums of a release that reports every record: randomised response, or noise on each code.

**Two levels.** With ``l_1`` and ``l_0`` the likelihoods of a record's reports under one and zero, ``p(s | p) = prod_i (p l_1 + (1-p)
l_0)_i``: the posterior of p is put on panels (:mod:`noisewise.engines.fourier_panels`), whatever n. Where counts of the same records
were released as well, with density ``L(T)`` given the number T of ones, records are summed: given the reports alone and even
odds a record is a one with probability ``l_1 / (l_1 + l_0)``, and T is a sum of binomials, one for each pattern of reports,

    p(T, s) = prod_i (l_1 + l_0)_i  P(sum of binomials = T)  B(a + T, b + n - T) / B(a, b)  L(T).

**More levels, one report a record** (Warner's law on K codes): a report s has the probability ``u + v p_s``, ``u = f / (L - 1)``,
``v = 1 - f - u``. Of the ``m_s`` reports of s, ``k_s`` are truthful, and the others say nothing:

    p(s) = sum_k prod_s C(m_s, k_s) v^{k_s} u^{m_s - k_s} Gamma(a_s + k_s) / Gamma(a_s)  Gamma(A) / Gamma(A + sum_s k_s),

a chain over the levels with a weight of the total; the factors are tilted by ``exp(-tilt k)`` to where the weight puts them.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, expit, gammaln, log_expit, xlogy

from noisewise.engines.base import Exact, Sampler
from noisewise.engines.counts_bayes import law_of_size
from noisewise.engines.counts_cells import Cells, Unsupported, known_n, log_rising, multinomial_cells
from noisewise.engines.counts_moments import given_total, over_windows
from noisewise.engines.counts_samplers import Dirichlets, Totals, WindowSampler, splits_of
from noisewise.engines.counts_windows import Chain, Window, moments, solve
from noisewise.engines.fourier_panels import Inverse, PanelSampler, adapt, brackets
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.release.document import Release
from noisewise.release.noise import RandomisedResponse
from noisewise.release.records import RecordNoise

_MOST_SUMMED = 5000
_REACH = 40.0
_LARGEST_LOGIT = 700.0
_EM_STEPS = 300


@dataclass(frozen=True)
class Binary:
    """Patterns of reports of a two-level column: how many records have each, and its likelihoods under zero and one."""

    counts: np.ndarray
    log_zero: np.ndarray
    log_one: np.ndarray
    counted: Cells | None


@dataclass(frozen=True)
class Truthful:
    """The factors of the numbers of truthful reports of each level."""

    weights: np.ndarray
    reports: np.ndarray
    blind: float
    truth: float
    tilt: float

    def log_likelihood(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """``log m! / (m - k)! v^k u^(m - k)``, tilted."""
        m = self.reports[cells][:, None]
        left = np.maximum(m - counts, 0.0)
        value = gammaln(m + 1) - gammaln(left + 1) + xlogy(counts, self.truth) + xlogy(left, self.blind)
        return np.where(counts <= m, value - self.tilt * counts, -np.inf)

    def log_factors(self, counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """The same with the Dirichlet weights."""
        return log_rising(counts, self.weights[cells, None]) + self.log_likelihood(counts, cells)


def reported(model: Bernoulli | Categorical, release: Release) -> Binary | Truthful:
    """What the reports say of each level, or :class:`Unsupported` with the reason."""
    n = known_n(release)
    binary = isinstance(model, Bernoulli) or model.alpha.size == 2
    if binary:
        return _binary(model, release, n)
    assert isinstance(model, Categorical)
    mechanism, size = release.measurements[0].mechanism, model.alpha.size
    if (
        len(release.measurements) > 1
        or not isinstance(mechanism, RecordNoise)
        or not isinstance(mechanism.noise, RandomisedResponse)
        or len(mechanism.columns) > 1
    ):
        raise Unsupported("reports of a column with more than two levels are summed for one randomised response alone")
    law = mechanism.noise
    if law.levels < size:
        raise Unsupported(f"the reports have {law.levels} codes and the column {size}")
    blind = float(law.flip) / (law.levels - 1)
    truth = 1 - float(law.flip) - blind
    if truth < 0:
        raise Unsupported("a report of more than two levels is likelier to be false than a blind guess")
    reports = np.bincount(np.asarray(release.measurements[0].value)[:, 0].astype(int), minlength=law.levels).astype(
        float
    )
    weights = np.asarray(model.alpha, dtype=float)
    return Truthful(weights, reports[:size], blind, truth, _tilt(weights, reports[:size], blind, truth))


def by_reports(model: Bernoulli | Categorical, release: Release, found: Binary | Truthful) -> Sampler:
    """The posterior given the reports."""
    n = known_n(release)
    if isinstance(found, Truthful):
        return _truthful(found, n)
    return _share(model, found) if found.counted is None else _ones(model, found, found.counted, n)


def _binary(model: Bernoulli | Categorical, release: Release, n: int) -> Binary:
    zero, one = np.zeros(n), np.zeros(n)
    others = []
    for measurement in release.measurements:
        mechanism = measurement.mechanism
        if not mechanism.per_record:
            others.append(measurement)
            continue
        for code, total in ((0, zero), (1, one)):
            records = {model.column: jnp.full(n, code)}
            total += np.asarray(mechanism.statistics(records, measurement.value))[:, 0]
    patterns, counts = np.unique(np.stack([zero, one]), axis=1, return_counts=True)
    if others and n > _MOST_SUMMED:
        raise Unsupported(f"reports beside released counts are summed for up to {_MOST_SUMMED} records, not {n}")
    counted = multinomial_cells(model, Release(others, n=n)) if others else None
    return Binary(counts.astype(float), patterns[0], patterns[1], counted)


def _weights(model: Bernoulli | Categorical) -> np.ndarray:
    return np.asarray([model.b, model.a] if isinstance(model, Bernoulli) else model.alpha, dtype=float)


def _share(model: Bernoulli | Categorical, found: Binary) -> Sampler:
    """The share of ones on panels in its log odds (against one, for a table of two levels)."""
    weights, sign = _weights(model), 1.0 if isinstance(model, Bernoulli) else -1.0

    def log_density(free: np.ndarray) -> np.ndarray:
        log_one, log_zero = log_expit(sign * free), log_expit(-sign * free)
        likelihood = np.array(
            [
                np.logaddexp(one + found.log_one, zero + found.log_zero) @ found.counts
                for one, zero in zip(log_one, log_zero, strict=True)
            ]
        )
        return weights[1] * log_one + weights[0] * log_zero - betaln(*weights) + likelihood

    reach = min(_REACH + _REACH / float(weights.min()), _LARGEST_LOGIT)
    intervals = brackets(log_density, -reach, reach)
    top = max(float(np.max(log_density(np.linspace(low, high, 1025)))) for low, high in intervals)
    panels = adapt(log_density, intervals, top)
    p = expit(sign * panels.nodes)
    mean = float(np.sum(panels.masses * p))
    sd = np.full(2, np.sqrt(np.sum(panels.masses * (p - mean) ** 2)))
    both = np.array([np.sum(panels.masses * expit(-sign * panels.nodes)), mean])
    at = 1 if isinstance(model, Bernoulli) else slice(None)
    known = Exact({"p": jnp.asarray(both[at])}, {"p": jnp.asarray(sd[at])}, panels.log_total)
    return PanelSampler(model, Inverse(panels), known)


def _ones(model: Bernoulli | Categorical, found: Binary, cells: Cells, n: int) -> Sampler:
    weights = _weights(model)
    counts = np.arange(n + 1.0)
    log_either = np.logaddexp(found.log_zero, found.log_one)
    law = np.ones(1)
    for m, one, zero, either in zip(found.counts, found.log_one, found.log_zero, log_either, strict=True):
        law = (
            np.convolve(law, stats.binom.pmf(np.arange(m + 1), m, np.exp(one - either)))
            if one <= zero
            else np.convolve(law, stats.binom.pmf(np.arange(m + 1), m, np.exp(zero - either))[::-1])
        )
    with np.errstate(divide="ignore"):
        log_law = np.log(law) - (gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1))
    log_law += log_rising(counts, weights[1]) + log_rising(n - counts, weights[0]) - log_rising(n, weights.sum())
    log_law += cells.log_likelihood(np.stack([n - counts, counts])).sum(axis=0)
    posterior, log_total = law_of_size(log_law, 0)
    log_marginal = log_total + float(found.counts @ log_either) + float(cells.log_size(n))
    summed = Window(0, posterior)
    mean, variance = moments(summed)
    p, sd = given_total(np.array([n - mean, mean]), np.full(2, variance), weights, n)
    at = 1 if isinstance(model, Bernoulli) else slice(None)
    known = Exact({"p": jnp.asarray(p[at])}, {"p": jnp.asarray(sd[at])}, log_marginal)
    rest = Dirichlets(jnp.asarray(weights), known, None, ("p",), binary=isinstance(model, Bernoulli))
    splits = splits_of([Chain([summed], [summed], 0.0)])[0]
    return WindowSampler(Totals(summed), splits, jnp.array([1, 0]), jnp.asarray(n), rest)


def _tilt(weights: np.ndarray, reports: np.ndarray, blind: float, truth: float) -> float:
    """The log of ``A + T`` at a likely number T of truthful reports."""
    low, high = 0.0, float(reports.sum())
    for _ in range(60):
        middle = 0.5 * (low + high)
        expected = np.sum(np.maximum(truth * reports - (weights.sum() + middle) * blind, 0.0)) / max(truth, 1e-300)
        low, high = (middle, high) if expected > middle else (low, middle)
    return float(np.log(weights.sum() + low))


def _truthful(found: Truthful, n: int) -> Sampler:
    size = found.weights.size

    def log_weight(total: np.ndarray) -> np.ndarray:
        return found.tilt * total - log_rising(total, found.weights.sum()) - gammaln(total + 1)

    summed = solve(found, np.arange(size), n, log_weight)
    share = np.sum(summed.chain.total.mass * summed.message.mass)
    message = Window(summed.message.first, summed.message.mass / share)
    mean, sd = over_windows(summed.chain, message, found.weights)
    strangers = n - found.reports.sum()
    known = Exact(
        {"p": jnp.asarray(mean)}, {"p": jnp.asarray(sd)}, summed.log_total + float(xlogy(strangers, found.blind))
    )
    rest = Dirichlets(jnp.asarray(found.weights), known, None, ("p",), records=jnp.asarray(n))
    return WindowSampler(Totals(summed.law), splits_of([summed.chain])[0], jnp.arange(size), None, rest)
