"""A small Markov kernel that compiles quickly, to test the driver with: a random walk on a correlated normal target."""

import jax
import jax.numpy as jnp
import numpy as np

from noisewise.chains import LANES
from noisewise.kernels.base import Info, Kernel
from noisewise.run import run_kernel
from noisewise.settings import Settings

TRACES: list[str] = []
"""One entry each time :meth:`Toy.step` is traced."""


class Toy(Kernel):
    """Metropolis steps on ``N(0, scale^2 [[1, r], [r, 1]])`` with a step size tuned in the tuning phase."""

    scale: jax.Array

    def init(self, key, start):
        return {"theta": start, "log_step": jnp.zeros(()), "latent": jax.random.normal(key, (3,))}

    def step(self, key, state):
        TRACES.append("step")
        step_key, accept_key, latent_key = jax.random.split(key, 3)
        z = state["theta"]["z"]
        moved = z + jnp.exp(state["log_step"]) * jax.random.normal(step_key, z.shape)
        log_accept = jnp.minimum(self._log_density(moved) - self._log_density(z), 0.0)
        accept = -jax.random.exponential(accept_key) < log_accept
        z = jnp.where(accept, moved, z)
        latent = jax.random.normal(latent_key, (3,)) + z[0]
        stats = {
            "acceptance_rate": jnp.exp(log_accept),
            "min_acceptance": jnp.exp(log_accept),
            "latent_sum": jnp.sum(latent),
        }
        return {"theta": {"z": z}, "log_step": state["log_step"], "latent": latent}, Info(stats, {"z": jnp.ones(2)})

    def _log_density(self, z):
        return -(z[0] ** 2 - 1.2 * z[0] * z[1] + z[1] ** 2) / (2 * 0.64 * self.scale**2)

    def adapt(self, state, info):
        return {**state, "log_step": state["log_step"] + 0.1 * (info.stats["acceptance_rate"] - 0.4)}

    def theta(self, state):
        return state["theta"]

    def predict(self, key, state):
        return {"m0": jax.random.normal(key, (1,)) + state["theta"]["z"][:1]}

    def latent(self, state):
        return {"x": state["latent"]}


def starts(keys):
    return {"z": jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)}


def least_ess(posterior: dict[str, np.ndarray]) -> float:
    """A stand-in for the effective sample size: a fortieth of the draws."""
    return posterior["z"].shape[0] * posterior["z"].shape[1] / 40


def run(seed=3, *, scale=1.0, effective=least_ess, identity="toy", lanes=LANES, **settings):
    defaults = {"draws": 300, "tune": 40, "chains": 3, "progressbar": False}
    return run_kernel(
        Toy(jnp.asarray(scale)),
        starts,
        Settings(**(defaults | settings)),
        seed,
        identity=identity,
        effective=effective,
        lanes=lanes,
    )
