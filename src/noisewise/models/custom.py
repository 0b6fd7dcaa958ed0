"""A model from plain JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from noisewise.models.base import Model
from noisewise.models.bijections import Parameter, Support
from noisewise.typing import Innovations, Key, Records, Theta

_RECORDS = 5
_ROUND_TRIP = 1e-8


class Custom(Model):
    """A law of the records written as JAX functions of a parameter dictionary ``theta``.

    - ``sample_prior(key) -> theta``, a dictionary of arrays: the parameters' names and shapes are read from it;
    - ``transform(theta, u) -> records``, a dictionary of columns, each record made from its own innovations;
    - ``innovations(key, n) -> u``, arrays with the records along the first axis, from a law free of theta; left out, u is a
      key for each record, from which ``transform`` draws (by ``jax.vmap``), and there is no inverse;
    - ``update(key, theta, records) -> theta``, a draw from ``p(theta | records)``, and/or ``log_prior(theta)`` and
      ``log_likelihood(theta, records)``, one number for each record, from which an engine builds moves of its own;
    - ``inverse(theta, records, key) -> u``, if it is known. Without it the innovations are recovered where a record is an affine
      function of as many real innovations as it has numbers, ``x = b(theta) + A(theta) u`` (checked on draws from the prior);
      for any other model ``has_inverse`` is False;
    - ``support``, the parameters that are not just real: ``{"rate": "positive"}``; also "unit", "simplex" (last axis) and
      "covariance".

    Three functions suffice, ``sample_prior``, ``transform`` and ``update``; innovations of real numbers, from which the records can be
    traced back, and a ``log_prior`` make chains mix far better where the noise is wide. The functions are traced once here, so that a
    wrong shape is refused by name before any sampling.

    >>> import jax, noisewise as nw
    >>> model = nw.models.Custom(
    ...     sample_prior=lambda key: {"centre": 3 * jax.random.normal(key)},
    ...     innovations=lambda key, n: jax.random.laplace(key, (n,)),
    ...     transform=lambda theta, u: {"x": theta["centre"] + u},
    ...     log_prior=lambda theta: jax.scipy.stats.norm.logpdf(theta["centre"], 0, 3),
    ...     log_likelihood=lambda theta, records: jax.scipy.stats.laplace.logpdf(records["x"], theta["centre"]),
    ... )
    >>> model.columns, list(model.parameters), model.has_inverse
    (('x',), ['centre'], True)
    """

    functions: tuple[tuple[str, Callable[..., Any] | None], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    affine: bool = eqx.field(static=True)

    def __init__(
        self,
        *,
        sample_prior: Callable[[Key], Theta],
        transform: Callable[[Theta, Innovations], Records],
        innovations: Callable[[Key, int], Innovations] | None = None,
        update: Callable[[Key, Theta, Records], Theta] | None = None,
        log_prior: Callable[[Theta], Array] | None = None,
        log_likelihood: Callable[[Theta, Records], Array] | None = None,
        inverse: Callable[[Theta, Records, Key], Innovations] | None = None,
        support: Mapping[str, Support] | None = None,
    ) -> None:
        if update is None and (log_prior is None or log_likelihood is None):
            raise ValueError("Custom needs update, or both log_prior and log_likelihood; give one or the other.")
        given = {
            "sample_prior": sample_prior,
            "transform": transform,
            "innovations": innovations or jax.random.split,
            "update": update,
            "log_prior": log_prior,
            "log_likelihood": log_likelihood,
            "inverse": inverse,
        }
        for name, function in given.items():
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function; got {function!r}.")
        if support is not None and not isinstance(support, Mapping):
            raise ValueError(f"support must name parameters, as in {{'rate': 'positive'}}; got {support!r}.")
        self.functions = tuple(given.items())
        theta, names = _trace("sample_prior", sample_prior, jax.random.key(0))
        _check_theta("sample_prior", theta)
        self.shapes = tuple(_declare(theta, names, dict(support or {})).items())
        u, _ = _trace("innovations", lambda key: self.innovations(key, _RECORDS), jax.random.key(0))
        _check_rows("innovations", u)
        more, _ = _trace("innovations", lambda key: self.innovations(key, _RECORDS + 1), jax.random.key(0))
        _check_rows("innovations", more, _RECORDS + 1)
        records, self.names = _trace("transform", transform, theta, u)
        if not isinstance(records, dict) or not records:
            raise ValueError(f"transform must return a dictionary of columns; got {_describe(records)}.")
        _check_rows("transform", records)
        wide = [name for name in self.names if records[name].ndim > 1]
        if wide:
            raise ValueError(
                f"transform must return one number for each record in a column; got {_describe(records)}. Make a column of each "
                f"number of {wide[0]!r}."
            )
        if update is not None:
            _check_same("update", _trace("update", update, jax.random.key(0), theta, records)[0], theta)
        if log_prior is not None:
            _check_shape("log_prior", _trace("log_prior", log_prior, theta)[0], ())
        if log_likelihood is not None:
            _check_shape("log_likelihood", _trace("log_likelihood", log_likelihood, theta, records)[0], (_RECORDS,))
        if inverse is not None:
            _check_same("inverse", _trace("inverse", inverse, theta, records, jax.random.key(0))[0], u)
        self.affine = False
        self.affine = inverse is None and self._is_affine(u, records)
        self._check_by_record()
        if inverse is not None and not _round_trip(self):
            raise ValueError(
                "inverse must undo transform; transform(theta, inverse(theta, records, key)) gave other records."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    @property
    def parameters(self) -> dict[str, Parameter]:
        return dict(self.shapes)

    def sample_prior(self, key: Key) -> Theta:
        return self._function("sample_prior")(key)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        return self._function("log_prior")(theta)

    def innovations(self, key: Key, n: int) -> Innovations:
        return self._function("innovations")(key, n)

    def transform(self, theta: Theta, u: Innovations) -> Records:
        return self._function("transform")(theta, u)

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        return self._solve(theta, records) if self.affine else self._function("inverse")(theta, records, key)

    @property
    def conjugate(self) -> bool:
        return self.has_update

    @property
    def has_update(self) -> bool:
        return dict(self.functions)["update"] is not None

    @property
    def has_log_prior(self) -> bool:
        return dict(self.functions)["log_prior"] is not None

    @property
    def has_log_likelihood(self) -> bool:
        return dict(self.functions)["log_likelihood"] is not None

    @property
    def has_inverse(self) -> bool:
        return self.affine or dict(self.functions)["inverse"] is not None

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        return self._function("update")(key, theta, records)

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        return self._function("log_likelihood")(theta, records)

    def _function(self, name: str) -> Callable[..., Any]:
        function = dict(self.functions)[name]
        if function is None:
            raise ValueError(f"this Custom model has no {name}; give {name}= to models.Custom.")
        return function

    def _solve(self, theta: Theta, records: Records) -> Innovations:
        """Innovations of an affine model: ``x = b + A u`` has the same b and A for every record, read from one."""
        shape = jax.eval_shape(lambda key: self.innovations(key, 1), jax.random.key(0))
        zero, unflatten = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape))

        def record(flat: Array) -> Array:
            return ravel_pytree(self.transform(theta, unflatten(flat)))[0]

        slope = jax.jacfwd(record)(zero)
        rows = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(records)], axis=1)
        solved = jnp.linalg.solve(slope, (rows - record(zero)).T)
        return jax.tree.map(lambda leaf: leaf[:, 0], jax.vmap(unflatten)(solved.T))

    def _is_affine(self, u: Innovations, records: Records) -> bool:
        leaves = [*jax.tree.leaves(u), *jax.tree.leaves(records)]
        width = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (u, records)]
        if width[0] != width[1] or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            return False

        def gap(key: Key, scale: Array) -> Array:
            first, second = jax.random.split(key)
            theta = self.sample_prior(first)
            u = jax.tree.map(lambda leaf: scale * leaf, self.innovations(second, _RECORDS))
            back = self._solve(theta, self.transform(theta, u))
            gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b) / (jnp.abs(scale) + jnp.abs(a))), u, back)
            return jnp.max(jnp.stack(jax.tree.leaves(gaps)))

        # an affine map is one at every size and sign of the innovations, whatever their own law
        keys = jax.random.split(jax.random.key(0), 4)
        gaps = jax.jit(jax.vmap(gap))(keys, jnp.asarray([1.0, -1.0, 1e3, -1e3]))
        return bool(jnp.all(gaps < _ROUND_TRIP))

    def _check_by_record(self) -> None:
        def alone_and_together(key: Key) -> tuple[Records, Records]:
            theta, u = self.sample_prior(key), self.innovations(key, _RECORDS)
            last = jax.tree.map(lambda leaf: leaf[-1:], u)
            return jax.tree.map(lambda leaf: leaf[-1:], self.transform(theta, u)), self.transform(theta, last)

        together, alone = jax.jit(alone_and_together)(jax.random.key(1))
        if not _close(together, alone):
            raise ValueError(
                "transform must make each record from its own innovations; a record changed with the others'."
            )


def _round_trip(model: Custom) -> bool:
    def both(key: Key) -> tuple[Records, Records]:
        theta = model.sample_prior(key)
        records = model.transform(theta, model.innovations(key, _RECORDS))
        return records, model.transform(theta, model.inverse(theta, records, key))

    return _close(*jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(2), 4)))


def _close(left: Records, right: Records) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.allclose(a, b, rtol=_ROUND_TRIP, atol=_ROUND_TRIP, equal_nan=True) for a, b in pairs)


def _trace(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[Any, tuple[str, ...]]:
    """The shapes a function returns, and the names of a dictionary in the order it was written."""
    names: list[str] = []

    def call(*values: Any) -> Any:
        result = function(*values)
        names.extend(result if isinstance(result, dict) else ())
        return jax.tree.map(jnp.asarray, result)

    try:
        return jax.eval_shape(call, *arguments), tuple(names)
    except Exception as error:
        received = ", ".join(_describe(argument) for argument in arguments)
        said = (str(error).splitlines() or [""])[0].strip()
        written = isinstance(error, jax.errors.JAXTypeError | jax.errors.TracerArrayConversionError)
        remedy = "; write it with jax.numpy and jnp.where, for arrays of any value" if written else ""
        raise ValueError(
            f"{name} could not be traced with {received}: {type(error).__name__}: {said.rstrip('.')}{remedy}."
        ) from error


def _declare(theta: Any, names: tuple[str, ...], support: dict[str, Support]) -> dict[str, Parameter]:
    for name, kind in support.items():
        if name not in names:
            raise ValueError(f"support names {name!r}, which is not a parameter; sample_prior returns {list(names)}.")
        if kind not in get_args(Support):
            raise ValueError(f"support[{name!r}] must be one of {', '.join(get_args(Support))}; got {kind!r}.")
        shape = theta[name].shape
        if kind == "simplex" and (not shape or shape[-1] < 2):
            raise ValueError(
                f"support[{name!r}] is simplex, which needs a last axis of two or more; its shape is {shape}."
            )
        if kind == "covariance" and (len(shape) != 2 or shape[0] != shape[1]):
            raise ValueError(f"support[{name!r}] is covariance, which needs a square matrix; its shape is {shape}.")
    return {
        name: Parameter(
            theta[name].shape, support.get(name, "real"), tuple(f"{name}_dim_{i}" for i in range(theta[name].ndim))
        )
        for name in names
    }


def _check_theta(name: str, theta: Any) -> None:
    leaves = list(theta.values()) if isinstance(theta, dict) else []
    arrays = [isinstance(leaf, jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    if not leaves or not all(arrays):
        raise ValueError(f"{name} must return a dictionary of real parameters by name; got {_describe(theta)}.")


def _check_rows(name: str, tree: Any, n: int = _RECORDS) -> None:
    leaves = jax.tree.leaves(tree)
    if not leaves or any(leaf.ndim == 0 or leaf.shape[0] != n for leaf in leaves):
        raise ValueError(
            f"{name} must return arrays with the records along the first axis; for {n} records got {_describe(tree)}."
        )


def _check_same(name: str, found: Any, expected: Any) -> None:
    if _describe(found) != _describe(expected):
        raise ValueError(f"{name} must return {_describe(expected)}; got {_describe(found)}.")


def _check_shape(name: str, found: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape != shape:
        meaning = "one number" if shape == () else "one number for each record"
        raise ValueError(f"{name} must return {meaning}, shape {shape} for {_RECORDS} records; got {_describe(found)}.")


def _describe(tree: Any) -> str:
    """A pytree in words: its structure, with kind and shape in place of the arrays."""
    return str(jax.tree.map(_Shape, tree))


class _Shape:
    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def __repr__(self) -> str:
        if not hasattr(self.leaf, "shape"):
            return repr(self.leaf)
        if jnp.issubdtype(self.leaf.dtype, jax.dtypes.prng_key):
            return "key"
        return f"{self.leaf.dtype}{list(self.leaf.shape)}"
