"""What was released, and what it costs: the steps of a run are facts, an accountant interprets them.

A step keeps a sensitivity and a scale, never their ratio, because libraries disagree on which neighbours a "noise
multiplier" is relative to. Every sensitivity is under substitution of one record (``replace_one``), data sets of the
same public size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, TypeAlias

from noisewise.private import accounting


@dataclass(frozen=True)
class GaussianStep:
    """``count`` releases of a statistic of ALL records with noise ``N(0, scale^2)``; no sampling; neighbours replace_one."""

    sensitivity: float
    scale: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_noise(self)
        _check_count(self)

    @property
    def mu(self) -> float:
        """``count sensitivity^2 / (2 scale^2)``."""
        return 0.5 * self.count * (self.sensitivity / self.scale) ** 2


@dataclass(frozen=True)
class BatchGaussianStep:
    """``count`` releases of a statistic of a fresh batch drawn without replacement, noise ``N(0, scale^2)``; neighbours replace_one.

    ``sensitivity`` is under substitution of one record of the batch.
    """

    sensitivity: float
    scale: float
    batch: int
    n: int
    count: int = 1

    def __post_init__(self) -> None:
        _check_noise(self)
        _check_count(self)
        accounting.checked_batch(self.batch, self.n)


@dataclass(frozen=True)
class BarkerStep:
    """``count`` DP Barker releases, each from a fresh batch drawn without replacement (Theorem 3.3); neighbours replace_one."""

    batch: int
    n: int
    count: int = 1

    def __post_init__(self) -> None:
        _check_count(self)
        accounting.checked_batch(self.batch, self.n)


def _check_noise(step: GaussianStep | BatchGaussianStep) -> None:
    for name in ("sensitivity", "scale"):
        accounting.checked_positive(getattr(step, name), f"the {name} of a release")


def _check_count(step: Step) -> None:
    if isinstance(step.count, bool) or not isinstance(step.count, Real) or step.count % 1 != 0 or step.count < 0:
        raise ValueError(
            f"a count of releases must be a whole number, not negative: nothing is given back; got {step.count!r}."
        )


Step: TypeAlias = GaussianStep | BatchGaussianStep | BarkerStep
AccountantName: TypeAlias = Literal["auto", "tight", "zcdp", "rdp", "rdp_improved", "pld", "pld_without_replacement"]

_COVERS: dict[AccountantName, tuple[type, ...]] = {
    "tight": (GaussianStep,),
    "zcdp": (GaussianStep,),
    "pld": (GaussianStep, BatchGaussianStep),
    "pld_without_replacement": (GaussianStep, BatchGaussianStep),
    "rdp": (GaussianStep, BatchGaussianStep, BarkerStep),
    "rdp_improved": (GaussianStep, BatchGaussianStep, BarkerStep),
}

_SAYS: dict[str, str] = {
    "tight": "tight Gaussian privacy loss, exact for adaptive composition",
    "zcdp": "zCDP with the conversion of Bun and Steinke",
    "pld": "privacy-loss distribution of the conservative symmetric pair, batches without replacement",
    "pld_without_replacement": "privacy-loss distribution of batches without replacement by advanced joint convexity",
    "rdp": "Renyi DP, batches without replacement (Wang et al.), Mironov's conversion",
    "rdp_improved": "Renyi DP, batches without replacement (Wang et al.), improved conversion",
}


def describe(accountant: str) -> str:
    """An accountant in words."""
    return _SAYS[accountant]


def choose(steps: Sequence[Step], accountant: AccountantName = "auto") -> AccountantName:
    """The accountant to use for these steps: the one asked for if it covers them all, or the tightest conservative one.

    >>> choose([GaussianStep(1.0, 3.0)]), choose([BarkerStep(1000, 100_000)])
    ('tight', 'rdp_improved')
    """
    kinds = {type(step) for step in steps}
    if not kinds <= set(_COVERS["rdp"]):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"a ledger holds GaussianStep, BatchGaussianStep and BarkerStep; got {names}.")
    if accountant == "auto":
        return next(name for name in ("tight", "pld", "rdp_improved") if kinds <= set(_COVERS[name]))
    if accountant not in _COVERS:
        raise ValueError(f"accountant must be 'auto' or one of {', '.join(_COVERS)}; got {accountant!r}.")
    missing = kinds - set(_COVERS[accountant])
    if missing:
        names = ", ".join(sorted(kind.__name__ for kind in missing))
        able = [name for name in _COVERS if kinds <= set(_COVERS[name])]
        raise ValueError(
            f"the accountant {accountant!r} cannot account for {names}. Use one of {', '.join(able)}, or 'auto'."
        )
    return accountant


def spent_delta(steps: Sequence[Step], epsilon: float, accountant: AccountantName = "auto") -> float:
    """The delta at ``epsilon`` of a whole ledger. Neighbours: replace_one.

    >>> round(spent_delta([GaussianStep(2.0, 10.0, 25), GaussianStep(1.0, 10.0, 100)], 1.0), 6)
    0.286208
    """
    return _curve(steps, choose(steps, accountant), lambda name, parts: _delta(name, parts, epsilon))


def spent_epsilon(steps: Sequence[Step], delta: float, accountant: AccountantName = "auto") -> float:
    """The epsilon at ``delta`` of a whole ledger. Neighbours: replace_one."""
    accounting.checked_delta(delta)
    return _curve(steps, choose(steps, accountant), lambda name, parts: _epsilon(name, parts, delta))


def _curve(steps: Sequence[Step], name: str, at: Callable[[str, Sequence[Step]], float]) -> float:
    steps = [step for step in steps if step.count > 0]
    return at(name, steps) if steps else 0.0


def total_mu(steps: Sequence[Step]) -> float:
    """The ledger of the Gaussian releases on all records: one additive number."""
    return math.fsum(step.mu for step in steps if isinstance(step, GaussianStep))


def _renyi(steps: Sequence[Step]) -> list[float]:
    return [math.fsum(step.count * _renyi_one(step, order) for step in steps) for order in accounting.ORDERS]


def _renyi_one(step: Step, order: int) -> float:
    if isinstance(step, GaussianStep):
        return accounting.rdp_gaussian(order, replace(step, count=1).mu)
    if isinstance(step, BatchGaussianStep):
        mu = 0.5 * (step.sensitivity / step.scale) ** 2
        return accounting.rdp_subsampled(order, step.batch, step.n, lambda j: j * mu)
    if order >= step.batch / 5:
        return math.inf
    return accounting.rdp_subsampled(order, step.batch, step.n, lambda j: accounting.rdp_barker(j, step.batch))


def _distribution(name: str, steps: Sequence[Step]) -> object:
    from noisewise.private import losses

    pair: losses.Pair = "poisson" if name == "pld" else "without_replacement"
    parts: list[tuple[object, int]] = []
    if total_mu(steps) > 0:
        parts.append((losses.pld_gaussian(total_mu(steps)), 1))
    for step in steps:
        if isinstance(step, BatchGaussianStep):
            one = losses.pld_subsampled(
                sensitivity=step.sensitivity, scale=step.scale, batch=step.batch, n=step.n, pair=pair
            )
            parts.append((one, step.count))
    return losses.pld_compose(*parts)


def _delta(name: str, steps: Sequence[Step], epsilon: float) -> float:
    if name == "tight":
        return accounting.gaussian_delta(epsilon, total_mu(steps))
    if name == "zcdp":
        return accounting.zcdp_delta(epsilon, total_mu(steps))
    if name.startswith("pld"):
        from noisewise.private import losses

        return losses.pld_delta(_distribution(name, steps), epsilon=epsilon)
    return accounting.rdp_delta(epsilon, _renyi(steps), conversion="thesis" if name == "rdp" else "improved")


def _epsilon(name: str, steps: Sequence[Step], delta: float) -> float:
    if name == "tight":
        return accounting.gaussian_epsilon(total_mu(steps), delta)
    if name == "zcdp":
        return accounting.zcdp_epsilon(total_mu(steps), delta)
    if name.startswith("pld"):
        from noisewise.private import losses

        return losses.pld_epsilon(_distribution(name, steps), delta=delta)
    return accounting.rdp_epsilon(_renyi(steps), delta, conversion="thesis" if name == "rdp" else "improved")


def repeated(steps: Sequence[Step], count: int) -> list[Step]:
    """These steps, ``count`` times over."""
    return [replace(step, count=step.count * count) for step in steps]


def affordable(
    once: Sequence[Step],
    *,
    epsilon: float,
    delta: float,
    before: Sequence[Step] = (),
    accountant: AccountantName = "auto",
) -> int:
    """How many times ``once`` fits in (epsilon, delta) after ``before``: the largest k whose ledger still costs at most delta.

    >>> affordable([GaussianStep(2.0, 63.2)], epsilon=4.0, delta=1e-6)
    700
    """
    name = choose([*before, *once], accountant)

    def fits(count: int) -> bool:
        return spent_delta([*before, *repeated(once, count)], epsilon, name) <= delta

    if not fits(1):
        return 0
    high = 2
    while fits(high):
        high *= 2
        if high > (2**24 if name.startswith("pld") else 2**60):  # past this a privacy-loss grid would fill the memory
            raise ValueError(
                f"more than {high // 2} iterations fit: less noise would serve you better. State the number of iterations to run."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
