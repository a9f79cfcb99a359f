"""Build reviews from scores: all scores that one reviewer gave to an answer, in one form, are one review."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from abstain.core.contracts import CRITERIA
from abstain.ingest.parsing import JsonObject, ParsedRow, make_reason, parse_object

_OLDEST = datetime.min.replace(tzinfo=UTC)


class ReviewKey(NamedTuple):
    """What the scores of one review have in common.

    Attributes:
        interaction_id: The reviewed answer.
        reviewer: Person who gave the scores.
        form: The form in which they were given.
    """

    interaction_id: Any
    reviewer: Any
    form: Any


class ReviewField(NamedTuple):
    """The fields of a review that one score gives.

    Attributes:
        scored_at: Time of the score.
        values: Field name -> value.
        source: File of the score.
        number: Number of its record.
    """

    scored_at: Any
    values: JsonObject
    source: str
    number: int


def find_missing_criteria(parts: list[ReviewField]) -> list[str]:
    """Return the criteria that none of the scores in `parts` gives."""
    return [criterion for criterion in CRITERIA if all(criterion not in part.values for part in parts)]


def drop_ideal_answer(parts: list[ReviewField]) -> list[ReviewField]:
    """Return `parts` without the ideal answer."""
    return [
        part._replace(values={name: value for name, value in part.values.items() if name != "ideal_answer"})
        for part in parts
    ]


def make_review_row(key: ReviewKey, parts: list[ReviewField]) -> ParsedRow:
    """Build a review from its scores: each field has its newest value, and the review has the time of the newest score.

    Args:
        key: Answer, reviewer and form.
        parts: The scores.

    Returns:
        The row; it is rejected if two scores of the same time contradict each other.
    """
    ordered = sorted(parts, key=lambda part: _parse_time(part.scored_at))
    fields = {"interaction_id": key.interaction_id, "reviewer": key.reviewer, "reviewed_at": ordered[-1].scored_at}
    for part in ordered:
        fields |= part.values
    row = parse_object(fields, ordered[-1].source, ordered[-1].number)
    contradicted_fields = sorted({name for name in fields if len(_find_newest_values(ordered, name)) > 1})
    message = "two scores of the same time contradict each other about"
    reasons = [make_reason("review", f"{message} {name}") for name in contradicted_fields]
    return replace(row, review=None, reasons=(*row.reasons, *reasons)) if reasons else row


def _find_newest_values(ordered: list[ReviewField], name: str) -> set[str]:
    """Return the values of the field `name` in the newest scores that have it: one, unless they contradict."""
    parts_with_field = [part for part in ordered if name in part.values]
    return {
        str(part.values[name])
        for part in parts_with_field
        if _parse_time(part.scored_at) == _parse_time(parts_with_field[-1].scored_at)
    }


def _parse_time(value: Any) -> datetime:
    """Parse a time for comparison. A value that is no time with a zone comes first; the contract rejects it."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return _OLDEST
    return moment if moment.tzinfo else _OLDEST
