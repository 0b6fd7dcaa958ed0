"""Posteriors of noisy microdata against slow implementations in NumPy that share nothing with the engine but the model.

The lognormal regression has a Gibbs sampler of its own: y by its exact mass function on a window of integers, noisy covariates as a
mixture of two truncated normals. The others are integrals on grids, record by record.
"""

import numpy as np
import pytest
from scipy import special, stats

import noisewise as nw

RNG = np.random.default_rng(20)
Records, noise = nw.queries.Records, nw.noise


def released(query, law, value, n):
    return nw.Release(measurements=[nw.Measurement(query, law, value)], n=n)


def batch_errors(draws, batches=40):
    means = np.stack([part.mean(axis=0) for part in np.array_split(draws, batches)])
    return means.std(axis=0, ddof=1) / np.sqrt(batches)


def fitted(model, release, **settings):
    """Draws by name, one row a draw, from the engine that is chosen for such a release."""
    found = nw.sample(
        model, release, **{"draws": 1500, "tune": 500, "chains": 2, "random_seed": 4, "progressbar": False, **settings}
    )
    assert found.attrs["noisewise_method"] == "microdata"
    return {
        name: values.values.reshape(-1, *values.shape[2:]) for name, values in found["posterior"].ds.data_vars.items()
    }


def expect(draws, mean, sd, tolerance=4.5):
    """Means and standard deviations within Monte-Carlo error."""
    error = batch_errors(draws)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < tolerance * error)
    deviation = np.sqrt(batch_errors((draws - mean) ** 2) ** 2 + 1e-30) / (2 * np.asarray(sd))
    assert np.all(np.abs(draws.std(axis=0) - sd) < tolerance * deviation + 0.02 * np.asarray(sd))


