"""Mechanisms beyond independent noise added to a sum, for ``nw.Measurement(mechanism=..., value=...)``.

| mechanism | row of a record | log g(s, total) |
|---|---|---|
| :class:`ExponentialMechanism` | its utility for every candidate | softmax of the utilities at the chosen one |
| :class:`ObjectivePerturbation` | gradient and Hessian of its loss at s | noise density at the implied noise, with the Jacobian |
| :class:`KNormGradient` | gradient of its loss at s | ``-epsilon / 2D`` times the norm of the total, and a normaliser |
| :class:`KNormNoise` | the query's row | ``-norm(s - total) / scale`` and a constant |
| :class:`TruncatedNoise` | the query's row | the noise density, renormalised to the interval |
| :class:`CensoredNoise` | the query's row | the noise density inside, point masses at the ends or on the grid |
| :func:`functional_moments` | polynomial coefficients of its loss | noise added to them (a plain measurement) |

What depends on the confidential records in other ways than through a sum cannot be evaluated by an analyst and has no class
here: noise whose scale was computed from the records (local or smooth sensitivity), clamping bounds picked from the records
without a private mechanism of their own, and outputs released only when a hidden test passed. :func:`refuse` says why.
"""

from noisewise.release.mechanisms.bounded import CensoredNoise, TruncatedNoise
from noisewise.release.mechanisms.empirical_risk import KNormGradient, ObjectivePerturbation, functional_moments
from noisewise.release.mechanisms.exponential import ExponentialMechanism
from noisewise.release.mechanisms.norms import KNormNoise
from noisewise.release.mechanisms.refused import refuse

__all__ = [
    "CensoredNoise",
    "ExponentialMechanism",
    "KNormGradient",
    "KNormNoise",
    "ObjectivePerturbation",
    "TruncatedNoise",
    "functional_moments",
    "refuse",
]
