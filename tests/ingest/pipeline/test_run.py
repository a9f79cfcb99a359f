import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abstain.config.params import ValidationParams
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.core.json_lines import read_lines
from abstain.data.store.dataset import DataStore, read_rows
from abstain.data.store.record_keys import make_interaction_identity
from abstain.data.validation.runner import validate
from abstain.ingest.pipeline import ingest_pipeline
from abstain.ingest.pipeline.run import BatchRejected, ingest
from abstain.ingest.quarantine import Quarantine, QuarantinedRow, require_unblocked
from abstain.ingest.report import IngestReport, count_reasons
from abstain.ingest.sources.files import FileSource
from abstain.ingest.sources.quarantine_source import QuarantineSource
from abstain.knowledge.documents.reader import parse_document, read_documents, serialize_document
from tests.factories import NOW, PARAMS, accept_all, alone, bytes_of, later, markdown, row, thumb, verdict, write_lines
from tests.ingest.builders import LENIENT, NOT_LIKED, refuse, refuse_keys, take

STRICT = PARAMS.model_copy(update={"max_failed_fraction": 0.0})


def read_refused(data: Path, report: IngestReport) -> list[QuarantinedRow]:
    assert report.quarantine
    return list(read_rows(data / report.quarantine, QuarantinedRow))


def read_conflicts(data: Path, report: IngestReport) -> list[tuple[str, str]]:
    """The field of each reason that a row contradicts a known one, and the fields in which they differ."""
    reasons = [reason for row in read_refused(data, report) for reason in row.reasons]
    assert {reason.code for reason in reasons} == {Code.FAILED_CHECK}
    return [(reason.field, reason.message.split("differs in ")[1].removesuffix(")")) for reason in reasons]


def test_ingest_broken_rows_are_quarantined_with_every_reason(tmp_path: Path) -> None:
    broken = [b'{"interaction_id": "i', b'{"interaction_id": "\xff"}', json.dumps(row(zzz=1, model=None)).encode()]
    document = document_file(tmp_path, "bad.md", updated_at="!!bool x")
    file = write_lines(tmp_path / "a.jsonl", row("ok"), *broken)
    report = take(tmp_path / "data", document, file)
    assert (report.accepted, report.quarantined) == (1, 4)
    found = read_refused(tmp_path / "data", report)
    assert [refused.raw for refused in found] == [None] * 4
    places = [("bad.md", 1), *(("a.jsonl", number) for number in (2, 3, 4))]
    assert [(refused.source, refused.line) for refused in found] == places
    fields = [[reason.field for reason in refused.reasons] for refused in found]
    assert fields == [["file"], ["line"], ["line"], ["model", "zzz"]]
    assert {reason.code for refused in found for reason in refused.reasons} == {Code.INVALID_ROW}


@pytest.mark.parametrize(("name", "count"), [("rows.jsonl", 1), ("review-queue-week.jsonl", 0)])
def test_report_counts_reviews_weighted_by_their_source(tmp_path: Path, name: str, count: int) -> None:
    rows = row(review=verdict(inclusion_probability=0.5)), row("i-2", review=verdict())
    report = take(tmp_path / "data", write_lines(tmp_path / name, *rows))
    assert report.weighted_reviews == count
    assert ("1 reviews have the inclusion probability" in report.to_markdown()) == bool(count)


def test_ingest_reasoning_is_cut_out_of_answers(tmp_path: Path) -> None:
    thought = row(answer="<think>Five? Ten?</think> Five euros.", token_log_probs=[-0.5, -1])
    rows = thought, row("i-2", answer="<think>Five?"), row("i-3", answer="<think>Five?</think>"), row("i-4")
    data, file = tmp_path / "data", write_lines(tmp_path / "a.jsonl", *rows)
    report = take(data, file, reasoning=("think",))
    assert (report.accepted, report.quarantined, report.cut_answers) == (2, 2, 1)
    assert {reason.field for refused in read_refused(data, report) for reason in refused.reasons} == {"answer"}
    (cut, _) = DataStore(data).iter_rows(Interaction)
    assert (cut.answer, cut.token_log_probs) == ("Five euros.", None)
    assert take(data, file, reasoning=("think",)).duplicate == 2


