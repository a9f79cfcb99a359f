"""NeMo Guardrails, 0.24 or newer: an action for an output rail, which finds the chunks in the context of the rails.

`config.py` next to the rails registers it:

    def init(app):
        app.register_action(abstain_action(HttpGate("http://127.0.0.1:8700")), "abstain_gate")
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from abstain.core.text import WITHHELD_TEXT
from abstain.serving.gateways.client import GateLike, decide_if_complete


def abstain_action(
    gate: GateLike, *, withheld_text: str = WITHHELD_TEXT, withheld_sources: bool = False
) -> Callable[..., Awaitable[Any]]:
    """Make the action. Its `RailOutcome` blocks an answer that must not be shown; its metadata have the confidence.

    Args:
        gate: The gate.
        withheld_text: Text that engines show instead if they render a block themselves; a Colang flow has its own text.
        withheld_sources: Whether the titles of the answer's documents follow that text.

    Returns:
        The action.
    """
    from nemoguardrails.actions.rail_outcome import RailOutcome

    async def abstain_gate(context: Mapping[str, Any] | None = None) -> Any:
        rail_context = context or {}
        question, answer = rail_context.get("last_user_message"), rail_context.get("bot_message")
        decision = await asyncio.to_thread(decide_if_complete, gate, question, _get_chunks(rail_context), answer)
        fields = ("decision", "confidence", "interaction_id", "cleaned_answer")
        metadata = {name: getattr(decision, name) for name in fields}
        if decision.show:
            return RailOutcome.allow(metadata=metadata)
        refusal = decision.make_withheld_text(withheld_text, with_sources=withheld_sources)
        return RailOutcome.block(reason=decision.describe(), metadata={**metadata, "refusal_message": refusal})

    return abstain_gate


def _get_chunks(context: Mapping[str, Any]) -> list[Any]:
    """Return the chunks singly if the rail's context has them so, else their joined text."""
    chunks = context.get("relevant_chunks_sep") or context.get("relevant_chunks") or []
    return [chunk for chunk in ([chunks] if isinstance(chunks, str) else chunks) if chunk != ""]
