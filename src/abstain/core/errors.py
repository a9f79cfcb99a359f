"""The base class of errors that are reported to the user, and the text in which one process passes them to another."""

from __future__ import annotations

import re

from abstain.core.codes import Code
from abstain.core.text import visible

ERROR_LINE = re.compile(r"\b(?P<code>A[1-6]\d\d): (?P<message>.*)")
"""A message with its code in front, as `AbstainError.coded` writes it."""


class AbstainError(Exception):
    """A problem whose message names the thing and the remedy in one line, with the `code` of its kind of cause.

    The CLI and the stages print both without a traceback and exit with status 1; anything else that escapes is a bug
    and keeps its traceback.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message

    @property
    def message_with_code(self) -> str:
        """The message with its code in front, one line that `parse_error_line` reads, and that a terminal may show."""
        return f"{self.code}: {visible(self.message)}"


def parse_error_line(text: str) -> AbstainError | None:
    """The error that another process wrote into the line `text`; None where it has no code."""
    match = ERROR_LINE.search(text)
    if match is None or match["code"] not in set(Code):
        return None
    code = Code(match["code"])
    return AbstainError(code, match["message"])
