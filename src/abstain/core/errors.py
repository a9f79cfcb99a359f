"""The base class of errors for users, and the line in which one process passes an error to another.

Subclasses of `AbstainError`:

* `ScorerUnavailable`: a scorer lacks what it needs.
* `BatchRejected`: too many rows of an ingest are rejected.
* `EntryRejected`: the index of the knowledge base refuses an entry.
* `LogQueueFull`, `QuotaExceeded`, `CallerLeft`: a request to the gate server ends without a result.
* `Stopped`, `CommandFailed`, `CodedFailure`, `OriginMoved`: a run ends without a result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from abstain.core.codes import Code
from abstain.core.text import replace_control_characters

if TYPE_CHECKING:
    from pydantic import ValidationError

ERROR_LINE = re.compile(r"\b(?P<code>A[1-6]\d\d): (?P<message>.*)")
"""A message with its code in front, as `AbstainError.message_with_code` writes it; A7 are alarms, never raised."""


class AbstainError(Exception):
    """An error whose message names the cause and the remedy in one line.

    The CLI and the stages print the message without a traceback and exit with status 1. Any other exception that
    escapes is a bug and keeps its traceback.

    Attributes:
        code: Code of the kind of cause.
        message: Message for the user, one line.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message

    @property
    def message_with_code(self) -> str:
        """The message with its code in front: one line that a terminal may show and that `parse_error_line` reads."""
        return f"{self.code}: {replace_control_characters(self.message)}"


def describe_first_problem(error: ValidationError) -> str:
    """Return the field and the message of the first problem that a validation found."""
    problem = error.errors(include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def parse_error_line(text: str) -> AbstainError | None:
    """Parse the error that another process wrote.

    Args:
        text: A line with `AbstainError.message_with_code` in it.

    Returns:
        The error, or None if the line contains no known code.
    """
    match = ERROR_LINE.search(text)
    if match is None or match["code"] not in set(Code):
        return None
    code = Code(match["code"])
    return AbstainError(code, match["message"])
