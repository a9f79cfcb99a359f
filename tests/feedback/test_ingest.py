import json
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abstain.errors import AbstainError
from abstain.feedback.ingest import ingest
from abstain.feedback.report import IngestReport, count_reasons
from abstain.feedback.store import Dataset, read_dataset, read_quarantine, row_key
from abstain.feedback.validation import ValidationResult
from abstain.params import ValidationParams

from .builders import NOW, PARAMS, accept_all, bytes_of, markdown, row, thumb, verdict, write_lines

LENIENT = PARAMS.model_copy(update={"max_failed_fraction": 1.0})


def take(data: Path, *files: Path, params: ValidationParams = LENIENT, validate: Any = accept_all) -> IngestReport:
    return ingest(files, data, params, NOW, validate=validate)


def refusing(prefix: str) -> Any:
    """A validator that fails the rows whose key begins with `prefix`, wherever they are."""

    def validate(dataset: Dataset, params: ValidationParams, now: datetime) -> ValidationResult:
        found = [row_key(row) for row in (*dataset.interactions, *dataset.feedback, *dataset.reviews)]
        return ValidationResult(
            rows={}, reasons={key: ("field: not liked",) for key in found if key.startswith(prefix)}
        )

    return validate


def reasons_in(data: Path, report: IngestReport) -> list[tuple[str, ...]]:
    assert report.quarantine
    return [row.reasons for row in read_quarantine(data / report.quarantine)]


def test_interactions_feedback_and_reviews_are_taken_apart(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row("i-2", thumb=thumb(), review=verdict()), "", row("i-1"))
    report = take(tmp_path / "data", file)
    assert (report.read, report.accepted, report.duplicate, report.quarantined) == (2, 2, 0, 0)
    assert report.contracts == {"interactions": 2, "feedback": 1, "reviews": 1, "documents": 0}
    data = read_dataset(tmp_path / "data")
    assert [found.interaction_id for found in data.interactions] == ["i-2", "i-1"]
    assert data.feedback[0].thumb == "up"
    assert data.reviews[0].reviewer == "sme-1"


def test_an_answer_without_contexts_is_accepted(tmp_path: Path) -> None:
    report = take(tmp_path / "data", write_lines(tmp_path / "a.jsonl", row(contexts=[])))
    assert report.accepted == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(row())[:40], "line: truncated JSON: EOF while parsing"),
        ("not json", "line: invalid JSON: "),
        (b'{"interaction_id": "\xff"}', "line: not valid UTF-8 (byte 21 is 0xff)"),
        ("[1, 2]", "row: "),
        (row(question=7), "question: input should be a valid string"),
        (row(answer=" "), "answer: string should have at least 1 character"),
        (row(model=None), "model: this field is missing"),
        (row(anwser="None."), "anwser: unknown field, did you mean 'answer'?"),
        (row(zzz=1), "zzz: unknown field, known fields: interaction_id, asked_at"),
        (row(asked_at="2026-09-01T12:00:00"), "asked_at: value error, timestamp without a time zone"),
        (row(asked_at="0001-01-01T00:00:00+14:00"), "line: a timestamp lies outside the years 1 to 9999"),
        (row(contexts=[{"chunk_id": "a#1"}]), "contexts.0.text: this field is missing"),
        (row(contexts=[{"chunk_id": "a#1", "txt": "x", "text": "y"}]), "contexts.0.txt: unknown field, did you mean"),
        (row(thumb=thumb("sideways")), "thumb.thumb: input should be 'up' or 'down'"),
        (row(thumb=thumb(user_id="u")), "thumb.user_id: unknown field, did you mean 'user'?"),
        (row(review=verdict(correct="yes")), "review.correct: input should be a valid boolean"),
        (row(review=verdict(inclusion_probability=0)), "review.inclusion_probability: input should be greater than 0"),
        ('{"interaction_id": "\\ud800"}', "line: invalid JSON: "),
    ],
)
def test_a_line_that_cannot_be_read_is_quarantined_with_a_reason_that_names_the_field(
    tmp_path: Path, line: str | bytes | dict[str, Any], reason: str
) -> None:
    file = write_lines(tmp_path / "a.jsonl", row("ok"), line)
    report = take(tmp_path / "data", file)
    assert (report.accepted, report.quarantined) == (1, 1)
    assert report.quarantine
    (refused,) = read_quarantine(tmp_path / "data" / report.quarantine)
    assert (refused.source, refused.line) == ("a.jsonl", 2)
    assert any(found.startswith(reason) for found in refused.reasons), refused.reasons
    assert all("\n" not in found for found in refused.reasons)
    raw = file.read_bytes().split(b"\n")[1]
    assert refused.raw.encode() == raw or refused.raw_base64


