"""FeedbackQA (Li et al., Findings of ACL 2022): passages of public-health pages, rated as answers by a few people.

Two kinds of records, told apart by their fields: those of `human_feedback.jsonl` (`id`, `domain`, `question`,
`answer_passage`, `ratings`) and those of `kb_passages.jsonl` (`kb_id`, `domain`, `uri`, `page_title`,
`section_headers`, `text`).

The answer is the passage itself, word for word, so it is truthful whatever it is worth; raters said how well it
answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from abstain.config.yaml_model import Section
from abstain.core.errors import AbstainError
from abstain.core.timestamps import Timestamp
from abstain.ingest.importers import Importer, Item, Skipped
from abstain.ingest.importers.pages import doc_id, page
from abstain.ingest.importers.upstream import Record, records

_FLAGS = {
    "Excellent": {"complete": True, "correct": True, "truthful": True},
    "Acceptable": {"complete": False, "correct": True, "truthful": True},
    "Could be Improved": {"complete": False, "correct": False, "truthful": True},
    "Bad": {"complete": False, "correct": False, "truthful": True},
}


class Options(Section):
    asked_at: Timestamp = datetime(2022, 1, 1, tzinfo=UTC)


class _Passage(Record):
    domain: str
    uri: str
    page_title: str
    section_headers: tuple[str, ...]
    text: str

    @property
    def doc_id(self) -> str:
        return doc_id("feedbackqa", f"{self.domain} {self.uri}")


class _AnswerPassage(_Passage):
    passage_id: int | str


class _Rated(Record):
    id: str
    domain: str
    question: str
    answer_passage: _AnswerPassage
    ratings: tuple[Literal["Excellent", "Acceptable", "Could be Improved", "Bad"], ...]


class _Kind(Record):
    """Enough of a record to tell the published files apart."""

    kb_id: str | None = None
    gold_kb_id: str | None = None


def read(files: Sequence[Path], options: Options) -> Iterator[Item]:
    """An interaction with a review a rater; a document a page."""
    at = options.asked_at.isoformat()
    pages: dict[str, list[_Passage]] = {}
    for file in files:
        kind = next(records(file, _Kind), _Kind())
        if kind.gold_kb_id is not None:
            raise AbstainError(f"{file}: holds questions without an answer: name human_feedback or kb_passages")
        if kind.kb_id is None:
            for rated in records(file, _Rated):
                yield from _rows(rated, at)
        else:
            for passage in records(file, _Passage):
                pages.setdefault(passage.doc_id, []).append(passage)
    for name, passages in pages.items():
        first = passages[0]
        yield page(name, first.page_title, at, ((one.section_headers, one.text) for one in passages), first.domain)


def _rows(rated: _Rated, at: str) -> Iterator[Item]:
    passage = rated.answer_passage
    if not rated.question.strip() or not passage.text.strip():
        yield Skipped("the question or the passage is empty")
        return
    key = f"feedbackqa-{rated.id}"
    row: dict[str, Any] = {
        "interaction_id": key,
        "asked_at": at,
        "question": rated.question,
        "answer": passage.text,
        "contexts": [{"chunk_id": f"{passage.doc_id}#passage-{passage.passage_id}", "text": passage.text}],
        "model": "feedbackqa-retriever",
        "product": rated.domain,
        "group": passage.doc_id,
    }
    reviews = [
        {"reviewed_at": at, "reviewer": f"feedbackqa-rater-{number}", **_FLAGS[rating]}
        for number, rating in enumerate(rated.ratings, start=1)
    ]
    yield row | ({"review": reviews[0]} if reviews else {})
    yield from ({"interaction_id": key, **review} for review in reviews[1:])


IMPORTER = Importer("feedbackqa", "FeedbackQA: human_feedback.jsonl and kb_passages.jsonl (.jsonl.gz)", Options, read)
