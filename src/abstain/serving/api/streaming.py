"""Answers of the base model as responses: at once, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.context import Context as TraceContext

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.problems import Problem
from abstain.serving.decision import Decision
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKey
from abstain.serving.service.schemas import AnswerRequest, AnswerResponse


def make_answer_response(text: str, decision: Decision, api_key: ApiKey) -> AnswerResponse:
    """Build the response about an answer.

    Args:
        text: The answer.
        decision: Its decision.
        api_key: Key of the caller.

    Returns:
        The response. It has the text only if the answer is shown or the key has the role `read_withheld`.
    """
    visible = decision.show or "read_withheld" in api_key.roles
    return AnswerResponse(**vars(decision), answer=(text or None) if visible else None)


async def stream_answer_events(
    service: GateService, request: AnswerRequest, api_key: ApiKey, trace: TraceContext
) -> AsyncIterator[bytes]:
    """Yield the server-sent events of an answer.

    Events are `text` (the whole answer so far), then `decision`; and `retract` if text that was sent is not shown, also
    after a `problem`. `buffered` sends text only after the decision to show it. A caller who leaves before that ends
    the answer, which is logged as `unavailable`.

    Args:
        service: The gate service.
        request: Parsed request.
        api_key: Key of the caller.
        trace: Trace context of the request.

    Yields:
        The encoded events.
    """
    loop = asyncio.get_running_loop()
    texts: asyncio.Queue[str | None] = asyncio.Queue()
    optimistic = request.stream == "optimistic"

    def on_text(text: str) -> None:
        loop.call_soon_threadsafe(texts.put_nowait, text)

    has_left = asyncio.Event()
    task = service.start_task(service.answer(request, has_left.wait, trace, on_text if optimistic else None))
    task.add_done_callback(lambda _: texts.put_nowait(None))
    has_sent_text = False
    try:
        while (text := await texts.get()) is not None:
            yield _format_event("text", {"text": text})
            has_sent_text = True
    finally:
        has_left.set()
    try:
        text, recorded = task.result()
    except Exception as error:  # an unexpected one is logged by the service
        if has_sent_text:
            yield _format_event("retract", {"interaction_id": request.interaction_id})
        reported_error = (
            error if isinstance(error, AbstainError) else AbstainError(Code.PROCESS_DIED, "an unexpected error")
        )
        yield _format_event("problem", json.loads(bytes(Problem.from_error(reported_error).to_response().body)))
        return
    response = make_answer_response(text, recorded.decision, api_key)
    if not optimistic and recorded.decision.show:
        yield _format_event("text", {"text": response.answer})
    yield _format_event("decision", response.model_dump(mode="json"))
    if optimistic and not recorded.decision.show:
        yield _format_event("retract", {"interaction_id": recorded.decision.interaction_id})


def _format_event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
