r"""The likelihood ``p(s | theta)`` of a release, summed over every database without a prior, as a function to differentiate.

With ``L_j(c)`` the density of what was released of the count of cell j (:mod:`noisewise.engines.counts_cells`),

| model | ``p(s | theta)`` |
|---|---|
| ``Bernoulli`` | ``sum_k C(n, k) p^k (1-p)^(n-k) g(s, total(k))`` |
| ``Categorical`` | ``n!`` times the n-th term of the convolution over levels of ``p_j^c L_j(c) / c!`` |
| ``NaiveBayes`` | the same over classes, each factor times ``t!`` and the t-th term of its own features' convolutions |
| ``Bernoulli``, ``Categorical`` | for reports of every record, the product over records of ``sum_k p_k P(reports | k)`` |

Checked against the enumeration of every database by ``tests/test_likelihood.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlog1py, xlogy
from jaxtyping import Array, Float
from scipy.special import gammaln

from noisewise.engines.counts_cells import Cells, Unsupported, known_n, multinomial_cells, naive_bayes_cells
from noisewise.engines.counts_reports import Truthful, reported
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.release.document import Release
from noisewise.typing import Theta

LogLikelihood = Callable[[Theta], Float[Array, ""]]

_MOST_TERMS = 2_000_000
_MOST_PAIRS = 20_000_000
_NOTHING = -1e30


def exact_log_likelihood(model: Model, release: Release) -> LogLikelihood:
    """``theta -> log p(s | theta)``, or :class:`Unsupported` with the reason."""
    n = known_n(release)
    if isinstance(model, Bernoulli | Categorical) and release.per_record:
        return _reports(model, release, n)
    if isinstance(model, Bernoulli):
        return _bernoulli(model, release, n)
    if isinstance(model, Categorical):
        cells = multinomial_cells(model, release)
        _affordable(n, model.alpha.size)
        log_noise = _log_noise(cells, n)
        factorials = jnp.asarray(gammaln(np.arange(n + 1.0) + 1))

        def categorical(theta: Theta) -> Array:
            terms = _powers(theta["p"], n) - factorials + log_noise
            return _convolved(terms)[n] + factorials[n] + float(cells.log_size(n))

        return categorical
    if isinstance(model, NaiveBayes):
        return _naive_bayes(model, release, n)
    raise Unsupported(f"{type(model).__name__} is not a model of counts (Bernoulli, Categorical, NaiveBayes)")


def _bernoulli(model: Bernoulli, release: Release, n: int) -> LogLikelihood:
    if release.unnormalised:
        raise Unsupported("the release does not depend on the records through a sum alone")
    if n > _MOST_TERMS:
        raise Unsupported(f"the sum over the number of ones has more than {_MOST_TERMS} terms")
    rows = release.statistics({model.column: jnp.arange(2)})
    ones = jnp.arange(n + 1.0)
    totals = n * rows[0] + ones[:, None] * (rows[1] - rows[0])
    log_noise = jnp.maximum(jax.jit(jax.vmap(release.log_density))(totals), _NOTHING)
    k = np.arange(n + 1.0)
    fixed = log_noise + gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

    def log_likelihood(theta: Theta) -> Array:
        return jax.nn.logsumexp(fixed + xlogy(ones, theta["p"]) + xlog1py(n - ones, -theta["p"]))

    return log_likelihood


def _reports(model: Bernoulli | Categorical, release: Release, n: int) -> LogLikelihood:
    found = reported(model, release)
    if isinstance(found, Truthful):
        missed = (n - found.reports.sum()) * np.log(found.blind)
        return lambda theta: jnp.sum(xlogy(found.reports, found.blind + found.truth * theta["p"])) + missed
    if found.counted is not None:
        raise Unsupported("reports beside released counts are not summed for one theta")

    def log_likelihood(theta: Theta) -> Array:
        one = theta["p"] if isinstance(model, Bernoulli) else theta["p"][1]
        each = jnp.logaddexp(jnp.log1p(-one) + found.log_zero, jnp.log(one) + found.log_one)
        return jnp.sum(found.counts * each)

    return log_likelihood


def _naive_bayes(model: NaiveBayes, release: Release, n: int) -> LogLikelihood:
    cells, where = naive_bayes_cells(model, release)
    _affordable(n, cells.weights.size)
    log_noise = _log_noise(cells, n)
    factorials = jnp.asarray(gammaln(np.arange(n + 1.0) + 1))

    def log_likelihood(theta: Theta) -> Array:
        classes = _powers(theta["class_probs"], n) - factorials + log_noise[where[0]]
        for k, cell in enumerate(where[1:], start=1):
            terms = _powers(theta[f"feature_probs_{k}"], n) - factorials + log_noise[cell]
            classes = classes + jax.vmap(_convolved)(terms) + factorials
        return _convolved(classes)[n] + factorials[n] + float(cells.log_size(n))

    return log_likelihood


def _log_noise(cells: Cells, n: int) -> Float[Array, "cells counts"]:
    counts = np.broadcast_to(np.arange(n + 1.0), (cells.weights.size, n + 1))
    # a finite floor for impossible counts, so that derivatives of sums without a possible term are numbers
    return jnp.maximum(jnp.asarray(cells.log_likelihood(counts)), _NOTHING)


def _powers(probability: Array, n: int) -> Array:
    return xlogy(jnp.arange(n + 1.0), probability[..., None])


def _convolved(log_terms: Float[Array, "cells counts"]) -> Float[Array, " totals"]:
    """The logarithm of the convolution over cells, at every total."""
    width = log_terms.shape[1]
    lag = np.arange(width)[:, None] - np.arange(width)
    inside, at = jnp.asarray(lag >= 0), jnp.asarray(np.maximum(lag, 0))

    def fold(total: Array, terms: Array) -> tuple[Array, None]:
        return jax.nn.logsumexp(jnp.where(inside, terms + total[at], _NOTHING), axis=1), None

    return jax.lax.scan(fold, log_terms[0], log_terms[1:])[0]


def _affordable(n: int, cells: int) -> None:
    if cells * (n + 1) ** 2 > _MOST_PAIRS:
        raise Unsupported(f"convolving {cells} cells of {n} records is too long")
