"""Which engine computes a posterior: every engine is asked, the first exact one that can is taken, and the reason is kept."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.base import Engine, Support
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.release.queries import Counts, Moments
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.records import RecordNoise
from noisewise.typing import Key

_TRIALS, _REPORTS = 16, 256

# in the order of preference: engines without Markov chains first; approximate engines are only ever named, never chosen
_ENGINES = {
    "counts": "noisewise.engines.counts:Counts",
    "fourier": "noisewise.engines.fourier:Fourier",
    "microdata": "noisewise.engines.microdata:Microdata",
    "augmentation": "noisewise.engines.augmentation:Augmentation",
    "sufficient": "noisewise.engines.sufficient:Sufficient",
}


@dataclass(frozen=True)
class Candidate:
    """An engine with its answer for one pair of model and release."""

    engine: Engine
    support: Support


@dataclass(frozen=True, repr=False)
class Choice:
    """The engine that runs, why, and what the others said; it shows itself as a table."""

    engine: Engine
    reason: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        rows = [("engine", "exact", "runs", "cost", "why")]
        for candidate in self.candidates:
            chosen = candidate.engine.name == self.engine.name
            runs = "chosen" if chosen else "could" if candidate.support.ok else "cannot"
            exact = "yes" if candidate.engine.exact else "no"
            rows.append((candidate.engine.name, exact, runs, candidate.support.cost or "-", candidate.support.reason))
        widths = [max(len(row[j]) for row in rows) for j in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, "", self.reason])

    __repr__ = __str__


def engine_named(name: str) -> Engine:
    """The engine of this name, with its default settings."""
    if name not in _ENGINES:
        known = ", ".join(repr(known) for known in ("auto", *_ENGINES))
        raise ValueError(f"method must be one of {known}, or an engine object; got {name!r}.")
    module, _, attribute = _ENGINES[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine


def choose(
    model: Model,
    release: Release,
    method: str | Engine = "auto",
    *,
    ask_all: bool = False,
    of_chains: Sequence[str] = (),
) -> Choice:
    """The engine for a pair of model and release, or a ``ValueError`` that says why there is none.

    Engines after the chosen one are asked only with ``ask_all``, for the table: an answer may cost a trial evaluation.
    ``of_chains`` names what was asked for that only chains over imputed records can give.
    """
    check_pair(model, release)
    if method != "auto":
        engine = method if isinstance(method, Engine) else engine_named(method)
        support = engine.supports(model, release)
        if not support.ok:
            raise ValueError(
                f"The {engine.name} engine cannot do this model and release: {support.reason}. "
                'Leave method="auto" to have an engine chosen, or see nw.explain(model, release).'
            )
        others = [_ask(name, model, release) for name in _ENGINES if ask_all and name != engine.name]
        return Choice(engine, f"{engine.name}: asked for by name.", (Candidate(engine, support), *others))
    candidates: list[Candidate] = []
    best = None
    for name in _ENGINES:
        if best is None or ask_all:
            candidates.append(_aside(_ask(name, model, release), of_chains))
            if best is None and candidates[-1].support.ok and candidates[-1].engine.exact:
                best = candidates[-1]
    if best is None:
        reasons = "; ".join(f"{candidate.engine.name}: {candidate.support.reason}" for candidate in candidates)
        raise ValueError(f"No exact engine can do this model and release. {reasons}.")
    passed = [f"{c.engine.name} cannot: {c.support.reason}" for c in candidates[: candidates.index(best)]]
    reason = ". ".join([f"{best.engine.name}: {best.support.reason}", *passed]) + "."
    return Choice(best.engine, reason, tuple(candidates))


def _aside(candidate: Candidate, of_chains: Sequence[str]) -> Candidate:
    """The candidate, unless it draws independently and more was asked for than that."""
    if not (of_chains and candidate.support.ok and candidate.engine.independent):
        return candidate
    reason = f"it imputes no records and runs no chains, for which {' and '.join(of_chains)} asks"
    return Candidate(candidate.engine, Support(False, reason))


def _ask(name: str, model: Model, release: Release) -> Candidate:
    engine = engine_named(name)
    return Candidate(engine, engine.supports(model, release))


def check_pair(model: Model, release: Release) -> None:
    """Refuse a pair that has nothing to say to each other."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a noisewise model, for example nw.models.Normal(...); got {str(model)[:80]}.")
    if not isinstance(release, Release):
        raise ValueError(
            f"release must be a nw.Release; got {str(release)[:80]}. nw.Release.load(path) reads a document."
        )
    unknown = [name for name in release.columns if name not in model.columns]
    if unknown:
        raise ValueError(
            f"The release reads the columns {unknown}, which the model does not describe: its columns are "
            f"{list(model.columns)}. Rename the model's columns, or take a model that describes them."
        )
    if not release.columns:
        raise ValueError("The release says nothing about the model: its measurements read no column of the records.")
    _check_codes(model, release)


