import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, make_reason, parse_line, reparse
from abstain.ingest.sources import csv_file
from abstain.ingest.sources.cells import parse_records
from abstain.ingest.sources.csv_file import CONTRACT_COLUMNS, iter_csv_records
from abstain.ingest.sources.lines import split_lines, to_utf8
from tests.ingest.test_parsing import interactions, review_rows, thumb_rows

THUMBS = "interaction_id,given_at,thumb,user,comment"


def read(content: str | bytes) -> list[ParsedRow]:
    chunks = [content if isinstance(content, bytes) else content.encode()]
    records = iter_csv_records(split_lines(to_utf8(chunks)), "a.csv", "folder/a.csv", CONTRACT_COLUMNS)
    return list(parse_records(records, "a.csv"))


def make_line(key: str, comment: str = "") -> str:
    return f"{key},2026-09-02T12:00:00Z,up,,{comment}"


def keys(rows: list[ParsedRow]) -> list[str | None]:
    return [row.thumb.interaction_id if row.thumb else None for row in rows]


def test_csv_record_over_lines_has_the_number_of_its_first() -> None:
    text = '"one\n\ntwo, ""three"""'
    rows = read(f"{THUMBS}\r\n{make_line('i-1', text)}\r\n{make_line('i-2')}\r\n")
    assert [row.line for row in rows] == [2, 5]
    assert rows[0].thumb.comment == 'one\n\ntwo, "three"'


@pytest.mark.parametrize(("row", "cells"), [("i-2,2026-09-02T12:00:00Z,up,", 4), (make_line("i-2", "a, b"), 6)])
def test_csv_row_of_wrong_length_is_refused_with_its_line(row: str, cells: int) -> None:
    rows = read(f"{THUMBS}\n{make_line('i-1')}\n{row}\n{make_line('i-3')}\n")
    assert keys(rows) == ["i-1", None, "i-3"]
    assert rows[1].reasons == (make_reason("line", f"{cells} cells, but the header names 5 columns: they are shifted"),)
    assert (rows[1].line, rows[1].raw) == (3, row.encode())


def test_csv_invalid_utf8_refuses_its_row_only() -> None:
    rows = read("\n".join([THUMBS, make_line("i-1"), make_line("i-2", "caf\xe9"), make_line("i-3")]).encode("latin-1"))
    assert keys(rows) == ["i-1", None, "i-3"]
    assert str(rows[1].reasons[0]).startswith("line: not valid UTF-8 (byte ")
    assert b'"caf\xe9"' in rows[1].raw


@pytest.mark.parametrize("hint", ["sep=;", '"sep=;"', "SEP=;;;;;"])
def test_csv_first_line_names_the_delimiter_for_excel(hint: str) -> None:
    columns, *lines = (line.replace(",", ";") for line in (THUMBS, make_line("i-1", "a"), make_line("i-2")))
    rows = read("\r\n".join([hint, columns, *lines]))
    assert keys(rows) == ["i-1", "i-2"] and rows[0].line == 3


def test_csv_of_another_encoding_is_one_clear_line() -> None:
    with pytest.raises(AbstainError, match=r"folder/a\.csv: line 1 is not UTF-8 .*Windows-1252.*iconv"):
        read(f"{THUMBS},gepr\xfcft\n".encode("cp1252"))
    lines = "a,b\n1,2\n3,J\xf6rg\n".encode("cp1252").split(b"\n")
    with pytest.raises(AbstainError, match="line 3 is not UTF-8"):
        list(iter_csv_records(lines, "a.csv", "folder/a.csv"))


def test_csv_unclosed_quote_refuses_its_row_only() -> None:
    after = [make_line(f"i-{n}") for n in range(3, 50)]
    rows = read("\n".join([THUMBS, make_line("i-1"), make_line("i-2", '"no end'), *after]))
    assert keys(rows) == ["i-1", None, *(f"i-{n}" for n in range(3, 50))]
    assert rows[1].reasons[0].field == "line" and rows[1].raw.endswith(b'"no end')
    rows = read("\n".join([THUMBS, make_line("i-1", '"no end'), make_line("i-2", '"fine"'), make_line("i-3", '"a"b')]))
    assert keys(rows) == [None, "i-2", None]
    assert rows[2].reasons[0].field == "line"


