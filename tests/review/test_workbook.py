import hashlib
import re
import unicodedata
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook

from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.review.workbook import (
    COLUMNS,
    MAX_CELL,
    REVIEWER_COLUMNS,
    SAMPLED_COLUMNS,
    ReviewRow,
    check_seals,
    format_contexts,
    make_reviewer_cells,
    make_sampled_cells,
    make_workbook,
    read_workbook,
    to_bytes,
)
from tests.factories import interaction, review
from tests.review.builders import SEAL_KEY, cells_of, fill, rows_of, write_file

CONTEXTS = (Context(chunk_id="cards-gold#1", text="Fees\n\nThe fee is 90 euros."), Context(chunk_id="x#2", text="-1"))
RUN_OR_CONVERTED = ["=1+1", '=HYPERLINK("http://x","y")', "+31 20", "-1", "@SUM(A1)", "00123", "1e5", "TRUE", "#N/A"]
ODD = ["\x00a\x1f", "a\r\nb\rc\td\x7f\ufffe\uffff", "_x000D_ _x005F_x0041_ _xD800_", " x ", "\N{PILE OF POO}" * 9]
RUNS = st.builds(
    str.__mul__, st.sampled_from(["'", "=", "\x00", "_x", "_x0041_", "\n", "[1] ", "\u00e9"]), st.integers(1, 2_000)
)
texts = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | RUNS | st.sampled_from([*RUN_OR_CONVERTED, *ODD])
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [interaction(f"i-{n}", contexts=CONTEXTS, product="cards") for n in range(3)]
    return write_file(tmp_path / "reviews.xlsx", *rows)


@pytest.mark.heavy
@settings(max_examples=40)  # of up to 42 texts
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, texts)), max_size=3))
def test_workbook_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.mktemp("workbook") / "reviews.xlsx"
    path.write_bytes(to_bytes(make_workbook(rows, SEAL_KEY)))
    expected = [row for row in rows if any(row.values())]
    assert cells_of(path) == expected
    load_workbook(path).save(path)
    assert cells_of(path) == expected


@pytest.mark.parametrize("text", [*RUN_OR_CONVERTED, *ODD])
def test_workbook_odd_text_is_a_valid_text_cell(tmp_path: Path, text: str) -> None:
    asked = interaction(f"i{text}", question=f"{text}?", answer=text, contexts=[Context(chunk_id="c#1", text=text)])
    path = write_file(tmp_path / "reviews.xlsx", asked, cells=make_reviewer_cells(review(ideal_answer=text)))
    (row,) = read_workbook(path)
    assert (row.problem, row.cells["interaction_id"], row.cells["answer"]) == (None, asked.interaction_id, asked.answer)
    with ZipFile(path) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    filled = re.findall(r"<c ([^>]*)>(?!</c>)", sheet)
    assert len(filled) > len(COLUMNS) and all('t="inlineStr"' in one for one in filled), "no formula, number or error"


def test_workbook_long_cell_is_cut_and_its_row_stays_valid(tmp_path: Path) -> None:
    for text in ("x" * 100_000, "\N{PILE OF POO}" * 20_000, "\x00" * 10_000):
        path = write_file(tmp_path / "reviews.xlsx", interaction(answer=f"a{text}"))
        fill(path, lambda number, cells: {"complete": "yes"})
        (row,) = read_workbook(path)
        assert row.problem is None and row.cells["complete"] == "yes"
        assert row.cells["answer"].endswith(f" [... cut: {len(text) + 1:,} characters in all]")
        assert len(str(load_workbook(path)["reviews"]["C2"].value).encode("utf-16-le")) <= 2 * MAX_CELL
    write_file(tmp_path / "reviews.xlsx", interaction("\x00" * 1000))  # the longest id that there is
    with pytest.raises(AbstainError, match=r"'i{40}...' is longer than the 32,767 characters of a cell"):
        write_file(path, interaction(), cells={"ideal_answer": "i" * 40_000})


