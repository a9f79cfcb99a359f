"""The terminal of the commands: data is printed through `console`, which shows foreign text as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from abstain.core.text import replace_control_characters


class Terminal(Console):
    """Rich's console with text that controls nothing; Rich's own controls (bars, colours) are no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=replace_control_characters(segment.text))


console = Terminal(markup=False, highlight=False)


def format_bytes(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