def slow_lognormal(z, told, public, rho, scale, missing, iterations):
    """Algorithm 2 of Raim (2021) with missing responses; the last column of the result is the variance."""
    rng = np.random.default_rng(8)
    window = np.arange(-250.0, 251.0)
    grid = z[:, None] - window
    safe = np.where(grid > 0, grid, 1.0)
    log_noise = np.log1p(-rho)[:, None] * np.abs(window)
    x, beta, variance, kept = np.column_stack([told, public]), np.zeros(2), 1.0, []
    for _ in range(iterations):
        line = x @ beta
        log_mass = -0.5 * (np.log(safe) - line[:, None]) ** 2 / variance - np.log(safe) + log_noise
        mass = np.where(grid > 0, np.exp(log_mass - log_mass.max(axis=1, keepdims=True)), 0.0)
        reached = np.cumsum(mass, axis=1)
        place = np.sum(reached < rng.random(z.size)[:, None] * reached[:, -1:], axis=1)
        log_y = np.log(grid[np.arange(z.size), place])
        log_y = np.where(missing, line + np.sqrt(variance) * rng.normal(size=z.size), log_y)
        centre, spread = (
            (log_y - x[:, 1] * beta[1]) / beta[0] if beta[0] else told,
            np.sqrt(variance) / abs(beta[0] or 1),
        )
        shift = spread**2 / scale
        right, left = (told - centre + shift) / spread, (told - centre - shift) / spread
        log_right = (told - centre) / scale + special.log_ndtr(-right)
        log_left = -(told - centre) / scale + special.log_ndtr(left)
        on_right = rng.random(z.size) < special.expit(log_right - log_left)
        tail = special.ndtri_exp(
            np.log(rng.random(z.size)) + np.where(on_right, special.log_ndtr(-right), special.log_ndtr(left))
        )
        x[:, 0] = np.where(on_right, centre - shift - spread * tail, centre + shift + spread * tail)
        precision = x.T @ x / variance + np.eye(2) / 100
        beta = rng.multivariate_normal(np.linalg.solve(precision, x.T @ log_y / variance), np.linalg.inv(precision))
        variance = stats.invgamma.rvs(
            2 + z.size / 2, scale=10 + 0.5 * np.sum((log_y - x @ beta) ** 2), random_state=rng
        )
        kept.append([*beta, variance])
    return np.array(kept)[iterations // 10 :]


def test_lognormal_regression_agrees_with_the_sampler_on_a_window_of_integers():
    n = 60
    x = RNG.normal(size=(n, 2))
    y = np.exp(x @ [2.0, -1.0] + 0.5 * RNG.normal(size=n))
    rho, scale = np.linspace(0.15, 0.6, n), np.linspace(0.1, 0.5, n)
    spread = -1 / np.log1p(-rho)
    z = y + np.floor(RNG.exponential(spread)) - np.floor(RNG.exponential(spread))
    told, missing = x[:, 0] + scale * RNG.laplace(size=n), np.arange(n) % 9 == 0
    release = released(
        Records(columns=("y", "x1"), public=("x2",), missing=True),
        {"y": noise.DiscreteLaplace(spread), "x1": noise.Laplace(scale)},
        {"y": np.where(missing, np.nan, z), "x1": told, "x2": x[:, 1]},
        n,
    )
    found = fitted(nw.models.LognormalRegression(("x1", "x2"), "y", noisy=("x1",)), release)
    ours = np.column_stack([found["beta"], found["variance"]])
    slow = slow_lognormal(z, told, x[:, 1], rho, scale, missing, 6000)
    error = np.sqrt(batch_errors(ours) ** 2 + batch_errors(slow) ** 2)
    assert np.max(np.abs(ours.mean(axis=0) - slow.mean(axis=0)) / error) < 4.5
    np.testing.assert_allclose(ours.std(axis=0), slow.std(axis=0), rtol=0.12)
    believed = slow_lognormal(z, told, x[:, 1], rho, 0.1 * scale, missing, 1000)
    assert np.max(np.abs(ours.mean(axis=0) - believed.mean(axis=0)) / error) > 8


def test_logistic_regression_agrees_with_quadrature_over_every_hidden_value():
    n, flip = 14, 0.2
    x = np.linspace(-2, 2, n)
    y = (RNG.random(n) < special.expit(1.5 * x)).astype(float)
    scale = np.linspace(0.2, 0.8, n)
    told, said = x + scale * RNG.laplace(size=n), np.where(RNG.random(n) < flip, 1 - y, y)
    release = released(
        Records(columns=("y", "x")),
        {"y": noise.RandomisedResponse(flip), "x": noise.Laplace(scale)},
        {"y": said, "x": told},
        n,
    )
    found = fitted(nw.models.LogisticRegression(("x",), "y", noisy=("x",), coef_scale=1.5, intercept=False), release)
    grid, step = np.linspace(-7, 7, 701), np.linspace(-25, 25, 2001)
    log_post = -0.5 * (grid / 1.5) ** 2
    for i in range(n):
        one = special.expit(np.multiply.outer(grid, told[i] + scale[i] * step))
        seen = np.where(said[i] == 1, one * (1 - flip) + (1 - one) * flip, (1 - one) * (1 - flip) + one * flip)
        log_post += np.log(seen @ np.exp(-np.abs(step)))
    weight = np.exp(log_post - log_post.max())
    weight /= weight.sum()
    mean = weight @ grid
    expect(found["beta"][:, 0], mean, np.sqrt(weight @ (grid - mean) ** 2))


def normal_laplace(z, mean, variance, scale):
    """The log density of a normal variable plus Laplace noise."""
    sd = np.sqrt(variance)
    shift = sd / scale
    t = (z - mean) / sd
    both = np.logaddexp(-t * shift + special.log_ndtr(t - shift), t * shift + special.log_ndtr(-t - shift))
    return both + 0.5 * shift**2 - np.log(2 * scale)


def test_small_areas_agree_with_quadrature_and_so_do_their_means():
    n = 8
    x, errors, scale = RNG.normal(size=n), np.linspace(0.3, 1.2, n), np.linspace(0.5, 1.5, n)
    z = 1.3 * x + 0.7 * RNG.normal(size=n) + errors * RNG.normal(size=n) + scale * RNG.laplace(size=n)
    release = released(
        Records(columns=("y",), public=("x", "se")), {"y": noise.Laplace(scale)}, {"y": z, "x": x, "se": errors}, n
    )
    model = nw.models.FayHerriot(("x",), "y", coef_scale=2.0, variance_prior=(3, 2), intercept=False)
    found = fitted(model, release)
    beta, log_variance = np.linspace(-6, 8, 281), np.linspace(-4, 5, 181)
    b, v = (part[..., None] for part in np.meshgrid(beta, np.exp(log_variance), indexing="ij"))
    log_post = np.sum(normal_laplace(z, b * x, v + errors**2, scale), axis=-1) - 0.5 * (b[..., 0] / 2) ** 2
    log_post += stats.invgamma.logpdf(v[..., 0], 3, scale=2) + np.log(v[..., 0])
    weight = np.exp(log_post - log_post.max())
    weight /= weight.sum()
    for name, values in (("beta", b[..., 0]), ("variance", v[..., 0])):
        mean = np.sum(weight * values)
        expect(found[name].reshape(-1), mean, np.sqrt(np.sum(weight * (values - mean) ** 2)))
    # E[m | z] by Tweedie's formula: m is normal, z = m + normal + Laplace
    moved = 1e-4
    total = v + errors**2
    slope = normal_laplace(z + moved, b * x, total, scale) - normal_laplace(z - moved, b * x, total, scale)
    area = np.sum(weight[..., None] * (b * x - v * slope / (2 * moved)), axis=(0, 1))
    expect(found["area_mean"], area, found["area_mean"].std(axis=0))
    assert np.max(np.abs(area - z)) > 0.5


def test_normal_records_on_a_lattice_agree_with_the_sum_over_integers():
    n = 12
    x = 3 + 2 * RNG.normal(size=n)
    scale, missing = np.linspace(0.5, 3, n), np.arange(n) == 3
    z = x + np.floor(RNG.exponential(scale)) - np.floor(RNG.exponential(scale))
    release = released(
        Records(columns=("x",), missing=True),
        noise.DiscreteLaplace(scale[:, None]),
        np.where(missing, np.nan, z)[:, None],
        n,
    )
    found = fitted(nw.models.Normal(mean_prior=(0, 3), variance_prior=(3, 8)), release)
    mean, log_variance, k = np.linspace(-6, 12, 181), np.linspace(-2, 5, 141), np.arange(-90, 91)
    m, v = np.meshgrid(mean, np.exp(log_variance), indexing="ij")
    log_post = -0.5 * (m / 3) ** 2 + stats.invgamma.logpdf(v, 3, scale=8) + np.log(v)
    for i in np.flatnonzero(~missing):
        density = np.exp(-0.5 * (z[i] - k - m[..., None]) ** 2 / v[..., None]) / np.sqrt(v[..., None])
        log_post += np.log(density @ np.exp(-np.abs(k) / scale[i]))
    weight = np.exp(log_post - log_post.max())
    weight /= weight.sum()
    for name, values in (("mean", m), ("variance", v)):
        expected = np.sum(weight * values)
        expect(found[name], expected, np.sqrt(np.sum(weight * (values - expected) ** 2)))
    with pytest.raises(AssertionError):
        expect(found["mean"], expected + 0.5, 1.0)


def test_counts_behind_integer_noise_agree_with_the_sum_over_counts():
    scale = np.linspace(0.4, 4, 8)
    z = np.array([3.0, 6, -5, 4, np.nan, 8, 1, 11])
    query = Records(columns=("x",), missing=True)
    release = released(query, {"x": noise.DiscreteLaplace(scale)}, {"x": z}, 8)
    found = fitted(nw.models.Poisson(2, 1), release, draws=400, tune=150)
    rate, k = np.linspace(0.01, 20, 1500), np.arange(80)
    log_post = stats.gamma.logpdf(rate, 2)
    for value, b in zip(z[~np.isnan(z)], scale[~np.isnan(z)], strict=True):
        log_post += np.log(stats.poisson.pmf(k, rate[:, None]) @ np.exp(-np.abs(value - k) / b))
    weight = np.exp(log_post - log_post.max())
    mean = weight @ rate / weight.sum()
    sd = np.sqrt(weight @ (rate - mean) ** 2 / weight.sum())
    assert abs(found["rate"].mean() - mean) < 5 * batch_errors(found["rate"])
    np.testing.assert_allclose(found["rate"].std(), sd, rtol=0.2)
    assert abs(np.nanmean(z) - mean) > 5 * batch_errors(found["rate"])
