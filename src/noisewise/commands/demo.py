"""``noisewise demo``: the regression of Ju et al. (2022), section 5, from the bundled release."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import noisewise as nw
from noisewise.commands.terminal import print_summary, said_of_run, say, write_tree
from noisewise.comparison import add_comparisons
from noisewise.model_file import load_model
from noisewise.release.document import Release
from noisewise.report.page import report
from noisewise.report.summary import summarise

_NAME = "ju2022-regression"
_MADE_WITH = {"beta[intercept]": -1.7949707226263036, "beta[x1]": -2.8890028005548376, "beta[x2]": -0.6620271567092089}


def run(out: Path, *, seed: int) -> None:
    """Fit, print, and write everything to the folder."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a file; name a folder.")
    out.mkdir(parents=True, exist_ok=True)
    release_path, model_path = out / "demo-release.json", out / "demo-model.toml"
    for suffix, path in ((".json", release_path), (".toml", model_path)):
        with resources.as_file(resources.files("noisewise") / "data" / f"{_NAME}{suffix}") as bundled:
            shutil.copyfile(bundled, path)
    release, model = Release.load(release_path), load_model(model_path)
    say("The regression of Ju, Awan, Gong and Rao (2022), section 5, from a release of 100 simulated records.\n")
    say(release.describe())
    say(f"\nEngine: {nw.explain(model, release).reason}\n")
    tree = nw.sample(model, release, draws=2500, tune=1000, target_ess=1200, random_seed=seed)
    tree = add_comparisons(tree, model, release)
    rows = summarise(tree)
    say(
        "Posterior, naive posterior (noise and clamping ignored) and prior: mean ± sd, 90% interval, and what the records"
    )
    say("were made with.")
    print_summary(rows, compare=True, truth=_MADE_WITH)
    say()
    print_summary(rows)
    say()
    for line in said_of_run(tree):
        say(line)
    for kind, name in (("posterior", "The posterior's"), ("naive", "The naive")):
        held = sum(getattr(row, kind).low <= _MADE_WITH[row.name] <= getattr(row, kind).high for row in rows)
        say(f"{name} 90% intervals hold {held} of the {len(rows)} coefficients the records were made with.")
    write_tree(tree, out / "demo.nc")
    report(tree, out / "demo.html")
    say(f"\nWrote {out / 'demo.html'} (the report), {out / 'demo.nc'} (the draws), {release_path} and {model_path}.")
    say(f"The same by hand: noisewise fit {release_path} {model_path} --compare -o {out / 'fit.nc'}")
