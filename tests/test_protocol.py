"""One round trip for every kernel, and for every engine an answer with its reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines import choose
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.base import Engine, Sampler
from noisewise.engines.surrogate import Surrogate
from noisewise.kernels.base import Kernel
from reference import toy

QUERY = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
RELEASE = nw.Release([nw.Measurement(QUERY, nw.noise.Laplace(2.0), [3.1, 1.4])], n=5)
MODEL = nw.models.Categorical([1.0, 2.0])


def augmentation(**options) -> AugmentationKernel:
    settings = {
        "record_proposal": None,
        "theta_move": "update",
        "interweave": True,
        "move": "random_walk",
        "moves": 2,
        "window": 3,
        "block": None,
    } | options
    surrogate = Surrogate(jnp.zeros(1), jnp.eye(1))
    return AugmentationKernel(model=MODEL, release=RELEASE, surrogate=surrogate, n=5, **settings)


KERNELS = {
    "augmentation": (augmentation, {"p": jnp.array([0.4, 0.6])}),
    "augmentation, Hamiltonian": (
        lambda: augmentation(theta_move="hmc", move="elliptical_slice", block=2),
        {"p": jnp.array([0.4, 0.6])},
    ),
    "toy": (lambda: toy.Toy(jnp.asarray(1.0)), {"z": jnp.zeros(2)}),
}


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_makes_the_round_trip(name):
    """init, step, adapt, theta, predict, latent: under jit and vmap the same as one by one, and shapes never change."""
    build, start = KERNELS[name]
    kernel = build()
    assert isinstance(kernel, Kernel)

    def trip(key):
        init_key, step_key, predict_key = jax.random.split(key, 3)
        state = kernel.init(init_key, start)
        moved, info = kernel.step(step_key, state)
        adapted = kernel.adapt(moved, info)
        seen = (kernel.theta(moved), kernel.predict(predict_key, moved), kernel.latent(moved))
        return state, moved, adapted, info, seen

    keys = jax.random.split(jax.random.key(3), 2)
    both = jax.jit(jax.vmap(trip))(keys)
    state, moved, adapted, info, (theta, predicted, latent) = both
    assert shapes(state) == shapes(moved) == shapes(adapted)
    assert shapes(theta) == shapes({key: jnp.broadcast_to(value, (2, *value.shape)) for key, value in start.items()})
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(both))
    assert all(value.shape == (2,) for value in info.stats.values())
    assert set(info.within) <= set(theta)
    assert predicted
    assert all(value.shape[0] == 2 for value in latent.values())
    assert not np.array_equal(jax.tree.leaves(moved)[0][0], jax.tree.leaves(moved)[0][1]), "the key is not used"
    again = jax.jit(jax.vmap(trip))(keys)
    jax.tree.map(np.testing.assert_array_equal, both, again)


def test_a_step_in_the_sampling_phase_keeps_what_was_tuned():
    kernel = augmentation()
    state = kernel.init(jax.random.key(0), {"p": jnp.array([0.4, 0.6])})
    moved, _ = jax.jit(lambda key: kernel.step(key, state))(jax.random.key(1))
    tuned = [(s.centred, s.non_centred, s.log_block, s.tuned) for s in (state, moved)]
    jax.tree.map(np.testing.assert_array_equal, *tuned)


@pytest.mark.parametrize("name", choose._ENGINES)
def test_every_engine_answers_with_a_reason(name):
    engine = choose.engine_named(name)
    assert isinstance(engine, Engine)
    assert engine.name == name
    assert isinstance(engine.exact, bool)
    foreign = nw.models.Normal(sd=1.0, column="z")
    for model in (MODEL, foreign):
        support = engine.supports(model, RELEASE)
        assert isinstance(support.ok, bool)
        assert len(support.reason.split()) >= 3
    assert not engine.supports(foreign, RELEASE).ok


def test_the_choice_names_every_engine_and_its_reason():
    choice = nw.explain(MODEL, RELEASE)
    assert choice.engine.exact
    assert choice.engine.name in choice.reason
    text = str(choice)
    assert all(candidate.engine.name in text and candidate.support.reason in text for candidate in choice.candidates)
    assert {candidate.engine.name for candidate in choice.candidates} == set(choose._ENGINES)


def test_an_engine_that_draws_independently_has_no_starting_values():
    class Direct(Engine):
        name = "direct"
        exact = True

        def supports(self, model, release):
            raise NotImplementedError

        def build(self, model, release, key) -> Sampler:
            raise NotImplementedError

    with pytest.raises(TypeError, match="draws independently and has no starting values"):
        Direct().start(toy.Toy(jnp.asarray(1.0)), jax.random.key(0))
