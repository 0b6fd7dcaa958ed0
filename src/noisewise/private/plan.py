"""What a private run would cost, before it touches a record: iterations for a budget, or noise for a number of iterations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Array, Float

from noisewise.private.accounting import checked_whole
from noisewise.private.budget import Budget
from noisewise.private.ledger import (
    AccountantName,
    Step,
    affordable,
    choose,
    describe,
    repeated,
    spent_delta,
    spent_epsilon,
)
from noisewise.private.target import Target
from noisewise.typing import Key


class Method(Protocol):
    """A private sampler: what an iteration releases, and the iteration itself."""

    @property
    def name(self) -> str: ...
    @property
    def noise(self) -> Array | None: ...
    def steps(self, n: int) -> list[Step]: ...
    def with_noise(self, noise: float) -> Any: ...
    def ready(self, target: Target, n: int) -> Any: ...
    def init(self, theta: Float[Array, " d"]) -> Any: ...
    def step(
        self, key: Key, state: Any, target: Target, table: Any, *, probe: bool = False
    ) -> tuple[Any, dict[str, Array]]: ...


@dataclass(frozen=True)
class Plan:
    """A run that was paid for in thought: the sampler, its iterations over all chains, and what they cost."""

    method: Method
    budget: Budget
    n: int
    iterations: int
    accountant: AccountantName

    def steps(self, iterations: int | None = None) -> list[Step]:
        """What the run (or a shorter one) releases."""
        return repeated(self.method.steps(self.n), self.iterations if iterations is None else iterations)

    @property
    def epsilon(self) -> float:
        """The epsilon of this run alone, at the budget's delta."""
        return spent_epsilon(self.steps(), self.budget.delta, self.accountant)

    @property
    def cost(self) -> float:
        """The epsilon of a single iteration, at the budget's delta."""
        return spent_epsilon(self.steps(1), self.budget.delta, self.accountant)

    @property
    def noise(self) -> float:
        """The noise of the sampler, in its own units (tau)."""
        return float(self.method.noise or 0.0)

    def describe(self) -> str:
        """The plan in words."""
        return (
            f"{self.method.name}: {self.iterations} iterations on n = {self.n} records, noise = {self.noise:.4g}; "
            f"epsilon = {self.epsilon:.4g} of {self.budget.epsilon:g} at delta = {self.budget.delta:g}, neighbours "
            f"{self.budget.neighbours}; {describe(self.accountant)}."
        )


def plan(
    method: Method,
    budget: Budget,
    n: int | None = None,
    *,
    iterations: int | None = None,
    accountant: AccountantName = "auto",
) -> Plan:
    """The cost of a run, without a record in sight.

    With the method's noise given: as many iterations as what is left of the budget allows (or check that ``iterations``
    fit). With the noise left out and ``iterations`` given: the least noise that affords them. Several chains share the
    iterations. ``n`` is the public number of records. Raises where not one iteration fits.

    >>> from noisewise.private import Budget, Penalty
    >>> budget = Budget(epsilon=4.0, delta=1e-6)
    >>> plan(Penalty(noise=0.1, clip=2.0, proposal=0.01), budget, n=100_000).iterations
    702
    >>> round(float(plan(Penalty(clip=2.0, proposal=0.01), budget, n=100_000, iterations=702).method.noise), 4)
    0.1
    """
    if not (hasattr(method, "steps") and isinstance(budget, Budget)):
        raise ValueError(f"plan takes a sampler, such as Penalty(...), and a Budget; got {method!r} and {budget!r}.")
    n = checked_n(n)
    if iterations is not None:
        iterations = checked_whole(iterations, "iterations")
    if method.noise is None:
        if iterations is None:
            raise ValueError("the sampler has no noise and the plan no iterations: give one, and the other is found.")
        method = with_least_noise(method, budget, n, iterations, accountant)
    once = method.steps(n)
    name = choose([*budget.ledger, *once], accountant)
    if iterations is not None and budget.allows(repeated(once, iterations), name):
        return Plan(method, budget, n, iterations, name)
    most = affordable(once, epsilon=budget.epsilon, delta=budget.delta, before=budget.ledger, accountant=name)
    if most == 0:
        one = spent_epsilon(once, budget.delta, name)
        raise ValueError(
            f"the budget allows no iteration: a single one costs epsilon = {one:.4g} at delta = {budget.delta:g}, and of "
            f"{budget.epsilon:g} there was spent {budget.spent_epsilon():.4g}. Add noise, choose another batch, or state a larger budget."
        )
    if iterations is not None:
        raise ValueError(
            f"{iterations} iterations do not fit the budget, which allows {most}. Leave out the noise, and the plan finds the noise that "
            "affords them."
        )
    return Plan(method, budget, n, most, name)


def checked_n(n: int | None) -> int:
    """The public number of records, which must be stated."""
    if n is None:
        raise ValueError(
            "the number of records was not stated: give n=..., a public number. It is in the scale of the noise, so it cannot be secret."
        )
    return checked_whole(n, "n")


def with_least_noise(method: Method, budget: Budget, n: int, iterations: int, accountant: AccountantName) -> Any:
    """The method with the least noise at which this many iterations fit, on the affordable side."""
    name = choose([*budget.ledger, *method.with_noise(1.0).steps(n)], accountant)

    def fits(noise: float) -> bool:
        steps = [*budget.ledger, *repeated(method.with_noise(noise).steps(n), iterations)]
        try:
            return spent_delta(steps, budget.epsilon, name) <= budget.delta
        except ValueError:  # a single release loses more than a privacy-loss grid can hold
            return False

    return method.with_noise(least(fits, slack(name)))


def slack(accountant: AccountantName) -> float:
    """How closely the least noise is found, relatively: as closely as numbers allow, or, where each try costs a second, to 1e-4."""
    return 1e-4 if accountant.startswith("pld") else 1e-13


def least(fits: Callable[[float], bool], slack: float) -> float:
    """The least positive number that fits, to a relative ``slack`` and on the side that does; ``fits`` is monotone."""
    high = 1.0
    while not fits(high):
        high *= 4
        if high > 1e12:
            raise ValueError(
                "no amount of noise is enough: the budget is spent, or the noise that was given costs more than is left of it by itself. "
                "State a larger budget, fewer iterations, or leave out that noise too."
            )
    low = high / 4
    while fits(low):
        low, high = low / 4, low
    while high / low > 1 + slack:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
