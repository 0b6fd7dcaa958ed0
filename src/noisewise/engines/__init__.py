"""Engines: ways to compute ``p(theta | release)``."""

from noisewise.engines.augmentation import Augmentation
from noisewise.engines.base import Draw, Engine, Exact, Sampler, Support

__all__ = ["Augmentation", "Draw", "Engine", "Exact", "Sampler", "Support"]
