"""Why a row was rejected or a check failed: a record, so that no code has to parse a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from abstain.core.codes import Code


class ReasonKind(StrEnum):
    """The kind of a reason, for the kinds that other code depends on."""

    BLANK_TEXT = "blank"
    HALF_CHARACTER = "half_character"
    SAME_MOMENT = "same_moment"
    TOO_LARGE = "too_large"
    TOO_LATE = "too_late"
    TOO_LONG = "too_long"
    UNKNOWN_CONTEXTS = "unknown_contexts"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for a rejection or a failed check.

    Attributes:
        code: Code of the cause.
        field: The field that it is about; empty if it is about the whole row.
        message: Message for people.
        kind: Kind that other code depends on.
    """

    code: Code
    field: str
    message: str
    kind: ReasonKind = ReasonKind.OTHER

    def __str__(self) -> str:
        """Return the field, if there is one, and the message."""
        return f"{self.field}: {self.message}" if self.field else self.message

    @property
    def message_with_code(self) -> str:
        """The text with its code in front."""
        return f"{self.code} {self}"


Reasons = tuple[Reason, ...]
