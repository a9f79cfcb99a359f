"""The core of all gateways: parsing of their requests, and the decisions about the answers in them.

A gateway's request has question, contexts and the other fields at paths (`GatewayPaths`). Missing ones may have been
registered under the call's id, by the gateway's request before the answer or by the assistant at `/v1/contexts`, or be
retrieved under the asker's entitlements. Contexts of the request precede registered ones. A registered question
precedes the user's last message, which may not be understandable without the earlier ones. Nothing else is guessed:
without it the decision is `unavailable`.
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
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.core.message_text import extract_text
from abstain.data.decision_log.calls import RegisteredCall
from abstain.ingest.exports.expressions import Expression
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.gate import make_interaction_id
from abstain.serving.gateways.answers import Answer, PassReason
from abstain.serving.service.callers import QuotaExceeded, get_current_caller
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.schemas import MAX_ANSWERS, ContextsRequest, GateRequest

_log = logging.getLogger("abstain.serve")
CALL_TTL_S = 1800.0
"""How long a question waits for its answer."""
MAX_LIST_ITEMS = 10_000
"""Maximum number of elements of a list in a gateway's request."""


@dataclass(frozen=True)
class GatewayFields:
    """Fields of a gateway's request; None if absent.

    Attributes:
        call_id: Id of the call.
        question: The question.
        contexts: Retrieved chunks, best first, in any form that a request of the gate may have.
        entitlements: Entitlements of the asker.
        conversation: Id of the conversation.
        user: The asker.
        product: The product.
        model: The model that answered.
    """

    call_id: str | None
    question: str | None
    contexts: tuple[Any, ...] | None
    entitlements: tuple[str, ...] | None
    conversation: str | None
    user: str | None
    product: str | None
    model: str | None


class GatewayFieldParser:
    """Parses the requests of one gateway.

    Args:
        gateway: Name of the gateway, for messages.
        paths: Path of each field.

    Raises:
        AbstainError: A path is invalid.
    """

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
        """Find the fields of a request.

        Args:
            request: Body that the gateway sent.

        Returns:
            The fields.

        Raises:
            AbstainError: Entitlements are no texts.
        """
        values = {name: path.evaluate(request) for name, path in self._paths.items()}
        entitlements = [_parse_entitlement(item) for item in _to_list(values.get("entitlements"))]
        names = ("call_id", "question", "conversation", "user", "product", "model")
        texts = {name: extract_text(values.get(name)) for name in names}
        contexts = tuple(_to_list(values.get("contexts")))
        return GatewayFields(contexts=contexts or None, entitlements=tuple(entitlements) or None, **texts)


def count_passed(service: GateService, source: str, reason: PassReason) -> None:
    """Count in the metrics what passes without a decision.

    Args:
        service: The gate service.
        source: Name of the gateway.
        reason: Why it passes.
    """
    service.metrics.passed.labels(source, reason.value).inc()


async def remember_call(
    service: GateService, parser: GatewayFieldParser, request: Mapping[str, Any], source: str
) -> None:
    """Store the fields of a request before its answer, together with what the assistant registered by the same key.

    The assistant's question precedes that of the request. Without a call id nothing is stored. Never raises for a
    request that cannot be stored, which is logged: its answer will be "unavailable".

    Args:
        service: The gate service.
        parser: Finds the fields in this gateway's requests.
        request: Body that the gateway sent; it passes, which is counted.
        source: Name of the gateway, for the log and the metrics.
    """
    count_passed(service, source, PassReason.REQUEST)
    try:
        await _register_call(service, parser.parse(request))
    except AbstainError as error:
        _log.warning("%s: a question is not remembered: %s", source, error.message_with_code)


async def _register_call(service: GateService, fields: GatewayFields) -> None:
    if fields.call_id is None:
        return
    service.row_quota.take(get_current_caller())
    registered = await service.gatherer.get_registered_call(fields.call_id) or RegisteredCall()
    values = {
        "call_id": fields.call_id,
        "question": registered.question or fields.question,
        "contexts": fields.contexts or registered.contexts,
        "user": fields.user or registered.user,
        "product": fields.product or registered.product,
        "ttl_s": CALL_TTL_S,
    }
    await service.feedback.register_contexts(_validate(ContextsRequest, values))


