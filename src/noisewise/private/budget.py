"""The budget of a data holder: a promise about one set of records, and the ledger of what was spent of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Literal, NoReturn

from noisewise.private.accounting import checked_delta, checked_epsilon
from noisewise.private.ledger import AccountantName, Step, choose, spent_delta, spent_epsilon

Neighbours = Literal["replace_one", "add_remove_one"]


class Budget:
    """An (epsilon, delta) promise about one data set, spent once.

    Everything released about the same records must be charged to the same object. A plan is charged BEFORE its run touches a
    record, so a run that is interrupted has spent its share. The object cannot be changed, copied or pickled, and is spent only in
    the process that made it: two ledgers of one promise would spend it twice.

    >>> budget = Budget(epsilon=4.0, delta=1e-6)
    >>> budget.spent_epsilon()
    0.0

    ``neighbours`` is the relation the promise is about: ``"replace_one"`` (substitution of one record, n public), the one the
    samplers of this room guarantee.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours
    _ledger: list[Step]
    _lock: threading.Lock
    _process: int

    def __init__(self, epsilon: float, delta: float, *, neighbours: Neighbours = "replace_one") -> None:
        if neighbours not in ("replace_one", "add_remove_one"):
            raise ValueError(f"neighbours must be 'replace_one' or 'add_remove_one'; got {neighbours!r}.")
        if neighbours == "add_remove_one":
            raise ValueError(
                "the private samplers protect under neighbours='replace_one': n is public and in the scale of their noise. "
                "An add_remove_one promise needs a release with a noisy count: use nw.publish."
            )

        vars(self).update(
            epsilon=checked_epsilon(epsilon),
            delta=checked_delta(delta),
            neighbours=neighbours,
            _ledger=[],
            _lock=threading.Lock(),
            _process=os.getpid(),
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a budget cannot be changed: {name} was set when it was made. State a new one.")

    def __reduce__(self) -> NoReturn:
        raise ValueError(
            "a budget cannot be copied or pickled: two ledgers of one promise would spend it twice. Pass the object itself, or state a "
            "new budget for other records."
        )

    @property
    def ledger(self) -> tuple[Step, ...]:
        """What was released under this budget, in order."""
        return tuple(self._ledger)

    def spent_delta(self, accountant: AccountantName = "auto") -> float:
        """The delta, at the budget's epsilon, of everything released so far."""
        return spent_delta(self._ledger, self.epsilon, accountant)

    def spent_epsilon(self, accountant: AccountantName = "auto") -> float:
        """The epsilon, at the budget's delta, of everything released so far."""
        return spent_epsilon(self._ledger, self.delta, accountant)

    def allows(self, steps: Sequence[Step], accountant: AccountantName = "auto") -> bool:
        """Whether the ledger with these steps added keeps the promise."""
        together = [*self._ledger, *steps]
        return spent_delta(together, self.epsilon, choose(together, accountant)) <= self.delta

    def spend(self, steps: Sequence[Step], accountant: AccountantName = "auto") -> None:
        """Add the steps to the ledger, or refuse them all."""
        if os.getpid() != self._process:
            raise ValueError(
                "this budget was made in another process, which would not see what is spent here. Spend it there, or share the promise "
                "out beforehand as budgets of their own."
            )
        with self._lock:
            if not self.allows(steps, accountant):
                raise ValueError(
                    f"this run does not fit what is left of the budget: epsilon = {self.spent_epsilon():.4g} of "
                    f"{self.epsilon:g} was already spent at delta = {self.delta:g}, and a budget is spent once. "
                    "Plan the run again to use what is left, or state a larger promise with a new budget."
                )
            self._ledger.extend(steps)

    def __repr__(self) -> str:
        return (
            f"Budget(epsilon={self.epsilon:g}, delta={self.delta:g}, neighbours={self.neighbours!r}, "
            f"spent_epsilon={self.spent_epsilon():.4g})"
        )
