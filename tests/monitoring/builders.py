"""A gate's traffic over the sample: decisions by code in place of a base model, reviews of them, one shift if wanted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from abstain.core.contracts import Context, Interaction, Review
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.store.dataset import IngestedBatch
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions
from tests.checkout import shipped_params
from tests.data.decision_log.builders import decision, open_log

PARAMS = shipped_params().monitoring.model_copy(update={"min_reviews": 1000})
"""A window is of 300 decisions, however many reviews there are."""
REWRITTEN = "cards"
SHOWN, CORRECT, REVIEWED = 0.7, 0.95, 0.5
ASKED = 150


@dataclass(frozen=True)
class GateAnswer:
    """One decision and, where it was drawn for review, what the reviewer says of it."""

    decision: LoggedDecision
    review: Review | None


@lru_cache(maxsize=1)
def sample() -> Sequence[AnsweredQuestion]:
    return tuple(read_answered_questions(build_handbook()))


def traffic(
    start: datetime,
    days: int,
    per_day: int = 70,
    version: str = "v1.0.0",
    rewritten_from: int | None = None,
    seed: int = 0,
) -> list[GateAnswer]:
    """`per_day` decisions a day over a part of the sample, in a random order, as people ask the same again. From the day `rewritten_from` on, the handbook of
    one product line says something else: its contexts are other texts, and most of its answers are wrong."""
    rng, found = random.Random(seed), []
    asked_about = rng.sample(sample(), ASKED)
    for number in range(days * per_day):
        day, asked = number // per_day, rng.choice(asked_about)
        at = start + timedelta(days=day, minutes=20 * (number % per_day))
        is_rewritten = rewritten_from is not None and day >= rewritten_from
        found.append(_answer(f"i-{number:05}", at, asked, version, is_rewritten=is_rewritten, rng=rng))
    return found


def write_log(url: str, answers: Sequence[GateAnswer]) -> None:
    """Log the decisions; all are drawn for the data."""
    log = open_log(url, withheld_sampling_rate=1.0, shown_sampling_rate=1.0)
    for done in [log.record_decision(one.decision) for one in answers]:
        done.result()
    log.close()


def _answer(
    key: str, at: datetime, asked: AnsweredQuestion, version: str, *, is_rewritten: bool, rng: random.Random
) -> GateAnswer:
    line = asked.question.fact.topic.line
    is_other = is_rewritten and line == REWRITTEN
    contexts = tuple(_rewritten(one) if is_other else one for one in asked.contexts)
    interaction = Interaction(
        interaction_id=key,
        asked_at=at,
        question=asked.question.text,
        answer=asked.answer,
        contexts=contexts,
        model="m@1",
        product=line,
    )
    shown = rng.random() < SHOWN
    confidence = rng.uniform(0.6, 1.0) if shown else rng.uniform(0.0, 0.6)
    right = rng.random() < (0.2 if is_other else CORRECT if shown else 0.3)
    logged = decision(
        key,
        shown,
        decided_at=at,
        confidence=confidence,
        probability=CORRECT if shown else 0.3,
        version=version,
        product=line,
        interaction=interaction,
    )
    review = Review(
        interaction_id=key,
        reviewed_at=at + timedelta(hours=1),
        reviewer="sme-1",
        complete=right,
        correct=right,
        truthful=right,
        inclusion_probability=REVIEWED,
    )
    return GateAnswer(logged, review if rng.random() < REVIEWED else None)


def _rewritten(context: Context) -> Context:
    text = f"New terms apply. Ask at a branch what holds for you. {context.text[::-1]}"
    return context.model_copy(update={"text": text})


def write_data(folder: Path, answers: Sequence[GateAnswer]) -> None:
    """The interactions and reviews as a data folder, a batch a day of decisions, which arrived in its evening."""
    batches: list[str] = []
    for name in ("interactions", "reviews"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    days = sorted({one.decision.decided_at.date() for one in answers})
    for number, day in enumerate(days, 1):
        own = [one for one in answers if one.decision.decided_at.date() == day]
        rows = {
            "interactions": [one.decision.interaction for one in own],
            "reviews": [one.review for one in own if one.review],
        }
        for name, content in rows.items():
            text = "".join(f"{row.to_json_line()}\n" for row in content if row)
            (folder / name / f"{number:06}.jsonl").write_text(text)
        arrived = own[-1].decision.decided_at.replace(hour=20)
        counts = {name: len(content) for name, content in rows.items()}
        batches.append(
            IngestedBatch(batch=f"{number:06}", arrived_at=arrived, sources=("decisions",), rows=counts).to_json_line()
        )
    (folder / "batches.jsonl").write_text("".join(f"{line}\n" for line in batches))
