r"""A NumPyro model with the records as sites, as a model of the records.

The program is ``model(n)``, n the number of records. The sites called records are inside a plate of n and are the confidential columns;
all other sites are the parameters theta. One record is the program at ``n = 1``, repeated over records by ``vmap``: its law is
``f(x_i | theta)``, checked here to be what the program says of several records together.

- ``log_prior``, ``log_likelihood``: the sites' log densities; free vectors by NumPyro's own bijections, also where a parameter's
  support depends on another.
- ``update``: none; theta moves by a short Hamiltonian move, tuned with its metric in the tuning phase (``theta_move``).
- ``transform(theta, u)``: where every record site is one of the families below, ``u`` is free of theta and the engine interweaves. With
  any other site, innovations are keys from which NumPyro draws, and the model has no inverse.

| family of a record site | record |
|---|---|
| normal, Laplace, Cauchy, logistic, Gumbel | ``loc + scale z`` |
| exponential, Weibull, half normal, half Cauchy, uniform | a multiple of z (of its power), or an interval's share |
| Bernoulli, categorical | coin tosses on a tree, as :mod:`noisewise.models.levels` |
| a transformed distribution (lognormal, ...) of these | its transforms after its base |
| others with ``icdf`` and ``cdf`` (Pareto, truncated laws) | ``icdf(z)``, z uniform |

Checked by ``tests/models/test_numpyro.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noisewise.models import levels
from noisewise.models.base import Model, ThetaMove
from noisewise.models.bijections import Parameter, Support
from noisewise.models.numpyro_sites import Sites, family, invert, sites_of
from noisewise.typing import Innovations, Key, Records, Theta

_RECORDS = 5
_SUPPORTS: dict[str, Support] = {
    "_Real": "real",
    "_Positive": "positive",
    "_UnitInterval": "unit",
    "_Simplex": "simplex",
    "_PositiveDefinite": "covariance",
}
_STANDARD: dict[str, Callable[..., Array]] = {
    "Normal": jax.random.normal,
    "Laplace": jax.random.laplace,
    "Cauchy": jax.random.cauchy,
    "Logistic": jax.random.logistic,
    "Gumbel": jax.random.gumbel,
    "Exponential": jax.random.exponential,
    "Uniform": jax.random.uniform,
    "icdf": jax.random.uniform,
    "HalfNormal": lambda *given, **kind: jnp.abs(jax.random.normal(*given, **kind)),
    "HalfCauchy": lambda *given, **kind: jnp.abs(jax.random.cauchy(*given, **kind)),
}


def from_numpyro(model: Callable[[int], Any], records: Sequence[str] | None = None) -> NumPyro:
    """A model of the records from a NumPyro program of the number of records.

    ``records`` names the sites that are confidential columns (left out: all sites in a plate as long as the records).

    >>> import noisewise as nw, numpyro, numpyro.distributions as dist
    >>> def heights(n):
    ...     mean = numpyro.sample("mean", dist.Normal(170, 20))
    ...     with numpyro.plate("people", n):
    ...         numpyro.sample("height", dist.Normal(mean, 8))
    >>> model = nw.models.from_numpyro(heights, records=["height"])
    >>> model.columns, list(model.parameters), model.has_inverse
    (('height',), ['mean'], True)
    """
    return NumPyro(model, records)


class NumPyro(Model):
    """The model that :func:`from_numpyro` makes."""

    function: Callable[[int], Any] = eqx.field(static=True)
    families: tuple[tuple[str, str], ...] = eqx.field(static=True)
    shapes: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    free_shapes: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)

    def __init__(self, model: Callable[[int], Any], records: Sequence[str] | None = None) -> None:
        if not callable(model):
            raise ValueError(f"model must be a NumPyro program of the number of records; got {model!r}.")
        self.function = model
        seen, others = _look(model, _RECORDS), _look(model, _RECORDS + 1)
        # a plate of the records grows with n; one of five groups does not
        inside = [name for name, site in seen.items() if name in others and site.in_plate and others[name].in_plate]
        names = tuple(inside if records is None else ([records] if isinstance(records, str) else records))
        if records is None and not inside:
            raise ValueError(
                f"None of the NumPyro model's sites {list(seen)} is in a numpyro.plate of its argument, the number of records: write it "
                "as model(n), with the confidential columns sampled inside numpyro.plate(name, n)."
            )
        if not names or len(set(names)) < len(names) or any(name not in seen for name in names):
            raise ValueError(
                f"records must name sites of the NumPyro model, which are {list(seen)}; got {list(names)}."
            )
        for name in names:
            _check_record(name, seen[name], name in inside)
        left = [name for name in inside if name not in names]
        if left:
            raise ValueError(
                f"The sites {left} are in a plate of the records, but are not named as records; name them, or move them out of "
                "the plate."
            )
        thetas = {name: site for name, site in seen.items() if name not in names}
        if not thetas:
            raise ValueError(f"The NumPyro model has no parameters: all its sites, {list(names)}, are records.")
        for name, site in thetas.items():
            if site.discrete:
                raise ValueError(
                    f"The parameter site {name!r} is discrete; sum it out, because theta moves by gradients."
                )
        self.families = tuple((name, seen[name].family) for name in names)
        self.shapes = tuple((name, site.parameter) for name, site in thetas.items())
        self.free_shapes = tuple((name, site.free_shape) for name, site in thetas.items())
        self._check_by_record()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.families)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return dict(self.shapes)

    @property
    def theta_move(self) -> ThetaMove:
        return "hmc"

    @property
    def conjugate(self) -> bool:
        return False

    @property
    def has_update(self) -> bool:
        return False

    @property
    def has_inverse(self) -> bool:
        return all(kind != "key" for _, kind in self.families)

    def sample_prior(self, key: Key) -> Theta:
        sites = self._sites(Sites(key=key))
        return {name: jnp.asarray(sites[name]["value"], dtype=float) for name in self.parameters}

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        sites = self._sites(Sites(values={**theta, **self._blank}))
        return sum((_log_prob(sites[name]) for name in self.parameters), start=jnp.zeros(()))

    def innovations(self, key: Key, n: int) -> Innovations:
        keys = jax.random.split(key, len(self.families))
        return {name: _innovate(k, n, kind) for k, (name, kind) in zip(keys, self.families, strict=True)}

    def transform(self, theta: Theta, u: Innovations) -> Records:
        def one(u: Innovations) -> Records:
            sites = self._sites(Sites(values=theta, innovations=u))
            return {name: sites[name]["value"][0] for name in self.columns}

        return jax.vmap(one)(u)

    def inverse(self, theta: Theta, records: Records, key: Key) -> Innovations:
        if not self.has_inverse:
            raise ValueError(f"this NumPyro model has no inverse: its record sites are {dict(self.families)}.")

        def one(record: Records, key: Key) -> Innovations:
            sites = self._sites(Sites(values={**theta, **_lifted(record)}))
            keys = jax.random.split(key, len(self.families))
            return {
                name: invert(sites[name]["fn"], sites[name]["value"], k)
                for k, name in zip(keys, self.columns, strict=True)
            }

        own = {name: records[name] for name in self.columns}
        return jax.vmap(one)(own, jax.random.split(key, own[self.columns[0]].shape[0]))

    def update(self, key: Key, theta: Theta, records: Records) -> Theta:
        raise ValueError("a NumPyro model has no update; engines move theta by its densities.")

    def log_likelihood(self, theta: Theta, records: Records) -> Float[Array, " n"]:
        def one(record: Records) -> Float[Array, ""]:
            sites = self._sites(Sites(values={**theta, **_lifted(record)}))
            return sum((_log_prob(sites[name]) for name in self.columns), start=jnp.zeros(()))

        return jax.vmap(one)({name: records[name] for name in self.columns})

    @property
    def free_size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.free_shapes)

    def unconstrain(self, theta: Theta) -> Float[Array, " free"]:
        sites = self._sites(Sites(values={**theta, **self._blank}))
        return jnp.concatenate(
            [jnp.ravel(_bijection(sites[name]).inv(sites[name]["value"])) for name in self.parameters]
        )

    def constrain(self, free: Float[Array, " free"]) -> Theta:
        sites = self._sites(Sites(values=self._blank, free=self._pieces(free)))
        return {name: sites[name]["value"] for name in self.parameters}

    def log_prior_free(self, free: Float[Array, " free"]) -> Float[Array, ""]:
        pieces = self._pieces(free)
        sites = self._sites(Sites(values=self._blank, free=pieces))
        jacobians = [
            jnp.sum(_bijection(sites[name]).log_abs_det_jacobian(pieces[name], sites[name]["value"]))
            for name in self.parameters
        ]
        return sum([*jacobians, *(_log_prob(sites[name]) for name in self.parameters)], start=jnp.zeros(()))

    def _sites(self, sites: Sites) -> dict[str, Any]:
        """The sites of one record's program."""
        return sites_of(self.function, 1, sites)

    @property
    def _blank(self) -> dict[str, Array]:
        """Values for the records where the parameters alone are looked at."""
        return {name: jnp.zeros(1, dtype=int if kind.startswith("levels") else float) for name, kind in self.families}

    def _pieces(self, free: Array) -> dict[str, Array]:
        ends = np.cumsum([math.prod(shape) for _, shape in self.free_shapes])
        return {
            name: free[end - math.prod(shape) : end].reshape(shape)
            for end, (name, shape) in zip(ends, self.free_shapes, strict=True)
        }

    def _check_by_record(self) -> None:
        def look(key: Key) -> tuple[Array, Array]:
            theta_key, records_key, back_key = jax.random.split(key, 3)
            theta = self.sample_prior(theta_key)
            records = self.transform(theta, self.innovations(records_key, _RECORDS))
            sites = sites_of(self.function, _RECORDS, Sites(values={**theta, **records}))
            together = sum(_log_prob(sites[name]) for name in self.columns)
            prior = sum(_log_prob(sites[name]) for name in self.parameters)
            alone = jnp.sum(self.log_likelihood(theta, records))
            back = self.transform(theta, self.inverse(theta, records, back_key)) if self.has_inverse else records
            pairs = [(together, alone), (prior, self.log_prior(theta)), *((records[x], back[x]) for x in self.columns)]
            first, second = (jnp.concatenate([jnp.ravel(pair[side]) for pair in pairs]) for side in (0, 1))
            return first.astype(float), second.astype(float)

        found, expected = (np.asarray(side) for side in jax.jit(look)(jax.random.key(1)))
        if not np.allclose(found[:2], expected[:2], rtol=1e-8, atol=1e-8):
            raise ValueError(
                "The NumPyro model's density of several records is not the product of its densities of one; records must be "
                "independent given the parameters, each with the same law, and the prior free of n."
            )
        if not np.allclose(found[2:], expected[2:], rtol=1e-6, atol=1e-6):
            kinds = ((name, "key") for name in self.columns)  # records that cannot be traced back are drawn by NumPyro
            self.families = tuple(kinds)


