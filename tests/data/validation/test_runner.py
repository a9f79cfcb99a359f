import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.config.params import ValidationParams
from abstain.core.contracts import Chunk, Document, Interaction, Review, Thumb, make_unnamed_context
from abstain.core.json_lines import to_json_lines
from abstain.data.store.dataset import DataStore
from abstain.data.store.key_index import KeyIndex
from abstain.data.store.record_keys import make_record
from abstain.data.validation.checks import TABLES, ExistingData, ValidatedRows, expect_present
from abstain.data.validation.results import MAX_LISTED_ROWS, MAX_SAMPLE_ROWS, ValidationResult
from abstain.data.validation.runner import run_suites, validate
from abstain.data.validation.store_validation import validate_store
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.quarantine import Quarantine, require_unblocked
from abstain.ingest.report import IngestReport
from abstain.ingest.sources.files import make_explicit_sources
from tests import factories
from tests.factories import CHUNK, DOCUMENT, NOW, PARAMS, cited, feedback, interaction, markdown, review, row, thumb

pytestmark = pytest.mark.slow  # the import and some fifty runs of the suites: more than ten seconds

Tables = dict[str, tuple]


def validate_tables(tables: Tables, params: ValidationParams = PARAMS) -> ValidationResult:
    every: Tables = {"documents": (DOCUMENT,), "chunks": (CHUNK,), "interactions": (interaction(),), **tables}
    stored = {
        name: tuple(make_record(row) for row in every.get(name, ())) for name in ("interactions", "feedback", "reviews")
    }
    known = ExistingData(KeyIndex(), {"fees"}, {"fees#0"})
    rows = ValidatedRows(documents=every["documents"], chunks=every["chunks"], **stored)
    return validate(rows, known, params, NOW)


def make_citing(*chunk_ids: str, key: str = "i-1") -> tuple:
    return (interaction(key, contexts=cited(*chunk_ids)),)


def get_key(found: Any) -> str:
    if isinstance(found, Document):
        return f"documents/{found.doc_id}"
    return f"chunks/{found.chunk_id}" if isinstance(found, Chunk) else make_record(found).key


def test_validate_sound_rows_up_to_the_limits_pass() -> None:
    full, day = "a" * 200, timedelta(days=1)
    unnamed = make_unnamed_context(full)  # of no document
    asked = interaction(question=full, answer=full, contexts=(*cited("fees#0"), unnamed), token_log_probs=(-1.0, 0.0))
    late = interaction("i-2", asked_at=NOW - 90 * day, contexts=(unnamed,), display="shown", propensity=1.0)
    result = validate_tables(
        {
            "interactions": (asked, late, interaction("i-3", asked_at=NOW, contexts=(unnamed,))),
            "feedback": (feedback(comment=full, days=0), Thumb(interaction_id="i-2", thumb="up", given_at=NOW)),
            "reviews": (
                review(days=0, ideal_answer=full, inclusion_probability=1e-6),
                Review(**review("i-2", inclusion_probability=1).model_dump() | {"reviewed_at": NOW}),
            ),
        }
    )
    assert result.success and result.reasons == {} and result.warnings == result.all_notes == ()
    assert {check.suite for check in result.checks} == set(TABLES)
    assert result.rows == {"interactions": 3, "feedback": 2, "reviews": 2, "documents": 1, "chunks": 1}


def test_validate_allows_clock_skew() -> None:
    skew = PARAMS.model_copy(update={"max_clock_skew_seconds": 300})
    ahead = [interaction(str(seconds), asked_at=NOW + timedelta(seconds=seconds)) for seconds in (300, 301)]
    behind = [feedback(days=-seconds / 86400) for seconds in (300, 301)]
    result = validate_tables({"interactions": (interaction(), *ahead), "feedback": tuple(behind)}, params=skew)
    assert set(result.reasons) == {get_key(ahead[1]), get_key(behind[1])}


def change(row: Any, **changes: Any) -> Any:
    return row.model_copy(update=changes)


