"""The noise of an OpenDP measurement: its law, the ends that its number type moves values to, and randomised responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from noisewise.release.document import Measurement
from noisewise.release.importers.known import needed
from noisewise.release.importers.opendp_nodes import node, pair
from noisewise.release.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise, RandomisedResponse
from noisewise.release.query import Neighbours
from noisewise.release.record_columns import RecordColumns

NOISES = ("make_laplace", "make_gaussian", "make_noise", "make_geometric")
_TRANSFORMATIONS = ("make_sum", "make_mean", "make_count", "make_variance", "make_clamp", "make_resize", "make_cast")
Ends = tuple[float | None, float | None]
_FINEST = 2.0**-20
"""The widest lattice of float noise that is taken for continuous, as a share of the scale."""


def check_noise(name: str) -> None:
    """That the last step of a chain is noise that is read here."""
    if name in NOISES:
        return
    if name.startswith("then_") or name.startswith(_TRANSFORMATIONS):
        raise ValueError(
            f"The OpenDP object ends with {name}, which adds no noise; give the whole measurement, as in "
            "transformation >> dp.m.then_laplace(scale)."
        )
    raise ValueError(
        f"The OpenDP measurement {name} is not one that is read here: {', '.join(NOISES)}, make_randomized_response and "
        "make_composition are."
    )


def _ends(atom: str) -> Ends:
    """The ends that the integer type moves values to, where noise can reach them."""
    return (0.0 if atom.startswith("u") else None), None


def noise_of(name: str, given: dict[str, Any], atom: str) -> tuple[Noise, Ends]:
    """The law of a noise constructor, and the ends that it moves values to."""
    measure = str(given.get("MO") or given.get("output_measure") or "")
    if name == "make_geometric":
        return DiscreteLaplace(given["scale"]), pair(given.get("bounds")) or _ends(atom)
    if name in ("make_laplace", "make_gaussian"):
        gaussian = name == "make_gaussian"
    else:
        measured = node(given.get("output_measure"))
        measure = str(measured["__function__"]) if measured else measure
        if not any(known in measure.lower() for known in ("max_divergence", "zero_concentrated")):
            raise needed("The noise law", f"make_noise has the measure {measure or 'unsaid'}", "Use make_laplace.")
        gaussian = "zero_concentrated" in measure.lower()
    scale = float(given["scale"])
    if atom not in ("f64", "f32"):
        return (DiscreteGaussian if gaussian else DiscreteLaplace)(scale), _ends(atom)
    lattice = given.get("k")
    if lattice is not None and 2.0 ** float(lattice) > _FINEST * scale:
        raise ValueError(
            f"The OpenDP noise lives on multiples of 2^{lattice}, too coarse beside its scale {scale:g} to be taken for "
            "continuous; leave k out in OpenDP."
        )
    return (Gaussian if gaussian else Laplace)(scale), (None, None)


def responses(name: str, given: dict[str, Any], value: Any, column: str) -> tuple[Measurement, int, Neighbours]:
    """Randomised response: the value is one answer for each record, coded by the position of its category."""
    categories = [False, True] if name == "make_randomized_response_bool" else list(given.get("categories") or ())
    if not categories:
        raise ValueError(f"{name} is not read here; make_randomized_response and make_randomized_response_bool are.")
    answers = list(np.ravel(np.asarray(value)).tolist())
    unknown = [answer for answer in answers if answer not in categories]
    if unknown:
        raise ValueError(f"The answers {unknown[:3]} are not among the categories {categories} of {name}.")
    codes = np.asarray([[float(categories.index(answer))] for answer in answers])
    law = RandomisedResponse(1 - float(given["prob"]), len(categories))
    return Measurement(RecordColumns((column,)), law, codes), len(answers), "replace_one"
