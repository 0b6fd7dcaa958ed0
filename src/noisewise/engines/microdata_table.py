"""A release of every record as the engine reads it: what is known of each column, cell by cell."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.release.randomised_response import RandomisedResponse
from noisewise.release.records import Law, RecordNoise, log_likelihood


class Cells(eqx.Module):
    """One column: the released values, zero where missing, and their noise; ``law=None`` is a public column."""

    released: Float[Array, " n"]
    missing: Bool[Array, " n"]
    law: Law | None
    gaps: bool = eqx.field(static=True)
    """Whether anything is missing."""

    @property
    def known(self) -> bool:
        """Whether every value is known exactly."""
        return self.law is None and not self.gaps

    @property
    def coded(self) -> bool:
        """Whether the values are codes under randomised response."""
        return isinstance(self.law, RandomisedResponse)

    @property
    def discrete(self) -> bool:
        """Whether the noise lives on the integers."""
        return self.law is not None and not isinstance(self.law, RandomisedResponse) and self.law.discrete

    def log_noise(self, exact: Array) -> Array:
        """``log p(released | exact)`` of each cell; zero where it is missing or public."""
        if self.law is None:
            return jnp.zeros(())
        return jnp.where(self.missing, 0.0, log_likelihood(self.law, self.released, exact))

    def log_codes(self, codes: int) -> Float[Array, "n codes"]:
        """``log p(released | code)`` for codes 0, 1, ...; a public value is certain."""
        exact = jnp.arange(codes, dtype=float)
        if self.law is None:
            found = jnp.where(self.released[:, None] == exact, 0.0, -jnp.inf)
        else:
            law = self.law
            if not isinstance(law, RandomisedResponse) and law.scale.ndim:
                law = eqx.tree_at(lambda noise: noise.scale, law, law.scale[:, None])
            found = log_likelihood(law, self.released[:, None], exact)
        return jnp.where(self.missing[:, None], 0.0, found)

    def settle(self, drawn: Array) -> Array:
        """The drawn values, with the known ones in their places."""
        return jnp.where(self.missing, drawn, self.released) if self.law is None else drawn


Table = dict[str, Cells]


def read_table(model: Model, release: Release) -> Table | str:
    """The cells of every column of the model, or the reason why the release is no table of records."""
    if release.n is None:
        return "the number of records is unknown"
    found: Table = {}
    for measurement in release.measurements:
        mechanism = measurement.mechanism
        if not isinstance(mechanism, RecordNoise):
            return "the release is not noise on every record (nw.queries.Records) and nothing else"
        values = np.asarray(measurement.value)
        for j, name in enumerate(mechanism.columns):
            if name not in model.columns:
                return f"the release reads the column {name!r}, which the model does not describe"
            if name in found:
                return f"the column {name!r} is released twice"
            missing = np.isnan(values[:, j])
            if np.any(~missing):
                found[name] = Cells(
                    jnp.asarray(np.where(missing, 0.0, values[:, j])),
                    jnp.asarray(missing),
                    mechanism.laws.get(name),
                    bool(np.any(missing)),
                )
    for name in model.columns:
        if name not in found:
            found[name] = Cells(jnp.zeros(release.n), jnp.ones(release.n, dtype=bool), None, True)
    return found
