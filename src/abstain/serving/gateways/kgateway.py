"""The guardrail webhook of kgateway, agentgateway and Gloo AI Gateway.

OpenAPI: solo-io/gloo-gateway-use-cases, ai-guardrail-webhook-server/docs. `/request` has the messages, `/response` the
choices, and nothing in either joins them, except a header that the gateway sends with both. By this description an
answer can be masked but not rejected, and the number of choices must not change.

agentgateway can reject, too, and does not mask a stream. It takes an action that it cannot read for a pass, so that a
mask has to have a text in every message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.serving.gateways.answers import Answer, clean_choice, get_choices, read_answers, replace_text
from abstain.serving.gateways.core import (
    MAX_LIST_ITEMS,
    GatewayFieldParser,
    add_headers,
    decide_answers,
    remember_call,
    to_valid_json,
)
from abstain.serving.service.gate_service import GateService

SOURCE = "kgateway"
PREFIX = "/gateways/kgateway"
REJECTED_STATUS = 403
"""The status of a rejected answer."""


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[Any] | None = None


class Choice(BaseModel):
    model_config = ConfigDict(extra="allow")

    message: Message


class Messages(BaseModel):
    messages: Annotated[list[Message], Field(max_length=MAX_LIST_ITEMS, fail_fast=True)] = []


class ChoicesBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    choices: Annotated[list[Choice], Field(max_length=MAX_LIST_ITEMS, fail_fast=True)] = []


class PromptRequest(BaseModel):
    body: Messages


class ResponseRequest(BaseModel):
    body: ChoicesBody


class PassAction(BaseModel):
    reason: str


class MaskAction(BaseModel):
    body: ChoicesBody
    reason: str


class PromptResponse(BaseModel):
    action: PassAction


class RejectAction(BaseModel):
    body: str
    status_code: int
    reason: str


class ResponseResponse(BaseModel):
    action: MaskAction | RejectAction | PassAction


def make_kgateway_routes(service: GateService, require_ask: Callable[..., Any]) -> APIRouter:
    """Make the routes of the webhook.

    Args:
        service: The gate service.
        require_ask: Dependency that admits callers who may ask.

    Returns:
        The routes.
    """
    routes = APIRouter(dependencies=[Depends(require_ask)])
    finder = GatewayFieldParser(SOURCE, service.settings.kgateway)

    @routes.post("/request", operation_id="kgateway_request")
    async def prompt(body: PromptRequest, request: Request) -> PromptResponse:
        """Remember a question; it passes."""
        await remember_call(service, finder, add_headers(body.body.model_dump(), request), SOURCE)
        return PromptResponse(action=PassAction(reason="decided with the answer"))

    @routes.post("/response", operation_id="kgateway_response")
    async def answer(payload: Annotated[dict[str, Any], Body()], request: Request) -> ResponseResponse:
        """Decide about each choice; mask those to be withheld, or reject the answer.

        A further piece of a streamed answer comes under the id of the first one and is withheld: it is no answer.
        """
        response, answers = _read_response(payload)
        decisions = await decide_answers(
            service, finder, add_headers(response, request), answers, SOURCE, use_call_id=True
        )
        withheld = [decision for decision in decisions if decision and not decision.show]
        choices = response["choices"] or [{}]  # a response without choices is masked by one
        masked = [
            replace_text(choice, service.make_withheld_text(decision))
            if decision and not decision.show
            else clean_choice(choice, decision)
            for choice, decision in zip(choices, decisions, strict=True)
        ]
        reason = "; ".join(decision.describe() for decision in decisions if decision) or "no text"
        if masked == choices:
            return ResponseResponse(action=PassAction(reason=reason))
        if withheld and service.settings.kgateway_withheld == "reject":
            text = service.make_withheld_text(withheld[0])
            return ResponseResponse(action=RejectAction(body=text, status_code=REJECTED_STATUS, reason=reason))
        masked = [_fill_content(choice) for choice in masked]
        body = ChoicesBody.model_validate(to_valid_json({"choices": masked}))
        return ResponseResponse(action=MaskAction(body=body, reason=reason))

    routers = APIRouter()
    routers.include_router(routes, prefix=PREFIX)
    routers.include_router(routes, include_in_schema=False)  # for a gateway that knows a host and a port only
    return routers


def _read_response(body: dict[str, Any]) -> tuple[dict[str, Any], list[Answer]]:
    """Return the response and its answers; if it does not fit this webhook, one unreadable answer per choice."""
    try:
        response = ResponseRequest.model_validate(body).body.model_dump()
        return response, read_answers(response)
    except ValidationError as error:
        message = f"answer: {describe_first_problem(error)}: send what the model answered"
        unreadable = AbstainError(Code.INVALID_ROW, message)
        choices = get_choices(body.get("body"))[:MAX_LIST_ITEMS] or [{}]
        return {"choices": [{} for _ in choices]}, [unreadable for _ in choices]


def _fill_content(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice with a content in any case."""
    return {**choice, "message": {**choice["message"], "content": choice["message"]["content"] or ""}}
