"""A model written as an exponential family in a few lines, and the form of any model that has one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.bijections import Parameter, Support
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.form import ExponentialForm, log_probability
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.hyperparameters import column_name
from noisewise.models.library_forms import (
    BernoulliForm,
    CategoricalForm,
    ExponentialFormOf,
    GammaKnownShapeForm,
    NormalForm,
    PoissonForm,
)
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.typing import Innovations, Key, Records, Theta


class ExponentialFamily(Model):
    r"""A model of one column written as an exponential family, in a few lines.

    ``natural(theta)`` is eta and ``statistic(x)`` is t (of an array of x; a column, or a tuple of columns), each a number or a tuple of
    numbers; ``log_partition(eta)`` is A and ``log_base(x)`` is log h, zero if left out; ``update(key, total, n)`` draws theta from its
    conjugate law given the total of t over n records, so that ``update(key, zeros, 0)`` is the prior. The rest is for more than that:
    ``log_prior(theta)``, the prior's log density, for moves of theta that mix at any noise; ``quantile(theta, u)``, a record from a
    uniform number, wherever records are simulated; ``cdf(x, eta)``, P(X <= x), for truncated or clamped statistics and for the
    ``augmentation`` engine; ``possible(total, n)`` says which totals ``update`` accepts (left out: those from
    which it draws finite parameters inside their supports). Write them with ``jax.numpy``.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> import noisewise as nw
    >>> waiting = nw.models.ExponentialFamily(
    ...     parameters={"rate": "positive"},
    ...     natural=lambda theta: -theta["rate"],
    ...     statistic=lambda x: x,
    ...     log_partition=lambda eta: -jnp.log(-eta),
    ...     update=lambda key, total, n: {"rate": random.gamma(key, 2.0 + n) / (1.0 + total)},
    ...     log_prior=lambda theta: jnp.log(theta["rate"]) - theta["rate"],
    ...     quantile=lambda theta, u: -jnp.log1p(-u) / theta["rate"],
    ...     cdf=lambda x, eta: -jnp.expm1(eta * x),
    ...     support=(0.0, float("inf")),
    ... )
    >>> waiting.form.mean(jnp.asarray([-4.0])).tolist()
    [0.25]
    >>> release = nw.Release([nw.Measurement(nw.queries.TruncatedSum("x", 0, 9), nw.noise.Laplace(9.0), [262.0])], n=1000)
    >>> 3.6 < float(nw.sample(waiting, release, method="sufficient").posterior["rate"].mean()) < 4.1
    True
    """

    natural: Callable[[Theta], Array | tuple[Array, ...]] = eqx.field(static=True)
    statistic: Callable[[Array], Array | tuple[Array, ...]] = eqx.field(static=True)
    log_partition: Callable[..., Array] = eqx.field(static=True)
    draw: Callable[..., Theta] = eqx.field(static=True)
    prior: Callable[[Theta], Array] | None = eqx.field(static=True)
    quantile: Callable[[Theta, Array], Array] | None = eqx.field(static=True)
    base: Callable[[Array], Array] | None = eqx.field(static=True)
    cdf: Callable[..., Array] | None = eqx.field(static=True)
    allowed: Callable[..., Array] | None = eqx.field(static=True)
    named: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    support: tuple[float, float] = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)
    column: str = eqx.field(static=True)

    def __init__(
        self,
        *,
        parameters: Mapping[str, Support | Parameter],
        natural: Callable[[Theta], Array | tuple[Array, ...]],
        statistic: Callable[[Array], Array | tuple[Array, ...]],
        log_partition: Callable[..., Array],
        update: Callable[..., Theta],
        log_prior: Callable[[Theta], Array] | None = None,
        quantile: Callable[[Theta, Array], Array] | None = None,
        log_base: Callable[[Array], Array] | None = None,
        cdf: Callable[..., Array] | None = None,
        possible: Callable[..., Array] | None = None,
        support: tuple[float, float] = (-math.inf, math.inf),
        discrete: bool = False,
        column: str = "x",
    ) -> None:
        if not isinstance(parameters, Mapping) or not parameters:
            raise ValueError(
                f"parameters must name at least one parameter, as in {{'rate': 'positive'}}; got {parameters!r}."
            )
        for name, law in parameters.items():
            if not isinstance(law, Parameter) and law not in get_args(Support):
                raise ValueError(
                    f"The support of the parameter {name!r} must be one of {', '.join(get_args(Support))}; got {law!r}."
                )
        given = {"natural": natural, "statistic": statistic, "log_partition": log_partition, "update": update}
        asked = {"log_prior": log_prior, "quantile": quantile, "log_base": log_base, "cdf": cdf, "possible": possible}
        for name, function in (given | asked).items():
            if not (callable(function) or (name in asked and function is None)):
                raise ValueError(f"{name} of an ExponentialFamily must be a function; got {function!r}.")
        if not _increasing(support):
            raise ValueError(f"support must be an increasing pair of numbers; got {support!r}.")
        if not isinstance(discrete, bool):
            raise ValueError(f"discrete must be True (records are integers) or False; got {discrete!r}.")
        self.natural, self.statistic, self.log_partition = natural, statistic, log_partition
        self.draw, self.prior, self.quantile = update, log_prior, quantile
        self.base, self.cdf, self.allowed = log_base, cdf, possible
        self.named = tuple(
            (name, law if isinstance(law, Parameter) else Parameter(support=law)) for name, law in parameters.items()
        )
        self.support = (float(support[0]), float(support[1]))
        self.discrete = discrete
        self.column = column_name(column, "column")
        self._check_draw()
        self._check_functions()

    def _check_draw(self) -> None:
        """Trace one draw of the prior, so that names and shapes are right before any sampling."""
        theta = {name: jnp.zeros(parameter.shape) for name, parameter in self.named}
        size = int(_shape_of("natural(theta)", lambda theta: _vector(self.natural(theta)), theta).shape[0])
        total = self.form.shaped(jnp.zeros(size))
        drawn = _shape_of("update(key, total, n)", self.draw, jax.random.key(0), total, jnp.zeros(()))
        wanted = {name: parameter.shape for name, parameter in self.named}
        shapes = {name: value.shape for name, value in drawn.items()} if isinstance(drawn, dict) else drawn
        if shapes != wanted:
            raise ValueError(
                f"update of an ExponentialFamily must return parameters of shapes {wanted}; it returns {shapes}."
            )
        found = _shape_of("statistic(x)", self.form.statistic, jnp.ones(7)).shape
        if found != (7, size):
            raise ValueError(
                f"natural gives {size} number(s), so statistic of 7 records must give an array of shape (7, {size}), or a tuple of "
                f"{size} columns; it gives {found}."
            )

    def _check_functions(self) -> None:
        """Trace the other functions: each must give a number, or one a record."""
        theta = {name: jnp.ones(parameter.shape) for name, parameter in self.named}
        eta = self.form.shaped(jnp.ones(self.form.size))
        x, records = jnp.ones(()), jnp.ones(7)
        calls = {
            "log_partition(eta)": (self.log_partition, (eta,), ()),
            "log_prior(theta)": (self.prior, (theta,), ()),
            "log_base(x)": (self.base, (records,), (7,)),
            "quantile(theta, u)": (self.quantile, (theta, records), (7,)),
            "cdf(x, eta)": (self.cdf, (x, eta), ()),
            "possible(total, n)": (self.allowed, (eta, x), ()),
        }
        for said, (function, arguments, shape) in calls.items():
            if function is None:
                continue
            found = getattr(_shape_of(said, function, *arguments), "shape", None)
            # one number for every record will do
            if found not in (shape, ()):
                wanted = f"one number for each of {shape[0]} records" if shape else "one number"
                raise ValueError(f"{said} of an ExponentialFamily must give {wanted}; it gives shape {found}.")

    @property
    def form(self) -> CustomForm:
        """The form of the family."""
        return CustomForm(self)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return dict(self.named)

    def sample_prior(self, key: Key) -> Theta:
        return self.form.update(key, {}, jnp.zeros(self.form.size), jnp.zeros(()))

    @property
    def has_transform(self) -> bool:
        return self.quantile is not None

    @property
    def has_log_prior(self) -> bool:
        return self.prior is not None

    @property
    def has_inverse(self) -> bool:
        return self.cdf is not None

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        if self.prior is None:
            raise ValueError("This ExponentialFamily has no log_prior, which is needed here; give log_prior=...")
        return jnp.asarray(self.prior(theta), dtype=float)

    def innovations(self, key: Key, n: int) -> Innovations:
        return jax.random.uniform(key, (n,), dtype=float)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        if self.quantile is None:
            raise ValueError(
                "This ExponentialFamily has no quantile, which is needed to simulate records; give quantile=..."
            )
        return {self.column: self.quantile(theta, u)}

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        if self.cdf is None:
            raise ValueError(
                "This ExponentialFamily has no cdf, which is needed to find the innovations of its records; give cdf=..., or "
                "use nw.engines.Augmentation(interweave=False)."
            )
        x, eta = records[self.column], self.form.natural(theta)
        upper = self.form.distribution(x, eta)
        if not self.discrete:
            return upper
        lower = self.form.distribution(x - 1, eta)
        return lower + (upper - lower) * (1 - jax.random.uniform(key, upper.shape, dtype=float))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        rows = self.form.statistic(records[self.column])
        return self.form.update(key, theta, jnp.sum(rows, axis=0), jnp.asarray(float(rows.shape[0])))

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return self.form.log_density(records[self.column], self.form.natural(theta))


class CustomForm(ExponentialForm):
    """The form of an :class:`ExponentialFamily`: its functions, with eta and t as vectors."""

    model: ExponentialFamily

    @property
    def size(self) -> int:
        theta = {name: jnp.zeros(parameter.shape) for name, parameter in self.model.named}
        return int(jax.eval_shape(self.natural, theta).shape[0])

    @property
    def support(self) -> tuple[float, float]:
        return self.model.support

    @property
    def discrete(self) -> bool:
        return self.model.discrete

    @property
    def truncates(self) -> bool:
        return self.model.cdf is not None

    def natural(self, theta: Theta) -> Float[Array, " d"]:
        return _vector(self.model.natural(theta))

    def statistic(self, x: Float[Array, " n"]) -> Float[Array, "n d"]:
        found = self.model.statistic(jnp.asarray(x, dtype=float))
        columns = jnp.stack(found, axis=-1) if isinstance(found, tuple) else jnp.asarray(found)
        return columns[:, None] if columns.ndim == 1 else columns

    def log_partition(self, eta: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.asarray(self.model.log_partition(self.shaped(eta)), dtype=float)

    def log_base(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        x = jnp.asarray(x, dtype=float)
        inside = (x >= self.model.support[0]) & (x <= self.model.support[1])
        base = jnp.zeros_like(x) if self.model.base is None else self.model.base(x)
        return jnp.where(inside, base, -jnp.inf)

    def update(self, key: Key, theta: Theta, total: Float[Array, " d"], n: Float[Array, ""]) -> Theta:
        drawn = self.model.draw(key, self.shaped(total), n)
        return {name: jnp.asarray(drawn[name], dtype=float) for name, _ in self.model.named}

    def possible(self, total: Float[Array, " d"], n: Float[Array, ""]) -> Bool[Array, ""]:
        if self.model.allowed is not None:
            return jnp.asarray(self.model.allowed(self.shaped(total), n))
        # a total from which the parameters can be drawn, and lie where they must
        drawn = self.update(jax.random.key(0), {}, total, n)
        return jnp.all(jnp.isfinite(self.model.unconstrain(drawn)))

    def log_below(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_probability(self.distribution(self._before(x), eta))

    def log_above(self, eta: Float[Array, " d"], x: Array) -> Float[Array, ""]:
        return log_probability(1 - self.distribution(x, eta))

    def log_between(self, eta: Float[Array, " d"], low: Array, high: Array) -> Float[Array, ""]:
        return log_probability(self.distribution(high, eta) - self.distribution(self._before(low), eta))

    def _before(self, x: Array) -> Array:
        return jnp.ceil(x) - 1 if self.model.discrete else x

    def distribution(self, x: Array, eta: Float[Array, " d"]) -> Array:
        """``P(X <= x)``, also where x is beyond the support, where the family's own function need not hold.

        At the edge of a continuous family's support it may hold and have no derivative.
        """
        assert self.model.cdf is not None
        low, high = self.model.support
        nothing = x < low if self.model.discrete else x <= low
        everything = x >= high
        inside = self.model.cdf(jnp.where(nothing | everything, _interior(low, high), x), self.shaped(eta))
        return jnp.where(nothing, 0.0, jnp.where(everything, 1.0, inside))

    def shaped(self, vector: Float[Array, " d"]) -> Array | tuple[Array, ...]:
        """A vector as the family's functions take it: a number, or a tuple of numbers."""
        return vector[0] if vector.shape[0] == 1 else tuple(vector[i] for i in range(vector.shape[0]))