async def decide_answers(
    service: GateService,
    parser: GatewayFieldParser,
    request: Mapping[str, Any],
    answers: Sequence[Answer],
    source: str,
    *,
    use_call_id: bool = False,
    timeout_s: float | None = None,
) -> list[Decision | None]:
    """Decide about every answer in a gateway's request. Never raises.

    An answer without a decision is "unavailable", with the reason. If there are more answers than are allowed in one
    request, all are withheld by one decision, whatever `on_unavailable` says. So are those of a caller who has sent too
    many rows, which are not logged.

    Args:
        service: The gate service.
        parser: Finds question, contexts and ids in this gateway's requests.
        request: Body that the gateway sent.
        answers: Answers to one question.
        source: Name of the gateway, for the log and the metrics.
        use_call_id: Whether the call id becomes the interaction id of the first answer, so that feedback can refer to
            it.
        timeout_s: Time limit per answer in seconds.

    Returns:
        One decision per answer, in order; None for what passes without a decision, which is counted.
    """
    for answer in answers:
        if isinstance(answer, PassReason):
            count_passed(service, source, answer)
    to_decide = [answer for answer in answers if not isinstance(answer, PassReason)]
    decisions = iter(
        await _decide_all(service, parser, request, to_decide, source, use_call_id, timeout_s) if to_decide else ()
    )
    return [None if isinstance(answer, PassReason) else next(decisions) for answer in answers]


async def _decide_all(
    service: GateService,
    parser: GatewayFieldParser,
    request: Mapping[str, Any],
    answers: Sequence[str | AbstainError],
    source: str,
    use_call_id: bool,
    timeout_s: float | None,
) -> list[Decision]:
    try:
        service.row_quota.take(get_current_caller(), len(answers))
    except QuotaExceeded as error:
        return [service.withhold(make_interaction_id(), error, source) for _ in answers]
    if len(answers) > MAX_ANSWERS:
        excess = AbstainError(
            Code.TOO_LARGE, f"{len(answers):,} answers in one request, {MAX_ANSWERS} are allowed: ask for fewer"
        )
        return [await _record_failure(service, GateRequest(), excess, source, may_show=False)] * len(answers)
    try:
        fields = parser.parse(request)
        registered = (
            await service.gatherer.get_registered_call(fields.call_id) if fields.call_id and fields.question else None
        )
    except Exception as error:  # whatever it is, the gateway would show the answers
        return [await _record_failure(service, GateRequest(), error, source) for _ in answers]

    question = (registered.question if registered else None) or fields.question

    async def decide_answer(index: int, answer: str | AbstainError) -> Decision:
        if isinstance(answer, AbstainError):
            return await _record_failure(service, GateRequest(), answer, source)
        interaction_id = (
            (fields.call_id if index == 0 else f"{fields.call_id}#{index}") if use_call_id and fields.call_id else None
        )
        gate_request = GateRequest()
        try:
            gate_request = _validate(
                GateRequest,
                {**fields.__dict__, "question": question, "interaction_id": interaction_id, "answer": answer},
            )
            return (await service.decide(gate_request, source, timeout_s=timeout_s)).decision
        except Exception as error:
            return await _record_failure(service, gate_request, error, source)

    return list(await asyncio.gather(*(decide_answer(index, answer) for index, answer in enumerate(answers))))


async def _record_failure(
    service: GateService, gate_request: GateRequest, error: Exception, source: str, *, may_show: bool = True
) -> Decision:
    """Record an "unavailable" decision; an error that the caller cannot correct is only in the server's log."""
    generic_error = AbstainError(Code.NO_SERVICE, "the decision has failed: see the server's log")
    if not isinstance(error, AbstainError):
        _log.error("%s: a decision has failed", source, exc_info=error)
        error = generic_error
    try:
        return await service.record_failure(gate_request, error, source, may_show=may_show)
    except Exception:
        _log.exception("%s: a decision that has failed cannot be logged", source)
        return Decision.unavailable(make_interaction_id(), DecisionReason.from_error(generic_error))


def add_headers(body: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Add the request's headers, without the key, to its body at `headers`, for the paths.

    Args:
        body: Body that the gateway sent.
        request: The HTTP request.

    Returns:
        The extended body.
    """
    return {**body, "headers": {name: value for name, value in request.headers.items() if name != "authorization"}}


def to_valid_json(value: Any) -> Any:
    """Return a copy of `value` that can be sent.

    Half a surrogate pair, which is no character, becomes a question mark.
    """
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _to_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _parse_entitlement(value: Any) -> str:
    if text := extract_text(value):
        return text
    raise AbstainError(Code.INVALID_ROW, f"entitlements: a {type(value).__name__} is none: correct their path")


def _validate(schema: type[Any], values: Mapping[str, Any]) -> Any:
    try:
        return schema(**values)
    except ValidationError as error:
        raise AbstainError(Code.INVALID_ROW, f"{describe_first_problem(error)}: correct its path") from None