def test_all_reasons_of_a_row_are_kept(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row(question=7, model=None, extra=1))
    report = ingest(
        [file, write_lines(tmp_path / "b.jsonl", row("ok"))], tmp_path / "d", LENIENT, NOW, validate=accept_all
    )
    (reasons,) = reasons_in(tmp_path / "d", report)
    assert {reason.partition(":")[0] for reason in reasons} == {"question", "model", "extra"}


def test_a_byte_order_mark_and_windows_line_ends_are_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row(key)).encode() for key in "ab") + b"\r\n")
    assert take(tmp_path / "data", file).accepted == 2


def test_the_same_row_again_is_a_duplicate_and_other_content_a_conflict(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row(), row(), row(answer="Ten euros."))
    report = take(tmp_path / "data", file)
    assert (report.accepted, report.duplicate, report.quarantined) == (1, 1, 1)
    assert reasons_in(tmp_path / "data", report) == [
        ("interaction_id: 'i-1' is known with other content (differs in answer)",)
    ]
    assert [found.answer for found in read_dataset(tmp_path / "data").interactions] == ["None."]


def test_a_later_file_brings_a_thumb_and_a_review_for_a_known_interaction(tmp_path: Path) -> None:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "a.jsonl", row()))
    report = take(data, write_lines(tmp_path / "b.jsonl", row(thumb=thumb()), row(review=verdict(), thumb=thumb())))
    assert (report.accepted, report.duplicate) == (2, 0)
    assert report.contracts == {"interactions": 0, "feedback": 1, "reviews": 1, "documents": 0}
    again = take(data, write_lines(tmp_path / "c.jsonl", row(thumb=thumb(), review=verdict())))
    assert (again.accepted, again.duplicate) == (0, 1)


def test_two_thumbs_of_one_user_at_one_time_are_a_conflict_of_two_strangers_not(tmp_path: Path) -> None:
    known = [row(thumb=thumb(value, user="u")) for value in ("up", "down")]
    strangers = [row("i-2", thumb=thumb(value)) for value in ("up", "down")]
    report = take(tmp_path / "data", write_lines(tmp_path / "a.jsonl", *known, *strangers))
    assert (report.accepted, report.quarantined) == (3, 1)
    assert reasons_in(tmp_path / "data", report)[0][0].endswith("(differs in thumb)")


def test_one_reviewer_with_two_verdicts_at_one_time_is_a_conflict(tmp_path: Path) -> None:
    rows = [row(review=verdict(right)) for right in (True, False)]
    report = take(tmp_path / "data", write_lines(tmp_path / "a.jsonl", *rows))
    assert (report.accepted, report.quarantined) == (1, 1)


def test_documents_come_with_their_chunks(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "fees.md").write_text(markdown(), encoding="utf-8")
    (tmp_path / "in" / "note.txt").write_text("?", encoding="utf-8")
    (tmp_path / "in" / ".hidden.md").write_text("?", encoding="utf-8")
    report = take(tmp_path / "data", tmp_path / "in")
    assert report.contracts["documents"] == report.read == 1
    assert report.ignored == ("note.txt",)
    data = read_dataset(tmp_path / "data")
    assert [document.doc_id for document in data.documents] == ["fees"]
    assert all(chunk.doc_id == "fees" for chunk in data.chunks)
    assert "There is no fee." in data.chunks[0].text
    assert (tmp_path / "data/documents/fees.md").read_text(encoding="utf-8") == markdown()


