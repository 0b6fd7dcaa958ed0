"""Each private sampler against closed-form posteriors; its acceptance, its proposal and its sensitivities by themselves."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, ndtr

from noisewise.private import HMC, Barker, MinibatchPenalty, Penalty, targets
from noisewise.private.barker import CORRECTION_ERROR, batch_moments, draw_correction
from noisewise.private.clipping import clip_gradients, clip_ratios, unit_bits
from noisewise.private.hmc import Phase, split_mass, trajectory
from noisewise.private.mechanism import noisy, power_of_two
from noisewise.private.minibatch import joint_sensitivity, penalised_sum
from noisewise.private.penalty import Ratio, penalised, private_ratio
from noisewise.private.records import Table, draw_batch, make_table
from noisewise.private.sample import run, seeded_keys

CHAINS, SMALLEST = 300, 1e-4
RNG = np.random.default_rng(20)


def bent(n=40):
    """A small banana, its records, and a start far from its posterior."""
    target = targets.Banana(a=0.5, variances=[1.0, 1.0], prior_variance=10.0)
    records = {"x": np.array([0.5, 1.0]) + np.random.default_rng(3).normal(size=(n, 2))}
    return target, records


def final_states(method, target, records, iterations, seed, start=(1.0, 0.0), chains=CHAINS):
    n = len(next(iter(records.values())))
    where = jnp.broadcast_to(jnp.asarray(start, float), (chains, len(start)))
    draws, seen = run(
        method.ready(target, n), target, make_table(records), where, iterations, seeded_keys(seed), probe=True
    )
    return draws[:, -1], seen


def smallest_p_value(target, records, final):
    """KS of the final states of independent chains, in the coordinates where the posterior is normal and independent."""
    mean, variance = target.posterior(records)
    straight = np.asarray((target.straighten(jnp.asarray(final)) - mean) / jnp.sqrt(variance))
    return min(stats.kstest(column, "norm").pvalue for column in straight.T) * straight.shape[1]


def squared_discrepancy(u):
    """The U-statistic of MMD^2 to N(0, I) for the kernel exp(-|x-y|^2/2), whose integrals against normals are closed forms."""
    n, d = u.shape
    between = np.exp(-0.5 * np.sum((u[:, None] - u[None]) ** 2, axis=-1))
    cross = 2.0 ** (-d / 2) * np.exp(-0.25 * np.sum(u**2, axis=1))
    return (between.sum() - n) / (n * (n - 1)) - 2 * cross.mean() + 3.0 ** (-d / 2)


def excess(target, records, final):
    """The largest of: MMD^2 over its largest among 300 exact samples, first and second moments over four standard errors."""
    mean, variance = target.posterior(records)
    u = np.asarray((target.straighten(jnp.asarray(final)) - mean) / jnp.sqrt(variance))
    rng, n = np.random.default_rng(7), len(u)
    largest = max(squared_discrepancy(rng.normal(size=u.shape)) for _ in range(300))
    first = np.max(np.abs(u.mean(axis=0))) / (4 / math.sqrt(n))
    second = np.max(np.abs(u.T @ u / n - np.eye(u.shape[1]))) / (4 * math.sqrt(2 / n))
    return max(squared_discrepancy(u) / largest, first, second)


EXACT = {
    "all": Penalty(0.03, clip=25.0, proposal=0.12),
    "one": Penalty(0.03, clip=25.0, proposal=[0.2, 0.25], components="one"),
    "guided": Penalty(0.03, clip=25.0, proposal=0.2, components="guided"),
    "hmc dense": HMC(
        0.01,
        gradient_noise=0.02,
        clip=25.0,
        gradient_clip=25.0,
        step=0.6,
        leapfrog=3,
        mass=[[60.0, 15.0], [15.0, 40.0]],
    ),
    "hmc, gradients nearly all clipped": HMC(
        0.01, gradient_noise=0.05, clip=25.0, gradient_clip=0.3, step=0.08, leapfrog=3, mass=[1.0, 2.0], jitter=0.3
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_each_sampler_reaches_the_closed_form_posterior(name):
    target, records = bent()
    final, seen = final_states(EXACT[name], target, records, 250, seed=5)
    assert np.max(seen["clip_fraction"]) == 0
    assert 0.1 < np.mean(seen["accepted"]) < 0.95
    if "clipped" in name:
        assert np.mean(seen["gradient_clip_fraction"]) > 0.9
    assert smallest_p_value(target, records, final) > SMALLEST
    assert excess(target, records, final) < 1


class Unpenalised(Penalty):
    """A wrong sampler: takes the noisy ratio for the ratio."""

    def step(self, key, state, target, table, *, probe=False):
        moving, releasing, deciding = jax.random.split(key, 3)
        new = state.theta + self.proposal * jax.random.normal(moving, state.theta.shape)
        ratio = private_ratio(releasing, state.theta, new, target, table, self, probe=probe)
        log_ratio = ratio.value + target.log_prior(new) - target.log_prior(state.theta)
        accepted = penalised(deciding, log_ratio, jnp.zeros(()))
        return state._replace(theta=jnp.where(accepted, new, state.theta)), {"accepted": accepted} | ratio.probe

    def ready(self, target, n):
        made = super().ready(target, n)
        return Unpenalised(made.noise, clip=made.clip, proposal=made.proposal)


def test_a_sampler_without_the_penalty_is_seen_to_be_wrong():
    target, records = bent()
    final, _ = final_states(Unpenalised(0.05, clip=25.0, proposal=0.12), target, records, 250, seed=5)
    assert smallest_p_value(target, records, final) < 1e-6
    assert excess(target, records, final) > 2


def test_clipped_ratios_bias_the_posterior_and_the_probe_says_so():
    target, records = bent()
    final, seen = final_states(Penalty(0.05, clip=0.8, proposal=0.12), target, records, 250, seed=5)
    assert np.mean(seen["clip_fraction"]) > 0.2
    assert smallest_p_value(target, records, final) < 1e-3


def straight(n=2000, temper=0.04):
    """A tempered Gaussian (a banana with a = 0), worth 80 of its 2000 records."""
    target = targets.Banana(a=0.0, variances=[1.0, 1.0], prior_variance=10.0, temper=temper)
    return target, {"x": np.array([0.5, 1.0]) + np.random.default_rng(4).normal(size=(n, 2))}


BATCHED = {
    "minibatch": MinibatchPenalty(0.02, batch=100, clip=6.0, proposal=0.08, components="guided"),
    "barker": Barker(batch=100, proposal=0.03),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batch_samplers_reach_the_tempered_posterior(name):
    target, records = straight()
    final, seen = final_states(BATCHED[name], target, records, 300, seed=6, start=(0.7, 0.8))
    assert np.mean(seen["clip_fraction"]) < 0.02
    assert smallest_p_value(target, records, final) > SMALLEST
    untempered = eqx.tree_at(lambda t: t.temper, target, jnp.asarray(0.12))
    assert smallest_p_value(untempered, records, final) < 1e-6  # the twin: another temper is told apart


@pytest.mark.parametrize("sigma", [0.5, 1.5, 3.0])
def test_penalty_acceptance_satisfies_detailed_balance(sigma):
    """a(l) = Phi(l/sigma - sigma/2) + e^l Phi(-l/sigma - sigma/2), so a(l) = e^l a(-l); and the code has this a."""

    def exact(ratio):
        return ndtr(ratio / sigma - sigma / 2) + math.exp(ratio) * ndtr(-ratio / sigma - sigma / 2)

    keys = jax.random.split(jax.random.key(1), 200_000)

    def accepts(key, ratio, penalty):
        one, two = jax.random.split(key)
        released = noisy(one, jnp.asarray(ratio / sigma * 2.0**20), jnp.asarray(2.0**20))
        unit = sigma / 2.0**20
        return penalised(two, unit * released.value, penalty * unit**2 * released.variance)

    found = jax.jit(jax.vmap(accepts, in_axes=(0, None, None)))
    for ratio in (-1.0, 0.0, 2.0):
        assert exact(ratio) == pytest.approx(math.exp(ratio) * exact(-ratio), rel=1e-12)
        rate = float(jnp.mean(found(keys, ratio, 1.0)))
        error = math.sqrt(exact(ratio) * (1 - exact(ratio)) / len(keys))
        assert abs(rate - exact(ratio)) < 4 * error
    assert abs(float(jnp.mean(found(keys, -1.0, 0.5))) - exact(-1.0)) > 10 * error  # half the penalty is seen


def test_hmc_proposal_is_reversible_to_machine_precision_given_its_noise():
    target, records = bent()
    noises = jnp.asarray(RNG.normal(size=(6, 2)))
    for mass in (jnp.array([1.0, 2.0]), jnp.array([[2.0, 0.5], [0.5, 1.0]])):

        def gradient(noise):
            def at(theta, index):
                clipped = (
                    jnp.sum(clip_gradients(target.gradients(theta, records), jnp.asarray(0.7), 40), axis=0) * 2.0**-40
                )
                return 0.7 * clipped + noise[index], jnp.zeros(())

            return at

        start = Phase(jnp.array([0.3, 0.4]), jnp.array([1.0, -0.7]))
        end, _ = trajectory(start, gradient(noises), jnp.asarray(0.05), split_mass(mass), 5)
        back, _ = trajectory(end, gradient(noises[::-1]), jnp.asarray(0.05), split_mass(mass), 5)
        assert np.allclose(back.theta, start.theta, rtol=0, atol=1e-13)
        assert np.allclose(back.momentum, start.momentum, rtol=0, atol=1e-13)
        assert float(jnp.max(jnp.abs(end.theta - start.theta))) > 0.1
        fresh, _ = trajectory(end, gradient(noises), jnp.asarray(0.05), split_mass(mass), 5)
        assert float(jnp.max(jnp.abs(fresh.theta - start.theta))) > 1e-3  # the twin: the noises in the wrong order


def geweke(method, replicates=1000, n=15, sweeps=20):
    """Theta from the prior, records given theta, then the kernel: theta must have the prior's law still."""
    target = targets.Banana(a=0.3, variances=[1.0, 2.0], prior_variance=1.0)
    method = method.ready(target, n)

    def one(key):
        first, second, third = jax.random.split(key, 3)
        straight_theta = jax.random.normal(first, (2,))
        noise = jnp.array([1.0, math.sqrt(2.0)]) * jax.random.normal(second, (n, 2))
        table = Table({"x": straight_theta + noise}, n, n)

        def sweep(state, key):
            return method.step(key, state, target, table)[0], None

        state = jax.lax.scan(sweep, method.init(target.bend(straight_theta)), jax.random.split(third, sweeps))[0]
        return target.straighten(state.theta), straight_theta

    final, began = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(8), replicates))
    assert float(jnp.mean(jnp.any(jnp.abs(final - began) > 1e-9, axis=-1))) > 0.8
    return min(stats.kstest(np.asarray(column), "norm").pvalue for column in final.T)


