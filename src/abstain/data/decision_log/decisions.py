"""Decisions and feedback as rows of the log: stored fields, digests that identify a repeated row, and sampling."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import Row as FoundRow

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question, Review, Row, Thumb
from abstain.core.errors import AbstainError
from abstain.data.store.record_keys import from_microseconds, to_microseconds
from abstain.data.store.splits import hash_to_unit_interval

TextState = Literal["kept", "none", "expired", "erased"]
"""Whether the log has the texts of a row.

"none": the request had only states. "expired": texts or states were removed after their days. "erased": they were
removed with a user.
"""

RecordOutcome = Literal["recorded", "duplicate"]
"""Whether a row was written, or had been recorded before ("duplicate")."""

PAGE_ID_PREFIX = "page/"
"""Prefix of the ids of feedback that was given on the gate's page."""

R = TypeVar("R", bound=Row)


class Redact(Protocol):
    """Function that returns a row of a contract as it may be stored: texts redacted, people by pseudonym."""

    def __call__(self, row: R, /) -> R: ...


@dataclass(frozen=True)
class LoggedDecision:
    """A decision of the gate.

    Attributes:
        interaction_id: Id of the interaction.
        decided_at: Time of the decision.
        decision: "show", "abstain" or "unavailable".
        shown: Whether the caller was told to show the answer; if the decision is "unavailable", it may be either.
        code: Code of the reason, if there is one.
        reason: Message of the reason.
        confidence: Raw confidence in [0, 1].
        probability: Calibrated probability of a correct answer.
        threshold: Threshold of the version.
        version: Version that decided.
        scorer: Its scorer.
        forward_tokens: Tokens that the base model read.
        duration_ms: Duration in milliseconds.
        source: Interface of the request.
        product: Product of the request.
        user: The user; in the log, their pseudonym.
        interaction: The texts; None for a request without texts.
        input_sha256: Digest of all input besides texts, which distinguishes requests with the same id; None if there
            was no such input, or if it was rejected before it was read.
    """

    interaction_id: str
    decided_at: datetime
    decision: Literal["show", "abstain", "unavailable"]
    shown: bool
    code: str | None
    reason: str | None
    confidence: float | None
    probability: float | None
    threshold: float | None
    version: str | None
    scorer: str | None
    forward_tokens: float
    duration_ms: float
    source: str
    product: str | None
    user: str | None
    interaction: Interaction | None
    input_sha256: str | None = None


@dataclass(frozen=True)
class SamplingRates:
    """Probabilities with which answers are sampled for the data, with or without feedback.

    Attributes:
        withheld: For a withheld answer.
        shown: For a shown answer.
    """

    withheld: float
    shown: float


@dataclass(frozen=True)
class ShadowDecision:
    """The decision that a candidate would have made.

    Attributes:
        interaction_id: Id of the answer.
        candidate: The candidate.
        decided_at: Time of the decision.
        would_show: Whether it would have shown the answer; false without a confidence.
        confidence: Raw confidence in [0, 1]; None if it could not be computed.
        probability: Calibrated probability of a correct answer.
        threshold: Threshold of the candidate.
    """

    interaction_id: str
    candidate: str
    decided_at: datetime
    would_show: bool
    confidence: float | None
    probability: float | None
    threshold: float


_COPIED_COLUMNS = (
    *("interaction_id", "decision", "shown", "code", "reason", "confidence", "probability", "threshold", "version"),
    *("scorer", "forward_tokens", "duration_ms", "source", "product"),
)


