"""A maximum-likelihood estimate, and how it is carried from free coordinates to the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.models.base import Model


@dataclass(frozen=True)
class Estimate:
    """A maximum-likelihood estimate.

    ``theta`` and ``standard_errors`` are by parameter name; ``covariance`` is that of all parameters in one vector, in their order.
    Standard errors are the square roots of the inverse observed information, carried to the parameters by the delta method.
    ``monte_carlo_errors`` are the standard errors of the computation itself, zero for a direct maximum;
    ``standard_error_errors`` are those of the standard errors. Where there is no interior maximum, standard errors
    of the direct method are NaN. ``log_likelihood`` is None where only ratios are known.
    Before any use, look at ``converged``: where it is False, ``verdict`` says why the numbers are not to be trusted.
    """

    theta: dict[str, np.ndarray]
    standard_errors: dict[str, np.ndarray]
    covariance: np.ndarray
    monte_carlo_errors: dict[str, np.ndarray]
    standard_error_errors: dict[str, np.ndarray]
    log_likelihood: float | None
    method: str
    converged: bool
    verdict: str
    random_seed: int | None = None

    def __str__(self) -> str:
        lines = [f"{'parameter':<24}{'estimate':>12}{'s.e.':>12}{'m.c. error':>12}"]
        for name, value in self.theta.items():
            for at in np.ndindex(value.shape):
                label = name + (f"[{', '.join(map(str, at))}]" if at else "")
                numbers = (value[at], self.standard_errors[name][at], self.monte_carlo_errors[name][at])
                lines.append(f"{label:<24}" + "".join(f"{number:>12.5g}" for number in numbers))
        return "\n".join([*lines, "", self.verdict])


def estimate_at(
    model: Model,
    free: np.ndarray,
    covariance: np.ndarray,
    mode_error: np.ndarray,
    covariance_error: np.ndarray,
    *,
    log_likelihood: float | None,
    method: str,
    converged: bool,
    verdict: str,
    seed: int | None = None,
) -> Estimate:
    """The estimate in the parameters' own coordinates."""
    sizes = {name: int(np.prod(parameter.shape)) for name, parameter in model.parameters.items()}

    def vector(z: Array) -> Array:
        theta = model.constrain(z)
        return jnp.concatenate([theta[name].reshape(-1) for name in sizes])

    point = jnp.asarray(free)
    jacobian = np.asarray(jax.jacfwd(vector)(point))
    whole = jacobian @ covariance @ jacobian.T
    spread = np.sqrt(np.maximum(np.diag(whole), 0.0))
    relative = np.max(np.divide(np.diag(covariance_error), np.diag(covariance)), initial=0.0)
    parts = {
        "theta": np.asarray(vector(point)),
        "spread": spread,
        "error": np.sqrt((jacobian**2) @ mode_error**2),
        "spread_error": spread * relative,
    }
    ends = np.cumsum(list(sizes.values()))

    def named(values: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: values[end - sizes[name] : end].reshape(model.parameters[name].shape)
            for name, end in zip(sizes, ends, strict=True)
        }

    return Estimate(
        theta=named(parts["theta"]),
        standard_errors=named(parts["spread"]),
        covariance=whole,
        monte_carlo_errors=named(parts["error"]),
        standard_error_errors=named(parts["spread_error"]),
        log_likelihood=log_likelihood,
        method=method,
        converged=converged,
        verdict=verdict,
        random_seed=seed,
    )