@pytest.mark.parametrize("name", ["all", "hmc"])
def test_prior_records_kernel_leaves_the_prior(name):
    settings = {
        "all": Penalty(0.02, clip=20.0, proposal=0.3),
        "hmc": HMC(0.02, gradient_noise=0.05, clip=20.0, gradient_clip=3.0, step=0.1, leapfrog=3),
    }
    assert geweke(settings[name]) > SMALLEST


def test_prior_records_wrong_kernel_leaves_another_law():
    assert geweke(Unpenalised(0.1, clip=20.0, proposal=0.6)) < 1e-4


def test_barker_correction_makes_normal_noise_logistic_to_its_stated_error():
    draws = np.asarray(jax.jit(jax.vmap(draw_correction))(jax.random.split(jax.random.key(3), 200_000)))
    x = np.linspace(-8, 8, 33)
    smooth = np.array([np.mean(ndtr((value - draws) / math.sqrt(2))) for value in x])
    error = np.array([np.std(ndtr((value - draws) / math.sqrt(2))) for value in x]) / math.sqrt(len(draws))
    assert np.all(np.abs(smooth - expit(x)) < CORRECTION_ERROR + 4 * error)
    assert np.max(np.abs(ndtr(x / math.sqrt(2)) - expit(x))) > 20 * CORRECTION_ERROR  # without the correction


