"""The words the rooms share: what a record table, a parameter value and a random key are."""

from typing import Any, TypeAlias

from jaxtyping import Array, PRNGKeyArray

Key: TypeAlias = PRNGKeyArray
Records: TypeAlias = dict[str, Array]
"""The confidential records as columns: every array has the records along its first axis."""
Theta: TypeAlias = dict[str, Array]
"""A value of a model's parameters, by name."""
Innovations: TypeAlias = Any
"""A pytree of arrays with the records along the first axis, drawn from a law free of theta."""
