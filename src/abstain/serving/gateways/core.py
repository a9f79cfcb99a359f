"""The core of all gateways: what a request holds, and the decisions about the answers in it.

A gateway's request has question, contexts and the rest at paths (`GatewayPaths`); what is not there may have been
registered under the id of the call, by the gateway's request before the answer or by the assistant at `/v1/contexts`,
or be retrieved under the asker's entitlements. Contexts of the request go before registered ones, a registered question
before the user's last message, which may not be understood alone. What none of these gives is not guessed: the decision
is `unavailable`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from abstain.config.serve_settings import GatewayPaths
from abstain.core.codes import Code
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.data.decision_log.calls import RegisteredCall
from abstain.ingest.exports.expressions import Expression
from abstain.serving.api.callers import OverQuota, current_caller
from abstain.serving.api.schemas import ANSWERS, ContextsRequest, GateRequest
from abstain.serving.api.service import GateService
from abstain.serving.decision import Decision, no_decision
from abstain.serving.gate import make_interaction_id
from abstain.serving.gateways.answers import Answer, Passed, text_of

_log = logging.getLogger("abstain.serve")
CALL_TTL_S = 1800.0
"""How long a question waits for its answer."""
MAX_LIST_ITEMS = 10_000
"""The most elements of a list in a gateway's request."""
TEXT_KEYS = ("text", "content", "page_content")
"""Where an object among the contexts may have its text."""


@dataclass(frozen=True)
class GatewayFields:
    """What a request holds; None: nothing."""

    call_id: str | None
    question: str | None
    contexts: tuple[str | Context, ...] | None
    entitlements: tuple[str, ...] | None
    conversation: str | None
    user: str | None
    product: str | None
    model: str | None


class GatewayFieldParser:
    """Finds what the requests of one gateway hold. Raises `AbstainError`, naming the gateway, for a wrong path."""

    def __init__(self, gateway: str, paths: GatewayPaths) -> None:
        self._paths: dict[str, Expression] = {}
        for name, text in paths.model_dump().items():
            try:
                if text:
                    self._paths[name] = Expression(text)
            except ValueError as error:
                variable = f"ABSTAIN_SERVE_{gateway}__{name}".upper()
                raise AbstainError(Code.BAD_SETTING, f"environment variable {variable}: {error}") from None

    def parse(self, request: Mapping[str, Any]) -> GatewayFields:
        """What `request` holds. Raises `AbstainError` for contexts and entitlements that are no texts."""
        values = {name: path.evaluate(request) for name, path in self._paths.items()}
        contexts = [_context(one) for one in _listed(values.get("contexts"))]
        entitlements = [_entitlement(one) for one in _listed(values.get("entitlements"))]
        names = ("call_id", "question", "conversation", "user", "product", "model")
        texts = {name: text_of(values.get(name)) for name in names}
        return GatewayFields(contexts=tuple(contexts) or None, entitlements=tuple(entitlements) or None, **texts)


def count_passed(service: GateService, source: str, why: Passed) -> None:
    """Count what passes without a decision, in the figures."""
    service.metrics.passed.labels(source, why.value).inc()


async def register_call(service: GateService, found: GatewayFields) -> None:
    """Remember what a request before its answer holds, with what the assistant registered by the same key: its question
    goes first.

    Raises `AbstainError` where the log cannot be written, or the caller has sent too many rows.
    """
    if found.call_id is None:
        return
    service.rows.take(current_caller())
    known = await service.gatherer.get_registered_call(found.call_id) or RegisteredCall()
    given = {
        "call_id": found.call_id,
        "question": known.question or found.question,
        "contexts": found.contexts or known.contexts,
        "user": found.user or known.user,
        "product": found.product or known.product,
        "ttl_s": CALL_TTL_S,
    }
    await service.register_contexts(_validate(ContextsRequest, given))


