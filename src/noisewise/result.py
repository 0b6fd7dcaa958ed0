"""The result of a run: an xarray DataTree that ArviZ reads, judged before it is handed out."""

from __future__ import annotations

import dataclasses
import datetime
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import noisewise
from noisewise.engines.base import Engine, Exact
from noisewise.models.base import Model
from noisewise.models.words import expression
from noisewise.release.document import Release
from noisewise.run import Trace
from noisewise.settings import Settings

if TYPE_CHECKING:
    import xarray as xr

RHAT_LIMIT = 1.01
ESS_PER_CHAIN = 100


class ConvergenceWarning(UserWarning):
    """The chains do not agree well enough for their draws to be trusted."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run can be trusted: the worst rank R-hat and the smallest bulk and tail ESS over all parameters."""

    rhat: float
    ess_bulk: float
    ess_tail: float
    chains: int

    @property
    def converged(self) -> bool:
        """R-hat below 1.01 and at least 100 effective draws a chain, in the bulk and in the tails."""
        least = ESS_PER_CHAIN * self.chains
        return self.rhat < RHAT_LIMIT and self.ess_bulk >= least and self.ess_tail >= least

    @property
    def figures(self) -> str:
        """The three numbers that the verdict rests on."""
        return f"largest R-hat {self.rhat:.3f}, smallest ESS {self.ess_bulk:,.0f} (bulk), {self.ess_tail:,.0f} (tail)"

    @property
    def sentence(self) -> str:
        """The verdict in words, with what to do."""
        figures = self.figures
        if np.isnan(self.rhat) and self.chains > 1:
            return "NOT converged: some draws are not finite, nothing moved, or there are too few. Check the prior and the starting values."
        if self.converged:
            return f"Converged: {figures}."
        if self.chains < 2:
            return f"Convergence cannot be judged from so few draws: {figures}. Run at least 2 chains of 100 draws."
        if self.rhat >= RHAT_LIMIT:
            return f"NOT converged: {figures}. Run longer (tune=, draws=), and look at the traces before any use."
        return f"Too few effective draws: {figures}. Run longer (draws= or target_ess=)."


def judge(posterior: dict[str, np.ndarray]) -> Verdict:
    """The verdict on draws (chain, draw, ...) by parameter."""
    columns = [
        value.reshape(*value.shape[:2], -1)[..., j]
        for value in posterior.values()
        for j in range(int(np.prod(value.shape[2:])))
    ]
    moving = [column for column in columns if np.ptp(column) > 0]
    chains, draws = columns[0].shape
    if not all(np.all(np.isfinite(column)) for column in columns) or not moving or draws < 4:
        return Verdict(float("nan"), 0.0, 0.0, chains)
    from arviz_stats.base import array_stats

    def each(name: str, **how: object) -> list[float]:
        # chains that each stand still in a place of their own have an infinite R-hat
        with np.errstate(divide="ignore", invalid="ignore"):
            return [float(getattr(array_stats, name)(c, chain_axis=0, draw_axis=1, **how)) for c in moving]

    rhat = max(each("rhat")) if chains > 1 else float("nan")
    tail = each("ess", method="tail", prob=(0.05, 0.95))
    return Verdict(rhat, min(each("ess", method="bulk")), min(tail), chains)


def smallest_ess(posterior: dict[str, np.ndarray]) -> float:
    """The smallest bulk effective sample size over all parameters."""
    return judge(posterior).ess_bulk


