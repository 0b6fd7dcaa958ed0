"""The progress of a run, on a terminal: rate, time left, acceptance, and a running split R-hat."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

import numpy as np

_REFRESH_SECONDS = 0.2
_RHAT_SECONDS = 1.0


def split_rhat(draws: np.ndarray) -> float:
    """Split R-hat of draws (chain, draw), the plain version: for a look at a running chain, not for a verdict."""
    half = draws.shape[1] // 2
    if half < 2:
        return float("nan")
    parts = np.concatenate([draws[:, :half], draws[:, -half:]])
    within = parts.var(axis=1, ddof=1).mean()
    between = parts.mean(axis=1).var(ddof=1)
    return float(np.sqrt((half - 1) / half + between / within)) if within > 0 else float("nan")


class Progress:
    """One line of progress for one phase of a run; silent where there is no terminal or it is switched off."""

    def __init__(self, wanted: bool, phase: str, goal: int, chains: int) -> None:
        self._phase, self._goal, self._chains = phase, goal, chains
        self._bar = None
        self._shown = 0.0
        self._rhat_at = 0.0
        self._rhat = ""
        if wanted and goal > 0:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal:
                from rich import progress

                self._bar = progress.Progress(
                    progress.TextColumn("{task.description:12s}"),
                    progress.BarColumn(),
                    progress.MofNCompleteColumn(),
                    progress.TimeRemainingColumn(),
                    progress.TextColumn("{task.fields[note]}"),
                    console=console,
                )

    def __enter__(self) -> Progress:
        self._began = time.perf_counter()
        self._first: int | None = None
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._phase, total=self._goal, note="")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def extend(self, goal: int) -> None:
        """A new goal, when a run goes on until it has enough effective draws."""
        self._goal = goal
        if self._bar is not None:
            self._bar.update(self._task, total=goal)

    def show(self, done: int, stats: dict[str, float], draws: Callable[[], list[dict[str, np.ndarray]]] | None) -> None:
        """Say how far the phase is; ``draws`` gives the blocks so far, for the running R-hat."""
        if self._bar is None:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first, self._began = done, now
        if now - self._shown < _REFRESH_SECONDS and done < self._goal:
            return
        self._shown = now
        if draws is not None and now - self._rhat_at > _RHAT_SECONDS:
            self._rhat_at = now
            self._rhat = f"R-hat {_worst(draws()):.3f}  "
        rate = (done - self._first) / (now - self._began) if now > self._began else 0.0
        notes = [f"{rate * self._chains:,.0f} draws/s "] if rate else []
        if "acceptance_rate" in stats:
            notes.append(f"acceptance {stats['acceptance_rate']:.2f} ")
        self._bar.update(self._task, completed=done, note=" ".join(notes) + self._rhat)


def _worst(blocks: list[dict[str, np.ndarray]]) -> float:
    """The largest split R-hat over the parameters, of the blocks so far."""
    worst = []
    for name in blocks[0]:
        joined = np.concatenate([block[name] for block in blocks], axis=1)
        flat = joined.reshape(*joined.shape[:2], -1)
        worst += [split_rhat(flat[..., j]) for j in range(flat.shape[-1])]
    return float(np.nanmax(worst)) if np.any(np.isfinite(worst)) else float("nan")
