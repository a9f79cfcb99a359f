"""The guardrail webhook of kgateway, agentgateway and Gloo AI Gateway.

OpenAPI: solo-io/gloo-gateway-use-cases, ai-guardrail-webhook-server/docs. `/request` has the messages, `/response` the
choices, and nothing in either joins them: a header that the gateway sends with both does. An answer can be masked but
not rejected, and the choices must be as many as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from abstain.core.errors import AbstainError
from abstain.serving.api.service import GateService
from abstain.serving.gateways.found import Finder, decide, register, with_headers

SOURCE = "kgateway"
_log = logging.getLogger("abstain.serve")


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = None


class Choice(BaseModel):
    model_config = ConfigDict(extra="allow")

    message: Message


class Messages(BaseModel):
    messages: list[Message] = []


class ChoicesBody(BaseModel):
    choices: list[Choice] = []


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


class ResponseResponse(BaseModel):
    action: MaskAction | PassAction


def kgateway_routes(service: GateService, asker: Callable[..., Any]) -> APIRouter:
    """The webhook. `asker`: the dependency that lets in who may ask."""
    routes = APIRouter(prefix=service.settings.kgateway_prefix, dependencies=[Depends(asker)])
    finder = Finder(SOURCE, service.settings.kgateway)

    @routes.post("/request", operation_id="kgateway_request")
    async def prompt(asked: PromptRequest, request: Request) -> PromptResponse:
        """Remember a question; it passes."""
        try:
            await register(service, finder.find(with_headers(asked.body.model_dump(), request)))
        except AbstainError as error:  # its answer will be `unavailable`
            _log.warning("%s: a question is not remembered: %s", SOURCE, error.coded)
        return PromptResponse(action=PassAction(reason="decided with the answer"))

    @routes.post("/response", operation_id="kgateway_response")
    async def answer(given: ResponseRequest, request: Request) -> ResponseResponse:
        """Decide about each choice; mask those to be withheld.

        A further piece of a streamed answer comes under the id of the first one and is withheld: it is no answer.
        """
        choices = given.body.choices
        answers = {at: text for at, choice in enumerate(choices) if (text := (choice.message.content or "").strip())}
        found = with_headers(given.body.model_dump(), request)
        decisions = dict(
            zip(answers, await decide(service, finder, found, list(answers.values()), SOURCE, named=True), strict=True)
        )
        if all(decision.show for decision in decisions.values()):
            return ResponseResponse(action=PassAction(reason="shown"))
        masked = [
            _masked(choice, service.settings.withheld_text) if at in decisions and not decisions[at].show else choice
            for at, choice in enumerate(choices)
        ]
        reason = "; ".join(one.reason or one.decision for one in decisions.values() if not one.show)
        return ResponseResponse(action=MaskAction(body=ChoicesBody(choices=masked), reason=reason))

    return routes


def _masked(choice: Choice, text: str) -> Choice:
    return choice.model_copy(update={"message": choice.message.model_copy(update={"content": text})})
