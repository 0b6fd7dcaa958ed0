"""Running a NumPyro program with its sites filled in, and the record families that can be made from innovations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from noisewise.models import levels
from noisewise.typing import Innovations, Key

_LOCATION_SCALE = ("Normal", "Laplace", "Cauchy", "Logistic", "Gumbel")
_SCALE = ("HalfNormal", "HalfCauchy")
_LEVELS = ("BernoulliProbs", "BernoulliLogits", "CategoricalProbs", "CategoricalLogits")


@dataclass(frozen=True)
class Sites:
    """What sites are to be: given values, values of unconstrained ones, records made of innovations, or draws by key."""

    values: Mapping[str, Array] = field(default_factory=dict)
    free: Mapping[str, Array] = field(default_factory=dict)
    innovations: Mapping[str, Innovations] = field(default_factory=dict)
    key: Key | None = None


def sites_of(program: Callable[[int], Any], n: int, given: Sites) -> dict[str, Any]:
    """The sample sites of ``program(n)`` with the values that were given."""
    try:
        from numpyro import distributions, handlers
        from numpyro.primitives import Messenger
    except ImportError:
        raise ValueError(
            "from_numpyro needs NumPyro, which is not installed: pip install 'noisewise[numpyro]'."
        ) from None

    refused: list[str] = []

    class Fill(Messenger):
        def process_message(self, message: dict[str, Any]) -> None:
            name, kind = message["name"], message["type"]
            if kind == "param" or (kind == "sample" and (message["is_observed"] or message.get("scale") is not None)):
                refused.append(name)
            if kind != "sample":
                return
            law = message["fn"]
            if name in given.values:
                message["value"] = given.values[name]
            elif name in given.free:
                message["value"] = distributions.biject_to(law.support)(given.free[name])
            elif name in given.innovations:
                message["value"] = make(law, given.innovations[name])

    try:
        with handlers.trace() as found, Fill():
            (program if given.key is None else handlers.seed(program, given.key))(n)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(
            f"The NumPyro model could not be run as model({n}), {n} records: {type(error).__name__}: {said}"
        ) from error
    if refused:
        raise ValueError(
            f"The NumPyro site {refused[0]!r} is a parameter to optimise, observed, a factor or scaled; give a model whose "
            "parameters and records are all sample sites without obs."
        )
    return {name: site for name, site in found.items() if site["type"] == "sample"}


def _inner(law: Any) -> Any:
    """The law without what a plate wrapped around it."""
    while type(law).__name__ == "ExpandedDistribution":
        law = law.base_dist
    return law


def family(law: Any) -> str:
    """The law of the innovations that records of this law are made of: "key" where there is none."""
    law = _inner(law)
    name = type(law).__name__
    if name in (*_LOCATION_SCALE, *_SCALE, "Exponential", "Uniform"):
        return name
    if name == "Weibull":
        return "Exponential"
    if name in _LEVELS:
        return f"levels{_probabilities(law).shape[-1]}"
    if hasattr(law, "transforms") and hasattr(law, "base_dist"):
        folds = any(type(transform).__name__ == "AbsTransform" for transform in law.transforms)
        return "key" if folds else family(law.base_dist)
    try:
        law.cdf(law.icdf(jnp.full(law.batch_shape, 0.5)))
    except (NotImplementedError, ImportError, AttributeError):
        return "key"
    return "key" if law.support.is_discrete else "icdf"


def make(law: Any, u: Innovations) -> Array:
    """The one record of this law at the innovation ``u``, with the law's batch shape (1,)."""
    if not isinstance(u, tuple) and jnp.issubdtype(u.dtype, jax.dtypes.prng_key):
        return law.sample(u)
    return jnp.broadcast_to(_made(_inner(law), u), law.batch_shape)


def _made(law: Any, u: Innovations) -> Array:
    name = type(law).__name__
    if name in _LEVELS:
        return levels.find(levels.masses(_probabilities(law)), u)[None]
    if name in _LOCATION_SCALE:
        return law.loc + law.scale * u
    if name in _SCALE:
        return law.scale * u
    if name == "Exponential":
        return u / law.rate
    if name == "Weibull":
        return law.scale * u ** (1 / law.concentration)
    if name == "Uniform":
        return law.low + (law.high - law.low) * u
    if hasattr(law, "transforms") and hasattr(law, "base_dist"):
        value = _made(_inner(law.base_dist), u)
        for transform in law.transforms:
            value = transform(value)
        return value
    return law.icdf(u)


def invert(law: Any, value: Array, key: Key) -> Innovations:
    """An innovation that makes this one record, from its law given the record."""
    return _inverted(_inner(law), value, key)


def _inverted(law: Any, value: Array, key: Key) -> Innovations:
    name = type(law).__name__
    if name in _LEVELS:
        return levels.retrace(levels.masses(_probabilities(law)), value[0].astype(int), key)
    if name in _LOCATION_SCALE:
        found = (value - law.loc) / law.scale
    elif name in _SCALE:
        found = value / law.scale
    elif name == "Exponential":
        found = value * law.rate
    elif name == "Weibull":
        found = (value / law.scale) ** law.concentration
    elif name == "Uniform":
        found = (value - law.low) / (law.high - law.low)
    elif hasattr(law, "transforms") and hasattr(law, "base_dist"):
        for transform in reversed(law.transforms):
            value = transform.inv(value)
        return _inverted(_inner(law.base_dist), value, key)
    else:
        found = law.cdf(value)
    return jnp.reshape(found, (1,))[0]


def _probabilities(law: Any) -> Array:
    """The probabilities of the levels of one record."""
    if type(law).__name__.startswith("Bernoulli"):
        logits = jnp.ravel(law.logits)[0]
        return jnp.stack([jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)])
    return law.probs.reshape(-1, law.probs.shape[-1])[0]
