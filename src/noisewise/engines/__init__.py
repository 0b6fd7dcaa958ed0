"""Engines: ways to compute ``p(theta | release)``."""

from noisewise.engines.augmentation import Augmentation
from noisewise.engines.base import Draw, Engine, Exact, Sampler, Support
from noisewise.engines.counts import Counts
from noisewise.engines.fourier import Fourier
from noisewise.engines.microdata import Microdata
from noisewise.engines.sufficient import Sufficient
from noisewise.engines.trust import Trust, check_normality

__all__ = [
    "Augmentation",
    "Counts",
    "Draw",
    "Engine",
    "Exact",
    "Fourier",
    "Microdata",
    "Sampler",
    "Sufficient",
    "Support",
    "Trust",
    "check_normality",
]
