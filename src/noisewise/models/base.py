r"""The protocol of a model: a law of the confidential records given parameters theta, with a prior.

Records are independent given theta. A model can be drawn from in two ways that engines rely on:

- *centred*: :meth:`Model.update` draws (or moves) theta given complete records, leaving ``p(theta | x)`` invariant;
- *non-centred*: a record is ``x_i = T(theta, u_i)`` with innovations ``u_i`` from a law free of theta.
  :meth:`Model.inverse` draws the innovations given theta and records; for a continuous model they are determined, for a
  discrete one they are uniform on ``(F(x-), F(x)]`` and the key is used.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.models.bijections import Parameter
from noisewise.typing import Innovations, Key, Records, Theta

ThetaMove = Literal["update", "random_walk", "hmc"]


class Model(eqx.Module):
    """A law of the records given parameters, with a prior. Hyperparameters are array leaves, shapes are static."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of a record, the ones :meth:`transform` makes."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by name, in the order of the posterior's variables."""

    @abstractmethod
    def sample_prior(self, key: Key) -> Theta:
        """One draw of theta from its prior."""

    @abstractmethod
    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        """The log prior density of theta, normalised, in its natural space."""

    @abstractmethod
    def innovations(self, key: Key, n: int) -> Innovations:
        """Innovations for ``n`` records, from their law free of theta."""

    @abstractmethod
    def transform(self, theta: Theta, u: Innovations) -> Records:
        """The records ``T(theta, u_i)``."""

    @abstractmethod
    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        """Innovations given theta and the records: ``transform(theta, inverse(theta, records, key)) == records``."""

    @property
    def level_counts(self) -> dict[str, int]:
        """The number of levels of the columns that hold codes 0, 1, ..., as far as the model fixes it."""
        return {}

    @property
    def conjugate(self) -> bool:
        """Whether :meth:`update` draws exactly and afresh from ``p(theta | x)``."""
        return True

    @property
    def update_forgets(self) -> bool:
        """Whether :meth:`update` hardly depends on the theta it is given: a fresh draw, or a cycle with correlations of order 1/n."""
        return True

    @property
    def theta_move(self) -> ThetaMove:
        """How an engine moves theta given complete records, unless it is told another way."""
        return "update" if self.has_update else "random_walk"

    @property
    def has_update(self) -> bool:
        """Whether :meth:`update` is there; without it an engine moves theta by the densities."""
        return True

    @property
    def has_transform(self) -> bool:
        """Whether :meth:`transform` is there; without it records cannot be simulated."""
        return True

    @property
    def has_log_prior(self) -> bool:
        """Whether :meth:`log_prior` is there; moves with the innovations held fixed need it."""
        return True

    @property
    def has_log_likelihood(self) -> bool:
        """Whether :meth:`log_likelihood` is there."""
        return True

    @property
    def has_inverse(self) -> bool:
        """Whether :meth:`inverse` is there; moves with the innovations held fixed need it."""
        return True

    @abstractmethod
    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        """Theta from a kernel that leaves ``p(theta | records)`` invariant."""

    @abstractmethod
    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        """``log f(x_i | theta)``, one number for each record."""

    def simulate(self, key: Key, theta: Theta, n: int) -> Records:
        """``n`` records given theta."""
        return self.transform(theta, self.innovations(key, n))

    @property
    def free_size(self) -> int:
        """The length of the unconstrained vector of all parameters."""
        return sum(parameter.free_size for parameter in self.parameters.values())

    def unconstrain(self, theta: Theta) -> Float[Array, " free"]:
        """Theta as one unconstrained vector."""
        return jnp.concatenate([parameter.unconstrain(theta[name]) for name, parameter in self.parameters.items()])

    def constrain(self, free: Float[Array, " free"]) -> Theta:
        """Theta of an unconstrained vector."""
        parts = self._split(free)
        return {name: parameter.constrain(parts[name]) for name, parameter in self.parameters.items()}

    def log_prior_free(self, free: Float[Array, " free"]) -> Float[Array, ""]:
        """The log prior density of the unconstrained vector (with the Jacobian)."""
        parts = self._split(free)
        jacobian = sum(
            (parameter.log_jacobian(parts[name]) for name, parameter in self.parameters.items()), start=jnp.zeros(())
        )
        return self.log_prior(self.constrain(free)) + jacobian

    def _split(self, free: Array) -> dict[str, Array]:
        ends = np.cumsum([parameter.free_size for parameter in self.parameters.values()])
        return {
            name: free[end - parameter.free_size : end]
            for end, (name, parameter) in zip(ends, self.parameters.items(), strict=True)
        }
