"""A declared table of a study: title, note and the paper's rows, and its Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abstain.config.yaml_model import FrozenModel
from abstain.core.formatting import format_count
from abstain.core.markdown import heading, paragraph, records_table

TEXT_COLUMNS = ("method", "site", "k", "model", "data", "threshold")


class DeclaredTable(FrozenModel):
    """A table; `paper` are the rows of the paper, which are shown beside it and never computed with."""

    title: str
    note: str = ""
    paper: tuple[dict[str, str], ...] = ()


def render_table(
    table: DeclaredTable, records: Sequence[Mapping[str, Any]], missing: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the Markdown blocks of a table.

    Args:
        table: The declaration.
        records: Its rows.
        missing: Why rows, or all of them, are missing.
    """
    yield heading(2, table.title)
    yield paragraph(table.note)
    if records:
        yield records_table(records, text_columns=TEXT_COLUMNS)
    for reason in dict.fromkeys(missing):
        yield paragraph(f"Missing: {reason}")
    if table.paper:
        yield paragraph("The paper's:")
        yield records_table(table.paper, text_columns=TEXT_COLUMNS)


def describe_counts(counts: Mapping[str, Any]) -> str:
    """Return in one sentence how many answers the stages used, given `counts` of `read_board`."""
    small = " This is a small sample: differences within the intervals mean nothing." if counts["test"] < 300 else ""
    return (
        f"{format_count(counts['test'], 'test answer')} of {format_count(counts['test_groups'], 'group')}, "
        f"{counts['base_rate']:.1%} correct; {counts['train']:,} training and {counts['validation']:,} validation "
        f"answers with a label, of which the reviewed ones tune and calibrate. Base model {counts['model']}. "
        f"Intervals are at 95 %, by bootstrap of groups.{small}"
    )
