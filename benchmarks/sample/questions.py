"""Customers' questions about the handbook: seeded, each about one known fact of one product.

A question's group is its topic: twin pages, and questions in the same words but for names, are on one side of a split.
Some users lack the entitlement that the page needs, and some facts are on no page: such questions have no answer.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.sample.handbook import SEED, Fact, Page

FIRST_DAY = datetime(2026, 8, 1, tzinfo=UTC)
DAYS = 106  # the last question is asked on 2026-11-14
ENTITLED_SHARE = 0.9  # of users who ask about a page that needs an entitlement


@dataclass(frozen=True)
class SampleQuestion:
    """A question about `fact`; `entitlements` are those of the user."""

    question_id: str
    text: str
    fact: Fact
    asked_at: datetime
    entitlements: tuple[str, ...]

    @property
    def group(self) -> str:
        return self.fact.topic.key


def build_questions(pages: Sequence[Page], seed: int = SEED) -> list[SampleQuestion]:
    """Return every phrasing of the question about every fact, in order of time."""
    rng = random.Random(f"{seed}/questions")
    fact_questions = [(fact, ask) for page in pages for fact in page.facts for ask in fact.asks]
    minutes = sorted(rng.sample(range(7 * 60, DAYS * 24 * 60 - 7 * 60), len(fact_questions)))
    rng.shuffle(fact_questions)
    return [
        SampleQuestion(f"q-{number:05d}", ask, fact, FIRST_DAY + timedelta(minutes=minute), _entitlements(fact, rng))
        for number, ((fact, ask), minute) in enumerate(zip(fact_questions, minutes, strict=True), 1)
    ]


def source_digest(pages: Sequence[Page], questions: Sequence[SampleQuestion]) -> str:
    """Return the sha256 (hex) of the handbook and the questions, on which the answers depend."""
    total = hashlib.sha256()
    for page in pages:
        total.update(page.markdown.encode())
    for question in questions:
        total.update(json.dumps([question.question_id, question.text, question.entitlements]).encode())
    return total.hexdigest()


def _entitlements(fact: Fact, rng: random.Random) -> tuple[str, ...]:
    needed = fact.topic.closed.get(fact.product.removesuffix(f" {fact.topic.noun}"))
    if needed is None:
        return rng.choices([(), ("premium",), ("business",)], weights=[8, 1, 1])[0]
    return (needed,) if rng.random() < ENTITLED_SHARE else ()
