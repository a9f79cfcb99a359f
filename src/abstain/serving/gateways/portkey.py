"""Portkey's webhook guardrail: https://portkey.ai/docs/integrations/guardrails/bring-your-own-guardrails

Request and response come together after the call. A webhook that takes longer than Portkey waits counts as passed, so
that the answer to it has to be in time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel

from abstain.serving.api.service import GateService
from abstain.serving.gateways.found import Finder, decide, text_of, with_headers

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
    finder, within = Finder(SOURCE, service.settings.portkey), service.settings.portkey_timeout_s

    @routes.post(
        "/gateways/portkey",
        operation_id="portkey",
        dependencies=[Depends(asker)],
        response_model_exclude_none=True,
    )
    async def webhook(event: Annotated[dict[str, Any], Body()], request: Request) -> WebhookVerdict:
        """Decide about the answers after a call; what comes before it passes."""
        if event.get("eventType") == "beforeRequestHook":
            return WebhookVerdict(verdict=True)
        response = event["response"] if isinstance(event.get("response"), dict) else {}
        answers = _answers(response)
        deciding = decide(
            service, finder, with_headers(event, request), list(answers.values()), SOURCE, timeout_s=within
        )
        try:
            decisions = await asyncio.wait_for(deciding, within + GRACE_S)
        except TimeoutError:
            return WebhookVerdict(verdict=service.settings.on_unavailable == "show", data={"decision": "unavailable"})
        told = [{"interaction_id": one.interaction_id, "decision": one.decision, "show": one.show} for one in decisions]
        withheld = {at for at, one in zip(answers, decisions, strict=True) if not one.show}
        if not withheld:
            return WebhookVerdict(verdict=True, data={"answers": told})
        transformed = {"response": _replaced(response, withheld, service.settings.withheld_text)}
        return WebhookVerdict(verdict=False, data={"answers": told}, transformedData=transformed)

    return routes


def _answers(response: Mapping[str, Any]) -> dict[int, str]:
    """The text of each choice that has one, by its place; of a response without choices, its text.

    A response that holds neither is an answer that cannot be read, so that it is not taken for a good one.
    """
    choices = _choices(response)
    if not choices:
        return {0: text_of(response.get("text")) or ""}
    return {at: text for at, choice in enumerate(choices) if (text := text_of(_holder(choice)[1]))}


def _replaced(response: Mapping[str, Any], withheld: Collection[int], text: str) -> dict[str, Any]:
    """The response with `text` at the places `withheld`: complete, since it takes the place of the one that came."""
    changed: dict[str, Any] = copy.deepcopy(dict(response))
    for at, choice in enumerate(_choices(changed)):
        if at in withheld:
            holder, _ = _holder(choice)
            holder["content" if holder is not choice else "text"] = text
    changed["text"] = text
    return changed


def _choices(response: Mapping[str, Any]) -> list[Any]:
    body = response.get("json")
    choices = body.get("choices") if isinstance(body, dict) else None
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _holder(choice: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """What holds the text of a choice, a message or the choice of a completion itself, and the text."""
    message = choice.get("message")
    return (message, message.get("content")) if isinstance(message, dict) else (choice, choice.get("text"))