def test_ingest_same_row_is_duplicate_other_content_conflicts(tmp_path: Path) -> None:
    scored = row(writer_scores={"judge": 7}, token_log_probs=[-0.5, -1], display="shown", propensity=0.9)
    replies = [row(thumb=thumb(value, user="u"), review=verdict(value == "up")) for value in ("up", "down")]
    strangers = [row("i-2", thumb=thumb(value)) for value in ("up", "down")]
    conflicting = [row(answer="Ten euros."), row(display="shown", propensity=0.9), *replies, *strangers]
    file = write_lines(tmp_path / "a.jsonl", row(), row(), *conflicting, scored | {"interaction_id": "i-3"})
    report = take(tmp_path / "data", file)
    assert (report.accepted, report.duplicate, report.quarantined) == (5, 1, 3)
    added = "display, propensity"
    fields = [("interaction_id", "answer"), ("interaction_id", added), ("thumb", "thumb"), ("review", "correct")]
    assert read_conflicts(tmp_path / "data", report) == fields
    known, _, kept = DataStore(tmp_path / "data").iter_rows(Interaction)
    assert (known.answer, known.writer_scores) == ("None.", None)
    assert (kept.writer_scores, kept.token_log_probs) == ({"judge": 7.0}, (-0.5, -1.0))


def test_ingest_joined_rows_become_records_added_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    report = take(data, write_lines(tmp_path / "a.jsonl", row("i-2", thumb=thumb(), review=verdict()), "", row()))
    assert (report.read, report.accepted, report.duplicate, report.quarantined) == (2, 2, 0, 0)
    assert report.contracts == {"interactions": 2, "feedback": 1, "reviews": 1, "documents": 0}
    report = take(data, write_lines(tmp_path / "b.jsonl", row(thumb=thumb()), row(review=verdict(), thumb=thumb())))
    assert (report.accepted, report.duplicate) == (2, 0)
    assert report.contracts == {"interactions": 0, "feedback": 1, "reviews": 1, "documents": 0}
    validate = Mock()
    again = take(data, write_lines(tmp_path / "c.jsonl", row(thumb=thumb(), review=verdict())), validate=validate)
    assert (again.accepted, again.duplicate) == (0, 1)
    validate.assert_not_called()
    assert [found.interaction_id for found in DataStore(data).iter_rows(Interaction)] == ["i-2", "i-1"]
    assert next(DataStore(data).iter_rows(Thumb)).thumb == "up"
    assert next(DataStore(data).iter_rows(Review)).reviewer == "sme-1"


def document_file(folder: Path, name: str, **fields: str) -> Path:
    (folder / name).write_text(markdown(**fields), encoding="utf-8")
    return folder / name


def read_texts(data: Path) -> tuple[list[str], list[str]]:
    """The last line of each chunk, and of each that was removed."""
    chunks = list(DataStore(data).iter_chunks())
    of_each = [[chunk.text.splitlines()[-1] for chunk in chunks if bool(chunk.removed_at) == gone] for gone in (0, 1)]
    return of_each[0], of_each[1]


def test_ingest_newer_document_replaces_chunks_others_conflict(tmp_path: Path) -> None:
    data, first = tmp_path / "data", document_file(tmp_path, "first.md")
    assert take(data, first).contracts["documents"] == take(data, first).duplicate == 1
    stored = serialize_document(parse_document(markdown().encode(), "a.md"))
    assert (data / "documents" / "fees.md").read_bytes() == stored
    assert read_texts(data) == (["There is no fee."], [])
    newer = document_file(tmp_path, "newer.md", updated_at="2026-08-02T00:00:00Z", body="The fee is ten euros.")
    assert take(data, newer).accepted == 1
    replaced = (["The fee is ten euros."], ["There is no fee."])
    assert read_texts(data) == replaced
    same_date = document_file(tmp_path, "same.md", updated_at="2026-08-02T00:00:00Z", body="The fee is nine euros.")
    never_seen = document_file(tmp_path, "older.md", updated_at="2026-07-01T00:00:00Z", body="Ask.")
    report = take(data, first, same_date)
    assert (report.duplicate, report.quarantined) == (1, 1), "an outdated version that was accepted once is known"
    for conflict in (report, take(data, never_seen)):
        (refused,) = read_refused(data, conflict)
        assert [(reason.code, reason.field) for reason in refused.reasons] == [(Code.FAILED_CHECK, "updated_at")]
    assert read_texts(data) == replaced
    for order in (1, -1):
        both = take(tmp_path / f"{order}", *[first, newer][::order])
        before = bytes_of(tmp_path / f"{order}")
        again = take(tmp_path / f"{order}", *[first, newer][::order])
        assert (both.accepted, both.quarantined, again.duplicate, again.quarantined) == (1, 1, 1, 1)
        assert read_texts(tmp_path / f"{order}") == (["The fee is ten euros."], [])
        assert bytes_of(tmp_path / f"{order}") == before


