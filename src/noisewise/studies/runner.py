"""Runs a study: in this process, on a local cluster of processes, or on any Dask scheduler; the same numbers everywhere.

A task is at most ``batch`` replicates of one cell. The client plans the tasks that the folder does not hold yet, and writes the
rows of each as they come, so killing it loses only what is on the way. A worker that dies is replaced by Dask and its tasks run
again elsewhere, to the same numbers; a task that raises is tried ``retries`` times more. What cannot be done is said at the
end, after all else is done.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import noisewise
from noisewise.compilation import use_compilation_cache
from noisewise.studies.base import Cell, Line, Rows, Study
from noisewise.studies.storage import Folder, replace_text

Report = Callable[[int, int], None]
Task = tuple[Cell, range]
Done = tuple[Task, Rows, dict[str, float]]
_FAILURES_SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """What a run of a study left."""

    study: Study
    rows: Rows
    lines: tuple[Line, ...]
    markdown: str
    files: tuple[Path, ...]
    tasks: int


def run(
    study: Study | str,
    *,
    replicates: int | None = None,
    settings: Mapping[str, Any] | None = None,
    tiny: bool = False,
    out: str | Path = "out/studies",
    random_seed: int = 0,
    workers: int = 0,
    scheduler: str | None = None,
    retries: int = 2,
    report: Report | None = None,
) -> Outcome:
    """Run a study, or go on with it, and write rows, plots and the table to ``out/NAME``.

    ``replicates`` and ``settings`` change the paper's; ``tiny`` takes a few seconds instead. ``workers`` is the number of
    processes of a local cluster (0: run in this process), ``scheduler`` the address of a Dask scheduler whose workers have
    this version of noisewise.
    ``report(done, all)`` is called as tasks finish. Raises a ValueError if tasks failed, after the others were kept.
    """
    if isinstance(study, str):
        from noisewise.studies import get

        study = get(study)
    if not isinstance(study, Study):
        raise ValueError(f"study must be a name or a Study; got {study!r}. noisewise study list says what there is.")
    chosen = study.with_settings({**(study.tiny if tiny else {}), **(settings or {})})
    wanted = replicates if replicates is not None else (study.tiny_replicates if tiny else study.replicates)
    _check(wanted, random_seed, workers, retries, scheduler)
    cells = list(study.cells(chosen))
    if not cells:
        raise ValueError(f"The settings leave nothing of the study {study.name} to run: {json.dumps(chosen)}.")
    identity = {"study": study.name, "seed": random_seed, "version": noisewise.__version__}
    folder = Folder(Path(out) / study.name, identity)
    tasks = [(cell, part) for cell in cells for part in folder.missing(cell, wanted, study.batch)]
    failures: list[str] = []
    began = time.perf_counter()
    for number, done in enumerate(_carry_out(study, tasks, random_seed, workers, scheduler, retries), start=1):
        if isinstance(done, str):
            failures.append(done)
        else:
            (cell, part), rows, seconds = done
            folder.save(cell, part, rows, seconds)
        if report is not None:
            report(number, len(tasks))
    if failures:
        raise ValueError(
            f"{len(failures)} of {len(tasks)} tasks of {study.name} failed ({'; '.join(failures[:_FAILURES_SHOWN])}). "
            f"The others are kept in {str(folder.path)!r}: run the same command again to go on."
        )
    rows, cost = folder.collect(cells, wanted)
    attrs = {**identity, "paper": study.paper, "replicates": wanted, "settings": json.dumps(chosen)}
    lines = tuple(study.table(rows))
    elapsed = time.perf_counter() - began
    text = markdown(study, lines, wanted, chosen, cost, elapsed, random_seed)
    files = [folder.path / "table.md", *folder.write_results(rows, attrs), *study.plots(rows, folder.path)]
    replace_text(files[0], text)
    return Outcome(study, rows, lines, text, tuple(files), len(tasks))


def markdown(
    study: Study,
    lines: tuple[Line, ...],
    replicates: int,
    settings: Mapping[str, Any],
    cost: Mapping[str, float],
    elapsed: float,
    seed: int,
) -> str:
    """The table of a study, with how it was made and what it cost."""
    said = [
        f"# {study.name}",
        "",
        f"{study.shows} ({study.paper})",
        "",
        "| quantity | paper | here | Monte-Carlo error |",
        "|---|---|---|---|",
        *(f"| {line.quantity} | {_show(line.paper)} | {_show(line.here)} | {_show(line.error, 2)} |" for line in lines),
        "",
        f"{replicates} replicates a cell, seed {seed}, noisewise {noisewise.__version__}. All tasks together took "
        f"{cost.get('cpu', 0):.0f} s of CPU, {cost.get('wall', 0):.0f} s if one after the other; this run took {elapsed:.0f} s. "
        f"Settings: `{json.dumps(settings)}`.",
        "",
    ]
    return "\n".join(said)


def _show(value: float | str | None, digits: int = 4) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _check(replicates: int, seed: int, workers: int, retries: int, scheduler: str | None) -> None:
    for name, value, least in (
        ("replicates", replicates, 1),
        ("random_seed", seed, 0),
        ("workers", workers, 0),
        ("retries", retries, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    if scheduler is not None and workers:
        raise ValueError("Give workers for a local cluster or scheduler for one that runs already, not both.")


def execute(study: Study, task: Task, seed: int, version: str) -> Done:
    """One task, wherever it runs, with the seconds it took."""
    if version != noisewise.__version__:
        raise ValueError(
            f"A worker has noisewise {noisewise.__version__}, the client {version}; install one version on all of them."
        )
    use_compilation_cache()
    wall, cpu = time.perf_counter(), time.process_time()
    rows = study.rows_of(*task, seed)
    return task, rows, {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def _carry_out(
    study: Study, tasks: list[Task], seed: int, workers: int, scheduler: str | None, retries: int
) -> Iterator[Done | str]:
    """What came of each task, in any order: its rows, or what went wrong."""
    if not tasks:
        return
    if not workers and scheduler is None:
        for task in tasks:
            try:
                yield execute(study, task, seed, noisewise.__version__)
            except Exception as problem:
                yield _failure(task, problem)
        return
    with _client(workers, scheduler) as client:
        from distributed import as_completed

        futures = {
            client.submit(execute, study, task, seed, noisewise.__version__, pure=False, retries=retries): task
            for task in tasks
        }
        for future in as_completed(list(futures), loop=client.loop):
            task = futures.pop(future)
            try:
                yield future.result()
            except Exception as problem:
                yield _failure(task, problem)
            future.release()


def _failure(task: Task, problem: Exception) -> str:
    cell, part = task
    return f"{dict(cell)}, replicates {part.start} to {part.stop - 1}: {type(problem).__name__}: {problem}"


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    """A client of the scheduler, or of a local cluster of processes that ends with it."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ValueError(
            "Running on several processes needs Dask; install it with: pip install 'noisewise[dask]'."
        ) from None
    if scheduler is not None:
        try:
            client = Client(scheduler, set_as_default=False)
        except (OSError, ValueError) as problem:
            raise ValueError(
                f"No Dask scheduler answers at {scheduler!r} ({problem}); check the address, as in tcp://host:8786."
            ) from None
        with client:
            yield client
        return
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
