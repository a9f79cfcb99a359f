"""Progress on the terminal: one bar, or a line for each step of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback for (done, total); the bar disappears when all is done."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def step_progress(console: Console) -> Iterator[None]:
    """One line per step, with a bar for steps that report progress; without a terminal, the steps' own lines."""
    from tasks.pipeline import PROGRESS
    from tasks.progress import observed_by

    if not console.is_terminal:
        with observed_by(lambda step, message: print(f"{step}: {message}", flush=True)):
            yield
        return
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as bars:
        steps: dict[str, TaskID] = {}

        def observer(step: str, message: str) -> None:
            if step not in steps:
                steps[step] = bars.add_task(step, total=1, status="")
            if match := PROGRESS.fullmatch(message):
                bars.update(steps[step], completed=int(match["done"]), total=int(match["total"]))
            elif message in ("ran", "cached"):
                bars.update(steps[step], completed=1, total=1, status="" if message == "ran" else "cached")
                bars.stop_task(steps[step])

        with observed_by(observer):
            yield
