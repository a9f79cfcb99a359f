"""What an ingest did: counts that must add up, and the reasons of what was refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from abstain.feedback.validation import ValidationResult

# A reason opens with its field; quoted values and figures after that are what tells rows apart, not reasons;
# the hint of a misspelt field stays.
_PARTICULARS = re.compile(r"(?<!mean )'[^']*'|(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class IngestReport:
    """Two levels of counts: input rows (`read` is the sum of the other three), and new rows by contract.

    `quarantine` is relative to the data folder; `quarantine_is_new` is false where the same lines had been
    quarantined before. Raises `RuntimeError` when the counts do not add up: a row would have been lost.
    """

    read: int
    accepted: int
    duplicate: int
    quarantined: int
    contracts: Mapping[str, int]
    reasons: Mapping[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    quarantine_is_new: bool = False
    ignored: tuple[str, ...] = ()
    validation: ValidationResult | None = None

    def __post_init__(self) -> None:
        if self.read != self.accepted + self.duplicate + self.quarantined:
            raise RuntimeError(
                f"rows lost in ingest: {self.read} read, but {self.accepted} accepted, {self.duplicate} duplicate "
                f"and {self.quarantined} quarantined"
            )

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Of the validation only its notes and warnings: its errors are the quarantined rows."""
        return {
            "read": self.read,
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "quarantined": self.quarantined,
            "contracts": dict(self.contracts),
            "reasons": dict(self.reasons),
            "quarantine": self.quarantine,
            "quarantine_is_new": self.quarantine_is_new,
            "ignored": list(self.ignored),
            "notes": list(self.validation.notes) if self.validation else [],
            "warnings": [check.to_dict() for check in self.validation.warnings] if self.validation else [],
        }

    def to_markdown(self) -> str:
        """A short report: the counts, what was refused and why, what to look at."""
        lines = ["# Ingest", "", "| rows read | accepted | duplicate | quarantined |", "| ---: | ---: | ---: | ---: |"]
        lines += [f"| {self.read:,} | {self.accepted:,} | {self.duplicate:,} | {self.quarantined:,} |", ""]
        lines += [f"New: {', '.join(f'{count:,} {name}' for name, count in self.contracts.items())}."]
        if self.quarantine:
            known = "" if self.quarantine_is_new else ", which held them before"
            lines += ["", f"Quarantined in `{self.quarantine}`{known}:", ""]
            lines += [f"- {count} x {reason}" for reason, count in self.reasons.items()]
        notes = [f"ignored, neither .jsonl nor .md: {', '.join(self.ignored)}"] if self.ignored else []
        if self.validation:
            notes += self.validation.notes
            rows = self.validation.rows
            notes += [
                f"{check.unexpected} of {rows[check.suite]} {check.suite}: {check.note}"
                for check in self.validation.warnings
            ]
        lines += ["", "Notes:", ""] * bool(notes) + [f"- {note}" for note in notes]
        return "\n".join(lines) + "\n"


def count_reasons(reasons: Iterable[Iterable[str]]) -> dict[str, int]:
    """How many rows were refused for each kind of reason, the commonest first; particulars are blanked."""
    kinds = Counter(kind for row in reasons for kind in dict.fromkeys(_PARTICULARS.sub("…", reason) for reason in row))
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