def _lifted(record: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value[None] for name, value in record.items()}


def _log_prob(site: Mapping[str, Any]) -> Array:
    return jnp.sum(site["fn"].log_prob(site["value"]))


def _bijection(site: Mapping[str, Any]) -> Any:
    from numpyro.distributions import biject_to

    return biject_to(site["fn"].support)


def _innovate(key: Key, n: int, kind: str) -> Innovations:
    if kind == "key":
        return jax.random.split(key, n)
    if kind.startswith("levels"):
        return levels.innovations(key, n, [int(kind.removeprefix("levels"))])[0]
    return _STANDARD[kind](key, (n,), dtype=float)


class _Site(NamedTuple):
    """What a program says of a site, whatever the numbers."""

    in_plate: bool
    shape: tuple[int, ...]
    discrete: bool
    family: str
    parameter: Parameter
    free_shape: tuple[int, ...]


def _look(model: Callable[[int], Any], n: int) -> dict[str, _Site]:
    """The sites of the program at n records, by tracing it."""
    found: dict[str, _Site] = {}

    def run(key: Key) -> None:
        for name, site in sites_of(model, n, Sites(key=key)).items():
            shape, support = tuple(jnp.shape(site["value"])), site["fn"].support
            discrete = bool(support.is_discrete) or not jnp.issubdtype(jnp.result_type(site["value"]), jnp.floating)
            found[name] = _Site(
                any(frame.size == n for frame in site["cond_indep_stack"]),
                shape,
                discrete,
                family(site["fn"]),
                _declare(name, shape, support),
                () if discrete else tuple(_bijection(site).inverse_shape(shape)),
            )

    jax.eval_shape(run, jax.random.key(0))
    return found


def _check_record(name: str, site: _Site, in_plate: bool) -> None:
    if not in_plate or site.shape != (_RECORDS,):
        raise ValueError(
            f"The record site {name!r} must be one number for each record, in a numpyro.plate of n records; for n = {_RECORDS} its "
            f"value has shape {site.shape}{'' if in_plate else ' and it is in no such plate'}."
        )


def _declare(name: str, shape: tuple[int, ...], support: Any) -> Parameter:
    kind = type(getattr(support, "base_constraint", support)).__name__
    return Parameter(shape, _SUPPORTS.get(kind, "real"), tuple(f"{name}_dim_{i}" for i in range(len(shape))))
