"""Weighted densities by plain summation and quadrature in NumPy, and tests of uniformity: nothing here comes from the library."""

import numpy as np
from scipy import stats

WEIGHTS = {
    "normal": lambda y, p: -0.5 * (y - p["mu"]) ** 2 / p["sigma2"],
    "lognormal": lambda y, p: np.where(
        y > 0,
        -np.log(np.where(y > 0, y, 1)) - 0.5 * (np.log(np.where(y > 0, y, 1)) - p["mu"]) ** 2 / p["sigma2"],
        -np.inf,
    ),
    "log-normal, transformed": lambda y, p: np.where(
        y > 0, -0.5 * (np.log(np.where(y > 0, y, 1)) - p["mu"]) ** 2 / p["sigma2"], -np.inf
    ),
    "student": lambda y, p: -0.5 * (p["nu"] + 1) * np.log1p((y - p["mu"]) ** 2 / (p["nu"] * p["sigma2"])),
    "cubic": lambda y, p: -(np.abs((y - p["mu"]) / np.sqrt(p["sigma2"])) ** 3),
}
BASES = {
    "laplace": lambda x, s: -np.abs(x) / s,
    "gaussian": lambda x, s: -0.5 * (x / s) ** 2,
    "discrete laplace": lambda x, s: -np.abs(x) / s,
    "discrete gaussian": lambda x, s: -0.5 * (x / s) ** 2,
    "uniform": lambda x, s: np.where(np.abs(x - 1.0) < s, 0.0, -np.inf),
}
LATTICE = np.arange(-200_000.0, 1_060_001.0)


def log_density(weight, base, parameters, x):
    """The unnormalised target at base coordinate x; parameters holds mu, sigma2, nu, scale and released (None: no release)."""
    z = parameters["released"]
    y = x if z is None else z - x
    return WEIGHTS[weight](y, parameters) + BASES[base](x, parameters["scale"])


def _points(weight, parameters):
    mu, sigma, s = parameters["mu"], np.sqrt(parameters["sigma2"]), parameters["scale"]
    far = np.concatenate([-np.geomspace(1e-6, 1e9, 20_000)[::-1], [0], np.geomspace(1e-6, 1e9, 20_000)])
    near = np.linspace(-45, 45, 30_001)
    around_base = np.concatenate([s * near, s * 2000 * near / 45])
    if weight.startswith("log"):
        y = np.exp(np.concatenate([mu + sigma * near, mu - sigma**2 + sigma * near, np.linspace(-40, 30, 20_001)]))
        y = y[(y > 1e-18) & (y < 1e12)]
    else:
        y = np.concatenate(
            [mu + sigma * near, mu + sigma * far, mu + sigma**2 / s + sigma * near, mu - sigma**2 / s + sigma * near]
        )
    z = parameters["released"]
    x = np.concatenate([around_base, s * far, y if z is None else z - y])
    return np.unique(x)


def cdf(weight, base, parameters, draws, seed=0):
    """Uniform variables if the draws follow the law: the distribution function, randomised over the mass of each integer."""
    if base.startswith("discrete"):
        log_mass = log_density(weight, base, parameters, LATTICE)
        keep = log_mass > log_mass.max() - 60
        mass = np.exp(log_mass[keep] - log_mass.max())
        support, reached = LATTICE[keep], np.cumsum(mass) / mass.sum()
        place = np.searchsorted(support, draws)
        assert np.all(place < support.size)
        assert np.all(support[place] == draws)
        before = np.concatenate([[0], reached])[place]
        return before + np.random.default_rng(seed).random(draws.shape) * (reached[place] - before)
    x = _points(weight, parameters)
    log_f = log_density(weight, base, parameters, x)
    x = x[log_f > log_f.max() - 60]
    if base == "uniform":
        x = np.concatenate([[1.0 - parameters["scale"]], x, [1.0 + parameters["scale"]]])
    fractions = np.linspace(0, 1, 9)[:-1]
    x = np.append((x[:-1, None] + np.diff(x)[:, None] * fractions).ravel(), x[-1])
    log_f = log_density(weight, base, parameters, x)
    f = np.exp(log_f - log_f.max())
    if base == "uniform":
        f[0], f[-1] = f[1], f[-2]
    area = np.concatenate([[0], np.cumsum(0.5 * (f[1:] + f[:-1]) * np.diff(x))])
    return np.interp(draws, x, area / area[-1])


def p_value(uniforms, bins=25):
    """Chi-square test of uniformity on equal bins, over all the entries."""
    counts = np.bincount(np.minimum((np.asarray(uniforms).ravel() * bins).astype(int), bins - 1), minlength=bins)
    return stats.chisquare(counts).pvalue


def random_parameters(rng, count):
    """Parameters over the wide ranges the samplers must serve."""
    rho = 10 ** rng.uniform(-3, np.log10(0.9), count)
    small, large = rng.uniform(-1e3, 1e3, count), 10 ** rng.uniform(0, 6, count)
    return {
        "mu": rng.uniform(-3, 12, count),
        "sigma2": 10 ** rng.uniform(-2, 1, count),
        "nu": np.exp(rng.uniform(0, np.log(30), count)),
        "scale": -1 / np.log1p(-rho),
        "released": np.round(np.where(rng.random(count) < 0.5, small, large)),
    }
