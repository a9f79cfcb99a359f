import io
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.parsing import InputRow, parse_line, reread
from abstain.ingest.sources import parquet_file
from abstain.ingest.sources.parquet_file import read_parquet
from tests.data.builders import ASKED, feedback, interaction, later, review
from tests.ingest.pipeline.test_parsing import interactions, reviews, thumbs, with_key

OWN = {
    "interaction_id": ["i-1"],
    "asked_at": pa.array([ASKED], pa.timestamp("us", "UTC")),
    "question": ["What is the fee?"],
    "answer": ["None."],
    "model": ["m@1"],
}
CONTEXT = [{"chunk_id": "a#1", "text": "x"}]


def read(table: dict[str, Any] | pa.Table) -> list[InputRow]:
    file = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), file)
    return list(read_parquet(file, "a.parquet", "folder/a.parquet"))


def test_native_types() -> None:
    verdict = {"reviewed_at": later(2), "reviewer": "sme-1", "complete": True, "correct": False, "truthful": True}
    (found,) = read(
        OWN
        | {"contexts": [CONTEXT]}
        | {"thumb": [{"given_at": later(1), "thumb": "up", "user": None}], "review": [verdict], "product": [None]}
    )
    assert found.interaction == interaction(contexts=found.interaction.contexts if found.interaction else ())
    assert found.interaction is not None and found.interaction.contexts[0].text == "x"
    assert (found.feedback, found.review) == (feedback(), review(right=False))
    assert (found.source, found.line) == ("a.parquet", 1)
    assert reread(found.raw, found.source, 1) == found


def test_json_text_and_dotted_columns() -> None:
    texts = {"contexts": [json.dumps(CONTEXT)], "thumb.given_at": [later(1)], "thumb.thumb": ["up"]}
    review_text = '{"reviewed_at": "2026-09-03T12:00:00Z", "reviewer": "sme-1", "complete": true, "correct": true, "truthful": true}'
    (found,) = read(OWN | texts | {"review": [review_text]})
    assert (found.feedback, found.review) == (feedback(), review())
    assert found.interaction is not None and len(found.interaction.contexts) == 1


def test_a_part_whose_fields_are_all_null_is_not_there() -> None:
    struct = pa.struct([("given_at", pa.timestamp("us", "UTC")), ("thumb", pa.string())])
    (first, second) = read(
        {
            name: [*values] * 2 if isinstance(values, list) else pa.concat_arrays([values] * 2)
            for name, values in OWN.items()
        }
        | {"contexts": [[], []], "thumb": pa.array([{"given_at": None, "thumb": None}, None], struct)}
    )
    assert list(first.contents()) == list(second.contents()) == [interaction()]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_with_a_zone_in_any_unit(unit: str) -> None:
    zoned = {"asked_at": pa.array([ASKED], pa.timestamp(unit, "Europe/Paris"))}
    (found,) = read(OWN | zoned | {"contexts": [[]]})
    assert list(found.contents()) == [interaction()]


def test_nanoseconds_are_cut_off() -> None:
    moment = int(ASKED.timestamp()) * 10**9 + 1_234_567
    (found,) = read(OWN | {"asked_at": pa.array([moment], pa.timestamp("ns", "UTC"))} | {"contexts": [[]]})
    assert found.interaction is not None
    assert found.interaction.asked_at == ASKED + timedelta(microseconds=1234)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            {"asked_at": pa.array([ASKED.replace(tzinfo=None)], pa.timestamp("us"))},
            "asked_at: value error, timestamp without",
        ),
        (
            {"asked_at": pa.array([ASKED.date()], pa.date32())},
            "asked_at: value error, timestamp without a time zone: write it in UTC",
        ),
        ({"question": [7]}, "question: input should be a valid string"),
        ({"answer": [None]}, "answer: this field is missing"),
        ({"contexts": ["no JSON"]}, "contexts: input should be a valid"),
        ({"thumb": [{"given_at": ASKED, "thumb": "up", "usr": "u"}]}, "thumb.usr: unknown field, did you mean 'user'?"),
        ({"__index_level_0__": [0]}, "__index_level_0__: unknown field"),
    ],
)
def test_a_value_that_is_wrong_is_told_by_its_column(column: dict[str, Any], reason: str) -> None:
    (found,) = read(OWN | {"contexts": [[]]} | column)
    assert any(one.startswith(reason) for one in found.reasons), found.reasons
    assert reread(found.raw, found.source, 1) == found


