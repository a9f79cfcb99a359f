import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason, ReasonKind
from abstain.data.store.dataset import DataStore, StagedBatch
from abstain.ingest.parsing import MAX_ROW_BYTES, MAX_ROW_VALUES, ParsedRow, make_reason, parse_line
from abstain.ingest.quarantine import (
    Quarantine,
    QuarantinedRow,
    QuarantineWriter,
    compute_row_digest,
    require_unblocked,
)
from tests.data.builders import alone, row, thumb, verdict


def at(raw: bytes) -> ParsedRow:
    return ParsedRow("a.jsonl", 1, raw)


def refuse(data: Path, *raws: bytes, blocking: str | None = None) -> str:
    """A file of rejected rows in the quarantine of `data`; its id."""
    with StagedBatch(DataStore(data)) as staging:
        writer = QuarantineWriter(staging)
        for number, raw in enumerate(raws, start=1):
            row = parse_line(raw, "a.jsonl", number)
            writer.add(QuarantinedRow.from_row(row, [make_reason("field", f"'{number}' is odd")]))
        name = writer.close()
        assert name
        if blocking:
            quarantine = Quarantine(data)
            quarantine.block(name, ["a.jsonl"], blocking)
            quarantine.stage_blocking(staging)
        staging.publish("quarantine")
    return name


@pytest.mark.parametrize(
    "fields",
    [
        row(thumb=thumb(user="u-1"), review=verdict()),
        alone(thumb(user="u-1", comment="a \u2028 b")),
        alone(verdict()),
        row(anwser="no"),
        alone(thumb(user_id="u-1")),
    ],
)
def test_quarantined_row_is_known_by_what_came(fields: dict[str, Any]) -> None:
    came = parse_line(json.dumps(fields).encode(), "a.jsonl", 7)
    why = (Reason(Code.FAILED_CHECK, "given_at", "too late", ReasonKind.TOO_LATE), make_reason("line", "why"))
    row = QuarantinedRow.model_validate_json(QuarantinedRow.from_row(came, why).to_json_line(), strict=True)
    assert (row.source, row.line, row.size, row.reasons) == ("a.jsonl", 7, len(came.raw), why)
    again = row.reparse()  # when it is tried again
    assert row.digest == compute_row_digest(came) == compute_row_digest(again)
    assert (row.raw is None) == bool(came.reasons)
    assert again.reasons == (why if came.reasons else ())
    assert list(again.iter_contents()) == list(came.iter_contents())
    assert QuarantinedRow.from_row(again, why) == row


def test_the_same_rows_make_the_same_file_and_others_another(tmp_path: Path) -> None:
    assert refuse(tmp_path / "data", b"{", b"[") == refuse(tmp_path / "data", b"{", b"[")
    assert refuse(tmp_path / "data", b"{") != refuse(tmp_path / "data", b"[")
    assert len(Quarantine(tmp_path / "data").list_paths()) == 3


def test_a_listing_says_what_is_there_and_what_it_holds_back(tmp_path: Path) -> None:
    name = refuse(tmp_path, b"{", b"[", blocking="too many")
    (listed,) = Quarantine(tmp_path).list_files()
    assert (listed.id, listed.rows, listed.sources, listed.blocking) == (name, 2, ("a.jsonl",), "too many")
    assert listed.reasons == {"A103 field: … is odd": 2}


def test_rows_are_known_until_they_are_accepted_and_dropped_ones_for_good(tmp_path: Path) -> None:
    held, other = refuse(tmp_path, b"{", b"[", blocking="too many"), refuse(tmp_path, b"?")
    quarantine = Quarantine(tmp_path)
    files = [quarantine.find_file(at(raw)) for raw in (b"{", b"?", b"!")]
    assert [file and file.stem for file in files] == [held, other, None]
    assert [quarantine.is_reported(at(raw)) for raw in (b"{", b"?")] == [False, True], "nobody has decided on the first"
    assert quarantine.discard(quarantine.get_file(held)) == 2
    quarantine = Quarantine(tmp_path)
    assert [path.stem for path in quarantine.list_paths()] == [other]
    assert quarantine.find_file(at(b"{")) is None
    assert quarantine.is_discarded(at(b"{")) and quarantine.is_reported(at(b"{"))
    with StagedBatch(DataStore(tmp_path)) as staging:
        quarantine.remove_accepted({compute_row_digest(at(b"?"))}, staging)
        staging.publish()
    assert Quarantine(tmp_path).list_paths() == []