def document_file(folder: Path, name: str, **fields: str) -> Path:
    (folder / name).write_text(markdown(**fields), encoding="utf-8")
    return folder / name


def test_a_newer_document_replaces_its_chunks_and_an_other_one_is_a_conflict(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = document_file(tmp_path, "first.md")
    take(data, first)
    assert take(data, first).duplicate == 1
    newer = document_file(tmp_path, "newer.md", updated_at="2026-08-02T00:00:00Z", body="The fee is ten euros.")
    assert take(data, newer).accepted == 1
    chunks = read_dataset(data).chunks
    assert len(chunks) == 1
    assert "ten euros" in chunks[0].text
    same_date = document_file(tmp_path, "same.md", updated_at="2026-08-02T00:00:00Z", body="The fee is nine euros.")
    report = take(data, first, same_date)
    assert report.quarantined == 2
    assert [reasons[0] for reasons in reasons_in(data, report)] == [
        "updated_at: a newer version of the document 'fees' is known",
        "updated_at: other content of the document 'fees' has the same date: write a newer one",
    ]
    assert read_dataset(data).chunks == chunks


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_versions_in_one_batch_the_newer_wins_in_any_order(tmp_path: Path, order: tuple[int, int]) -> None:
    files = [
        document_file(tmp_path, "old.md"),
        document_file(tmp_path, "new.md", updated_at="2026-08-02T00:00:00Z", body="The fee is ten euros."),
    ]
    report = take(tmp_path / "data", *(files[n] for n in order))
    assert (report.accepted, report.quarantined) == (1, 1)
    assert "ten euros" in read_dataset(tmp_path / "data").chunks[0].text
    before = bytes_of(tmp_path / "data")
    again = take(tmp_path / "data", *(files[n] for n in order))
    assert (again.accepted, again.duplicate, again.quarantined) == (0, 1, 1)
    assert bytes_of(tmp_path / "data") == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no front matter", "no front matter"),
        (markdown(doc_id="../fees"), "doc_id: '../fees' cannot name a file"),
        (markdown(updated_at="2026-13-45"), "front matter"),
        (markdown(updated_at="!!bool x"), "front matter"),
        (markdown(updated_at="2026-01-01"), "front matter"),
    ],
)
def test_a_document_that_cannot_be_read_is_quarantined_whole(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.md").write_text(text, encoding="utf-8")
    report = take(tmp_path / "data", tmp_path / "bad.md", write_lines(tmp_path / "a.jsonl", row()))
    assert report.quarantine
    (refused,) = read_quarantine(tmp_path / "data" / report.quarantine)
    assert (refused.source, refused.line, refused.raw) == ("bad.md", 1, text)
    assert reason in refused.reasons[0]
    assert not (tmp_path / "data" / "documents").exists()


def test_chunks_lost_in_a_crash_are_made_good(tmp_path: Path) -> None:
    file = document_file(tmp_path, "fees.md")
    take(tmp_path / "data", file)
    whole = bytes_of(tmp_path / "data")
    (tmp_path / "data" / "chunks.jsonl").unlink()
    take(tmp_path / "data", file)
    assert bytes_of(tmp_path / "data") == whole


def test_rows_that_fail_validation_are_quarantined_and_the_rest_is_settled_without_them(tmp_path: Path) -> None:
    bad = [row("bad", thumb=thumb()), row("bad", review=verdict()), row("bad")]
    file = write_lines(tmp_path / "a.jsonl", *bad, row("fine", review=verdict()), row("fine"))
    report = take(tmp_path / "data", file, validate=refusing("interactions/bad"))
    assert (report.accepted, report.duplicate, report.quarantined) == (1, 1, 3)
    assert [found.interaction_id for found in read_dataset(tmp_path / "data").interactions] == ["fine"]
    assert reasons_in(tmp_path / "data", report) == [("field: not liked",)] * 3


def test_a_row_goes_whole_but_not_the_interaction_that_another_row_holds(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row(thumb=thumb()), row(review=verdict()))
    report = take(tmp_path / "data", file, validate=refusing("feedback/i-1"))
    assert (report.accepted, report.quarantined) == (1, 1)
    assert report.contracts == {"interactions": 1, "feedback": 0, "reviews": 1, "documents": 0}


def test_a_conflict_with_a_row_that_fails_is_no_conflict(tmp_path: Path) -> None:
    def no_nones(dataset: Dataset, params: ValidationParams, now: datetime) -> ValidationResult:
        bad = [found for found in dataset.interactions if found.answer == "None."]
        return ValidationResult(rows={}, reasons={row_key(found): ("answer: empty talk",) for found in bad})

    file = write_lines(tmp_path / "a.jsonl", row(), row(answer="Ten euros."))
    report = take(tmp_path / "data", file, validate=no_nones)
    assert (report.accepted, report.quarantined) == (1, 1)
    assert [found.answer for found in read_dataset(tmp_path / "data").interactions] == ["Ten euros."]
    again = take(tmp_path / "data", file, validate=no_nones)
    assert (again.accepted, again.duplicate, again.quarantined, again.quarantine_is_new) == (0, 1, 1, False)


def test_too_many_refused_rows_refuse_the_batch_but_keep_the_quarantine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "a.jsonl", row("first")))
    before = bytes_of(data)
    file = write_lines(tmp_path / "b.jsonl", row("ok"), row("bad", modle="m"), row("worse", modle="m"))
    with pytest.raises(AbstainError) as refused:
        take(data, file, params=PARAMS)
    (quarantine,) = (data / "quarantine").iterdir()
    message = str(refused.value)
    assert "2 of 3 rows fail" in message
    assert "2 x modle: unknown field, did you mean 'model'?" in message
    assert str(quarantine) in message
    assert len(read_quarantine(quarantine)) == 2
    assert {name: content for name, content in bytes_of(data).items() if "quarantine" not in name} == before


