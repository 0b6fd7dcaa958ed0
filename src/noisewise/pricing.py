r"""What privacy cost: the posterior variance of each parameter, split by where it comes from.

Write x for the confidential records, t for the exact totals of the release's queries (of clamped records, without noise) and s
for the release. Each of s, t, x says more than the one before, and by the law of total variance

    V0 = Var(theta),   V3 = Var(theta | s)  >=  V2 = E[Var(theta | t) | s]  >=  V1 = E[Var(theta | x) | s]:

V3 - V2 went to the noise, V2 - V1 to clamping and summing, and V1 is left with complete records. What the data alone would say is
``D = 1 / (1/V - 1/V0)``, the variance of an estimate that, weighed against the prior by precision, gives V. With
``w = V3 / V0``, the weight of the prior, the posterior variance is the sum of four parts:

    prior     w V3
    sampling  (1 - w) V3 D1 / D3
    clamping  (1 - w) V3 (D2 - D1) / D3
    noise     (1 - w) V3 (D3 - D2) / D3

For a normal mean with a normal prior these are the terms of ``Var(w m0 + (1 - w) estimate)``: ``w^2 tau^2``, ``(1-w)^2 sigma^2/n``, ... An
estimate from n' records in the clear has the variance ``D1 n / n'``, so the release is worth ``n D1 / D3`` records: it lost
``n (1 - D1/D2)`` to clamping and summing and ``n (D1/D2 - D1/D3)`` to the noise.

The means over x and t are over the posterior: of all databases that explain the release, not of the one behind it.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Array

from noisewise.chains import START, in_groups
from noisewise.compilation import use_compilation_cache
from noisewise.engines.augmentation import Augmentation, AugmentationKernel, AugmentationState
from noisewise.engines.choose import check_pair
from noisewise.kernels.base import Info, Kernel
from noisewise.kernels.walk import random_walk
from noisewise.models.base import Model
from noisewise.models.unknown_size import UnknownSize
from noisewise.release.document import Release
from noisewise.release.mechanism import AdditiveNoise
from noisewise.result import ConvergenceWarning, document_of, judge, smallest_ess
from noisewise.run import run_kernel
from noisewise.settings import Settings, check_seed
from noisewise.typing import Key, Theta

if TYPE_CHECKING:
    import xarray as xr

_PRIOR_DRAWS = 20_000
_MOVES = 30
_FOLDS = 10
_DEGREES = {1: 5, 2: 4, 3: 3, 4: 2, 5: 2, 6: 2}
_BUILD, _PRIOR = 2**32 - 4, 2**32 - 5
_PARTS = ("prior", "sampling", "clamping", "noise", "lost_to_clamping", "lost_to_noise")


@dataclass(frozen=True)
class Price:
    """The posterior variance of every parameter and its four parts; records lost. Arrays are in the order of ``labels``.

    ``prior + sampling + clamping + noise == variance``. ``stages`` has the rows V0, V1, V2, V3 of the module's formulas, and
    ``errors`` the Monte-Carlo standard errors by the name of the part. A part that is zero in truth may come out slightly
    negative, within its error. ``notes`` says what needs care.
    """

    labels: tuple[str, ...]
    n: int
    variance: np.ndarray
    prior: np.ndarray
    sampling: np.ndarray
    clamping: np.ndarray
    noise: np.ndarray
    lost_to_clamping: np.ndarray
    lost_to_noise: np.ndarray
    stages: np.ndarray
    errors: dict[str, np.ndarray]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = (
            f"{'parameter':<24}{'sd':>10}" + "".join(f"{name:>10}" for name in _PARTS[:4]) + f"{'records lost to':>24}"
        )
        lines = [head, f"{'':<74}{'clamping':>12}{'noise':>12}"]
        for j, label in enumerate(self.labels):
            shares = [getattr(self, name)[j] / self.variance[j] for name in _PARTS[:4]]
            lost = (self.lost_to_clamping[j], self.lost_to_noise[j])
            lines.append(
                f"{label:<24}{np.sqrt(self.variance[j]):>10.4g}"
                + "".join(f"{share:>10.1%}" for share in shares)
                + "".join(f"{number:>12.1f}" for number in lost)
            )
        return "\n".join([*lines, f"of {self.n} records", *self.notes])


def price(
    tree: xr.DataTree,
    model: Model | None = None,
    release: Release | None = None,
    *,
    draws: int = 2000,
    tune: int = 1000,
    chains: int = 4,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> Price:
    r"""Split the posterior variance of a run into prior, sampling, clamping and privacy noise, and count the records lost.

    ``tree`` is the run's result, whose variances are split; the model and the release are the ones it was made from, and are needed
    only where the result does not hold them (a model of functions, a release with code). The
    shares come from a run of record augmentation made here: given the release, ``p(theta | t)`` is the law of theta among draws
    of (theta, t), so ``V2`` is what a regression of theta on the totals leaves unexplained (polynomials, fitted on
    some draws and judged on others, which errs towards clamping where the true regression bends more), and ``V1`` is
    what theta varies with the records held fixed.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-50, 50)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Gaussian(10.0), [20.0])], n=100)
    >>> model = nw.models.Normal(mean_prior=(0, 2), sd=1)
    >>> dt = nw.sample(model, release, random_seed=1, progressbar=False)
    >>> cost = nw.price(dt, random_seed=1, progressbar=False)
    >>> 40 < float(cost.lost_to_noise[0]) < 60
    True
    """
    _check_result(tree)
    model, release = _made_from(tree, model, release)
    check_pair(model, release)
    _check(tree, model, release)
    settings = Settings(draws, tune, chains, progressbar=progressbar)
    use_compilation_cache()
    seed = check_seed(random_seed)
    root = jax.random.key(seed)
    inner = Augmentation().build(model, release, jax.random.fold_in(root, _BUILD))
    assert isinstance(inner, AugmentationKernel)
    kernel = TotalsKernel(inner)

    def starts(keys: Key) -> Theta:
        each = jax.vmap(lambda key: Augmentation().start(inner, jax.random.fold_in(key, START)))
        found: Theta = in_groups(each, keys)
        return found

    trace = run_kernel(kernel, starts, settings, seed, identity="", effective=smallest_ess)
    theta, total, within = (trace.posterior[name] for name in ("theta", "total", "within"))
    notes = []
    verdict = judge({"theta": theta})
    if not verdict.converged:
        notes.append(verdict.sentence)
        warnings.warn(verdict.sentence, ConvergenceWarning, stacklevel=2)
    prior = np.asarray(_prior_draws(model, jax.random.split(jax.random.fold_in(root, _PRIOR), _PRIOR_DRAWS)))
    variance, variance_error = _posterior_variance(tree, model)
    series = np.stack([within, _unexplained(theta, total) ** 2, (theta - theta.mean(axis=(0, 1))) ** 2])
    return _split(_labels(model), int(release.n or 0), series, prior, variance, variance_error, notes)


def _check_result(tree: xr.DataTree) -> None:
    if not hasattr(tree, "children") or not {"posterior", "observed_data"} <= set(tree.children):
        raise ValueError(f"nw.price takes the result of nw.sample first; got {str(tree)[:80]}.")


def _made_from(tree: xr.DataTree, model: Model | None, release: Release | None) -> tuple[Model, Release]:
    """The given model and release, or those that the result holds."""
    from noisewise.comparison import model_of, release_of

    model = model_of(tree) if model is None else model
    if model is None:
        raise ValueError("The result does not hold its model, which is made of functions; give nw.price(dt, model).")
    return model, release_of(tree) if release is None else release


def _check(tree: xr.DataTree, model: Model, release: Release) -> None:
    if isinstance(model, UnknownSize) or release.n is None:
        raise ValueError("nw.price counts records lost out of n, so it needs a release with a known n.")
    others = [
        name
        for name, m in zip(release.names, release.measurements, strict=True)
        if not isinstance(m.mechanism, AdditiveNoise)
    ]
    if others:
        raise ValueError(
            f"nw.price needs noise added to the totals of queries; {', '.join(others)} is another mechanism."
        )
    if not (model.has_update or model.has_log_likelihood):
        raise ValueError("nw.price needs a model with an update or a log_likelihood.")
    missing = [name for name in model.parameters if name not in tree["posterior"]]
    if missing:
        raise ValueError(f"The result has no draws of {missing}: it was made with another model.")
    observed = tree["observed_data"]
    for name, measurement in zip(release.names, release.measurements, strict=True):
        if name not in observed or not np.array_equal(np.asarray(observed[name]), np.asarray(measurement.value)):
            raise ValueError(
                f"The result was made from another release: {name!r} differs. Give the release it was made from."
            )
    known = tree["release"].attrs.get("document", "") if "release" in tree.children else ""
    if str(known).startswith("{") and known != document_of(release):
        raise ValueError(
            "The result was made from another release: its values are the same, but its n, its queries or its noise are not. Give "
            "the release it was made from."
        )


class TotalsKernel(Kernel):
    """Record augmentation that reports theta, the exact totals t, and an estimate of ``Var(theta | x)`` at every draw."""

    inner: AugmentationKernel

    def init(self, key: Key, start: Theta) -> Any:
        return self.inner.init(key, start), jnp.zeros(_vector(self.inner.model, start).shape)

    def step(self, key: Key, state: Any) -> tuple[Any, Info]:
        step_key, again_key = jax.random.split(key)
        inner, info = self.inner.step(step_key, state[0])
        again = self._again(again_key, inner)
        # two draws of theta given the same records differ by twice Var(theta | x) in mean square
        within = 0.5 * (_vector(self.inner.model, again) - _vector(self.inner.model, inner.theta)) ** 2
        return (inner, within), Info(info.stats, {})

    def adapt(self, state: Any, info: Info) -> Any:
        return self.inner.adapt(state[0], info), state[1]

    def theta(self, state: Any) -> Theta:
        inner, within = state
        total = jnp.sum(self.inner.release.statistics(inner.records), axis=0)
        return {"theta": _vector(self.inner.model, inner.theta), "total": total, "within": within}

    def _again(self, key: Key, state: AugmentationState) -> Theta:
        """Another draw of theta given the records; by many moves where the model has no exact one."""
        model = self.inner.model
        if model.has_update and model.conjugate:
            return model.update(key, state.theta, state.records)
        keys = jax.random.split(key, _MOVES)
        if model.has_update:
            return jax.lax.scan(lambda now, k: (model.update(k, now, state.records), None), state.theta, keys)[0]

        def log_target(z: Array) -> Array:
            return model.log_prior_free(z) + jnp.sum(model.log_likelihood(model.constrain(z), state.records))

        walked = random_walk(key, log_target, model.unconstrain(state.theta), state.centred, moves=_MOVES**2)
        return model.constrain(walked.position)


def _vector(model: Model, theta: Theta) -> Array:
    return jnp.concatenate([theta[name].reshape(-1) for name in model.parameters])


def _labels(model: Model) -> tuple[str, ...]:
    """One name a scalar, in the form of the summary: ``beta[intercept]``."""
    found = []
    for name, parameter in model.parameters.items():
        known = dict(parameter.coords)
        dims = parameter.dims or ("",) * len(parameter.shape)
        axes = [known.get(dim, tuple(map(str, range(size)))) for dim, size in zip(dims, parameter.shape, strict=True)]
        found += [name + (f"[{','.join(at)}]" if at else "") for at in itertools.product(*axes)]
    return tuple(found)


@eqx.filter_jit
def _prior_draws(model: Model, keys: Key) -> Array:
    return jax.vmap(lambda key: _vector(model, model.sample_prior(key)))(keys)


def _posterior_variance(tree: xr.DataTree, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """The variances of the result, with their Monte-Carlo errors (none where the result knows them exactly)."""
    if "exact" in tree.children:
        exact = tree["exact"]
        variance = np.concatenate([np.ravel(exact[f"{name}_sd"]) ** 2 for name in model.parameters])
        return variance, np.zeros_like(variance)
    posterior = tree["posterior"]
    draws = [np.asarray(posterior[name]) for name in model.parameters]
    flat = np.concatenate([value.reshape(*value.shape[:2], -1) for value in draws], axis=-1)
    squares = (flat - flat.mean(axis=(0, 1))) ** 2
    return squares.mean(axis=(0, 1)), _errors(squares)


def _unexplained(theta: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Residuals of the regression of theta on polynomials of the totals, each from a fit to other draws."""
    features = _features(total.reshape(-1, total.shape[-1])).reshape(*total.shape[:2], -1)
    residual = np.empty_like(theta)
    for fold in np.array_split(np.arange(theta.shape[1]), min(_FOLDS, theta.shape[1])):
        rest = np.setdiff1d(np.arange(theta.shape[1]), fold)
        x, y = (value[:, rest].reshape(-1, value.shape[-1]) for value in (features, theta))
        coefficients = np.linalg.lstsq(x, y, rcond=1e-10)[0]
        residual[:, fold] = theta[:, fold] - features[:, fold] @ coefficients
    return residual