def test_ingest_reclassified_document_conflicts_beside_current(tmp_path: Path) -> None:
    data, first = tmp_path / "data", document_file(tmp_path, "first.md")
    second = tmp_path / "second.md"
    second.write_text(markdown().replace("entitlements: []", "entitlements: [staff]"))
    for accepted in (1, 0):
        report = take(data, first, second)
        assert (report.accepted, report.quarantined) == (accepted, 1)
    assert take(data, second).accepted == 1
    assert [found.entitlements for found in read_documents(DataStore(data).list_document_files())] == [("staff",)]


def test_ingest_rows_that_fail_validation_are_quarantined(tmp_path: Path) -> None:
    bad = [row("bad", thumb=thumb()), row("bad", review=verdict()), row("bad"), row(thumb=thumb())]
    file = write_lines(tmp_path / "a.jsonl", *bad, row(review=verdict()), row("fine", review=verdict()), row("fine"))
    report = take(tmp_path / "data", file, validate=refuse_keys("interactions/bad", "feedback/i-1"))
    assert (report.accepted, report.duplicate, report.quarantined) == (2, 1, 4)
    assert report.contracts == {"interactions": 2, "feedback": 0, "reviews": 2, "documents": 0}
    assert [found.interaction_id for found in DataStore(tmp_path / "data").iter_rows(Interaction)] == ["i-1", "fine"]
    assert [refused.reasons for refused in read_refused(tmp_path / "data", report)] == [(NOT_LIKED,)] * 4


def test_ingest_conflict_with_a_failed_row_is_no_conflict(tmp_path: Path) -> None:
    refuse_nones = refuse(lambda line: line.row.answer == "None.")
    file = write_lines(tmp_path / "a.jsonl", row(), row(answer="Ten euros."))
    report = take(tmp_path / "data", file, validate=refuse_nones)
    assert (report.accepted, report.quarantined) == (1, 1)
    assert [found.answer for found in DataStore(tmp_path / "data").iter_rows(Interaction)] == ["Ten euros."]
    again = take(tmp_path / "data", file, validate=refuse_nones)
    assert (again.accepted, again.duplicate, again.quarantined, again.newly_rejected) == (0, 1, 1, 0)


def test_ingest_too_many_rejected_rows_blocks_batch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "a.jsonl", row("first")))
    before = bytes_of(data)
    file = write_lines(tmp_path / "b.jsonl", row("ok"), row("bad", modle="m"), row("worse", modle="m"))
    for _ in range(2):  # the second time its bad rows are in quarantine already: that changes nothing
        with pytest.raises(BatchRejected, match="2 of 3 new rows fail") as refused:
            take(data, file, params=PARAMS)
        (listed,) = Quarantine(data).list_files()
        assert "2 x A103 modle: " in str(refused.value)
        assert f"abstain quarantine discard {listed.id}" in str(refused.value)
        assert (listed.rows, listed.sources) == (2, ("b.jsonl",)) and listed.blocking
        assert {name: content for name, content in bytes_of(data).items() if "quarantine" not in name} == before
        with pytest.raises(AbstainError, match=rf"`abstain quarantine discard {listed.id}`") as blocked:
            require_unblocked(data)
        assert blocked.value.code is Code.BATCH_REJECTED
    quarantine = Quarantine(data)
    assert quarantine.discard(quarantine.get_file(listed.id[:4])) == 2
    require_unblocked(data)
    report = take(data, file, params=PARAMS)
    assert (report.accepted, report.quarantined, report.newly_rejected, report.quarantine) == (1, 2, 0, None)
    assert Quarantine(data).list_files() == []


