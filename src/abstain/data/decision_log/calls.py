"""Registered calls: the data on which their answers will rest, as rows of the log, redacted like the decisions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from abstain.core.contracts import Context, Interaction, Row, Text
from abstain.data.decision_log.decisions import Redact
from abstain.data.store.record_keys import to_microseconds

_PLACEHOLDER = "-"


class RegisteredCall(Row):
    """The data of a call before its answer; `contexts` are ranked, best first, some of them without an id."""

    question: Text | None = None
    contexts: tuple[Context | Text, ...] = ()
    user: Text | None = None
    product: Text | None = None


def make_call_row(
    owner: str,
    call_id: str,
    content: RegisteredCall,
    ttl_s: float,
    redact: Redact,
    make_pseudonym: Callable[[str], str],
) -> dict[str, Any]:
    """Make a row of `CALLS`, with redacted texts and the user's pseudonym.

    Args:
        owner: API key that registered the call.
        call_id: Id of the call.
        content: Data of the call.
        ttl_s: Seconds after which the row expires.
        redact: Redacts a row of a contract.
        make_pseudonym: Makes the pseudonym of a user.

    Returns:
        Column -> value.
    """
    now = datetime.now(UTC)
    user = make_pseudonym(content.user) if content.user else None
    contexts = tuple(
        Context(chunk_id=_PLACEHOLDER, text=context) if isinstance(context, str) else context
        for context in content.contexts
    )
    # The rules are those for an interaction, which has an answer, too.
    redacted_interaction = redact(
        Interaction(
            interaction_id=call_id,
            asked_at=now,
            question=content.question or _PLACEHOLDER,
            answer=_PLACEHOLDER,
            contexts=contexts,
            model=_PLACEHOLDER,
        )
    )
    redacted_content = RegisteredCall(
        question=redacted_interaction.question if content.question else None,
        contexts=tuple(
            context.text if isinstance(original, str) else context
            for original, context in zip(content.contexts, redacted_interaction.contexts, strict=True)
        ),
        user=user,
        product=content.product,
    )
    return {
        "owner": owner,
        "call_id": call_id,
        "user": user,
        "content": redacted_content.to_json_line(),
        "expires_at": to_microseconds(now + timedelta(seconds=ttl_s)),
    }
