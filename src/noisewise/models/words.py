"""A model in words: its law as formulas, and the Python expression that makes it again, written and read."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from noisewise.models.base import Model
from noisewise.models.bernoulli import Bernoulli
from noisewise.models.categorical import Categorical
from noisewise.models.exponential import Exponential
from noisewise.models.gamma_known_shape import GammaKnownShape
from noisewise.models.linear_regression import LinearRegression
from noisewise.models.logistic_regression import LogisticRegression
from noisewise.models.lognormal_regression import LognormalRegression
from noisewise.models.naive_bayes import NaiveBayes
from noisewise.models.normal import Normal
from noisewise.models.poisson import Poisson
from noisewise.models.priors import InverseGamma
from noisewise.models.small_area import FayHerriot
from noisewise.models.transforms import NAMED
from noisewise.models.unknown_size import UnknownSize


def formulas(model: Model) -> tuple[str, ...]:
    """The law of a record and the priors, a line each; empty for a model that is not the library's.

    >>> import noisewise as nw
    >>> print(*formulas(nw.models.Bernoulli(2, 3, column="smokes")), sep="; ")
    smokesᵢ ~ Bernoulli(p); p ~ Beta(2, 3)
    """
    if isinstance(model, UnknownSize):
        return (*formulas(model.model), f"n between {model.lower} and {model.upper}")
    write = _FORMULAS.get(type(model))
    return () if write is None else tuple(write(model))


def expression(model: Model) -> str | None:
    """The Python expression that makes the model again, or None where there is none (functions have no text).

    >>> import noisewise as nw
    >>> expression(nw.models.Poisson(6, 1.5))
    "nw.models.Poisson(shape=6.0, rate=1.5, column='x')"
    """
    try:
        return _made(model)
    except _NoText:
        return None


def read_expression(text: str) -> Model:
    """The model of such an expression. Only constructors of ``nw.models`` and plain values are read, nothing is evaluated.

    >>> import noisewise as nw
    >>> read_expression("nw.models.Poisson(shape=6.0, rate=1.5, column='x')").columns
    ('x',)
    """
    try:
        model = _read(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError) as problem:
        raise ValueError(f"{text!r} is not the expression of a model: {problem}.") from None
    if not isinstance(model, Model):
        raise ValueError(f"{text!r} is not the expression of a model.")
    return model


class _NoText(Exception):
    """Something that cannot be written as an expression."""


def _read(node: ast.expr) -> Any:
    from noisewise import models

    if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).startswith("nw.models."):
        made = ast.unparse(node.func).removeprefix("nw.models.")
        kind = getattr(models, made) if made in models.__all__ else None
        if isinstance(kind, type) and issubclass(kind, eqx.Module):
            return kind(**{str(part.arg): _read(part.value) for part in node.keywords})
    if isinstance(node, ast.Tuple):
        return tuple(_read(part) for part in node.elts)
    return ast.literal_eval(node)


def _made(value: Any) -> str:
    if isinstance(value, Normal):
        deviation = "variance_prior" if isinstance(value.variance, InverseGamma) else "sd"
        spread = value.variance if isinstance(value.variance, InverseGamma) else np.sqrt(value.variance)
        return _call(
            value,
            {
                "mean_prior": (float(value.prior_mean), float(value.prior_sd)),
                deviation: spread,
                "column": value.column,
            },
        )
    if isinstance(value, UnknownSize):
        weights = np.exp(np.asarray(value.log_weights))
        return _call(value, {"model": value.model, "upper": value.upper, "lower": value.lower, "prior": weights})
    if isinstance(value, eqx.Module):
        return _call(value, {name: _argument(value, name) for name in inspect.signature(type(value)).parameters})
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return repr(np.asarray(value).tolist())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_made, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, str | int | float | bool | dict | None):
        return repr(value)
    raise _NoText


def _argument(value: eqx.Module, name: str) -> Any:
    """What a model was made with, from the fields of the same name; regressions keep theirs in a linear model."""
    linear: Any = getattr(value, "linear", value)
    if name == "variance_prior":
        return linear.variance
    owner = value if hasattr(value, name) else linear
    if not hasattr(owner, name):
        raise _NoText
    found = getattr(owner, name)
    return _named_transforms(found) if name == "transforms" else found


def _named_transforms(transforms: Sequence[tuple[str, Any]]) -> dict[str, str] | None:
    names = {transform: name for name, transform in NAMED.items()}
    if any(transform not in names for _, transform in transforms):
        raise _NoText
    return {column: names[transform] for column, transform in transforms} or None


def _call(value: object, arguments: dict[str, Any]) -> str:
    from noisewise import models

    name = type(value).__name__
    if getattr(models, name, None) is not type(value):
        raise _NoText
    return f"nw.models.{name}({', '.join(f'{key}={_made(inner)}' for key, inner in arguments.items())})"


def _bernoulli(model: Bernoulli) -> Sequence[str]:
    return f"{model.column}ᵢ ~ Bernoulli(p)", f"p ~ Beta({_n(model.a)}, {_n(model.b)})"


def _categorical(model: Categorical) -> Sequence[str]:
    return f"{model.column}ᵢ ~ Categorical(p)", f"p ~ Dirichlet({_n(model.alpha)})"


def _poisson(model: Poisson) -> Sequence[str]:
    return f"{model.column}ᵢ ~ Poisson(rate)", f"rate ~ Gamma({_n(model.shape)}, rate {_n(model.rate)})"


def _exponential(model: Exponential) -> Sequence[str]:
    return f"{model.column}ᵢ ~ Exponential(rate)", f"rate ~ Gamma({_n(model.shape)}, rate {_n(model.rate)})"


def _normal(model: Normal) -> Sequence[str]:
    known = not isinstance(model.variance, InverseGamma)
    variance = _n(model.variance) if known else "variance"
    lines = [
        f"{model.column}ᵢ ~ Normal(mean, variance {variance})"
        if known
        else f"{model.column}ᵢ ~ Normal(mean, variance)",
        f"mean ~ Normal({_n(model.prior_mean)}, sd {_n(model.prior_sd)})",
    ]
    return [*lines, *([] if known else [f"variance ~ {_prior(model.variance)}"])]


def _naive_bayes(model: NaiveBayes) -> Sequence[str]:
    features = ", ".join(f"x{k}" for k in range(1, len(model.features) + 1))
    return [
        f"{model.target}ᵢ ~ Categorical(class_probs), {model.classes} classes",
        f"xₖᵢ | {model.target}ᵢ = c ~ Categorical(feature_probs_k[c]), independent for {features}",
        f"class_probs and every row of feature_probs_k ~ Dirichlet({_n(model.prior)}, ..., {_n(model.prior)})",
    ]


def _regression(model: LinearRegression) -> Sequence[str]:
    return [
        f"{model.response}ᵢ ~ Normal({_predictor(model)}, {_named('variance', model.variance)})",
        *_regression_priors(model),
    ]


def _lognormal(model: LognormalRegression) -> Sequence[str]:
    linear = model.linear
    return [
        f"log {linear.response}ᵢ ~ Normal({_predictor(linear)}, {_named('variance', linear.variance)})",
        *_regression_priors(linear),
    ]


def _logistic(model: LogisticRegression) -> Sequence[str]:
    return [f"logit P({model.linear.response}ᵢ = 1) = {_predictor(model.linear)}", *_regression_priors(model.linear)]


def _small_area(model: FayHerriot) -> Sequence[str]:
    linear = model.linear
    return [
        f"{linear.response}ᵢ ~ Normal(area_meanᵢ, sd {model.standard_error}ᵢ)",
        f"area_meanᵢ ~ Normal({_predictor(linear)}, {_named('variance', linear.variance)})",
        *_regression_priors(linear),
    ]


def _predictor(model: LinearRegression) -> str:
    maps = _named_transforms(model.transforms) or {}
    terms = [f"beta[{name}] {maps.get(name, '')} {name}ᵢ".replace("  ", " ") for name in model.predictors]
    return " + ".join([*(["beta[intercept]"] if model.intercept else []), *terms])


def _regression_priors(model: LinearRegression) -> list[str]:
    lines = [f"each beta ~ Normal(0, sd {_n(model.coef_scale)})"]
    unknown: list[tuple[str, Any]] = [("variance", model.variance)]
    if model.covariate_mean is not None:
        mean, cov = (
            name if isinstance(value, eqx.Module) else _n(value)
            for name, value in (("covariate_mean", model.covariate_mean), ("covariate_cov", model.covariate_cov))
        )
        covariates = ", ".join(f"{name}ᵢ" for name in model.predictors)
        lines.insert(0, f"({covariates}) ~ Normal({mean}, {cov})")
        unknown += [("covariate_mean", model.covariate_mean), ("covariate_cov", model.covariate_cov)]
    return [*lines, *(f"{name} ~ {_prior(value)}" for name, value in unknown if isinstance(value, eqx.Module))]


def _named(name: str, value: Any) -> str:
    """The name of something unknown, or the name and value of something known."""
    return name if isinstance(value, eqx.Module) else f"{name} {_n(value)}"


def _gamma(model: GammaKnownShape) -> Sequence[str]:
    return [
        f"{model.column}ᵢ ~ Gamma(shape {_n(model.known)}, rate)",
        f"rate ~ Gamma({_n(model.shape)}, rate {_n(model.rate)})",
    ]


_FORMULAS: dict[type[Model], Callable[[Any], Sequence[str]]] = {
    Bernoulli: _bernoulli,
    Categorical: _categorical,
    Exponential: _exponential,
    FayHerriot: _small_area,
    GammaKnownShape: _gamma,
    LinearRegression: _regression,
    LogisticRegression: _logistic,
    LognormalRegression: _lognormal,
    NaiveBayes: _naive_bayes,
    Normal: _normal,
    Poisson: _poisson,
}


def _prior(law: Any) -> str:
    return (
        f"{type(law).__name__}({', '.join(_n(getattr(law, name)) for name in inspect.signature(type(law)).parameters)})"
    )


def _n(value: Any) -> str:
    array = np.asarray(value, dtype=float)
    if array.size > 12:
        return f"{array.size} weights" if array.ndim == 1 else f"a {' by '.join(map(str, array.shape))} matrix"
    if array.ndim == 0:
        return f"{float(array):.6g}"
    return f"[{', '.join(_n(inner) for inner in array)}]"
