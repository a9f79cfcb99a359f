"""FeedbackQA (Li et al., Findings of ACL 2022): passages of public-health pages, rated as answers by a few people.

Two kinds of files, recognized by their fields: `human_feedback.jsonl` holds ratings, `kb_passages.jsonl` the passages.
The answer is a passage word for word, so it is always truthful; raters judged how well it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from benchmarks.datasets import CriteriaValues, Item, SkippedRecord, make_review
from benchmarks.datasets.pages import make_doc_id, make_page
from benchmarks.datasets.upstream import UpstreamRecord, read_records

_FLAGS: dict[str, CriteriaValues] = {
    "Excellent": (True, True, True),
    "Acceptable": (False, True, True),
    "Could be Improved": (False, False, True),
    "Bad": (False, False, True),
}


PUBLISHED = datetime(2022, 1, 1, tzinfo=UTC)
"""The year of the set; the ratings have no times of their own."""


class _Passage(UpstreamRecord):
    domain: str
    uri: str
    page_title: str
    section_headers: tuple[str, ...]
    text: str

    @property
    def doc_id(self) -> str:
        return make_doc_id("feedbackqa", f"{self.domain} {self.uri}")


class _AnswerPassage(_Passage):
    passage_id: int | str


class _RatedQuestion(UpstreamRecord):
    id: str
    domain: str
    question: str
    answer_passage: _AnswerPassage
    ratings: tuple[Literal["Excellent", "Acceptable", "Could be Improved", "Bad"], ...]


class _Kind(UpstreamRecord):
    """The fields of a record that tell the published files apart."""

    kb_id: str | None = None
    gold_kb_id: str | None = None


def read(files: Sequence[Path], *, asked_at: datetime = PUBLISHED) -> Iterator[Item]:
    """Yield an interaction for each rated answer, a review for each rater, and a document for each page."""
    timestamp = asked_at.isoformat()
    pages: dict[str, list[_Passage]] = {}
    for file in files:
        kind = next(read_records(file, _Kind), _Kind())
        if kind.gold_kb_id is not None:
            raise AbstainError(
                Code.WRONG_FORMAT, f"{file}: holds questions without an answer: name human_feedback or kb_passages"
            )
        if kind.kb_id is None:
            for record in read_records(file, _RatedQuestion):
                yield from _convert(record, timestamp)
        else:
            for passage in read_records(file, _Passage):
                pages.setdefault(passage.doc_id, []).append(passage)
    for name, passages in pages.items():
        texts = [(passage.section_headers, passage.text) for passage in passages]
        yield make_page(name, passages[0].page_title, timestamp, texts, passages[0].domain)


def _convert(record: _RatedQuestion, timestamp: str) -> Iterator[Item]:
    passage = record.answer_passage
    if not record.question.strip() or not passage.text.strip():
        yield SkippedRecord("the question or the passage is empty")
        return
    interaction = {
        "interaction_id": f"feedbackqa-{record.id}",
        "asked_at": timestamp,
        "question": record.question,
        "answer": passage.text,
        "contexts": [{"chunk_id": f"{passage.doc_id}#passage-{passage.passage_id}", "text": passage.text}],
        "model": "feedbackqa-retriever",
        "product": record.domain,
        "group": passage.doc_id,
    }
    reviews = [
        make_review(timestamp, f"feedbackqa-rater-{number}", _FLAGS[rating])
        for number, rating in enumerate(record.ratings, start=1)
    ]
    yield interaction | ({"review": reviews[0]} if reviews else {})
    for further_review in reviews[1:]:
        yield {"interaction_id": interaction["interaction_id"], **further_review}
