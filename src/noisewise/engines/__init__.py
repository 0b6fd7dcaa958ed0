"""Engines: ways to compute ``p(theta | release)``."""

from noisewise.engines.augmentation import Augmentation
from noisewise.engines.base import Draw, Engine, Exact, Sampler, Support
from noisewise.engines.sufficient import Sufficient

__all__ = ["Augmentation", "Draw", "Engine", "Exact", "Sampler", "Sufficient", "Support"]