def test_whole_numbers_are_ids_and_flags() -> None:
    (found,) = read(
        {
            "interaction_id": [17],
            "reviewed_at": [later(2)],
            "reviewer": [4],
            "complete": [1],
            "correct": [0],
            "truthful": [True],
        }
    )
    assert found.review == review("17", right=False, reviewer="4")
    (found,) = read(
        {
            "interaction_id": [17],
            "reviewed_at": [later(2)],
            "reviewer": [4],
            "complete": [2],
            "correct": [0],
            "truthful": [1],
        }
    )
    assert found.reasons == ("complete: input should be a valid boolean",)


def test_bytes_that_are_no_text_refuse_their_row_only() -> None:
    texts = pa.array([b"fine", b"caf\xe9", b"good"], pa.binary())
    table = {
        "interaction_id": ["i-1", "i-2", "i-3"],
        "given_at": [later(1)] * 3,
        "thumb": ["up"] * 3,
        "comment": pa.Array.from_buffers(pa.string(), 3, texts.buffers()),
    }
    first, second, third = read(table)
    assert (first.feedback, third.feedback) == (feedback(comment="fine"), feedback("i-3", comment="good"))
    assert second.reasons[0].startswith("line: not valid UTF-8 (byte ")
    assert b"caf\xe9" in second.raw


EON = 2**60
"""In any unit but nanoseconds, far beyond the year 9999."""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([EON], pa.timestamp("us", "UTC")), b"out of range: "),
        (pa.array([EON // 2000], pa.timestamp("s", "Europe/Paris")), b"out of range"),
        (pa.array([EON], pa.timestamp("ms")), b"out of range"),
        (pa.array([-(2**57)], pa.timestamp("us", "UTC")), b"-2597"),
        (pa.array([-(10**14)], pa.timestamp("s", "No/Where")), b"out of range"),
        (pa.array([2**30], pa.date32()), b"out of range"),
        (pa.array([EON], pa.date64()), b"out of range"),
        (pa.array([EON], pa.duration("s")), str(EON).encode()),
    ],
)
def test_a_time_that_python_cannot_hold_refuses_its_row_only(values: pa.Array, said: bytes) -> None:
    moments = pa.concat_arrays([values, pa.nulls(1, values.type)])
    odd, without = read({"interaction_id": ["i-1", "i-2"], "given_at": moments, "thumb": ["up", "up"]})
    assert odd.reasons[0].startswith("given_at: ")
    assert said in odd.raw
    assert reread(odd.raw, odd.source, odd.line) == odd
    assert without.reasons == ("given_at: this field is missing",)
    struct = pa.StructArray.from_arrays([values, pa.array(["up"])], ["given_at", "thumb"])
    (inside,) = read(OWN | {"contexts": [[]], "thumb": struct})
    assert inside.reasons[0].startswith("thumb.given_at: ")
    assert said in inside.raw and b'"thumb": "up"' in inside.raw


def test_a_moment_in_an_unknown_zone_is_still_a_moment() -> None:
    there = pa.array([int(ASKED.timestamp()), None], pa.timestamp("s", "No/Where"))
    first, second = read(
        {name: pa.concat_arrays([pa.array(values)] * 2) for name, values in OWN.items()}
        | {"contexts": [[], []], "asked_at": there}
    )
    assert first.interaction == interaction()
    assert second.reasons == ("asked_at: this field is missing",)


def test_bytes_that_are_no_text_inside_a_list_of_structs() -> None:
    texts = pa.array([b"caf\xe9"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, texts.buffers())
    contexts = pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.StructArray.from_arrays([pa.array(["a#1"]), text], ["chunk_id", "text"])
    )
    (found,) = read(OWN | {"contexts": contexts})
    assert found.reasons[0].startswith("line: not valid UTF-8 (byte ")
    assert b'[{"chunk_id": "a#1", "text": "caf\xe9"}]' in found.raw


units = st.sampled_from(["s", "ms", "us", "ns"])
types = st.one_of(
    st.builds(pa.timestamp, units, st.sampled_from([None, "UTC", "Asia/Tokyo", "No/Where", "+14:00"])),
    st.builds(pa.duration, units),
    st.just(pa.date64()),
)


@settings(max_examples=100, deadline=None)
@given(types, st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=4), st.booleans())
def test_any_time_is_a_row_or_a_reason(kind: pa.DataType, moments: list[int | None], nested: bool) -> None:
    # The file holds seconds as milliseconds.
    held = [one and (one // 1024 if kind == pa.timestamp("s", getattr(kind, "tz", None)) else one) for one in moments]
    values: Any = pa.array(held, pa.int64()).view(kind)
    column: dict[str, Any] = {"given_at": values}
    if nested:
        column = {"thumb": pa.StructArray.from_arrays([values], ["given_at"])}
    table = pa.RecordBatch.from_pydict({"interaction_id": ["i"] * len(moments)} | column)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([table]), file)
    rows = list(read_parquet(file, "a.parquet", "folder/a.parquet"))
    assert [found.line for found in rows] == list(range(1, len(moments) + 1))
    assert all(found.reasons for found in rows)  # a thumb without its word


def test_many_batches_are_numbered_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "_AT_ONCE", 3)
    rows = read({"interaction_id": [f"i-{n}" for n in range(10)], "given_at": [later(1)] * 10, "thumb": ["up"] * 10})
    assert [(row.line, row.feedback.interaction_id) for row in rows if row.feedback] == [
        (n + 1, f"i-{n}") for n in range(10)
    ]


