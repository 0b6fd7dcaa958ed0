"""Formulas such as ``"y ~ x1 + log(x2)"`` for the regressions, parsed by formulaic.

A formula names columns, and maps of a column that anybody can compute record by record (those of :mod:`noisewise.models.transforms`).
Maps that depend on the records (a mean to centre by, knots at quantiles, the levels that occur) are refused: the analyst
does not see the records, and the data holder's release does not say them.
"""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from noisewise.models.transforms import NAMED

_OF_THE_DATA = ("center", "scale", "standardize", "bs", "cs", "cr", "cc", "poly", "C", "lag", "hashed")
_OWN = "write such a model with nw.models.from_numpyro or nw.models.Custom"


class Formula(NamedTuple):
    """What a formula says of a regression, in the words of the regressions' arguments."""

    predictors: tuple[str, ...]
    response: str
    intercept: bool
    transforms: dict[str, str]


def read_formula(text: str) -> Formula:
    """The columns, intercept and transforms of a formula.

    >>> read_formula("y ~ 0 + age + log(dose)")
    Formula(predictors=('age', 'dose'), response='y', intercept=False, transforms={'dose': 'log'})
    """
    try:
        import formulaic
    except ImportError:
        raise ValueError(
            f"The formula {text!r} needs the package formulaic, which is not installed: pip install 'noisewise[formula]'; or name "
            "the columns, predictors=(...) and response=."
        ) from None
    if re.search(r"\*\*|\^", re.sub(r"`[^`]*`|\([^()]*\)", "", text)):
        raise ValueError(f"The formula {text!r} has a power, which formulas take for interactions; {_OWN}.")
    try:
        parsed = formulaic.Formula(text)
        left, right = list(parsed.lhs), list(parsed.rhs)
        sides = [[[str(factor.expr) for factor in term.factors] for term in side] for side in (left, right)]
    except (formulaic.errors.FormulaicError, AttributeError, TypeError) as problem:
        said = str(problem).splitlines()[0].split("\x1b")[0].rstrip(". ")
        raise ValueError(
            f"The formula {text!r} cannot be read ({said}); write it as 'response ~ column + column', with 0 + for no intercept."
        ) from None
    if len(sides[0]) != 1 or _column(sides[0][0][0]) != (sides[0][0][0], None):
        written = " + ".join(":".join(term) for term in sides[0])
        raise ValueError(
            f"The formula {text!r} must have one column left of the ~; got {written!r}. For a response in logarithms use "
            "nw.models.LognormalRegression, which takes them itself."
        )
    predictors: list[str] = []
    transforms: dict[str, str] = {}
    for term in sides[1]:
        if term == ["1"]:
            continue
        if len(term) > 1:
            raise ValueError(f"The formula {text!r} has the interaction {':'.join(term)!r}, which is not read; {_OWN}.")
        name, transform = _column(term[0])
        if name is None:
            raise ValueError(_refusal(text, term[0]))
        if name in predictors:
            raise ValueError(f"The formula {text!r} has the column {name!r} twice; name each predictor once.")
        predictors.append(name)
        if transform is not None:
            transforms[name] = transform
    if not predictors:
        raise ValueError(f"The formula {text!r} has no predictors; name at least one column right of the ~.")
    return Formula(tuple(predictors), sides[0][0][0], ["1"] in sides[1], transforms)


def is_formula(given: Any) -> bool:
    """Whether an argument is a formula and not the name of a column."""
    return isinstance(given, str) and "~" in given


def _column(written: str) -> tuple[str | None, str | None]:
    """The column and the transform of a factor, or (None, None) where it is neither a column nor a known map of one."""
    called = _call(written)
    if called is None:
        return (written, None) if _is_name(written) else (None, None)
    function, arguments = called
    if function in NAMED and len(arguments) == 1 and isinstance(arguments[0], ast.Name):
        return arguments[0].id, function
    return None, None


def _call(written: str) -> tuple[str, list[ast.expr]] | None:
    try:
        node = ast.parse(written, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return {"arcsinh": "asinh"}.get(name, name), [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_name(written: str) -> bool:
    """A column: a name, or anything in backticks that is not an expression."""
    try:
        return isinstance(ast.parse(written, mode="eval").body, ast.Name)
    except SyntaxError:
        return True


def _refusal(text: str, written: str) -> str:
    called = _call(written)
    if called is not None and called[0] in _OF_THE_DATA:
        return (
            f"The formula {text!r} has {written!r}, which depends on the records, and nobody outside sees them; shift and scale by "
            "public numbers (nw.Column(..., rescale=...)), and code levels publicly."
        )
    return f"The formula {text!r} has {written!r}; columns are read, and {', '.join(NAMED)} of a column; {_OWN}."
