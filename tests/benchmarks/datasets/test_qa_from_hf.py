from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from abstain.ingest.parsing import parse_object
from abstain.knowledge.documents.reader import parse_document
from benchmarks.datasets import DocumentFile, Item, SkippedRecord
from benchmarks.datasets.qa_from_hf import ABSTENTION, read
from tests.benchmarks.datasets.upstream import make_record, write_records

pytestmark = pytest.mark.soak(twin="test_import_command_of_every_format_writes_rows")


def import_all(folder: Path, *records: dict, **options: Any) -> list[Item]:
    return list(read([write_records(folder / "a.jsonl.gz", *records)], **options))


def test_qa_from_hf_verdict_is_a_review_or_a_thumb(tmp_path: Path) -> None:
    verdicts = {
        "Correct": ((True, True, True), "up"),
        "Partially Correct": ((False, False, True), "down"),
        "Wrong": ((False, False, False), "down"),
    }
    records = [make_record(f"lt-{n}", verdict) for n, verdict in enumerate(verdicts)]
    reviewed = [parse_object(row, "a", 1) for row in import_all(tmp_path, *records)[:3]]
    rated = [parse_object(row, "a", 1) for row in import_all(tmp_path, *records, verdict="thumb")[:3]]
    for (flags, thumb), as_review, as_thumb in zip(verdicts.values(), reviewed, rated, strict=True):
        review = as_review.review
        assert review is not None and as_review.thumb is None
        assert (review.complete, review.correct, review.truthful) == flags
        assert as_thumb.thumb is not None and as_thumb.review is None
        assert as_thumb.thumb.thumb == thumb


def test_qa_from_hf_log_probabilities_are_scores_of_the_writer(tmp_path: Path) -> None:
    row, _ = import_all(tmp_path, make_record(log_prob=-3.5))
    interaction = parse_object(row, "a", 1).interaction
    assert interaction and interaction.writer_scores == {"log_prob": -3.5, "class_log_prob": -0.25}


def test_qa_from_hf_rounds_are_30_days_long(tmp_path: Path) -> None:
    rows = import_all(tmp_path, *(make_record(f"lt-{n}", round=n, study="parallel-fewer") for n in (1, 2, 9)))[:3]
    first, second, ninth = (parse_object(row, "a", 1).interaction for row in rows)
    assert first and second and ninth
    assert (second.asked_at - first.asked_at).days == 30
    assert (ninth.asked_at - first.asked_at).days == 240
    assert first.asked_at.isoformat() == "2023-01-01T00:00:00+00:00"
    assert (ninth.product, ninth.group, ninth.model) == (
        "parallel-fewer",
        "Zoë Bank",
        "qa_from_hf-parallel-fewer@round-9",
    )
    row, _ = import_all(tmp_path, make_record(), first_round_at=datetime(2024, 5, 1, tzinfo=UTC))
    assert row["asked_at"].startswith("2024-05-01")


def test_qa_from_hf_abstentions_are_skipped_or_kept(tmp_path: Path) -> None:
    records = make_record(), make_record("lt-2", model_answer=ABSTENTION), make_record("lt-3", question=" ")
    items = import_all(tmp_path, *records)
    assert Counter(item.reason for item in items if isinstance(item, SkippedRecord)) == {
        "the model abstained": 1,
        "the question or the answer is empty": 1,
    }
    rows = import_all(tmp_path, *records, abstentions="keep")
    assert rows[1]["answer"] == ABSTENTION


def test_qa_from_hf_article_is_one_document(tmp_path: Path) -> None:
    items = import_all(
        tmp_path,
        make_record("a"),
        make_record("b", section="History #1", context="Founded\n# in 1900."),
        make_record("c", context="Gold costs 90."),
        make_record("d", title="Other"),
    )
    first, second = (item for item in items if isinstance(item, DocumentFile))
    document = parse_document(first.text, first.name)
    assert document.title == "Zoë Bank"
    assert document.body.strip() == (
        "# Fees\n\nThe card is free.\n\nGold costs 90.\n\n# History #1\n\nFounded\n\\# in 1900."
    )
    assert [item["contexts"][0]["chunk_id"] for item in items[:4]] == [
        *(f"{document.doc_id}#passage-{n}" for n in (1, 2, 3)),
        "qa_from_hf-Other#passage-1",
    ]
    assert second.name == "qa_from_hf-Other.md"