def _features(total: np.ndarray) -> np.ndarray:
    """Polynomials of the principal components of the totals, of a degree that falls with their number."""
    centred = total - total.mean(axis=0)
    scale = centred.std(axis=0)
    moving = scale > 1e-12 * (1 + np.abs(total).max(axis=0))
    if not np.any(moving):
        return np.ones((len(total), 1))
    left, singular, _ = np.linalg.svd(centred[:, moving] / scale[moving], full_matrices=False)
    kept = singular > 1e-8 * singular[0]
    components = left[:, kept] * np.sqrt(len(total))
    size = components.shape[1]
    columns = [np.ones(len(total))]
    for degree in range(1, _DEGREES.get(size, 1) + 1):
        for chosen in itertools.combinations_with_replacement(range(size), degree):
            columns.append(np.prod(components[:, list(chosen)], axis=1))
    return np.stack(columns, axis=1)


def _errors(draws: np.ndarray) -> np.ndarray:
    """Monte-Carlo standard errors of the means of draws (chain, draw, column)."""
    found = [array_stats.mcse(column, chain_axis=0, draw_axis=1, method="mean") for column in np.moveaxis(draws, -1, 0)]
    return np.asarray(found, dtype=float)


def _parts(stages: Array, variance: Array, n: int) -> Array:
    """The parts of one variance, from (V0, V1, V2, V3) of the run made here and the variance of the result."""
    v0, v1, v2, v3 = stages
    v1, v2 = v1 * variance / v3, v2 * variance / v3
    weight = variance / v0
    d1, d2, d3 = (1 / (1 / v - 1 / v0) for v in (v1, v2, variance))
    data = (1 - weight) * variance
    parts = [weight * variance, data * d1 / d3, data * (d2 - d1) / d3, data * (d3 - d2) / d3]
    return jnp.stack([*parts, n * (1 - d1 / d2), n * (d1 / d2 - d1 / d3)])


