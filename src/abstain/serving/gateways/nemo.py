"""NeMo Guardrails, 0.24 or newer: an action for an output rail, which finds the chunks in the context of the rails.

`config.py` beside the rails registers it:

    def init(app):
        app.register_action(abstain_action(HttpGate("http://127.0.0.1:8700")), "abstain_gate")
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from abstain.core.text import WITHHELD_TEXT
from abstain.serving.gateways.client import GateLike, decide_if_complete


def abstain_action(gate: GateLike, *, withheld_text: str = WITHHELD_TEXT) -> Callable[..., Awaitable[Any]]:
    """The action. Its `RailOutcome` blocks an answer that is not to be shown; its confidence is in the metadata.

    `withheld_text`: what engines that render a block themselves say in its place; a Colang flow has its own words.
    """
    from nemoguardrails.actions.rail_outcome import RailOutcome

    async def abstain_gate(context: Mapping[str, Any] | None = None) -> Any:
        known = context or {}
        question, answer = known.get("last_user_message"), known.get("bot_message")
        decided = await asyncio.to_thread(decide_if_complete, gate, question, _chunks(known), answer)
        told = {name: getattr(decided, name) for name in ("decision", "confidence", "interaction_id")}
        if decided.show:
            return RailOutcome.allow(metadata=told)
        return RailOutcome.block(reason=decided.reason, metadata={**told, "refusal_message": withheld_text})

    return abstain_gate


def _chunks(context: Mapping[str, Any]) -> list[str]:
    """The chunks one by one where the rail's context has them so, else their one text."""
    found = context.get("relevant_chunks_sep") or context.get("relevant_chunks") or []
    return [text for text in ([found] if isinstance(found, str) else found) if text.strip()]