def test_exactly_the_allowed_fraction_is_accepted(tmp_path: Path) -> None:
    report = take(tmp_path / "data", write_lines(tmp_path / "a.jsonl", row(), "{"), params=PARAMS)
    assert (report.accepted, report.quarantined) == (1, 1)


def test_a_batch_that_would_break_stored_rows_is_refused_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    take(data, write_lines(tmp_path / "a.jsonl", row("old")))
    before = bytes_of(data)

    def breaks_old(dataset: Dataset, params: ValidationParams, now: datetime) -> ValidationResult:
        broken = {"interactions/old": ("contexts: gone",)} if len(dataset.interactions) > 1 else {}
        return ValidationResult(rows={}, reasons=broken)

    with pytest.raises(AbstainError, match=r"would break 1 rows already in data/, first interactions/old"):
        take(data, write_lines(tmp_path / "b.jsonl", row("new")), validate=breaks_old)
    assert bytes_of(data) == before
    # What failed before is not this batch's doing.
    report = take(data, write_lines(tmp_path / "b.jsonl", row("new")), validate=refusing("interactions/old"))
    assert report.accepted == 1


def test_a_batch_of_nothing_new_is_not_validated(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row())
    take(tmp_path / "data", file)

    def never(*_: object) -> ValidationResult:
        raise AssertionError("validated")

    assert take(tmp_path / "data", file, validate=never).duplicate == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "no such file or folder"),
        ("empty.jsonl", b"", "the file is empty"),
        ("blank.jsonl", b"\xef\xbb\xbf \n\n", "the file is empty"),
        ("empty.md", b"", "the file is empty"),
        ("rows.csv", b"a,b", r"takes .jsonl \(interactions\) and .md \(documents\), not '.csv'"),
    ],
)
def test_a_file_that_is_none_stops_everything_before_it_begins(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AbstainError, match=rf"{name}: .*{message}"):
        take(tmp_path / "data", write_lines(tmp_path / "ok.jsonl", row()), tmp_path / name)
    assert not (tmp_path / "data").exists()