def test_ingest_good_batch_unblocks_its_source_alone(tmp_path: Path) -> None:
    data, first, second = tmp_path / "data", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    for file in (first, second, second):  # the last time its bad rows are stored already
        with pytest.raises(AbstainError):
            take(data, write_lines(file, row(file.stem, modle="m")), params=PARAMS)
    assert [block.sources for block in Quarantine(data).blocking.values()] == [["b.jsonl"], ["c.jsonl"]]
    take(data, write_lines(tmp_path / "other.jsonl", row("fine")), params=PARAMS)
    take(data, write_lines(second, row("mended")), params=PARAMS)
    with pytest.raises(AbstainError, match="batch of b.jsonl"):
        require_unblocked(data)
    take(data, write_lines(first, row("good")), params=PARAMS)
    require_unblocked(data)
    assert [found.interaction_id for found in DataStore(data).iter_rows(Interaction)] == ["fine", "mended", "good"]


def test_ingest_known_bad_rows_do_not_reject_later_batches(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = write_lines(tmp_path / "a.jsonl", row("one"), "{")
    assert take(data, file, params=PARAMS).quarantined == 1
    again = take(data, write_lines(file, "{", row("two")), params=PARAMS)
    assert (again.accepted, again.quarantined, again.newly_rejected, again.quarantine) == (1, 1, 0, None)
    before, known_good = bytes_of(data), [row(key) for key in ("one", "two")]
    with pytest.raises(BatchRejected, match="1 of 1 new rows fail"):
        take(data, write_lines(file, *known_good, row("bad", modle="m")), params=PARAMS)
    assert before.items() <= bytes_of(data).items()


def test_ingest_batch_within_the_limits_is_accepted(tmp_path: Path) -> None:
    few = PARAMS.model_copy(update={"min_failed_rows": 3})  # these refuse no batch, however small it is
    for accepted, params, lines in ((1, PARAMS, (row(), "{")), (0, few, ("{", "["))):  # half of them: just allowed
        report = take(tmp_path / f"{accepted}", write_lines(tmp_path / "a.jsonl", *lines), params=params)
        assert (report.accepted, report.quarantined) == (accepted, 2 - accepted)


TYPED: dict[str, Any] = {
    "long question": row("t", question="x" * 201),
    "emptied comment": row("t", thumb=thumb(comment="")),
    "blank question": row("t", question=" \t"),
    "half a character": row("t", question="\ud83d"),
    "row of 4 MiB": row("t", question="x" * 5_000_000),
}
"""Rows that people can cause by typing, each to be refused."""


@pytest.mark.heavy
@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_ingest_typed_error_rejects_its_row_never_the_batch(tmp_path: Path, typed: dict[str, Any]) -> None:
    for rows in ([row(), typed], [typed]):
        data = tmp_path / f"{len(rows)}"
        report = take(data, write_lines(tmp_path / "a.jsonl", *rows), params=STRICT, validate=validate)
        assert (report.accepted, report.quarantined, report.newly_rejected) == (len(rows) - 1, 1, 0)
        assert ("every row was rejected" in report.to_markdown()) == (len(rows) == 1)
        require_unblocked(data)


CLICKED = {
    "thumb on an old answer": [alone(thumb("down", days=0))],
    "review of an old answer": [alone(verdict(days=0))],
    "two thumbs within a second": [alone(thumb(value, days=-365, user="u-1")) for value in ("up", "down")],
}
"""Thumbs and reviews of which one is refused, on an answer of a year ago."""


@pytest.mark.heavy
@pytest.mark.parametrize("rows", CLICKED.values(), ids=CLICKED)
def test_ingest_late_feedback_rejects_its_row_never_the_batch(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "a.jsonl", row(asked_at=later(-365).isoformat())))
    report = take(data, write_lines(tmp_path / "b.jsonl", *rows), params=STRICT, validate=validate)
    assert (report.accepted, report.quarantined, report.newly_rejected) == (len(rows) - 1, 1, 0)


