"""A gate's traffic over the sample, with reviews: decisions are drawn at random in place of a base model's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from abstain.core.contracts import CRITERIA, Review
from abstain.core.json_lines import to_json_lines
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.store.dataset import IngestedBatch
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions
from tests.checkout import shipped_params
from tests.data.decision_log.builders import decision, open_log
from tests.factories import ASKED as ASKED_AT
from tests.factories import interaction, review

PARAMS = shipped_params().monitoring.model_copy(update={"min_reviews": 1000})
"""A window is of 300 decisions, however many reviews there are."""
REWRITTEN = "cards"
SHOWN, CORRECT, REVIEWED = 0.7, 0.95, 0.5
ASKED = 150


@dataclass(frozen=True)
class GateAnswer:
    """A decision and its review, if it was sampled for one."""

    decision: LoggedDecision
    review: Review | None


@lru_cache(maxsize=1)
def sample() -> Sequence[AnsweredQuestion]:
    return tuple(read_answered_questions(build_handbook()))


def traffic(
    start: datetime, days: int, version: str = "v1.0.0", rewritten_from: int | None = None, seed: int = 0
) -> list[GateAnswer]:
    """Make 70 decisions a day over a part of the sample, in a random order, as people ask the same again.

    From the day `rewritten_from` on, the handbook of one product line is rewritten: its contexts are other texts, and
    most of its answers are wrong.
    """
    rng, answers = random.Random(seed), []
    questions = rng.sample(sample(), ASKED)
    for number in range(days * 70):
        key, day, asked = f"i-{number:05}", number // 70, rng.choice(questions)
        decided_at, line = start + timedelta(days=day, minutes=20 * (number % 70)), asked.question.fact.topic.line
        is_other = rewritten_from is not None and day >= rewritten_from and line == REWRITTEN
        texts = {"question": asked.question.text, "answer": asked.answer, "product": line}
        contexts = tuple(asked.contexts)
        if is_other:
            new = "New terms apply. Ask at a branch what holds for you. "
            contexts = tuple(each.model_copy(update={"text": new + each.text[::-1]}) for each in contexts)
        shown = rng.random() < SHOWN
        confidence = rng.uniform(0.6, 1.0) if shown else rng.uniform(0.0, 0.6)
        right = rng.random() < (0.2 if is_other else CORRECT if shown else 0.3)
        logged = decision(
            key,
            shown,
            decided_at=decided_at,
            confidence=confidence,
            probability=CORRECT if shown else 0.3,
            version=version,
            product=line,
            interaction=interaction(key, asked_at=decided_at, contexts=contexts, **texts),
        )
        after = (decided_at - ASKED_AT) / timedelta(days=1) + 1 / 24
        verdict = review(key, days=after, inclusion_probability=REVIEWED, **dict.fromkeys(CRITERIA, right))
        answers.append(GateAnswer(logged, verdict if rng.random() < REVIEWED else None))
    return answers


def write_log(url: str, answers: Sequence[GateAnswer]) -> None:
    """Log the decisions; all are sampled for the data."""
    log = open_log(url, withheld_sampling_rate=1.0, shown_sampling_rate=1.0)
    for future in [log.record_decision(answer.decision) for answer in answers]:
        future.result()
    log.close()


def write_data(folder: Path, answers: Sequence[GateAnswer]) -> None:
    """Write interactions and reviews as a data folder, with a batch for each day, which arrived in its evening."""
    batches = []
    for number, (_, group) in enumerate(groupby(answers, lambda answer: answer.decision.decided_at.date()), 1):
        day_answers = list(group)
        rows = {
            "interactions": [answer.decision.interaction for answer in day_answers],
            "reviews": [answer.review for answer in day_answers if answer.review],
        }
        for name, content in rows.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{number:06}.jsonl").write_bytes(to_json_lines(content))
        batches.append(
            IngestedBatch(
                batch=f"{number:06}",
                arrived_at=day_answers[-1].decision.decided_at.replace(hour=20),
                sources=("decisions",),
                rows={name: len(content) for name, content in rows.items()},
            )
        )
    (folder / "batches.jsonl").write_bytes(to_json_lines(batches))
