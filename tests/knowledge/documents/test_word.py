import io
from datetime import datetime
from typing import Any

import docx
import pytest

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.word import parse_word


def save(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def test_word_document_keeps_title_headings_and_nested_lists() -> None:
    document = docx.Document()
    document.core_properties.modified = datetime(2026, 8, 1, 9, 30)
    document.add_heading("Gold Card", 0)
    document.add_heading("Fees", 1)
    document.add_paragraph("Ten euros | a year.")
    for style, text in (("List Bullet", "One"), ("List Bullet 2", "Inner"), ("List Bullet", "Two")):
        document.add_paragraph(text, style)
    document.add_heading("Abroad", 2)
    document.add_paragraph("None.")
    fields, body = parse_word(save(document))
    assert fields == {"title": "Gold Card", "updated_at": "2026-08-01T09:30:00Z"}
    lists = "- One\n  - Inner\n- Two"
    assert body == f"# Gold Card\n\n# Fees\n\nTen euros | a year.\n\n{lists}\n\n## Abroad\n\nNone."


def test_word_table_repeats_merged_cells_and_has_a_header() -> None:
    document = docx.Document()
    table = document.add_table(rows=4, cols=3)
    for row, texts in enumerate((["", "Fee", ""], ["", "EU", "Other"], ["Cash", "1", "2"], ["", "3", "4"])):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(0, 1).merge(table.cell(0, 2))
    table.cell(2, 0).merge(table.cell(3, 0))
    _, body = parse_word(save(document))
    assert "|  | Fee | Fee |\n| --- | --- | --- |\n|  | EU | Other |\n| Cash | 1 | 2 |\n| Cash | 3 | 4 |" in body


@pytest.mark.parametrize("content", [b"PK\x03\x04 or not", b""])
def test_word_damaged_file_is_one_line(content: bytes) -> None:
    with pytest.raises(AbstainError, match=r"^.*save it again.*\Z"):
        parse_word(content)
