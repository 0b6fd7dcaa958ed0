"""What the microdata engine asks of a model: draws of the hidden values given theta, and a law for theta's wide moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array

from noisewise.typing import Key, Records, Theta

LogDensity = Callable[[Theta], Array]


class Imputer(eqx.Module):
    """The hidden values of one table: ``respond`` draws some of them given theta and the others, ``covariates`` the others."""

    @abstractmethod
    def first(self) -> Records:
        """Records to start from, near what was released."""

    @abstractmethod
    def respond(self, key: Key, theta: Theta, records: Records) -> Records:
        """A fresh exact draw of the response columns given theta and the covariates; their present values are not used."""

    def covariates(self, key: Key, theta: Theta, records: Records) -> Records:
        """Draws of the hidden covariates, column by column, each from its full conditional."""
        return records

    @abstractmethod
    def log_target(self, key: Key, theta: Theta, records: Records) -> LogDensity | None:
        """The log density of theta, up to its prior, with the response summed out or tied to theta by its innovations.

        :meth:`respond` must follow every move under it. ``None``: nothing is hidden that such a move could help with.
        """

    @abstractmethod
    def log_noise(self, records: Records) -> Array:
        """The log density of the released values given the records."""

    def derived(self, key: Key, theta: Theta, records: Records) -> Theta:
        """Quantities to report beside the parameters."""
        return {}
