"""What a decision rests on, gathered from a request: its texts, what was registered or retrieved, and states."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from abstain.config.serve_settings import ServeSettings
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log.calls import CallContent
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api.schemas import GateRequest
from abstain.serving.engine_states import StatesDescribed, read_states, states_in
from abstain.serving.gate import UNKNOWN_WRITER, AskedAnswer, Gate, as_contexts
from abstain.serving.predictor import Decision
from abstain.serving.state_files import take_file

Retrieve = Callable[[str, Sequence[str], int], Sequence[Context]]
"""The chunks nearest to a question that a user with these entitlements may read, at most so many, best first."""
REGISTERED = ("question", "user", "product")
"""What a request takes from what was registered for its call, beside contexts."""


@dataclass(frozen=True)
class RawStates:
    """States that came as the body of a request: a safetensors file, and what it does not say itself."""

    content: bytes
    described: StatesDescribed


class Gatherer:
    """Gathers what requests name: calls registered in `log`, files and limits of `settings`, chunks by `retrieve`."""

    def __init__(self, log: DecisionLog, settings: ServeSettings, retrieve: Retrieve | None) -> None:
        self._log, self._settings, self._retrieve = log, settings, retrieve

    def require_texts(self, asked: GateRequest, has_body: bool = False) -> None:
        """Raise `AbstainError` for a request that cannot be decided about, as far as it says so itself."""
        of_engine = has_body or asked.states is not None or asked.response is not None
        has_question = asked.question is not None or asked.call_id is not None
        texts = (asked.question, asked.answer, asked.contexts or None)
        if of_engine and all(text is None for text in texts):
            return
        if asked.answer is None or not has_question:
            absent = "question" if not has_question else "answer"
            rest = "; of states without texts, leave all texts out" if of_engine else ", or states"
            raise AbstainError(Code.INVALID_ROW, f"{absent}: missing: give question, contexts and answer{rest}")
        self.limit(asked.question or "", asked.answer, as_contexts(asked.contexts or ()))

    async def registered(self, call_id: str) -> CallContent | None:
        """What was registered for a call and is not forgotten yet; None where nothing is."""
        return await asyncio.to_thread(self._log.recall, call_id)

    async def _question_and_contexts(self, asked: GateRequest) -> tuple[str | None, tuple[Context, ...]]:
        if asked.contexts is not None or asked.no_context:
            return asked.question, as_contexts(asked.contexts or ())
        if asked.question and asked.entitlements is not None and self._retrieve is not None:
            wanted, k = asked.entitlements, self._settings.retrieve_k
            return asked.question, tuple(await asyncio.to_thread(self._retrieve, asked.question, wanted, k))
        return asked.question, ()

    async def with_registered(self, asked: GateRequest) -> GateRequest:
        """`asked`, and what was registered for its call, where it does not say so itself."""
        known = await self.registered(asked.call_id) if asked.call_id else None
        if known is None:
            return asked
        more: dict[str, Any] = {name: getattr(asked, name) or getattr(known, name) for name in REGISTERED}
        if asked.contexts is None and not asked.no_context:
            more["contexts"] = known.contexts or None
        return asked.model_copy(update=more)

    async def row(self, key: str, asked: GateRequest) -> Interaction | None:
        """The texts of a request; None where it has states or log-probabilities alone."""
        if asked.answer is None:
            return None
        question, contexts = await self._question_and_contexts(asked)
        if question is None:
            raise AbstainError(
                Code.INVALID_ROW, "question: missing, and none was registered for this call: give it, or register again"
            )
        row = Interaction(
            interaction_id=key,
            asked_at=datetime.now(UTC),
            question=question,
            answer=asked.answer,
            contexts=contexts,
            model=asked.model or UNKNOWN_WRITER,
            product=asked.product,
            line_of_business=asked.line_of_business,
            group=asked.group,
            writer=asked.writer,
            token_log_probs=asked.token_log_probs,
        )
        self.limit(row.question, row.answer, row.contexts)
        return row

    async def discard(self, asked: GateRequest) -> None:
        """Delete the file of states that `asked` names, since nothing will read it."""
        if asked.states is not None and asked.states.path is not None:
            most, folder = self._settings.states_limit, self._settings.states_folder
            with suppress(AbstainError):
                await asyncio.to_thread(take_file, asked.states.path, folder, most)

    async def checked(
        self, gate: Gate, key: str, row: Interaction | None, asked: GateRequest, body: RawStates | None
    ) -> AskedAnswer:
        """What was given, checked. A file, and texts to compare with, are read beside the event loop."""

        def read() -> AskedAnswer:
            states = log_probs = None
            tokens = gate.tokens(row) if row and (body or asked.states) else None
            if body is not None:
                states = states_in(body.content, body.described, gate.spec, tokens)
            elif asked.states is not None:
                folder, most = self._settings.states_folder, self._settings.states_limit
                states = read_states(asked.states, gate.spec, folder, most, tokens)
            if asked.response is not None:
                log_probs = gate.log_probs(asked.response, row)
            return AskedAnswer(key, row, asked.no_context, states, log_probs)

        waits = row is not None and (body or asked.states or asked.response)
        return await asyncio.to_thread(read) if waits or (asked.states and asked.states.path) else read()

    def told_why(self, decision: Decision, asked: GateRequest, row: Interaction | None) -> Decision:
        """`decision`, whose reason says why there is no context although the request named where to find some."""
        if row is None or row.contexts or asked.no_context or decision.reason is None:
            return decision
        why = []
        if asked.call_id is not None:
            why.append("nothing is registered for this call_id, or no more")
        if asked.entitlements is not None and self._retrieve is None:
            why.append("entitlements need a server that was started with --retrieve")
        return replace(decision, reason="; ".join([decision.reason, *why]))

    def limit(self, question: str, answer: str, contexts: Sequence[Context]) -> None:
        """Raise `AbstainError` where the texts of one answer are longer than they may be."""
        length = len(question) + len(answer) + sum(len(one.text) + len(one.chunk_id) for one in contexts)
        if length > self._settings.text_limit:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the texts have {length:,} characters, {self._settings.text_limit:,} are allowed: retrieve less",
            )


def digest_of(about: AskedAnswer, asked: GateRequest) -> str | None:
    """The SHA-256 (hex) of what was given beside texts; None where nothing was."""
    if about.states is None and asked.response is None:
        return None
    states = b"" if about.states is None else about.states.numpy().tobytes()
    response = json.dumps(asked.response, sort_keys=True).encode()
    return hashlib.sha256(states + response).hexdigest()
