"""Every bad hyperparameter is refused with a sentence that names it."""

import numpy as np
import pytest

import noisewise as nw

M = nw.models
NAN = float("nan")
REGRESSION = {"covariate_mean": [0, 0], "covariate_cov": np.eye(2)}

BAD = {
    "a must be positive": lambda: M.Bernoulli(0, 1),
    "b must be finite": lambda: M.Bernoulli(1, NAN),
    "b must be a number": lambda: M.Bernoulli(1, [1, 2]),
    "a must be a number; got 'one'": lambda: M.Bernoulli("one", 1),
    "a must be a number; got '3'": lambda: M.Bernoulli("3", 1),
    "b must be a number; got True": lambda: M.Bernoulli(1, True),
    "column must be the name of a column": lambda: M.Bernoulli(column=3),
    "alpha must be a vector": lambda: M.Categorical(2.0),
    "alpha must be positive": lambda: M.Categorical([1, -1]),
    "shape must be positive": lambda: M.Poisson(-1, 1),
    "rate must be positive": lambda: M.Exponential(1, 0),
    "mean_prior must be two numbers": lambda: M.Normal(mean_prior=3),
    r"mean_prior\[1\], the prior standard deviation, must be positive": lambda: M.Normal(mean_prior=(0, -1)),
    "sd must be positive": lambda: M.Normal(sd=0),
    "sd and variance_prior exclude each other": lambda: M.Normal(sd=1, variance_prior=(1, 1)),
    "variance_prior must be two numbers": lambda: M.Normal(variance_prior=(1, 1, 1)),
    "inverse gamma scale must be positive": lambda: M.Normal(variance_prior=(1, 0)),
    "classes must be a whole number": lambda: M.NaiveBayes(2.5, [2]),
    r"features\[1\] must be a whole number of levels": lambda: M.NaiveBayes(2, [2, 1]),
    "features must give the number of levels of each": lambda: M.NaiveBayes(2, 3),
    "features must give": lambda: M.NaiveBayes(2, []),
    "prior must be positive": lambda: M.NaiveBayes(2, [2], prior=0),
    "target must differ": lambda: M.NaiveBayes(2, [2], target="x1"),
    "predictors must be one or more different": lambda: M.LinearRegression(("x", "x"), **REGRESSION),
    "predictors must be the name of a column": lambda: M.LinearRegression("", **REGRESSION),
    "predictors must be one or more different column names; got 3": lambda: M.LinearRegression(3, **REGRESSION),
    "response must not be": lambda: M.LinearRegression(("x", "y"), "y", **REGRESSION),
    "coef_scale must be positive": lambda: M.LinearRegression(coef_scale=-2, **REGRESSION),
    "variance must be positive": lambda: M.LinearRegression(variance=0, **REGRESSION),
    r"covariate_mean must be an array of numbers of shape \(2,\)": lambda: M.LinearRegression(
        covariate_mean=[0], covariate_cov=np.eye(2)
    ),
    "covariate_cov must be positive definite": lambda: M.LinearRegression(
        covariate_mean=[0, 0], covariate_cov=np.ones((2, 2))
    ),
    "covariate_cov must be symmetric": lambda: M.LinearRegression(
        covariate_mean=[0, 0], covariate_cov=[[1, 0.5], [0, 1]]
    ),
    "covariate_mean must have a prior of dimension 2": lambda: M.LinearRegression(
        covariate_mean=M.NormalPrior([0], [[1]]), covariate_cov=np.eye(2)
    ),
    "covariate_cov must have a prior of dimension 2": lambda: M.LinearRegression(
        covariate_mean=[0, 0], covariate_cov=M.InverseWishart(4, np.eye(3))
    ),
    "intercept must be True or False; got 'no'": lambda: M.LinearRegression(intercept="no", **REGRESSION),
    "transforms must say the map of each predictor": lambda: M.LinearRegression(("x",), transforms=3),
    "degrees of freedom .* must exceed 1": lambda: M.InverseWishart(1, np.eye(2)),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_hyperparameters_get_a_sentence(sentence):
    with pytest.raises(ValueError, match=sentence):
        BAD[sentence]()


def test_a_single_number_does_for_a_single_predictor():
    single = nw.models.LinearRegression(("a",), "y", covariate_mean=0.5, covariate_cov=2)
    assert (single.covariate_mean.tolist(), single.covariate_cov.tolist()) == ([0.5], [[2.0]])
    assert nw.models.NormalPrior(0, 4).cov.tolist() == [[4.0]]
    assert nw.models.InverseWishart(3, 1.5).scale.tolist() == [[1.5]]
    with pytest.raises(ValueError, match=r"covariate_mean must be an array of numbers of shape \(2,\)"):
        nw.models.LinearRegression(("a", "b"), "y", covariate_mean=0.5, covariate_cov=np.eye(2))
