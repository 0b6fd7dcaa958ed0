"""Laws of the confidential records."""

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.custom import Custom
from noisewise.models.exponential import Exponential
from noisewise.models.exponential_family import ExponentialFamily, exponential_form
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.logistic_regression import LogisticRegression
from noisewise.models.lognormal_regression import LognormalRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal
from noisewise.models.numpyro import from_numpyro
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma, InverseWishart, NormalPrior
from noisewise.models.small_area import FayHerriot
from noisewise.models.transforms import Transform
from noisewise.models.unknown_size import UnknownSize

__all__ = [
    "Bernoulli",
    "Categorical",
    "Custom",
    "Exponential",
    "ExponentialFamily",
    "FayHerriot",
    "GammaKnownShape",
    "InverseGamma",
    "InverseWishart",
    "LinearRegression",
    "LogisticRegression",
    "LognormalRegression",
    "Model",
    "NaiveBayes",
    "Normal",
    "NormalPrior",
    "Poisson",
    "Transform",
    "UnknownSize",
    "exponential_form",
    "from_numpyro",
]