def test_no_files_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(AbstainError, match="nothing to ingest"):
        take(tmp_path / "data")
    (tmp_path / "in").mkdir()
    with pytest.raises(AbstainError, match=r"holds no \.jsonl and no \.md file"):
        take(tmp_path / "data", tmp_path / "in")


def test_the_report_refuses_counts_that_do_not_add_up() -> None:
    with pytest.raises(RuntimeError, match="3 read, but 1 accepted, 1 duplicate and 0 quarantined"):
        IngestReport(read=3, accepted=1, duplicate=1, quarantined=0, contracts={})


def test_the_report_reads_well(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", row(), row(), row(answer="Ten."), "{")
    report = take(tmp_path / "data", file)
    text = report.to_markdown()
    assert "| 4 | 1 | 1 | 2 |" in text
    assert "New: 1 interactions, 0 feedback, 0 reviews, 0 documents." in text
    assert "- 1 x interaction_id: … is known with other content (differs in answer)" in text
    assert json.loads(json.dumps(report.to_dict()))["quarantine"] == report.quarantine
    assert "which held them before" in take(tmp_path / "data", file).to_markdown()


def test_reasons_are_counted_by_kind() -> None:
    reasons = [("answer: 300 characters, 200 allowed",), ("answer: 1,201 characters, 200 allowed", "model: 'x' odd")]
    assert count_reasons(reasons) == {"answer: … characters, … allowed": 2, "model: … odd": 1}


keys = st.sampled_from(["i-1", "i-2", "i-3"])
structured = st.builds(
    row,
    keys,
    answer=st.sampled_from(["None.", "Ten.", None, 3]),
    thumb=st.none() | st.builds(thumb, st.sampled_from(["up", "down", "?"]), user=st.sampled_from(["u", None])),
    review=st.none() | st.builds(verdict, st.booleans(), days=st.sampled_from([2, 3])),
)
loose = st.dictionaries(st.sampled_from([*row(), "thumb", "review"]) | st.text(), st.none() | st.integers() | st.text())
lines = st.lists(
    structured.map(lambda found: json.dumps(found).encode())
    | loose.map(lambda found: json.dumps(found).encode())
    | structured.flatmap(lambda found: st.integers(0, 60).map(lambda cut: json.dumps(found).encode()[:cut]))
    | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(),
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lines, st.sampled_from(["", "interactions/i-1", "feedback/i-2", "reviews/i-1"]))
def test_arbitrary_lines_never_crash_always_add_up_and_twice_is_once(lines: list[bytes], bad: str) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = write_lines(folder / "a.jsonl", row("always"), *lines)
        validate = refusing(bad) if bad else accept_all
        first = take(folder / "data", file, validate=validate)
        read = sum(bool(line.strip()) for line in file.read_bytes().split(b"\n"))
        assert first.read == read == first.accepted + first.duplicate + first.quarantined
        data = read_dataset(folder / "data")
        assert len(data.interactions) == first.contracts["interactions"]
        assert {found.interaction_id for found in (*data.feedback, *data.reviews)} <= {
            found.interaction_id for found in data.interactions
        }
        before = bytes_of(folder / "data")
        second = take(folder / "data", file, validate=validate)
        assert (second.accepted, second.quarantined) == (0, first.quarantined)
        assert bytes_of(folder / "data") == before


@settings(max_examples=60, deadline=None)
@given(st.text() | st.text().map(lambda text: f"---\n{text}\n---\nbody") | st.text().map(lambda text: markdown(text)))
def test_arbitrary_documents_never_crash(text: str) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.md").write_bytes(b"#" + text.encode() if not text.strip() else text.encode())
        report = take(folder / "data", folder / "a.md", write_lines(folder / "a.jsonl", row()))
        assert report.read == 2
        assert len(read_dataset(folder / "data").documents) == report.contracts["documents"]
