"""Portkey's webhook guardrail: https://portkey.ai/docs/integrations/guardrails/bring-your-own-guardrails

Request and response come together after the call. A webhook that takes longer than Portkey waits counts as passed, so
the response to it has to be in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.message_text import extract_text
from abstain.serving.decision import Decision
from abstain.serving.gate import make_interaction_id
from abstain.serving.gateways.answers import (
    Answer,
    PassReason,
    clean_choice,
    get_choices,
    read_answers,
    replace_text,
    select_quiet_fields,
)
from abstain.serving.gateways.core import GatewayFieldParser, add_headers, count_passed, decide_answers, to_valid_json
from abstain.serving.service.gate_service import GateService

SOURCE = "portkey"
GRACE_S = 0.5
"""Maximum time for the log after a decision."""


class PortkeyResponse(BaseModel):
    """Response to Portkey.

    Attributes:
        verdict: Whether the answer is shown.
        data: The decisions.
        transformedData: The response without what is withheld.
    """

    verdict: bool
    data: dict[str, Any] = {}
    transformedData: dict[str, Any] | None = None


def make_portkey_routes(service: GateService, require_ask: Callable[..., Any]) -> APIRouter:
    """Make the route of the webhook.

    Args:
        service: The gate service.
        require_ask: Dependency that admits callers who may ask.

    Returns:
        The route.
    """
    routes = APIRouter()
    finder, timeout_s = GatewayFieldParser(SOURCE, service.settings.portkey), service.settings.portkey_timeout_s

    @routes.post(
        "/gateways/portkey",
        operation_id="portkey",
        dependencies=[Depends(require_ask)],
        response_model_exclude_none=True,
    )
    async def webhook(event: Annotated[dict[str, Any], Body()], request: Request) -> PortkeyResponse:
        """Decide about the answers after a call; what comes before it passes."""
        if event.get("eventType") == "beforeRequestHook":
            count_passed(service, SOURCE, PassReason.REQUEST)
            return PortkeyResponse(verdict=True)
        response = event.get("response")
        answers = _read_response(response)
        decision_task = decide_answers(
            service, finder, add_headers(event, request), answers, SOURCE, timeout_s=timeout_s
        )
        try:
            decisions = await asyncio.wait_for(decision_task, timeout_s + GRACE_S)
        except TimeoutError:
            late = AbstainError(Code.BUSY, f"the log did not take a decision within {timeout_s + GRACE_S:g} s")
            decisions = [
                None if isinstance(answer, PassReason) else service.withhold(make_interaction_id(), late, SOURCE)
                for answer in answers
            ]
        summaries = [
            {
                **{name: getattr(decision, name) for name in ("interaction_id", "decision", "show")},
                "reason": decision.describe(),
            }
            for decision in decisions
            if decision
        ]
        verdict = all(decision is None or decision.show for decision in decisions)
        replaced = _replace_answers(response, decisions, service.make_withheld_text)
        return PortkeyResponse(
            verdict=verdict, data={"answers": summaries}, transformedData=replaced and {"response": replaced}
        )

    return routes


def _read_response(response: Any) -> list[Answer]:
    """Return the answers in a response; its `text` is what Portkey itself found in it."""
    if not isinstance(response, dict):
        return [AbstainError(Code.INVALID_ROW, "answer: no response was sent: send what the model answered")]
    return read_answers(response.get("json"), extract_text(response.get("text")))


def _replace_answers(
    response: Any, decisions: Sequence[Decision | None], make_withheld_text: Callable[[Decision], str]
) -> dict[str, Any] | None:
    """Return the response without what is withheld, and without reasoning; None if nothing is to be replaced.

    It is complete, since it replaces the original.
    """
    replaced: dict[str, Any] = to_valid_json(response) if isinstance(response, dict) else {}
    body = replaced.get("json")
    texts = [make_withheld_text(decision) if decision and not decision.show else None for decision in decisions]
    choices = get_choices(body) or [{}]
    new_choices = [
        clean_choice(choice, decision)
        if text is None
        else {"index": index, "finish_reason": "stop", **replace_text(choice, text)}
        for index, (choice, decision, text) in enumerate(zip(choices, decisions, texts, strict=False))
    ]
    withheld_text = next(filter(None, texts), None)
    if new_choices == choices and withheld_text is None:
        return None
    new_text = withheld_text or extract_text(new_choices[0], "assistant") or ""
    return {**replaced, "json": {**select_quiet_fields(body), "choices": new_choices}, "text": new_text}
