"""The sample as files: the handbook, and the interactions with their thumbs and reviews, in the import format.

`history.jsonl` ends on 2026-11-07; `incoming.jsonl` is the week after it, with seven rows that ingest has to see
through: one exact duplicate of a history row, and six that belong in quarantine (`_broken_rows`). Everything
follows from the seed and from the committed answers: no model is needed, and the bytes are always the same.

Noise of the sample, documented once here: 70 % of the answers get a thumb, and a thumb is the expert's verdict
flipped with chance 0.15 for right answers and 0.25 for wrong ones, because a fluent wrong answer pleases. An expert
reviews with the chance `REVIEW_CHANCE`, which is kept as the row's inclusion probability.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

from abstain.contracts import Context, ImportedFeedback, ImportedInteraction, ImportedReview
from abstain.sample.handbook import SEED, Page, build_handbook
from abstain.sample.judge import Judgement, judge
from abstain.sample.questions import Question, build_questions

INCOMING_FROM = datetime(2026, 11, 8, tzinfo=UTC)
THUMB_CHANCE = 0.7
FLIP_CHANCE = {True: 0.15, False: 0.25}
REVIEW_CHANCE = {"up": 0.75, "down": 0.95, None: 0.85}
IDEAL_ANSWER_CHANCE = 0.5
REVIEWERS = ("sme-amber", "sme-basil", "sme-cedar")
USERS = 90


@dataclass(frozen=True)
class Answered:
    """A question, what was retrieved for it, what the base model answered, and the expert's judgement."""

    question: Question
    contexts: tuple[Context, ...]
    answer: str
    judgement: Judgement


def write_sample(folder: Path) -> None:
    """Write `handbook/*.md`, `history.jsonl` and `incoming.jsonl` into `folder`."""
    pages = build_handbook()
    (folder / "handbook").mkdir(parents=True, exist_ok=True)
    for page in pages:
        (folder / "handbook" / f"{page.doc_id}.md").write_text(page.markdown, encoding="utf-8")
    rows = [_interaction(answered) for answered in answered_questions(pages)]
    history = [row for row in rows if row.asked_at < INCOMING_FROM]
    incoming = [row for row in rows if row.asked_at >= INCOMING_FROM]
    _write_lines(folder / "history.jsonl", [row.canonical() for row in history])
    lines = [row.canonical() for row in incoming] + [history[0].canonical(), *_broken_rows(history[1], incoming[0])]
    _write_lines(folder / "incoming.jsonl", lines)


def answered_questions(pages: list[Page]) -> Iterator[Answered]:
    """Every question that the committed answers answer, judged, in the order of asking."""
    texts = {chunk.chunk_id: chunk.text for page in pages for chunk in page.chunks()}
    questions = {question.question_id: question for question in build_questions(pages)}
    source = resources.files("abstain.sample") / "answers.jsonl"
    for line in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        question = questions[row["question_id"]]
        contexts = tuple(Context(chunk_id=name, text=texts[name]) for name in row["chunk_ids"])
        verdict = judge(question.text, question.fact, [context.text for context in contexts], row["answer"])
        yield Answered(question, contexts, row["answer"], verdict)


def model_reference() -> str:
    """`id@revision` of the base model that wrote the answers."""
    meta = (resources.files("abstain.sample") / "answers.meta.json").read_text(encoding="utf-8")
    return str(json.loads(meta)["model"])


def _interaction(answered: Answered) -> ImportedInteraction:
    question = answered.question
    rng = random.Random(f"{SEED}/feedback/{question.question_id}")
    thumb = _thumb(answered, rng)
    return ImportedInteraction(
        interaction_id=question.question_id,
        asked_at=question.asked_at,
        question=question.text,
        answer=answered.answer,
        contexts=answered.contexts,
        model=model_reference(),
        product=question.fact.line.key,
        line_of_business=question.fact.line.business,
        group=question.group,
        thumb=thumb,
        review=_review(answered, thumb, rng),
    )


def _thumb(answered: Answered, rng: random.Random) -> ImportedFeedback | None:
    if rng.random() >= THUMB_CHANCE:
        return None
    pleased = answered.judgement.right != (rng.random() < FLIP_CHANCE[answered.judgement.right])
    given_at = answered.question.asked_at + timedelta(seconds=rng.randrange(20, 900))
    return ImportedFeedback(given_at=given_at, thumb="up" if pleased else "down", user=f"u-{rng.randrange(USERS):03d}")


def _review(answered: Answered, thumb: ImportedFeedback | None, rng: random.Random) -> ImportedReview | None:
    chance = REVIEW_CHANCE[thumb.thumb if thumb else None]
    if rng.random() >= chance:
        return None
    judgement, ideal = answered.judgement, None
    if rng.random() < IDEAL_ANSWER_CHANCE:
        ideal = answered.question.fact.sentence if judgement.answerable else "The handbook does not say."
    return ImportedReview(
        reviewed_at=answered.question.asked_at + timedelta(minutes=rng.randrange(60, 60 * 24 * 2)),
        reviewer=rng.choice(REVIEWERS),
        complete=judgement.complete,
        correct=judgement.correct,
        truthful=judgement.truthful,
        ideal_answer=ideal,
        inclusion_probability=chance,
    )


def _broken_rows(known: ImportedInteraction, fresh: ImportedInteraction) -> list[str]:
    """Six rows for quarantine: cut short, wrong type, unknown field, conflict, half a review, unknown document."""
    row = json.loads(fresh.canonical()) | {"thumb": None, "review": None}
    other = json.loads(known.canonical()) | {"answer": "Something else altogether."}
    return [
        json.dumps(row)[:120],
        json.dumps(row | {"interaction_id": "bad-type", "asked_at": "yesterday"}),
        json.dumps(row | {"interaction_id": "bad-field", "anwser": row["answer"]}),
        json.dumps(other),
        json.dumps(row | {"interaction_id": "bad-review", "review": {"reviewer": "sme-amber", "correct": True}}),
        json.dumps(row | {"interaction_id": "bad-chunk", "contexts": [{"chunk_id": "no-such-page#0", "text": "?"}]}),
    ]


def _write_lines(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
