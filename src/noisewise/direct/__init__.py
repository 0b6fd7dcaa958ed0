"""Direct sampling of weighted densities w(x) g(x) in one dimension (Raim 2021): latent values behind noisy releases."""

from noisewise.direct.bases import Base, CustomBase, Uniform
from noisewise.direct.closed import discrete_window, normal_laplace
from noisewise.direct.gamma_poisson import GammaWeight, PoissonWeight
from noisewise.direct.latent import latent_value, lognormal_discrete_laplace
from noisewise.direct.plots import plot_draws, plot_step
from noisewise.direct.samplers import log_target, sample, step_function
from noisewise.direct.step import StepFunction
from noisewise.direct.weights import (
    LognormalWeight,
    NormalWeight,
    StudentTWeight,
    TransformedNormalWeight,
    UnimodalWeight,
    Weight,
)

__all__ = [
    "Base",
    "CustomBase",
    "GammaWeight",
    "LognormalWeight",
    "NormalWeight",
    "PoissonWeight",
    "StepFunction",
    "StudentTWeight",
    "TransformedNormalWeight",
    "Uniform",
    "UnimodalWeight",
    "Weight",
    "discrete_window",
    "latent_value",
    "log_target",
    "lognormal_discrete_laplace",
    "normal_laplace",
    "plot_draws",
    "plot_step",
    "sample",
    "step_function",
]
