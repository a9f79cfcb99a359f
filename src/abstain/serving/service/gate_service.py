"""The gate as a service, independent of HTTP: it decides, logs and counts for the API's routes and the gateways.

A decision is acknowledged once it is in the log. If the log cannot take it, the caller gets an error instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from opentelemetry.context import Context as TraceContext

from abstain.config.serve_settings import ServeSettings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.explanation import Explanation
from abstain.serving.familiarity_check import RetrieveChunks
from abstain.serving.gate import DecisionInput, Gate, ScoredAnswer, UnreadAnswer, make_interaction_id, to_contexts
from abstain.serving.generate import explain_no_room, generate_answers
from abstain.serving.service.batching import Batcher
from abstain.serving.service.callers import Quota, get_current_caller
from abstain.serving.service.decision_inputs import (
    InputGatherer,
    PendingRequest,
    RawStates,
    count_characters,
)
from abstain.serving.service.feedback import FeedbackRecorder
from abstain.serving.service.metrics import Metrics
from abstain.serving.service.recording import RecordedDecision, Recorder
from abstain.serving.service.redactions import Redactions
from abstain.serving.service.schemas import AnswerRequest, GateRequest
from abstain.serving.service.shadow import ShadowGate
from abstain.serving.service.tries import Tries
from abstain.serving.service.version_follower import LoadedVersion, VersionFollower
from abstain.serving.service.waiting import CallerLeft, WaitForDisconnect, cancel_on_disconnect, run_with_timeout

MakeDecision = Callable[[LoadedVersion | None], Awaitable[Decision | None]]
"""Makes the decision by the live version; None if there is none or it lacks the input."""
OnText = Callable[[str], None]
"""Called with the answer so far while it is written."""
CALLER_ERROR_CODES = frozenset(
    {
        *(Code.BUSY, Code.TOO_LONG, Code.TOO_LARGE, Code.INVALID_ROW, Code.WRONG_FORMAT, Code.STATES_MISMATCH),
        *(Code.NOT_FINITE, Code.NOT_READABLE, Code.NO_ACCESS, Code.ID_IN_USE, Code.TOO_MANY_TRIES),
    }
)
"""Errors that a caller can correct are raised; any other makes the decision `unavailable`."""
MIN_REDACTION_S = 0.25
"""Minimum time for redacting the texts of a decision that used up its time limit."""
T = TypeVar("T")
_log = logging.getLogger("abstain.serve")


class GateService:
    """Decides by the live version, and logs and counts the decisions.

    Args:
        follower: Follows the production version.
        log: The decision log.
        settings: Settings of the server.
        retrieve: Retrieves chunks; None if there is no index.
        shadow_follower: Follows the shadowed candidate; None without a shadow.

    Attributes:
        metrics: Metrics of the server.
        gatherer: Gathers the inputs of decisions.
        feedback: Records thumbs, reviews and contexts.
        row_quota: Number of log rows that one caller may write; whoever writes rows takes from it first.
        shadow: The shadow gate; None without a shadow.
    """

    def __init__(
        self,
        follower: VersionFollower,
        log: DecisionLog,
        settings: ServeSettings,
        retrieve: RetrieveChunks | None = None,
        shadow_follower: VersionFollower | None = None,
    ) -> None:
        self.follower, self.log, self.settings = follower, log, settings
        self.metrics = Metrics()
        self.gatherer = InputGatherer(log, settings, retrieve)
        self.row_quota = Quota(settings.caller.rows_per_minute, "rows of the decision log")
        self._tries = Tries(settings.caller.max_tries)
        self._redactions = Redactions(self.row_quota)
        self._recorder = Recorder(log, self.metrics, self._redactions)
        self._batcher = Batcher(settings.batch_size, settings.max_queued, settings.caller.max_queued)
        shadow_batcher = self._batcher if settings.shadow == "full" else None
        self.shadow = (
            None if shadow_follower is None else ShadowGate(shadow_follower, log, self.metrics, shadow_batcher)
        )
        self.feedback = FeedbackRecorder(log, self.metrics, self.gatherer, self._redactions, settings.timeout_s)
        self._tasks: set[asyncio.Task[Any]] = set()

    def start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that is finished even if nobody waits for it any more.

        Args:
            work: The coroutine.

        Returns:
            The task.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AbstainError):  # the caller got an AbstainError already
            _log.error("an answer has failed", exc_info=error)

    async def close(self) -> None:
        """Finish what is running, then close the log."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.shadow is not None:
            await self.shadow.close()
        await self._batcher.close()
        self.gatherer.close()
        self._redactions.close()
        await asyncio.to_thread(self.log.close)

    async def decide(
        self,
        request: GateRequest,
        source: str = "api",
        trace: TraceContext | None = None,
        raw_states: RawStates | None = None,
        timeout_s: float | None = None,
    ) -> RecordedDecision:
        """Decide about one answer and log the decision.

        Args:
            request: Parsed request.
            source: "api" or the gateway's name, for the log.
            trace: Trace context of the request.
            raw_states: Hidden states that were sent as the request body.
            timeout_s: Time limit in seconds; the configured limit if that is lower.

        Returns:
            The decision, the seconds that logging took, and whether it repeats an earlier decision.

        Raises:
            AbstainError: Texts are missing or too long, states are rejected, the queue is full, the id was used for
                another answer, or the log cannot be written.
        """
        pending = PendingRequest(request.interaction_id or make_interaction_id(), request)
        self.gatherer.validate_texts(request, has_raw_states=raw_states is not None)

        async def gather_and_score(version: LoadedVersion | None) -> Decision | None:
            decision_input = await self._gather_input(pending, version, raw_states)
            if version is None or decision_input is None:
                return None
            pending.version, pending.scored = version, await self._score(version, decision_input)
            decision = self.gatherer.explain_missing_context(pending, pending.scored.decision)
            if pending.interaction is None:
                return decision
            return version.gate.apply_answer_rules(
                decision, pending.interaction.model_copy(update={"answer": request.answer})
            )

        time_limit_s = min(timeout_s or self.settings.timeout_s, self.settings.timeout_s)
        return await self._decide_and_record(pending, gather_and_score, source, trace, time_limit_s)

    def check_capacity(self, requests: Sequence[GateRequest]) -> None:
        """Check that all requests of a batch fit into the queue of the base model; those with states need no room.

        Otherwise some of them would be decided about and logged although the caller gets an error.

        Args:
            requests: The requests of one batch.

        Raises:
            AbstainError: There is not enough room.
        """
        version = self.follower.current
        if version is None or len(requests) < 2 or not version.gate.predictor.scorer.needs_model:
            return
        n_unread = sum(request.answer is not None and request.states is None for request in requests)
        self._batcher.check_capacity(get_current_caller(), n_unread)

    def check_queue(self, caller: str) -> None:
        """Check that one more request of a caller may wait for the base model.

        Args:
            caller: Name of the caller.

        Raises:
            AbstainError: Too many wait, in total or of this caller.
        """
        self._batcher.check_capacity(caller)

    async def _gather_input(
        self, pending: PendingRequest[GateRequest], version: LoadedVersion | None, raw_states: RawStates | None
    ) -> DecisionInput | None:
        """Return the input of the decision; None if no version is live."""
        await self.gatherer.gather_texts(pending)
        if pending.interaction is not None:
            self._begin_try(pending, pending.interaction.question)
        states, sent = pending.request.states, pending.interaction
        if version is None:
            await self.gatherer.discard_states_file(states)
            return None
        if sent is not None and (interaction := version.gate.cut_reasoning(sent)) is not sent:
            await self.gatherer.discard_states_file(states)  # what an engine computed is of the reasoning, too
            pending.interaction, raw_states, states = interaction, None, None
            pending.request = pending.request.model_copy(update={"states": None, "response": None})
        if states and states.path:
            self._batcher.check_capacity(get_current_caller())  # reading deletes the file: a retry would not find it
        return await self.gatherer.build_decision_input(pending, version.gate, raw_states)

    def _begin_try(self, pending: PendingRequest[Any], question: str) -> None:
        pending.end_try = self._tries.begin(
            get_current_caller(), pending.request.conversation, question, pending.interaction_id
        )

    async def _score(self, version: LoadedVersion, decision_input: DecisionInput) -> ScoredAnswer:
        """Return the decision of the live version; the base model reads the answer if it has to."""
        scored = version.gate.score_without_model(decision_input)
        if isinstance(scored, UnreadAnswer):
            scored = await self._batcher.run(
                ("gate", version), version.gate.score_with_model, scored, caller=get_current_caller(), is_decision=True
            )
        return scored

    async def _record(
        self,
        pending: PendingRequest[Any],
        decision: Decision,
        source: str,
        trace: TraceContext | None,
        timeout_s: float,
    ) -> RecordedDecision:
        """Log the decision, and submit the answer to the shadow.

        An answer whose texts are not redacted in the rest of `timeout_s` is withheld, and logged without them.
        """
        remaining_s = max(MIN_REDACTION_S, timeout_s - (time.perf_counter() - pending.started_at))
        try:
            recorded = await self._recorder.record(pending, decision, source, trace, remaining_s)
        except TimeoutError:
            reason = DecisionReason(Code.BUSY, f"its texts were not redacted within {timeout_s:g} s")
            decision = self._make_unavailable_decision(self.follower.current, pending.interaction_id, reason)
            without_texts = replace(pending, interaction=None, input_sha256=None)
            return await self._recorder.record(without_texts, replace(decision, show=False), source, trace, remaining_s)
        if self.shadow is not None and pending.version and pending.scored and not recorded.is_repeat:
            self.shadow.submit(
                pending.version, replace(pending.scored, decision=recorded.decision), pending.interaction
            )
        return recorded

    async def record_failure(
        self, request: GateRequest, error: AbstainError, source: str, *, may_show: bool = True
    ) -> Decision:
        """Record an "unavailable" decision after `decide` failed. No texts are stored.

        `on_unavailable` does not apply in three cases, and the answer is withheld: its id was used before, its
        conversation has no tries left, or the log cannot be written.

        Args:
            request: The failed request.
            error: Error that `decide` raised.
            source: "api" or the gateway's name.
            may_show: False withholds the answer in any case.

        Returns:
            The decision, logged if possible.
        """
        is_used_id, is_out_of_tries = error.code is Code.ID_IN_USE, error.code is Code.TOO_MANY_TRIES
        interaction_id = request.interaction_id if request.interaction_id and not is_used_id else make_interaction_id()
        pending = PendingRequest(interaction_id, request)
        reason = DecisionReason.from_error(error)
        decision = self._make_unavailable_decision(self.follower.current, interaction_id, reason)
        may_show = may_show and not is_used_id and not is_out_of_tries
        decision = replace(decision, show=decision.show and may_show)
        try:
            return (await self._recorder.record(pending, decision, source, None, MIN_REDACTION_S)).decision
        except AbstainError as failure:
            _log.warning("a decision of %s is not in the log: %s", source, failure.message_with_code)
            return self.withhold(pending.interaction_id, error, source)

    def make_withheld_text(self, decision: Decision) -> str:
        """Return what a gateway's user reads in place of a withheld answer."""
        return decision.make_withheld_text(self.settings.withheld_text, with_sources=self.settings.withheld_sources)

    def withhold(self, interaction_id: str, error: AbstainError, source: str) -> Decision:
        """Withhold an answer whose decision the log does not take: nothing is shown that is not on record.

        Args:
            interaction_id: Id of the answer.
            error: Why there is no logged decision.
            source: "api" or the gateway's name.

        Returns:
            The "unavailable" decision.
        """
        reason = DecisionReason.from_error(error)
        decision = self._make_unavailable_decision(self.follower.current, interaction_id, reason)
        decision = replace(decision, show=False)
        self._recorder.update_metrics(decision, source, time.perf_counter())
        return decision

    async def explain(self, interaction: Interaction, allow_no_context: bool = False) -> Explanation:
        """Decide about an answer that somebody tries, and explain the decision; it is neither logged nor counted.

        Args:
            interaction: Texts of the answer.
            allow_no_context: Decide even if nothing was retrieved.

        Returns:
            The decision with its explanation.

        Raises:
            AbstainError: The texts are too long, no version is live, or there is no decision in time.
        """
        self.gatherer.check_text_length(
            count_characters(interaction.question, interaction.answer, interaction.contexts)
        )
        version = self.follower.require_current()
        run = partial(_explain_all, version.gate, allow_no_context)
        key = ("explain", version, allow_no_context)
        job = self._batcher.run(key, run, interaction, caller=get_current_caller())
        return await run_with_timeout(self.settings.timeout_s, job)

    async def answer(
        self,
        request: AnswerRequest,
        wait_for_disconnect: WaitForDisconnect,
        trace: TraceContext | None = None,
        on_text: OnText | None = None,
    ) -> tuple[str, RecordedDecision]:
        """Let the base model answer a question, decide about its answer, and log the decision.

        Args:
            request: Parsed request.
            wait_for_disconnect: Ends when the caller has left; the answer is not finished then.
            trace: Trace context of the request.
            on_text: Called from another thread with the answer so far.

        Returns:
            The answer, empty if there is none, and its decision.

        Raises:
            AbstainError: As in `decide`.
        """
        pending = PendingRequest(request.interaction_id or make_interaction_id(), request)
        question = Question(
            interaction_id=pending.interaction_id, question=request.question, contexts=to_contexts(request.contexts)
        )
        self.gatherer.check_text_length(count_characters(question.question, None, question.contexts))
        generate = partial(self._generate, pending, question, wait_for_disconnect, on_text)
        recorded = await self._decide_and_record(pending, generate, "answer", trace, self.settings.answer_timeout_s)
        return pending.interaction.answer if pending.interaction else "", recorded

    async def _generate(
        self,
        pending: PendingRequest[AnswerRequest],
        question: Question,
        wait_for_disconnect: WaitForDisconnect,
        on_text: OnText | None,
        version: LoadedVersion | None,
    ) -> Decision | None:
        """Generate the answer, and return the decision about it; None if no version is live."""
        request = pending.request
        self._begin_try(pending, question.question)
        if version is None:
            return None
        if reason := explain_no_room(version.gate.predictor, request.operation):
            raise AbstainError(Code.TOO_LONG, f"max_new_tokens {request.max_new_tokens} leaves no room: {reason}")
        run = partial(
            generate_answers,
            version.gate,
            operation=request.operation,
            allow_no_context=request.allow_no_context,
            on_text=on_text,
            entitlements=request.entitlements,
        )
        key = ("answer", version, request.operation, request.allow_no_context, on_text, request.entitlements)
        job = self._batcher.run(key, run, question, caller=get_current_caller())
        generated = await cancel_on_disconnect(job, wait_for_disconnect)
        pending.version, pending.scored = version, generated.scored
        if generated.interaction is None and generated.decision.decision != "unavailable":
            # The log has no texts by which it could tell that the request is repeated.
            pending.input_sha256 = hashlib.sha256(question.model_dump_json().encode()).hexdigest()
        if generated.interaction is not None:
            metadata = {name: getattr(request, name) for name in ("product", "line_of_business", "group")}
            pending.interaction = generated.interaction.model_copy(update=metadata)
        return generated.decision

    async def _decide_and_record(
        self,
        pending: PendingRequest[Any],
        make_decision: MakeDecision,
        source: str,
        trace: TraceContext | None,
        timeout_s: float,
    ) -> RecordedDecision:
        """Return the logged decision; without one, whatever the reason, no try of its conversation is used up."""
        is_decided = False
        try:
            decision = await self._decide_in_time(pending.interaction_id, make_decision, timeout_s)
            recorded = await self._record(pending, decision, source, trace, timeout_s)
            is_decided = recorded.decision.decision != "unavailable"
            return recorded
        finally:
            if pending.end_try is not None:
                pending.end_try(is_decided)

    async def _decide_in_time(self, interaction_id: str, make_decision: MakeDecision, timeout_s: float) -> Decision:
        """Return the decision of the live version; it is "unavailable", with the reason, if there is none in time."""
        version = self.follower.current
        try:
            async with asyncio.timeout(timeout_s):
                decision = await make_decision(version)
            if decision is not None:
                return decision
            error = self.follower.last_error or AbstainError(Code.NO_VERSION, "nothing is live")
            reason = DecisionReason.from_error(error)
        except TimeoutError:
            reason = DecisionReason(Code.BUSY, f"there was no decision within {timeout_s:g} s")
        except CallerLeft as error:
            reason = DecisionReason.from_error(error)
        except AbstainError as error:
            if error.code in CALLER_ERROR_CODES:
                raise
            reason = DecisionReason.from_error(error)
        return self._make_unavailable_decision(version, interaction_id, reason)

    def _make_unavailable_decision(
        self, version: LoadedVersion | None, interaction_id: str, reason: DecisionReason
    ) -> Decision:
        if version is None:
            return Decision.unavailable(interaction_id, reason, show=self.settings.on_unavailable == "show")
        return version.gate.make_unavailable_decision(interaction_id, reason)

    def update_gauges(self) -> None:
        """Update the gauges, which are read instead of counted."""
        shadow_follower = None if self.shadow is None else self.shadow.follower
        self.metrics.update_gauges(len(self._batcher), self.log, self.follower, shadow_follower)

    def refresh(self) -> None:
        """Load the production version and the shadowed candidate if they have changed."""
        self.follower.refresh()
        if self.shadow is not None:
            self.shadow.follower.refresh()


def _explain_all(gate: Gate, allow_no_context: bool, interactions: Sequence[Interaction]) -> list[Explanation]:
    return [gate.explain(interaction, allow_no_context) for interaction in interactions]
