"""The expectations on each table: conditions on accepted rows beyond their types.

Pure and declarative; `columns` computes their columns, `runner` passes both to Great Expectations.

Notes:

* An expectation is a simple one on one column. Conditions on other tables, earlier batches or the clock are plain
  columns too (`delay_days`, `unknown_contexts`, `known_before`), so rows can be checked a batch at a time.
* An error refuses a row; a warning is only counted and shown. An answer without contexts is a warning: the contract
  allows it, but a rising share is a retrieval problem.
* The document of every context must be known, removed or not. Its chunk may be a tombstone by now, which is a warning:
  the interactions with that chunk stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from abstain.config.params import ValidationParams
from abstain.core.codes import Code
from abstain.core.contracts import MIN_INCLUSION_PROBABILITY, Chunk, Document
from abstain.core.reasons import Reason, ReasonKind
from abstain.data.store.key_index import KeyIndex
from abstain.data.store.record_keys import Record

Severity = Literal["error", "warning"]

TABLES = ("interactions", "feedback", "reviews", "documents", "chunks")


@dataclass(frozen=True)
class Expectation:
    """One expectation on one column; `reason` is that of a row that fails.

    In its message, `{value}` is the row's value, `{percent}` the value as a share, and `{row}` the row's name.

    A missing value (None, nan) satisfies every expectation but `expect_present`: there is nothing to check.
    """

    column: str
    expectation: str
    reason: Reason
    severity: Severity = "error"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidatedRows:
    """Rows that are checked together: an arriving batch, or a part of the data folder."""

    interactions: Sequence[Record] = ()
    feedback: Sequence[Record] = ()
    reviews: Sequence[Record] = ()
    documents: Sequence[Document] = ()
    chunks: Sequence[Chunk] = ()


@dataclass(frozen=True)
class ExistingData:
    """Earlier data: rows by identity, every document that ever existed, the retrievable chunks."""

    index: KeyIndex
    doc_ids: Set[str] = frozenset()
    chunk_ids: Set[str] = frozenset()


def expect_present(column: str) -> Expectation:
    return Expectation(column, "ExpectColumnValuesToNotBeNull", _empty(column))


def expect_unique(column: str, reason: Reason) -> Expectation:
    return Expectation(column, "ExpectColumnValuesToBeUnique", reason)


def expect_one_of(column: str, values: list[Any], reason: Reason, severity: Severity = "error") -> Expectation:
    return Expectation(column, "ExpectColumnValuesToBeInSet", reason, severity, {"value_set": values})


def expect_between(column: str, reason: Reason, severity: Severity = "error", **bounds: Any) -> Expectation:
    return Expectation(column, "ExpectColumnValuesToBeBetween", reason, severity, bounds)


def percent(share: float) -> str:
    """A share as text, in percent."""
    return f"{100 * share:.3g} %"


def _failed(name: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    return Reason(Code.FAILED_CHECK, name, message, kind)


def _empty(name: str) -> Reason:
    return _failed(name, "this field is empty")


def _twice(name: str) -> Reason:
    return _failed(name, "'{value}' occurs more than once")


def _expect_max_length(name: str, params: ValidationParams, column: str | None = None) -> Expectation:
    limit = params.max_text_chars
    message = f"{{value}} characters, {limit} allowed (validation.max_text_chars)"
    return expect_between(column or f"{name}_chars", _failed(name, message, ReasonKind.TOO_LONG), max_value=limit)


def _expect_not_in_future(name: str, params: ValidationParams) -> Expectation:
    skew = params.max_clock_skew_seconds
    message = f"{{value}} s in the future, {skew:g} allowed (validation.max_clock_skew_seconds)"
    return expect_between(f"{name}_seconds_ahead", _failed(name, message), max_value=skew)


def _new(column: str, twice: Reason, known: Reason | None = None) -> tuple[Expectation, Expectation]:
    """Unique in this batch, else `twice`, and in earlier ones, else `known`."""
    return expect_unique(column, twice), expect_one_of("known_before", [False], known or twice)


def _expect_timely(name: str, params: ValidationParams) -> list[Expectation]:
    days = params.max_feedback_delay_days
    early = _failed(name, "before the question was asked ({value} days)")
    message = f"{{value}} days after the question, {days:g} allowed (validation.max_feedback_delay_days)"
    return [
        expect_between("delay_days", early, min_value=-params.max_clock_skew_seconds / 86400),
        expect_between("delay_days", _failed(name, message, ReasonKind.TOO_LATE), max_value=days),
        _expect_not_in_future(name, params),
    ]


def build_suites(
    params: ValidationParams, *, with_documents: bool, unknown_contexts: Severity = "error"
) -> dict[str, tuple[Expectation, ...]]:
    """The expectations by table. Without any documents, contexts are not checked against them.

    `unknown_contexts` is the severity of a context that no document holds: rows that were accepted before there was a
    handbook cannot cite it.
    """
    interactions = [
        expect_present("interaction_id"),
        *_new("interaction_id", _twice("interaction_id"), _failed("interaction_id", "occurs more than once")),
        expect_present("asked_at"),
        _expect_not_in_future("asked_at", params),
        expect_between("question_chars", _empty("question"), min_value=1),
        _expect_max_length("question", params),
        expect_between("answer_chars", _empty("answer"), min_value=1),
        _expect_max_length("answer", params),
        _expect_max_length("contexts", params, "longest_context_chars"),
        expect_present("model"),
        expect_between("contexts", _failed("contexts", "answered without any context"), "warning", min_value=1),
        expect_one_of("scores_not_finite", [""], _failed("writer", "{value} is no finite number")),
        expect_between(
            "largest_token_log_prob",
            _failed("token_log_probs", "{value} is above 0: no log-probability is"),
            max_value=0,
        ),
        expect_one_of(
            "decision", ["shown", "withheld"], _failed("decision", "'{value}' is neither shown nor withheld")
        ),
        expect_between(
            "propensity", _failed("propensity", "{value} is not in (0, 1]"), min_value=0, max_value=1, strict_min=True
        ),
        expect_one_of("decided", [True], _failed("propensity", "there is no decision beside it: shown or withheld")),
    ]
    if with_documents:
        unknown = _failed("contexts", "no ingested document holds {value}", ReasonKind.UNKNOWN_CONTEXTS)
        outdated = _failed("contexts", "{value} is not retrievable any more, or never was")
        interactions += [
            expect_one_of("unknown_contexts", [""], unknown, unknown_contexts),
            expect_one_of("outdated_contexts", [""], outdated, "warning"),
        ]
    known = expect_one_of("interaction_known", [True], _failed("interaction_id", "there is no such interaction"))
    return {
        "interactions": tuple(interactions),
        "feedback": (
            expect_present("interaction_id"),
            known,
            *_new("identity", _failed("thumb", "this user gave two thumbs at the same time")),
            expect_one_of("thumb", ["up", "down"], _failed("thumb", "'{value}' is neither up nor down")),
            *_expect_timely("given_at", params),
            _expect_max_length("comment", params),
        ),
        "reviews": (
            expect_present("interaction_id"),
            known,
            *_new("identity", _failed("review", "this reviewer gave two verdicts at the same time")),
            expect_present("reviewer"),
            *_expect_timely("reviewed_at", params),
            _expect_max_length("ideal_answer", params),
            expect_between(
                "inclusion_probability",
                _failed("inclusion_probability", f"{{value}} is not in [{MIN_INCLUSION_PROBABILITY:g}, 1]"),
                min_value=MIN_INCLUSION_PROBABILITY,
                max_value=1,
            ),
        ),
        "documents": (
            expect_present("doc_id"),
            expect_unique("doc_id", _twice("doc_id")),
            _expect_not_in_future("updated_at", params),
            expect_between(
                "chunks",
                _failed("document", "nothing in it can be retrieved: write text below a heading"),
                min_value=1,
            ),
        ),
        "chunks": (
            expect_present("chunk_id"),
            expect_unique("chunk_id", _twice("chunk_id")),
            expect_one_of(
                "kind", ["text", "table", "list"], _failed("kind", "'{value}' is neither text, table nor list")
            ),
            expect_between("text_chars", _empty("text"), min_value=1),
            _expect_max_length("text", params),
            expect_one_of("document_known", [True], _failed("doc_id", "there is no such document")),
            expect_one_of("document_named", [True], _failed("chunk_id", "does not open with its doc_id and '#'")),
        ),
    }
