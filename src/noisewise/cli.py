"""The commands of noisewise: every one says what it did and where it put it, and every mistake gets one sentence.

Exit codes: 0 done, 1 an error inside noisewise, 2 a mistake in what was given, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from noisewise import __version__

_STOPPED = 130
_EPILOG = "Errors are one sentence on stderr with exit code 2. NOISEWISE_DEBUG=1 shows the traceback instead."

app = typer.Typer(
    name="noisewise",
    help="Bayesian inference with differential privacy: posteriors that know about the noise.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

ReleaseFile = Annotated[
    Path, typer.Argument(metavar="RELEASE.json", help="A release document (format dp-release).", show_default=False)
]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL.toml", help="A model file: a table [model] with a name.", show_default=False)
]
Draws = Annotated[int, typer.Option(help="Recorded draws a chain.")]
Tune = Annotated[int, typer.Option(help="Tuning steps a chain, not recorded.")]
Chains = Annotated[int, typer.Option(help="Number of chains.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of the draws; without it one is taken from the system and recorded.")
]
Level = Annotated[float, typer.Option(help="Probability in the intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]


def _methods(incomplete: str) -> list[str]:
    """The engines' names, for the shell to complete."""
    from noisewise.engines.choose import _ENGINES

    return [name for name in ("auto", *_ENGINES) if name.startswith(incomplete)]


def _studies(incomplete: str) -> list[str]:
    """The studies' names, for the shell to complete."""
    from noisewise.studies import catalogue

    return [name for name in ("list", "all", *(study.name for study in catalogue())) if name.startswith(incomplete)]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"noisewise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; made if it is not there.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 2022,
) -> None:
    """Fit the regression of Ju et al. (2022) from a bundled release and write a report.

    Prints the posterior beside the naive posterior (the noise ignored) and the prior, and writes demo.html, demo.nc, the
    release and the model file to the folder, ready for the other commands.
    """
    from noisewise.commands import demo as command

    command.run(out, seed=seed)