def test_barker_correction_has_the_error_it_states_and_its_script_finds_no_better_one():
    from noisewise.private import barker, barker_fit

    places, weights = (np.array(barker._FITTED[name]) for name in ("places", "weights"))
    assert np.all(weights > 0)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    x = np.linspace(-30, 30, 60_001)
    law = np.zeros_like(x)
    for place, weight in zip(places, weights, strict=True):
        law += weight * (stats.norm.cdf(x, place, math.sqrt(2)) + stats.norm.cdf(x, -place, math.sqrt(2))) / 2
    assert np.max(np.abs(law - expit(x))) == pytest.approx(CORRECTION_ERROR, rel=1e-3)
    _, least = barker_fit.fit(np.linspace(0, 16, 161), np.linspace(0, 25, 501))
    assert pytest.approx(least, rel=0.02) == CORRECTION_ERROR


def test_sum_sensitivities_are_exact_over_pairs_of_records():
    n, bits = 7, unit_bits(7)
    ratios = RNG.normal(size=(2000, n)) * 3
    swapped = ratios.copy()
    swapped[:, 0] = RNG.normal(size=2000) * 30
    bound = jnp.asarray(1.7)

    def totals(values):
        return np.asarray(jax.vmap(lambda v: jnp.sum(clip_ratios(v, bound, bits)))(jnp.asarray(values)))

    change = np.abs(totals(ratios) - totals(swapped))
    assert np.max(change) <= 2.0 ** (bits + 1)
    extreme = np.zeros((2, n))
    extreme[:, 0] = (50.0, -50.0)
    assert np.abs(np.diff(totals(extreme)))[0] == 2.0 ** (bits + 1)
    assert np.max(change) > 2.0**bits  # half the sensitivity would be exceeded

    def vectors(values):
        return np.asarray(jax.vmap(lambda v: jnp.sum(clip_gradients(v, bound, bits), axis=0))(jnp.asarray(values)))

    gradients = RNG.normal(size=(4000, n, 3)) * 3
    other = gradients.copy()
    other[:, 0] = -gradients[:, 0] * RNG.uniform(0.5, 2, (4000, 1))
    length = np.linalg.norm(vectors(gradients) - vectors(other), axis=1)
    assert np.max(length) <= 2.0 ** (bits + 1)
    assert np.max(length) > 1.999 * 2.0**bits


