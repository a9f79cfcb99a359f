"""SQuAD v1.1 and v2.0 in the official JSON: questions about Wikipedia paragraphs, with the answers that people marked.

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id", "question",
     "answers": [{"text", "answer_start"}], "is_impossible", "plausible_answers"}]}]}]}

No model answered these questions, so people's answers stand in: the first marked answer is a right one; of a v2.0
question that the paragraph does not answer, the first plausible answer is a wrong one, unless `unanswerable: skip`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from abstain.config.yaml_model import Section
from abstain.core.timestamps import Timestamp
from abstain.ingest.importers import Importer, Item, Skipped
from abstain.ingest.importers.pages import doc_id, page
from abstain.ingest.importers.upstream import Record, parse, read_bytes


class Options(Section):
    unanswerable: Literal["plausible", "skip"] = "plausible"
    asked_at: Timestamp = datetime(2018, 6, 11, tzinfo=UTC)  # the day v2.0 was published


class _Answer(Record):
    text: str


class _Question(Record):
    id: str
    question: str
    answers: tuple[_Answer, ...] = ()
    is_impossible: bool = False
    plausible_answers: tuple[_Answer, ...] = ()


class _Paragraph(Record):
    context: str
    qas: tuple[_Question, ...]


class _Article(Record):
    title: str
    paragraphs: tuple[_Paragraph, ...]


class _File(Record):
    data: tuple[_Article, ...]


def read(files: Sequence[Path], options: Options) -> Iterator[Item]:
    """A document an article; an interaction with a review a question."""
    at = options.asked_at.isoformat()
    paragraphs: dict[str, dict[str, int]] = {}  # of all files: an article may be in several, and is one document
    for file in files:
        for article in parse(read_bytes(file), _File, str(file)).data:
            known = paragraphs.setdefault(article.title, {})
            for paragraph in article.paragraphs:
                number = known.setdefault(paragraph.context, len(known) + 1)
                chunk_id = f"{doc_id('squad', article.title)}#paragraph-{number}"
                context = {"chunk_id": chunk_id, "text": paragraph.context}
                for question in paragraph.qas:
                    yield _item(question, article.title, context, at, options)
    for title, contexts in paragraphs.items():
        yield page(doc_id("squad", title), title.replace("_", " "), at, (((), context) for context in contexts))


def _item(question: _Question, title: str, context: dict[str, str], at: str, options: Options) -> Item:
    if not question.question.strip():
        return Skipped("the question is empty")
    if question.is_impossible and options.unanswerable == "skip":
        return Skipped("unanswerable, as asked for")
    answers = question.plausible_answers if question.is_impossible else question.answers
    answer = next((one.text for one in answers if one.text.strip()), None)
    if answer is None:
        return Skipped("unanswerable, without a plausible answer" if question.is_impossible else "no answer is marked")
    right = not question.is_impossible
    verdict: dict[str, Any] = {"complete": right, "correct": right, "truthful": right}
    return {
        "interaction_id": f"squad-{question.id}",
        "asked_at": at,
        "question": question.question,
        "answer": answer,
        "contexts": [context],
        "model": "squad-annotators",
        "group": title,
        "review": {"reviewed_at": at, "reviewer": "squad", **verdict},
    }


IMPORTER = Importer("squad", "SQuAD v1.1 or v2.0, the official JSON (.json, .json.gz)", Options, read)
