import io
from datetime import date, datetime

import pytest
from openpyxl import Workbook

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.spreadsheet import MAX_SHEETS, parse_spreadsheet


def save(workbook: Workbook) -> bytes:
    buffer = io.BytesIO()
    workbook.save(buffer)
    return buffer.getvalue()


def test_spreadsheet_sheets_are_sections_with_tables() -> None:
    workbook = Workbook()
    fees = workbook.active
    fees.title = "Fees"
    blocks = ([["Fees of 2026"]], [["Service", "EU", "Other"], ["Cash", 1.5, 2]], [["Since"], [date(2026, 8, 1)]])
    for row in (row for rows in blocks for row in ([], *rows)):
        fees.append(row)
    hidden = workbook.create_sheet("Draft")
    hidden.append(["secret"])
    hidden.sheet_state = "hidden"
    workbook.create_sheet("Rates").append(["Rate", "x"])
    workbook.properties.title = "Gold Card"
    fields, body = parse_spreadsheet(save(workbook))
    assert fields["title"] == "Gold Card" and datetime.fromisoformat(fields["updated_at"])
    table = "| Service | EU | Other |\n| --- | --- | --- |\n| Cash | 1.5 | 2 |"
    since, rates = "- Since\n- 2026-08-01", "| Rate | x |\n| --- | --- |"
    assert body == f"## Fees\n\nFees of 2026\n\n{table}\n\n{since}\n\n## Rates\n\n{rates}"


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (0.1 + 0.2, "General", "0.3"),
        (0.015, "0.0%", "1.5%"),
        (1234.5, "#,##0.00", "1,234.50"),
        (12, '"€"#,##0.00', "€ 12.00"),
        (datetime(2026, 8, 1, 9, 30), "yyyy-mm-dd hh:mm", "2026-08-01 09:30"),
        (True, "General", "yes"),
        ("two\nlines", "General", "two lines"),
    ],
)
def test_spreadsheet_cells_read_as_they_are_displayed(value: object, number_format: str, text: str) -> None:
    workbook = Workbook()
    sheet = workbook.active
    sheet.append(["Name", value])
    sheet.cell(1, 2).number_format = number_format
    assert f"| Name | {text} |" in parse_spreadsheet(save(workbook))[1]


def test_spreadsheet_merged_header_names_each_column() -> None:
    workbook = Workbook()
    sheet = workbook.active
    for row in (["Service", "Fee", None], [None, "EU", "Other"], ["Cash", 1, 2], [None, 3, 4]):
        sheet.append(row)
    for merged in ("A1:A2", "B1:C1", "A3:A4"):
        sheet.merge_cells(merged)
    _, body = parse_spreadsheet(save(workbook))
    assert "| Service | Fee EU | Fee Other |\n| --- | --- | --- |\n| Cash | 1 | 2 |\n| Cash | 3 | 4 |" in body


def test_spreadsheet_with_too_many_sheets_is_refused() -> None:
    workbook = Workbook()
    for _ in range(MAX_SHEETS):
        workbook.create_sheet()
    with pytest.raises(AbstainError, match=f"{MAX_SHEETS + 1} sheets, {MAX_SHEETS} allowed"):
        parse_spreadsheet(save(workbook))


def test_spreadsheet_rows_far_below_cost_nothing() -> None:
    workbook = Workbook()
    sheet = workbook.active
    sheet.append(["Name", "Fee"])
    sheet.cell(1_000_000, 2, "end")
    assert parse_spreadsheet(save(workbook))[1].endswith("| Name | Fee |\n| --- | --- |\n\nend")
