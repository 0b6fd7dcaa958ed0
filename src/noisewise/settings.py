"""How long to run and from which seed: checked before anything else."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Settings:
    """How long to run, and what to keep."""

    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    thin: int = 1
    target_ess: float | None = None
    keep_latent: int = 0
    checkpoint: Path | None = None
    progressbar: bool = True

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("tune", 0), ("chains", 1), ("thin", 1), ("keep_latent", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
        if not isinstance(self.progressbar, bool):
            raise ValueError(f"progressbar must be True or False; got {self.progressbar!r}.")
        number = isinstance(self.target_ess, int | float | np.number) and not isinstance(self.target_ess, bool)
        if self.target_ess is not None and not (number and np.isfinite(self.target_ess) and self.target_ess > 0):
            raise ValueError(
                f"target_ess must be positive; got {self.target_ess!r}. Leave it out to run a fixed length."
            )
        if self.keep_latent > self.draws * self.chains:
            raise ValueError(
                f"keep_latent={self.keep_latent} asks for more imputed databases than the {self.draws * self.chains} "
                "draws of all chains; raise draws or keep fewer."
            )
        if self.checkpoint is not None and not self.checkpoint.parent.is_dir():
            raise ValueError(
                f"The folder of the checkpoint {self.checkpoint} does not exist; make it, or name another."
            )


def fresh_seed() -> int:
    """A seed from the operating system's entropy, small enough for every file format."""
    return secrets.randbits(63)


def check_seed(random_seed: int | None) -> int:
    """The given seed, or a fresh one for None."""
    if random_seed is None:
        return fresh_seed()
    if isinstance(random_seed, bool) or not isinstance(random_seed, int | np.integer) or not 0 <= random_seed < 2**63:
        raise ValueError(f"random_seed must be a whole number from 0 to 2^63 - 1, or None; got {random_seed!r}.")
    return int(random_seed)
