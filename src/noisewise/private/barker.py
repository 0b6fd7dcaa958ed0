r"""DP Barker (Heikkilae et al. 2019; Section 3.3 of the thesis): approximate, by a batch's normal error and a fitted
correction.

Barker's test accepts when ``lambda + V_logistic > 0``. One iteration draws a batch B of b records without replacement,
clips each log-likelihood ratio at ``sqrt(b)/(T n)``, scales it to ``y_j`` in [-1, 1], and releases

    lambda + N(0, 2 - s^2),   lambda = sum_j y_j / sqrt b,   s^2 = mean y_j^2 - (mean y_j)^2 <= 1,

so that the batch's error, of variance about ``s^2``, and the privacy noise have variance 2 together. Then it accepts
when that, plus a draw of the correction law, plus ``log p(theta')/p(theta)``, is positive: ``N(0, 2)`` plus the
correction is logistic up to a difference of distribution functions of at most :data:`CORRECTION_ERROR`
(:mod:`noisewise.private.barker_fit`). The invariant law is therefore the posterior only approximately;
:class:`noisewise.private.Penalty` on all records is exact.

Accounting: Theorem 3.3, Renyi; sampling without replacement, neighbours replace_one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from noisewise.private.accounting import checked_whole
from noisewise.private.clipping import clip_ratios, clipped_ratio, square_bits
from noisewise.private.ledger import BarkerStep, Step
from noisewise.private.mechanism import noisy_real
from noisewise.private.minibatch import Batched
from noisewise.private.penalty import State, for_each, known, propose, setting
from noisewise.private.records import draw_batch
from noisewise.private.target import Target
from noisewise.typing import Key

_FITTED = json.loads(Path(__file__).with_name("barker_correction.json").read_text())
VARIANCE: float = _FITTED["variance"]
CORRECTION_ERROR: float = _FITTED["largest_error"]
_GRID = 2.0**-10


class Barker(eqx.Module):
    """DP Barker on batches of ``batch`` records; its clip bound and its noise are fixed by the batch.

    >>> Barker(batch=1300, proposal=0.0008).steps(100_000)
    [BarkerStep(batch=1300, n=100000, count=1)]
    """

    proposal: Array | None
    batch: int = eqx.field(static=True)

    def __init__(self, *, batch: int, proposal: Any = None) -> None:
        self.batch, self.proposal = checked_whole(batch, "batch", 2), setting(proposal, "proposal", vector=True)

    @property
    def name(self) -> str:
        return f"Barker, batch={self.batch}"

    @property
    def noise(self) -> Array:
        """The variance of noise and batch error together: fixed."""
        return jnp.asarray(VARIANCE)

    def steps(self, n: int) -> list[Step]:
        """What one iteration releases: neighbours replace_one, batches without replacement."""
        return [BarkerStep(batch=self.batch, n=n)]

    def with_noise(self, noise: float) -> Barker:
        raise ValueError(
            "the noise of Barker is fixed by its correction law; choose the number of iterations by batch instead."
        )

    def ready(self, target: Target, n: int) -> Barker:
        """The sampler with every setting in place for this target, or a sentence."""
        return Barker(batch=self.batch, proposal=for_each(known(self.proposal, "proposal"), target.size, "proposal"))

    def init(self, theta: Float[Array, " d"]) -> State:
        return State(theta, jnp.ones_like(theta))

    def step(
        self, key: Key, state: State, target: Target, table: Batched, *, probe: bool = False
    ) -> tuple[State, dict[str, Array]]:
        """One iteration. ``probe`` adds what only a test may see."""
        moving, drawing, releasing, correcting = jax.random.split(key, 4)
        new, _ = propose(moving, state, known(self.proposal, "proposal"), "all")
        ratios = target.log_ratios(state.theta, new, table.take(draw_batch(drawing, table.n, self.batch)))
        bound = math.sqrt(self.batch) / (target.temper * table.n)
        value, spread = batch_moments(ratios, bound)
        released = noisy_real(releasing, value, jnp.sqrt(VARIANCE - spread), jnp.asarray(_GRID))
        log_ratio = released.value + target.log_prior(new) - target.log_prior(state.theta)
        accepted = log_ratio + draw_correction(correcting) > 0
        info = {"accepted": accepted}
        if probe:
            info |= {"log_ratio": log_ratio, "clip_fraction": jnp.mean(clipped_ratio(ratios, bound))}
        return State(jnp.where(accepted, new, state.theta), state.direction), info


def batch_moments(ratios: Float[Array, " b"], bound: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """``lambda`` and ``s^2`` of a batch of ratios clipped at ``bound`` and scaled to [-1, 1]; sums of whole numbers, exact."""
    batch = ratios.shape[0]
    bits = square_bits(batch)
    units = clip_ratios(ratios, bound, bits)
    unit = 0.5**bits
    total, squares = unit * jnp.sum(units), unit**2 * jnp.sum(units * units)
    return total / math.sqrt(batch), squares / batch - (total / batch) ** 2


def draw_correction(key: Key) -> Float[Array, ""]:
    """One draw of the correction law."""
    one, two = jax.random.split(key)
    place = jax.random.choice(one, jnp.asarray(_FITTED["places"]), p=jnp.asarray(_FITTED["weights"]))
    return place * jax.random.rademacher(two, (), dtype=float)