def build_tree(
    trace: Trace,
    model: Model,
    release: Release,
    engine: Engine,
    *,
    reason: str,
    seed: int,
    settings: Settings,
    doubts: tuple[str, ...] = (),
    exact: Exact | None = None,
    independent: bool = False,
) -> xr.DataTree:
    """The DataTree of a run, with a warning when the run has not converged."""
    import xarray as xr

    verdict = judge(trace.posterior)
    coords: dict[str, object] = {"chain": np.arange(settings.chains), "draw": np.arange(trace.length)}
    dims: dict[str, tuple[str, ...]] = {}
    for name, parameter in model.parameters.items():
        dims[name] = parameter.dims or tuple(f"{name}_dim_{j}" for j in range(len(parameter.shape)))
        coords |= {dim: list(labels) for dim, labels in parameter.coords}

    def dataset(values: dict[str, np.ndarray], inner: dict[str, tuple[str, ...]]) -> xr.Dataset:
        arrays = {}
        for name, value in values.items():
            rest = inner.get(name, tuple(f"{name}_dim_{j}" for j in range(value.ndim - 2)))
            arrays[name] = (("chain", "draw", *rest), value)
        used = {dim for axes, _ in arrays.values() for dim in axes}
        return xr.Dataset(arrays, coords={dim: at for dim, at in coords.items() if dim in used})

    values = dict(zip(release.names, (np.asarray(m.value) for m in release.measurements), strict=True))
    for name, measurement in zip(values, release.measurements, strict=True):
        if measurement.query is not None:
            coords[f"{name}_dim_0"] = list(measurement.query.labels)
    posterior = dataset(trace.posterior, dims)
    for name, share in missing_information(trace).items():
        # a list of one would come back from a file as a number
        posterior[name].attrs["missing_information"] = (
            np.ravel(share).tolist() if share.size > 1 else float(share.item())
        )
    groups = {
        "posterior": posterior,
        "sample_stats": dataset(trace.stats, {}),
        "observed_data": xr.Dataset(
            {name: ([f"{name}_dim_{j}" for j in range(value.ndim)], value) for name, value in values.items()},
            coords={f"{name}_dim_0": coords[f"{name}_dim_0"] for name in values if f"{name}_dim_0" in coords},
        ),
        "release": xr.Dataset(attrs={"document": document_of(release), "description": release.describe()}),
    }
    if trace.predictive:
        groups["posterior_predictive"] = dataset(trace.predictive, {})
    if exact is not None:
        known = {f"{name}_{what}": of[name] for what, of in (("mean", exact.means), ("sd", exact.sds)) for name in of}
        groups["exact"] = xr.Dataset(
            {name: (dims[name.rpartition("_")[0]], np.asarray(value)) for name, value in known.items()},
            attrs={"log_marginal_likelihood": float(exact.log_marginal)},
        )
    if trace.latent:
        groups["latent_data"] = xr.Dataset(
            {name: (("imputation", "record"), value) for name, value in trace.latent.items()}
        )
    converged = verdict.converged and not (engine.exact and doubts)
    sentence = verdict.sentence
    if independent:
        sentence = "Independent draws: nothing to converge."
    elif converged != verdict.converged:
        sentence = f"NOT converged, although the chains agree with each other ({verdict.figures})."
    said = " ".join([sentence, *(f"Doubtful: {doubt}." for doubt in doubts)])
    attrs = {
        "inference_library": "noisewise",
        "inference_library_version": noisewise.__version__,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
        "random_seed": seed,
        "noisewise_method": engine.name,
        "noisewise_engine": engine_expression(engine) or "",
        "noisewise_model_expression": expression(model) or "",
        "noisewise_exact": int(engine.exact),
        "noisewise_reason": reason,
        "noisewise_independent_draws": int(independent),
        "noisewise_converged": int(converged or independent),
        "noisewise_verdict": said,
        "noisewise_doubts": "; ".join(doubts),
        "sampling_time": trace.sampling_time,
        "tuning_steps": 0 if independent else settings.tune,
        "thin": settings.thin,
        "interrupted": int(trace.interrupted),
    }
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(attrs)
    if not independent and not converged:
        warnings.warn(said, ConvergenceWarning, stacklevel=3)
    if trace.short:
        warnings.warn(
            f"target_ess={settings.target_ess:g} was not reached within {trace.length:,} draws a chain "
            f"(smallest ESS {verdict.ess_bulk:,.0f}). Raise draws or thin.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return tree


def engine_expression(engine: Engine) -> str | None:
    """The Python expression that makes the engine again, or None where there is none (functions, engines that are not public).

    >>> import noisewise as nw
    >>> engine_expression(nw.engines.Augmentation(interweave=False))
    'nw.engines.Augmentation(interweave=False)'
    """
    fields = [(field, getattr(engine, field.name)) for field in dataclasses.fields(engine)]
    changed = {field.name: value for field, value in fields if value is not field.default}
    public = getattr(noisewise.engines, type(engine).__name__, None) is type(engine)
    if not public or not all(isinstance(value, str | int | float | None) for value in changed.values()):
        return None
    return f"nw.engines.{type(engine).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def document_of(release: Release) -> str:
    """The release document as JSON text, or the sentence that says why the release cannot be written as one."""
    from noisewise.release.query_documents import in_place
    from noisewise.release.schema import write_document

    try:
        return write_document(release, in_place).model_dump_json()
    except ValueError as error:
        return f"not available: {error}"


def missing_information(trace: Trace) -> dict[str, np.ndarray]:
    """The fraction of each parameter's posterior variance that complete records would leave, in [0, 1].

    ``gamma = E[Var(theta | x)] / Var(theta)``: near 0, record augmentation alone crawls and the release says far less than
    the records would.
    """
    shares = {}
    for name, within in trace.within.items():
        variance = trace.posterior[name].var(axis=(0, 1))
        shares[name] = np.clip(np.divide(within, variance, out=np.ones_like(within), where=variance > 0), 0.0, 1.0)
    return shares
