"""A conversation has some tries for each question, within an hour; another one has its own."""

from __future__ import annotations

import pytest

from abstain.core.errors import AbstainError
from abstain.serving.api.tries import WITHIN_S, Tries


def test_one_more_answer_than_a_conversation_has_is_refused() -> None:
    now = [0.0]
    tries = Tries(2, clock=lambda: now[0])
    for answer in ("a", "b", "a"):  # the last one comes again
        tries.require_another("key bot", "c1", "What is the fee?", answer)
    with pytest.raises(AbstainError, match="^2 answers to this question"):
        tries.require_another("key bot", "c1", " what IS the  fee?", "c")
    for caller, conversation, question in (
        ("key bot", "c2", "What is the fee?"),
        ("key bot", "c1", "And for companies?"),
        ("key other", "c1", "What is the fee?"),
        ("key bot", None, "What is the fee?"),
    ):
        tries.require_another(caller, conversation, question, "d")
    now[0] = WITHIN_S
    tries.require_another("key bot", "c1", "What is the fee?", "c")


def test_without_a_limit_every_answer_is_decided_about() -> None:
    tries = Tries(0)
    for at in range(100):
        tries.require_another("key bot", "c1", "What is the fee?", str(at))
