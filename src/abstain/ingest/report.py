"""The ingest report: counts that must add up, and the reasons for rejected rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from abstain.core.markdown import bullet_list, document, heading, key_metrics_table, list_section, paragraph
from abstain.core.reasons import Reason
from abstain.data.validation.runner import ValidationResult

# Quoted values and numbers in a message distinguish rows, not reasons;
# the hint of a misspelt field, and an example of how to write it, stay.
_VALUES = re.compile(r"(as in \S+)|(?<!mean )'[^']*'|(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?")


class ReplacedRow(NamedTuple):
    """A stored row that got other content.

    Attributes:
        table: Its table.
        identity: Its identity.
        interaction_id: The interaction that it is or belongs to.
    """

    table: str
    identity: bytes
    interaction_id: str


@dataclass(frozen=True)
class IngestReport:
    """Counts of one ingest: input rows (`read` is the sum of the next four), and new rows by contract.

    Attributes:
        read: Input rows.
        accepted: Accepted rows.
        duplicate: Duplicate rows.
        pending: Pending rows, and rows that await documents.
        quarantined: Quarantined rows.
        contracts: Contract -> number of new rows.
        newly_rejected: Quarantined rows that were not reported before.
        awaiting_documents: Rows among `pending` that await documents.
        weighted_reviews: Reviews with an inclusion probability of their source.
        replaced: The stored rows that got other content.
        completed: Accepted rows that added a part to a stored interaction.
        resolved_pending: Outcome -> number of earlier pending rows whose interaction or documents came now.
        reasons: Reason -> number of rejected rows.
        quarantine: File of the newly quarantined rows, relative to the data folder.
        cut_answers: Rows whose answer had reasoning, which was cut out.
        redacted: Entity -> number of redactions.
        ignored: Files of no known kind.
        source_notes: Notes of the sources themselves.
        validation: Result of the validation; None if there was nothing to validate.
        effects: What the replaced rows touch: labels, hold-out answers, versions.

    Raises:
        RuntimeError: The counts do not add up: a row would have been lost.
    """

    read: int
    accepted: int
    duplicate: int
    pending: int
    quarantined: int
    contracts: Mapping[str, int]
    newly_rejected: int = 0
    awaiting_documents: int = 0
    weighted_reviews: int = 0
    replaced: tuple[ReplacedRow, ...] = ()
    completed: int = 0
    resolved_pending: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    cut_answers: int = 0
    redacted: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    source_notes: tuple[str, ...] = ()
    validation: ValidationResult | None = None
    effects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.read != self.accepted + self.duplicate + self.pending + self.quarantined:
            raise RuntimeError(
                f"rows lost in ingest: {self.read} read, but {self.accepted} accepted, {self.duplicate} duplicate, "
                f"{self.pending} pending and {self.quarantined} quarantined"
            )

    def to_markdown(self) -> str:
        """Return a short report: the counts, the reasons for rejected rows, warnings and notes."""
        return document([heading(1, "Ingest"), *self.summarize()])

    def summarize(self, accepted: str = "accepted") -> list[str]:
        """Summarize the ingest below the title of the short report.

        Args:
            accepted: Label of the accepted rows.

        Returns:
            Blocks of Markdown.
        """
        counts = {
            "read": self.read,
            accepted: self.accepted,
            "duplicate": self.duplicate,
            "pending": self.pending,
            "quarantined": self.quarantined,
        }
        new = ", ".join(f"{count:,} {name}" for name, count in self.contracts.items())
        blocks = [key_metrics_table((f"{count:,}", name) for name, count in counts.items()), paragraph(f"New: {new}.")]
        if self.quarantined:
            where = f" in {self.quarantine}" if self.quarantine else ", all of them known"
            reasons = bullet_list(f"{count:,} x {reason}" for reason, count in self.reasons.items())
            blocks += [heading(2, "Why rows were rejected"), paragraph(f"Quarantined{where}:"), reasons]
        if self.replaced:
            tables = Counter(row.table for row in self.replaced).items()
            replaced = ", ".join(f"{count:,} {table}" for table, count in tables)
            blocks += [heading(2, "What was corrected"), bullet_list([f"replaced: {replaced}", *self.effects])]
        warnings = self.validation.format_warnings() if self.validation else []
        return [*blocks, *list_section("Warnings", warnings), *list_section("Notes", self._make_notes())]

    def _make_notes(self) -> list[str]:
        notes = [*self.validation.notes] if self.validation else []
        if self.quarantined and not (self.accepted or self.duplicate or self.pending or self.newly_rejected):
            notes.append(
                "every row was rejected, and the retrain goes on, because people can cause such rows or they were "
                "reported before: if the exporter wrote them, correct it"
            )
        if self.pending > self.awaiting_documents:
            notes.append(f"{self.pending - self.awaiting_documents:,} thumbs and reviews without their interaction")
        if self.awaiting_documents:
            notes.append(
                f"{self.awaiting_documents:,} answers await the documents of their chunks: ingest these, named by "
                "`abstain quarantine list --rows`"
            )
        if self.completed:
            notes.append(f"{self.completed:,} rows added contexts, writer_scores or token_log_probs to known answers")
        if self.resolved_pending:
            outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.resolved_pending.items()))
            notes.append(f"earlier rows that were pending: {outcomes}")
        if self.weighted_reviews:
            notes.append(
                f"{self.weighted_reviews:,} reviews have the inclusion probability that their source gave: it is not "
                "checked, and it is their weight (docs/reviews.md)"
            )
        if self.cut_answers:
            notes.append(
                f"{self.cut_answers:,} answers had reasoning, which was cut out (labels.reasoning), together with the "
                "log-probabilities of their tokens"
            )
        if self.redacted:
            notes.append(f"redacted: {', '.join(f'{n:,} {entity}' for entity, n in sorted(self.redacted.items()))}")
        if self.ignored:
            notes.append(f"ignored, of no known kind: {', '.join(self.ignored)}")
        return [*notes, *self.source_notes]


def generalize_reasons(reasons: Iterable[Reason]) -> list[str]:
    """Generalize the reasons of a row as they are counted.

    Args:
        reasons: The reasons.

    Returns:
        Their texts with values blanked, without duplicates.
    """
    return list(
        dict.fromkeys(_VALUES.sub(lambda match: match[1] or "…", reason.message_with_code) for reason in reasons)
    )


def count_reasons(reasons: Iterable[Iterable[Reason]]) -> dict[str, int]:
    """Count the rows rejected for each generalized reason.

    Args:
        reasons: The reasons of each row.

    Returns:
        Reason -> number of rows, the most frequent first.
    """
    counts = Counter(text for row in reasons for text in generalize_reasons(row))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
