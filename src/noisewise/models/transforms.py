"""Transforms under which a predictor enters a regression: one to one maps of an interval onto the real line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_LINE = np.array([-np.inf, -0.5, 0.25, np.inf])


class Transform(eqx.Module):
    """An increasing or decreasing map of ``lower < x < upper`` onto the whole real line, and its inverse, elementwise.

    Both are written with ``jax.numpy``. "log", "logit" and "asinh" are known by name.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> cube = nw.models.Transform(lambda x: x**3, jnp.cbrt)
    >>> float(cube.inverse(cube.forward(jnp.asarray(-2.0))))
    -2.0
    """

    forward: Callable[[Array], Array] = eqx.field(static=True)
    inverse: Callable[[Array], Array] = eqx.field(static=True)
    lower: float = eqx.field(static=True, default=-np.inf)
    upper: float = eqx.field(static=True, default=np.inf)

    def __check_init__(self) -> None:
        for name in ("forward", "inverse"):
            if not callable(getattr(self, name)):
                raise ValueError(f"The {name} of a Transform must be a function; got {getattr(self, name)!r}.")
        if not self.lower < self.upper:
            raise ValueError(f"lower must be below upper; got {self.lower} and {self.upper}. Give the ends of the map.")


def _logit(x: Array) -> Array:
    return jnp.log(x) - jnp.log1p(-x)


NAMED = {
    "log": Transform(jnp.log, jnp.exp, lower=0.0),
    "logit": Transform(_logit, jax.nn.sigmoid, lower=0.0, upper=1.0),
    "asinh": Transform(jnp.arcsinh, jnp.sinh),
}


def read_transforms(
    given: Mapping[str, str | Transform] | None, predictors: tuple[str, ...]
) -> tuple[tuple[str, Transform], ...]:
    """The transforms of predictors by name, checked."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"transforms must say the map of each predictor, as in {{'x1': 'log'}}; got {given!r}.")
    found = []
    for name, transform in (given or {}).items():
        if name not in predictors:
            raise ValueError(f"transforms names {name!r}, which is not a predictor; the predictors are {predictors}.")
        if isinstance(transform, str) and transform in NAMED:
            transform = NAMED[transform]
        elif isinstance(transform, Transform):
            _check(transform)
        if not isinstance(transform, Transform):
            raise ValueError(
                f"transforms[{name!r}] must be one of {', '.join(map(repr, NAMED))} or a nw.models.Transform; got {transform!r}."
            )
        found.append((name, transform))
    return tuple(found)


def _check(transform: Transform) -> None:
    """A ``ValueError`` unless the functions are written with jax.numpy, undo each other and reach the whole real line."""
    for name, function in (("forward", transform.forward), ("inverse", transform.inverse)):
        try:
            jax.eval_shape(partial(function), jnp.zeros(3))
        except Exception as error:  # whatever the function raises says why it is none
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"The {name} of a Transform must be written with jax.numpy; it fails: {reason}") from error
    with jax.ensure_compile_time_eval():
        low, *inside, high = np.asarray(transform.inverse(jnp.asarray(_LINE)))
        back = np.asarray(transform.forward(jnp.asarray(inside)))
    if not np.allclose(sorted([low, high]), [transform.lower, transform.upper]):
        raise ValueError(
            f"A Transform must map lower < x < upper, here {transform.lower} and {transform.upper}, onto the whole real line; its "
            f"inverse maps the real line to {min(low, high):g} < x < {max(low, high):g}. Give these, or another map."
        )
    if not np.allclose(back, _LINE[1:3], atol=1e-3):
        raise ValueError(f"inverse must undo forward; forward of inverse of {_LINE[1:3]} is {back}. Give the inverse.")
