"""Laws of the confidential records."""

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.custom import Custom
from noisewise.models.exponential import Exponential
from noisewise.models.exponential_family import ExponentialFamily, exponential_form
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.models.unknown_size import UnknownSize

__all__ = [
    "Bernoulli",
    "Categorical",
    "Custom",
    "Exponential",
    "ExponentialFamily",
    "GammaKnownShape",
    "InverseGamma",
    "InverseWishart",
    "LinearRegression",
    "Model",
    "NaiveBayes",
    "Normal",
    "NormalPrior",
    "Poisson",
    "UnknownSize",
    "exponential_form",
]
