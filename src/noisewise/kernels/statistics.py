r"""Gibbs sampling of theta, of the confidential totals and of the noise's scale: Bernstein and Sheldon (2018).

The totals ``J`` (a vector of sums over the n records) are taken as normal given theta, ``J ~ N(n m(theta), n C(theta))``, and the
release is ``y = H J + n c + noise``. Laplace noise of scale b is a mixture of normals, ``noise_j ~ N(0, b^2 w_j)`` with ``w_j ~
Exp(1/2)``. One step is the cycle

1. ``theta | J``, the conjugate draw of the exact model, which sees J as if it were the statistic of n records;
2. ``theta | w, y``, with J integrated out: a leap (:mod:`noisewise.kernels.tangent`) and random-walk moves on ``p(theta) N(y; n (H m +
   c), n H C H' + D)``, up to ``moves`` of them, the fewer the more leaps the tuning phase saw accepted (with 0 this is the paper's
   algorithm, which crawls when the noise is much wider than the statistic);
3. ``J | theta, w, y``: with ``J0 ~ N(n m, n C)`` and ``e ~ N(0, D)`` the draw is ``J0 + n C H' S^-1 (y - H J0 - n c - e)``,
   where ``S = n H C H' + D``. Only S is factored, so C may be singular. Draws the model cannot have are repeated, up to ``tries`` times;
4. ``w | J, y``: ``1/w_j ~ InverseGaussian(1/r_j, 1)`` with ``r_j = |y_j - (H J + n c)_j| / b_j``.

Steps 1 and 3 hold two different views of ``p(J | theta)``: the cycle is exact only in the limit of the central limit theorem. Given
theta, steps 3 and 4 leave the normal model's conditional law invariant; 2 leaves that of theta invariant. Checked by
``tests/engines/test_sufficient_updates.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from noisewise.kernels.base import Info, Kernel
from noisewise.kernels.lanes import across_chains_maximum
from noisewise.kernels.tangent import Tangent, leap
from noisewise.kernels.walk import Walk
from noisewise.models import triangular
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

_PIVOT = 1e-12
_RIDGE = 1e-11
"""Share of a total's variance that is added to its noise: S would lose its digits where noise is nothing and C is singular."""
_SETTLING = 48
_DIRECT = 12
_SETTLED_SPREAD = 2.0
_LARGEST_UNROLLED = 6
_LEAST_MOVES = 2
_BOLD = 8.0
"""How much longer every second random-walk step is: the posterior of a truncated sum can have two modes."""


class Picture(NamedTuple):
    """The mean and covariance of a vector of sums."""

    mean: Float[Array, " k"]
    covariance: Float[Array, "k k"]


