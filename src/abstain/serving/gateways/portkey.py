"""Portkey's webhook guardrail: https://portkey.ai/docs/integrations/guardrails/bring-your-own-guardrails

Request and response come together after the call. A webhook that takes longer than Portkey waits counts as passed, so
that the answer to it has to be in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel

from abstain.serving.api.service import GateService
from abstain.serving.gateways.found import Finder, as_json, decide, text_of, with_headers

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
    """The text of each choice that has an answer, by its place; of a response without choices, its text.

    What holds neither is an answer that cannot be read, so that it is not taken for a good one: it counts as blank.
    """
    choices = _choices(response)
    if not choices:
        return {0: text_of(response.get("text")) or ""}
    return {at: text for at, choice in enumerate(choices) if (text := _answer(choice)) is not None}


def _answer(choice: Any) -> str | None:
    """The text of a choice, blank where it cannot be read; None of a call of tools, and where its content is empty."""
    holder, name = _holder(choice)
    if not isinstance(holder, dict):
        return ""
    content = holder.get(name)
    if content is None or content == [] or (isinstance(content, str) and not content.strip()):
        return None if name in holder or holder.get("tool_calls") or holder.get("function_call") else ""
    return text_of(content) or ""


def _replaced(response: Mapping[str, Any], withheld: Collection[int], text: str) -> dict[str, Any]:
    """The response with `text` at the places `withheld`: complete, since it takes the place of the one that came."""
    changed: dict[str, Any] = as_json(response)
    choices = _choices(changed)
    for at in withheld:
        if at < len(choices):
            holder, name = _holder(choices[at])
            if isinstance(holder, dict):
                holder[name] = text
            else:
                choices[at] = {"index": at, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    changed["text"] = text
    return changed


def _choices(response: Mapping[str, Any]) -> list[Any]:
    body = response.get("json")
    choices = body.get("choices") if isinstance(body, dict) else None
    return choices if isinstance(choices, list) else []


def _holder(choice: Any) -> tuple[Any, str]:
    """What should be an object with the text of a choice, a message or the choice of a completion itself, and where."""
    if isinstance(choice, dict) and "message" in choice:
        return choice["message"], "content"
    return choice, "text"
