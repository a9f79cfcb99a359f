"""What a decision rests on, gathered from a request: its texts, what was registered or retrieved, and states."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from torch import Tensor

from abstain.config.serve_settings import ServeSettings
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api.callers import current_caller
from abstain.serving.api.schemas import GateRequest, RequestMetadata
from abstain.serving.api.version_follower import LoadedVersion
from abstain.serving.decision import Decision
from abstain.serving.engine_states import StatesDescription, StatesInput, parse_states, read_states
from abstain.serving.gate import UNKNOWN_MODEL, DecisionInput, Gate, ScoredAnswer, to_contexts
from abstain.serving.state_files import read_and_delete

Asked = TypeVar("Asked", bound=RequestMetadata)
RetrieveChunks = Callable[[str, Sequence[str], int], Sequence[Context]]
"""The chunks nearest to a question that a user with these entitlements may read, at most so many, best first."""
CHUNKS = 5
"""How many are retrieved for a request without any."""
FILES = 8
"""Files of states that are read, or waited for, at once."""
REGISTERED_FIELDS = ("question", "user", "product")
"""What a request takes from what was registered for its call, beside contexts."""


@dataclass(frozen=True)
class RawStates:
    """States that came as the body of a request: a safetensors file, and what it does not say itself."""

    content: bytes
    described: StatesDescription


@dataclass
class PendingRequest(Generic[Asked]):
    """A request on the way to its decision. What is known of it when its time is up is logged.

    Attributes:
        key: the id of its interaction.
        request: with what was registered for its call, once that was looked up.
        row: its texts; None where there are none, or where they are not known yet.
        given_sha256: of what was given beside texts; None where nothing was.
        live, scored: by what it was decided; None where it was not.
        end_try: what is told whether there is a decision; None where nothing counts it.
        started_at: when it came, by `time.perf_counter`.
    """

    key: str
    request: Asked
    row: Interaction | None = None
    given_sha256: str | None = None
    live: LoadedVersion | None = None
    scored: ScoredAnswer | None = None
    end_try: Callable[[bool], None] | None = None
    started_at: float = field(default_factory=time.perf_counter)


class InputGatherer:
    """Gathers what requests name: calls registered in `log`, files and limits of `settings`, chunks by `retrieve`."""

    def __init__(self, log: DecisionLog, settings: ServeSettings, retrieve: RetrieveChunks | None) -> None:
        self._log, self._settings, self._retrieve = log, settings, retrieve
        self._files = ThreadPoolExecutor(FILES, "states")  # of its own: a file that is not whole is waited for

    def close(self) -> None:
        """Leave the files that are waited for."""
        self._files.shutdown(wait=False, cancel_futures=True)

    def validate_texts(self, request: GateRequest, has_body: bool = False) -> None:
        """Raise `AbstainError` for a request that cannot be decided about, as far as it says so itself."""
        of_engine = has_body or request.states is not None or request.response is not None
        has_question = request.question is not None or request.call_id is not None
        texts = (request.question, request.answer, request.contexts or None)
        if of_engine and all(text is None for text in texts):
            return
        if request.answer is None or not has_question:
            absent = "question" if not has_question else "answer"
            rest = "; of states without texts, leave all texts out" if of_engine else ", or states"
            raise AbstainError(Code.INVALID_ROW, f"{absent}: missing: give question, contexts and answer{rest}")
        self.check_text_length(length_of(request.question, request.answer, to_contexts(request.contexts or ())))

    async def get_registered_call(self, call_id: str) -> RegisteredCall | None:
        """What this caller has registered for a call, and is not forgotten yet; None where nothing is."""
        return await asyncio.to_thread(self._log.get_call, current_caller(), call_id)

    async def gather_texts(self, pending: PendingRequest[GateRequest]) -> None:
        """Add what was registered for the call, where the request does not say so itself, and the texts as a row.

        Raises `AbstainError` where there is no question, and for texts that are too long.
        """
        request = pending.request
        content = await self.get_registered_call(request.call_id) if request.call_id else None
        if content is not None:
            more: dict[str, Any] = {
                name: getattr(request, name) or getattr(content, name) for name in REGISTERED_FIELDS
            }
            if request.contexts is None and not request.no_context:
                more["contexts"] = content.contexts or None
            request = pending.request = request.model_copy(update=more)
        if request.answer is None:  # there are states or log-probabilities alone
            return
        contexts = await self._contexts(request)
        if request.question is None:
            raise AbstainError(
                Code.INVALID_ROW, "question: missing, and none was registered for this call: give it, or register again"
            )
        row = Interaction(
            interaction_id=pending.key,
            asked_at=datetime.now(UTC),
            question=request.question,
            answer=request.answer,
            contexts=contexts,
            model=request.model or UNKNOWN_MODEL,
            product=request.product,
            line_of_business=request.line_of_business,
            group=request.group,
            writer=request.writer,
            token_log_probs=request.token_log_probs,
        )
        self.check_text_length(length_of(row.question, row.answer, row.contexts))
        pending.row = row

    async def _contexts(self, request: GateRequest) -> tuple[Context, ...]:
        if request.contexts is not None or request.no_context:
            return to_contexts(request.contexts or ())
        if request.question and request.entitlements is not None and self._retrieve is not None:
            return tuple(await asyncio.to_thread(self._retrieve, request.question, request.entitlements, CHUNKS))
        return ()

    async def discard_states_file(self, states: StatesInput | None) -> None:
        """Delete the file that `states` name, if any, since nothing will read it."""
        if states is not None and states.path is not None:
            most, folder = self._settings.states_limit, self._settings.states_folder
            with suppress(AbstainError):
                await asyncio.get_running_loop().run_in_executor(
                    self._files, read_and_delete, states.path, folder, most
                )

    async def gather_given(
        self, pending: PendingRequest[GateRequest], gate: Gate, body: RawStates | None
    ) -> DecisionInput:
        """What the decision rests on, checked. What is given beside texts is read beside the event loop."""
        request, row = pending.request, pending.row

        def read() -> tuple[DecisionInput, str | None]:
            states = log_probs = None
            tokens = gate.encode(row) if row and (body or request.states) else None
            if body is not None:
                states = parse_states(body.content, body.described, gate.spec, tokens)
            elif request.states is not None:
                folder, most = self._settings.states_folder, self._settings.states_limit
                states = read_states(request.states, gate.spec, folder, most, tokens)
            if request.response is not None:
                log_probs = gate.parse_log_probs(request.response, row)
            return DecisionInput(pending.key, row, request.no_context, states, log_probs), _digest(states, request)

        if request.states is not None and request.states.path:
            found = await asyncio.get_running_loop().run_in_executor(self._files, read)
        elif body is not None or request.states is not None or request.response is not None:
            found = await asyncio.to_thread(read)
        else:
            found = read()
        decision_input, pending.given_sha256 = found
        return decision_input

    def explain_lack_of_context(self, pending: PendingRequest[GateRequest], decision: Decision) -> Decision:
        """`decision`, whose reason says why there is no context although the request named where to find some."""
        request, row, live = pending.request, pending.row, pending.live
        if row is None or live is None or not live.gate.is_context_missing(row, request.no_context):
            return decision
        reasons = [decision.reason] if decision.reason else []
        if request.call_id is not None:
            reasons.append("nothing is registered for this call_id, or no more")
        if request.entitlements is not None and self._retrieve is None:
            reasons.append("entitlements need a server that was started with --retrieve")
        return replace(decision, reason="; ".join(reasons))

    def check_text_length(self, characters: int) -> None:
        """Raise `AbstainError` for more than the texts of one request may have."""
        if characters > self._settings.text_limit:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the texts have {characters:,} characters, {self._settings.text_limit:,} are allowed: send less",
            )


def length_of(question: str | None, answer: str | None, contexts: Sequence[Context]) -> int:
    """The characters of texts that belong together."""
    named = sum(len(context.text) + len(context.chunk_id) for context in contexts)
    return len(question or "") + len(answer or "") + named


def _digest(states: Tensor | None, request: GateRequest) -> str | None:
    """The SHA-256 (hex) of what was given beside texts; None where nothing was."""
    if states is None and request.response is None:
        return None
    content = b"" if states is None else states.numpy().tobytes()
    response = json.dumps(request.response, sort_keys=True).encode()
    return hashlib.sha256(content + response).hexdigest()
