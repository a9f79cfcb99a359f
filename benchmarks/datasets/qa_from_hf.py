"""`user_feedback.jsonl` of *Continually Improving Extractive QA via Human Feedback* (Gao et al., EMNLP 2023).

Each record is an answer of a model, judged by the person who asked, who saw the passage. The verdict becomes a review,
or with `verdict: thumb` a thumb, but never both: two verdicts of one person agree, and thumbs would look reliable.
The model's log-probabilities of its answer, and of its decision whether there is one, are scores of the writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from benchmarks.datasets import CriteriaValues, Item, SkippedRecord, make_review
from benchmarks.datasets.pages import Articles
from benchmarks.datasets.upstream import UpstreamRecord, read_records

ABSTENTION = "[Unanswerable given the paragraph below]"
"""The answer of a record in which the model gave none."""

ROUND = timedelta(days=30)
"""The time between two rounds: the files give their order, but no times."""

FIRST_ROUND = datetime(2023, 1, 1, tzinfo=UTC)

_FLAGS: dict[str, CriteriaValues] = {
    "Correct": (True, True, True),
    "Partially Correct": (False, False, True),
    "Wrong": (False, False, False),
}


class _AnswerRecord(UpstreamRecord):
    id: str
    study: str
    round: int
    title: str
    section: str
    context: str
    question: str
    model_answer: str
    user_feedback: Literal["Correct", "Partially Correct", "Wrong"]
    log_prob: float
    class_log_prob: float


def read(
    files: Sequence[Path],
    *,
    verdict: Literal["review", "thumb"] = "review",
    abstentions: Literal["skip", "keep"] = "skip",
    first_round_at: datetime = FIRST_ROUND,
) -> Iterator[Item]:
    """Yield an interaction with its verdict for each record, and a document for each Wikipedia article."""
    articles = Articles("qa_from_hf", "passage")
    for file in files:
        for record in read_records(file, _AnswerRecord):
            chunk_id = articles.add_passage(record.title, ((record.section,), record.context))
            if record.model_answer == ABSTENTION and abstentions == "skip":
                yield SkippedRecord("the model abstained")
            elif not record.question.strip() or not record.model_answer.strip():
                yield SkippedRecord("the question or the answer is empty")
            else:
                yield _convert(record, chunk_id, first_round_at + (record.round - 1) * ROUND, verdict)
    yield from articles.documents(first_round_at.isoformat())


def _convert(record: _AnswerRecord, chunk_id: str, asked_at: datetime, verdict: str) -> dict[str, Any]:
    timestamp = asked_at.isoformat()
    thumb = {"given_at": timestamp, "thumb": "up" if record.user_feedback == "Correct" else "down"}
    return {
        "interaction_id": f"qa_from_hf-{record.id}",
        "asked_at": timestamp,
        "question": record.question,
        "answer": record.model_answer,
        "contexts": [{"chunk_id": chunk_id, "text": record.context}],
        "model": f"qa_from_hf-{record.study}@round-{record.round}",
        "product": record.study,
        "group": record.title,
        "writer_scores": {"log_prob": record.log_prob, "class_log_prob": record.class_log_prob},
        verdict: thumb
        if verdict == "thumb"
        else make_review(timestamp, "qa_from_hf-asker", _FLAGS[record.user_feedback]),
    }
