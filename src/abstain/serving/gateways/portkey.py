"""Portkey's webhook guardrail: https://portkey.ai/docs/integrations/guardrails/bring-your-own-guardrails

Request and response come together after the call. A webhook that takes longer than Portkey waits counts as passed, so
the response to it has to be in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.gate import make_interaction_id
from abstain.serving.gateways.answers import (
    Answer,
    PassReason,
    extract_text,
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
            {"interaction_id": decision.interaction_id, "decision": decision.decision, "show": decision.show}
            for decision in decisions
            if decision
        ]
        withheld = {index for index, decision in enumerate(decisions) if decision and not decision.show}
        if not withheld:
            return PortkeyResponse(verdict=True, data={"answers": summaries})
        transformed = {"response": _replace_withheld(response, withheld, service.settings.withheld_text)}
        return PortkeyResponse(verdict=False, data={"answers": summaries}, transformedData=transformed)

    return routes


def _read_response(response: Any) -> list[Answer]:
    """Return the answers in a response; its `text` is what Portkey itself found in it."""
    if not isinstance(response, dict):
        return [AbstainError(Code.INVALID_ROW, "answer: no response was sent: send what the model answered")]
    return read_answers(response.get("json"), extract_text(response.get("text")))


def _replace_withheld(response: Any, withheld: Collection[int], text: str) -> dict[str, Any]:
    """Return the response with `text` at the indices `withheld`; it is complete, since it replaces the original."""
    replaced: dict[str, Any] = to_valid_json(response) if isinstance(response, dict) else {}
    body = replaced.get("json")
    choices = [
        {"index": index, "finish_reason": "stop", **replace_text(choice, text)} if index in withheld else choice
        for index, choice in enumerate(get_choices(body) or [{}])
    ]
    return {**replaced, "json": {**select_quiet_fields(body), "choices": choices}, "text": text}
