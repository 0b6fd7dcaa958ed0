"""Mechanisms whose density an analyst cannot evaluate, and the reason why."""

from __future__ import annotations

from typing import NoReturn

REASONS = {
    "smooth_sensitivity": "the scale of its noise was computed from the confidential records, so the density of the "
    "released value given the records is not a function of a sum and its scale is not public",
    "local_sensitivity": "the scale of its noise was computed from the confidential records and is not public",
    "data_dependent_scale": "the scale of its noise was computed from the confidential records and is not public",
    "data_dependent_bounds": "its clamping bounds were picked from the confidential records, so the clamped sum depends on "
    "the records in two ways; release the bounds by a private mechanism of their own, or publish fixed ones",
    "data_dependent_candidates": "its candidates were picked from the confidential records, so the choice and what it was made "
    "from depend on the records in two ways; use a public list",
    "propose_test_release": "it answers only when a hidden test on the records passes, which is not record additive",
    "sparse_vector": "its threshold noise is shared by all answers and never published",
    "consistency": "the released values were projected to be consistent, and the values before the projection are not "
    "published",
}
"""By name, why a mechanism is outside of record additivity with a known density."""


def refuse(name: str) -> NoReturn:
    """Raise the ``ValueError`` that says why a mechanism of this name cannot be used.

    >>> import noisewise as nw
    >>> nw.mechanisms.refuse("sparse_vector")
    Traceback (most recent call last):
        ...
    ValueError: A release by sparse_vector cannot be analysed: its threshold noise is shared by all answers and never published.
    """
    if name not in REASONS:
        raise ValueError(f"Nothing is known against {name!r}; the refused mechanisms are {', '.join(REASONS)}.")
    raise ValueError(f"A release by {name} cannot be analysed: {REASONS[name]}.")
