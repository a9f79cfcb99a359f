"""The sample as files: the handbook, and the interactions with their thumbs and reviews, in the import format.

`incoming.jsonl` has seven rows that ingest has to detect: one exact duplicate of a history row, and six that are not
accepted (`_broken_rows`). Everything follows from the seed
and the committed answers: no model is needed, and the bytes are always the same. The simulation of reviews and thumbs,
with its noise, is in `benchmarks.sample.feedback`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.contracts import Context, ImportedInteraction
from abstain.core.errors import AbstainError
from abstain.sample.files import EXPORTED, INCOMING_FROM
from benchmarks.sample.feedback import draw_review, draw_thumb
from benchmarks.sample.handbook import SEED, Fact, Page, build_handbook
from benchmarks.sample.judge import SimulatedReview, review_answer
from benchmarks.sample.questions import SampleQuestion, build_questions, source_digest

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, its retrieved contexts, the base model's answer, and its review."""

    question: SampleQuestion
    contexts: tuple[Context, ...]
    answer: str
    review: SimulatedReview


def write_sample(folder: Path) -> None:
    """Write `handbook/*.md`, `history.jsonl` and `incoming.jsonl` into `folder`."""
    pages = build_handbook()
    (folder / "handbook").mkdir(parents=True, exist_ok=True)
    for page in pages:
        (folder / "handbook" / f"{page.doc_id}.md").write_text(page.markdown, encoding="utf-8")
    model = str(_meta()["model"])
    rows = [_interaction(question, model) for question in read_answered_questions(pages)]
    history = [row for row in rows if row.asked_at < INCOMING_FROM]
    incoming = [row for row in rows if row.asked_at >= INCOMING_FROM]
    _write_lines(folder / "history.jsonl", [row.to_json_line() for row in history])
    lines = [row.to_json_line() for row in incoming] + [
        history[0].to_json_line(),
        *_broken_rows(history[1], incoming[0]),
    ]
    _write_lines(folder / "incoming.jsonl", lines)


def read_answered_questions(pages: list[Page]) -> Iterator[AnsweredQuestion]:
    """Yield every question with a committed answer and its review, in order of time.

    Raises:
        AbstainError: the answers belong to another handbook or to other questions.
    """
    texts = {chunk.chunk_id: chunk.text for page in pages for chunk in page.chunks()}
    sample_questions = build_questions(pages)
    if _meta()["source_digest"] != source_digest(pages, sample_questions):
        raise AbstainError(
            Code.VERSION_MISMATCH,
            "the sample's answers belong to another handbook: run python -m benchmarks.sample.generate",
        )
    facts_by_topic: dict[str, list[Fact]] = {}
    for fact in (fact for page in pages for fact in page.facts):
        facts_by_topic.setdefault(fact.topic.key, []).append(fact)
    questions = {question.question_id: question for question in sample_questions}
    for line in (FOLDER / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        question = questions[row["question_id"]]
        contexts = tuple(Context(chunk_id=name, text=texts[name]) for name in row["chunk_ids"])
        texts_shown = [context.text for context in contexts]
        simulated_review = review_answer(
            question.text, question.fact, texts_shown, row["answer"], facts_by_topic[question.fact.topic.key]
        )
        yield AnsweredQuestion(question, contexts, row["answer"], simulated_review)


def _meta() -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((FOLDER / "answers.meta.json").read_text(encoding="utf-8"))
    return meta


def _interaction(answer: AnsweredQuestion, model: str) -> ImportedInteraction:
    question = answer.question
    rng = random.Random(f"{SEED}/feedback/{question.question_id}")
    exported_at = EXPORTED[question.asked_at >= INCOMING_FROM]
    thumb = draw_thumb(question, answer.answer, answer.review.fit_to_show, exported_at, rng)
    return ImportedInteraction(
        interaction_id=question.question_id,
        asked_at=question.asked_at,
        question=question.text,
        answer=answer.answer,
        contexts=answer.contexts,
        model=model,
        product=question.fact.topic.line,
        line_of_business=question.fact.topic.business,
        group=question.group,
        thumb=thumb,
        review=draw_review(question, answer.review, thumb, exported_at, rng),
    )


def _broken_rows(existing: ImportedInteraction, fresh: ImportedInteraction) -> list[str]:
    """Return six rows for quarantine: cut short, wrong type, unknown field, conflict, half a review, no document."""
    row = json.loads(fresh.to_json_line()) | {"thumb": None, "review": None}
    conflicting = json.loads(existing.to_json_line()) | {"answer": "Something else altogether."}
    return [
        json.dumps(row)[:120],
        json.dumps(row | {"interaction_id": "bad-type", "asked_at": "yesterday"}),
        json.dumps(row | {"interaction_id": "bad-field", "anwser": row["answer"]}),
        json.dumps(conflicting),
        json.dumps(row | {"interaction_id": "bad-review", "review": {"reviewer": "sme-01", "correct": True}}),
        json.dumps(row | {"interaction_id": "bad-chunk", "contexts": [{"chunk_id": "no-such-page#0", "text": "?"}]}),
    ]


def _write_lines(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
