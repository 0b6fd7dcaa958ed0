"""What the analyst calls: the posterior of a model given a release, and which engine computes it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import noisewise
from noisewise import checkpoint as checkpoints
from noisewise.chains import START, in_groups
from noisewise.compilation import use_compilation_cache
from noisewise.engines.base import Engine, Sampler
from noisewise.engines.choose import Choice, choose
from noisewise.kernels.base import Kernel
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.result import build_tree, smallest_ess
from noisewise.run import run_kernel, run_sampler
from noisewise.settings import Settings, check_seed
from noisewise.typing import Key, Theta

if TYPE_CHECKING:
    import xarray as xr

_BUILD = 2**32 - 1


def sample(
    model: Model,
    release: Release,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    random_seed: int | None = None,
    method: str | Engine = "auto",
    thin: int = 1,
    target_ess: float | None = None,
    initvals: Mapping[str, Any] | None = None,
    keep_latent: int = 0,
    checkpoint: str | Path | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    r"""Draw from ``p(theta | release)``, the posterior that counts sampling, clamping and privacy noise.

    Parameters
    ----------
    model, release
        A model of the confidential records and what was published of them.
    draws, tune, chains, thin
        Recorded draws and tuning steps a chain, number of chains, and steps a recorded draw.
    random_seed
        A seed, or None for one from the operating system; it is recorded either way.
    method
        ``"auto"`` takes the best exact engine (see :func:`explain`), one that imputes records if ``keep_latent`` or ``initvals``
        ask for it; or an engine's name, or an engine object.
    target_ess
        Go on past ``draws`` until the smallest bulk effective sample size reaches this.
    initvals
        Starting values of parameters by name, for all chains (last axes) or one a chain (first axis).
    keep_latent
        How many imputed confidential databases to keep, in the group ``latent_data``.
    checkpoint
        A file that is kept up to date and from which the same call goes on, to the very same draws.
    progressbar
        Whether to show progress on a terminal.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior``, ``sample_stats``, ``observed_data``, ``release``, and, where there are any,
        ``posterior_predictive``, ``exact`` and ``latent_data``. A run that has not converged warns, and says so in
        ``attrs["noisewise_verdict"]``.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-10, 10)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [104.0])], n=100)
    >>> dt = nw.sample(nw.models.Normal(mean_prior=(0, 2), sd=1), release, random_seed=1)
    >>> 0.8 < float(dt.posterior["mean"].mean()) < 1.2
    True
    """
    use_compilation_cache()
    threading.Thread(target=_load_summaries, daemon=True).start()
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise ValueError(f"checkpoint must be the name of a file, or None; got {checkpoint!r}.")
    if initvals is not None and not isinstance(initvals, Mapping):
        raise ValueError(f"initvals must say values by parameter, as in {{'mean': 0.5}}; got {initvals!r}.")
    settings = Settings(
        draws,
        tune,
        chains,
        thin,
        target_ess,
        keep_latent,
        None if checkpoint is None else Path(checkpoint),
        progressbar,
    )
    of_chains = [name for name, given in (("keep_latent", keep_latent), ("initvals", initvals)) if given]
    choice = choose(model, release, method, of_chains=of_chains)
    seed = _seed(random_seed, settings.checkpoint)
    source = choice.engine.build(model, release, jax.random.fold_in(jax.random.key(seed), _BUILD))
    if isinstance(source, Sampler):
        if of_chains:
            raise ValueError(
                f"The {choice.engine.name} engine draws independently, without latent records or chains, so {', '.join(of_chains)} "
                'has no meaning for it; leave it out, or leave method="auto" to have an engine chosen that can.'
            )
        identity = checkpoints.fingerprint(noisewise.__version__, model, release, choice.engine)
        trace = run_sampler(source, settings, seed, identity=identity)
        exact = source.exact()
    else:
        starts = _starts(choice.engine, source, model, initvals, chains)
        identity = checkpoints.fingerprint(noisewise.__version__, model, release, choice.engine, _plain(initvals))
        trace = run_kernel(source, starts, settings, seed, identity=identity, effective=smallest_ess)
        exact = None
    return build_tree(
        trace,
        model,
        release,
        choice.engine,
        reason=choice.reason,
        doubts=choice.engine.doubts(model, release, trace.posterior, trace.stats),
        seed=seed,
        settings=settings,
        exact=exact,
        independent=isinstance(source, Sampler),
    )


def explain(model: Model, release: Release, method: str | Engine = "auto") -> Choice:
    """Which engine would run, why, and why not each of the others; print it for a table.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"y": 2, "x1": 2}, tables=[("y", "x1")])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [[[9.0, 4.1], [2.2, 6.3]]])], n=20)
    >>> nw.explain(nw.models.NaiveBayes(classes=2, features=[2]), release).engine.exact
    True
    """
    return choose(model, release, method, ask_all=True)


def _seed(random_seed: int | None, checkpoint: Path | None) -> int:
    if random_seed is None and checkpoint is not None and checkpoint.exists():
        return checkpoints.seed_of(checkpoint)
    return check_seed(random_seed)


def _plain(initvals: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    plain = {}
    for name, value in (initvals or {}).items():
        try:
            plain[name] = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(f"initvals[{name!r}] must be made of numbers; got {value!r}.") from None
    return plain


@eqx.filter_jit
def _engine_starts(engine: Engine, kernel: Kernel, keys: Key) -> Theta:
    return jax.vmap(lambda key: engine.start(kernel, jax.random.fold_in(key, START)))(keys)


def _load_summaries() -> None:
    """Import, beside the first compilation, what the end of a run needs."""
    for name in ("arviz_stats.base", "xarray"):
        importlib.import_module(name)


def _allowed(model: Model, theta: Theta) -> bool:
    """Whether values are inside their parameters' supports, where the unconstrained vector gives them back, and the prior's."""
    free = jax.vmap(model.unconstrain)(theta)
    again = jax.vmap(model.constrain)(free)
    inside = bool(np.all(np.isfinite(free))) and all(
        np.allclose(value, theta[name], rtol=1e-6, atol=1e-12) for name, value in again.items()
    )
    return inside and (not model.has_log_prior or bool(np.all(np.isfinite(jax.vmap(model.log_prior)(theta)))))


def _starts(engine: Engine, kernel: Kernel, model: Model, initvals: Mapping[str, Any] | None, chains: int) -> Any:
    """A function from chain keys to starting values: the engine's own, overridden by the given ones."""
    given = _plain(initvals)

    def starts(keys: Key) -> Theta:
        theta: Theta = in_groups(lambda group: _engine_starts(engine, kernel, group), keys)
        chains_shape = {name: (chains, *value.shape[1:]) for name, value in theta.items()}
        for name, value in given.items():
            if name not in theta:
                raise ValueError(f"initvals names {name!r}, but the model's parameters are {list(theta)}.")
            shape = chains_shape[name]
            if value.shape not in (shape, shape[1:]) or not np.all(np.isfinite(value)):
                raise ValueError(
                    f"initvals[{name!r}] must be finite with shape {shape[1:]}, or {shape} for a value a chain; "
                    f"got shape {value.shape}."
                )
            lanes = theta[name].shape[0]
            theta[name] = jnp.resize(jnp.broadcast_to(jnp.asarray(value), shape), (lanes, *shape[1:]))
        if given and not _allowed(model, theta):
            raise ValueError(
                f"initvals give a starting value that the model does not allow: {sorted(given)}. Probabilities lie between 0 and 1 "
                "and add up to one, variances are positive, covariance matrices positive definite."
            )
        return theta

    return starts
