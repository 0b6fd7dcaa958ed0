"""The commands, run in this process: what they print, what they write, and one sentence for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import noisewise as nw
from noisewise import cli
from noisewise.model_file import build_model, load_model
from reference.commands import QUERY, refused

MODEL = '[model]\nname = "Normal"\nmean_prior = [5, 2]\nsd = 1.5\n'
FAST = ["--draws", "300", "--tune", "200", "--seed", "7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records, a query file, a model file, a published release and a fit of it."""
    place = tmp_path_factory.mktemp("commands")
    x = np.random.default_rng(1).normal(4.0, 1.5, 40)
    (place / "records.csv").write_text("id,x\n" + "".join(f"p{i},{value}\n" for i, value in enumerate(x)))
    (place / "query.toml").write_text(QUERY)
    (place / "model.toml").write_text(MODEL)
    release = nw.Release(
        [nw.Measurement(nw.queries.Moments({"x": nw.Column(0, 10)}, [{"x": 1}]), nw.noise.Laplace(5.0), [163.0])], n=40
    )
    release.save(place / "release.json")
    assert cli.main(["fit", f"{place}/release.json", f"{place}/model.toml", "-o", f"{place}/out.nc", *FAST]) == 0
    return place


def test_publish_then_inspect_then_explain(folder, capsys):
    out = folder / "published.json"
    assert cli.main(["publish", f"{folder}/records.csv", "-c", f"{folder}/query.toml", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"Wrote {out}" in said
    assert "epsilon = 2 (pure" in said
    release = nw.Release.load(out)
    assert (release.n, release.names) == (40, ("sum",))
    assert float(release.measurements[0].noise.scale) == pytest.approx(5.0)
    assert cli.main(["inspect", str(out)]) == 0
    assert "origin of the bounds: questionnaire" in capsys.readouterr().out
    assert cli.main(["explain", str(out), f"{folder}/model.toml"]) == 0
    said = capsys.readouterr().out
    assert "augmentation" in said
    assert "chosen" in said


def test_publish_reads_parquet_and_every_kind_of_query(folder, tmp_path, capsys):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"x": [0.1, 0.9, 0.4], "y": [1.0, 2.0, 3.0], "c": [0, 1, 1], "d": [2, 0, 1]})
    parquet.write_table(table, tmp_path / "records.parquet")
    (tmp_path / "query.toml").write_text(
        """
        delta = 1e-6
        [columns]
        x = { lower = 0, upper = 1, rescale = [-1, 1] }
        y = { lower = 0, upper = 5, rescale = [-1, 1] }
        [[measurement]]
        query = "regression_moments"
        predictors = ["x"]
        response = "y"
        sensitivity = "joint"
        noise = { law = "laplace", epsilon = 1.0 }
        [[measurement]]
        query = "moments"
        terms = [{ y = 1 }, { y = 2 }]
        noise = { law = "gaussian", epsilon = 1.0, delta = 1e-6 }
        [[measurement]]
        name = "table"
        query = "counts"
        levels = { c = 2, d = 3 }
        tables = [["c", "d"]]
        noise = { law = "discrete_laplace", scale = 4 }
        """
    )
    out = tmp_path / "release.json"
    assert cli.main(["publish", f"{tmp_path}/records.parquet", "-c", f"{tmp_path}/query.toml", "-o", str(out)]) == 0
    release = nw.Release.load(out)
    assert release.names == ("m0", "m1", "table")
    assert release.privacy.measure == "approximate"
    assert release.measurements[0].query.sensitivity("l1") == pytest.approx(16 / 3)
    assert release.measurements[1].query.labels == ("y", "y^2")
    assert np.all(np.asarray(release.measurements[2].value) == np.round(release.measurements[2].value))
    capsys.readouterr()


def test_fit_writes_draws_with_prior_and_naive_that_read_back_whole(folder):
    with xr.open_datatree(folder / "out.nc", engine="h5netcdf") as file:
        tree = file.load()
    assert {"posterior", "sample_stats", "observed_data", "release", "prior", "naive"} <= set(tree.children)
    assert tree["posterior"]["mean"].shape == (4, 300)
    assert tree.attrs["random_seed"] == 7
    assert "Normal(" in tree.attrs["noisewise_model"]
    assert json.loads(tree["release"].attrs["document"])["format"] == "dp-release"