def _check_codes(model: Model, release: Release) -> None:
    """Refuse counts of what the model does not make codes of, and integer noise on sums of what are not integers."""
    for measurement in release.measurements:
        query, noise = measurement.query, measurement.noise
        if isinstance(measurement.mechanism, RecordNoise):
            _check_reports(model, measurement.mechanism)
        if isinstance(query, Counts):
            why = f"The release counts the codes of {{name!r}}, but the {type(model).__name__} model's {{name!r}} is not a code"
            needed = dict.fromkeys(name for table in query.tables for name in table)
            for name, levels in query.levels:
                known = model.level_counts.get(name, levels)
                if known != levels and name in needed:
                    raise ValueError(
                        f"The release counts {name!r} at {levels} levels, but the model gives it {known}; "
                        "give both the same number of levels."
                    )
        elif query is not None and noise is not None and noise.discrete and not query.integer:
            why = (
                f"{type(noise).__name__} noise on a sum of {{name!r}} is for integers, but the {type(model).__name__} model's "
                "{name!r} is not an integer, so that it gives every release probability zero"
            )
            used = [name for term in query.terms for name, _ in term] if isinstance(query, Moments) else query.columns
            needed = dict.fromkeys(used)
        else:
            continue
        for name in needed:
            if not makes_integers(model, name):
                raise ValueError(f"{why.format(name=name)}. Take a model of integers, or correct the release.")


def _check_reports(model: Model, mechanism: RecordNoise) -> None:
    """Refuse randomised responses to what is not one of their codes: no probability of a report would be known."""
    for name, law in mechanism.laws.items():
        if not isinstance(law, RandomisedResponse):
            continue
        levels = model.level_counts.get(name)
        if levels is None and model.has_transform:
            key = jax.random.key(0)
            values = np.asarray(model.simulate(key, model.sample_prior(key), _REPORTS)[name])
            levels = law.levels if np.all(np.isin(values, np.arange(law.levels))) else None
        elif levels is None:
            continue
        if levels is None or levels > law.levels:
            made = "other values" if levels is None else f"{levels} levels"
            raise ValueError(
                f"Randomised response reported {name!r} as one of the codes 0 to {law.levels - 1}, but the {type(model).__name__} "
                f"model gives it {made}; give both the same codes, levels={law.levels}."
            )


def makes_integers(model: Model, name: str) -> bool:
    """Whether the model's records have integers in this column: by their type, or else by simulating a few."""
    if name in model.level_counts or not model.has_transform:
        return True

    def simulated(key: Key) -> Array:
        return model.simulate(key, model.sample_prior(key), _TRIALS)[name]

    if not jnp.issubdtype(jax.eval_shape(simulated, jax.random.key(0)).dtype, jnp.floating):
        return True
    values = np.asarray(simulated(jax.random.key(0)))
    return bool(np.all(values == np.round(values)))