@pytest.mark.parametrize("most", [0.05, 1.0, 6.0])
def test_minibatch_sensitivity_is_attained_and_never_exceeded(most):
    batch, bound = 5, jnp.asarray(1.0)

    def value(ratios):
        return np.asarray(jax.vmap(lambda r: penalised_sum(r, bound, jnp.asarray(most)))(jnp.asarray(ratios)))

    exact = float(joint_sensitivity(jnp.asarray(most), batch))
    ratios = np.sign(RNG.normal(size=(20_000, batch))) * RNG.uniform(0.5, 1.0, (20_000, batch)) ** 0.1
    other = ratios.copy()
    other[:, 0] = RNG.uniform(-1, 1, 20_000)
    assert np.max(np.abs(value(ratios) - value(other))) <= exact * (1 + 1e-6)
    pair = np.ones((2, batch))
    pair[1, 0] = -1
    assert abs(np.diff(value(pair))[0]) == pytest.approx(exact, rel=1e-6)
    thesis = 2 * most + 3 * (batch - 1) / batch * most**2
    assert exact < thesis <= 1.5 * exact


def test_barker_moments_stay_in_the_bounds_its_accounting_uses():
    batch, bound = 6, jnp.asarray(0.3)

    def moments(ratios):
        return [np.asarray(part) for part in jax.vmap(lambda r: batch_moments(r, bound))(jnp.asarray(ratios))]

    ratios = np.sign(RNG.normal(size=(20_000, batch))) * RNG.uniform(0, 1, (20_000, batch)) ** 0.1
    other = ratios.copy()
    other[:, 0] = RNG.uniform(-1, 1, 20_000)
    (value, spread), (value2, spread2) = moments(ratios), moments(other)
    assert np.max(np.abs(value - value2)) <= 2 / math.sqrt(batch) * (1 + 1e-9)
    assert np.max(np.abs(spread - spread2)) <= 4 * (batch - 1) / batch**2
    assert np.max(spread) <= 1
    scaled = np.clip(ratios[0] / 0.3, -1, 1)
    assert value[0] == pytest.approx(scaled.sum() / math.sqrt(batch), abs=1e-6)
    assert spread[0] == pytest.approx(np.var(scaled), abs=1e-6)


