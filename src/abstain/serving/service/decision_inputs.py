"""Inputs of a decision, gathered from a request: its texts, registered or retrieved contexts, and states."""

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
from abstain.serving.decision import Decision
from abstain.serving.engine_states import StatesDescription, StatesInput, parse_states, read_states
from abstain.serving.familiarity_check import RetrieveChunks
from abstain.serving.gate import NO_CONTEXT_REASON, UNKNOWN_MODEL, DecisionInput, Gate, ScoredAnswer, to_contexts
from abstain.serving.service.callers import get_current_caller
from abstain.serving.service.schemas import GateRequest, RequestMetadata
from abstain.serving.service.version_follower import LoadedVersion
from abstain.serving.state_files import read_and_delete

RequestT = TypeVar("RequestT", bound=RequestMetadata)
MAX_CHUNKS = 5
"""Number of chunks that are retrieved for a request without contexts."""
MAX_OPEN_FILES = 8
"""Number of states files that are read, or waited for, at the same time."""
REGISTERED_FIELDS = ("question", "user", "product")
"""Fields that a request takes from what was registered for its call, in addition to contexts."""


@dataclass(frozen=True)
class RawStates:
    """States that are the body of a request.

    Attributes:
        content: Bytes of a safetensors file.
        description: What the file does not contain itself.
    """

    content: bytes
    description: StatesDescription


@dataclass
class PendingRequest(Generic[RequestT]):
    """A request on the way to its decision. If its time is up, what is known about it by then is logged.

    Attributes:
        interaction_id: Id of its interaction.
        request: The request; with the fields that were registered for its call, after they were looked up.
        interaction: Its texts; None if it has none or they are not known yet.
        input_sha256: Digest of what was provided in addition to texts; None if nothing was.
        version: Version that decided; None if none did.
        scored: Its decision; None if there is none.
        end_try: Called with whether there is a decision; None if no tries are counted.
        started_at: When the request came, by `time.perf_counter`.
    """

    interaction_id: str
    request: RequestT
    interaction: Interaction | None = None
    input_sha256: str | None = None
    version: LoadedVersion | None = None
    scored: ScoredAnswer | None = None
    end_try: Callable[[bool], None] | None = None
    started_at: float = field(default_factory=time.perf_counter)


