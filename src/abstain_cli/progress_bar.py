"""Progress on the terminal: one bar, or one line for a whole run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from abstain.core.text import replace_control_characters

EVERY = 10.0
"""Seconds between two lines about the same step where there is no terminal."""


@contextmanager
def show_progress(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar, which disappears when all is done.

    Args:
        console: The terminal.
        name: Text of the bar.

    Yields:
        A callback for (done, total).
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@dataclass
class Step:
    """A running step.

    Attributes:
        done: Units done.
        total: Units in total.
        first: Units that were done when it first reported.
        since: Time of that report.
    """

    done: int = 0
    total: int = 0
    first: int = 0
    since: float = 0.0

    def seconds_left(self, now: float) -> float | None:
        """Estimate the remaining time at the present speed.

        Args:
            now: Current time.

        Returns:
            Seconds; None before anything was done.
        """
        done = self.done - self.first
        return (now - self.since) / done * (self.total - self.done) if done else None


@dataclass
class RunProgressLine:
    """One line about a whole run: the current stage, its progress, and the remaining time.

    Attributes:
        clock: Returns the time in seconds.
        stages: Announced stage -> whether it has ended.
        running: Running steps.
    """

    clock: Callable[[], float] = time.monotonic
    stages: dict[str, bool] = field(default_factory=dict)
    running: dict[str, Step] = field(default_factory=dict)

    def update(self, step: str, message: str) -> None:
        """Handle a report of `abstain_tasks.runs.progress.notify_observers`.

        Args:
            step: Name of the step.
            message: Its message.
        """
        from abstain_tasks.training.pipeline import PROGRESS

        if message == "waiting":
            self.stages[step] = False
        elif message in ("ran", "cached"):
            self.running.pop(step, None)
            self.stages |= {step: True} if step in self.stages else {}
        elif match := PROGRESS.fullmatch(message):
            done, total = int(match["done"]), int(match["total"])
            running = self.running.get(step)
            if running is None or running.total != total or done < running.done:
                self.running[step] = Step(done, total, done, self.clock())
            else:
                running.done = done
        else:
            self.running.setdefault(step, Step())

    def __str__(self) -> str:
        steps = ", ".join(f"{name}{self._detail(step)}" for name, step in self.running.items())
        ended = sum(self.stages.values())
        if not self.stages or ended == len(self.stages):
            return steps
        return f"stage {min(ended + 1, len(self.stages))} of {len(self.stages)}: {steps}"

    def _detail(self, step: Step) -> str:
        if not step.total or step.done == step.total:
            return ""
        left = step.seconds_left(self.clock())
        return f" {step.done:,} of {step.total:,}{'' if left is None else f', {format_minutes(left)} left'}"


def format_minutes(seconds: float) -> str:
    """Format a duration as m:ss."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


@contextmanager
def step_progress(console: Console) -> Iterator[None]:
    """Show one line about the whole run; without a terminal, a line now and then, and the steps' own lines.

    Args:
        console: The terminal.

    Yields:
        Nothing.
    """
    from abstain_tasks.runs.progress import register_observer

    line = RunProgressLine()
    if not console.is_terminal:
        with register_observer(_printer(line)):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)

        def observer(step: str, message: str) -> None:
            line.update(step, message)
            bars.update(task, description=str(line))

        with register_observer(observer):
            yield


def _printer(line: RunProgressLine) -> Callable[[str, str], None]:
    """Print a step's own lines, and its progress once in `EVERY` seconds."""
    from abstain_tasks.training.pipeline import PROGRESS

    printed: dict[str, float] = {}

    def observer(step: str, message: str) -> None:
        line.update(step, message)
        if message == "waiting":
            return
        if not PROGRESS.fullmatch(message):
            print(replace_control_characters(f"{step}: {message}"), flush=True)
        elif line.clock() - printed.get(step, 0.0) >= EVERY:
            printed[step] = line.clock()
            print(line, flush=True)

    return observer