def test_a_record_that_is_not_a_number_moves_nothing():
    ratios = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.5])
    assert [float(unit) for unit in clip_ratios(ratios, jnp.asarray(1.0), 4)] == [0, 16, -16, 8]
    assert not np.any(np.isnan(clip_ratios(ratios, jnp.asarray(0.0), 4)))
    gradients = jnp.array([[jnp.nan, 1.0], [jnp.inf, 0.0], [1e200, 1e200], [3.0, 4.0]])
    units = np.asarray(clip_gradients(gradients, jnp.asarray(1.0), 10))
    assert np.all(units[:2] == 0)
    assert np.all(np.isfinite(units))
    assert np.allclose(units[3], [614, 819])


@pytest.mark.parametrize("bound", [1e-180, 1e-9, 1.0, 1e9])
def test_no_gradient_passes_its_bound_however_small_or_large(bound):
    """A bound of 1e-180 is there because the square of a gradient of 1e-170 is zero in floating point: it passed unclipped once."""
    directions = RNG.normal(size=(400, 3))
    sizes = bound * 10.0 ** RNG.uniform(-3, 12, size=(400, 1))
    units = np.asarray(clip_gradients(jnp.asarray(directions * sizes), jnp.asarray(bound), 40))
    assert np.max(np.linalg.norm(units, axis=1)) <= 2.0**40
    assert np.max(np.linalg.norm(units, axis=1)) > (1 - 1e-8) * 2.0**40


def test_released_values_lie_on_a_public_grid_with_the_stated_variance():
    scale = jnp.asarray(3e6)
    grid = float(power_of_two(scale / 1024))
    assert math.log2(grid) == int(math.log2(grid)) == math.floor(math.log2(3e6 / 1024))
    totals = jnp.array([12.0, 12345.0])
    out = np.stack([noisy(key, totals, scale).value for key in jax.random.split(jax.random.key(2), 4000)])
    assert np.all(out / grid == np.round(out / grid))
    variance = float(noisy(jax.random.key(2), totals, scale).variance)
    assert np.var(out[:, 0]) == pytest.approx(variance, rel=4 * math.sqrt(2 / 4000))
    assert abs(np.mean(out[:, 1]) - 12345) < 4 * 3e6 / math.sqrt(4000)


@pytest.mark.parametrize(("n", "batch"), [(60, 6), (9, 4)])
def test_batches_are_uniform_without_replacement(n, batch):
    many = 40_000
    rows = np.sort(
        np.asarray(jax.jit(jax.vmap(lambda k: draw_batch(k, n, batch)))(jax.random.split(jax.random.key(5), many)))
    )
    assert np.all(np.diff(rows, axis=1) > 0)
    singles = np.bincount(rows.ravel(), minlength=n)
    q = batch / n
    # inclusion counts have variance many q (1-q), correlated so that the chi-square has n - 1 degrees of freedom
    chi = np.sum((singles - many * q) ** 2) / (many * q * (1 - q)) * (n - 1) / n
    assert stats.chi2.sf(chi, n - 1) > SMALLEST
    together = np.mean(np.any(rows == 0, axis=1) & np.any(rows == 1, axis=1))
    wanted = batch * (batch - 1) / (n * (n - 1))
    assert abs(together - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / many)


def test_ratio_is_a_named_tuple_of_value_variance_and_probe():
    target, records = bent()
    method = EXACT["all"].ready(target, 40)
    ratio = private_ratio(
        jax.random.key(0), jnp.zeros(2), jnp.ones(2) * 0.01, target, make_table(records), method, probe=True
    )
    assert isinstance(ratio, Ratio)
    exact = np.sum(target.log_likelihoods(jnp.ones(2) * 0.01, records) - target.log_likelihoods(jnp.zeros(2), records))
    assert float(ratio.probe["exact_ratio"]) == pytest.approx(float(exact), abs=1e-9)
    sigma = 0.03 * math.sqrt(40) * 2 * 25 * 0.01 * math.sqrt(2)
    assert float(ratio.variance) == pytest.approx(sigma**2, rel=1e-6)
