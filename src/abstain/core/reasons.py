"""Why a row was refused, or a check failed: a record, so that nothing has to be read out of a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from abstain.core.codes import Code


class ReasonKind(StrEnum):
    """What a reason is about, as far as something depends on it."""

    BLANK_TEXT_REASON = "blank"
    HALF_CHARACTER = "half_character"
    SAME_MOMENT = "same_moment"
    TOO_LARGE = "too_large"
    TOO_LATE = "too_late"
    TOO_LONG = "too_long"
    UNKNOWN_CONTEXTS = "unknown_contexts"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: `field` is what it is about, and `message` is for people."""

    code: Code
    field: str
    message: str
    kind: ReasonKind = ReasonKind.OTHER

    def __str__(self) -> str:
        """Return the field, if there is one, and the message."""
        return f"{self.field}: {self.message}" if self.field else self.message

    @property
    def coded(self) -> str:
        """The text with its code in front."""
        return f"{self.code} {self}"


Reasons = tuple[Reason, ...]
