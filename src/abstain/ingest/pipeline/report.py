"""The ingest report: counts that must add up, and the reasons for refused rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from abstain.core.markdown import bullet_list, document, heading, key_metrics_table, list_section, paragraph
from abstain.core.reasons import Reason
from abstain.data.validation.runner import ValidationResult

# Quoted values and figures in a message distinguish rows, not reasons;
# the hint of a misspelt field, and an example of how to write it, stay.
_PARTICULARS = re.compile(r"(as in \S+)|(?<!mean )'[^']*'|(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class IngestReport:
    """Two levels of counts: input rows (`read` is the sum of the next four), and new rows by contract.

    `newly_refused` are the quarantined rows that were not reported before; `waiting`, those of the held ones that wait
    for documents. `weighted` reviews brought an inclusion probability of their source's own. `joined` counts the
    outcomes of rows held by earlier batches whose interaction, or documents, came with this one. `quarantine`, relative
    to the data folder, is the file of the newly quarantined rows. `source_notes` are lines of the sources themselves.
    Raises `RuntimeError` when the counts do not add up: a row would have been
    lost.
    """

    read: int
    accepted: int
    duplicate: int
    held: int
    quarantined: int
    contracts: Mapping[str, int]
    newly_refused: int = 0
    waiting: int = 0
    weighted: int = 0
    joined: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    redacted: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    source_notes: tuple[str, ...] = ()
    validation: ValidationResult | None = None

    def __post_init__(self) -> None:
        if self.read != self.accepted + self.duplicate + self.held + self.quarantined:
            raise RuntimeError(
                f"rows lost in ingest: {self.read} read, but {self.accepted} accepted, {self.duplicate} duplicate, "
                f"{self.held} held and {self.quarantined} quarantined"
            )

    def to_markdown(self) -> str:
        """Return a short report: the counts, what was refused and why, what to look at."""
        return document([heading(1, "Ingest"), *self.summary()])

    def summary(self, accepted: str = "accepted") -> list[str]:
        """Return the blocks of the short report below its title; `accepted` names the rows that were."""
        counts = {
            "read": self.read,
            accepted: self.accepted,
            "duplicate": self.duplicate,
            "held": self.held,
            "quarantined": self.quarantined,
        }
        new = ", ".join(f"{count:,} {name}" for name, count in self.contracts.items())
        blocks = [key_metrics_table((f"{count:,}", name) for name, count in counts.items()), paragraph(f"New: {new}.")]
        if self.quarantined:
            where = f" in {self.quarantine}" if self.quarantine else ", all of them known"
            reasons = bullet_list(f"{count:,} x {reason}" for reason, count in self.reasons.items())
            blocks += [heading(2, "Why rows were refused"), paragraph(f"Quarantined{where}:"), reasons]
        warnings = self.validation.warning_lines() if self.validation else []
        return [*blocks, *list_section("Warnings", warnings), *list_section("Notes", self._notes())]

    def _notes(self) -> list[str]:
        notes = [*self.validation.notes] if self.validation else []
        if self.quarantined and not (self.accepted or self.duplicate or self.held or self.newly_refused):
            notes.append(
                "every row was refused, and the retrain goes on, because people can cause such rows or they were "
                "reported before: if the exporter wrote them, correct it"
            )
        if self.held > self.waiting:
            notes.append(f"{self.held - self.waiting:,} thumbs and reviews wait for their interaction")
        if self.waiting:
            notes.append(
                f"{self.waiting:,} answers wait for documents that hold their chunks: ingest these, named by `abstain "
                "quarantine list --rows`"
            )
        if self.joined:
            became = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.joined.items()))
            notes.append(f"of those that had waited: {became}")
        if self.weighted:
            notes.append(
                f"{self.weighted:,} reviews have the inclusion probability that their source gave: it is not checked, "
                "and it is their weight (docs/reviews.md)"
            )
        if self.redacted:
            notes.append(f"redacted: {', '.join(f'{n:,} {entity}' for entity, n in sorted(self.redacted.items()))}")
        if self.ignored:
            notes.append(f"ignored, of no known kind: {', '.join(self.ignored)}")
        return [*notes, *self.source_notes]


def without_particulars(reasons: Iterable[Reason]) -> list[str]:
    """Reasons as they are counted: values are blanked, and equal ones of a row count once."""
    return list(dict.fromkeys(_PARTICULARS.sub(lambda found: found[1] or "…", reason.coded) for reason in reasons))


def count_reasons(reasons: Iterable[Iterable[Reason]]) -> dict[str, int]:
    """The number of rows refused for each reason without its particulars, the commonest first."""
    found = Counter(text for row in reasons for text in without_particulars(row))
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