class StatisticLaw(eqx.Module):
    """What the sampler needs of a model and a query: moments of one record's part of J, and the conjugate draw.

    ``matrix`` and ``offset`` say how the released totals depend on J: ``matrix @ J + n offset``.
    """

    matrix: Float[Array, "m k"]
    offset: Float[Array, " m"]

    @abstractmethod
    def moments(self, theta: Theta) -> Picture:
        """The mean m and the covariance C of one record's part of J."""

    @abstractmethod
    def update(self, key: Key, theta: Theta, joint: Float[Array, " k"], n: Float[Array, ""]) -> Theta:
        """Theta from a kernel that leaves ``p(theta | n records with these totals)`` invariant."""

    @abstractmethod
    def possible(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether n records can have these totals, as far as the conjugate draw is concerned."""

    def released(self, joint: Float[Array, " k"], n: Float[Array, ""]) -> Float[Array, " m"]:
        """The released totals, before noise."""
        return self.matrix @ joint + n * self.offset


class NoiseShape(eqx.Module):
    """Normal noise or a Laplace mixture, number by number: ``laplace`` is 1 for the latter, ``scale`` is b or the sd."""

    scale: Float[Array, " m"]
    laplace: Bool[Array, " m"]

    def variances(self, mixture: Float[Array, " m"]) -> Float[Array, " m"]:
        """The variance of each number's noise given the mixture's scales w."""
        return self.scale**2 * jnp.where(self.laplace, mixture, 1.0)

    def draw_mixture(self, key: Key, residual: Float[Array, " m"]) -> Float[Array, " m"]:
        """``w | residual`` for the Laplace numbers, 1 for the others."""
        return jnp.where(self.laplace, mixture_scale(key, jnp.abs(residual) / self.scale), 1.0)


def mixture_scale(key: Key, ratio: Float[Array, " m"]) -> Float[Array, " m"]:
    r"""Draw w with density proportional to ``w^(-1/2) exp(-(ratio^2/w + w)/2)``: ``1/w ~ InverseGaussian(1/ratio, 1)``.

    The method of Michael, Schucany and Haas (1976) turned upside down. With ``v = z^2``, z standard normal, the roots of
    ``(w - ratio)^2 = v w`` are ``large = ratio + v/2 + sqrt(ratio v + v^2/4)`` and ``ratio^2 / large``; w is the larger one with
    probability ``large / (large + ratio)``. Nothing is divided by ``ratio``, so all digits survive at any ratio, and at 0 the draw is the
    chi-square v, its limit.
    """
    normal_key, choice_key = jax.random.split(key)
    v = jax.random.normal(normal_key, ratio.shape, dtype=float) ** 2
    large = ratio + 0.5 * v + jnp.sqrt(ratio * v + 0.25 * v**2)
    share = jnp.where(large > 0, large / (large + ratio), 1.0)
    small = jnp.where(large > 0, ratio * (ratio / jnp.where(large > 0, large, 1.0)), 0.0)
    return jnp.where(jax.random.uniform(choice_key, ratio.shape, dtype=float) < share, large, small)


def semidefinite_factor(covariance: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """A lower triangular L with ``L L' = covariance``, which may be singular.

    A pivot that has lost all its digits belongs to a direction without variance, and its column is zero.
    """
    k = covariance.shape[0]
    floor = _PIVOT * jnp.diag(covariance)
    if k > _LARGEST_UNROLLED:
        below = jnp.arange(k)

        def eliminate(j: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
            rest, factor = carry
            pivot = rest[j, j]
            alive = pivot > floor[j]
            column = jnp.where(alive & (below >= j), rest[:, j] / jnp.sqrt(jnp.where(alive, pivot, 1.0)), 0.0)
            return rest - jnp.outer(column, column), factor.at[:, j].set(column)

        return lax.fori_loop(0, k, eliminate, (covariance, jnp.zeros_like(covariance)))[1]
    zero = jnp.zeros(())
    factor = [[zero] * k for _ in range(k)]
    for j in range(k):
        pivot = covariance[j, j] - sum((factor[j][i] ** 2 for i in range(j)), start=zero)
        alive = pivot > floor[j]
        root = jnp.sqrt(jnp.where(alive, pivot, 1.0))
        factor[j][j] = jnp.where(alive, root, 0.0)
        for row in range(j + 1, k):
            rest = covariance[row, j] - sum((factor[row][i] * factor[j][i] for i in range(j)), start=zero)
            factor[row][j] = jnp.where(alive, rest / root, 0.0)
    return jnp.stack([jnp.stack(row) for row in factor])


class Drawn(NamedTuple):
    """A draw of J, whether it is possible, and how many draws were thrown away for it."""

    joint: Float[Array, " k"]
    found: Bool[Array, ""]
    redraws: Int[Array, ""]


def draw_joint(
    key: Key,
    law: StatisticLaw,
    picture: Picture,
    value: Float[Array, " m"],
    variances: Float[Array, " m"],
    n: Float[Array, ""],
    *,
    tries: int,
) -> Drawn:
    """``J | theta, w, y``: normal, restricted to what n records can have."""
    factor = semidefinite_factor(picture.covariance)
    gain = picture.covariance @ law.matrix.T
    released = law.matrix @ gain
    variances = variances + _RIDGE * jnp.diag(released)
    spread = triangular.cholesky(triangular.matrix(released + jnp.diag(variances)))
    roots = jnp.sqrt(variances)
    k, m = factor.shape[0], roots.shape[0]

    def attempt(key: Key) -> tuple[Array, Array]:
        normals = jax.random.normal(key, (k + m,), dtype=float)
        free = picture.mean + factor @ normals[:k]
        gap = value - law.released(free, n) - roots * normals[k:]
        weights = triangular.solve_transposed(spread, triangular.solve(spread, [gap[i] for i in range(m)]))
        joint = free + gain @ jnp.stack(weights)
        return joint, law.possible(joint, n)

    def again(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        joint, found, redraws = carry
        candidate, possible = attempt(jax.random.fold_in(key, redraws + 1))
        return jnp.where(found, joint, candidate), found | possible, redraws + jnp.where(found, 0, 1)

    joint, found = attempt(jax.random.fold_in(key, 0))
    start = (joint, found, jnp.zeros((), dtype=int))
    return Drawn(*lax.while_loop(lambda carry: ~carry[1] & (carry[2] < tries), again, start))


class StatisticsState(eqx.Module):
    """Theta, the totals J, the mixture's scales w, what the tuning phase has learnt of theta and of leaps, whether J was possible."""

    theta: Theta
    joint: Float[Array, " k"]
    mixture: Float[Array, " m"]
    walk: Walk
    ease: Float[Array, ""]
    found: Bool[Array, ""]


class StatisticsKernel(Kernel):
    """One cycle of the sampler. ``n`` is data: one compiled program serves every n, value and scale.

    A step whose totals ran out of tries keeps the old ones and says so in ``min_found``. ``walk`` is what the random-walk moves
    know of theta before the tuning phase, ``tangent`` is what leaps know, ``modes`` where chains may start (unconstrained).
    """

    model: Model
    law: StatisticLaw
    value: Float[Array, " m"]
    noise: NoiseShape
    n: Float[Array, ""]
    release: Release | None = None
    moves: int = eqx.field(static=True, default=2)
    tries: int = eqx.field(static=True, default=1000)
    walk: Walk | None = None
    tangent: Tangent | None = None
    modes: Float[Array, "modes d"] | None = None

    def init(self, key: Key, start: Theta) -> StatisticsState:
        """Totals at their means, which are always possible; then theta and J follow the release, under extra noise that fades."""
        first, later = jax.random.split(key)
        joint = self._picture(start).mean
        mixture = self._mixture(first, joint)

        def settle(i: Array, carry: tuple[Theta, Array, Array, Array]) -> tuple[Theta, Array, Array, Array]:
            theta, joint, mixture, _ = carry
            keys = jax.random.split(jax.random.fold_in(later, i), 3)
            theta = self.law.update(keys[0], theta, joint, self.n)
            picture = self._picture(theta)
            # the first turns try what the release says; where that is impossible the others approach it slowly
            fade = jnp.where(i < _DIRECT, 0.0, _SETTLED_SPREAD * jnp.minimum(1.0, 2.0 ** (0.75 * _SETTLING - i)))
            mixture = jnp.where(i < _DIRECT, 1.0, mixture)
            extra = fade * jnp.diag(self.law.matrix @ picture.covariance @ self.law.matrix.T)
            drawn = self._draw(keys[1], picture, self.noise.variances(mixture) + extra)
            joint = jnp.where(drawn.found, drawn.joint, joint)
            return theta, joint, self._mixture(keys[2], joint), drawn.found

        begun = (start, joint, mixture, jnp.asarray(True))
        theta, joint, mixture, found = lax.fori_loop(0, _SETTLING, settle, begun)
        walk = self.walk
        if walk is None:
            walk = Walk.start(self.model.unconstrain(theta), 0.1 * jnp.eye(self.model.free_size), weight=1.0)
        return StatisticsState(theta, joint, mixture, walk, jnp.zeros(()), found)

    def step(self, key: Key, state: StatisticsState) -> tuple[StatisticsState, Info]:
        theta_key, walk_key, joint_key, mixture_key = jax.random.split(key, 4)
        theta = self.law.update(theta_key, state.theta, state.joint, self.n)
        within = jax.tree.map(lambda new, old: 0.5 * (new - old) ** 2, theta, state.theta)
        variances = self.noise.variances(state.mixture)
        stats: dict[str, Array] = {}
        if self.moves:
            theta, found = self._moved(walk_key, theta, state, variances)
            stats |= found
        drawn = self._draw(joint_key, self._picture(theta), variances)
        joint = jnp.where(drawn.found, drawn.joint, state.joint)
        mixture = self._mixture(mixture_key, joint)
        stats["redraws"] = drawn.redraws.astype(float)
        stats["min_found"] = drawn.found.astype(float)
        return StatisticsState(theta, joint, mixture, state.walk, state.ease, drawn.found), Info(stats, within)

    def adapt(self, state: StatisticsState, info: Info) -> StatisticsState:
        if not self.moves:
            return state
        walk = state.walk.learn(self.model.unconstrain(state.theta), info.stats["acceptance_rate"])
        ease = state.ease
        if self.tangent is not None:
            rate = jnp.minimum(0.5, 3.0 / (walk.seen + 3.0))
            ease = ease + rate * (info.stats["leap_acceptance"] - ease)
        return eqx.tree_at(lambda s: (s.walk, s.ease), state, (walk, ease))

    def log_target(self, free: Float[Array, " d"], variances: Float[Array, " m"]) -> Float[Array, ""]:
        """``log p(free) N(y; n (H m + c), n H C H' + D)``, J integrated out."""
        return self.model.log_prior_free(free) + self.log_likelihood(free, variances)

    def log_likelihood(self, free: Float[Array, " d"], variances: Float[Array, " m"]) -> Float[Array, ""]:
        """``log N(y; n (H m + c), n H C H' + D)``, up to a constant."""
        picture = self._picture(self.model.constrain(free))
        released = self.law.matrix @ picture.covariance @ self.law.matrix.T
        spread = released + jnp.diag(variances + _RIDGE * jnp.diag(released))
        factor = triangular.cholesky(triangular.matrix(spread))
        gap = self.value - self.law.released(picture.mean, self.n)
        white = triangular.solve(factor, [gap[i] for i in range(gap.shape[0])])
        return -0.5 * triangular.dot(white, white) - triangular.half_log_det(factor)

    def theta(self, state: StatisticsState) -> Theta:
        return state.theta

    def predict(self, key: Key, state: StatisticsState) -> dict[str, Array]:
        if self.release is None:
            return {}
        simulated = self.release.simulate(key, self.law.released(state.joint, self.n))
        return dict(zip(self.release.names, simulated, strict=True))

    def _moved(
        self, key: Key, theta: Theta, state: StatisticsState, variances: Array
    ) -> tuple[Theta, dict[str, Array]]:
        """Theta after a leap and random-walk moves, every second one bold, with the acceptance probabilities of leap and others."""
        leap_key, step_key, accept_key = jax.random.split(key, 3)
        position, stats = self.model.unconstrain(theta), {}

        def target(free: Array) -> Array:
            return self.log_target(free, variances)

        if self.tangent is None:
            current = target(position)
            count, turns = jnp.asarray(self.moves), self.moves
        else:
            leapt = leap(leap_key, target, position, self.tangent.reference(self.value, variances))
            position, current = leapt.position, leapt.log_target
            stats["leap_acceptance"] = leapt.acceptance
            count = self._walks(state.ease)
            turns = across_chains_maximum(count)
        bold = jnp.arange(self.moves) % 2 == 1
        normals = jax.random.normal(step_key, (self.moves, position.shape[0]), dtype=float)
        lengths = jnp.exp(state.walk.log_scale) * jnp.where(bold, _BOLD, 1.0)
        steps = lengths[:, None] * jnp.sum(state.walk.factor * normals[:, None, :], axis=-1)
        log_uniform = -jax.random.exponential(accept_key, (self.moves,), dtype=float)

        def move(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            position, current, summed = carry
            candidate = position + steps[j]
            value = target(candidate)
            # NaN compares false, so a candidate outside the domain is rejected
            accept = (j < count) & (log_uniform[j] < value - current)
            probability = jnp.where(jnp.isnan(value), 0.0, jnp.exp(jnp.minimum(value - current, 0.0)))
            summed = summed + jnp.where((j < count) & ~bold[j], probability, 0.0)
            return jnp.where(accept, candidate, position), jnp.where(accept, value, current), summed

        position, _, summed = lax.fori_loop(0, turns, move, (position, current, jnp.zeros(())))
        stats["acceptance_rate"] = summed / ((count + 1) // 2)
        return self.model.constrain(position), stats

    def _walks(self, ease: Float[Array, ""]) -> Int[Array, ""]:
        """How many random-walk moves follow a leap: all where leaps are never accepted, a few where they always are."""
        least = min(_LEAST_MOVES, self.moves)
        return jnp.round(least + (self.moves - least) * (1 - ease) ** 2).astype(int)

    def _picture(self, theta: Theta) -> Picture:
        mean, covariance = self.law.moments(theta)
        return Picture(self.n * mean, self.n * covariance)

    def _draw(self, key: Key, picture: Picture, variances: Float[Array, " m"]) -> Drawn:
        return draw_joint(key, self.law, picture, self.value, variances, self.n, tries=self.tries)

    def _mixture(self, key: Key, joint: Float[Array, " k"]) -> Float[Array, " m"]:
        return self.noise.draw_mixture(key, self.value - self.law.released(joint, self.n))


def impossible(tries: int) -> str:
    """The sentence of a run whose totals cannot be drawn."""
    return (
        f"No possible total was drawn in {tries} tries: the model can hardly have produced this release. Look at n, the noise "
        'scale and the bounds, or use method="augmentation", which needs no normal approximation.'
    )