def make_decision_row(
    decision: LoggedDecision,
    redact: Redact,
    make_pseudonym: Callable[[str], str],
    sampling_rates: SamplingRates,
    digest_key: bytes,
) -> dict[str, Any]:
    """Make a row of `DECISIONS`, with redacted texts and the user's pseudonym.

    Args:
        decision: The decision.
        redact: Redacts the interaction, and a reason that quotes its question.
        make_pseudonym: Makes the pseudonym of a user.
        sampling_rates: Rates with which the decision is sampled for the data.
        digest_key: Key of the row's digest, which is that of the original texts: two answers may differ only in what
            redaction removes.

    Returns:
        Column -> value.
    """
    content = None
    request = f"given {decision.input_sha256}" if decision.input_sha256 else None
    if decision.interaction is not None:
        # The gate does not draw lots: what it showed, it would always have shown. What it withheld has no propensity.
        display = (
            {"display": "shown", "propensity": 1.0} if decision.shown else {"display": "withheld", "propensity": None}
        )
        content = redact(decision.interaction.model_copy(update=display)).to_json_line()
        # A request that is repeated may be decided differently, and get another time where it gives none.
        request = decision.interaction.model_copy(update={"display": None, "propensity": None}).model_dump_json(
            exclude={"asked_at"}
        )
    reason = decision.reason
    if reason and decision.code == Code.UNFAMILIAR:  # it quotes the question
        reason = redact(Question(interaction_id=decision.interaction_id, question=reason, contexts=())).question
    sampling_rate = sampling_rates.shown if decision.shown else sampling_rates.withheld
    return {
        **{name: getattr(decision, name) for name in _COPIED_COLUMNS},
        "reason": reason,
        "decided_at": to_microseconds(decision.decided_at),
        "user": make_pseudonym(decision.user) if decision.user else None,
        "sampling_rate": sampling_rate,
        "sampled": hash_to_unit_interval(0, f"decision log/{decision.interaction_id}") < sampling_rate,
        "text_state": "none" if content is None else "kept",
        "content": content,
        "digest": _compute_digest(digest_key, request) if request else None,
    }


def make_feedback_row(
    feedback_id: str, row: Thumb | Review, redact: Redact, digest_key: bytes, now: datetime
) -> dict[str, Any]:
    """Make a row of `FEEDBACK`, redacted. A review loses its inclusion probability, since it was not sampled.

    Args:
        feedback_id: Id by which a repeated row is identified.
        row: A thumb or a review.
        redact: Redacts the row.
        digest_key: Key of the row's digest.
        now: Current time in UTC.

    Returns:
        Column -> value.

    Raises:
        AbstainError: The id is one that the log itself assigns.
    """
    if feedback_id.casefold().startswith(PAGE_ID_PREFIX):
        raise AbstainError(
            Code.ID_IN_USE, f"ids that begin with {PAGE_ID_PREFIX} are those of the gate's page: give another one"
        )
    if isinstance(row, Review):
        row = row.model_copy(update={"inclusion_probability": None})
    return {
        "feedback_id": feedback_id,
        **make_feedback_fields(redact(row), compute_feedback_digest(row, digest_key), now),
    }


def compute_feedback_digest(row: Thumb | Review, digest_key: bytes) -> str:
    """Compute the digest that identifies a repeated thumb or review.

    It omits the time, which a caller need not give, and the inclusion probability.

    Args:
        row: The row before redaction.
        digest_key: Key of the digest.

    Returns:
        The digest, hex.
    """
    return _compute_digest(
        digest_key, row.model_dump_json(exclude={"given_at", "reviewed_at", "inclusion_probability"})
    )


def make_feedback_fields(row: Thumb | Review, digest: str | None, now: datetime) -> dict[str, Any]:
    """Make a row of `FEEDBACK` without its id.

    Args:
        row: A redacted thumb or review.
        digest: Its digest before redaction; None if it is not known.
        now: Current time in UTC.

    Returns:
        Column -> value.
    """
    return {
        "interaction_id": row.interaction_id,
        "recorded_at": to_microseconds(now),
        "kind": "thumb" if isinstance(row, Thumb) else "review",
        "user": row.user if isinstance(row, Thumb) else None,
        "text_state": "kept",
        "content": row.to_json_line(),
        "digest": digest,
    }


def make_shadow_row(decision: ShadowDecision) -> dict[str, Any]:
    """Return `decision` as a row of `SHADOWS`."""
    return {**asdict(decision), "decided_at": to_microseconds(decision.decided_at)}


def parse_decision_row(row: FoundRow[Any]) -> LoggedDecision:
    """Return a row of `DECISIONS` as a decision: the user by pseudonym, the texts as they are stored."""
    return LoggedDecision(
        **{name: getattr(row, name) for name in _COPIED_COLUMNS},
        decided_at=from_microseconds(row.decided_at),
        user=row.user,
        interaction=Interaction.model_validate_json(row.content) if row.content else None,
    )


def parse_feedback(kind: str, content: str) -> Thumb | Review:
    """Parse the content of a row of `FEEDBACK`.

    Args:
        kind: "thumb" or "review".
        content: JSON.

    Returns:
        The thumb or review.
    """
    return (Thumb if kind == "thumb" else Review).model_validate_json(content)


def _compute_digest(digest_key: bytes, text: str) -> str:
    return hmac.digest(digest_key, text.encode(), "sha256").hex()
