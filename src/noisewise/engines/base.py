"""The protocol of an engine: can it do this pair of model and release, and if so, with what sampler?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array

from noisewise.kernels.base import Kernel
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Theta


class Support(NamedTuple):
    """Whether an engine can do a pair of model and release, the reason in a sentence, and its expected cost in words."""

    ok: bool
    reason: str
    cost: str = ""


class Draw(NamedTuple):
    """One independent draw: theta, numbers to record with it, and a simulated release by measurement.

    ``within`` is ``Var(theta | x)``, elementwise in theta, at the records behind the draw, where the sampler knows it.
    """

    theta: Theta
    stats: dict[str, Array]
    predictive: dict[str, Array]
    within: Theta | None = None


class Exact(NamedTuple):
    """What an engine knows without sampling: posterior means and sds by parameter, and the log marginal likelihood."""

    means: Theta
    sds: Theta
    log_marginal: float


class Sampler(eqx.Module):
    """A source of independent draws from a posterior. Tables it needs are array leaves, made when it is built."""

    @abstractmethod
    def draw(self, key: Key) -> Draw:
        """One draw; a pure function that the driver vectorises over keys."""

    def exact(self) -> Exact | None:
        """Exact summaries, where they are known."""
        return None


class Engine(eqx.Module):
    """A way to compute ``p(theta | release)``. ``exact`` says whether its stationary law is exactly that posterior, ``independent``
    whether it always draws independently, without chains and without latent records."""

    name: ClassVar[str]
    exact: ClassVar[bool]
    independent: ClassVar[bool] = False

    @abstractmethod
    def supports(self, model: Model, release: Release) -> Support:
        """Whether the engine can do the pair, and why (not)."""

    @abstractmethod
    def build(self, model: Model, release: Release, key: Key) -> Kernel | Sampler:
        """The kernel or the sampler; ``key`` is for preparations that need randomness (the same for all chains)."""

    def start(self, kernel: Kernel, key: Key) -> Theta:
        """A dispersed starting value for one chain of a Markov kernel."""
        raise TypeError(f"The {self.name} engine draws independently and has no starting values.")

    def doubts(
        self, model: Model, release: Release, posterior: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        """Reasons not to trust an approximation, or the agreement of chains, found from the draws (chain, draw, ...) after a run."""
        return ()
