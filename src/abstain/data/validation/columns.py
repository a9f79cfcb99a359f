"""The columns of the expectations in `checks`: one table per contract. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from abstain.core.contracts import UNNAMED_PREFIX, Interaction, Review, Thumb, get_document_id
from abstain.data.store.record_keys import Record, from_microseconds
from abstain.data.validation.checks import ExistingData, ValidatedRows

Table = list[dict[str, Any]]


def build_tables(rows: ValidatedRows, known: ExistingData, now: datetime) -> dict[str, Table]:
    """The columns of the expectations; `row` is the key of the row they belong to."""
    asked = {line.row.interaction_id: from_microseconds(line.timestamp_us) for line in rows.interactions}
    chunk_counts = Counter(chunk.doc_id for chunk in rows.chunks if chunk.removed_at is None)

    def reply(line: Record, at: str) -> dict[str, Any]:
        """The common columns of feedback and reviews."""
        row = line.row
        asked_at = asked.get(row.interaction_id) or known.index.asked_at(row.interaction_id)
        moment: datetime = getattr(row, at)
        return {
            "row": line.key,
            "interaction_id": row.interaction_id,
            "interaction_known": asked_at is not None,
            "delay_days": (moment - asked_at) / timedelta(days=1) if asked_at else math.nan,
            "identity": line.identity.hex(),
            "known_before": known.index.find(line.identity) is not None,
            f"{at}_seconds_ahead": _seconds(moment, now),
        }

    return {
        "interactions": [_interaction(line, known, now) for line in rows.interactions],
        "feedback": [
            {**reply(line, "given_at"), "thumb": line.row.thumb, "comment_chars": len(line.row.comment or "")}
            for line in rows.feedback
            if isinstance(line.row, Thumb)
        ],
        "reviews": [
            {
                **reply(line, "reviewed_at"),
                "reviewer": line.row.reviewer,
                "ideal_answer_chars": len(line.row.ideal_answer or ""),
                "inclusion_probability": _number(line.row.inclusion_probability),
            }
            for line in rows.reviews
            if isinstance(line.row, Review)
        ],
        "documents": [
            {
                "row": f"documents/{row.doc_id}",
                "doc_id": row.doc_id,
                "updated_at_seconds_ahead": _seconds(row.updated_at, now),
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
                "document_known": row.doc_id in known.doc_ids,
                "document_named": get_document_id(row.chunk_id) == row.doc_id,
            }
            for row in rows.chunks
        ],
    }


def _interaction(line: Record, known: ExistingData, now: datetime) -> dict[str, Any]:
    row = line.row
    assert isinstance(row, Interaction)
    cited = [context.chunk_id for context in row.contexts if not context.chunk_id.startswith(UNNAMED_PREFIX)]
    unknown = [chunk_id for chunk_id in cited if get_document_id(chunk_id) not in known.doc_ids]
    return {
        "row": line.key,
        "interaction_id": row.interaction_id,
        "known_before": known.index.find(line.identity) is not None,
        "asked_at": line.timestamp_us,
        "asked_at_seconds_ahead": _seconds(row.asked_at, now),
        "question_chars": len(row.question),
        "answer_chars": len(row.answer),
        "contexts": len(row.contexts),
        "longest_context_chars": max((len(context.text) for context in row.contexts), default=0),
        "unknown_contexts": _listed(unknown),
        "outdated_contexts": _listed(
            chunk_id for chunk_id in cited if chunk_id not in known.chunk_ids and chunk_id not in unknown
        ),
        "model": row.model,
        "scores_not_finite": _listed(name for name, score in (row.writer or {}).items() if not math.isfinite(score)),
        "largest_token_log_prob": _number(max(row.token_log_probs or (), default=None)),
        "decision": row.decision,
        "propensity": _number(row.propensity),
        "decided": row.propensity is None or row.decision is not None,
    }


def _number(value: float | None) -> float:
    """nan where there is none, so that a column of numbers stays one."""
    return math.nan if value is None else value


def _seconds(moment: datetime, now: datetime) -> float:
    return (moment - now).total_seconds()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(set(names)))
