"""LiteLLM's Generic Guardrail API: https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api

In mode `[pre_call, post_call]` LiteLLM sends the messages before the call and the answer's texts, without any message,
after it. Both have the call's id, by which they are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.gateways.answers import Answer, read_answers
from abstain.serving.gateways.core import MAX_LIST_ITEMS, GatewayFieldParser, decide_answers, remember_call
from abstain.serving.service.gate_service import GateService

SOURCE = "litellm"
REDACTED_HEADER_VALUE = "[present]"
"""The value that LiteLLM gives a header that it does not forward."""


class LiteLLMRequest(BaseModel):
    """Request of LiteLLM; the paths find the other fields."""

    model_config = ConfigDict(extra="allow")

    input_type: Literal["request", "response"]
    texts: Annotated[list[str], Field(max_length=MAX_LIST_ITEMS, fail_fast=True)] | None = None


class LiteLLMResponse(BaseModel):
    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None = None
    texts: list[str] | None = None


def make_litellm_routes(service: GateService, require_ask: Callable[..., Any]) -> APIRouter:
    """Make the route of the guardrail.

    Args:
        service: The gate service.
        require_ask: Dependency that admits callers who may ask.

    Returns:
        The route.
    """
    routes = APIRouter()
    finder = GatewayFieldParser(SOURCE, service.settings.litellm)

    @routes.post("/beta/litellm_basic_guardrail_api", operation_id="litellm", dependencies=[Depends(require_ask)])
    async def guardrail(call: LiteLLMRequest) -> LiteLLMResponse:
        """Remember a question, or decide about the answers to it."""
        request = call.model_dump()
        headers = request.get("request_headers")
        if isinstance(headers, dict):
            request["request_headers"] = {
                name: value for name, value in headers.items() if value != REDACTED_HEADER_VALUE
            }
        if call.input_type == "request":
            await remember_call(service, finder, request, SOURCE)
            return LiteLLMResponse(action="NONE")
        answer = _read_response(request)
        (decision,) = await decide_answers(service, finder, request, [answer], SOURCE, use_call_id=True)
        if decision is None or (decision.show and decision.cleaned_answer is None):
            return LiteLLMResponse(action="NONE")
        text = decision.cleaned_answer if decision.show else service.make_withheld_text(decision)
        # a replaced text does not reach the readers of a stream, and takes the place of no image
        if not decision.show and (service.settings.litellm_withheld == "block" or isinstance(answer, AbstainError)):
            return LiteLLMResponse(action="BLOCKED", blocked_reason=text)
        return LiteLLMResponse(action="GUARDRAIL_INTERVENED", texts=[text or "", *[""] * len(call.texts or ())][:-1])

    return routes


def _read_response(call: Mapping[str, Any]) -> Answer:
    """Return the answer in LiteLLM's request: its blocks, or calls of tools. LiteLLM sends nothing without either."""
    texts, other_fields = call["texts"] or (), {name: call.get(name) for name in ("images", "tool_calls")}
    if not texts and not other_fields["tool_calls"]:
        return AbstainError(Code.INVALID_ROW, "answer: neither texts nor calls of tools were sent: send either")
    (answer,) = read_answers({"choices": [{"text": "".join(texts)}] if texts else [], **other_fields})
    return answer
