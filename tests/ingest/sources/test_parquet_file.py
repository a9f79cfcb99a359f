import io
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, parse_line, reparse
from abstain.ingest.sources import parquet_file
from abstain.ingest.sources.cells import iter_converted_records, parse_records
from abstain.ingest.sources.parquet_file import write_json_lines
from tests.factories import ASKED, feedback, interaction, later
from tests.ingest.test_parsing import interactions, review_rows, thumb_rows

OWN = {
    "interaction_id": ["i-1"],
    "asked_at": pa.array([ASKED], pa.timestamp("us", "UTC")),
    "question": ["What is the fee?"],
    "answer": ["None."],
    "model": ["m@1"],
}


def read(table: dict[str, Any] | pa.Table) -> list[ParsedRow]:
    file, lines = io.BytesIO(), io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), file)
    write_json_lines(file, lines)
    return list(parse_records(iter_converted_records([lines.getvalue()], "a.parquet"), "a.parquet"))


def test_parquet_zones_are_converted_structs_of_nulls_missing() -> None:
    moment = int(ASKED.timestamp()) * 10**9 + 1_234_567  # of which nanoseconds are cut off
    struct = pa.struct([("given_at", pa.timestamp("s", "Asia/Tokyo")), ("thumb", pa.string())])
    thumbs = pa.array([{"given_at": later(1), "thumb": "up"}, {"given_at": None, "thumb": None}], struct)
    asked_at = pa.array([moment] * 2, pa.timestamp("ns", "Europe/Paris"))
    texts = {name: list(values) * 2 for name, values in OWN.items() if name != "asked_at"}
    rows = read(texts | {"asked_at": asked_at, "thumb": thumbs, "contexts": [[]] * 2})
    asked = interaction(asked_at=ASKED.replace(microsecond=1234))
    assert [list(row.iter_contents()) for row in rows] == [[asked, feedback()], [asked]]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"asked_at": pa.array([ASKED.replace(tzinfo=None)], pa.timestamp("us"))}, "asked_at: "),
        ({"asked_at": pa.array([ASKED.date()], pa.date32())}, "asked_at: "),
        ({"question": [7]}, "question: input should be a valid string"),
        ({"thumb": [{"given_at": ASKED, "thumb": "up", "usr": "u"}]}, "thumb.usr: unknown field, did you mean 'user'?"),
    ],
)
def test_parquet_wrong_value_is_refused_by_its_column(column: dict[str, Any], reason: str) -> None:
    (row,) = read(OWN | {"contexts": [[]]} | column)
    assert any(str(one).startswith(reason) for one in row.reasons), row.reasons
    assert reparse(row.raw, row.source, 1) == row


NOT_TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"fine", b"caf\xe9", b"good"], pa.binary()).buffers())
NO_YEAR = pa.array([ASKED, None, ASKED], pa.timestamp("us", "UTC")).fill_null(2**60)


@pytest.mark.parametrize(("field", "values"), [("comment", NOT_TEXT), ("given_at", NO_YEAR)])
def test_parquet_unreadable_value_refuses_its_row(field: str, values: pa.Array) -> None:
    table = {"interaction_id": ["i-1", "i-2", "i-3"], "given_at": [later(1)] * 3, "thumb": ["up"] * 3}
    first, second, third = read(table | {field: values})
    assert first.thumb and third.thumb
    assert second.reasons[0].field == field
    assert b"unreadable" in second.raw and b'"i-2"' in second.raw
    assert reparse(second.raw, second.source, second.line) == second


units = st.sampled_from(["s", "ms", "us", "ns"])
types = st.one_of(
    st.builds(pa.timestamp, units, st.sampled_from([None, "UTC", "Asia/Tokyo", "No/Where", "+14:00"])),
    st.builds(pa.duration, units),
    st.just(pa.date64()),
)


@given(types, st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=4), st.booleans())
def test_parquet_any_time_is_a_row_or_a_reason(kind: pa.DataType, moments: list[int | None], nested: bool) -> None:
    # The file holds seconds as milliseconds.
    stored = [one and (one // 1024 if kind == pa.timestamp("s", getattr(kind, "tz", None)) else one) for one in moments]
    values: Any = pa.array(stored, pa.int64()).view(kind)
    column = {"thumb": pa.StructArray.from_arrays([values], ["given_at"])} if nested else {"given_at": values}
    rows = read({"interaction_id": ["i"] * len(moments)} | column)
    assert [row.line for row in rows] == list(range(1, len(moments) + 1))
    assert all(row.reasons for row in rows)  # a thumb without its word


def test_parquet_rows_are_numbered_across_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 3)
    rows = read({"interaction_id": [f"i-{n}" for n in range(10)], "given_at": [later(1)] * 10, "thumb": ["up"] * 10})
    assert [(row.line, row.thumb.interaction_id) for row in rows if row.thumb] == [(n + 1, f"i-{n}") for n in range(10)]


def test_parquet_damaged_file_is_an_error() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"interaction_id": [f"i-{n:05}" for n in range(5000)]}), file, compression="gzip")
    content = bytearray(file.getvalue())
    content[200:400] = bytes(200)
    with pytest.raises(AbstainError, match=r"^cannot be read: .*\Z"):
        write_json_lines(io.BytesIO(bytes(content)), io.BytesIO())
    with pytest.raises(AbstainError, match=r"^the columns 'thumb\.thumb' and 'thumb' are redundant"):
        read({"interaction_id": ["i"], "thumb": ["up"], "thumb.thumb": ["down"]})


def to_native(fields: dict[str, Any]) -> dict[str, Any]:
    values = {name: to_native(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {
        name: datetime.fromisoformat(value).astimezone(UTC) if name.endswith("_at") else value
        for name, value in values.items()
    }


@settings(max_examples=60)
@given(interactions | thumb_rows | review_rows)
def test_parquet_round_trip_keeps_every_row(fields: dict[str, Any]) -> None:
    try:
        typed = to_native(fields)
        table = pa.Table.from_pylist([typed])
    except (OverflowError, ValueError, pa.ArrowException):  # a moment that Python or Arrow cannot hold
        return
    (row,) = read(table)
    expected = parse_line(json.dumps(typed, default=datetime.isoformat).encode(), "a", 1)
    assert list(row.iter_contents()) == list(expected.iter_contents())
