"""The columns of the expectations in `checks`: one table per contract. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from abstain.core.contracts import UNNAMED_PREFIX, Interaction, Review, Thumb, get_document_id
from abstain.data.store.record_keys import Record, from_microseconds
from abstain.data.validation.checks import MIN_YEAR, ExistingData, ValidatedRows

Table = list[dict[str, Any]]


def build_tables(rows: ValidatedRows, existing: ExistingData, now: datetime) -> dict[str, Table]:
    """Compute the columns of the expectations.

    Args:
        rows: Rows to check.
        existing: Earlier data.
        now: Current time in UTC.

    Returns:
        Table -> records; the column `row` is the key of the row.
    """
    asked_at_by_id = {record.row.interaction_id: from_microseconds(record.timestamp_us) for record in rows.interactions}
    chunk_counts = Counter(chunk.doc_id for chunk in rows.chunks if chunk.removed_at is None)

    def build_feedback_columns(record: Record, time_field: str) -> dict[str, Any]:
        """Return the common columns of thumbs and reviews."""
        row = record.row
        asked_at = asked_at_by_id.get(row.interaction_id) or existing.index.get_asked_at(row.interaction_id)
        timestamp: datetime = getattr(row, time_field)
        return {
            "row": record.key,
            "interaction_id": row.interaction_id,
            "interaction_known": asked_at is not None,
            "delay_days": (timestamp - asked_at) / timedelta(days=1)
            if asked_at and timestamp.year >= MIN_YEAR
            else math.nan,
            "identity": record.identity.hex(),
            "known_before": existing.is_known(record.identity),
            f"{time_field}_seconds_ahead": _compute_seconds_ahead(timestamp, now),
            f"{time_field}_year": timestamp.year,
        }

    return {
        "interactions": [_build_interaction_columns(record, existing, now) for record in rows.interactions],
        "feedback": [
            {
                **build_feedback_columns(record, "given_at"),
                "thumb": record.row.thumb,
                "comment_chars": len(record.row.comment or ""),
            }
            for record in rows.feedback
            if isinstance(record.row, Thumb)
        ],
        "reviews": [
            {
                **build_feedback_columns(record, "reviewed_at"),
                "reviewer": record.row.reviewer,
                "ideal_answer_chars": len(record.row.ideal_answer or ""),
                "inclusion_probability": _to_float(record.row.inclusion_probability),
            }
            for record in rows.reviews
            if isinstance(record.row, Review)
        ],
        "documents": [
            {
                "row": f"documents/{row.doc_id}",
                "doc_id": row.doc_id,
                "updated_at_seconds_ahead": _compute_seconds_ahead(row.updated_at, now),
                "chunks": chunk_counts[row.doc_id],
            }
            for row in rows.documents
        ],
        "chunks": [
            {
                "row": f"chunks/{row.chunk_id}",
                "chunk_id": row.chunk_id,
                "kind": row.kind,
                "text_chars": len(row.text),
                "document_known": row.doc_id in existing.doc_ids,
                "document_named": get_document_id(row.chunk_id) == row.doc_id,
            }
            for row in rows.chunks
        ],
    }


def _build_interaction_columns(record: Record, existing: ExistingData, now: datetime) -> dict[str, Any]:
    row = record.row
    assert isinstance(row, Interaction)
    cited_ids = [context.chunk_id for context in row.contexts if not context.chunk_id.startswith(UNNAMED_PREFIX)]
    unknown_ids = [chunk_id for chunk_id in cited_ids if get_document_id(chunk_id) not in existing.doc_ids]
    return {
        "row": record.key,
        "interaction_id": row.interaction_id,
        "known_before": existing.is_known(record.identity),
        "asked_at": record.timestamp_us,
        "asked_at_seconds_ahead": _compute_seconds_ahead(row.asked_at, now),
        "asked_at_year": row.asked_at.year,
        "question_chars": len(row.question),
        "answer_chars": len(row.answer),
        "contexts": len(row.contexts),
        "longest_context_chars": max((len(context.text) for context in row.contexts), default=0),
        "unknown_contexts": _join_quoted(unknown_ids),
        "outdated_contexts": _join_quoted(
            chunk_id for chunk_id in cited_ids if chunk_id not in existing.chunk_ids and chunk_id not in unknown_ids
        ),
        "model": row.model,
        "scores_not_finite": _join_quoted(
            name for name, score in (row.writer_scores or {}).items() if not math.isfinite(score)
        ),
        "largest_token_log_prob": _to_float(max(row.token_log_probs or (), default=None)),
        "display": row.display,
        "propensity": _to_float(row.propensity),
        "has_display": row.propensity is None or row.display is not None,
    }


def _to_float(value: float | None) -> float:
    """Return nan for None, so that a column of numbers stays one."""
    return math.nan if value is None else value


def _compute_seconds_ahead(timestamp: datetime, now: datetime) -> float:
    return (timestamp - now).total_seconds()


def _join_quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(set(names)))