TWO_THUMBS, TWO_VERDICTS = "thumb: this user gave two thumbs", "review: this reviewer gave two reviews"
BROKEN: list[tuple[Any, str]] = [
    (interaction("twice"), "interaction_id: 'twice' occurs more than once"),
    (interaction("twice", answer="x"), "interaction_id: 'twice' occurs more than once"),
    (interaction("early", asked_at=NOW + timedelta(seconds=30)), "asked_at: 30 s in the future, 0 allowed"),
    (interaction("long", answer="a" * 201), "answer: 201 characters, 200 allowed"),
    (change(interaction("silent"), answer=""), "answer: this field is empty"),
    (change(interaction("mute"), question=""), "question: this field is empty"),
    (interaction("asks", question="a" * 201), "question: 201 characters, 200 allowed"),
    (interaction("reads", contexts=(make_unnamed_context("a" * 201),)), "contexts: 201 characters, 200 allowed"),
    (*make_citing("fees#0", "b#1", "a#1", key="lost"), "contexts: no ingested document holds 'a#1', 'b#1'"),
    (change(interaction("nan"), writer_scores={"a": math.nan, "b": 1.0}), "writer_scores: 'a' is no finite number"),
    (change(interaction("above"), token_log_probs=(-1.0, 0.5)), "token_log_probs: 0.5 is above 0"),
    (change(interaction("gate"), display="maybe"), "display: 'maybe' is neither shown nor withheld"),
    (change(interaction("odds"), display="shown", propensity=0.0), "propensity: 0 is not in (0, 1]"),
    (change(interaction("sure"), display="shown", propensity=1.01), "propensity: 1.01 is not in (0, 1]"),
    (interaction("alone", propensity=0.5), "propensity: there is no display beside it"),
    (change(interaction("old"), asked_at=NOW.replace(year=1999)), "asked_at: is before the year 2000"),
    (feedback(user="v", days=-20_000), "given_at: is before the year 2000"),
    (feedback("other"), "interaction_id: there is no such interaction"),
    (feedback(days=-1.5), "given_at: before the question was asked (-1.5 days)"),
    (feedback(days=91), "given_at: 91 days after the question, 90 allowed"),
    (feedback(days=3, comment="a" * 201), "comment: 201 characters, 200 allowed"),
    (feedback(days=61), "given_at: 43,200 s in the future, 0 allowed"),
    (feedback(user="u"), TWO_THUMBS),
    (feedback(user="u", thumb="down"), TWO_THUMBS),
    (change(feedback(), thumb="left"), "thumb: 'left' is neither up nor down"),
    (review("other"), "interaction_id: there is no such interaction"),
    (review(days=3, ideal_answer="a" * 201), "ideal_answer: 201 characters, 200 allowed"),
    (review(days=-1.5), "reviewed_at: before the question was asked (-1.5 days)"),
    (review(days=61), "reviewed_at: 43,200 s in the future, 0 allowed"),
    (review(days=91), "reviewed_at: 91 days after the question, 90 allowed"),
    (review(), TWO_VERDICTS),
    (review(right=False), TWO_VERDICTS),
    (change(review(reviewer="sme-2"), inclusion_probability=0.0), "inclusion_probability: 0 is not in [1e-06, 1]"),
    (change(review(reviewer="sme-3"), inclusion_probability=1.01), "inclusion_probability: 1.01 is not in [1e-06, 1]"),
    (change(DOCUMENT, doc_id="twice"), "doc_id: 'twice' occurs more than once"),
    (change(DOCUMENT, doc_id="twice", title="x"), "doc_id: 'twice' occurs more than once"),
    (change(DOCUMENT, doc_id="empty"), "document: nothing in it can be retrieved"),
    (change(DOCUMENT, doc_id="dead"), "document: nothing in it can be retrieved"),
    (change(DOCUMENT, doc_id="late", updated_at=NOW + timedelta(days=1)), "updated_at: 86,400 s"),
    (change(CHUNK, chunk_id="dead#0", doc_id="dead", removed_at=NOW), "doc_id: there is no such document"),
    (change(CHUNK, chunk_id="fees#1"), "chunk_id: 'fees#1' occurs more than once"),
    (change(CHUNK, chunk_id="fees#1", text="x"), "chunk_id: 'fees#1' occurs more than once"),
    (change(CHUNK, chunk_id="b#0"), "chunk_id: does not open with its doc_id"),
    (change(CHUNK, chunk_id="fees#2", kind="poem"), "kind: 'poem' is neither"),
    (change(CHUNK, chunk_id="fees#3", text="t" * 201), "text: 201 characters, 200 allowed"),
    (change(CHUNK, chunk_id="fees#4", text=""), "text: this field is empty"),
]