@pytest.mark.parametrize(
    "wrong", [{"question": ""}, {"question": None}, {"question": " ", "model": None}, {"question": []}]
)
def test_ingest_error_of_an_exporter_rejects_the_batch(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = write_lines(tmp_path / "a.jsonl", row(), row("t", **wrong))
    with pytest.raises(BatchRejected, match="1 of 2 new rows fail"):
        take(tmp_path / "data", file, params=STRICT, validate=validate)


def test_ingest_document_moved_to_another_source_stays(tmp_path: Path) -> None:
    data, folders = tmp_path / "data", [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        document_file(folder, "always.md", doc_id=f"always-{folder.name}")
    moving = document_file(folders[0], "fees.md")

    def mirror() -> set[str]:
        sources = [FileSource(name=folder.name, url=str(folder), mirror=True) for folder in folders]
        ingest(sources, data, LENIENT, NOW, validate=accept_all, incremental=True)
        return {document.doc_id for document in read_documents(DataStore(data).list_document_files())}

    mirror()
    moving.rename(folders[1] / "fees.md")
    assert "fees" in mirror() and "fees" in mirror()
    (folders[1] / "fees.md").unlink()
    assert "fees" not in mirror()
    assert {chunk.removed_at for chunk in DataStore(data).iter_chunks() if chunk.doc_id == "fees"} == {NOW}


def test_retry_validates_rows_again_and_keeps_failed_ones(tmp_path: Path) -> None:
    data, bad = tmp_path / "data", document_file(tmp_path, "bad.md", updated_at="soon")
    file = write_lines(tmp_path / "a.jsonl", row("i-1", thumb=thumb()), "{")
    report = take(data, file, bad, validate=refuse_keys("feedback/"))
    assert report.accepted == 0
    again = retry(data, LENIENT)
    assert (again.read, again.accepted, again.quarantined, again.newly_rejected) == (3, 1, 2, 0)
    left = read_refused(data, report)
    assert sorted(refused.source for refused in left) == ["a.jsonl", "bad.md"]
    assert again.reasons == count_reasons(refused.reasons for refused in left)
    (note,) = again.source_notes
    assert "the text of 2 rows was not kept" in note


def retry(data: Path, params: ValidationParams) -> IngestReport:
    path = Quarantine(data).get_file("")
    source = QuarantineSource(path.stem, tuple(Quarantine(data).iter_rows(path)))
    return ingest([source], data, params, NOW, validate=accept_all)


def test_retry_with_blank_rows_is_not_rejected(tmp_path: Path) -> None:
    data, limit = tmp_path / "data", PARAMS.model_copy(update={"max_failed_fraction": 0.1})
    rows = [row(f"{kind}-{at}") for kind, count in (("good", 20), ("bad", 12)) for at in range(count)]
    file = write_lines(tmp_path / "a.jsonl", *rows, *(row(f"blank-{at}", answer=" ") for at in range(10)))
    with pytest.raises(BatchRejected, match="12 of 32 new rows fail"):
        take(data, file, params=limit, validate=refuse_keys("interactions/bad"))
    again = retry(data, limit)
    assert (again.accepted, again.quarantined, again.newly_rejected) == (12, 10, 0)
    assert [listed.rows for listed in Quarantine(data).list_files()] == [10]


def test_ingest_early_feedback_is_pending_then_joined(tmp_path: Path) -> None:
    data = tmp_path / "data"
    early = write_lines(tmp_path / "early.jsonl", alone(thumb(user="u")), alone(verdict()), alone(thumb(), "i-9"))
    first = take(data, early)
    assert (first.read, first.accepted, first.pending, first.quarantined) == (3, 0, 3, 0)
    again = take(data, early)
    assert (again.pending, again.duplicate) == (0, 3)
    in_one_batch = [alone(thumb(value, user="u"), "i-2") for value in ("up", "down")]
    report = take(data, write_lines(tmp_path / "late.jsonl", row(), *in_one_batch, row("i-2")))
    assert (report.read, report.accepted, report.pending, report.quarantined) == (4, 3, 0, 1)
    assert report.resolved_pending == {"accepted": 2}
    store = DataStore(data)
    assert sorted(found.interaction_id for found in store.iter_rows(Thumb)) == ["i-1", "i-2"]
    assert len(list(store.iter_rows(Review))) == 1
    assert [len(list(read_lines(path))) for path in store.list_pending_files().values()] == [1]
    assert take(data, early).duplicate == 3


@pytest.mark.parametrize("reply", [thumb(user="u"), thumb(), verdict()], ids=["thumb", "anonymous thumb", "review"])
def test_ingest_rejected_pending_row_is_quarantined_once(tmp_path: Path, reply: dict[str, Any]) -> None:
    data, file = tmp_path / "data", tmp_path / "a.jsonl"
    spaced = json.dumps(alone(reply), separators=(", ", " : "))  # the same row in other words
    write_lines(file, alone(reply), spaced, row())
    first = take(data, file, validate=refuse_keys("feedback/", "reviews/"))
    assert (first.read, first.accepted, first.quarantined, first.newly_rejected) == (3, 1, 2, 2)
    assert len(read_refused(data, first)) == 1
    before = bytes_of(data)
    second = take(data, file, validate=refuse_keys("feedback/", "reviews/"))
    assert (second.duplicate, second.quarantined, second.newly_rejected) == (1, 2, 0)
    assert bytes_of(data) == before
    assert take(data, file).accepted == 1, "and it leaves once it is accepted"
    assert Quarantine(data).list_files() == []


def test_ingest_pending_rows_that_fail_count_with_copies(tmp_path: Path) -> None:
    data, early = tmp_path / "data", [alone(thumb(user=f"u-{n}")) for n in range(9)]
    take(data, write_lines(tmp_path / "early.jsonl", *early))
    file = write_lines(tmp_path / "a.jsonl", early[0], row())
    report = take(data, file, params=PARAMS, validate=refuse_keys("feedback/"))
    assert (report.accepted, report.duplicate, report.quarantined, report.newly_rejected) == (1, 0, 1, 1)
    assert report.resolved_pending == {"quarantined": 9}
    assert [refused.reasons for refused in read_refused(data, report)] == [(NOT_LIKED,)] * 9


def test_ingest_rejected_row_that_is_pending_stays_in_quarantine(tmp_path: Path) -> None:
    data, file = tmp_path / "data", write_lines(tmp_path / "a.jsonl", alone(thumb()), row())
    with pytest.raises(BatchRejected, match="1 of 2 new rows fail"):
        take(data, file, params=STRICT, validate=refuse_keys("feedback/"))
    assert take(data, file, validate=refuse_keys("feedback/")).accepted == 1
    assert [listed.rows for listed in Quarantine(data).list_files()] == [1]


@pytest.mark.parametrize("read", [1, 3])
def test_report_of_counts_that_do_not_add_up_raises(read: int) -> None:
    with pytest.raises(RuntimeError, match=f"{read} read, but 1 accepted, 1 duplicate"):
        IngestReport(read=read, accepted=1, duplicate=1, pending=0, quarantined=0, contracts={})


keys = st.sampled_from(["i-1", "i-2", "i-3"])
structured = st.builds(
    row,
    keys,
    answer=st.sampled_from(["None.", "Ten.", None, 3]),
    thumb=st.none() | st.builds(thumb, st.sampled_from(["up", "down", "?"]), user=st.sampled_from(["u", None])),
    review=st.none() | st.builds(verdict, st.booleans(), days=st.sampled_from([2, 3])),
)
loose = st.dictionaries(st.sampled_from([*row(), "thumb", "review"]) | st.text(), st.none() | st.integers() | st.text())
standalone = st.one_of(
    st.builds(lambda key, t: alone(t, key), keys, st.builds(thumb, st.sampled_from(["up", "?"]), user=st.just("u"))),
    st.builds(lambda key, v: alone(v, key), keys, st.builds(verdict, st.booleans())),
)
lines = st.lists(
    standalone.map(lambda found: json.dumps(found).encode())
    | structured.map(lambda found: json.dumps(found).encode())
    | loose.map(lambda found: json.dumps(found).encode())
    | structured.flatmap(lambda found: st.integers(0, 60).map(lambda cut: json.dumps(found).encode()[:cut]))
    | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(),
    max_size=8,
)
HELD_THEN_REFUSED = [json.dumps(found).encode() for found in (alone(verdict()), row())]


@pytest.mark.heavy
@example(HELD_THEN_REFUSED, "reviews/i-1")
@example([HELD_THEN_REFUSED[0], *HELD_THEN_REFUSED], "reviews/i-1")
@given(lines, st.sampled_from(["", "interactions/i-1", "feedback/i-2", "reviews/i-1"]))
def test_ingest_any_lines_add_up_and_twice_is_once(lines: list[bytes], bad: str) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = write_lines(folder / "a.jsonl", row("always"), *lines)
        validate = refuse_keys(bad) if bad else accept_all
        first = take(folder / "data", file, validate=validate)
        read = sum(bool(line.strip()) for line in file.read_bytes().split(b"\n"))
        assert first.read == read == first.accepted + first.duplicate + first.pending + first.quarantined
        data = DataStore(folder / "data")
        known = {found.interaction_id for found in data.iter_rows(Interaction)}
        assert len(known) == first.contracts["interactions"]
        assert {found.interaction_id for found in (*data.iter_rows(Thumb), *data.iter_rows(Review))} <= known
        held = [json.loads(text) for path in data.list_pending_files().values() for _, text in read_lines(path)]
        assert len(held) == first.pending
        assert known.isdisjoint(found["interaction_id"] for found in held)
        before = bytes_of(folder / "data")
        second = take(folder / "data", file, validate=validate)
        assert (second.accepted, second.pending, second.quarantined) == (0, 0, first.quarantined)
        assert bytes_of(folder / "data") == before


def correct(data: Path, *lines: Any, reason: str | None = "a wrong export", validate: Any = accept_all) -> IngestReport:
    return take(data, write_lines(data.parent / "corrected.jsonl", *lines), replace_reason=reason, validate=validate)


def count_replaced(report: IngestReport) -> dict[str, int]:
    return dict(Counter(replaced.table for replaced in report.replaced))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "1.jsonl", row("i-0"), row(thumb=thumb(user="ann"), review=verdict())))
    take(data, write_lines(tmp_path / "2.jsonl", row("i-2"), alone(thumb(user="ann"), "i-9")))
    return data


