r"""Noisy sufficient statistics: a posterior whose cost does not depend on n, approximate through the central limit theorem.

The totals of the records are taken as normal given theta (Bernstein and Sheldon 2018), so the engine is *approximate*: it is never
chosen by itself, and every run says where the approximation is doubtful (:mod:`noisewise.engines.edgeworth`,
:func:`noisewise.engines.trust.check_normality`). Which pairs it can do is found by :mod:`noisewise.engines.sufficient_laws`.

The sampler is :class:`~noisewise.kernels.statistics.StatisticsKernel`; chains start dispersed about modes of the normal model's
posterior (:mod:`noisewise.engines.sufficient_start`). With one parameter and one released number that posterior
needs no Markov chain (:mod:`noisewise.engines.sufficient_direct`); it can be bimodal, because
the expectation of a truncated sum is not monotone in theta, and then the chain could stay in one mode. Discrete noise is replaced by
the continuous law of the same kind and the same variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from noisewise.engines.base import Engine, Sampler, Support
from noisewise.engines.edgeworth import doubts_of
from noisewise.engines.sufficient_direct import direct_sampler
from noisewise.engines.sufficient_laws import Clt, observed, quantiles, statistic_law
from noisewise.engines.sufficient_start import climb
from noisewise.kernels.base import Kernel
from noisewise.kernels.statistics import StatisticLaw, StatisticsKernel, impossible
from noisewise.kernels.walk import Walk, cholesky
from noisewise.models.base import Model
from noisewise.release.document import Release
from noisewise.typing import Key, Theta

Scheme = Literal["auto", "gibbs", "direct"]

_PILOTS = 8
_MOVES_A_PARAMETER, _MOST_MOVES = 6, 48
_START_INFLATION = 2.0
_DOUBT_SEED = 0x0ED6E


class Sufficient(Engine):
    """Noisy sufficient statistics (approximate: central limit theorem; cost independent of n).

    ``scheme`` is ``"gibbs"``, ``"direct"`` (one parameter, one released number) or ``"auto"``: direct where it applies. ``moves`` is the
    largest number of random-walk moves of theta with the totals integrated out, in every step, beside a leap (``None``: six a
    parameter, at most 48); 0 is the paper's algorithm. ``tries`` is how often impossible totals are drawn again
    before the run is given up. ``clt="independent"`` is the paper's treatment of a truncated statistic, kept for comparison: it is
    miscalibrated. It lives in the totals' draws alone, which the moves of theta would overrule, so that it is run without any.

    >>> import noisewise as nw
    >>> query = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
    >>> release = nw.Release([nw.Measurement(query, nw.noise.Laplace(20.0), [[69_980.0, 30_011.0]])], n=100_000)
    >>> dt = nw.sample(nw.models.Bernoulli(), release, method=Sufficient(), tune=200, random_seed=1, progressbar=False)
    >>> abs(float(dt.posterior["p"].mean()) - 0.3) < 0.001
    True
    """

    name: ClassVar[str] = "sufficient"
    exact: ClassVar[bool] = False

    scheme: Scheme = eqx.field(static=True, default="auto")
    clt: Clt = eqx.field(static=True, default="joint")
    moves: int | None = eqx.field(static=True, default=None)
    tries: int = eqx.field(static=True, default=1000)

    def __check_init__(self) -> None:
        if self.scheme not in ("auto", "gibbs", "direct"):
            raise ValueError(f"scheme must be 'auto', 'gibbs' or 'direct'; got {self.scheme!r}.")
        if self.clt not in ("joint", "independent"):
            raise ValueError(f"clt must be 'joint' or 'independent' (the paper's); got {self.clt!r}.")
        for name, value, least in (("moves", self.moves, 0), ("tries", self.tries, 1)):
            if name == "moves" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
        if self.clt == "independent" and (self.moves or self.scheme == "direct"):
            raise ValueError(
                "clt='independent' is the paper's Algorithm 2, without moves of theta or a direct scheme, which would hide what it "
                f"does; got moves={self.moves!r}, scheme={self.scheme!r}."
            )

    def supports(self, model: Model, release: Release) -> Support:
        if release.n is None:
            return Support(False, "the number of records is unknown")
        law = statistic_law(model, release, clt=self.clt)
        if isinstance(law, str):
            return Support(False, law)
        if self.scheme == "direct" and not _one_dimensional(model, law):
            return Support(False, "the direct scheme needs one parameter with a log_prior, and one released number")
        if self.moves and not model.has_log_prior:
            return Support(False, "random-walk moves need a model with a log_prior; moves=0 does without")
        given = " and takes the privately chosen bounds as given" if quantiles(release) else ""
        reason = f"approximates the totals by a normal law{given}"
        return Support(True, reason, f"does not depend on n; {law.offset.shape[0]} released numbers")

    def build(self, model: Model, release: Release, key: Key) -> Kernel | Sampler:
        law = statistic_law(model, release, clt=self.clt)
        assert not isinstance(law, str)
        assert release.n is not None
        value, noise = observed(release)
        n = jnp.asarray(float(release.n))
        direct = self.scheme == "direct" or (
            self.scheme == "auto" and self.clt == "joint" and _one_dimensional(model, law)
        )
        shown = None if quantiles(release) else release
        if direct:
            return direct_sampler(key, model, law, value, noise, n, shown)
        moves = self.moves
        if moves is None:
            # a random walk's correlation time grows with the dimension
            most = min(_MOVES_A_PARAMETER * model.free_size, _MOST_MOVES)
            moves = most if model.has_log_prior and self.clt == "joint" else 0
        kernel = StatisticsKernel(model, law, value, noise, n, shown, moves, self.tries)
        climb_key, pilot_key = jax.random.split(key)
        if model.has_log_prior:
            modes, best, covariance, tangent = climb(climb_key, _bare(kernel))
            kernel = eqx.tree_at(
                lambda k: (k.walk, k.tangent, k.modes),
                kernel,
                (Walk.start(best, covariance), tangent, modes),
                is_leaf=lambda leaf: leaf is None,
            )
        self._try_out(kernel, pilot_key)
        return kernel

    def start(self, kernel: Kernel, key: Key) -> Theta:
        assert isinstance(kernel, StatisticsKernel)
        if kernel.walk is None or kernel.modes is None:
            return kernel.model.sample_prior(key)
        which, where = jax.random.split(key)
        mode = kernel.modes[jax.random.randint(which, (), 0, kernel.modes.shape[0])]
        normals = jax.random.normal(where, mode.shape, dtype=float)
        return kernel.model.constrain(mode + _START_INFLATION * cholesky(kernel.walk.covariance) @ normals)

    def doubts(
        self, model: Model, release: Release, posterior: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> tuple[str, ...]:
        if np.any(stats.get("min_found", np.ones(1)) < 1):
            raise ValueError(impossible(self.tries))
        thetas = {name: value.reshape(-1, *value.shape[2:]) for name, value in posterior.items()}
        return doubts_of(model, release, thetas, jax.random.key(_DOUBT_SEED))[1]

    def _try_out(self, kernel: StatisticsKernel, key: Key) -> None:
        """Refuse, before any long work, a release whose totals cannot be drawn."""
        if not np.all(np.asarray(_settled(self, _bare(kernel), jax.random.split(key, _PILOTS)))):
            raise ValueError(impossible(self.tries))


def _one_dimensional(model: Model, law: StatisticLaw) -> bool:
    return model.free_size == 1 and law.offset.shape[0] == 1 and model.has_log_prior


@eqx.filter_jit
def _settled(engine: Sufficient, kernel: StatisticsKernel, keys: Key) -> Array:
    def one(key: Key) -> Array:
        first, second = jax.random.split(key)
        return kernel.init(first, engine.start(kernel, second)).found

    return jax.vmap(one)(keys)


def _bare(kernel: StatisticsKernel) -> StatisticsKernel:
    """The kernel without its release, whose number of records and names would be compiled in."""
    return eqx.tree_at(lambda k: k.release, kernel, None, is_leaf=lambda leaf: leaf is None)
