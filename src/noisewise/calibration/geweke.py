r"""The joint test of a Markov kernel that imputes records (Geweke 2004).

From exact draws of (theta, x, s), the cycle "one step of the kernel given s, then s given x" gives exact draws again if the kernel leaves
``p(theta, x | s)`` invariant, whether it mixes or not. Many independent copies make a few cycles each, so the means of functions
of (theta, x, s) after the cycles are compared with those before by plain standard errors.

Checked by ``tests/engines/test_geweke.py``, with kernels that are wrong in known ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from noisewise.calibration.simulate import BUILD, with_values
from noisewise.compilation import use_compilation_cache
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.base import Engine
from noisewise.engines.choose import choose
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.settings import check_seed
from noisewise.typing import Key

_PILOT_SHARE = 10


@dataclass(frozen=True)
class JointTest:
    """How many standard errors the mean of each function of (theta, records, release) moved; ``passed`` at ``alpha`` over all."""

    labels: tuple[str, ...]
    z: np.ndarray
    copies: int
    cycles: int
    alpha: float

    @property
    def p_value(self) -> float:
        """The p-value of the largest of them (Bonferroni)."""
        return float(min(1.0, len(self.z) * 2 * stats.norm.sf(np.max(np.abs(self.z)))))

    @property
    def passed(self) -> bool:
        """Whether the kernel keeps the joint law as far as can be seen."""
        return self.p_value > self.alpha

    def __str__(self) -> str:
        worst = int(np.argmax(np.abs(self.z)))
        said = "keeps" if self.passed else "does NOT keep"
        return (
            f"The kernel {said} the joint law: after {self.cycles} cycles of {self.copies:,} copies the mean of "
            f"{self.labels[worst]} moved by {self.z[worst]:+.2f} standard errors, the most of {len(self.z)}, p = {self.p_value:.2g}."
        )


def geweke(
    model: Model,
    release: Release,
    *,
    method: str | Engine | AugmentationKernel = "augmentation",
    copies: int = 5000,
    cycles: int = 4,
    alpha: float = 0.01,
    random_seed: int | None = None,
) -> JointTest:
    """Check that a kernel leaves the posterior invariant, without waiting for it to converge.

    ``release`` is the design, its values do not count. ``method`` is an engine that imputes records, or a kernel of it that was made by
    hand; ``copies`` independent chains make ``cycles`` steps each. The first tenth of them says around which values of the release its
    functions bend, and is left out of the comparison.

    >>> import noisewise as nw
    >>> query = nw.queries.Moments({"x": nw.Column(-1, 2)}, [{"x": 1}])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(0.5), [1.0])], n=3)
    >>> nw.calibration.geweke(nw.models.Normal((0.5, 1.0), sd=1), release, copies=2000, random_seed=1).passed
    True
    """
    for name, value, least in (("copies", copies, 100), ("cycles", cycles, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    seed = check_seed(random_seed)
    use_compilation_cache()
    root = jax.random.key(seed)
    if isinstance(method, AugmentationKernel):
        kernel: Any = method
    else:
        kernel = choose(model, release, method).engine.build(model, release, jax.random.fold_in(root, BUILD))
    if not isinstance(kernel, AugmentationKernel):
        raise ValueError(
            "The joint test needs a kernel that imputes records of a known number, which is the augmentation engine's; use "
            "nw.calibration.sbc for other engines."
        )
    before, after = _cycled(kernel, jax.random.split(root, copies), cycles)
    pilots = copies // _PILOT_SHARE
    seen = np.asarray(before["released"])[:pilots]
    centre, scale = (
        np.median(seen, axis=0),
        np.maximum(np.median(np.abs(seen - np.median(seen, axis=0)), axis=0), 1e-12),
    )
    moved = _functions(after, centre, scale)[pilots:] - _functions(before, centre, scale)[pilots:]
    error = moved.std(axis=0, ddof=1) / np.sqrt(len(moved))
    # a function that no copy moved says nothing
    z = np.divide(moved.mean(axis=0), error, out=np.zeros_like(error), where=error > 0)
    return JointTest(_names(kernel), z, copies, cycles, alpha)


@eqx.filter_jit
def _cycled(kernel: AugmentationKernel, keys: Key, cycles: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """What functions are made of, for every copy, before the cycles and after them."""
    release = kernel.release

    def answer(key: Key, state: Any) -> tuple[Array, ...]:
        return tuple(release.respond(key, state.records).values())

    def look(state: Any, values: tuple[Array, ...]) -> dict[str, Array]:
        return {
            "free": kernel.model.unconstrain(state.theta),
            "total": jnp.sum(with_values(release, values).statistics(state.records), axis=0),
            "released": jnp.concatenate([v.ravel() for v in values]),
            "first": jnp.ravel(jax.tree.leaves(state.records)[0][0])[0].astype(float),
        }

    def copy(key: Key) -> tuple[dict[str, Array], dict[str, Array]]:
        prior_key, init_key, answer_key, cycle_key = jax.random.split(key, 4)
        state = kernel.init(init_key, kernel.model.sample_prior(prior_key))
        values = answer(answer_key, state)

        def cycle(carry: tuple[Any, Any], key: Key) -> tuple[tuple[Any, Any], None]:
            state, values = carry
            step_key, answer_key = jax.random.split(key)
            given = eqx.tree_at(lambda k: k.release, kernel, with_values(release, values))
            state, _ = given.step(step_key, state)
            return (state, answer(answer_key, state)), None

        (last, answered), _ = jax.lax.scan(cycle, (state, values), jax.random.split(cycle_key, cycles))
        return look(state, values), look(last, answered)

    return jax.vmap(copy)(keys)


def _functions(found: dict[str, Array], centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The functions whose means are compared; the noise may have no fourth moment, so that of the release is bounded."""
    free, total, first = (np.asarray(found[name]) for name in ("free", "total", "first"))
    bounded = np.arctan((np.asarray(found["released"]) - centre) / scale)
    crossed = (free[:, :, None] * bounded[:, None, :]).reshape(len(free), -1)
    return np.concatenate([free, free**2, total, total**2, bounded, crossed, free * first[:, None]], axis=1)


def _names(kernel: AugmentationKernel) -> tuple[str, ...]:
    free = [f"free[{j}]" for j in range(kernel.model.free_size)]
    total = [f"total[{k}]" for k in range(kernel.release.size)]
    seen = [f"arctan s[{k}]" for k in range(sum(m.value.size for m in kernel.release.measurements))]
    squares = [[f"{name}^2" for name in names] for names in (free, total)]
    crossed = [f"{a} {b}" for a in free for b in seen]
    return (*free, *squares[0], *total, *squares[1], *seen, *crossed, *(f"{a} x_1" for a in free))
