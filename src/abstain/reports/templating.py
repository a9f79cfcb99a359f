"""Markdown of the reports, from the Jinja templates in `templates/`.

Notes:

* Whatever a template prints is escaped (`core.markdown.escape`) unless one of the functions below made it; an undefined
  value is printed as `not defined`. Only the words of the template itself are Markdown.
* A value never begins a line: `paragraph` and `bullets` also escape what would be a list or a heading there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from abstain.core import formatting, markdown
from abstain.core.markdown import MarkdownText
from abstain.learning.evaluation.evaluation_result import get_metric_value
from abstain.reports.page import STATUS_MARKS, plot

TEMPLATES = Path(__file__).parent / "templates"


def render_template(name: str, **values: Any) -> str:
    """Render a template.

    Args:
        name: Name of the file in `templates/` without `.md.jinja`.
        **values: Variables of the template.

    Returns:
        Markdown.
    """
    text = _load_environment().get_template(f"{name}.md.jinja").render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def render_lines(name: str, **values: Any) -> list[tuple[str, str]]:
    """Render a template of `call line(LABEL)` blocks for readers of plain text and of HTML: nothing is escaped.

    Args:
        name: Name of the file in `templates/` without `.md.jinja`.
        **values: Variables of the template.

    Returns:
        Label and text of each block.
    """
    lines: list[tuple[str, str]] = []

    def add_line(label: str, caller: Callable[[], str]) -> str:
        lines.append((label, " ".join(caller().split())))
        return ""

    environment = _load_environment().overlay(finalize=None)
    environment.get_template(f"{name}.md.jinja").render(values, line=add_line)
    return lines


def rank_best_first(values: Mapping[str, float | None]) -> list[str]:
    """Return the names of `values`, highest value first; those without a value come last."""
    numbers = {name: -math.inf if value is None else value for name, value in values.items()}
    return sorted(numbers, key=lambda name: (-numbers[name], name))


def _paragraph(caller: Callable[[], str]) -> str:
    """Join the lines of a `call` block into a paragraph."""
    return markdown.paragraph(MarkdownText(" ".join(caller().split()))) + "\n"


def _bullets(lines: Sequence[str]) -> MarkdownText:
    return MarkdownText(markdown.bullet_list(lines))


def _table(columns: Sequence[str], caption: str = "", text: Container[str] = ()) -> MarkdownText:
    """Begin a table, whose rows follow; columns after the first contain numbers unless they are in `text`."""
    return MarkdownText(markdown.table(columns, (), caption, text))


def _row(*cells: Any, bold: bool = False) -> MarkdownText:
    texts = map(_escape, cells)
    return MarkdownText(f"| {' | '.join(map(markdown.bold, texts) if bold else texts)} |")


def _plot(name: str, title: str, alt_text: str, explanation: str = "") -> MarkdownText:
    return MarkdownText(plot(name, title, alt_text, explanation))


def _escape(value: Any) -> MarkdownText:
    return markdown.escape(
        value if isinstance(value, str) else str(value) if markdown.is_defined(value) else markdown.NOT_DEFINED
    )


@lru_cache(maxsize=1)
def _load_environment() -> Environment:
    environment = Environment(  # noqa: S701 (Markdown, which `finalize` escapes)
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_escape,
        extensions=["jinja2.ext.do"],
    )
    environment.globals |= {
        "paragraph": _paragraph,
        "bullets": _bullets,
        "table": _table,
        "row": _row,
        "plot": _plot,
        "marks": STATUS_MARKS,
        "dash": formatting.DASH,
    }
    environment.filters |= {
        "number": formatting.format_number,
        "percent": formatting.format_percent,
        "percent_near": formatting.format_percent_near,
        "share": formatting.format_configured_share,
        "interval": formatting.format_interval,
        "with_interval": formatting.format_with_interval,
        "count": formatting.format_count,
        "words": formatting.join_words,
        "bold": markdown.bold,
        "error_rate": partial(get_metric_value, "error_rate"),
        "best_first": rank_best_first,
        "exp": math.exp,
    }
    return environment
