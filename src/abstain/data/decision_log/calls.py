"""What the answers of calls will rest on, as rows of the log: redacted as the decisions themselves are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from abstain.core.contracts import Context, Interaction, Row, Text
from abstain.data.decision_log.decisions import Redact
from abstain.data.store.record_keys import to_microseconds

_ABSENT = "-"


class RegisteredCall(Row):
    """What is known of a call before its answer. `contexts` are ranked, best first, some without an id."""

    question: Text | None = None
    contexts: tuple[Context | Text, ...] = ()
    user: Text | None = None
    product: Text | None = None


def make_call_row(
    owner: str, call_id: str, content: RegisteredCall, ttl_s: float, redact: Redact, pseudonym: Callable[[str], str]
) -> dict[str, Any]:
    """`content` as a row of `CALLS`, to be forgotten after `ttl_s` seconds: texts redacted, the user by pseudonym."""
    now = datetime.now(UTC)
    user = pseudonym(content.user) if content.user else None
    named = tuple(Context(chunk_id=_ABSENT, text=one) if isinstance(one, str) else one for one in content.contexts)
    # The rules are those for an interaction, which has an answer, too.
    redacted = redact(
        Interaction(
            interaction_id=call_id,
            asked_at=now,
            question=content.question or _ABSENT,
            answer=_ABSENT,
            contexts=named,
            model=_ABSENT,
        )
    )
    kept = RegisteredCall(
        question=redacted.question if content.question else None,
        contexts=tuple(
            one.text if isinstance(given, str) else one
            for given, one in zip(content.contexts, redacted.contexts, strict=True)
        ),
        user=user,
        product=content.product,
    )
    return {
        "owner": owner,
        "call_id": call_id,
        "user": user,
        "content": kept.to_json_line(),
        "expires_at": to_microseconds(now + timedelta(seconds=ttl_s)),
    }
