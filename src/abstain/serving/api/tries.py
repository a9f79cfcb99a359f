"""How many answers to one question a conversation may bring: who may try for ever has one shown in the end."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

WITHIN_S = 3600.0
REMEMBERED = 100_000
"""Questions of conversations that are remembered: the oldest go first, and all with the process."""
Key = tuple[str, str, int]
"""Caller, conversation and question."""


class Tries:
    """Counts the answers to each question of a conversation, `most` within an hour; 0: without a limit.

    The same question is one that differs in case and white space alone. For the event loop's thread.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._answers: OrderedDict[Key, dict[str, float]] = OrderedDict()
        self._running: dict[Key, list[str]] = {}

    def begin(self, caller: str, conversation: str | None, question: str, answer_id: str) -> Callable[[bool], None]:
        """Begin to decide about an answer, which counts while it is decided about.

        Returns:
            What is called once at its end, with whether there is a decision: then the answer counts for an hour, under
            its id once.

        Raises:
            AbstainError: `most` others count.
        """
        if not self._most or conversation is None:
            return lambda _: None
        key = caller, conversation, hash(" ".join(question.casefold().split()))
        if len({*self._tried(key), *self._running.get(key, ())} - {answer_id}) >= self._most:
            raise AbstainError(
                Code.FAILED_CHECK,
                f"{self._most} answers to this question were tried in this conversation within an hour, and no more "
                "are decided about: ask a person",
            )
        self._running.setdefault(key, []).append(answer_id)

        def end(is_decided: bool) -> None:
            self._running[key].remove(answer_id)
            if not self._running[key]:
                del self._running[key]
            if is_decided:
                self._answers[key] = {answer_id: self._clock(), **self._tried(key)}
                self._answers.move_to_end(key)
                if len(self._answers) > REMEMBERED:
                    self._answers.popitem(last=False)

        return end

    def _tried(self, key: Key) -> dict[str, float]:
        """The answers that were decided about within the hour, and when."""
        now = self._clock()
        return {one: at for one, at in self._answers.get(key, {}).items() if now - at < WITHIN_S}
