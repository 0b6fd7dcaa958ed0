r"""A kernel of another library as the move of theta given complete records.

The user gives a function of the log target (on unconstrained vectors) and of the covariance that the tuning phase has learnt, which
returns an algorithm in BlackJAX's form: ``init(position) -> state`` and ``step(key, state) -> (state, info)``, with ``state.position``.
The target changes with the records at every iteration, so the algorithm is started afresh from the position each time: it
must leave its target invariant from any position alone, as random-walk, MALA, HMC, NUTS, Barker and slice kernels do, and
kernels that carry a momentum or an adaptation in their state do not.

Checked by ``tests/models/test_numpyro.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.kernels.walk import LogTarget, Walk, Walked
from noisewise.typing import Key

ForeignKernel: TypeAlias = Callable[[LogTarget, Float[Array, "d d"]], Any]


def foreign(key: Key, log_target: LogTarget, position: Float[Array, " d"], walk: Walk, build: ForeignKernel) -> Walked:
    """One step of the other library's kernel."""
    try:
        algorithm = build(log_target, walk.covariance)
    except TypeError as problem:
        raise ValueError(
            f"theta_move is called with the log density and the covariance, and failed: {problem}."
        ) from None
    if not (callable(getattr(algorithm, "init", None)) and callable(getattr(algorithm, "step", None))):
        raise ValueError(
            f"theta_move must return an algorithm with init and step, such as blackjax.nuts(...); got {algorithm!r}."
        )
    try:
        state, info = algorithm.step(key, algorithm.init(position))
    except TypeError as problem:
        raise ValueError(
            "theta_move's algorithm must start from a position alone, as random-walk, MALA, HMC, NUTS and slice kernels do; one that "
            f"carries a momentum or an adaptation cannot: {problem}."
        ) from None
    moved = state.position
    acceptance = jnp.asarray(getattr(info, "acceptance_rate", jnp.any(moved != position)), dtype=float)
    return Walked(moved, log_target(moved), acceptance)