def test_validate_broken_row_has_reason() -> None:
    rows = [interaction(), DOCUMENT, CHUNK, *(broken for broken, _ in BROKEN)]
    contracts = zip(TABLES, (Interaction, Thumb, Review, Document, Chunk), strict=True)
    tables = {table: tuple(row for row in rows if isinstance(row, contract)) for table, contract in contracts}
    result = validate_tables(tables)
    assert not result.success
    assert set(result.reasons) == {get_key(broken) for broken, _ in BROKEN}
    for broken, reason in BROKEN:
        assert any(str(why).startswith(reason) for why in result.reasons[get_key(broken)]), broken
    assert {key for check in result.errors for key in check.sample} == set(result.reasons)


def test_validate_missing_or_outdated_contexts_are_warnings() -> None:
    asked = interaction("a"), *make_citing("fees#0", key="b"), *make_citing("fees#8", "fees#7", "fees#7", key="c")
    result = validate_tables({"interactions": asked})
    assert result.success
    assert [(found.column, found.sample) for found in result.warnings] == [
        ("contexts", ("interactions/a",)),
        ("outdated_contexts", ("interactions/c",)),
    ]
    assert result.warnings[1].messages[0].startswith("contexts: 'fees#7', 'fees#8' is not retrievable")


def test_validate_skips_empty_tables_and_contexts() -> None:
    nothing = validate(ValidatedRows(), ExistingData(KeyIndex()), PARAMS, NOW)
    assert nothing.success and nothing.checks == () and nothing.notes == ()
    assert [note.partition(":")[0] for note in nothing.all_notes] == [*TABLES]
    rows = ValidatedRows(interactions=[make_record(row) for row in make_citing("x#1")])
    result = validate(rows, ExistingData(KeyIndex()), PARAMS, NOW)
    assert result.success and "interactions: without documents their contexts were not checked" in result.notes


def test_run_suites_unknown_column_raises() -> None:
    with pytest.raises(RuntimeError, match="could not be evaluated"):
        run_suites({"rows": [{"row": "rows/1"}]}, {"rows": [expect_present("gone")]})


def write_store(folder: Path, *batches: Tables) -> DataStore:
    """Write a data folder with a part for each batch, without checks."""
    handbook = folder / "documents"
    handbook.mkdir(parents=True)
    (handbook / "fees.md").write_text(markdown(), encoding="utf-8")
    versions = {"doc_id": "fees", "version": "1", "updated_at": "2026-08-01T00:00:00Z", "state": "current"}
    (folder / "documents.jsonl").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    (folder / "chunks.jsonl").write_bytes(to_json_lines([CHUNK]))
    for number, batch in enumerate(batches, start=1):
        for table, rows in batch.items():
            (folder / table).mkdir(exist_ok=True)
            (folder / table / f"{number:06d}.jsonl").write_bytes(to_json_lines(rows))
    return DataStore(folder)


def test_validate_store_checks_parts_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.data.validation.store_validation.BLOCK_ROWS", 2)
    again = {"feedback": (feedback(user="u"),), "reviews": (review(),)}
    first = {"interactions": tuple(make_citing("fees#0", key=f"i-{n}")[0] for n in (1, 2, 3)), **again}
    second: Tables = {"interactions": make_citing("fees#0", key="i-4"), "feedback": (feedback(), feedback("i-4"))}
    result = validate_store(write_store(tmp_path / "sound", first, second), PARAMS, NOW)
    assert result.success and result.notes == () and result.warnings == ()
    assert result.rows == {"interactions": 4, "feedback": 3, "reviews": 1, "documents": 1, "chunks": 1}

    replies = *again["feedback"], feedback("i-9"), feedback("i-3", days=91)
    second = {"interactions": make_citing("fees#0", key="i-1"), **again, "feedback": replies}
    result = validate_store(write_store(tmp_path / "broken", first, second), PARAMS, NOW)
    failing = {"/".join(key.split("/")[:2]): [reason.field for reason in why] for key, why in result.reasons.items()}
    assert failing == {
        "interactions/i-1": ["interaction_id"],
        "feedback/i-1": ["thumb"],
        "feedback/i-9": ["interaction_id"],
        "feedback/i-3": ["given_at", "given_at"],
        "reviews/i-1": ["review"],
    }
    assert result.n_failed_rows == 5