def test_columns_that_say_the_same_stop_the_file() -> None:
    with pytest.raises(AbstainError, match=r"folder/a\.parquet: the columns 'thumb\.thumb' and 'thumb' say the same"):
        read({"interaction_id": ["i"], "thumb": ["up"], "thumb.thumb": ["down"]})


def test_a_file_that_is_damaged_inside_stops_the_reading(tmp_path: Path) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"interaction_id": [f"i-{n:05}" for n in range(5000)]}), file, compression="gzip")
    content = bytearray(file.getvalue())
    content[200:400] = bytes(200)
    with pytest.raises(AbstainError, match=r"folder/a\.parquet: cannot be read: ") as refused:
        list(read_parquet(io.BytesIO(bytes(content)), "a.parquet", "folder/a.parquet"))
    assert "\n" not in str(refused.value)


def native(fields: dict[str, Any]) -> dict[str, Any]:
    """An object with its moments as timestamps."""
    return {
        name: native(value)
        if isinstance(value, dict)
        else datetime.fromisoformat(value).astimezone(UTC)
        if name.endswith("_at")
        else value
        for name, value in fields.items()
    }


kinds = st.one_of(
    interactions,
    st.builds(lambda key, one: key | one, with_key, thumbs),
    st.builds(lambda key, one: key | one, with_key, reviews),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds)
def test_what_is_written_is_what_is_read(fields: dict[str, Any]) -> None:
    try:
        typed = native(fields)
        table = pa.Table.from_pylist([typed])
    except (OverflowError, ValueError, pa.ArrowException):  # a moment that Python or Arrow cannot hold
        return
    (found,) = read(table)
    expected = parse_line(json.dumps(typed, default=datetime.isoformat).encode(), "a", 1)
    assert list(found.contents()) == list(expected.contents())


def test_a_zone_other_than_utc_is_the_same_moment() -> None:
    there = datetime(2026, 9, 2, 14, tzinfo=timezone(timedelta(hours=2)))
    (found,) = read({"interaction_id": ["i-1"], "given_at": [there], "thumb": ["up"]})
    assert found.feedback == feedback()
