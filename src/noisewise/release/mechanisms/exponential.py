r"""The exponential mechanism over finitely many candidates (McSherry and Talwar 2007)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanisms.checks import (
    check_scalar,
    column_names,
    function_of_record,
    numbers,
    positive_number,
    refuse_function,
)
from noisewise.release.privacy import Privacy
from noisewise.release.query import Neighbours
from noisewise.typing import Key, Records


class ExponentialMechanism(Mechanism):
    r"""A candidate chosen with probability proportional to ``exp(epsilon u(x, c) / (2 sensitivity))``.

    The utility is a sum over records, ``u(x, c) = sum_i utility(x_i, c)``, or a function ``score`` of such sums: a
    record's row is its utility for ALL candidates, because the normaliser

    ``log g(s, t) = (epsilon / 2D) score(t)_s - log sum_c exp((epsilon / 2D) score(t)_c)``

    depends on the records too. The released value is the position of the chosen candidate.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> mechanism = nw.mechanisms.ExponentialMechanism(
    ...     lambda record, c: (record["x"] < c).astype(float),
    ...     candidates=[0.0, 1.0, 2.0], epsilon=1.0, sensitivity=1.0, score=lambda below: -jnp.abs(below - 50))
    >>> nw.Release([nw.Measurement(mechanism=mechanism, value=1)], n=100).size
    3
    """

    candidates: Float[Array, "c ..."]
    epsilon: Float[Array, ""]
    sensitivity: Float[Array, ""]
    utility: Callable[[Records, Array], Array] = eqx.field(static=True)
    score: Callable[[Array], Array] | None = eqx.field(static=True)
    reads: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        utility: Callable[[Records, Array], Array],
        candidates: Any,
        *,
        epsilon: float,
        sensitivity: float,
        score: Callable[[Array], Array] | None = None,
        columns: Sequence[str] = ("x",),
    ) -> None:
        refuse_function("candidates", candidates, "data_dependent_candidates")
        function_of_record("utility", utility)
        table = numbers(candidates)
        if table.ndim == 0 or table.shape[0] < 2 or not np.all(np.isfinite(table)):
            raise ValueError(
                "The exponential mechanism needs at least 2 candidates, each a finite number or a vector of them (names "
                f"are given as their positions 0, 1, ...); got {candidates!r}."
            )
        self.candidates = jnp.asarray(table)
        self.epsilon = positive_number("epsilon", epsilon)
        self.sensitivity = positive_number("sensitivity", sensitivity)
        self.utility, self.score, self.reads = utility, score, column_names(columns)
        if score is not None:
            if not callable(score):
                raise ValueError(f"score must be a function of the sums of utilities, one a candidate; got {score!r}.")
            found = jax.eval_shape(score, jax.ShapeDtypeStruct((self.size,), float)).shape
            if found != (self.size,):
                raise ValueError(
                    f"score must map the {self.size} sums, one a candidate, to {self.size} scores; it gives shape {found}."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.reads

    @property
    def size(self) -> int:
        return int(self.candidates.shape[0])

    def check(self, value: Any) -> Array:
        array = super().check(value)
        if isinstance(array, jax.core.Tracer):
            return array
        if array.shape != () or float(array) not in range(self.size):
            raise ValueError(
                f"The value of an exponential mechanism is the position of the chosen candidate, 0 to {self.size - 1}; "
                f"got {value!r}."
            )
        return array

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        return Privacy("pure", self.epsilon)

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        mine = {name: records[name] for name in self.reads}
        check_scalar("utility", self.utility, mine, self.candidates[0])
        each = jax.vmap(self.utility, in_axes=(None, 0))
        return jax.vmap(lambda record: each(record, self.candidates))(mine).astype(float)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        return jax.nn.log_softmax(self._logits(total))[released.astype(int)]

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        return jax.random.categorical(key, self._logits(total)).astype(float)

    def _logits(self, total: Array) -> Array:
        return self.epsilon / (2 * self.sensitivity) * (total if self.score is None else self.score(total))
