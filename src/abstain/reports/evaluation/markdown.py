"""The report as Markdown (CommonMark with GitHub's tables), readable as it is, and nothing in it but what was meant.

Texts that people wrote are in it. Every character that Markdown or HTML would act on is escaped, and a text is one
line, so that it breaks no table and becomes no link, image, tag or formula, wherever the file is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from abstain.reports.evaluation.document import (
    Block,
    Cell,
    Examples,
    Line,
    Paragraph,
    Plots,
    Points,
    Report,
    Row,
    Strong,
    Subheading,
    Table,
)
from abstain.reports.evaluation.words import NOT_DEFINED, defined, plain

# An underscore inside a word, as names have them, marks nothing. On GitHub "$" is a formula; ":" and "@" make links.
SPECIAL = re.compile(r"[\\`*\[\]<>|~&$#]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|@(?=\w)|(?<=www)\.", re.IGNORECASE)
LINE_START = re.compile(r"^(?:[-+=]|\d+[.)])")


def escape(text: str) -> str:
    """`text` as Markdown that reads the same, inside a line."""
    return SPECIAL.sub(r"\\\g<0>", plain(text))


def warning_line(warning: str) -> str:
    """A paragraph in bold."""
    return f"**{escape(warning)}**"


def render_markdown(report: Report) -> str:
    """`report` as Markdown.

    A plot is the file `NAME.svg` beside it, on a line of its own, whose alternative text says what can be seen: where
    there is no such file, that text takes its place.
    """
    parts = [f"# {escape(report.title)}", _paragraph([report.about]), f"## {escape(report.verdict.headline)}"]
    parts.append(_points(report.verdict.lines))
    parts += [_table(Table("", ("figure", "what"), [Row((t.figure, Cell(t.what, t.below))) for t in report.tiles]))]
    for section in report.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [text for block in section.blocks for text in _block(block)]
    return "\n\n".join(parts) + "\n"


def markdown_tables(tables: Sequence[Table]) -> str:
    """Tables with their captions."""
    return "\n\n".join(_table(table) for table in tables) + "\n"


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of one or more, all with the keys of the first, as a Markdown table.

    A text is escaped, and bold where it is `Strong`; None and nan say that they are not defined.
    """
    return _grid([escape(name) for name in rows[0]], [[_value(row[name]) for name in rows[0]] for row in rows]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _line([value])
    return escape(str(value)) if defined(value) else NOT_DEFINED


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Plots):
        for plot in block.plots:
            yield f"![{escape(plot.shows)}]({plot.name}.svg)"
            yield f"**{escape(plot.title)}.** {escape(plot.reading)}"
    elif isinstance(block, Examples):
        yield "\n".join(_example(number, one.about, one.texts) for number, one in enumerate(block.examples, start=1))
    else:
        yield RENDERED[type(block)](block)


def _line(runs: Line) -> str:
    return "".join(f"**{escape(run)}**" if isinstance(run, Strong) else escape(run) for run in runs)


def _paragraph(runs: Line) -> str:
    return LINE_START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", _line(runs).strip())


def _points(lines: Sequence[Line]) -> str:
    return "\n".join(f"- {_paragraph(line)}" for line in lines)


def _example(number: int, about: str, texts: Sequence[tuple[str, str]]) -> str:
    inner = (f"   - {escape(what)}: {escape(text)}" for what, text in texts)
    return "\n".join([f"{number}. {escape(about)}", *inner])


def _table(table: Table) -> str:
    rows = [_cells(row, len(table.columns)) for row in table.rows]
    grid = _grid([escape(name) for name in table.columns], rows)
    return f"*{escape(table.caption)}*\n\n{grid}" if table.caption else grid


def _cells(row: Row, columns: int) -> list[str]:
    cells = [
        f"{escape(cell.text)} ({escape(cell.below)})" if isinstance(cell, Cell) and cell.below else escape(_text(cell))
        for cell in row.cells
    ]
    if row.marked:
        cells = [f"**{cell}**" if cell else "" for cell in cells]
    return cells + [""] * (columns - len(cells))


def _text(cell: str | Cell) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


RENDERED: dict[type[Any], Callable[[Any], str]] = {
    Paragraph: lambda block: _paragraph(block.line),
    Points: lambda block: _points(block.lines),
    Table: _table,
    Subheading: lambda block: f"### {escape(block.text)}",
}
