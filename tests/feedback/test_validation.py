"""Everything here runs the real Great Expectations suites."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from abstain.contracts import Context
from abstain.errors import AbstainError
from abstain.feedback.ingest import ingest
from abstain.feedback.store import Dataset, read_dataset, read_quarantine, row_key
from abstain.feedback.validation import ValidationResult, validate
from abstain.knowledge.markdown import chunk_document, parse_document

from .builders import (
    ASKED,
    NOW,
    PARAMS,
    feedback,
    interaction,
    later,
    markdown,
    review,
    row,
    thumb,
    verdict,
    write_lines,
)

pytestmark = pytest.mark.slow  # the import and some fifty runs of the suites: more than ten seconds

DOCUMENT = parse_document(markdown(), "fees.md")
CHUNKS = tuple(chunk_document(DOCUMENT))


def dataset(**tables: tuple) -> Dataset:
    return Dataset(**{"documents": (DOCUMENT,), "chunks": CHUNKS, "interactions": (interaction(),), **tables})


def check(data: Dataset) -> ValidationResult:
    return validate(data, PARAMS, NOW)


def citing(*chunk_ids: str, key: str = "i-1") -> tuple:
    return (interaction(key, contexts=tuple(Context(chunk_id=chunk_id, text="t") for chunk_id in chunk_ids)),)


def test_sound_rows_pass_every_suite() -> None:
    result = check(dataset(interactions=citing("fees#0"), feedback=(feedback(),), reviews=(review(),)))
    assert result.success
    assert result.reasons == {}
    assert result.notes == ()
    assert {found.suite for found in result.checks} == {"interactions", "feedback", "reviews", "documents", "chunks"}
    assert result.rows == {"interactions": 1, "feedback": 1, "reviews": 1, "documents": 1, "chunks": 1}


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"interactions": (interaction(), interaction(answer="x"))}, "interaction_id: 'i-1' occurs more than once"),
        ({"interactions": (interaction(asked_at=NOW + timedelta(seconds=30)),)}, "asked_at: 30 s in the future"),
        ({"interactions": (interaction(question="q" * 201),)}, "question: 201 characters, 200 allowed"),
        ({"interactions": (interaction(answer="a" * 201),)}, "answer: 201 characters, 200 allowed"),
        (
            {"interactions": (interaction(contexts=(Context(chunk_id="fees#0", text="t" * 201),)),)},
            "contexts: 201 characters, 200 allowed",
        ),
        ({"interactions": citing("fees#0", "b#1", "a#1")}, "contexts: no ingested document holds 'a#1', 'b#1'"),
        ({"feedback": (feedback("other"),)}, "interaction_id: there is no such interaction"),
        ({"feedback": (feedback(days=-1.5),)}, "given_at: before the question was asked (-1.5 days)"),
        ({"feedback": (feedback(days=91),)}, "given_at: 91 days after the question, 90 allowed"),
        ({"feedback": (feedback(days=61),)}, "given_at: 43,200 s in the future"),
        ({"feedback": (feedback(comment="c" * 201),)}, "comment: 201 characters, 200 allowed"),
        ({"feedback": (feedback(user="u"), feedback(user="u", thumb="down"))}, "thumb: this user gave two thumbs"),
        ({"feedback": (feedback().model_copy(update={"thumb": "left"}),)}, "thumb: 'left' is neither up nor down"),
        ({"reviews": (review("other"),)}, "interaction_id: there is no such interaction"),
        ({"reviews": (review(days=-1),)}, "reviewed_at: before the question was asked (-1 days)"),
        ({"reviews": (review(days=91),)}, "reviewed_at: 91 days after the question, 90 allowed"),
        ({"reviews": (review(ideal_answer="i" * 201),)}, "ideal_answer: 201 characters, 200 allowed"),
        ({"reviews": (review(), review(right=False))}, "review: this reviewer gave two verdicts at the same time"),
        (
            {"reviews": (review().model_copy(update={"inclusion_probability": 0.0}),)},
            "inclusion_probability: 0 is not in (0, 1]",
        ),
        ({"documents": (DOCUMENT, DOCUMENT)}, "doc_id: 'fees' occurs more than once"),
        ({"chunks": ()}, "document: nothing in it can be retrieved"),
        ({"documents": (DOCUMENT.model_copy(update={"updated_at": NOW + timedelta(days=1)}),)}, "updated_at: 86,400 s"),
        ({"chunks": CHUNKS * 2}, "chunk_id: 'fees#0' occurs more than once"),
        ({"chunks": (*CHUNKS, CHUNKS[0].model_copy(update={"chunk_id": "b#0", "doc_id": "b"}))}, "doc_id: there is no"),
        ({"chunks": (CHUNKS[0].model_copy(update={"chunk_id": "b#0"}),)}, "chunk_id: does not open with its doc_id"),
        ({"chunks": (CHUNKS[0].model_copy(update={"kind": "poem"}),)}, "kind: 'poem' is neither"),
        ({"chunks": (CHUNKS[0].model_copy(update={"updated_at": ASKED}),)}, "updated_at: not that of its document"),
        ({"chunks": (CHUNKS[0].model_copy(update={"text": "t" * 201}),)}, "text: 201 characters, 200 allowed"),
    ],
)
def test_a_row_that_breaks_an_expectation_is_named_with_the_reason(tables: dict[str, tuple], reason: str) -> None:
    data = dataset(**tables)
    result = check(data)
    assert not result.success
    broken = {row_key(found) for name in tables for found in (*tables[name], *data.documents)}
    found = [(key, why) for key, reasons in result.reasons.items() for why in reasons if why.startswith(reason)]
    assert found, result.reasons
    assert {key for key, _ in found} <= broken
    failing = [entry for entry in result.checks if entry.severity == "error" and not entry.success]
    assert {key for entry in failing for key in entry.sample} == set(result.reasons)


def test_the_limits_themselves_are_allowed() -> None:
    data = dataset(
        interactions=(interaction(answer="a" * 200), interaction("now", asked_at=NOW)),
        feedback=(feedback(days=0),),
        reviews=(review(days=60, inclusion_probability=1.0),),
    )
    assert check(data).success
    assert validate(dataset(reviews=(review(days=90),)), PARAMS, later(90)).success
    assert not validate(dataset(reviews=(review(days=90.001),)), PARAMS, later(91)).success


def test_answers_without_contexts_are_counted_but_refuse_nothing() -> None:
    rows = (interaction("a"), *citing("fees#0", key="b"), interaction("c"))
    result = check(dataset(interactions=rows))
    assert result.success
    (warning,) = result.warnings
    assert (warning.unexpected, warning.sample) == (2, ("interactions/a", "interactions/c"))
    assert warning.note == "contexts: answered without any context"
    assert "| contexts | at least 1 | warning | 2 | a, c |" in result.to_markdown()


def test_a_chunk_that_its_document_has_lost_is_only_a_warning() -> None:
    result = check(dataset(interactions=citing("fees#7")))
    assert result.success
    assert [(found.column, found.unexpected) for found in result.warnings] == [("outdated_contexts", 1)]


def test_empty_tables_are_skipped_with_a_note() -> None:
    result = check(Dataset())
    assert result.success
    assert result.checks == ()
    assert result.notes[0] == "interactions: no rows, the suite was skipped"
    assert len(result.notes) == 5
    assert "reviews: no rows" in result.to_markdown()


def test_without_documents_contexts_are_not_checked_and_that_is_said() -> None:
    result = check(Dataset(interactions=citing("x#1")))
    assert result.success
    assert "interactions: without documents their contexts were not checked" in result.notes


def test_the_result_is_deterministic_json_and_readable() -> None:
    data = dataset(interactions=(interaction(answer="a" * 201), interaction("i-2")), feedback=(feedback("gone"),))
    result = check(data)
    text = json.dumps(result.to_dict())
    assert text == json.dumps(check(data).to_dict())
    assert json.loads(text)["success"] is False
    page = result.to_markdown()
    assert "**Failed**: 2 expectations fail." in page
    assert "| answer_chars | at most 200 | **fails** | 1 | i-1 |" in page
    assert "- `interactions/i-1`: answer: 201 characters, 200 allowed (validation.max_text_chars)" in page


def test_an_expectation_that_cannot_be_evaluated_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.feedback.validation.tables", lambda *_: {**_no_tables(), "documents": [{"row": "r"}]})
    with pytest.raises(RuntimeError, match="could not be evaluated"):
        check(dataset())


def _no_tables() -> dict[str, list]:
    return {name: [] for name in ("interactions", "feedback", "reviews", "documents", "chunks")}


def test_ingest_quarantines_what_the_suites_refuse(tmp_path: Path) -> None:
    (tmp_path / "fees.md").write_text(markdown(), encoding="utf-8")
    file = write_lines(
        tmp_path / "rows.jsonl",
        row("good", thumb=thumb(), review=verdict(), contexts=[{"chunk_id": "fees#0", "text": "t"}]),
        row("early", thumb=thumb(days=-1)),
        row("lost", contexts=[{"chunk_id": "nowhere#1", "text": "t"}]),
        row("plain"),
    )
    files, data = [tmp_path / "fees.md", file], tmp_path / "data"
    report = ingest(files, data, PARAMS, NOW)
    assert (report.read, report.accepted, report.quarantined) == (5, 3, 2)
    assert report.quarantine
    assert {refused.line: refused.reasons for refused in read_quarantine(data / report.quarantine)} == {
        2: ("given_at: before the question was asked (-1 days)",),
        3: ("contexts: no ingested document holds 'nowhere#1'",),
    }
    assert "1 of 2 interactions: contexts: answered without any context" in report.to_markdown()
    stored = read_dataset(data)
    assert validate(stored, PARAMS, stored.newest()).success
    again = ingest(files, data, PARAMS, NOW)
    assert (again.accepted, again.duplicate, again.quarantined, again.quarantine_is_new) == (0, 3, 2, False)


def test_documents_that_would_leave_stored_contexts_without_one_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ingest([write_lines(tmp_path / "a.jsonl", row(contexts=[{"chunk_id": "cards#0", "text": "t"}]))], data, PARAMS, NOW)
    (tmp_path / "fees.md").write_text(markdown(), encoding="utf-8")
    with pytest.raises(AbstainError, match=r"break 1 rows already in data/, first interactions/i-1 \(contexts: no ing"):
        ingest([tmp_path / "fees.md"], data, PARAMS, NOW)
    (tmp_path / "cards.md").write_text(markdown("cards"), encoding="utf-8")
    assert ingest([tmp_path / "fees.md", tmp_path / "cards.md"], data, PARAMS, NOW).accepted == 2


def test_great_expectations_is_imported_only_when_rows_are_checked() -> None:
    code = (
        "import abstain.feedback.ingest, sys; sys.exit('great_expectations' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
