"""SQuAD v1.1 and v2.0 in the official JSON: questions about Wikipedia paragraphs, with the answers that people marked.

No model answered these questions, so the first marked answer stands for a correct one; of a v2.0 question that the
paragraph does not answer, the first plausible answer stands for an incorrect one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from benchmarks.datasets import Item, SkippedRecord, make_review
from benchmarks.datasets.pages import Articles
from benchmarks.datasets.upstream import UpstreamRecord, read_document

PUBLISHED = datetime(2018, 6, 11, tzinfo=UTC)
"""The day of v2.0; the questions have no times of their own."""


class _Answer(UpstreamRecord):
    text: str


class _Question(UpstreamRecord):
    id: str
    question: str
    answers: tuple[_Answer, ...] = ()
    is_impossible: bool = False
    plausible_answers: tuple[_Answer, ...] = ()


class _Paragraph(UpstreamRecord):
    context: str
    qas: tuple[_Question, ...]


class _Article(UpstreamRecord):
    title: str
    paragraphs: tuple[_Paragraph, ...]


class _File(UpstreamRecord):
    data: tuple[_Article, ...]


def read(
    files: Sequence[Path], *, unanswerable: Literal["plausible", "skip"] = "plausible", asked_at: datetime = PUBLISHED
) -> Iterator[Item]:
    """Yield an interaction with a review for each question, and a document for each article."""
    timestamp = asked_at.isoformat()
    articles = Articles("squad", "paragraph")
    for file in files:
        for article in read_document(file, _File).data:
            for paragraph in article.paragraphs:
                chunk_id = articles.add_passage(article.title, ((), paragraph.context))
                context = {"chunk_id": chunk_id, "text": paragraph.context}
                for question in paragraph.qas:
                    yield _convert(question, article.title, context, timestamp, unanswerable)
    yield from articles.documents(timestamp)


def _convert(question: _Question, title: str, context: dict[str, str], timestamp: str, unanswerable: str) -> Item:
    if not question.question.strip():
        return SkippedRecord("the question is empty")
    if question.is_impossible and unanswerable == "skip":
        return SkippedRecord("unanswerable, as requested")
    answers = question.plausible_answers if question.is_impossible else question.answers
    answer = next((answer.text for answer in answers if answer.text.strip()), None)
    if answer is None:
        return SkippedRecord(
            "unanswerable, without a plausible answer" if question.is_impossible else "no answer is marked"
        )
    is_correct = not question.is_impossible
    return {
        "interaction_id": f"squad-{question.id}",
        "asked_at": timestamp,
        "question": question.question,
        "answer": answer,
        "contexts": [context],
        "model": "squad-annotators",
        "group": title,
        "review": make_review(timestamp, "squad", (is_correct, is_correct, is_correct)),
    }
