"""Formulas for the regressions: what they say, and what they must not ask of records that nobody sees."""

import sys

import numpy as np
import pytest

import noisewise as nw

pytest.importorskip("formulaic")
LAW = {"covariate_mean": [0.0, 1.0], "covariate_cov": [[1.0, 0.2], [0.2, 2.0]]}


def test_a_formula_is_the_regression_with_the_same_columns():
    by_name = nw.models.LinearRegression(("age", "dose"), "relief", coef_scale=3.0, **LAW)
    assert nw.models.LinearRegression("relief ~ age + dose", coef_scale=3.0, **LAW) == by_name
    assert nw.models.LinearRegression("relief ~ age + dose", "relief", coef_scale=3.0, **LAW) == by_name
    without = nw.models.LinearRegression("relief ~ 0 + dose + age", **LAW)
    assert (without.predictors, without.intercept) == (("dose", "age"), False)


@pytest.mark.parametrize(
    "kind", [nw.models.LinearRegression, nw.models.LogisticRegression, nw.models.LognormalRegression]
)
def test_every_regression_takes_a_formula_with_public_maps(kind):
    found = kind("y ~ age + log(dose) + np.arcsinh(debt)")
    named = kind(("age", "dose", "debt"), "y", intercept=True, transforms={"dose": "log", "debt": "asinh"})
    assert found == named
    assert found.columns == ("age", "dose", "debt", "y")


def test_a_formula_fits_like_its_columns_and_in_a_model_file(tmp_path):
    unit = nw.Column(-5, 5, rescale=(-1, 1))
    query = nw.queries.regression_moments({"dose": unit}, {"relief": unit})
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(0.5), [0.8, 0.9, 0.7, 0.4, 0.5])], n=9)
    how = {"covariate_mean": [0.4], "covariate_cov": [[1.0]]}
    made = [nw.models.LinearRegression("relief ~ dose", **how), nw.models.LinearRegression(("dose",), "relief", **how)]
    draws = [nw.naive(model, release, draws=20, random_seed=1).posterior["beta"].values for model in made]
    np.testing.assert_array_equal(*draws)
    from noisewise.model_file import load_model

    text = '[model]\nname = "LinearRegression"\npredictors = "relief ~ dose"\ncovariate_mean = [0.4]\ncovariate_cov = [[1.0]]\n'
    (tmp_path / "model.toml").write_text(text)
    assert load_model(tmp_path / "model.toml") == made[1]


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y ~ center(x1)", r"has 'center\(x1\)', which depends on the records"),
        ("y ~ scale(x1) + x2", r"has 'scale\(x1\)', which depends on the records"),
        ("y ~ bs(x1, df=4)", "which depends on the records"),
        ("y ~ poly(x1, 2)", "which depends on the records"),
        ("y ~ C(region)", "code levels publicly"),
        ("y ~ x1:x2", "has the interaction 'x1:x2'"),
        ("y ~ x1*x2", "has the interaction 'x1:x2'"),
        ("y ~ x1**2", "has a power, which formulas take for interactions"),  # formulaic's x1**2 is x1
        ("y ~ (x1 + x2)^2", "has a power, which formulas take for interactions"),
        ("y ~ I(x1**2)", r"columns are read, and log, logit, asinh of a column"),
        ("y ~ log(x1 + 1)", r"columns are read, and log, logit, asinh of a column"),
        ("log(y) ~ x1", "use nw.models.LognormalRegression"),
        ("y + z ~ x1", "must have one column left of the ~; got 'y \\+ z'"),
        ("~ x1", "cannot be read"),
        ("y ~ x1 | x2", "cannot be read"),
        ("y ~ x1 +", "cannot be read"),
        ("y ~ 1", "has no predictors"),
        ("y ~ x1 + log(x1)", "has the column 'x1' twice"),
        ("y ~ y", "response must not be one of the predictors"),
    ],
)
def test_formulas_that_ask_for_more_are_refused(formula, sentence):
    with pytest.raises(ValueError, match=sentence) as refused:
        nw.models.LinearRegression(formula)
    assert "\n" not in str(refused.value)


def test_a_formula_and_names_beside_it_are_refused():
    with pytest.raises(ValueError, match="leave out response= and transforms="):
        nw.models.LinearRegression("y ~ x1", "z")
    with pytest.raises(ValueError, match="leave out covariate_mean and covariate_cov"):
        nw.models.LinearRegression("y ~ log(x1) + x2", **LAW)


def test_without_formulaic_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ValueError, match=r"pip install 'noisewise\[formula\]'; or name the columns"):
        nw.models.LinearRegression("y ~ x1")