def test_replace_rows_take_the_place_of_stored_ones(stored: Path) -> None:
    names = set(bytes_of(stored))
    lines = [row(answer="Ten.", review=verdict(False)), alone(thumb("down", user="ann")), row("i-2"), row("i-3")]
    report = correct(stored, *lines, validate=validate)
    assert (report.accepted, report.duplicate, report.quarantined) == (3, 1, 0)
    assert count_replaced(report) == {"interactions": 1, "reviews": 1, "feedback": 1}
    assert report.contracts["interactions"] == 1
    store = DataStore(stored)
    answers = [(found.interaction_id, found.answer) for found in store.iter_rows(Interaction)]
    assert answers == [("i-0", "None."), ("i-1", "Ten."), ("i-2", "None."), ("i-3", "None.")], "each in its place"
    assert [found.thumb for found in store.iter_rows(Thumb)] == ["down"]
    assert [found.correct for found in store.iter_rows(Review)] == [False]
    assert set(bytes_of(stored)) - names == {"interactions/000003.jsonl"}
    assert correct(stored, *lines).duplicate == 4, "again it changes nothing"


def test_replace_batch_records_reason_and_interactions(stored: Path) -> None:
    correct(stored, row("i-0"), row("i-4"))
    assert not DataStore(stored).read_batches()[-1].replaced
    correct(stored, row(answer="Ten."), alone(verdict(False)))
    batch = DataStore(stored).read_batches()[-1]
    assert (batch.reason, batch.replaced) == ("a wrong export", (make_interaction_identity("i-1").hex(),))
    take(stored, write_lines(stored.parent / "5.jsonl", row("i-5")))
    names = [found.batch for found in DataStore(stored).read_batches()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("block_rows", [1, 20_000])
def test_replace_two_contents_in_file_conflict(stored: Path, block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_pipeline, "BLOCK_ROWS", block_rows)
    report = correct(stored, row(answer="Ten."), row(answer="Nine."), row("i-8"), row("i-8", answer="Ten."))
    assert (report.accepted, report.quarantined, count_replaced(report)) == (2, 2, {"interactions": 1})
    assert "Ten." in [found.answer for found in DataStore(stored).iter_rows(Interaction)]


def test_replace_row_that_fails_leaves_the_stored_one(stored: Path) -> None:
    before = bytes_of(stored)
    report = correct(stored, row(answer="Ten."), validate=refuse_keys("interactions/i-1"))
    assert (report.quarantined, count_replaced(report)) == (1, {})
    assert {name: text for name, text in bytes_of(stored).items() if "quarantine" not in name} == before


@pytest.mark.heavy
@pytest.mark.parametrize(("days", "count"), [(-1, 1), (1.5, 0)])
def test_replace_time_must_fit_the_stored_feedback(stored: Path, days: float, count: int) -> None:
    moved = row(asked_at=later(days).isoformat())
    report = correct(stored, moved, validate=validate)
    assert (report.accepted, report.quarantined) == (count, 1 - count)
    assert "its stored feedback would fail: given_at: before" in report.to_markdown() or count
    assert correct(stored, moved, alone(verdict(days=3)), validate=validate).quarantined == 1 - count


@pytest.mark.heavy
def test_replace_time_must_fit_earlier_feedback_of_its_file(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_pipeline, "BLOCK_ROWS", 1)
    moved = row("i-0", asked_at=later(0.7).isoformat())
    report = correct(stored, alone(thumb(days=0.5), "i-0"), moved, validate=validate)
    assert (report.accepted, report.quarantined, report.replaced) == (1, 1, ())


@pytest.mark.parametrize("is_accepted", [True, False])
def test_replace_pending_thumb_if_the_new_one_passes(stored: Path, is_accepted: bool) -> None:
    accept_up = refuse(lambda line: getattr(line.row, "thumb", "") == "down")
    lines = alone(thumb("down", user="ann"), "i-9"), row("i-9")
    report = correct(stored, *lines, validate=accept_all if is_accepted else accept_up)
    thumbs = [found.thumb for found in DataStore(stored).iter_rows(Thumb) if found.interaction_id == "i-9"]
    assert (thumbs, count_replaced(report)) == ((["down"], {"feedback": 1}) if is_accepted else (["up"], {}))
    assert not DataStore(stored).list_pending_files()


def test_replace_makes_rejected_conflict_leave_quarantine(stored: Path) -> None:
    assert correct(stored, row(answer="Ten."), reason=None).quarantined == 1
    assert correct(stored, row(answer="Ten.")).replaced and not Quarantine(stored).list_paths()


PARTS = {"contexts": [{"chunk_id": "fees#0", "text": "t"}], "writer_scores": {"judge": 7}, "token_log_probs": [-0.5]}


@pytest.mark.parametrize("reason", [None, "scored again"])
@pytest.mark.parametrize("name", PARTS)
def test_ingest_added_part_completes_the_stored_row(stored: Path, name: str, reason: str | None) -> None:
    scored = row(**{name: PARTS[name]})
    report = correct(stored, scored, reason=reason)
    assert (report.accepted, report.completed, report.replaced) == (1, 1, ())
    _, completed, _ = DataStore(stored).iter_rows(Interaction)
    assert json.loads(completed.to_json_line())[name] == PARTS[name]
    assert correct(stored, scored, reason=reason).duplicate == 1


@pytest.mark.parametrize("block_rows", [1, 20_000])
def test_ingest_parts_of_two_files_complete_row(stored: Path, block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_pipeline, "BLOCK_ROWS", block_rows)
    names = list(PARTS)
    new = [row("i-8", **{name: PARTS[name]}) for name in (names[0], names[1])]
    report = correct(stored, *(row(**{name: PARTS[name]}) for name in names), row("i-8"), *new, row(), reason=None)
    assert (report.accepted, report.completed, report.duplicate) == (6, 5, 1)
    _, known, _, added = DataStore(stored).iter_rows(Interaction)
    assert (known.writer_scores, known.token_log_probs, len(known.contexts)) == ({"judge": 7.0}, (-0.5,), 1)
    assert (added.writer_scores, len(added.contexts)) == ({"judge": 7.0}, 1)


def test_ingest_other_part_than_the_stored_one_conflicts(stored: Path) -> None:
    correct(stored, row(**PARTS), reason=None)
    report = correct(stored, row(**PARTS | {"token_log_probs": [-9]}), row(answer="x", **PARTS), reason=None)
    assert read_conflicts(stored, report) == [("interaction_id", "token_log_probs"), ("interaction_id", "answer")]
    assert count_replaced(correct(stored, row())) == {"interactions": 1}, "without the parts it replaces"