def test_workbook_protects_all_but_reviewer_cells(file: Path) -> None:
    sheet = load_workbook(file)["reviews"]
    assert sheet.protection.sheet and not sheet.protection.autoFilter
    for name, cell in zip(COLUMNS, sheet[2], strict=False):
        assert (cell.protection.locked, cell.number_format) == (name in SAMPLED_COLUMNS, "@")
        assert cell.alignment.wrap_text and sheet.column_dimensions[cell.column_letter].width >= 10
    (choice,) = sheet.data_validations.dataValidation
    assert (choice.type, choice.formula1, str(choice.sqref)) == ("list", '"yes,no"', "I2:K4")
    assert sheet.column_dimensions["O"].protection.locked is False
    assert load_workbook(file)["export"].sheet_state == "hidden"


@pytest.mark.heavy
@pytest.mark.parametrize("column", SAMPLED_COLUMNS)
def test_read_workbook_edited_locked_cell_rejects_its_row(file: Path, column: str) -> None:
    fill(file, lambda number, cells: {column: f"{cells[column]} x"} if number == 3 else {"complete": "yes"})
    rows = rows_of(file)
    assert rows[2].problem is None and rows[4].problem is None
    place = f"reviews!{'ABCDEFGH'[list(SAMPLED_COLUMNS).index(column)]}3: "
    assert rows[3].problem.startswith(place)


def test_read_workbook_takes_what_a_spreadsheet_writes(file: Path) -> None:
    values = {"complete": True, "correct": 1.0, "truthful": 0, "reviewed_at": datetime(2026, 11, 21, 14, 30)}
    fill(file, lambda number, cells: {"contexts": cells["contexts"].replace("\n", "_x000D_\n") + "  ", **values})
    fill(file, lambda number, cells: {"ideal_answer": "=A1"} if number == 4 else {})
    rows = rows_of(file)
    assert [rows[2].cells[name] for name in values] == ["True", "1", "0", "2026-11-21 14:30:00"]
    assert rows[2].problem is rows[3].problem is None
    assert rows[4].problem.startswith("reviews!L4: ideal_answer is a formula")


def test_read_workbook_rows_and_columns_may_be_moved(file: Path) -> None:
    old = load_workbook(file)["reviews"]
    book = load_workbook(file)
    sheet = book["reviews"]
    sheet.delete_rows(1, 9)
    header, first, second, _ = ([cell.value for cell in reversed(line)] for line in old["A1:N4"])
    sheet.append([None, "My notes", *(f" {name.upper()} " for name in header)])
    for line in (["mine", *second], [None] * 15, ["mine", *first], ["mine", *first]):
        sheet.append([None, *line])
    book.save(file)
    rows = rows_of(file)
    assert [(at, row.cells["interaction_id"]) for at, row in rows.items()] == [(2, "i-1"), (4, "i-0"), (5, "i-0")]
    assert {row.problem for row in rows.values()} == {None}
    assert rows[4].cell_addresses["complete"] == "H4"


def test_sampled_and_reviewer_cells_hold_the_row() -> None:
    asked = interaction("i-7", question="=What?", contexts=CONTEXTS, product="cards", line_of_business=None)
    contexts = "[1] cards-gold#1 (Gold › Fees, page 3)\nFees\n\nThe fee is 90 euros.\n\n[2] x#2\n-1"
    sampled = ("i-7", "=What?", "None.", contexts, "cards", "", "drift", "1 of 4")
    assert make_sampled_cells(asked, {"cards-gold#1": "Gold › Fees, page 3"}, "drift", 1, 4) == dict(
        zip(SAMPLED_COLUMNS, sampled, strict=True)
    )
    own = ("yes", "no", "yes", "90", "sme-1", "2026-09-03T12:00:00Z")
    filled = make_reviewer_cells(review("i-7", right=False, ideal_answer="90"))
    assert filled == dict(zip(REVIEWER_COLUMNS, own, strict=True))
    assert make_reviewer_cells(None) == dict.fromkeys(REVIEWER_COLUMNS, "")
    tricky = (Context(chunk_id="a#1", text="see\n[3] there\n\\[1] and here"), Context(chunk_id="b c#2", text="z"))
    assert format_contexts(tricky, {}) == "[1] a#1\nsee\n\\[3] there\n\\\\[1] and here\n\n[2] b c#2\nz"


