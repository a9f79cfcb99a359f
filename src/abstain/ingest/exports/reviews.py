"""Reviews of scores: all scores that one reviewer gave to an answer, in one form, are one review."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from abstain.core.contracts import CRITERIA
from abstain.ingest.parsing import ParsedRow, invalid, parse_object

_OLDEST = datetime.min.replace(tzinfo=UTC)


class ReviewKey(NamedTuple):
    """What the scores of one review have in common."""

    interaction_id: Any
    reviewer: Any
    form: Any


class ReviewField(NamedTuple):
    """The fields of a review that one score gives, the time of the score, and its place."""

    at: Any
    values: Mapping[str, Any]
    source: str
    number: int


def missing_verdicts(parts: list[ReviewField]) -> list[str]:
    """The verdicts that no score gives so far."""
    return [verdict for verdict in CRITERIA if all(verdict not in part.values for part in parts)]


def make_review_row(key: ReviewKey, parts: list[ReviewField]) -> ParsedRow:
    """The review: of each field its newest value, at the time of the newest score.

    It is refused if two scores of the same time contradict each other.
    """
    ordered = sorted(parts, key=lambda part: _moment(part.at))
    fields = {"interaction_id": key.interaction_id, "reviewer": key.reviewer, "reviewed_at": ordered[-1].at}
    for part in ordered:
        fields |= part.values
    row = parse_object(fields, ordered[-1].source, ordered[-1].number)
    contradicted = sorted({name for name in fields if len(_last_values(ordered, name)) > 1})
    message = "two scores of the same time contradict each other about"
    reasons = [invalid("review", f"{message} {name}") for name in contradicted]
    return replace(row, review=None, reasons=(*row.reasons, *reasons)) if reasons else row


def _last_values(ordered: list[ReviewField], name: str) -> set[str]:
    """The values that the newest scores which give the field `name` give it: one, unless they contradict each other."""
    giving = [part for part in ordered if name in part.values]
    return {str(part.values[name]) for part in giving if _moment(part.at) == _moment(giving[-1].at)}


def _moment(at: Any) -> datetime:
    """`at` to compare; what is no time with a zone, which the contract refuses, comes first."""
    try:
        moment = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        return _OLDEST
    return moment if moment.tzinfo else _OLDEST
