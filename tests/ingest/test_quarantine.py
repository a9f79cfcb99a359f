import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason, ReasonKind
from abstain.data.store.dataset import DataStore, StagedBatch
from abstain.ingest import quarantine as module
from abstain.ingest.parsing import MAX_ROW_BYTES, MAX_ROW_VALUES, ParsedRow, make_reason, parse_line
from abstain.ingest.quarantine import Quarantine, QuarantinedRow, compute_row_digest, require_unblocked
from abstain.ingest.report import count_reasons
from abstain.ingest.sources.quarantine_source import QuarantineSource
from tests.factories import alone, row, thumb, verdict


def make_row(raw: bytes) -> ParsedRow:
    return ParsedRow("a.jsonl", 1, raw)


def refuse(data: Path, *raws: bytes, blocking: str | None = None) -> str:
    """A file of rejected rows in the quarantine of `data`; its id."""
    with StagedBatch(DataStore(data)) as staging:
        writer = module.QuarantineWriter(staging)
        for number, raw in enumerate(raws, start=1):
            row = parse_line(raw, "a.jsonl", number)
            writer.add(QuarantinedRow.from_row(row, [make_reason("field", f"'{number}' is odd")]))
        name = writer.close()
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
def test_quarantined_row_is_the_row_that_came(fields: dict[str, Any]) -> None:
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


def test_quarantine_file_is_named_by_its_distinct_rows(tmp_path: Path) -> None:
    assert refuse(tmp_path, b"{", b"{", b"[", b"{") == refuse(tmp_path, b"{", b"[")
    assert [listed.rows for listed in Quarantine(tmp_path).list_files()] == [2]
    assert refuse(tmp_path, b"{") != refuse(tmp_path, b"[")
    assert len(Quarantine(tmp_path).list_paths()) == 3


def test_quarantine_forgets_accepted_rows_not_discarded_ones(tmp_path: Path) -> None:
    held, other = refuse(tmp_path, b"{", b"[", blocking="too many"), refuse(tmp_path, b"?")
    quarantine = Quarantine(tmp_path)
    files = [quarantine.find_file(make_row(raw)) for raw in (b"{", b"?", b"!")]
    assert [file and file.stem for file in files] == [held, other, None]
    assert [quarantine.is_reported(make_row(raw)) for raw in (b"{", b"?")] == [False, True]
    assert quarantine.discard(quarantine.get_file(held)) == 2
    quarantine = Quarantine(tmp_path)
    assert [path.stem for path in quarantine.list_paths()] == [other]
    assert quarantine.find_file(make_row(b"{")) is None
    assert quarantine.is_discarded(make_row(b"{")) and quarantine.is_reported(make_row(b"{"))
    with StagedBatch(DataStore(tmp_path)) as staging:
        quarantine.remove_accepted({compute_row_digest(make_row(b"?"))}, staging)
        staging.publish()
    assert Quarantine(tmp_path).list_paths() == []


def test_quarantine_get_file_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="no id begins with 'x'"):
        Quarantine(tmp_path).get_file("x")
    name = refuse(tmp_path, b"{")
    assert Quarantine(tmp_path).get_file(name[:3]).stem == name
    other = refuse(tmp_path, b"[")
    with pytest.raises(AbstainError, match=f"several ids begin with ''.*{other}"):
        Quarantine(tmp_path).get_file("")


def test_quarantine_unblock_needs_all_sources_of_a_block(tmp_path: Path) -> None:
    name = refuse(tmp_path, b"{", b"[", blocking="too many")
    (listed,) = Quarantine(tmp_path).list_files()
    assert listed == module.QuarantineFile(name, 2, ("a.jsonl",), {"A103 field: … is odd": 2}, "too many")
    with pytest.raises(AbstainError, match=rf"too many; .*`abstain quarantine discard {name}`$"):
        require_unblocked(tmp_path)
    for sources, left in ((["b.jsonl"], 1), (["a.jsonl", "b.jsonl"], 0)):
        quarantine = Quarantine(tmp_path)
        quarantine.unblock(sources)
        assert len(quarantine.blocking) == left
    refuse(tmp_path / "own", json.dumps(alone(thumb(user="u-1"))).encode(), blocking="too many")
    assert Quarantine(tmp_path / "own").discard_user_rows({"u-1"}) == 1
    require_unblocked(tmp_path / "own")  # its last row lifts a block
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
def test_discard_user_rows_by_user_or_interaction(tmp_path: Path, fields: dict[str, Any], goes: bool) -> None:
    text = json.dumps(fields).encode()
    refuse(tmp_path, text, b"{")
    assert Quarantine(tmp_path).discard_user_rows({"u-1"}, {"gone"}) == int(goes)
    left = [row.line for row in Quarantine(tmp_path).iter_rows(Quarantine(tmp_path).get_file(""))]
    assert left == [2] if goes else left == [1, 2]
    assert Quarantine(tmp_path).is_discarded(parse_line(text, "a.jsonl", 1)) == goes


LONG = row(question="", thumb=thumb(user="u-1"))
SCORES = {f"s{number}": 1.0 for number in range(MAX_ROW_VALUES - len(LONG) - 4)}
AT_LIMIT = {
    "bytes": LONG | {"question": "x" * (MAX_ROW_BYTES - len(json.dumps(LONG, separators=(",", ":"))))},
    "values": LONG | {"question": "x", "writer_scores": SCORES},
}


@pytest.mark.parametrize("fields", AT_LIMIT.values(), ids=AT_LIMIT)
def test_quarantined_row_at_a_limit_is_reparsed(tmp_path: Path, fields: dict[str, Any]) -> None:
    text = json.dumps(fields, separators=(",", ":")).encode()
    came = parse_line(text, "a.jsonl", 1)
    longer = replace(came, thumb=came.thumb.model_copy(update={"comment": "<EMAIL_ADDRESS>" * 9}))
    again = QuarantinedRow.from_row(longer, [make_reason("line", "why")]).reparse()
    assert list(again.iter_contents()) == list(longer.iter_contents())
    refuse(tmp_path, text)
    assert Quarantine(tmp_path).discard_user_rows({"u-1"}) == 1


def test_count_reasons_ignores_particulars() -> None:
    longer, longest = (make_reason("answer", f"{count} characters, 200 allowed") for count in ("300", "1,201"))
    counts = count_reasons([(longer,), (longest, make_reason("model", "'x' odd"))])
    assert counts == {"A103 answer: … characters, … allowed": 2, "A103 model: … odd": 1}
    example = make_reason("asked_at", "not a timestamp: write it in UTC, as in 2026-01-31T12:00:00Z")
    assert count_reasons([(example,)]) == {example.message_with_code: 1}


def test_quarantine_source_gives_documents_first() -> None:
    refused = [parse_line(b"{", "a.jsonl", 7), ParsedRow("fees.md", 1, b"", (make_reason("file", "damaged"),))]
    source = QuarantineSource("q", [QuarantinedRow.from_row(row, row.reasons) for row in refused])
    assert [(row.source, row.line) for row in source.read({})] == [("fees.md", 1), ("a.jsonl", 7)]