DISGUISED = [
    "[2]\u00a0policy#99",
    "[2]\tpolicy#99",
    "[\u200b2] policy#99",
    "\uff3b2\uff3d policy#99",
    "[\uff12] policy#99",
]
LINES = st.builds(
    str.__add__,
    st.sampled_from(["", " ", "\t", "\\", "\\\\", "\u200b", "\u3000", "\ufeff \u00ad"]),
    st.sampled_from(["[1] a#1", "[2] policy#99", "[3] x", "[12] y", "[a] z", "text", "[2]", "", *DISGUISED])
    | st.text(max_size=5),
)
BREAKS = ["\n", "\n\n", "\r", "\u2028", "\x0b", "\x85"]


@given(st.lists(st.tuples(st.sampled_from(["a#1", "b c#2"]), st.lists(LINES, min_size=1), st.sampled_from(BREAKS))))
def test_format_contexts_no_text_forges_another_chunk(parts: list[tuple[str, list[str], str]]) -> None:
    texts = [(name, f"x{line_break.join(lines)}x{line_break}{lines[0]}y") for name, lines, line_break in parts]
    written = format_contexts([Context(chunk_id=name, text=text) for name, text in texts], {})
    seen = re.sub("[\u00ad\u200b\ufeff]", "", unicodedata.normalize("NFKC", written))
    shown = [line for line in seen.splitlines() if re.match(r"\s*\[\d+\]", line)]
    assert len(shown) == len(texts), "what a reviewer sees in a spreadsheet"


def test_check_seals_refuses_forged_rows_and_other_homes(file: Path) -> None:
    def forge(change: str) -> list[ReviewRow]:
        book = load_workbook(file)
        book["reviews"]["H3"].value = change
        book["export"]["H3"].value = hashlib.sha256(change.encode()).hexdigest()[:16]  # anybody can compute it
        book.save(file)
        return read_workbook(file)

    assert [row.problem for row in check_seals(forge("3 of 17"), SEAL_KEY)] == [None, None, None]
    rows = forge("1 of 999999999")
    assert [row.problem for row in rows] == [None, None, None]
    refused = [row.problem for row in check_seals(rows, SEAL_KEY)]
    assert refused[::2] == [None, None] and refused[1].startswith("reviews!H3: inclusion_probability")
    with pytest.raises(AbstainError, match="ABSTAIN_USER_KEY"):
        check_seals(rows, b"of another home")
    assert check_seals([], SEAL_KEY) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda book: book["reviews"].delete_cols(9), "'complete' of the sheet 'reviews'"),
        (lambda book: book["export"].delete_rows(1, 9), "'interaction_id' of the sheet 'export'"),
        (lambda book: book.remove(book["export"]), "the sheet 'export' is missing"),
        (b"", "is no .xlsx workbook"),
        (b"interaction_id,question\ni-1,What?\n", "is no .xlsx workbook"),
        (None, "cannot be read"),
    ],
)
def test_read_workbook_of_another_file_is_one_line(file: Path, change: Any, message: str) -> None:
    if change is None:
        file.unlink()
    elif isinstance(change, bytes):
        file.write_bytes(change)
    else:
        book = load_workbook(file)
        change(book)
        book.save(file)
    with pytest.raises(AbstainError) as error:
        read_workbook(file)
    assert str(error.value).startswith(f"{file}: ") and message in str(error.value) and "\n" not in str(error.value)
