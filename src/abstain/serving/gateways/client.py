"""The gate as an assistant asks it: over HTTP, or in process. What keeps it from a decision is `make_unavailable_decision`.

This module imports nothing of the base model, so that it costs a chain or a rail nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import httpx

from abstain.config.serve_settings import OnUnavailable
from abstain.core.codes import Code
from abstain.serving.decision import Decision, no_decision


class GateLike(Protocol):
    """`HttpGate`, or `Gate` in process."""

    @property
    def on_unavailable(self) -> OnUnavailable: ...
    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision: ...


class HttpGate:
    """A gate server at `url`. Each of `extra_fields` (`user`, `product`, `entitlements`, ...) goes with every request.

    Contexts are retrieved under `entitlements` where an answer comes without any. `on_unavailable`: what is done where
    the server cannot be asked; what is done where it could not decide is set on the server. What cannot be sent, or is
    refused, is withheld in any case, since who asks could bring that about.
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
        self.on_unavailable, self._more = on_unavailable, extra_fields

    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision:
        """The server's decision about one answer."""
        try:
            texts = {"question": question, "answer": answer, **({"contexts": list(contexts)} if contexts else {})}
            # half a surrogate pair, which is no character, becomes a question mark
            content = json.dumps({**self._more, **texts}, ensure_ascii=False).encode(errors="replace")
        except (TypeError, ValueError) as error:
            return no_decision("", f"{Code.INVALID_ROW}: the request cannot be sent ({error}): give texts")
        try:
            sent = self._client.post("/v1/gate", content=content)
            if sent.is_client_error:  # the server is there and refuses: nothing that may be shown unseen
                return no_decision("", _get_rejection_reason(sent))
            sent.raise_for_status()
            found = sent.json()
            decision = Decision(**{each.name: found[each.name] for each in fields(Decision)})
            return replace(decision, show=decision.show is True, signals=tuple(decision.signals))
        except (httpx.HTTPError, ValueError, TypeError, KeyError) as error:
            return make_unavailable_decision(self, f"{Code.NO_SERVICE}: the gate server gave no decision ({error})")


def decide_if_complete(gate: GateLike, question: str | None, contexts: Sequence[str], answer: str | None) -> Decision:
    """The decision about an answer: `make_unavailable_decision` where no question, or no answer, was found, or it is no text."""
    for name, text in (("question", question), ("answer", answer)):
        if not isinstance(text, str | None):
            return no_decision("", f"{Code.INVALID_ROW}: {name}: a {type(text).__name__} is no text: give a str")
    if not (question and question.strip()) or not (answer and answer.strip()):
        absent = "answer" if question and question.strip() else "question"
        return make_unavailable_decision(gate, f"{Code.INVALID_ROW}: {absent}: none was found")
    return gate.decide(question, contexts, answer)


def _get_rejection_reason(sent: httpx.Response) -> str:
    """Why the server refused a request, as it says so itself."""
    try:
        problem = sent.json()
        return f"{problem['code']}: {problem['detail']}"
    except (ValueError, TypeError, KeyError):
        return f"{Code.NO_SERVICE}: the gate server refused the request with status {sent.status_code}"


def make_unavailable_decision(gate: GateLike, reason: str) -> Decision:
    """No decision, for `reason`."""
    return no_decision("", reason, show=gate.on_unavailable == "show")
