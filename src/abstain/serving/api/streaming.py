"""Answers of the base model as responses: at once, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.context import Context as TraceContext

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.api.keys import ApiKey
from abstain.serving.api.problems import Problem
from abstain.serving.api.schemas import AnswerRequest, AnswerResponse
from abstain.serving.api.service import GateService
from abstain.serving.decision import Decision


def answer_response(text: str, decision: Decision, holder: ApiKey) -> AnswerResponse:
    """The response about an answer: its text only where it is shown, or `holder` may see withheld ones."""
    visible = decision.show or "withheld" in holder.roles
    return AnswerResponse(**vars(decision), answer=(text or None) if visible else None)


async def answer_events(
    service: GateService, asked: AnswerRequest, holder: ApiKey, trace: TraceContext
) -> AsyncIterator[bytes]:
    """Server-sent events: `text` (the whole answer so far), then `decision`; `retract` where text that was sent is not
    shown, also because of a `problem`.

    `buffered` sends text only after the decision to show it. Who leaves before that ends the answer: it is logged as
    `unavailable`.
    """
    loop = asyncio.get_running_loop()
    written: asyncio.Queue[str | None] = asyncio.Queue()
    optimistic = asked.stream == "optimistic"

    def on_text(text: str) -> None:
        loop.call_soon_threadsafe(written.put_nowait, text)

    left = asyncio.Event()
    running = service.start_task(service.answer(asked, left.wait, trace, on_text if optimistic else None))
    running.add_done_callback(lambda _: written.put_nowait(None))
    sent = False
    try:
        while (text := await written.get()) is not None:
            yield _event("text", {"text": text})
            sent = True
    finally:
        left.set()
    try:
        text, timed = running.result()
    except Exception as error:  # an unexpected one is logged by the service
        if sent:
            yield _event("retract", {"interaction_id": asked.interaction_id})
        told = error if isinstance(error, AbstainError) else AbstainError(Code.PROCESS_DIED, "an unexpected error")
        yield _event("problem", json.loads(bytes(Problem.from_error(told).response().body)))
        return
    answered = answer_response(text, timed.decision, holder)
    if not optimistic and timed.decision.show:
        yield _event("text", {"text": answered.answer})
    yield _event("decision", answered.model_dump(mode="json"))
    if optimistic and not timed.decision.show:
        yield _event("retract", {"interaction_id": timed.decision.interaction_id})


def _event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
