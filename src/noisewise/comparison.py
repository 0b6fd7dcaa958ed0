"""What a posterior is compared with: the prior, other weights of the prior, the naive posterior, and what privacy cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from noisewise.compilation import use_compilation_cache
from noisewise.engines.choose import check_pair
from noisewise.engines.naive import Naive
from noisewise.models.base import Model
from noisewise.models.words import formulas, read_expression
from noisewise.release.document import Release
from noisewise.result import ESS_PER_CHAIN, build_tree
from noisewise.run import run_sampler
from noisewise.settings import Settings, check_seed
from noisewise.typing import Key, Theta

if TYPE_CHECKING:
    import xarray as xr

_PRIOR = 0x5072
POWERS = (0.5, 2.0)
"""The powers of the prior under which a posterior is looked at again."""
_WEIGHED = 4000


def naive(
    model: Model, release: Release, *, draws: int = 1000, chains: int = 4, random_seed: int | None = None
) -> xr.DataTree:
    r"""Draw from the posterior that takes the released numbers as if they were exact, to compare with.

    It ignores the noise and the clamping, so its intervals are too narrow and in the wrong place: this is what
    :func:`noisewise.sample` is there to avoid. Statistics that no records could give (negative counts, moment matrices that are
    not positive semidefinite) are moved to the nearest possible ones, which ``attrs["noisewise_adjustments"]`` says.

    Returns
    -------
    xarray.DataTree
        In the form of :func:`noisewise.sample`; ``noisewise_method`` is ``"naive"`` and ``noisewise_exact`` is 0.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(10.0), [112.0])], n=100)
    >>> dt = nw.naive(nw.models.Bernoulli(), release, random_seed=1)
    >>> dt.attrs["noisewise_adjustments"]
    'the sum of x, 112, is impossible for 100 records; taken as 100'
    """
    settings = Settings(draws=draws, tune=0, chains=chains, progressbar=False)
    seed = check_seed(random_seed)
    check_pair(model, release)
    engine = Naive()
    support = engine.supports(model, release)
    if not support.ok:
        raise ValueError(f"There is no naive posterior of this model and release: {support.reason}.")
    use_compilation_cache()
    adjustments = "; ".join(engine.read(model, release)[1])
    sampler = engine.build(model, release, jax.random.key(0))
    tree = build_tree(
        run_sampler(sampler, settings, seed),
        model,
        release,
        engine,
        reason="naive: the released numbers were taken as if exact, to compare with.",
        seed=seed,
        settings=settings,
        independent=True,
    )
    tree.attrs["noisewise_adjustments"] = adjustments
    return tree


@eqx.filter_jit
def _prior_draws(model: Model, keys: Key) -> Theta:
    return jax.vmap(model.sample_prior)(keys)


def prior_draws(model: Model, *, draws: int, random_seed: int) -> dict[str, Array]:
    """Draws of the parameters from their prior, (draws, ...) by name."""
    use_compilation_cache()
    key = jax.random.fold_in(jax.random.key(random_seed), _PRIOR)
    return _prior_draws(model, jax.random.split(key, draws))


def release_of(tree: xr.DataTree) -> Release:
    """The release that a result was made from, read from the document it holds."""
    from noisewise.release.schema import ReleaseDocument, read_document

    if "release" not in tree.children:
        raise ValueError("This run holds no release to compare with; leave model out.")
    document = str(tree["release"].attrs["document"])
    if not document.startswith("{"):
        raise ValueError(f"The release of this run is {document}; leave model out to go on without a comparison.")
    return read_document(
        ReleaseDocument.model_validate_json(document), lambda numbers: np.asarray(numbers, dtype=float)
    )


def model_of(tree: xr.DataTree) -> Model | None:
    """The model that a result was made with, or None where it was one of functions, which a result cannot hold."""
    text = str(tree.attrs.get("noisewise_model_expression", ""))
    return read_expression(text) if text else None


def compared(tree: xr.DataTree, model: Model | None = None, *, price: bool = False) -> xr.DataTree:
    """The tree with what it is compared with: as it is where that is there, or where neither the tree nor ``model`` says the model."""
    if model is not None and not isinstance(model, Model):
        raise ValueError(f"model must be the model of the run, such as nw.models.Normal(...); got {model!r}.")
    held = "release" in tree.children and str(tree["release"].attrs["document"]).startswith("{")
    if model is None and held and ("prior" not in tree.children or price):
        model = model_of(tree)
    if model is not None:
        return add_comparisons(tree, model, release_of(tree), price=price)
    if price:
        raise ValueError(
            "The price of privacy needs the model of the run, which this result does not hold; give model= as well."
        )
    return tree


def add_comparisons(
    tree: xr.DataTree, model: Model, release: Release, *, draws: int = 4000, price: bool = False
) -> xr.DataTree:
    """The tree with the groups ``prior``, ``prior_sensitivity``, and ``naive`` where the pair has one; the seed is the run's own.

    With ``price`` also what privacy cost (:func:`noisewise.price`, a run of record augmentation). Attributes of ``naive`` say
    what was moved (``adjustments``), those of the root why a group is missing (``noisewise_naive``, ``noisewise_price``).
    """
    import xarray as xr

    posterior = tree["posterior"].to_dataset()
    seed = int(tree.attrs["random_seed"])
    joined = tree.copy()
    prior = prior_draws(model, draws=draws, random_seed=seed)
    joined["prior"] = xr.DataTree(
        xr.Dataset(
            {
                name: (("chain", "draw", *posterior[name].dims[2:]), np.asarray(value)[None])
                for name, value in prior.items()
            },
            coords={name: at for name, at in posterior.coords.items() if name not in ("chain", "draw")},
        )
    )
    if model.has_log_prior:
        joined["prior_sensitivity"] = xr.DataTree(prior_sensitivity(tree, model))
    support = Naive().supports(model, release)
    if support.ok:
        other = naive(model, release, draws=draws // 4, random_seed=seed)
        group = other["posterior"].to_dataset()
        group.attrs["adjustments"] = other.attrs["noisewise_adjustments"]
        joined["naive"] = xr.DataTree(group)
    joined.attrs["noisewise_naive"] = "" if support.ok else f"There is no naive posterior: {support.reason}."
    if price:
        _add_price(joined, model, release, seed)
    joined.attrs["noisewise_model"] = repr_model(model)
    joined.attrs["noisewise_model_formulas"] = "\n".join(formulas(model))
    return joined


def _add_price(tree: xr.DataTree, model: Model, release: Release, seed: int) -> None:
    import xarray as xr

    from noisewise.pricing import price

    try:
        cost = price(tree, model, release, random_seed=seed, progressbar=False)
    except ValueError as reason:
        tree.attrs["noisewise_price"] = str(reason)
        return
    parts = ("variance", "prior", "sampling", "clamping", "noise", "lost_to_clamping", "lost_to_noise")
    tree["price"] = xr.DataTree(
        xr.Dataset(
            {part: ("parameter", getattr(cost, part)) for part in parts},
            coords={"parameter": list(cost.labels)},
            attrs={"n": cost.n, "notes": " ".join(cost.notes)},
        )
    )


@eqx.filter_jit
def _log_prior(model: Model, theta: Theta) -> Array:
    return jax.vmap(model.log_prior)(theta)


def prior_sensitivity(tree: xr.DataTree, model: Model) -> xr.Dataset:
    r"""Posterior means and sds under the prior's density to a power: half the prior's weight, and twice.

    The draws are weighed by ``p(theta)^(power - 1)`` (power-scaling: Kallioinen, Paananen, Bürkner and Vehtari 2024). Every
    parameter has the dimensions ``power`` and ``moment`` (mean, sd) before its own; ``effective`` is the number of equally weighted
    draws that the weights are worth, and below 100 the moments are left out (NaN).
    """
    import xarray as xr

    posterior = tree["posterior"].to_dataset()
    flat = {name: posterior[name].values for name in model.parameters}
    count = int(np.prod(next(iter(flat.values())).shape[:2]))
    some = np.linspace(0, count - 1, min(count, _WEIGHED)).astype(int)
    theta = {name: value.reshape(count, *value.shape[2:])[some] for name, value in flat.items()}
    log_prior = np.asarray(_log_prior(model, theta))
    moments: dict[str, list[np.ndarray]] = {name: [] for name in theta}
    effective = []
    for power in POWERS:
        # a draw at the edge of the support, where the density is 0 or infinite, has no weight to trust
        log_weights = (power - 1) * (log_prior if np.all(np.isfinite(log_prior)) else np.full(log_prior.shape, np.nan))
        weights = np.exp(log_weights - np.max(log_weights))
        weights /= weights.sum()
        effective.append(float(np.nan_to_num(1.0 / np.sum(weights**2))))
        for name, value in theta.items():
            mean = np.tensordot(weights, value, 1)
            sd = np.sqrt(np.tensordot(weights, (value - mean) ** 2, 1))
            moments[name].append(np.stack([mean, sd]) * (1.0 if effective[-1] >= ESS_PER_CHAIN else np.nan))
    arrays = {
        name: (("power", "moment", *posterior[name].dims[2:]), np.stack(found)) for name, found in moments.items()
    }
    inner = {name: at for name, at in posterior.coords.items() if name not in ("chain", "draw")}
    return xr.Dataset(
        {**arrays, "effective": ("power", effective)},
        coords={**inner, "power": list(POWERS), "moment": ["mean", "sd"]},
    )


def repr_model(model: Model) -> str:
    """A model in one line: its name, its settings and its priors."""
    fields = (f"{name}={_plain(value)}" for name, value in vars(model).items())
    return f"{type(model).__name__}({', '.join(fields)})"


def _plain(value: object) -> str:
    if isinstance(value, eqx.Module):
        return f"{type(value).__name__}({', '.join(f'{n}={_plain(v)}' for n, v in vars(value).items())})"
    if isinstance(value, jax.Array):
        return np.array2string(np.asarray(value), precision=6, separator=", ").replace("\n", "")
    return repr(value)
