"""What accepted rows must satisfy beyond their types: the tables that are checked, and the expectations.

Pure and declarative; `validation` hands both to Great Expectations. Three decisions:

* Whatever needs a look at another table or at the clock is computed here, as a plain column (`delay_days`,
  `unknown_contexts`), so that every expectation is a simple one on one column.
* An error refuses a row; a warning is only counted and shown. An answer without contexts is a warning: the
  contract allows it, but a rising share is a retrieval problem.
* The document of every context must be known. Its chunk need not exist any more: a new version of a document
  renumbers its chunks, and the interactions that saw the old ones stay valid, so that is a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from abstain.contracts import Feedback, Interaction, Review, document_of
from abstain.feedback.store import Dataset, row_key
from abstain.params import ValidationParams

Severity = Literal["error", "warning"]
Table = list[dict[str, Any]]

TABLES = ("interactions", "feedback", "reviews", "documents", "chunks")


@dataclass(frozen=True)
class Check:
    """One expectation on one column; `reason` is told of a row that fails, `{value}` being what it held."""

    column: str
    expectation: str
    reason: str
    severity: Severity = "error"
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _present(column: str) -> Check:
    return Check(column, "ExpectColumnValuesToNotBeNull", f"{column}: this field is empty")


def _unique(column: str, reason: str) -> Check:
    return Check(column, "ExpectColumnValuesToBeUnique", reason)


def _one_of(column: str, values: list[Any], reason: str, severity: Severity = "error") -> Check:
    return Check(column, "ExpectColumnValuesToBeInSet", reason, severity, {"value_set": values})


def _between(column: str, reason: str, severity: Severity = "error", **bounds: Any) -> Check:
    return Check(column, "ExpectColumnValuesToBeBetween", reason, severity, bounds)


def _no_longer(name: str, params: ValidationParams, column: str | None = None) -> Check:
    limit = params.max_text_chars
    reason = f"{name}: {{value}} characters, {limit} allowed (validation.max_text_chars)"
    return _between(column or f"{name}_chars", reason, max_value=limit)


def _not_ahead(name: str) -> Check:
    return _between(f"{name}_seconds_ahead", f"{name}: {{value}} s in the future", max_value=0)


def _timely(name: str, params: ValidationParams) -> list[Check]:
    days = params.max_feedback_delay_days
    late = f"{name}: {{value}} days after the question, {days:g} allowed (validation.max_feedback_delay_days)"
    return [
        _between("delay_days", f"{name}: before the question was asked ({{value}} days)", min_value=0),
        _between("delay_days", late, max_value=days),
        _not_ahead(name),
    ]


def suites(params: ValidationParams, *, with_documents: bool) -> dict[str, tuple[Check, ...]]:
    """The expectations by table. Without any documents, contexts are not checked against them."""
    interactions = [
        _present("interaction_id"),
        _unique("interaction_id", "interaction_id: '{value}' occurs more than once"),
        _present("asked_at"),
        _not_ahead("asked_at"),
        _between("question_chars", "question: this field is empty", min_value=1),
        _no_longer("question", params),
        _between("answer_chars", "answer: this field is empty", min_value=1),
        _no_longer("answer", params),
        _no_longer("contexts", params, "longest_context_chars"),
        _present("model"),
        _between("contexts", "contexts: answered without any context", "warning", min_value=1),
    ]
    if with_documents:
        interactions += [
            _one_of("unknown_contexts", [""], "contexts: no ingested document holds {value}"),
            _one_of(
                "outdated_contexts", [""], "contexts: {value} is not in the current version of its document", "warning"
            ),
        ]
    known = _one_of("interaction_known", [True], "interaction_id: there is no such interaction")
    return {
        "interactions": tuple(interactions),
        "feedback": (
            _present("interaction_id"),
            known,
            _unique("identity", "thumb: this user gave two thumbs at the same time"),
            _one_of("thumb", ["up", "down"], "thumb: '{value}' is neither up nor down"),
            *_timely("given_at", params),
            _no_longer("comment", params),
        ),
        "reviews": (
            _present("interaction_id"),
            known,
            _unique("identity", "review: this reviewer gave two verdicts at the same time"),
            _present("reviewer"),
            *_timely("reviewed_at", params),
            _no_longer("ideal_answer", params),
            _between(
                "inclusion_probability",
                "inclusion_probability: {value} is not in (0, 1]",
                min_value=0,
                max_value=1,
                strict_min=True,
            ),
        ),
        "documents": (
            _present("doc_id"),
            _unique("doc_id", "doc_id: '{value}' occurs more than once"),
            _not_ahead("updated_at"),
            _between("chunks", "document: nothing in it can be retrieved: write text below a heading", min_value=1),
        ),
        "chunks": (
            _present("chunk_id"),
            _unique("chunk_id", "chunk_id: '{value}' occurs more than once"),
            _one_of("kind", ["text", "table", "list"], "kind: '{value}' is neither text, table nor list"),
            _between("text_chars", "text: this field is empty", min_value=1),
            _no_longer("text", params),
            _one_of("document_known", [True], "doc_id: there is no such document"),
            _one_of("document_named", [True], "chunk_id: does not open with its doc_id and '#'"),
            _one_of("document_current", [True], "updated_at: not that of its document: ingest the document again"),
        ),
    }


def tables(dataset: Dataset, now: datetime) -> dict[str, Table]:
    """The columns that the expectations look at; `row` is the key of the row they belong to."""
    interactions = {row.interaction_id: row for row in dataset.interactions}
    documents = {row.doc_id: row for row in dataset.documents}
    chunk_ids = {row.chunk_id for row in dataset.chunks}
    chunk_counts = Counter(row.doc_id for row in dataset.chunks)
    return {
        "interactions": [_interaction(row, documents.keys(), chunk_ids, now) for row in dataset.interactions],
        "feedback": [
            {
                **_reply(row, row.given_at, interactions.get(row.interaction_id)),
                # Without a user two thumbs of one moment may be two people's: only equal rows are the same.
                "identity": f"{row.interaction_id} {row.given_at} {row.user if row.user else row.digest()}",
                "given_at_seconds_ahead": _seconds(row.given_at, now),
                "thumb": row.thumb,
                "comment_chars": len(row.comment or ""),
            }
            for row in dataset.feedback
        ],
        "reviews": [
            {
                **_reply(row, row.reviewed_at, interactions.get(row.interaction_id)),
                "identity": f"{row.interaction_id} {row.reviewed_at} {row.reviewer}",
                "reviewed_at_seconds_ahead": _seconds(row.reviewed_at, now),
                "reviewer": row.reviewer,
                "ideal_answer_chars": len(row.ideal_answer or ""),
                "inclusion_probability": (
                    float("nan") if row.inclusion_probability is None else row.inclusion_probability
                ),
            }
            for row in dataset.reviews
        ],
        "documents": [
            {
                "row": row_key(row),
                "doc_id": row.doc_id,
                "updated_at_seconds_ahead": _seconds(row.updated_at, now),
                "chunks": chunk_counts[row.doc_id],
            }
            for row in dataset.documents
        ],
        "chunks": [
            {
                "row": row_key(row),
                "chunk_id": row.chunk_id,
                "kind": row.kind,
                "text_chars": len(row.text),
                "document_known": row.doc_id in documents,
                "document_named": document_of(row.chunk_id) == row.doc_id,
                "document_current": row.doc_id not in documents or documents[row.doc_id].updated_at == row.updated_at,
            }
            for row in dataset.chunks
        ],
    }


def _interaction(row: Interaction, doc_ids: Set[str], chunk_ids: Set[str], now: datetime) -> dict[str, Any]:
    cited = [context.chunk_id for context in row.contexts]
    return {
        "row": row_key(row),
        "interaction_id": row.interaction_id,
        "asked_at": row.asked_at.isoformat(),
        "asked_at_seconds_ahead": _seconds(row.asked_at, now),
        "question_chars": len(row.question),
        "answer_chars": len(row.answer),
        "contexts": len(row.contexts),
        "longest_context_chars": max((len(context.text) for context in row.contexts), default=0),
        "unknown_contexts": _listed(chunk_id for chunk_id in cited if document_of(chunk_id) not in doc_ids),
        "outdated_contexts": _listed(
            chunk_id for chunk_id in cited if document_of(chunk_id) in doc_ids and chunk_id not in chunk_ids
        ),
        "model": row.model,
    }


def _reply(row: Feedback | Review, moment: datetime, interaction: Interaction | None) -> dict[str, Any]:
    """The columns that feedback and reviews share."""
    delay = (moment - interaction.asked_at) / timedelta(days=1) if interaction else float("nan")
    return {
        "row": row_key(row),
        "interaction_id": row.interaction_id,
        "interaction_known": interaction is not None,
        "delay_days": delay,
    }


def _seconds(moment: datetime, now: datetime) -> float:
    return (moment - now).total_seconds()


def _listed(chunk_ids: Iterable[str]) -> str:
    return ", ".join(f"'{chunk_id}'" for chunk_id in sorted(set(chunk_ids)))
