r"""Private empirical risk minimisers: releases of a whole fitted parameter vector s in R^d.

*Objective perturbation* (Chaudhuri, Monteleoni and Sarwate 2011; Kifer, Smith and Thakurta 2012): s minimises
``sum_i loss(x_i, s) + (ridge / 2) ||s||^2 + b's`` for a random b. For a smooth, strictly convex objective the map from b
to s is one to one, with ``b = -(sum_i grad_i(s) + ridge s)`` and Jacobian ``|det(sum_i hess_i(s) + ridge I)|``, so

``log g(s, t) = log f_b(-(t_grad + ridge s)) + log |det(t_hess + ridge I)|``.

*K-norm gradient* (Reimherr and Awan 2019): ``g(s, t) = exp(-(epsilon / 2D) ||t||_K) / N(x)`` with t the sum of gradients at s.
``N(x)`` is a constant for location models only; otherwise the exchange step needs an exact simulator of the mechanism.

*Functional mechanism* (Zhang et al. 2012): noise on the coefficients of a polynomial loss; when the noisy coefficients are
released it is noise added to moments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.release.mechanism import Mechanism
from noisewise.release.mechanisms.checks import (
    check_scalar,
    column_names,
    function_of_record,
    positive_number,
    whole_number,
)
from noisewise.release.mechanisms.norms import Ball, check_ball, log_knorm_density, norm_of, sample_knorm
from noisewise.release.moments import Moments
from noisewise.release.privacy import Privacy
from noisewise.release.query import Column, Neighbours
from noisewise.typing import Key, Records

Loss = Callable[[dict[str, Array], Array], Array]
"""``loss(record, s)``: the loss of one record at the parameter vector s."""
Simulator = Callable[[Key, Records], Array]
"""``simulator(key, records)``: an exact draw of the mechanism's output for these records."""

_NEWTON_STEPS = 200
_HALVINGS = 16


class _OfLoss(Mechanism):
    """A mechanism whose rows are derivatives of a loss at the released vector."""

    loss: Loss = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    reads: tuple[str, ...] = eqx.field(static=True)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.reads

    def check(self, value: Any) -> Array:
        array = super().check(value)
        if not isinstance(array, jax.core.Tracer) and array.shape != (self.dimension,):
            raise ValueError(f"The released vector must have {self.dimension} numbers; got shape {array.shape}.")
        return array

    def _mine(self, records: Records, at: Array) -> Records:
        mine = {name: records[name] for name in self.reads}
        check_scalar("loss", self.loss, mine, at)
        return mine

    def _gradients(self, records: Records, at: Array) -> Float[Array, "n d"]:
        mine = self._mine(records, at)
        return jax.vmap(lambda record: jax.grad(self.loss, argnums=1)(record, at))(mine)

    def _hessians(self, records: Records, at: Array) -> Float[Array, "n d d"]:
        mine = self._mine(records, at)
        return jax.vmap(lambda record: jax.hessian(self.loss, argnums=1)(record, at))(mine)


