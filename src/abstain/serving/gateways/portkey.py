"""Portkey's webhook guardrail: https://portkey.ai/docs/integrations/guardrails/bring-your-own-guardrails

Request and response come together after the call. A webhook that takes longer than Portkey waits counts as passed, so
that the answer to it has to be in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.service import GateService
from abstain.serving.gate import make_interaction_id
from abstain.serving.gateways.answers import Answer, Passed, choices_of, quiet, read_answers, text_of, with_text
from abstain.serving.gateways.core import GatewayFieldParser, count_passed, decide_answers, to_valid_json, with_headers

SOURCE = "portkey"
GRACE_S = 0.5
"""What may be spent on the log after a decision."""


class WebhookVerdict(BaseModel):
    """`verdict`: whether the answer is shown. `transformedData`: the response without what is withheld."""

    verdict: bool
    data: dict[str, Any] = {}
    transformedData: dict[str, Any] | None = None


def portkey_routes(service: GateService, asker: Callable[..., Any]) -> APIRouter:
    """The webhook. `asker`: the dependency that lets in who may ask."""
    routes = APIRouter()
    finder, within = GatewayFieldParser(SOURCE, service.settings.portkey), service.settings.portkey_timeout_s

    @routes.post(
        "/gateways/portkey",
        operation_id="portkey",
        dependencies=[Depends(asker)],
        response_model_exclude_none=True,
    )
    async def webhook(event: Annotated[dict[str, Any], Body()], request: Request) -> WebhookVerdict:
        """Decide about the answers after a call; what comes before it passes."""
        if event.get("eventType") == "beforeRequestHook":
            count_passed(service, SOURCE, Passed.REQUEST)
            return WebhookVerdict(verdict=True)
        response = event.get("response")
        answers = _answers(response)
        deciding = decide_answers(service, finder, with_headers(event, request), answers, SOURCE, timeout_s=within)
        try:
            decisions = await asyncio.wait_for(deciding, within + GRACE_S)
        except TimeoutError:
            late = AbstainError(Code.BUSY, f"the log did not take a decision within {within + GRACE_S:g} s")
            decisions = [
                None if isinstance(one, Passed) else service.withhold(make_interaction_id(), late, SOURCE)
                for one in answers
            ]
        told = [
            {"interaction_id": one.interaction_id, "decision": one.decision, "show": one.show}
            for one in decisions
            if one
        ]
        withheld = {at for at, one in enumerate(decisions) if one and not one.show}
        if not withheld:
            return WebhookVerdict(verdict=True, data={"answers": told})
        transformed = {"response": _replaced(response, withheld, service.settings.withheld_text)}
        return WebhookVerdict(verdict=False, data={"answers": told}, transformedData=transformed)

    return routes


def _answers(response: Any) -> list[Answer]:
    """What a response has for its reader; `text` is what Portkey found in it itself."""
    if not isinstance(response, dict):
        return [AbstainError(Code.INVALID_ROW, "answer: no response was sent: send what the model answered")]
    return read_answers(response.get("json"), text_of(response.get("text")))


def _replaced(response: Any, withheld: Collection[int], text: str) -> dict[str, Any]:
    """The response with `text` at the places `withheld`: complete, since it takes the place of the one that came."""
    changed: dict[str, Any] = to_valid_json(response) if isinstance(response, dict) else {}
    body = changed.get("json")
    choices = [
        {"index": at, "finish_reason": "stop", **with_text(choice, text)} if at in withheld else choice
        for at, choice in enumerate(choices_of(body) or [{}])
    ]
    return {**changed, "json": {**quiet(body), "choices": choices}, "text": text}
