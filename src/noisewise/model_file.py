"""Model files: a model in TOML, for the commands.

A file has one table ``[model]``: ``name`` is a class of ``nw.models`` and the other keys are its arguments. A prior stands where a
number could as a table with its ``law``::

    [model]
    name = "LinearRegression"
    predictors = ["x1", "x2"]
    response = "y"
    variance = { law = "InverseGamma", shape = 3, scale = 4 }
    covariate_mean = [0, 0]
    covariate_cov = [[1, 0], [0, 1]]
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from noisewise.models.base import Model


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file, or a sentence on why there are none."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"There is no {what} {str(path)!r}; check the name and the folder.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"The {what} {str(path)!r} cannot be read: {problem}.") from None
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"The {what} {str(path)!r} is not TOML: {problem}.") from None


def check_keys(
    table: Mapping[str, Any], where: str, *, required: Iterable[str] = (), optional: Iterable[str] = ()
) -> None:
    """Refuse keys that mean nothing and ask for those that are missing."""
    required, optional = tuple(required), tuple(optional)
    unknown = [key for key in table if key not in (*required, *optional)]
    if unknown:
        raise ValueError(
            f"{where} has the unknown key {unknown[0]!r}; it may have: {', '.join((*required, *optional)) or 'none'}."
        )
    missing = [key for key in required if key not in table]
    if missing:
        raise ValueError(f"{where} lacks {missing[0]!r}; it needs: {', '.join(required)}.")


def load_model(path: str | Path) -> Model:
    """The model of a model file.

    >>> from pathlib import Path
    >>> _ = Path("coin.toml").write_text('[model]\\nname = "Bernoulli"\\na = 2\\nb = 2\\n')
    >>> load_model("coin.toml").columns
    ('x',)
    """
    content = read_toml(path, "model file")
    where = f"The model file {Path(path).name!r}"
    check_keys(content, where, required=["model"])
    if not isinstance(content["model"], dict):
        raise ValueError(f"{where} must have a table [model]; got model = {content['model']!r}.")
    return build_model(content["model"], where)


def build_model(table: Mapping[str, Any], where: str = "The model") -> Model:
    """The model of a table ``[model]``."""
    known = _model_classes()
    name = table.get("name")
    if name == "Custom":
        raise ValueError(f"{where} names 'Custom', a model made of functions; write it in Python and call nw.sample.")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where} names the model {name!r}; the models are {', '.join(known)}.")
    arguments = {key: value for key, value in table.items() if key != "name"}
    return _construct(known[name], arguments, f"{where}, {name},")


def _construct(kind: type, arguments: Mapping[str, Any], where: str) -> Any:
    taken = list(inspect.signature(kind).parameters.values())
    check_keys(
        arguments,
        where,
        required=[p.name for p in taken if p.default is inspect.Parameter.empty],
        optional=[p.name for p in taken if p.default is not inspect.Parameter.empty],
    )
    values = {key: _value(value, f"{where} {key}") for key, value in arguments.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{where} cannot be made: {problem}") from None


def _value(value: Any, where: str) -> Any:
    """A number, text or list as it is; a table with a ``law`` as the prior it names, one with a ``name`` as a model."""
    if not isinstance(value, dict):
        return value
    if "name" in value:
        return build_model(value, where)
    laws = _prior_classes()
    law = value.get("law")
    if not isinstance(law, str) or law not in laws:
        raise ValueError(
            f"{where} must be numbers or a prior, a table with law = one of {', '.join(laws)}; got {law!r}."
        )
    return _construct(laws[law], {key: inner for key, inner in value.items() if key != "law"}, f"{where}, {law},")


def _public_classes() -> dict[str, type]:
    from noisewise import models

    found = {name: getattr(models, name) for name in sorted(models.__all__)}
    return {name: value for name, value in found.items() if isinstance(value, type)}


def _model_classes() -> dict[str, type[Model]]:
    return {
        name: kind
        for name, kind in _public_classes().items()
        if issubclass(kind, Model) and name not in ("Model", "Custom")
    }


def _prior_classes() -> dict[str, type]:
    return {name: kind for name, kind in _public_classes().items() if not issubclass(kind, Model)}
