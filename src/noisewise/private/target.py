r"""What a private sampler needs of a target: a prior, and the log likelihood of one record with its gradient and Lipschitz bound.

The posterior is ``p(theta) prod_i f(x_i | theta)^T``; ``temper`` is T, one unless the likelihood is tempered (``T =
n0/n``). A sampler works on the parameters as one unconstrained vector. ``lipschitz`` is a number L with ``|log
f(x|theta') - log f(x|theta)| <= L ||theta' - theta||`` for every record in the declared domain: then clipping at L
changes nothing, and it is applied all the same, so that a record outside the domain costs accuracy and never privacy.

Two functions of your own become a target with :func:`from_functions`, a library model with :func:`as_target` (which samplers
call themselves). Targets by name are in :mod:`noisewise.private.targets`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.typing import Records, Theta

_UNROLL = 8
_TRIES = 8


def as_float(value: Any) -> Array:
    """A hyperparameter as a float64 array leaf, so that a new value never recompiles."""
    return jnp.asarray(value, dtype=float)


def positive(value: Any, name: str) -> Array:
    """A hyperparameter that is positive and finite, every entry of it."""
    if not isinstance(value, jax.core.Tracer):
        number = np.asarray(value, dtype=float)
        if not np.all(np.isfinite(number) & (number > 0)):
            raise ValueError(f"{name} must be positive and finite; got {value!r}.")
    return as_float(value)


def project(x: Float[Array, "n d"], weights: Float[Array, " d"]) -> Float[Array, " n"]:
    """``x @ weights``, as one fused loop when there are few columns."""
    if x.shape[-1] > _UNROLL:
        return x @ weights
    return sum((x[:, j] * weights[j] for j in range(1, x.shape[-1])), start=x[:, 0] * weights[0])


class Target(eqx.Module):
    """A posterior to sample privately. Hyperparameters are array leaves.

    The log likelihood of a record must be a function of theta and that record ALONE: one that looks at other records (to centre
    or to weigh) has no bounded influence, and clipping cannot give it one.
    """

    temper: eqx.AbstractVar[Array]

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the records."""

    @property
    @abstractmethod
    def initial(self) -> Float[Array, " d"]:
        """A starting point that does not look at the records."""

    @property
    def lipschitz(self) -> Array | None:
        """The Lipschitz bound of one record's log likelihood, or None where the model has none."""
        return None

    @property
    def size(self) -> int:
        """The length of the parameter vector."""
        return int(self.initial.shape[0])

    @abstractmethod
    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """The log prior density, up to a constant."""

    @abstractmethod
    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        """``log f(x_i | theta)`` for each record, up to a function of the record."""

    def log_ratios(self, theta: Float[Array, " d"], new: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        """``log f(x_i | new) - log f(x_i | theta)`` for each record, untempered."""
        return self.log_likelihoods(new, records) - self.log_likelihoods(theta, records)

    def gradients(self, theta: Float[Array, " d"], records: Records) -> Float[Array, "n d"]:
        """The gradient in theta of ``log f(x_i | theta)`` for each record, untempered."""

        def one(record: Records) -> Array:
            alone = {name: value[None] for name, value in record.items()}
            return jax.grad(lambda value: self.log_likelihoods(value, alone)[0])(theta)

        return jax.vmap(one)(records)

    def named(self, theta: Float[Array, " d"]) -> Theta:
        """The parameter vector as named variables of the posterior."""
        return {"theta": theta}

    def vector(self, theta: Mapping[str, Any]) -> Float[Array, " d"]:
        """Named variables as the parameter vector."""
        return as_float(theta["theta"])

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        """Refuse columns that are not what the target reads; by default all are taken."""
        return None

    def tries(self) -> Float[Array, "k d"]:
        """Points besides the starting ones where a record may be possible; none by default."""
        return jnp.zeros((0, self.size))


class Functions(Target):
    """A target written as two JAX functions; see :func:`from_functions`."""

    initial_theta: Theta
    known_lipschitz: Array | None
    temper: Float[Array, ""]
    log_likelihood: Callable[[Theta, Records], Array] = eqx.field(static=True)
    log_prior_of: Callable[[Theta], Array] = eqx.field(static=True)
    column_names: tuple[str, ...] = eqx.field(static=True)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.column_names

    @property
    def initial(self) -> Float[Array, " d"]:
        return ravel_pytree(self.initial_theta)[0]

    @property
    def lipschitz(self) -> Array | None:
        return self.known_lipschitz

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return number(self.log_prior_of(self.named(theta)), "log_prior(theta)")

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        names = self.named(theta)
        return jax.vmap(lambda record: number(self.log_likelihood(names, record), "log_likelihood(theta, record)"))(
            records
        )

    def named(self, theta: Float[Array, " d"]) -> Theta:
        return ravel_pytree(self.initial_theta)[1](theta)

    def vector(self, theta: Mapping[str, Any]) -> Float[Array, " d"]:
        return ravel_pytree({name: as_float(theta[name]) for name in self.initial_theta})[0]


def number(value: Any, name: str) -> Float[Array, ""]:
    """One number. Several, clipped and noised each by itself, would tell more of a record than the ledger charges for."""
    value = jnp.asarray(value)
    if value.size != 1:
        raise ValueError(
            f"{name} must return one number; got shape {value.shape}. Sum over the coordinates of a record."
        )
    return value.reshape(())


def from_functions(
    log_likelihood: Callable[[Theta, Records], Array],
    log_prior: Callable[[Theta], Array],
    *,
    initial: Mapping[str, Any],
    columns: tuple[str, ...] | str,
    lipschitz: float | None = None,
    temper: float = 1.0,
) -> Functions:
    """A target from ``log_likelihood(theta, record)`` and ``log_prior(theta)``, JAX functions of named, unconstrained parameters.

    ``initial`` names the parameters and gives their shapes and a starting point (chosen without looking at the records).
    ``lipschitz``, if the likelihood has such a bound, is used as the clip bound.

    >>> target = from_functions(
    ...     lambda theta, record: -0.5 * (record["x"] - theta["mean"]) ** 2,
    ...     lambda theta: -0.5 * theta["mean"] ** 2,
    ...     initial={"mean": 0.0},
    ...     columns=("x",),
    ... )
    >>> [float(g) for g in target.gradients(target.initial, {"x": jnp.array([1.0, 3.0])})[:, 0]]
    [1.0, 3.0]
    """
    if not (callable(log_likelihood) and callable(log_prior)):
        raise ValueError(
            f"log_likelihood(theta, record) and log_prior(theta) must be functions; got {log_likelihood!r} and {log_prior!r}."
        )
    if not hasattr(initial, "keys"):
        raise ValueError(f"initial must give a starting value for each parameter by name; got {initial!r}.")
    columns = (columns,) if isinstance(columns, str) else columns
    start = {name: as_float(initial[name]) for name in sorted(initial)}
    known = None if lipschitz is None else positive(lipschitz, "lipschitz")
    return Functions(
        initial_theta=start,
        known_lipschitz=known,
        temper=positive(temper, "temper"),
        log_likelihood=log_likelihood,
        log_prior_of=log_prior,
        column_names=tuple(columns),
    )


class FromModel(Target):
    """A library model as a target: its own likelihood, tempered if asked for, and its prior on the unconstrained scale.

    The likelihood is given one record at a time, so that a model of your own cannot let a record see the others.

    >>> import noisewise as nw
    >>> FromModel(nw.models.Bernoulli(a=2, b=3), temper=0.5).columns
    ('x',)
    """

    model: Model
    temper: Float[Array, ""]

    def __init__(self, model: Model, *, temper: Any = 1.0) -> None:
        if not (model.has_log_likelihood and model.has_log_prior):
            raise ValueError(
                f"{type(model).__name__} has no log_likelihood or no log_prior of its own, and a private sampler needs both: give them to "
                "the model."
            )
        self.model, self.temper = model, positive(temper, "temper")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.model.columns

    @property
    def initial(self) -> Float[Array, " d"]:
        return jnp.zeros(self.model.free_size)

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.model.log_prior_free(theta)

    def log_likelihoods(self, theta: Float[Array, " d"], records: Records) -> Float[Array, " n"]:
        kinds = self._kinds()
        named = self.model.constrain(theta)

        def one(record: Records) -> Array:
            alone = {name: value[None].astype(kinds.get(name, value.dtype)) for name, value in record.items()}
            return number(self.model.log_likelihood(named, alone), "log_likelihood")

        return jax.vmap(one)(records)

    def check(self, columns: Mapping[str, np.ndarray]) -> None:
        for name, kind in self._kinds().items():
            if jnp.issubdtype(kind, jnp.integer) and np.any(columns[name] != np.rint(columns[name])):
                raise ValueError(
                    f"the column {name!r} must hold whole numbers for this model; round or recode it first."
                )
        for name, count in self.model.level_counts.items():
            if name in columns and not np.all(np.isin(columns[name], np.arange(count))):
                raise ValueError(f"the column {name!r} must hold the codes 0 to {count - 1}; recode it first.")

    def tries(self) -> Float[Array, "k d"]:
        keys = jax.random.split(jax.random.key(0), _TRIES)
        return jax.lax.map(lambda key: self.model.unconstrain(self.model.sample_prior(key)), keys)

    def _kinds(self) -> dict[str, Any]:
        """The type of each column of the model's records; none are known of a model that makes no records."""
        if not self.model.has_transform:
            return {}

        def one() -> Records:
            key = jax.random.key(0)
            return self.model.simulate(key, self.model.sample_prior(key), 1)

        return {name: column.dtype for name, column in jax.eval_shape(one).items() if name in self.columns}

    def named(self, theta: Float[Array, " d"]) -> Theta:
        return self.model.constrain(theta)

    def vector(self, theta: Mapping[str, Any]) -> Float[Array, " d"]:
        return self.model.unconstrain({name: as_float(value) for name, value in theta.items()})


def as_target(target: Any) -> Target:
    """A target as it is, a library model as a target, or a sentence."""
    if isinstance(target, Target):
        return target
    if isinstance(target, Model):
        return FromModel(target)
    raise ValueError(
        f"the target must be one of nw.private.targets, a library model, or from_functions(...); got {type(target).__name__}."
    )