def _interior(low: float, high: float) -> float:
    """A point of a support that is not its edge."""
    if math.isfinite(low) and math.isfinite(high):
        return 0.5 * (low + high)
    if math.isfinite(low):
        return low + 1
    return high - 1 if math.isfinite(high) else 0.0


def _increasing(pair: object) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in pair)
        and pair[0] < pair[1]
    )


def _shape_of(said: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's returns, traced; one that cannot be traced is refused with what went wrong."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raise ValueError(
            f"{said} of an ExponentialFamily failed ({type(error).__name__}: {' '.join(first)}); write it with jax.numpy, for the "
            "arguments it names."
        ) from error


def _vector(value: Array | tuple[Array, ...]) -> Float[Array, " d"]:
    return jnp.stack(value) if isinstance(value, tuple) else jnp.atleast_1d(jnp.asarray(value, dtype=float))


_FORMS: dict[type[Model], Callable[..., ExponentialForm]] = {
    Bernoulli: BernoulliForm,
    Categorical: CategoricalForm,
    Poisson: PoissonForm,
    Exponential: ExponentialFormOf,
    GammaKnownShape: GammaKnownShapeForm,
    Normal: NormalForm,
    ExponentialFamily: CustomForm,
}


def exponential_form(model: Model) -> ExponentialForm | None:
    """The exponential-family form of a model of one column, or ``None`` where it has none.

    >>> import noisewise as nw
    >>> form = exponential_form(nw.models.Poisson(2, 1))
    >>> form.covariance(form.natural({"rate": jnp.asarray(3.0)})).round(12).tolist()
    [[3.0]]
    """
    found = _FORMS.get(type(model))
    return None if found is None else found(model)
