"""Simulated feedback on an answer: a reviewer's review and a user's thumb, drawn at documented rates.

Reviews are sampled by stratum (thumb, product line) with a recorded probability, as in review queues: disliked answers
first. Reviews are without noise. Thumbs are given to `THUMB_SHARE` of the answers and are noisy:

* a user dislikes a correct answer with probability `FLIP_CORRECT`;
* a user likes an incorrect answer with probability `FLIP_CONFIDENT` where it sounds confident (a short, definite
  sentence), else with `FLIP_INCORRECT`.

Together about one thumb in six is incorrect.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from abstain.core.contracts import ImportedReview, ImportedThumb
from benchmarks.sample.judge import SimulatedReview
from benchmarks.sample.questions import SampleQuestion

THUMB_SHARE = 0.7
FLIP_CORRECT = 0.14
FLIP_INCORRECT = 0.12
FLIP_CONFIDENT = 0.24
SURE_CHARACTERS = 80

REVIEW_BY_THUMB = {"down": 0.97, None: 0.95, "up": 0.93}
REVIEW_BY_LINE = {"transfers": 0.95, "insurance": 0.97}  # the lines whose reviewers have less time
IDEAL_SHARE = 0.5  # of the reviews that find fault
IDEAL_SHARE_CORRECT = 0.25  # of the others: reviewers improve the wording of some correct answers
REVIEWERS = ("sme-01", "sme-02", "sme-03", "sme-04")


def draw_thumb(
    question: SampleQuestion, answer: str, fit_to_show: bool, exported_at: datetime, rng: random.Random
) -> ImportedThumb | None:
    """Draw a thumb within the hour and before the export, or none."""
    if rng.random() >= THUMB_SHARE:
        return None
    is_confident = len(answer) <= SURE_CHARACTERS and "\n" not in answer
    p_flip = FLIP_CORRECT if fit_to_show else FLIP_CONFIDENT if is_confident else FLIP_INCORRECT
    is_up = fit_to_show != (rng.random() < p_flip)
    given_at = _later(question.asked_at, rng.randrange(20, 3600), exported_at)
    return ImportedThumb(given_at=given_at, thumb="up" if is_up else "down", user=f"u-{rng.randrange(1, 400):020x}")


def draw_review(
    question: SampleQuestion,
    review: SimulatedReview,
    thumb: ImportedThumb | None,
    exported_at: datetime,
    rng: random.Random,
) -> ImportedReview | None:
    """Draw a review within four days and before the export that contains it, or none."""
    line = question.fact.topic.line
    probability = round(REVIEW_BY_THUMB[thumb.thumb if thumb else None] * REVIEW_BY_LINE.get(line, 1.0), 4)
    if rng.random() >= probability:
        return None
    reviewed_at = _later(question.asked_at, rng.randrange(3600, 4 * 86400), exported_at)
    has_ideal_answer = rng.random() < (IDEAL_SHARE_CORRECT if review.fit_to_show else IDEAL_SHARE)
    ideal_answer_text = ideal_answer(question, review.answerable) if has_ideal_answer else None
    return ImportedReview(
        reviewed_at=reviewed_at,
        reviewer=rng.choice(REVIEWERS),
        complete=review.complete,
        correct=review.correct,
        truthful=review.truthful,
        ideal_answer=ideal_answer_text,
        inclusion_probability=probability,
    )


def ideal_answer(question: SampleQuestion, answerable: bool) -> str:
    """Return the reviewer's ideal answer."""
    return question.fact.sentence if answerable else f"The context does not state this for the {question.fact.product}."


def _later(asked_at: datetime, seconds: int, exported_at: datetime) -> datetime:
    return min(asked_at + timedelta(seconds=seconds), exported_at - timedelta(seconds=1))
