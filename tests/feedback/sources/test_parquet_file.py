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

from abstain.errors import AbstainError
from abstain.feedback.rows import InputRow, parse_line, reread
from abstain.feedback.sources import parquet_file
from abstain.feedback.sources.parquet_file import read_parquet

from ..builders import ASKED, feedback, interaction, later, review
from ..test_rows import interactions, reviews, thumbs, with_key

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
            "asked_at: value error, not a timestamp: write it in UTC",
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
