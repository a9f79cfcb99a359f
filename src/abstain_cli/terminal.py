"""The terminal of the commands: what they print of data goes through `console`, which shows foreign text as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from abstain.core.text import visible


class Terminal(Console):
    """Rich's console, whose text controls nothing; what Rich itself controls (bars, colours) is no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = Terminal(markup=False, highlight=False)


def size(count: float) -> str:
    """`count` bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
