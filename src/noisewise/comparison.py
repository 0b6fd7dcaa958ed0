"""What a posterior is compared with: the prior, and the naive posterior that takes the released numbers as exact."""

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
from noisewise.release.document import Release
from noisewise.result import build_tree
from noisewise.run import Settings, fresh_seed, run_sampler
from noisewise.typing import Key, Theta

if TYPE_CHECKING:
    import xarray as xr

_PRIOR = 0x5072


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
    check_pair(model, release)
    engine = Naive()
    support = engine.supports(model, release)
    if not support.ok:
        raise ValueError(f"There is no naive posterior of this model and release: {support.reason}.")
    use_compilation_cache()
    seed = fresh_seed() if random_seed is None else random_seed
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


def add_comparisons(tree: xr.DataTree, model: Model, release: Release, *, draws: int = 4000) -> xr.DataTree:
    """The tree with the groups ``prior`` and, where the pair has one, ``naive``; the seed is the run's own.

    Attributes of ``naive`` say what was moved (``adjustments``), those of the root why it is missing (``noisewise_naive``).
    """
    import xarray as xr

    posterior = tree["posterior"].to_dataset()
    seed = int(tree.attrs["random_seed"])
    prior = prior_draws(model, draws=draws, random_seed=seed)
    groups = {
        "prior": xr.Dataset(
            {
                name: (("chain", "draw", *posterior[name].dims[2:]), np.asarray(value)[None])
                for name, value in prior.items()
            },
            coords={name: at for name, at in posterior.coords.items() if name not in ("chain", "draw")},
        )
    }
    support = Naive().supports(model, release)
    if support.ok:
        other = naive(model, release, draws=draws // 4, random_seed=seed)
        groups["naive"] = other["posterior"].to_dataset()
        groups["naive"].attrs["adjustments"] = other.attrs["noisewise_adjustments"]
    joined = tree.copy()
    for name, group in groups.items():
        joined[name] = xr.DataTree(group)
    joined.attrs["noisewise_naive"] = "" if support.ok else f"There is no naive posterior: {support.reason}."
    joined.attrs["noisewise_model"] = repr_model(model)
    return joined


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