def test_a_file_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="no id begins with 'x'; there are: nothing"):
        Quarantine(tmp_path).get_file("x")
    name = refuse(tmp_path, b"{")
    assert Quarantine(tmp_path).get_file(name[:3]).stem == name
    other = refuse(tmp_path, b"[")
    with pytest.raises(AbstainError, match=f"several ids begin with ''; there are: .*{other}"):
        Quarantine(tmp_path).get_file("")


def test_a_block_is_lifted_by_a_good_batch_of_its_sources_alone(tmp_path: Path) -> None:
    name = refuse(tmp_path, b"{", blocking="too many")
    with pytest.raises(
        AbstainError, match=rf"^the retrain is blocked: too many; .*`abstain quarantine discard {name}`$"
    ):
        require_unblocked(tmp_path)
    for sources, left in ((["b.jsonl"], 1), (["a.jsonl", "b.jsonl"], 0)):
        quarantine = Quarantine(tmp_path)
        quarantine.unblock(sources)
        assert len(quarantine.blocking) == left
    require_unblocked(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("fields", "goes"),
    [
        (alone(thumb(user="u-1")), True),
        (alone(thumb(user=" u-1 ")), True),
        (row(thumb=thumb(user="u-1")), True),
        (alone(thumb(user="u-12")), False),
        (alone(verdict(reviewer="u-1")), False),
        (row("u-1"), False),
        (row("gone"), True),
        (alone(verdict(), "gone"), True),
    ],
)
def test_the_rows_of_a_user_are_dropped(tmp_path: Path, fields: dict[str, Any], goes: bool) -> None:
    text = json.dumps(fields).encode()
    refuse(tmp_path, text, b"{")
    assert Quarantine(tmp_path).discard_user_rows({"u-1"}, {"gone"}) == int(goes)
    left = [row.line for row in Quarantine(tmp_path).iter_rows(Quarantine(tmp_path).get_file(""))]
    assert left == [2] if goes else left == [1, 2]
    assert Quarantine(tmp_path).is_discarded(parse_line(text, "a.jsonl", 1)) == goes


LONG = row(question="", thumb=thumb(user="u-1"))
AT_LIMIT = {
    "bytes": LONG | {"question": "x" * (MAX_ROW_BYTES - len(json.dumps(LONG, separators=(",", ":"))))},
    "values": LONG
    | {"question": "x", "writer_scores": {f"s{at}": 1.0 for at in range(MAX_ROW_VALUES - len(LONG) - 4)}},
}


@pytest.mark.parametrize("fields", AT_LIMIT.values(), ids=AT_LIMIT)
def test_a_row_at_a_limit_is_tried_again_and_dropped(tmp_path: Path, fields: dict[str, Any]) -> None:
    text = json.dumps(fields, separators=(",", ":")).encode()
    came = parse_line(text, "a.jsonl", 1)
    assert came.thumb is not None, "within the limits"
    longer = replace(came, thumb=came.thumb.model_copy(update={"comment": "<EMAIL_ADDRESS>" * 9}))
    again = QuarantinedRow.from_row(longer, [make_reason("line", "why")]).reparse()
    assert list(again.iter_contents()) == list(longer.iter_contents())
    refuse(tmp_path, text)
    assert Quarantine(tmp_path).discard_user_rows({"u-1"}) == 1


def test_with_a_users_last_row_goes_what_it_blocked(tmp_path: Path) -> None:
    refuse(tmp_path, json.dumps(alone(thumb(user="u-1"))).encode(), blocking="too many")
    assert Quarantine(tmp_path).discard_user_rows({"u-1"}) == 1
    require_unblocked(tmp_path)


def test_a_row_is_here_once_however_often_a_batch_gives_it(tmp_path: Path) -> None:
    refuse(tmp_path, b"{", b"{", b"[", b"{")
    assert Quarantine(tmp_path).list_files()[0].rows == 2