def test_csv_too_many_unclosed_quotes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "_MAX_REREAD_BYTES", 4000)
    with pytest.raises(AbstainError, match=r"folder/a\.csv: .* line 4"):
        read("\n".join([THUMBS, *['a",",""'] * 200]))


def test_csv_record_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "MAX_LINE_BYTES", 300)
    monkeypatch.setattr(csv_file.csv, "field_size_limit", lambda size: None)
    rows = read("\n".join([THUMBS, make_line("i-1", '"no end'), *(make_line(f"i-{n}") for n in range(2, 30))]))
    assert keys(rows) == [None, *(f"i-{n}" for n in range(2, 30))]
    assert "300 bytes" in rows[0].reasons[0].message


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_csv_lines_without_a_filled_cell_are_skipped(ends: str) -> None:
    lines = ["", THUMBS, "", make_line("i-1"), ",,,,", "  ", make_line("i-2"), ""]
    assert keys(read(ends.join(lines))) == ["i-1", "i-2"]
    assert read(f"{THUMBS}{ends}") == []
    with pytest.raises(AbstainError, match=r"folder/a\.csv: .*its first line names no known column"):
        read(f"{ends} {ends}")


def test_csv_wrong_cell_is_refused_by_its_column() -> None:
    (found,) = read(f"{THUMBS}\n,02.09.2026,up,12,\n")
    assert [reason.field for reason in found.reasons] == ["interaction_id", "given_at"]
    assert json.loads(found.raw) == {"given_at": "02.09.2026", "thumb": "up", "user": "12"}
    (twice,) = read('question,answer,contexts\nq,a,"[{""chunk_id"": ""a"", ""chunk_id"": ""b""}]"\n')
    (reason,) = (reason for reason in twice.reasons if reason.field == "contexts")
    assert reason.message.startswith("chunk_id: ")
    assert [reparse(row.raw, row.source, row.line) for row in (found, twice)] == [found, twice]


def test_csv_endless_first_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.ingest.sources.lines.MAX_LINE_BYTES", 100)
    with pytest.raises(AbstainError, match="its first line holds no column names: a line is too long"):
        read(THUMBS * 10)


def flatten(fields: dict[str, Any]) -> dict[str, str]:
    """An object as the cells of a table."""
    cells: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            cells |= {f"{name}.{inner}": cell for inner, cell in flatten(value).items()}
        elif value is not None:
            cells[name] = value if isinstance(value, str) else json.dumps(value)
    return cells


kinds = st.one_of(st.lists(rows, min_size=1, max_size=3) for rows in (interactions, thumb_rows, review_rows))


@pytest.mark.heavy
@settings(max_examples=150)
@given(kinds, st.sampled_from(",;\t"), st.sampled_from(["\n", "\r\n"]))
def test_csv_round_trip_keeps_every_row(objects: list[dict[str, Any]], delimiter: str, ends: str) -> None:
    table = [flatten(one) for one in objects]
    columns = list(dict.fromkeys(column for cells in table for column in cells))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, delimiter=delimiter, lineterminator=ends, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(table)
    found = read(out.getvalue())
    assert len(found) == len(objects)
    for row, fields in zip(found, objects, strict=True):
        expected = parse_line(json.dumps(fields).encode(), "a.csv", 1)
        assert list(row.iter_contents()) == list(expected.iter_contents())


@pytest.mark.heavy
@settings(max_examples=200)
@given(
    st.lists(
        st.binary() | st.sampled_from([b'"', b"\n", b",", b'""', b"i-1,2026-09-02T12:00:00Z,up,,"]), max_size=25
    ).map(b"".join)
)
def test_csv_any_bytes_below_a_header_are_rows_in_order(content: bytes) -> None:
    rows = read(THUMBS.encode() + b"\n" + content)
    numbers = [row.line for row in rows]
    assert numbers == sorted(set(numbers))
    assert all(bool(row.reasons) != bool(list(row.iter_contents())) for row in rows)
    assert len(rows) <= content.count(b"\n") + 1
