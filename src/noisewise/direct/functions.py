"""Functions that a user writes, of one array, or of an array and parameters."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from jaxtyping import Array


def check_function(function: object, name: str) -> None:
    """A ``ValueError`` unless it can be called."""
    if not callable(function):
        raise ValueError(f"{name} must be a function of an array, written with jax.numpy; got {function!r}.")


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
