"""10,000 random wide cases over every pair of weight and base: no NaN, nothing off the support, and the law by sums and quadrature.

    python benchmarks/direct_wide.py [cases] [checked]

Parameters: released values -1e3 to 1e6, log-means -3 to 12, variances 0.01 to 10, rho 0.001 to 0.9, degrees of freedom 1 to
30. Every case is drawn 64 times by each exact method; ``checked`` of them are compared with the law summed over the integers or
integrated (chi-square of the pooled distribution function, and the smallest Kolmogorov-Smirnov p-value beside the number of cases).
``custom`` is a Laplace base given by its distribution and quantile functions, ``cubic`` a user's weight of unknown mode and roots.
"""

import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import noisewise as nw

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "direct"))
from direct_reference import cdf, p_value, random_parameters

DRAWS = 64


def cube(y, parameters):
    return -(jnp.abs((y - parameters[0]) / parameters[1]) ** 3)


def laplace_cdf(x, scale):
    return jnp.where(x < 0, 0.5 * jnp.exp(jnp.minimum(x, 0) / scale), 1 - 0.5 * jnp.exp(-jnp.maximum(x, 0) / scale))


def laplace_quantile(p, scale):
    return jnp.where(p < 0.5, scale * jnp.log(2 * p), -scale * jnp.log(2 * (1 - p)))


WEIGHTS = {
    "normal": lambda p: nw.direct.NormalWeight(p["mu"], p["sigma2"]),
    "lognormal": lambda p: nw.direct.LognormalWeight(p["mu"], p["sigma2"]),
    "log-normal, transformed": lambda p: nw.direct.TransformedNormalWeight(
        p["mu"], p["sigma2"], jnp.log, jnp.exp, lower=0.0
    ),
    "student": lambda p: nw.direct.StudentTWeight(p["nu"], p["mu"], p["sigma2"]),
    "cubic": lambda p: nw.direct.UnimodalWeight(cube, (jnp.asarray(p["mu"]), jnp.sqrt(p["sigma2"]))),
}
BASES = {
    "laplace": lambda p: nw.noise.Laplace(p["scale"]),
    "gaussian": lambda p: nw.noise.Gaussian(p["scale"]),
    "discrete laplace": lambda p: nw.noise.DiscreteLaplace(p["scale"]),
    "discrete gaussian": lambda p: nw.noise.DiscreteGaussian(p["scale"]),
    "uniform": lambda p: nw.direct.Uniform(1.0 - p["scale"], 1.0 + p["scale"]),
    "custom": lambda p: nw.direct.CustomBase(
        laplace_cdf,
        laplace_quantile,
        parameters=jnp.asarray(p["scale"]),
        survival=lambda x, scale: laplace_cdf(-x, scale),
        upper_quantile=lambda q, scale: -laplace_quantile(q, scale),
    ),
}


def parameters_of(weight: str, base: str, seed: int, cases: int) -> dict[str, np.ndarray]:
    p = random_parameters(np.random.default_rng(seed), cases)
    if base == "uniform":  # the latent value must be within reach of the interval
        p["released"] = np.exp(np.minimum(p["mu"], 6)) if weight.startswith("log") else p["mu"] + 1
    if base == "custom":  # a base known by its quantiles ends where a double does, 745 scales out
        far = 600 * p["scale"]
        p["released"] = np.clip(p["released"], -far, p["mu"] + far)
        if weight.startswith("log"):
            p["mu"] = np.minimum(p["mu"], 3)
    return p


def off_support(weight: str, base: str, p: dict[str, np.ndarray], draws: np.ndarray) -> int:
    off = np.zeros(draws.shape, dtype=bool)
    if base.startswith("discrete"):
        off |= draws != np.round(draws)
    if weight.startswith("log"):
        off |= p["released"] - draws <= 0
    if base == "uniform":
        off |= np.abs(draws - 1.0) > p["scale"]
    return int(off.sum())


def main(cases: int, checked: int) -> None:
    pairs = [(weight, base) for weight in WEIGHTS for base in BASES]
    print(f"{'weight':24} {'base':18} {'method':7} cases  NaN  off  p (law)  least p of checked  seconds")
    drawn = 0
    for number, (weight, base) in enumerate(pairs):
        count = cases // len(pairs) + (number < cases % len(pairs))
        p = parameters_of(weight, base, number, count)
        for method in ("exact", "strips") if base != "custom" else ("exact",):
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                law = WEIGHTS[weight](p), BASES[base](p)
                draws = np.asarray(
                    nw.direct.sample(jax.random.key(number), *law, DRAWS, released=p["released"], method=method)
                )
            seconds = time.perf_counter() - start
            uniforms = [
                cdf(
                    weight,
                    base.replace("custom", "laplace"),
                    {name: float(value[i]) for name, value in p.items()},
                    draws[:, i],
                    seed=i,
                )
                for i in range(0, count, max(1, count * len(pairs) // checked))
            ]
            least = min(stats.kstest(row, "uniform").pvalue for row in uniforms)
            print(
                f"{weight:24} {base:18} {method:7} {count:5} {np.isnan(draws).sum():4} {off_support(weight, base, p, draws):4} "
                f"{p_value(uniforms):8.3f} {least:12.1e} of {len(uniforms):3}  {seconds:.1f}",
                flush=True,
            )
        drawn += count
    print(f"{drawn} cases")


if __name__ == "__main__":
    arguments = [int(value) for value in sys.argv[1:]] + [10_000, 900][len(sys.argv) - 1 :]
    main(*arguments)
