"""Functions that a user writes, of one array, or of an array and parameters."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_TRIED = 3


def check_function(function: object, name: str, parameters: Any = ()) -> None:
    """A ``ValueError`` unless it can be called elementwise under ``jit``: what NumPy or SciPy compute cannot."""
    wanted = f"{name} must be an elementwise function of an array, written with jax.numpy"
    if not callable(function):
        raise ValueError(f"{wanted}; got {function!r}.")
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), jnp.result_type(leaf)), parameters)
    try:
        made = jax.eval_shape(lambda x, p: jnp.asarray(call(function, x, p)), jnp.zeros(_TRIED), one)
    except Exception as error:  # whatever the function raises says why it is none
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{wanted}; got {function!r}, which fails: {reason}") from error
    if made.shape != (_TRIED,):
        raise ValueError(f"{wanted}; got {function!r}, which makes shape {made.shape} of {_TRIED} numbers.")


def check_onto(inverse: Callable[[Array], Array], lower: float, upper: float) -> None:
    """A ``ValueError`` unless the inverse of a transform takes the real line to ``lower < x < upper``."""
    if not lower < upper:
        raise ValueError(f"lower must be below upper; got {lower} and {upper}. Give the ends of the transform.")
    with jax.ensure_compile_time_eval():
        ends = np.sort(np.asarray(inverse(jnp.array([-jnp.inf, jnp.inf]))))
    if not np.allclose(ends, [lower, upper]):
        raise ValueError(
            f"transform must map lower < x < upper, here {lower} and {upper}, onto the whole real line; its inverse maps the "
            f"real line to {ends[0]:g} < x < {ends[1]:g}. Give these as lower and upper, or another transform."
        )


def call(function: Callable[..., Array], x: Array, parameters: Any) -> Array:
    """``function(x, parameters)``, or ``function(x)`` if there are no parameters and it asks for none."""
    return function(x) if _alone(function, parameters) else function(x, parameters)


def _alone(function: Callable[..., Array], parameters: Any) -> bool:
    if not isinstance(parameters, tuple) or parameters:
        return False
    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function that does not tell its arguments
        return True
    return True
