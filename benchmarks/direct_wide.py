"""10,000 random wide cases of lognormal, normal and Student t weights: no NaN, nothing off the support, and the summed law "
"on a sample of them.

    python benchmarks/direct_wide.py [cases] [checked]

Parameters: released values -1e3 to 1e6, log-means -3 to 12, variances 0.01 to 10, rho 0.001 to 0.9, degrees of freedom 1 to
30. Every case is drawn 64 times; ``checked`` of them are compared with the law summed over the integers (chi-square of the
randomised distribution function, pooled).
"""

import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import noisewise as nw

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "direct"))
from direct_reference import cdf, p_value, random_parameters

DRAWS = 64
WEIGHTS = {
    "lognormal": lambda p: nw.direct.LognormalWeight(p["mu"], p["sigma2"]),
    "student": lambda p: nw.direct.StudentTWeight(p["nu"], p["mu"], p["sigma2"]),
    "normal": lambda p: nw.direct.NormalWeight(p["mu"], p["sigma2"]),
}
BASES = {"discrete laplace": nw.noise.DiscreteLaplace, "discrete gaussian": nw.noise.DiscreteGaussian}


def main(cases: int, checked: int) -> None:
    pairs = [(weight, base) for weight in WEIGHTS for base in BASES]
    print(
        f"{'weight':10} {'base':18} {'method':11} {'cases':>6} {'NaN':>4} {'off':>4} {'p (law)':>8} {'worst bound':>11}  seconds"
    )
    for number, (weight, base) in enumerate(pairs):
        count = cases // len(pairs) + (number < cases % len(pairs))
        p = random_parameters(np.random.default_rng(number), count)
        law = WEIGHTS[weight](p), BASES[base](p["scale"])
        for method in ("exact", "customised", "strips"):
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the bound is printed
                draws = np.asarray(
                    nw.direct.sample(jax.random.key(number), *law, DRAWS, released=p["released"], method=method)
                )
            seconds = time.perf_counter() - start
            off = (draws != np.round(draws)) | ((weight == "lognormal") & (p["released"] - draws <= 0))
            chosen = range(0, count, max(1, count * len(pairs) // checked)) if method != "customised" else ()
            uniforms = [
                cdf(weight, base, {name: float(value[i]) for name, value in p.items()}, draws[:, i], seed=i)
                for i in chosen
            ]
            shown = f"{p_value(uniforms):8.3f}" if uniforms else " " * 8
            bound = " " * 11
            if method == "customised":
                bound = f"{float(jnp.max(nw.direct.step_function(*law, released=p['released']).bound)):11.4f}"
            print(
                f"{weight:10} {base:18} {method:11} {count:6} {np.isnan(draws).sum():4} {off.sum():4} {shown} {bound}  {seconds:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    arguments = [int(value) for value in sys.argv[1:]] + [10_000, 600][len(sys.argv) - 1 :]
    main(*arguments)
