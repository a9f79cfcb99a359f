"""A limit on the answers to one question in a conversation: with unlimited tries, one is shown in the end."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

PERIOD_S = 3600.0
MAX_QUESTIONS = 100_000
"""Questions of conversations that are remembered: the oldest are removed first, and all end with the process."""
Key = tuple[str, str, int]
"""Caller, conversation and hash of the question."""


class Tries:
    """Counts the answers to each question of a conversation within an hour. For the event loop's thread only.

    Questions that differ only in case and white space are the same.

    Args:
        max_answers: Maximum number of answers; 0 for no limit.
        clock: Returns the time in seconds.
    """

    def __init__(self, max_answers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_answers, self._clock = max_answers, clock
        self._answers: OrderedDict[Key, dict[str, float]] = OrderedDict()
        self._running: dict[Key, list[str]] = {}

    def begin(self, caller: str, conversation: str | None, question: str, answer_id: str) -> Callable[[bool], None]:
        """Begin to decide about an answer, which counts while it is decided about.

        Args:
            caller: Name of the caller.
            conversation: Id of the conversation; None for no limit.
            question: The question.
            answer_id: Id of the answer.

        Returns:
            A callback to call once at the end, with whether there is a decision. If there is one, the answer counts for
            an hour, once per id.

        Raises:
            AbstainError: The conversation has reached the limit.
        """
        if not self._max_answers or conversation is None:
            return lambda _: None
        key = caller, conversation, hash(" ".join(question.casefold().split()))
        if len({*self._get_recent(key), *self._running.get(key, ())} - {answer_id}) >= self._max_answers:
            raise AbstainError(
                Code.TOO_MANY_TRIES,
                f"{self._max_answers} answers to this question were tried in this conversation within an hour, and "
                "no more are decided about: ask a person",
            )
        self._running.setdefault(key, []).append(answer_id)

        def end_try(is_decided: bool) -> None:
            self._running[key].remove(answer_id)
            if not self._running[key]:
                del self._running[key]
            if is_decided:
                self._answers[key] = {answer_id: self._clock(), **self._get_recent(key)}
                self._answers.move_to_end(key)
                if len(self._answers) > MAX_QUESTIONS:
                    self._answers.popitem(last=False)

        return end_try

    def _get_recent(self, key: Key) -> dict[str, float]:
        """Return the answers that were decided about within the hour, and when."""
        now = self._clock()
        return {
            answer_id: decided_at
            for answer_id, decided_at in self._answers.get(key, {}).items()
            if now - decided_at < PERIOD_S
        }
