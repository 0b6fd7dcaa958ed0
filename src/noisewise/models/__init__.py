"""Laws of the confidential records."""

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal

__all__ = ["Bernoulli", "LinearRegression", "Model", "NaiveBayes", "Normal"]
