"""Decisions and feedback as rows of the log: what is stored, what recognises a row sent again, who is drawn."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import Row as FoundRow

from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Review, Row, Thumb
from abstain.core.errors import AbstainError
from abstain.data.store.record_keys import from_microseconds, to_microseconds
from abstain.data.store.splits import hash_to_unit_interval

TextState = Literal["kept", "none", "expired", "erased"]
"""Whether the log has a row's text: none, because only states were given; expired, because its days are over,
of texts and of states."""

Recorded = Literal["recorded", "known"]
"""Whether a row was written, or was there before."""

OWN_IDS = "page/"
"""How the ids of the feedback begin that was given on the gate's page."""

R = TypeVar("R", bound=Row)


class Redact(Protocol):
    """A row of a contract as it may be stored: texts redacted, people by pseudonym."""

    def __call__(self, row: R, /) -> R: ...


@dataclass(frozen=True)
class LoggedDecision:
    """One decision of the gate.

    `shown` is what the caller was told to do: an answer whose decision is `unavailable` may be either. Of a request
    without texts `interaction` is None. `input_sha256`, the digest of all that was given beside texts, tells another
    such request with the same id; None where nothing was, or it was refused before it was read.
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
    took_ms: float
    source: str
    product: str | None
    user: str | None
    interaction: Interaction | None
    input_sha256: str | None = None


@dataclass(frozen=True)
class SamplingRates:
    """The probabilities with which a withheld answer and a shown one are drawn for the data, feedback or not."""

    withheld: float
    shown: float


@dataclass(frozen=True)
class ShadowDecision:
    """What a candidate would have decided about the answer `interaction_id`; without a confidence, not to show it."""

    interaction_id: str
    candidate: str
    decided_at: datetime
    would_show: bool
    confidence: float | None
    probability: float | None
    threshold: float


_FIGURES = (
    *("interaction_id", "decision", "shown", "code", "reason", "confidence", "probability", "threshold", "version"),
    *("scorer", "forward_tokens", "took_ms", "source", "product"),
)


def make_decision_row(
    decision: LoggedDecision, redact: Redact, pseudonym: Callable[[str], str], shares: SamplingRates, key: bytes
) -> dict[str, Any]:
    """`decision` as a row of `DECISIONS`: its texts redacted, its user by pseudonym.

    Its digest by `key` is that of its texts as they came: two answers may differ in what redaction takes out.
    """
    content = None
    asked = f"given {decision.input_sha256}" if decision.input_sha256 else None
    if decision.interaction is not None:
        # The gate does not draw lots: what it showed, it would always have shown. What it withheld has no propensity.
        gate = (
            {"decision": "shown", "propensity": 1.0} if decision.shown else {"decision": "withheld", "propensity": None}
        )
        content = redact(decision.interaction.model_copy(update=gate)).to_json_line()
        # A request that is repeated may be decided differently, and get another time where it gives none.
        asked = decision.interaction.model_copy(update={"decision": None, "propensity": None}).model_dump_json(
            exclude={"asked_at"}
        )
    share = shares.shown if decision.shown else shares.withheld
    return {
        **{name: getattr(decision, name) for name in _FIGURES},
        "decided_at": to_microseconds(decision.decided_at),
        "user": pseudonym(decision.user) if decision.user else None,
        "share": share,
        "drawn": hash_to_unit_interval(0, f"decision log/{decision.interaction_id}") < share,
        "texts": "none" if content is None else "kept",
        "content": content,
        "digest": _digest(key, asked) if asked else None,
    }


def make_feedback_row(
    feedback_id: str, row: Thumb | Review, redact: Redact, key: bytes, now: datetime
) -> dict[str, Any]:
    """`row`, redacted, as a row of `FEEDBACK`; a review without an inclusion probability, since it was not drawn.

    Raises:
        AbstainError: the id is one that the log itself gives.
    """
    if feedback_id.casefold().startswith(OWN_IDS):
        raise AbstainError(
            Code.FAILED_CHECK, f"ids that begin with {OWN_IDS} are those of the gate's page: give another one"
        )
    if isinstance(row, Review):
        row = row.model_copy(update={"inclusion_probability": None})
    return {"feedback_id": feedback_id, **reply_row(redact(row), reply_digest(row, key), now)}


def reply_digest(row: Thumb | Review, key: bytes) -> str:
    """What recognises a thumb or a review as it came.

    It leaves out its moment, which a caller need not give, and how it was drawn.
    """
    return _digest(key, row.model_dump_json(exclude={"given_at", "reviewed_at", "inclusion_probability"}))


def reply_row(row: Thumb | Review, digest: str | None, now: datetime) -> dict[str, Any]:
    """A redacted thumb or review as a row of `FEEDBACK` without its id."""
    return {
        "interaction_id": row.interaction_id,
        "recorded_at": to_microseconds(now),
        "kind": "thumb" if isinstance(row, Thumb) else "review",
        "user": row.user if isinstance(row, Thumb) else None,
        "texts": "kept",
        "content": row.to_json_line(),
        "digest": digest,
    }


def make_shadow_row(decision: ShadowDecision) -> dict[str, Any]:
    """`decision` as a row of `SHADOWS`."""
    return {**asdict(decision), "decided_at": to_microseconds(decision.decided_at)}


def parse_decision_row(row: FoundRow[Any]) -> LoggedDecision:
    """A row of `DECISIONS` as the decision that it is of: the user by pseudonym, texts as they are there."""
    return LoggedDecision(
        **{name: getattr(row, name) for name in _FIGURES},
        decided_at=from_microseconds(row.decided_at),
        user=row.user,
        interaction=Interaction.model_validate_json(row.content) if row.content else None,
    )


def parse_feedback(kind: str, content: str) -> Thumb | Review:
    """The content of a row of `FEEDBACK`."""
    return (Thumb if kind == "thumb" else Review).model_validate_json(content)


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()
