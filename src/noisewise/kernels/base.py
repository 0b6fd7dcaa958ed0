"""The protocol of a Markov kernel, the small move that engines hand to the driver.

Every kernel is a frozen pytree whose array leaves may change without recompilation, and whose functions are pure:
``init(key, start) -> State``, ``step(key, state) -> (State, Info)``. The state holds what the next step needs, the info
what a person may want to see. In the tuning phase each step is followed by :meth:`Kernel.adapt`, which may change what
the state carries of the proposal; :meth:`Kernel.step` never does, so that its target stays invariant.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array

from noisewise.typing import Key, Records, Theta

State = Any


class Info(NamedTuple):
    """What a step reports: numbers to record, and the part of theta's variance that complete records would leave.

    ``stats`` are scalars by name, averaged over thinned steps (names beginning with ``min_`` take the minimum).
    ``within`` is an estimate, elementwise in theta, of ``Var(theta | x)``, unbiased where theta is drawn afresh given x (after a Gibbs
    cycle it lacks the covariance of theta with what it was before); an empty dict where unknown.
    """

    stats: dict[str, Array]
    within: Theta


class Kernel(eqx.Module):
    """A Markov kernel that leaves a posterior invariant."""

    @abstractmethod
    def init(self, key: Key, start: Theta) -> State:
        """The state at a starting value of theta."""

    @abstractmethod
    def step(self, key: Key, state: State) -> tuple[State, Info]:
        """One transition."""

    def adapt(self, state: State, info: Info) -> State:
        """The state with its proposal adapted to the step just made; called in the tuning phase only."""
        return state

    @abstractmethod
    def theta(self, state: State) -> Theta:
        """The parameters in the state."""

    def predict(self, key: Key, state: State) -> dict[str, Array]:
        """A simulated release given the state, by measurement; empty where the kernel has none."""
        return {}

    def latent(self, state: State) -> Records:
        """The imputed confidential records in the state; empty where the kernel has none."""
        return {}
