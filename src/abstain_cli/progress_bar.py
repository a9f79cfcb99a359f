"""A progress bar, where there is a terminal to draw it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be told how much is done, of how much; the bar is gone when all is."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
