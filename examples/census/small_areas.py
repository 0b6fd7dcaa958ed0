"""Small-area counts from noisy measurements: the posterior of every block beside generalised least squares.

``python make_files.py nmf.parquet && python small_areas.py nmf.parquet`` prints, for every block, the noisy count, the
generalised least squares estimate with its standard error, and the posterior mean with a 90 % interval. Both know the exact total of
the county; only the posterior knows that counts are whole and not negative.
"""

from __future__ import annotations

import sys

import numpy as np
from make_files import BLOCKS, COUNTY, TRACTS, truth

import noisewise as nw

TRACT_CODES = [f"{COUNTY}{tract + 1:04d}" for tract in range(TRACTS)]
BLOCK_CODES = [f"{code}{block + 1}" for code in TRACT_CODES for block in range(BLOCKS)]


def read(path: str) -> nw.Release:
    """The totals of tracts and blocks; the county's total is an invariant."""
    total = int(truth().sum())
    return nw.Release.from_census_nmf(
        path, [*TRACT_CODES, *BLOCK_CODES], parent=COUNTY, geography=("y", "x1"), invariants={COUNTY: total}
    )


def least_squares(release: nw.Release) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of the blocks and their standard errors: weighted least squares on all rows, with the exact total."""
    size = TRACTS * BLOCKS
    design = np.vstack([np.repeat(np.eye(TRACTS), BLOCKS, axis=1), np.eye(size)])
    noisy = np.concatenate([np.asarray(m.value) for m in release.measurements])
    weight = 1 / np.concatenate([np.asarray(m.noise.variance) for m in release.measurements])
    free = np.linalg.inv(design.T @ (weight[:, None] * design))
    gain = free @ np.ones(size) / np.sum(free)
    estimate = free @ design.T @ (weight * noisy)
    estimate = estimate + gain * (release.n - estimate.sum())
    return estimate, np.sqrt(np.diag(free - np.outer(gain, np.ones(size) @ free)))


def posterior(release: nw.Release, draws: int = 1000) -> np.ndarray:
    """Draws of the counts of all blocks, from the imputed tables of people: (draw, block)."""
    model = nw.models.NaiveBayes(classes=TRACTS, features=[BLOCKS], prior=1.0)
    found = nw.sample(
        model, release, method="augmentation", draws=draws, keep_latent=draws, random_seed=5, progressbar=False
    )
    cells = [BLOCKS * table["y"].astype(int) + table["x1"].astype(int) for table in nw.impute(found)]
    return np.stack([np.bincount(cell, minlength=TRACTS * BLOCKS) for cell in cells])


def main(path: str) -> None:
    """Print the comparison."""
    release = read(path)
    estimate, error = least_squares(release)
    counts = posterior(release)
    low, high = np.quantile(counts, [0.05, 0.95], axis=0)
    exact, noisy = truth().sum(axis=2).ravel(), np.asarray(release.measurements[1].value)
    print("block       true  noisy    GLS (se)      posterior mean [90 %]")
    for block, code in enumerate(BLOCK_CODES):
        gls = f"{estimate[block]:6.1f} ({error[block]:.1f})"
        mean = f"{counts[:, block].mean():6.1f} [{low[block]:.0f}, {high[block]:.0f}]"
        print(f"{code}  {exact[block]:4d}  {noisy[block]:5.0f}  {gls:>12}   {mean}")
    print(f"root mean squared error: noisy {rmse(noisy, exact):.2f}, GLS {rmse(estimate, exact):.2f}, ", end="")
    print(f"posterior mean {rmse(counts.mean(axis=0), exact):.2f}")


def rmse(estimate: np.ndarray, exact: np.ndarray) -> float:
    """The root mean squared error over the blocks."""
    return float(np.sqrt(np.mean((estimate - exact) ** 2)))


if __name__ == "__main__":
    main(sys.argv[1])