def test_fit_gives_the_draws_of_sample(folder):
    release, model = nw.Release.load(folder / "release.json"), load_model(folder / "model.toml")
    direct = nw.sample(model, release, draws=300, tune=200, random_seed=7, progressbar=False)
    with xr.open_datatree(folder / "out.nc", engine="h5netcdf") as file:
        assert np.array_equal(file["posterior"]["mean"].values, direct["posterior"]["mean"].values)


def test_fit_as_json_prints_nothing_else(folder, capsys):
    assert cli.main(["fit", f"{folder}/release.json", f"{folder}/model.toml", "--json", *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["parameters"]
    assert row["name"] == "mean"
    assert 3.0 < row["posterior"]["mean"] < 5.0
    assert row["posterior"]["low"] < row["posterior"]["mean"] < row["posterior"]["high"]
    assert (found["exact"], found["random_seed"], found["output"]) == (True, 7, None)
    assert found["verdict"]


def test_fit_prints_the_table_the_comparison_and_the_verdict(folder, capsys):
    assert cli.main(["fit", f"{folder}/release.json", f"{folder}/model.toml", "--compare", *FAST]) == 0
    said = capsys.readouterr().out
    for words in ("R-hat", "records' share", "naive", "prior", "seed 7", "Nothing was written"):
        assert words in said
    assert "onverge" in said


def test_fit_goes_on_from_its_checkpoint(folder, tmp_path, capsys):
    command = [
        "fit",
        f"{folder}/release.json",
        f"{folder}/model.toml",
        "--json",
        "--checkpoint",
        f"{tmp_path}/run.npz",
        "--method",
        "augmentation",
        *FAST,
    ]
    assert cli.main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert (tmp_path / "run.npz").exists()
    assert 0 < first["parameters"][0]["missing_information"] < 1
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == first["parameters"]


def test_report_is_written_beside_the_results(folder, capsys):
    assert cli.main(["report", f"{folder}/out.nc"]) == 0
    assert f"Wrote {folder}/out.html" in capsys.readouterr().out
    assert (folder / "out.html").read_text().startswith("<!doctype html>")


def test_demo_writes_everything_and_shows_the_three_side_by_side(tmp_path, capsys):
    assert cli.main(["demo", "--out", f"{tmp_path}/new/out"]) == 0
    said = capsys.readouterr().out
    for words in ("posterior", "naive", "prior", "made with", "Converged", "The naive 90% intervals hold 0 of the 3"):
        assert words in said
    assert "The posterior's 90% intervals hold 3 of the 3" in said
    made = {path.name for path in (tmp_path / "new" / "out").iterdir()}
    assert made == {"demo.html", "demo.nc", "demo-release.json", "demo-model.toml"}


def test_the_bundled_release_is_the_published_one():
    """The numbers of the paper's code, by name: x'y, y'y and x'x with the intercept first."""
    from importlib import resources

    with resources.as_file(resources.files("noisewise") / "data" / "ju2022-regression.json") as path:
        release = nw.Release.load(path)
    (measurement,) = release.measurements
    found = dict(zip(measurement.query.labels, np.asarray(measurement.value), strict=True))
    xty, yty = [-38.243975050716777, -6.6783004734754723, 3.1997433901878551], 27.19852448963865
    xtx = [
        [100, 9.8834761467373955, -13.850330625708425],
        [9.8834761467373955, 2.1881800909585278, -2.2884228355077281],
        [-13.850330625708425, -2.2884228355077281, 3.4091531490715434],
    ]
    expected = {"y": xty[0], "x1 y": xty[1], "x2 y": xty[2], "y^2": yty, "x1": xtx[0][1], "x2": xtx[0][2]}
    expected |= {"x1^2": xtx[1][1], "x1 x2": xtx[1][2], "x2^2": xtx[2][2]}
    assert found == pytest.approx(expected, rel=1e-15)
    assert (release.n, float(measurement.noise.scale), float(release.privacy.loss)) == (100, 1.3, 10.0)


MODEL_MISTAKES = [
    ("", "lacks 'model'"),
    ("model = 3", "must have a table [model]"),
    ("[model]\nname = 'Norml'", "the models are Bernoulli"),
    ("[model]\nname = 'Normal'\ncolour = 1", "unknown key 'colour'; it may have: mean_prior"),
    ("[model]\nname = 'Poisson'\nshape = 1", "lacks 'rate'"),
    ("[model]\nname = 'Poisson'\nshape = -1\nrate = 1", "must be positive; got -1"),
    ("[model]\nname = 'NaiveBayes'\nclasses = 2\nfeatures = 3", "cannot be made"),
    ("[model]\nname = 'Custom'", "write it in Python"),
    ("[model]\nname = 'Normal'\nsd = { law = 'Cauchy' }", "law = one of InverseGamma"),
    ("[model]\nname = 'Normal'\nvariance_prior = { law = 'InverseGamma', shape = 1 }", "lacks 'scale'"),
    ("[model\nname", "is not TOML"),
    ("[model]\nname = 'Normal'\ncolumn = 'z'", "which the model does not describe"),
    ("[model]\nname = 'Normal'\n[prior]\nx = 1", "unknown key 'prior'"),
]


@pytest.mark.parametrize(("text", "said"), MODEL_MISTAKES)
def test_a_wrong_model_file_gets_a_sentence(folder, tmp_path, capsys, text, said):
    (tmp_path / "wrong.toml").write_text(text)
    assert said in refused(capsys, "explain", folder / "release.json", tmp_path / "wrong.toml")


RELEASE_MISTAKES = [
    ("{", "it is not JSON"),
    ("[]", "format is 'list'"),
    ('{"format": "other", "version": 1}', "supported is 'dp-release'"),
    ('{"format": "dp-release", "version": 99}', "version is 99"),
    ('{"format": "dp-release", "version": 1}', "is not valid"),
]


@pytest.mark.parametrize(("text", "said"), RELEASE_MISTAKES)
def test_a_wrong_release_gets_a_sentence(folder, tmp_path, capsys, text, said):
    (tmp_path / "wrong.json").write_text(text)
    assert said in refused(capsys, "inspect", tmp_path / "wrong.json")
    assert said in refused(capsys, "fit", tmp_path / "wrong.json", folder / "model.toml")


def test_wrong_options_and_missing_files_get_a_sentence(folder, tmp_path, capsys):
    release, model = folder / "release.json", folder / "model.toml"
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00x\n1")
    (tmp_path / "heading.csv").write_text("id,x\n")
    (tmp_path / "twice.CSV").write_text("x,x\n1,2\n")
    (tmp_path / "not.nc").write_text("no")
    (tmp_path / "a-file").write_text("")
    query = folder / "query.toml"
    cases = [
        (["fit", tmp_path / "none.json", model], "There is no release document"),
        (["fit", release, tmp_path / "none.toml"], "There is no model file"),
        (["fit", release, folder], "cannot be read"),
        (["fit", release], "Missing argument"),
        (["fit", release, model, "--drws", "3"], "No such option"),
        (["fit", release, model, "--draws", "many"], "Invalid value for '--draws'"),
        (["fit", release, model, "--draws", "0"], "draws must be a whole number of at least 1"),
        (["fit", release, model, "--target-ess", "-1"], "target_ess must be positive"),
        (["fit", release, model, "--seed", "-1"], "random_seed must be a whole number"),
        (["fit", release, model, "--method", "magic"], "magic"),
        (["fit", release, model, "-o", tmp_path / "no" / "out.nc"], "its folder"),
        (["fit", release, model, "-o", tmp_path / "out.txt"], "must end in .nc"),
        (["report", tmp_path / "none.nc"], "There is no file of results"),
        (["report", tmp_path / "not.nc"], "is not a NetCDF file of results"),
        (["publish", tmp_path / "none.csv", "-c", query], "There is no table of records"),
        (["publish", tmp_path / "empty.csv", "-c", query, "-o", tmp_path / "r.json"], "cannot be read"),
        (["publish", tmp_path / "binary.csv", "-c", query, "-o", tmp_path / "r.json"], "cannot be read"),
        (["publish", tmp_path / "heading.csv", "-c", query, "-o", tmp_path / "r.json"], "have no rows"),
        (["publish", tmp_path / "twice.CSV", "-c", query, "-o", tmp_path / "r.json"], "2 columns named 'x'"),
        (["publish", model, "-c", query, "-o", tmp_path / "r.json"], "must be a .csv or a .parquet"),
        (["demo", "--out", tmp_path / "a-file"], "is a file; name a folder"),
        (["bench-press"], "No such command"),
    ]
    for arguments, said in cases:
        assert said in refused(capsys, *arguments), arguments


def test_a_foreign_checkpoint_is_refused(folder, tmp_path, capsys):
    (tmp_path / "run.npz").write_text("not one")
    said = refused(
        capsys, "fit", folder / "release.json", folder / "model.toml", "--json", "--checkpoint", tmp_path / "run.npz"
    )
    assert "damaged or not a checkpoint" in said


def test_a_stated_guarantee_that_is_wrong_is_a_warning_not_a_failure(folder, tmp_path, capsys):
    text = (folder / "release.json").read_text().replace('"epsilon": 2.0', '"epsilon": 0.5')
    (tmp_path / "release.json").write_text(text)
    assert cli.main(["inspect", f"{tmp_path}/release.json"]) == 0
    captured = capsys.readouterr()
    assert "noisewise: Warning: The document states" in captured.err
    assert "A release of 1 measurement" in captured.out


def test_ctrl_c_before_the_first_draw_is_one_sentence(folder, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(nw, "sample", stopped)
    assert cli.main(["fit", f"{folder}/release.json", f"{folder}/model.toml", "-o", f"{folder}/stopped.nc"]) == 130
    captured = capsys.readouterr()
    assert captured.err == "noisewise: Stopped before there was anything to keep.\n"
    assert not (folder / "stopped.nc").exists()


def test_an_error_of_our_own_is_a_sentence_with_exit_code_1(folder, capsys, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(nw, "sample", broken)
    assert cli.main(["fit", f"{folder}/release.json", f"{folder}/model.toml"]) == 1
    assert "An error inside noisewise, RuntimeError: no such thing" in capsys.readouterr().err
    monkeypatch.setenv("NOISEWISE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main(["fit", f"{folder}/release.json", f"{folder}/model.toml"])


@pytest.mark.parametrize("command", ["demo", "publish", "inspect", "explain", "fit", "report"])
def test_every_command_has_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert "Usage: noisewise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("pub", "publish"), ("fit --method fou", "fourier"), ("explain --method co", "counts"), ("study ju-log", "ju-loglinear-means")],
)  # fmt: skip
def test_the_shell_completes_commands_engines_and_studies(typed, expected, monkeypatch, capsys):
    words = f"noisewise {typed}"
    monkeypatch.setenv("_NOISEWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit, match="0"):  # which is how a shell is answered
        cli.main([])
    assert expected in capsys.readouterr().out.split()


def test_publish_and_report_as_json_print_nothing_else(folder, tmp_path, capsys):
    out = tmp_path / "published.json"
    arguments = ["publish", f"{folder}/records.csv", "-c", f"{folder}/query.toml", "-o", str(out), "--json"]
    assert cli.main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["output"] == str(out)
    assert said["measurements"] == {"sum": {"numbers": 1, "law": "laplace", "scale": 5.0}}
    assert (said["n"], said["neighbours"]) == (40, "replace_one")
    page = tmp_path / "page.html"
    assert cli.main(["report", f"{folder}/out.nc", "-o", str(page), "--level", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(page), "bytes": page.stat().st_size, "level": 0.8}


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from noisewise import cli; code = cli.main(['--help']); "
        "heavy = {'xarray', 'matplotlib', 'opendp', 'scipy', 'pyarrow', 'equinox', 'arviz_stats'} & set(sys.modules); "
        "assert code == 0, code; assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "publish" in done.stdout


def test_priors_stand_where_numbers_could():
    model = build_model(
        {
            "name": "LinearRegression",
            "predictors": ["x1"],
            "response": "y",
            "variance": {"law": "InverseGamma", "shape": 3, "scale": 2},
            "covariate_mean": {"law": "NormalPrior", "mean": [0], "cov": [[4]]},
            "covariate_cov": {"law": "InverseWishart", "df": 3, "scale": [[1]]},
        }
    )
    assert list(model.parameters) == ["beta", "variance", "covariate_mean", "covariate_cov"]


def test_a_model_may_hold_a_model():
    model = build_model({"name": "UnknownSize", "upper": 60, "model": {"name": "Bernoulli", "column": "sick"}})
    assert list(model.parameters) == ["p", "n"]
    assert model.columns == ("sick",)