def test_validate_store_many_failing_rows_are_counted(tmp_path: Path) -> None:
    count = MAX_LISTED_ROWS + 100
    long = tuple(interaction(f"i-{n}", answer="a" * 201) for n in range(count))
    store = write_store(tmp_path, {"interactions": long})
    result = validate_store(store, PARAMS, NOW)
    assert (result.n_failed_rows, len(result.reasons), result.unlisted) == (count, MAX_LISTED_ROWS, 100)
    (check,) = result.errors
    assert (check.failed_rows, len(check.sample)) == (count, MAX_SAMPLE_ROWS)


def test_ingest_unknown_chunks_await_documents(tmp_path: Path) -> None:
    (tmp_path / "fees.md").write_text(markdown(), encoding="utf-8")
    (tmp_path / "cards.md").write_text(markdown().replace("doc_id: fees", "doc_id: cards"), encoding="utf-8")
    own = {"thumb": thumb(), "review": factories.verdict(), "contexts": [{"chunk_id": "cards#0", "text": "t"}]}
    factories.write_lines(tmp_path / "rows.jsonl", *(row(f"i-{n}", **own) for n in range(9)))
    data = tmp_path / "data"

    def take(*names: str) -> IngestReport:
        return ingest(make_explicit_sources([str(tmp_path / name) for name in names]), data, PARAMS, NOW)

    waiting = take("fees.md", "rows.jsonl")
    assert (waiting.accepted, waiting.pending, waiting.awaiting_documents, waiting.newly_rejected) == (1, 9, 9, 0)
    require_unblocked(data)
    again = take("rows.jsonl")
    assert (again.accepted, again.awaiting_documents, again.newly_rejected) == (0, 9, 0)
    came = take("cards.md")
    assert dict(came.resolved_pending) == {"accepted": 9}
    store = DataStore(data)
    assert [sum(1 for _ in store.iter_rows(contract)) for contract in (Interaction, Thumb, Review)] == [9, 9, 9]
    assert Quarantine(data).list_paths() == []
    assert take("rows.jsonl").duplicate == 9


def test_validate_parts_merge_to_whole() -> None:
    rows = interaction("a", answer="a" * 201), *make_citing("fees#0", key="b"), interaction("c"), *make_citing("x#1")
    lines = [make_record(row) for row in rows]
    known = ExistingData(KeyIndex(), {"fees"}, {"fees#0"})
    parts, (whole,) = (
        [validate(ValidatedRows(interactions=part), known, PARAMS, NOW) for part in split]
        for split in ((lines[:1], lines[1:3], lines[3:]), (lines,))
    )
    assert ValidationResult.merge(parts) == whole
    assert ValidationResult.merge([whole]) == whole == validate(ValidatedRows(interactions=lines), known, PARAMS, NOW)
    written = json.loads(json.dumps(whole.to_dict()))
    assert (written["success"], written["failing"]) == (False, 2)


def test_validate_store_rows_before_documents_pass(tmp_path: Path) -> None:
    rows = factories.write_lines(tmp_path / "rows.jsonl", row(contexts=[{"chunk_id": "old#1", "text": "t"}]))
    (tmp_path / "fees.md").write_text(markdown(), encoding="utf-8")
    for file in (rows, tmp_path / "fees.md"):
        ingest(make_explicit_sources([str(file)]), tmp_path / "data", PARAMS, NOW)
    found = validate_store(DataStore(tmp_path / "data"), PARAMS, NOW)
    assert found.success
    assert "A104 1 of 1 interactions: contexts: no ingested document holds …" in found.format_warnings()