def _split(
    labels: tuple[str, ...],
    n: int,
    series: np.ndarray,
    prior: np.ndarray,
    variance: np.ndarray,
    variance_error: np.ndarray,
    notes: list[str],
) -> Price:
    """The parts and their errors; ``series`` has the draws whose means are V1, V2 and V3, (stage, chain, draw, column)."""
    squares = (prior - prior.mean(axis=0)) ** 2
    v0 = squares.mean(axis=0)
    v0_error = squares.std(axis=0) / np.sqrt(len(prior))
    stages = np.concatenate([v0[None], series.mean(axis=(1, 2))])
    parts = np.empty((len(_PARTS), len(labels)))
    errors = np.empty_like(parts)
    for j, label in enumerate(labels):
        if variance[j] >= v0[j]:
            # no estimate with a positive variance turns the prior into a wider posterior
            parts[:, j] = [variance[j], 0.0, 0.0, 0.0, 0.0, n]
            errors[:, j] = np.nan
            notes.append(f"{label}: the posterior is as wide as the prior, so all of it is put down to the prior.")
            continue
        point = (jnp.asarray(stages[:, j]), jnp.asarray(variance[j]))
        parts[:, j] = _parts(*point, n)
        by_stage, by_variance = (np.asarray(slope) for slope in jax.jacfwd(_parts, argnums=(0, 1))(*point, n))
        influence = np.einsum("ps,scd->cdp", by_stage[:, 1:], series[..., j])
        others = (by_variance * variance_error[j]) ** 2 + (by_stage[:, 0] * v0_error[j]) ** 2
        errors[:, j] = np.sqrt(_errors(influence) ** 2 + others)
    named = dict(zip(_PARTS, parts, strict=True))
    stages[1:3] *= variance / stages[3]
    stages[3] = variance
    return Price(
        labels, n, variance, **named, stages=stages, errors=dict(zip(_PARTS, errors, strict=True)), notes=tuple(notes)
    )
