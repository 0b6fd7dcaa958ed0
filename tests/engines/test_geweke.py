"""Joint tests of the augmentation kernel (Geweke 2004), of which ``nw.calibration.geweke`` is the test for users."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisewise as nw
from noisewise.engines.augmentation import AugmentationKernel
from noisewise.engines.surrogate import Surrogate

COPIES = 20_000
FEWER = 5_000
"""For discrete records, whose innovations cost more."""
CYCLES = 4


class Released(nw.models.Normal):
    """Normal records whose conjugate draw believes that the prior is half as wide."""

    def update(self, key, theta, records):
        return nw.models.Normal((self.prior_mean, 0.5 * self.prior_sd), variance_prior=self.variance).update(
            key, theta, records
        )


class WithoutJacobian(nw.models.Normal):
    """Normal records whose density in unconstrained space forgets the Jacobian of the variance."""

    def log_prior_free(self, free):
        return self.log_prior(self.constrain(free))


NORMAL = {"mean_prior": (0.5, 1.0), "variance_prior": (3.0, 2.0)}
CLAMPED = nw.queries.Moments({"x": nw.Column(-1, 2)}, [{"x": 1}, {"x": 2}])
COUNT = nw.queries.Moments({"x": nw.Column(0, 4)}, [{"x": 1}])
LEVELS_OF_A_COIN = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
LEVELS = nw.queries.Counts(levels={"x": 3}, tables=[("x",)])


def drift(key, theta, records):
    """A record proposal that is not the model's: a step to the right more often than to the left, with its ratio."""
    step_key, sign_key = jax.random.split(key)
    x, sd = records["x"], jnp.sqrt(theta["variance"])
    right = jax.random.bernoulli(sign_key, 0.7, x.shape)
    proposed = x + jnp.where(right, 1.0, -1.0) * jax.random.exponential(step_key, x.shape)
    law = 0.5 * (((x - theta["mean"]) / sd) ** 2 - ((proposed - theta["mean"]) / sd) ** 2)
    return {"x": proposed}, law + jnp.where(right, jnp.log(0.3 / 0.7), jnp.log(0.7 / 0.3))


def drift_without_ratio(key, theta, records):
    return drift(key, theta, records)[0], jnp.zeros(records["x"].shape)


def kernel_of(model, query, noise, **options):
    settings = {
        "record_proposal": None,
        "theta_move": "update",
        "interweave": True,
        "move": "random_walk",
        "moves": 2,
        "window": 3,
        "block": 1,
        "n": 3,
    } | options
    release = nw.Release([nw.Measurement(query, noise, np.zeros(query.size))], n=3)
    size = model.free_size
    return AugmentationKernel(
        model=model, release=release, surrogate=Surrogate(jnp.zeros(size), jnp.eye(size)), **settings
    )


def joint_test(kernel):
    copies = FEWER if kernel.release.measurements[0].noise.discrete else COPIES
    return nw.calibration.geweke(
        kernel.model, kernel.release, method=kernel, copies=copies, cycles=CYCLES, random_seed=2
    )


KERNELS = {
    "normal, Gibbs update, random walk": lambda: kernel_of(
        nw.models.Normal(**NORMAL), CLAMPED, nw.noise.Laplace(np.array([0.5, 1.0]))
    ),
    "normal, jump and walk": lambda: kernel_of(
        nw.models.Normal(**NORMAL), CLAMPED, nw.noise.Laplace(np.array([0.5, 1.0])), jump=True
    ),
    "normal, Hamiltonian, elliptical slice, part of the records": lambda: kernel_of(
        nw.models.Normal(**NORMAL), CLAMPED, nw.noise.Gaussian(0.7), theta_move="hmc", move="elliptical_slice", window=2
    ),
    "normal, own proposal, random walk without interweaving": lambda: kernel_of(
        nw.models.Normal(**NORMAL),
        CLAMPED,
        nw.noise.Laplace(0.8),
        theta_move="random_walk",
        interweave=False,
        record_proposal=drift,
    ),
    "Poisson, conjugate, random walk": lambda: kernel_of(
        nw.models.Poisson(2.0, 1.0), COUNT, nw.noise.DiscreteLaplace(1.5), block=2
    ),
    "categorical, conjugate, elliptical slice": lambda: kernel_of(
        nw.models.Categorical([1.0, 2.0, 1.5]), LEVELS, nw.noise.DiscreteGaussian(1.0), move="elliptical_slice"
    ),
}
WRONG = {
    "an update with the wrong prior": lambda: kernel_of(
        Released(**NORMAL), CLAMPED, nw.noise.Laplace(np.array([0.5, 1.0]))
    ),
    "a proposal without its ratio": lambda: kernel_of(
        nw.models.Normal(**NORMAL),
        CLAMPED,
        nw.noise.Laplace(0.8),
        theta_move="random_walk",
        interweave=False,
        record_proposal=drift_without_ratio,
    ),
    "a non-centred move without the Jacobian": lambda: kernel_of(
        WithoutJacobian(**NORMAL), CLAMPED, nw.noise.Laplace(np.array([0.5, 1.0]))
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_keeps_the_joint_law(name):
    found = joint_test(KERNELS[name]())
    assert np.max(np.abs(found.z)) < 4.5, found
    assert found.passed


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_breaks_the_joint_law(name):
    found = joint_test(WRONG[name]())
    assert np.max(np.abs(found.z)) > 8
    assert not found.passed
    assert "does NOT keep" in str(found)


def test_a_kernel_that_imputes_nothing_has_no_joint_test():
    coin = nw.models.Bernoulli()
    release = nw.Release([nw.Measurement(LEVELS_OF_A_COIN, nw.noise.Laplace(1.0), [3.0, 2.0])], n=5)
    with pytest.raises(ValueError, match=r"nw\.calibration\.sbc"):
        nw.calibration.geweke(coin, release, method="counts")
