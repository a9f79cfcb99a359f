"""The gate as an assistant calls it: over HTTP, or in process.

Without a decision the answer is "unavailable". This module does not import the base model, so that it costs a chain or
a rail nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import httpx
from pydantic import TypeAdapter, ValidationError

from abstain.config.serve_settings import OnUnavailable
from abstain.core.codes import Code
from abstain.serving.decision import Decision, DecisionReason, make_no_decision

_DECISION = TypeAdapter(Decision)


class GateLike(Protocol):
    """`HttpGate`, or `Gate` in process."""

    @property
    def on_unavailable(self) -> OnUnavailable: ...
    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision: ...


class HttpGate:
    """A gate server.

    If an answer comes without contexts, the server retrieves them under `entitlements`. `on_unavailable` applies only
    if the server cannot be reached; if it could not decide, the server's own setting applies. A request that cannot be
    sent or that the server rejects is withheld in any case, since the asker could cause that.

    Args:
        url: Address of the server.
        key: API key.
        on_unavailable: What happens to an answer if the server cannot be reached: "abstain" or "show".
        timeout_s: Time limit of a request in seconds.
        transport: HTTP transport, for tests.
        **extra_fields: Fields of every request (`user`, `product`, `entitlements`, ...).
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        on_unavailable: OnUnavailable = "abstain",
        timeout_s: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        **extra_fields: Any,
    ) -> None:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self.on_unavailable, self._extra_fields = on_unavailable, extra_fields

    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision:
        """Ask the server to decide about one answer.

        Args:
            question: The user's question.
            contexts: Retrieved chunks, best first.
            answer: The answer.

        Returns:
            The decision; "unavailable" if the server gave none.
        """
        try:
            texts = {"question": question, "answer": answer, **({"contexts": list(contexts)} if contexts else {})}
            # half a surrogate pair, which is no character, becomes a question mark
            content = json.dumps({**self._extra_fields, **texts}, ensure_ascii=False).encode(errors="replace")
        except (TypeError, ValueError) as error:
            reason = DecisionReason(Code.INVALID_ROW, f"the request cannot be sent ({error}): give texts")
            return make_no_decision("", reason)
        try:
            response = self._client.post("/v1/gate", content=content)
            if response.is_client_error:  # the server is there and rejects it: nothing that may be shown unseen
                return make_no_decision("", _get_rejection_reason(response))
            response.raise_for_status()
            return _DECISION.validate_json(response.content, strict=True)
        except (httpx.HTTPError, ValidationError) as error:
            cause = _describe_invalid_field(error) if isinstance(error, ValidationError) else error
            reason = DecisionReason(Code.NO_SERVICE, f"the gate server gave no decision ({cause})")
            return make_unavailable_decision(self, reason)


def decide_if_complete(gate: GateLike, question: str | None, contexts: Sequence[str], answer: str | None) -> Decision:
    """Decide about an answer if question and answer are there.

    Args:
        gate: The gate.
        question: The question; None if none was found.
        contexts: Retrieved chunks, best first.
        answer: The answer; None if none was found.

    Returns:
        The decision; "unavailable" if a text is missing or is no text.
    """
    for name, text in (("question", question), ("answer", answer)):
        if not isinstance(text, str | None):
            message = f"{name}: a {type(text).__name__} is no text: give a str"
            return make_no_decision("", DecisionReason(Code.INVALID_ROW, message))
    if not (question and question.strip()) or not (answer and answer.strip()):
        missing = "answer" if question and question.strip() else "question"
        return make_unavailable_decision(gate, DecisionReason(Code.INVALID_ROW, f"{missing}: none was found"))
    return gate.decide(question, contexts, answer)


def _describe_invalid_field(error: ValidationError) -> str:
    first = error.errors(include_input=False)[0]
    return ": ".join([*map(str, first["loc"]), first["msg"]])


def _get_rejection_reason(response: httpx.Response) -> DecisionReason:
    """Return why the server rejected a request, in its own words."""
    try:
        problem = response.json()
        return DecisionReason(Code(problem["code"]), str(problem["detail"]))
    except (ValueError, TypeError, KeyError):
        message = f"the gate server rejected the request with status {response.status_code}"
        return DecisionReason(Code.NO_SERVICE, message)


def make_unavailable_decision(gate: GateLike, reason: DecisionReason) -> Decision:
    """Return an "unavailable" decision.

    Args:
        gate: The gate, whose `on_unavailable` applies.
        reason: Why there is no decision.

    Returns:
        The decision.
    """
    return make_no_decision("", reason, show=gate.on_unavailable == "show")
