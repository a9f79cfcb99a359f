"""Messages that the product may show but not read: what is decided is decided by codes, kinds and fields.

In tests, the message of each `AbstainError` and `Reason` is an `OpaqueMessage`. Product code that looks for words in it
fails; so a message can be reworded without changing a decision. So does product code that raises an `AbstainError` of
more than one line.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason
from tests.checkout import ROOT

PRODUCT = tuple(str(ROOT / folder) for folder in ("src", "tasks", "flows", "studies", "benchmarks"))
QUOTED = re.compile(r"'[^']*'")
"""What was given, as it was given: a terminal shows it without control characters."""
READING = ("__contains__", "startswith", "endswith", "find", "index", "partition", "rpartition")


class OpaqueMessage(str):
    """A message of the product; its own code may not look into it."""

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)


def _forbid(name: str) -> Callable[..., Any]:
    read = getattr(str, name)

    def method(self: OpaqueMessage, *arguments: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        assert not caller.startswith(PRODUCT), f"{caller} reads the message {str.__str__(self)!r}: use a code or a kind"
        return read(self, *arguments)

    return method


for reading in READING:
    setattr(OpaqueMessage, reading, _forbid(reading))


def make_messages_opaque() -> None:
    """Make the messages of all errors and reasons that are created from now on opaque, and those of errors one line."""
    make_error, make_reason = AbstainError.__init__, Reason.__init__

    def init_error(self: AbstainError, code: Any, message: str, *others: Any) -> None:
        caller = sys._getframe(1).f_code.co_filename
        is_line = "\n" not in QUOTED.sub("", message)
        assert is_line or not caller.startswith(PRODUCT), f"{caller} raises an error of lines: {message!r}"
        make_error(self, code, OpaqueMessage(message), *others)

    def init_reason(self: Reason, *arguments: Any, **named: Any) -> None:
        make_reason(self, *arguments, **named)
        object.__setattr__(self, "message", OpaqueMessage(self.message))

    AbstainError.__init__ = init_error  # type: ignore[method-assign]
    Reason.__init__ = init_reason  # type: ignore[method-assign]