class InputGatherer:
    """Gathers what requests refer to.

    Args:
        log: Log with the registered calls.
        settings: Folder of states files, and limits.
        retrieve: Retrieves chunks; None if there is no index.
    """

    def __init__(self, log: DecisionLog, settings: ServeSettings, retrieve: RetrieveChunks | None) -> None:
        self._log, self._settings, self._retrieve = log, settings, retrieve
        self._files = ThreadPoolExecutor(MAX_OPEN_FILES, "states")  # of its own: a file that is not whole is waited for

    def close(self) -> None:
        """Stop waiting for files."""
        self._files.shutdown(wait=False, cancel_futures=True)

    def validate_texts(self, request: GateRequest, has_raw_states: bool = False) -> None:
        """Check that a request has the texts or states that a decision needs, as far as the request itself shows it.

        Args:
            request: The request.
            has_raw_states: Whether states are the body of the request.

        Raises:
            AbstainError: Question or answer is missing, or the texts are too long.
        """
        has_engine_data = has_raw_states or request.states is not None or request.response is not None
        has_question = request.question is not None or request.call_id is not None
        texts = (request.question, request.answer, request.contexts or None)
        if has_engine_data and all(text is None for text in texts):
            return
        if request.answer is None or not has_question:
            missing = "question" if not has_question else "answer"
            hint = "; of states without texts, leave all texts out" if has_engine_data else ", or states"
            raise AbstainError(Code.INVALID_ROW, f"{missing}: missing: give question, contexts and answer{hint}")
        self.check_text_length(count_characters(request.question, request.answer, to_contexts(request.contexts or ())))

    async def get_registered_call(self, call_id: str) -> RegisteredCall | None:
        """Return what the current caller has registered for a call.

        Args:
            call_id: Id of the call.

        Returns:
            The registered fields; None if there are none or they have expired.
        """
        return await asyncio.to_thread(self._log.get_call, get_current_caller(), call_id)

    async def gather_texts(self, pending: PendingRequest[GateRequest]) -> None:
        """Add the registered fields that the request lacks, and build the interaction.

        Args:
            pending: The request; its `request` and `interaction` are set.

        Raises:
            AbstainError: There is no question, or the texts are too long.
        """
        request = pending.request
        call = await self.get_registered_call(request.call_id) if request.call_id else None
        if call is not None:
            updates: dict[str, Any] = {
                name: getattr(request, name) or getattr(call, name) for name in REGISTERED_FIELDS
            }
            if request.contexts is None and not request.allow_no_context:
                updates["contexts"] = call.contexts or None
            request = pending.request = request.model_copy(update=updates)
        if request.answer is None:  # only states or log-probabilities were sent
            return
        contexts = await self._find_contexts(request)
        if request.question is None:
            raise AbstainError(
                Code.INVALID_ROW, "question: missing, and none was registered for this call: give it, or register again"
            )
        interaction = Interaction(
            interaction_id=pending.interaction_id,
            asked_at=datetime.now(UTC),
            question=request.question,
            answer=request.answer,
            contexts=contexts,
            model=request.model or UNKNOWN_MODEL,
            product=request.product,
            line_of_business=request.line_of_business,
            group=request.group,
            writer_scores=request.writer_scores,
            token_log_probs=request.token_log_probs,
        )
        self.check_text_length(count_characters(interaction.question, interaction.answer, interaction.contexts))
        pending.interaction = interaction

    async def _find_contexts(self, request: GateRequest) -> tuple[Context, ...]:
        if request.contexts is not None or request.allow_no_context:
            return to_contexts(request.contexts or ())
        if request.question and request.entitlements is not None and self._retrieve is not None:
            return tuple(await asyncio.to_thread(self._retrieve, request.question, request.entitlements, MAX_CHUNKS))
        return ()

    async def discard_states_file(self, states: StatesInput | None) -> None:
        """Delete the file that `states` name, if any, because nothing will read it."""
        if states is not None and states.path is not None:
            max_bytes, folder = self._settings.states_limit, self._settings.states_folder
            with suppress(AbstainError):
                await asyncio.get_running_loop().run_in_executor(
                    self._files, read_and_delete, states.path, folder, max_bytes
                )

    async def build_decision_input(
        self, pending: PendingRequest[GateRequest], gate: Gate, raw_states: RawStates | None
    ) -> DecisionInput:
        """Check what the caller provided, and build the input of the decision.

        States and log-probabilities are read outside of the event loop's thread.

        Args:
            pending: The request with its texts; its `input_sha256` is set.
            gate: Gate of the live version.
            raw_states: States that are the body of the request.

        Returns:
            The input of the decision.

        Raises:
            AbstainError: States or log-probabilities are rejected.
        """
        request, interaction = pending.request, pending.interaction

        def read_inputs() -> tuple[DecisionInput, str | None]:
            states = log_probs = None
            tokens = gate.encode(interaction) if interaction and (raw_states or request.states) else None
            if raw_states is not None:
                states = parse_states(raw_states.content, raw_states.description, gate.spec, tokens)
            elif request.states is not None:
                folder, max_bytes = self._settings.states_folder, self._settings.states_limit
                states = read_states(request.states, gate.spec, folder, max_bytes, tokens)
            if request.response is not None:
                log_probs = gate.parse_log_probs(request.response, interaction)
            return DecisionInput(
                pending.interaction_id, interaction, request.allow_no_context, states, log_probs
            ), _hash_inputs(states, request)

        if request.states is not None and request.states.path:
            result = await asyncio.get_running_loop().run_in_executor(self._files, read_inputs)
        elif raw_states is not None or request.states is not None or request.response is not None:
            result = await asyncio.to_thread(read_inputs)
        else:
            result = read_inputs()
        decision_input, pending.input_sha256 = result
        return decision_input

    def explain_missing_context(self, pending: PendingRequest[GateRequest], decision: Decision) -> Decision:
        """Add to the reason why there is no context although the request said where to find some.

        Args:
            pending: The request.
            decision: Its decision.

        Returns:
            The decision with the extended reason; unchanged if no context is missing.
        """
        request, interaction, version = pending.request, pending.interaction, pending.version
        if interaction is None or version is None:
            return decision
        if not version.gate.is_context_missing(interaction, request.allow_no_context):
            return decision
        reason = decision.reason or NO_CONTEXT_REASON
        messages = [reason.message]
        if request.call_id is not None:
            messages.append("nothing is registered for this call_id, or no more")
        if request.entitlements is not None and self._retrieve is None:
            messages.append("entitlements need a server that was started with --retrieve")
        return replace(decision, reason=replace(reason, message="; ".join(messages)))

    def check_text_length(self, n_characters: int) -> None:
        """Raise `AbstainError` if the texts of one request have more characters than allowed."""
        if n_characters > self._settings.text_limit:
            raise AbstainError(
                Code.TOO_LARGE,
                f"the texts have {n_characters:,} characters, {self._settings.text_limit:,} are allowed: send less",
            )


def count_characters(question: str | None, answer: str | None, contexts: Sequence[Context]) -> int:
    """Count the characters of an answer's texts.

    Args:
        question: The question, if any.
        answer: The answer, if any.
        contexts: Contexts; their ids count, too.

    Returns:
        The number of characters.
    """
    context_characters = sum(len(context.text) + len(context.chunk_id) for context in contexts)
    return len(question or "") + len(answer or "") + context_characters


def _hash_inputs(states: Tensor | None, request: GateRequest) -> str | None:
    """Return the SHA-256 (hex) of what was provided in addition to texts; None if nothing was."""
    if states is None and request.response is None:
        return None
    states_bytes = b"" if states is None else states.numpy().tobytes()
    response_bytes = json.dumps(request.response, sort_keys=True).encode()
    return hashlib.sha256(states_bytes + response_bytes).hexdigest()
