r"""Coded records behind randomised response or other noise: every hidden code is drawn by enumeration.

Records of the Bernoulli, categorical and naive-Bayes models have finitely many values, so ``p(released record | theta)`` is
a finite sum. Codes are drawn exactly from their joint law given theta, and theta also moves with the codes summed out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from noisewise.engines.microdata_imputer import Imputer, LogDensity
from noisewise.engines.microdata_table import Table
from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.typing import Key, Records, Theta


class CodeImputer(Imputer):
    """One class column, and features that are independent given the class (none of them for one coded column)."""

    model: Model
    cells: Table

    def first(self) -> Records:
        sizes = zip(self.model.columns, self._sizes, strict=True)
        return {name: jnp.argmax(self.cells[name].log_codes(size), axis=-1) for name, size in sizes}

    def respond(self, key: Key, theta: Theta, records: Records) -> Records:
        target, *features = self.model.columns
        own, given = self._logs(theta)
        joint = own + sum((logsumexp(part, axis=-1) for part in given), start=jnp.zeros(()))
        keys = jax.random.split(key, len(features) + 1)
        code = jax.random.categorical(keys[0], joint, axis=-1)
        drawn = {target: code}
        for name, part, now in zip(features, given, keys[1:], strict=True):
            drawn[name] = jax.random.categorical(now, jnp.take_along_axis(part, code[:, None, None], 1)[:, 0], axis=-1)
        return {**records, **drawn}

    def log_target(self, key: Key, theta: Theta, records: Records) -> LogDensity:
        def summed_out(theta: Theta) -> Array:
            own, given = self._logs(theta)
            return jnp.sum(logsumexp(own + sum((logsumexp(part, axis=-1) for part in given), start=jnp.zeros(())), -1))

        return summed_out

    def log_noise(self, records: Records) -> Array:
        logs = [
            jnp.take_along_axis(self.cells[name].log_codes(size), records[name][:, None], axis=1)
            for name, size in zip(self.model.columns, self._sizes, strict=True)
        ]
        return jnp.sum(sum(logs))

    @property
    def _sizes(self) -> tuple[int, ...]:
        if isinstance(self.model, NaiveBayes):
            return (self.model.classes, *self.model.features)
        return (self.model.alpha.size if isinstance(self.model, Categorical) else 2,)

    def _logs(self, theta: Theta) -> tuple[Float[Array, "n classes"], list[Float[Array, "n classes size"]]]:
        """Log joint masses of class and its report, and for each feature of code and report given the class."""
        target, *features = self.model.columns
        size, *sizes = self._sizes
        if isinstance(self.model, NaiveBayes):
            classes = theta["class_probs"]
        else:
            classes = jnp.stack([1 - theta["p"], theta["p"]]) if isinstance(self.model, Bernoulli) else theta["p"]
        given = [
            jnp.log(theta[f"feature_probs_{k}"]) + self.cells[name].log_codes(levels)[:, None, :]
            for k, (name, levels) in enumerate(zip(features, sizes, strict=True), start=1)
        ]
        return jnp.log(classes) + self.cells[target].log_codes(size), given


def code_imputer(model: Bernoulli | Categorical | NaiveBayes, table: Table) -> CodeImputer | str:
    """The imputer of coded columns, or the reason why there is none."""
    made = CodeImputer(model, table)
    for name, size in zip(model.columns, made._sizes, strict=True):
        if not bool(jnp.all(jnp.any(jnp.isfinite(table[name].log_codes(size)), axis=1))):
            return f"the column {name!r} has released values that none of its {size} codes explains"
    return made
