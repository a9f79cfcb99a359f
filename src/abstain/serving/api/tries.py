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


class Tries:
    """Counts the answers to each question of a conversation, `most` within an hour; 0: without a limit.

    The same question is one that differs in case and white space alone. For the event loop's thread.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._answers: OrderedDict[tuple[str, str, int], dict[str, float]] = OrderedDict()

    def require_another(self, caller: str, conversation: str | None, question: str, answer_id: str) -> None:
        """Count an answer; one that comes again under its id is none more.

        Raises:
            AbstainError: `most` others were counted within the hour.
        """
        if not self._most or conversation is None:
            return
        key, now = (caller, conversation, hash(" ".join(question.casefold().split()))), self._clock()
        tried = {one: at for one, at in self._answers.get(key, {}).items() if now - at < WITHIN_S}
        if answer_id not in tried and len(tried) >= self._most:
            raise AbstainError(
                Code.FAILED_CHECK,
                f"{self._most} answers to this question were tried in this conversation within an hour, and no more "
                "are decided about: ask a person",
            )
        self._answers[key] = {answer_id: now, **tried}
        self._answers.move_to_end(key)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