async def decide_answers(
    service: GateService,
    finder: GatewayFieldParser,
    request: Mapping[str, Any],
    answers: Sequence[Answer],
    source: str,
    *,
    use_call_id: bool = False,
    timeout_s: float | None = None,
) -> list[Decision | None]:
    """The decision about each answer, in order; `unavailable`, with the reason, where there is none. Never raises.

    What passes has None, and is counted. More answers than are allowed in one request are withheld by one decision,
    whatever `on_unavailable` says; so are those of a caller who has sent too many rows, which are not logged.

    Args:
        request: what the gateway sent.
        answers: those to one question.
        source: the gateway's name, for the log and the figures.
        named: whether the call's id becomes that of the first answer's interaction, so that feedback can name it.
    """
    for answer in answers:
        if isinstance(answer, Passed):
            count_passed(service, source, answer)
    to_decide = [answer for answer in answers if not isinstance(answer, Passed)]
    decided = iter(
        await _decide(service, finder, request, to_decide, source, use_call_id, timeout_s) if to_decide else ()
    )
    return [None if isinstance(answer, Passed) else next(decided) for answer in answers]


async def _decide(
    service: GateService,
    finder: GatewayFieldParser,
    request: Mapping[str, Any],
    answers: Sequence[str | AbstainError],
    source: str,
    named: bool,
    timeout_s: float | None,
) -> list[Decision]:
    try:
        service.rows.take(current_caller(), len(answers))
    except OverQuota as error:
        return [service.withhold(make_interaction_id(), error, source) for _ in answers]
    if len(answers) > ANSWERS:
        excess = AbstainError(
            Code.TOO_LARGE, f"{len(answers):,} answers in one request, {ANSWERS} are allowed: ask for fewer"
        )
        return [await _record_failure(service, GateRequest(), excess, source, may_show=False)] * len(answers)
    try:
        found = finder.parse(request)
        known = await service.gatherer.get_registered_call(found.call_id) if found.call_id and found.question else None
    except Exception as error:  # whatever it is, the gateway would show the answers
        return [await _record_failure(service, GateRequest(), error, source) for _ in answers]

    question = (known.question if known else None) or found.question

    async def one(at: int, answer: str | AbstainError) -> Decision:
        if isinstance(answer, AbstainError):
            return await _record_failure(service, GateRequest(), answer, source)
        key = (found.call_id if at == 0 else f"{found.call_id}#{at}") if named and found.call_id else None
        asked = GateRequest()
        try:
            asked = _validate(
                GateRequest, {**found.__dict__, "question": question, "interaction_id": key, "answer": answer}
            )
            return (await service.decide(asked, source, timeout_s=timeout_s)).decision
        except Exception as error:
            return await _record_failure(service, asked, error, source)

    return list(await asyncio.gather(*(one(at, answer) for at, answer in enumerate(answers))))


async def _record_failure(
    service: GateService, asked: GateRequest, error: Exception, source: str, *, may_show: bool = True
) -> Decision:
    """`unavailable`; what is no error that a caller can mend is said in the log of the server alone."""
    failed = AbstainError(Code.NO_SERVICE, "the decision has failed: see the server's log")
    if not isinstance(error, AbstainError):
        _log.error("%s: a decision has failed", source, exc_info=error)
        error = failed
    try:
        return await service.record_failure(asked, error, source, may_show=may_show)
    except Exception:
        _log.exception("%s: a decision that has failed cannot be logged", source)
        return no_decision(make_interaction_id(), failed.message_with_code)


def with_headers(body: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """`body`, and the request's headers at `headers`, for the paths; the key is not among them."""
    return {**body, "headers": {name: value for name, value in request.headers.items() if name != "authorization"}}


def to_valid_json(value: Any) -> Any:
    """A copy of `value` that can be sent: half a surrogate pair, which is no character, becomes a question mark."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _context(value: Any) -> str | Context:
    if isinstance(value, dict):
        text = next((text for key in TEXT_KEYS if (text := text_of(value.get(key)))), None)
        chunk_id = text_of(value.get("chunk_id")) or text_of(value.get("id"))
        if text:
            return Context(chunk_id=chunk_id, text=text) if chunk_id else text
    elif text := text_of(value):
        return text
    raise AbstainError(Code.INVALID_ROW, f"contexts: a {type(value).__name__} without a text: correct their path")


def _entitlement(value: Any) -> str:
    if text := text_of(value):
        return text
    raise AbstainError(Code.INVALID_ROW, f"entitlements: a {type(value).__name__} is none: correct their path")


def _validate(schema: type[Any], given: Mapping[str, Any]) -> Any:
    try:
        return schema(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        raise AbstainError(
            Code.INVALID_ROW, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}: correct its path"
        ) from None
