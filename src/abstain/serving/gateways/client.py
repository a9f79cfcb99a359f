"""The gate as an assistant calls it: over HTTP, or in process.

Without a decision the answer is "unavailable". This module does not import the base model, so that it costs a chain or
a rail nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from pydantic import TypeAdapter, ValidationError

from abstain.config.serve_settings import OnUnavailable
from abstain.core.codes import Code
from abstain.core.errors import describe_first_problem
from abstain.core.message_text import extract_text
from abstain.serving.decision import Decision, DecisionReason

_DECISION = TypeAdapter(Decision)


class GateLike(Protocol):
    """`HttpGate`, or `Gate` in process."""

    @property
    def on_unavailable(self) -> OnUnavailable: ...
    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision: ...


class HttpGate:
    """Client of a gate server: `Gate` over HTTP, without torch.

    If an answer comes without contexts, the server retrieves them under `entitlements`. `on_unavailable` applies only
    if the server cannot be reached; if it could not decide, the server's own setting applies. A request that cannot be
    encoded or that the server rejects (4xx) is withheld whatever `on_unavailable` says: otherwise a user could have an
    answer shown by breaking its request.

    Can be shared between threads. Close it, or use it in a `with` block.

    Args:
        url: Address of the server.
        api_key: API key.
        on_unavailable: What happens to an answer if the server cannot be reached: "abstain" or "show".
        timeout_s: Time limit of a request in seconds.
        transport: HTTP transport, for tests.
        **extra_fields: Fields of every request (`user`, `product`, `entitlements`, ...).

    Examples:
        >>> with HttpGate("http://127.0.0.1:9", api_key="abstain_...") as gate:  # there is no server
        ...     decision = gate.decide("How much is the fee?", ["The fee is 45 euros."], "45 euros")
        >>> decision.decision, decision.show
        ('unavailable', False)
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        on_unavailable: OnUnavailable = "abstain",
        timeout_s: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        **extra_fields: Any,
    ) -> None:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self.on_unavailable, self._extra_fields = on_unavailable, extra_fields

    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision:
        """Ask the server to decide about one answer.

        Args:
            question: The user's question.
            contexts: Retrieved chunks, best first.
            answer: The answer.

        Returns:
            The decision; "unavailable" if the server gave none. Never raises for a failed request; `reason` says what
            happened.
        """
        try:
            content = self._encode_request(question, contexts, answer)
        except (TypeError, ValueError) as error:
            reason = DecisionReason(Code.INVALID_ROW, f"the request cannot be sent ({error}): give texts")
            return Decision.unavailable("", reason)
        try:
            response = self._client.post("/v1/gate", content=content)
            if response.is_client_error:  # rejected, not unreachable: `on_unavailable` does not apply
                return Decision.unavailable("", _get_rejection_reason(response))
            return _DECISION.validate_json(response.raise_for_status().content, strict=True)
        except (httpx.HTTPError, ValidationError) as error:
            cause = describe_first_problem(error) if isinstance(error, ValidationError) else error
            reason = DecisionReason(Code.NO_SERVICE, f"the gate server gave no decision ({cause})")
            return make_unavailable_decision(self, reason)

    def close(self) -> None:
        """Close the connections to the server."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _encode_request(self, question: str, contexts: Sequence[str], answer: str) -> bytes:
        texts = {"question": question, "answer": answer, **({"contexts": list(contexts)} if contexts else {})}
        # half a surrogate pair, which is no character, becomes a question mark
        return json.dumps({**self._extra_fields, **texts}, ensure_ascii=False).encode(errors="replace")


def decide_if_complete(gate: GateLike, question: Any, contexts: Sequence[Any], answer: Any) -> Decision:
    """Decide about an answer if question, answer and every context have a text, in any form (`extract_text`).

    Args:
        gate: The gate.
        question: The question; None if none was found.
        contexts: Retrieved chunks, best first.
        answer: The answer; None if none was found.

    Returns:
        The decision; "unavailable" if a text is missing.
    """
    values = {"question": question, "answer": answer}
    chunks = contexts if isinstance(contexts, list | tuple) else [contexts]
    values |= {f"context {number}": chunk for number, chunk in enumerate(chunks, start=1)}
    texts: list[str] = []
    for name, value in values.items():
        text = extract_text(value, "assistant" if name == "answer" else "user")
        if text is not None:
            texts.append(text)
        elif name in ("question", "answer") and isinstance(value, str | None):
            return make_unavailable_decision(gate, DecisionReason(Code.INVALID_ROW, f"{name}: none was found"))
        else:  # whoever sends it must not have the answer shown by it
            message = f"{name}: no text was found in its {type(value).__name__}"
            return Decision.unavailable("", DecisionReason(Code.INVALID_ROW, message))
    question_text, answer_text, *context_texts = texts
    return gate.decide(question_text, context_texts, answer_text)


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
    return Decision.unavailable("", reason, show=gate.on_unavailable == "show")