class ObjectivePerturbation(_OfLoss):
    """The minimiser of a randomly tilted, smooth, strictly convex objective.

    ``noise`` is the law of the tilt b: ``"l2"`` is density ``exp(-||b||_2 / scale)`` (K-norm), ``"gaussian"`` is
    ``N(0, scale^2 I)``. The objective is a sum over records, not a mean. What was released must be its exact minimiser, not an
    iterate on the way to it. A loss with kinks (hinge, absolute value) has no Jacobian and does not belong here.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> loss = lambda record, s: jnp.logaddexp(0.0, s[0]) - record["x"] * s[0]
    >>> mechanism = nw.mechanisms.ObjectivePerturbation(loss, dimension=1, ridge=1.0, scale=2.0)
    >>> nw.Measurement(mechanism=mechanism, value=[0.3]).mechanism.size
    2
    """

    ridge: Float[Array, ""]
    scale: Float[Array, ""]
    noise: Literal["l2", "gaussian"] = eqx.field(static=True)

    def __init__(
        self,
        loss: Loss,
        dimension: int,
        *,
        ridge: float,
        scale: float,
        noise: Literal["l2", "gaussian"] = "l2",
        columns: Sequence[str] = ("x",),
    ) -> None:
        if noise not in ("l2", "gaussian"):
            raise ValueError(f"noise must be 'l2' or 'gaussian'; got {noise!r}.")
        function_of_record("loss", loss)
        self.loss, self.noise = loss, noise
        self.dimension, self.reads = whole_number("dimension", dimension), column_names(columns)
        self.ridge, self.scale = positive_number("ridge", ridge, or_zero=True), positive_number("scale", scale)

    @property
    def size(self) -> int:
        return self.dimension + self.dimension**2

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        curvature = self._hessians(records, released)
        return jnp.concatenate([self._gradients(records, released), curvature.reshape(curvature.shape[0], -1)], axis=-1)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        d = self.dimension
        tilt = -(total[:d] + self.ridge * released)
        curvature = total[d:].reshape(d, d) + self.ridge * jnp.eye(d)
        return self._log_tilt(tilt) + jnp.linalg.slogdet(curvature)[1]

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        raise ValueError("Objective perturbation is simulated from records, not from a total; use respond.")

    @property
    def simulates_from_total(self) -> bool:
        return False

    def respond(self, key: Key, records: Records, released: Array) -> Array:
        """A minimiser for a fresh tilt, by Newton steps halved until the gradient shrinks."""
        d = self.dimension
        tilt = (
            sample_knorm(key, d, self.scale, "l2")
            if self.noise == "l2"
            else self.scale * jax.random.normal(key, (d,), dtype=float)
        )
        mine = self._mine(records, released)

        def slope(s: Array) -> Array:
            each = jax.vmap(lambda record: jax.grad(self.loss, argnums=1)(record, s))(mine)
            return jnp.sum(each, axis=0) + self.ridge * s + tilt

        def newton(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            s, gradient, steps, _ = carry
            step = jnp.linalg.solve(jax.jacfwd(slope)(s), gradient)
            sizes = 0.5 ** jnp.arange(_HALVINGS)
            gradients = jax.vmap(lambda size: slope(s - size * step))(sizes)
            lengths = jnp.linalg.norm(gradients, axis=1)
            best = jnp.argmin(jnp.where(jnp.isnan(lengths), jnp.inf, lengths))
            better = lengths[best] < jnp.linalg.norm(gradient)
            moved = jnp.where(better, s - sizes[best] * step, s), jnp.where(better, gradients[best], gradient)
            return *moved, steps + 1, better

        start = jnp.zeros(d)
        carry = (start, slope(start), jnp.zeros((), dtype=int), jnp.asarray(True))
        return jax.lax.while_loop(lambda carry: carry[3] & (carry[2] < _NEWTON_STEPS), newton, carry)[0]

    def _log_tilt(self, tilt: Array) -> Array:
        if self.noise == "l2":
            return log_knorm_density(tilt, self.scale, "l2")
        return jnp.sum(jax.scipy.stats.norm.logpdf(tilt, scale=self.scale))


class KNormGradient(_OfLoss):
    """A parameter vector with density proportional to ``exp(-(epsilon / 2 sensitivity) ||sum_i grad loss(x_i, s)||)``.

    ``normaliser="constant"`` is right only for location models (the sum of gradients at s depends on s and the records
    through a shift). Otherwise give ``simulator``, an exact sampler of the mechanism's output for given records: the engine
    then takes exchange steps, in which the unknown normaliser cancels (Murray, Ghahramani and MacKay 2006). The density may be one
    with respect to any fixed measure, say on the points of a public grid: the simulator must then draw from the same grid.

    >>> import jax.numpy as jnp, noisewise as nw
    >>> mean_loss = lambda record, s: 0.5 * jnp.sum((jnp.clip(record["x"], -1, 1) - s) ** 2)
    >>> mechanism = nw.mechanisms.KNormGradient(
    ...     mean_loss, dimension=1, epsilon=1.0, sensitivity=2.0, normaliser="constant")
    >>> nw.Measurement(mechanism=mechanism, value=[0.2]).mechanism.unnormalised
    False
    """

    epsilon: Float[Array, ""]
    sensitivity: Float[Array, ""]
    ball: Ball = eqx.field(static=True)
    simulator: Simulator | None = eqx.field(static=True)

    def __init__(
        self,
        loss: Loss,
        dimension: int,
        *,
        epsilon: float,
        sensitivity: float,
        ball: Ball = "l2",
        normaliser: Literal["constant"] | None = None,
        simulator: Simulator | None = None,
        columns: Sequence[str] = ("x",),
    ) -> None:
        if normaliser not in (None, "constant") or (normaliser is None) == (simulator is None):
            raise ValueError(
                "The normaliser of the K-norm gradient mechanism depends on the records: give normaliser='constant' for a "
                "location model, or else simulator=, an exact sampler of the mechanism; exactly one of them. "
                f"Got normaliser={normaliser!r}, simulator={simulator!r}."
            )
        if simulator is not None and not callable(simulator):
            raise ValueError(f"simulator must be a function of a key and the records; got {simulator!r}.")
        function_of_record("loss", loss)
        self.loss, self.dimension, self.reads = loss, whole_number("dimension", dimension), column_names(columns)
        self.epsilon = positive_number("epsilon", epsilon)
        self.sensitivity = positive_number("sensitivity", sensitivity)
        self.ball, self.simulator = check_ball(ball), simulator

    @property
    def size(self) -> int:
        return self.dimension

    @property
    def unnormalised(self) -> bool:
        return self.simulator is not None

    @property
    def needs_n(self) -> bool:
        """The sum of gradients of a location model is n times a shift, so its normaliser is constant at a known n alone."""
        return True

    def privacy(self, neighbours: Neighbours) -> Privacy | None:
        return Privacy("pure", self.epsilon)

    def statistics(self, records: Records, released: Array) -> Float[Array, "n size"]:
        return self._gradients(records, released)

    def log_density(self, released: Array, total: Float[Array, " size"]) -> Float[Array, ""]:
        return -self.epsilon / (2 * self.sensitivity) * norm_of(total, self.ball)

    def simulate(self, key: Key, total: Float[Array, " size"]) -> Array:
        raise ValueError("The K-norm gradient mechanism is simulated from records, not from a total; use respond.")

    def respond(self, key: Key, records: Records, released: Array) -> Array:
        """An output for these records, by the given simulator."""
        if self.simulator is not None:
            output = self.simulator(key, records)
            if output.shape != (self.dimension,):
                raise ValueError(f"simulator must give {self.dimension} numbers; it gives shape {output.shape}.")
            return output
        raise ValueError(
            "A K-norm gradient mechanism without a simulator cannot simulate releases; the posterior needs none."
        )

    @property
    def simulates(self) -> bool:
        return self.simulator is not None

    @property
    def simulates_from_total(self) -> bool:
        return False


def functional_moments(columns: Mapping[str, Column], degree: int = 2) -> Moments:
    """The coefficients that the functional mechanism perturbs: all monomials of the columns up to a degree.

    A quadratic loss (least squares, or the second-order expansion of the logistic loss) is a polynomial in the parameters
    with these sums as coefficients. When the noisy coefficients are released, the measurement is
    ``nw.Measurement(functional_moments(...), nw.noise.Laplace(...), value)``.

    >>> import noisewise as nw
    >>> nw.mechanisms.functional_moments({"x": nw.Column(-1, 1), "y": nw.Column(-1, 1)}).labels
    ('x', 'y', 'x^2', 'x y', 'y^2')
    """
    if isinstance(degree, bool) or not isinstance(degree, int | np.integer) or degree < 1:
        raise ValueError(f"degree must be a whole number of at least 1; got {degree!r}.")
    terms = []
    for order in range(1, degree + 1):
        for names in itertools.combinations_with_replacement(columns, order):
            terms.append({name: names.count(name) for name in names})
    return Moments(dict(columns), terms)
