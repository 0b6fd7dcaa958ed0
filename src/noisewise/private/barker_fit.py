r"""How the correction law of DP Barker was found: ``python -m noisewise.private.barker_fit`` writes
``barker_correction.json``.

Wanted: a law V, symmetric about zero, such that ``N(0, 2) + V`` is as close as can be to the standard logistic law. No V
makes them equal (the quotient of their characteristic functions, ``pi t e^{t^2} / sinh(pi t)``, is unbounded), so V is a
mixture of atoms at ``+-m_k`` with weights ``w_k`` and the largest difference of the distribution functions,

    e = max_x | sum_k w_k (Phi((x-m_k)/sqrt 2) + Phi((x+m_k)/sqrt 2))/2 - 1/(1+e^{-x}) |,

is minimised: a linear programme in w and e. Its solution is global and sparse, and e is the error that
the acceptance probability of DP Barker inherits. The error is then computed again on a finer grid.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog
from scipy.special import expit, ndtr

VARIANCE = 2.0
PATH = Path(__file__).with_name("barker_correction.json")


def mixed(x: Float[np.ndarray, " k"], places: Float[np.ndarray, " m"]) -> Float[np.ndarray, "k m"]:
    """The distribution functions at x of N(0, 2) plus an atom at +-place with equal weights."""
    scale = np.sqrt(VARIANCE)
    return 0.5 * (ndtr((x[:, None] - places) / scale) + ndtr((x[:, None] + places) / scale))


def fit(places: Float[np.ndarray, " m"], x: Float[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " m"], float]:
    """Weights of the atoms with the least largest error on the grid x, and that error."""
    matrix, wanted = mixed(x, places), expit(x)
    one = np.ones((len(x), 1))
    solved = linprog(
        np.append(np.zeros(len(places)), 1.0),
        A_ub=np.vstack([np.hstack([matrix, -one]), np.hstack([-matrix, -one])]),
        b_ub=np.concatenate([wanted, -wanted]),
        A_eq=np.append(np.ones(len(places)), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * len(places) + [(0, 1)],
        method="highs",
    )
    return solved.x[:-1], float(solved.x[-1])


def largest_error(places: Float[np.ndarray, " m"], weights: Float[np.ndarray, " m"]) -> float:
    """The largest difference of the distribution functions, on a grid ten times finer than the fit's."""
    x = np.linspace(0, 40, 160_001)
    return float(np.max(np.abs(mixed(x, places) @ weights - expit(x))))


def main() -> None:
    """Fit, prune atoms of no weight, fit again on those, and write."""
    x = np.linspace(0, 25, 2501)
    places = np.linspace(0, 16, 641)
    weights, _ = fit(places, x)
    places = places[weights > 1e-12]
    weights, _ = fit(places, x)
    keep = weights > 1e-15
    places, weights = places[keep], weights[keep] / weights[keep].sum()
    found = {
        "what": "atoms at +-place, weight shared equally: N(0, variance) plus this law is nearly standard logistic",
        "variance": VARIANCE,
        "largest_error": largest_error(places, weights),
        "places": [float(place) for place in places],
        "weights": [float(weight) for weight in weights],
    }
    PATH.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(places)} atoms, largest error {found['largest_error']:.3g}: {PATH.name}")


if __name__ == "__main__":
    main()