@app.command()
def publish(
    records: Annotated[
        Path, typer.Argument(metavar="RECORDS", help="Confidential records, CSV or Parquet.", show_default=False)
    ],
    config: Annotated[
        Path,
        typer.Option("--config", "-c", metavar="QUERY.toml", help="What to ask, bounds and noise.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The release document to write.")] = Path(
        "release.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Publish noisy statistics of confidential records, with their guarantee (for the data holder).

    The query file names the columns with public bounds, the queries (regression_moments, moments, counts) and the noise of
    each, by budget (epsilon, rho, or epsilon and delta) or by scale. The noise comes from the operating system and there
    is no seed; running the command twice spends the budget twice. A smallest query file:

    ```toml
    [columns]
    x = { lower = 0, upper = 10 }

    [[measurement]]
    query = "moments"
    terms = [{ x = 1 }]
    noise = { law = "laplace", epsilon = 1.0 }
    ```
    """
    from noisewise.commands import publish as command

    command.run(records, config, output, as_json=as_json)


@app.command()
def inspect(release: ReleaseFile, as_json: AsJson = False) -> None:
    """Say what a release holds, in words: queries, bounds, noise, guarantee, values."""
    from noisewise.commands import inspect as command

    command.run(release, as_json=as_json)


@app.command()
def explain(
    release: ReleaseFile,
    model: ModelFile,
    method: Annotated[str, typer.Option(help="Ask about one engine by name.", autocompletion=_methods)] = "auto",
    as_json: AsJson = False,
) -> None:
    """Say which engine would fit a model to a release, why, and why not each of the others."""
    from noisewise.commands import explain as command

    command.run(release, model, method=method, as_json=as_json)


@app.command()
def fit(
    release: ReleaseFile,
    model: ModelFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.nc", help="NetCDF file for the draws.", show_default=False),
    ] = None,
    draws: Draws = 1000,
    tune: Tune = 1000,
    chains: Chains = 4,
    seed: Seed = None,
    method: Annotated[
        str, typer.Option(help="auto, or the name of an engine (see explain).", autocompletion=_methods)
    ] = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file from which the same command goes on.", show_default=False)
    ] = None,
    target_ess: Annotated[
        float | None, typer.Option(help="Go on until the smallest bulk ESS reaches this.", show_default=False)
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the naive posterior and the prior beside it.")
    ] = False,
    price: Annotated[
        bool, typer.Option("--price", help="Also split the posterior variance: prior, sampling, clamping, noise.")
    ] = False,
    level: Level = 0.9,
    as_json: AsJson = False,
) -> None:
    """Draw from the posterior of a model given a release, and say whether the draws can be trusted.

    Prints for each parameter the mean, sd, interval, R-hat, effective sample sizes and the records' share: the part of
    the posterior variance that would be left if the records were known. The file holds the draws with the prior and the
    naive posterior to compare with, and is what **noisewise report** reads. Ctrl-C keeps the draws made so far. A model file:

    ```toml
    [model]
    name = "Normal"
    mean_prior = [5, 2]
    variance_prior = { law = "InverseGamma", shape = 3, scale = 4 }
    column = "x"
    ```
    """
    from noisewise.commands import fit as command

    command.run(
        release,
        model,
        output,
        settings={
            "draws": draws,
            "tune": tune,
            "chains": chains,
            "random_seed": seed,
            "method": method,
            "checkpoint": checkpoint,
            "target_ess": target_ess,
        },
        compare=compare,
        price=price,
        level=level,
        as_json=as_json,
    )


@app.command()
def report(
    results: Annotated[
        Path, typer.Argument(metavar="OUT.nc", help="A file written by noisewise fit.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="REPORT.html", help="Default: beside the results, as .html.", show_default=False
        ),
    ] = None,
    level: Level = 0.9,
    as_json: AsJson = False,
) -> None:
    """Write the results of a fit as one self-contained HTML page.

    The page says what was published, the model, which engine ran and why, whether the draws can be trusted, and what privacy cost
    (after **noisewise fit --price**); it needs no network and can be sent as it is.
    """
    from noisewise.commands import report as command

    command.run(results, output, level=level, as_json=as_json)


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="list, a study's name, or all.", show_default=False, autocompletion=_studies
        ),
    ],
    replicates: Annotated[
        int | None, typer.Option(help="Replicates of each cell; default: as in the paper.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results, one folder a study.")] = Path("out/studies"),
    seed: Annotated[int, typer.Option(help="Seed of the study.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes of a local Dask cluster; 0 runs in this process.")] = 0,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://...", help="A Dask scheduler to run on.", show_default=False)
    ] = None,
    retries: Annotated[int, typer.Option(help="How often a task that fails on a worker is tried again.")] = 2,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting; may be repeated.", show_default=False),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="A few seconds instead of the paper's size.")] = False,
) -> None:
    """Run an experiment of the papers by name, or go on with it.

    **noisewise study list** says what each shows and costs. Writes the rows (Parquet, NetCDF), plots, and a table
    that puts the paper's numbers beside those seen here. A run that was stopped goes on with the same command; neither the
    number of workers nor their deaths change a number.
    """
    from noisewise.commands import study as command

    command.run(
        name,
        replicates=replicates,
        settings=settings or [],
        tiny=tiny,
        out=out,
        seed=seed,
        workers=workers,
        scheduler=scheduler,
        retries=retries,
    )


@app.command()
def bench(
    small: Annotated[bool, typer.Option("--small", help="A tenth of the draws.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how long each engine takes on this machine, with and without compilation.

    Needs no file and writes none. How noisewise compares with what else could be done is in benchmarks/ of the source.
    """
    from noisewise.commands import bench as command

    command.run(small=small, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands and return the exit code; the console script's entry point."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _say_warning
            code = app(
                list(sys.argv[1:] if arguments is None else arguments), prog_name="noisewise", standalone_mode=False
            )
        if code == _STOPPED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _fail("Stopped before there was anything to keep.", _STOPPED)
    except Exception as problem:
        if os.environ.get("NOISEWISE_DEBUG"):
            raise
        return _judge(problem)


def _judge(problem: Exception) -> int:
    """One sentence for what went wrong, and the exit code that goes with it."""
    if type(problem).__name__ in ("Exit", "NoArgsIsHelpError"):
        return int(getattr(problem, "exit_code", 0))
    if type(problem).__name__ == "Abort":
        return _fail("Stopped before there was anything to keep.", _STOPPED)
    if callable(message := getattr(problem, "format_message", None)):
        where = getattr(getattr(problem, "ctx", None), "command_path", "noisewise")
        return _fail(f"{str(message()).rstrip('.')}. See {where} --help.", 2)
    if isinstance(problem, OSError):
        where = "" if problem.filename is None else f": {problem.filename!r}"
        said = " ".join(str(problem.strerror or problem).split())
        return _fail(f"{said}{where}. Check the name, the folder, its permissions and the disk.", 2)
    if isinstance(problem, ValueError):
        return _fail(" ".join(str(problem).split()), 2)
    return _fail(
        f"An error inside noisewise, {type(problem).__name__}: {problem}. Please report it, with what "
        "NOISEWISE_DEBUG=1 shows.",
        1,
    )


def _fail(sentence: str, code: int) -> int:
    print(f"noisewise: {sentence}", file=sys.stderr)
    return code


def _say_warning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    # the verdict on a run is printed in any case
    if category.__name__ != "ConvergenceWarning" and issubclass(category, UserWarning):
        print(f"noisewise: Warning: {message}", file=sys.stderr)
