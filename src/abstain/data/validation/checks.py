"""The expectations on each table: conditions on accepted rows beyond their types.

Pure and declarative; `columns` computes their columns, `runner` passes both to Great Expectations.

Notes:

* An expectation is a simple one on one column. Conditions on other tables, earlier batches or the clock are plain
  columns too (`delay_days`, `unknown_contexts`, `known_before`), so rows can be checked a batch at a time.
* An error rejects a row; a warning is only counted and shown. An answer without contexts is a warning: the contract
  allows it, but a rising share indicates a retrieval problem.
* The document of every context must exist or have existed. Its chunk may be a tombstone by now, which is a warning: the
  interactions with that chunk stay valid.
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

MIN_YEAR = 2000
"""The first year of a time that is taken: an earlier one is a number that was read in a wrong unit."""

TABLES = ("interactions", "feedback", "reviews", "documents", "chunks")


@dataclass(frozen=True)
class Expectation:
    """An expectation on one column.

    A missing value (None, nan) satisfies every expectation except `expect_present`: there is nothing to check.

    Attributes:
        column: Name of the column.
        expectation: Name of the class in Great Expectations.
        reason: Reason for a row that fails. In its message, `{value}` is the row's value, `{percent}` the value as a
            share, and `{row}` the row's name.
        severity: "error" rejects the row, "warning" is only counted.
        arguments: Arguments of the class.
    """

    column: str
    expectation: str
    reason: Reason
    severity: Severity = "error"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidatedRows:
    """Rows that are checked together: an arriving batch, or a part of the data folder.

    Attributes:
        interactions: Interactions.
        feedback: Thumbs.
        reviews: Reviews.
        documents: Documents of the knowledge base.
        chunks: Chunks of the knowledge base.
    """

    interactions: Sequence[Record] = ()
    feedback: Sequence[Record] = ()
    reviews: Sequence[Record] = ()
    documents: Sequence[Document] = ()
    chunks: Sequence[Chunk] = ()


@dataclass(frozen=True)
class ExistingData:
    """Earlier data that rows are checked against.

    Attributes:
        index: Rows by identity.
        doc_ids: Ids of all documents that ever existed.
        chunk_ids: Ids of the chunks that can be retrieved.
        revised: Identities of the rows in `index` that the checked rows take the place of.
    """

    index: KeyIndex
    doc_ids: Set[str] = frozenset()
    chunk_ids: Set[str] = frozenset()
    revised: Set[bytes] = frozenset()

    def is_known(self, identity: bytes) -> bool:
        """Return whether another row has this identity."""
        return identity not in self.revised and self.index.find(identity) is not None


def expect_present(column: str) -> Expectation:
    """Expect that no value of a column is missing."""
    return Expectation(column, "ExpectColumnValuesToNotBeNull", _make_empty_reason(column))


def expect_unique(column: str, reason: Reason) -> Expectation:
    """Expect that no value of a column occurs twice; `reason` is that of a row that fails."""
    return Expectation(column, "ExpectColumnValuesToBeUnique", reason)


def expect_in_set(column: str, values: list[Any], reason: Reason, severity: Severity = "error") -> Expectation:
    """Expect that all values of a column are in `values`; `reason` is that of a row that fails."""
    return Expectation(column, "ExpectColumnValuesToBeInSet", reason, severity, {"value_set": values})


def expect_between(column: str, reason: Reason, severity: Severity = "error", **bounds: Any) -> Expectation:
    """Expect that all values of a column are within `min_value` and `max_value`; `strict_min` opens the lower bound."""
    return Expectation(column, "ExpectColumnValuesToBeBetween", reason, severity, bounds)


def format_short_percent(share: float) -> str:
    """Return a share in [0, 1] as percent, with three digits."""
    return f"{100 * share:.3g} %"


def _make_reason(name: str, message: str, kind: ReasonKind = ReasonKind.OTHER) -> Reason:
    return Reason(Code.FAILED_CHECK, name, message, kind)


def _make_empty_reason(name: str) -> Reason:
    return _make_reason(name, "this field is empty")


def _make_duplicate_reason(name: str) -> Reason:
    return _make_reason(name, "'{value}' occurs more than once")


def _expect_max_length(name: str, params: ValidationParams, column: str | None = None) -> Expectation:
    limit = params.max_text_chars
    message = f"{{value}} characters, {limit} allowed (validation.max_text_chars)"
    return expect_between(column or f"{name}_chars", _make_reason(name, message, ReasonKind.TOO_LONG), max_value=limit)


def _expect_not_in_future(name: str, params: ValidationParams) -> Expectation:
    skew = params.max_clock_skew_seconds
    message = f"{{value}} s in the future, {skew:g} allowed (validation.max_clock_skew_seconds)"
    return expect_between(f"{name}_seconds_ahead", _make_reason(name, message), max_value=skew)


def _expect_not_long_ago(name: str) -> Expectation:
    message = f"is before the year {MIN_YEAR}: was it read in a wrong format, or a number of days as seconds?"
    return expect_between(f"{name}_year", _make_reason(name, message), min_value=MIN_YEAR)


def _expect_new(column: str, duplicate: Reason, existing: Reason | None = None) -> tuple[Expectation, Expectation]:
    """Expect values that are unique in this batch, otherwise `duplicate`, and in earlier ones, otherwise `existing`."""
    return expect_unique(column, duplicate), expect_in_set("known_before", [False], existing or duplicate)


def _expect_timely(name: str, params: ValidationParams) -> list[Expectation]:
    days = params.max_feedback_delay_days
    early = _make_reason(name, "before the question was asked ({value} days)")
    message = f"{{value}} days after the question, {days:g} allowed (validation.max_feedback_delay_days)"
    return [
        expect_between("delay_days", early, min_value=-params.max_clock_skew_seconds / 86400),
        expect_between("delay_days", _make_reason(name, message, ReasonKind.TOO_LATE), max_value=days),
        _expect_not_in_future(name, params),
        _expect_not_long_ago(name),
    ]


def build_suites(
    params: ValidationParams, *, with_documents: bool, unknown_contexts: Severity = "error"
) -> dict[str, tuple[Expectation, ...]]:
    """Build the expectations by table.

    Args:
        params: `validation` of params.yaml.
        with_documents: Whether there are documents; without any, contexts are not checked against them.
        unknown_contexts: Severity of a context that no document contains. Rows that were accepted before there was a
            knowledge base cannot cite it.

    Returns:
        Table -> expectations.
    """
    interactions = [
        expect_present("interaction_id"),
        *_expect_new(
            "interaction_id",
            _make_duplicate_reason("interaction_id"),
            _make_reason("interaction_id", "occurs more than once"),
        ),
        expect_present("asked_at"),
        _expect_not_in_future("asked_at", params),
        _expect_not_long_ago("asked_at"),
        expect_between("question_chars", _make_empty_reason("question"), min_value=1),
        _expect_max_length("question", params),
        expect_between("answer_chars", _make_empty_reason("answer"), min_value=1),
        _expect_max_length("answer", params),
        _expect_max_length("contexts", params, "longest_context_chars"),
        expect_present("model"),
        expect_between("contexts", _make_reason("contexts", "answered without any context"), "warning", min_value=1),
        expect_in_set("scores_not_finite", [""], _make_reason("writer_scores", "{value} is no finite number")),
        expect_between(
            "largest_token_log_prob",
            _make_reason("token_log_probs", "{value} is above 0: no log-probability is"),
            max_value=0,
        ),
        expect_in_set(
            "display", ["shown", "withheld"], _make_reason("display", "'{value}' is neither shown nor withheld")
        ),
        expect_between(
            "propensity",
            _make_reason("propensity", "{value} is not in (0, 1]"),
            min_value=0,
            max_value=1,
            strict_min=True,
        ),
        expect_in_set(
            "has_display", [True], _make_reason("propensity", "there is no display beside it: shown or withheld")
        ),
    ]
    if with_documents:
        unknown = _make_reason("contexts", "no ingested document holds {value}", ReasonKind.UNKNOWN_CONTEXTS)
        outdated = _make_reason("contexts", "{value} is not retrievable any more, or never was")
        interactions += [
            expect_in_set("unknown_contexts", [""], unknown, unknown_contexts),
            expect_in_set("outdated_contexts", [""], outdated, "warning"),
        ]
    interaction_exists = expect_in_set(
        "interaction_known", [True], _make_reason("interaction_id", "there is no such interaction")
    )
    return {
        "interactions": tuple(interactions),
        "feedback": (
            expect_present("interaction_id"),
            interaction_exists,
            *_expect_new("identity", _make_reason("thumb", "this user gave two thumbs at the same time")),
            expect_in_set("thumb", ["up", "down"], _make_reason("thumb", "'{value}' is neither up nor down")),
            *_expect_timely("given_at", params),
            _expect_max_length("comment", params),
        ),
        "reviews": (
            expect_present("interaction_id"),
            interaction_exists,
            *_expect_new("identity", _make_reason("review", "this reviewer gave two reviews at the same time")),
            expect_present("reviewer"),
            *_expect_timely("reviewed_at", params),
            _expect_max_length("ideal_answer", params),
            expect_between(
                "inclusion_probability",
                _make_reason("inclusion_probability", f"{{value}} is not in [{MIN_INCLUSION_PROBABILITY:g}, 1]"),
                min_value=MIN_INCLUSION_PROBABILITY,
                max_value=1,
            ),
        ),
        "documents": (
            expect_present("doc_id"),
            expect_unique("doc_id", _make_duplicate_reason("doc_id")),
            _expect_not_in_future("updated_at", params),
            expect_between(
                "chunks",
                _make_reason("document", "nothing in it can be retrieved: write text below a heading"),
                min_value=1,
            ),
        ),
        "chunks": (
            expect_present("chunk_id"),
            expect_unique("chunk_id", _make_duplicate_reason("chunk_id")),
            expect_in_set(
                "kind", ["text", "table", "list"], _make_reason("kind", "'{value}' is neither text, table nor list")
            ),
            expect_between("text_chars", _make_empty_reason("text"), min_value=1),
            _expect_max_length("text", params),
            expect_in_set("document_known", [True], _make_reason("doc_id", "there is no such document")),
            expect_in_set("document_named", [True], _make_reason("chunk_id", "does not open with its doc_id and '#'")),
        ),
    }
