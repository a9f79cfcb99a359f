"""The gate as a service, independent of HTTP: it decides, logs and counts for the API's routes and the gateways.

A decision is acknowledged once it is in the log. If the log cannot take it, the caller gets an error instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from opentelemetry.context import Context as TraceContext

from abstain.config.serve_settings import ServeSettings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.decisions import RecordOutcome
from abstain.data.decision_log.log import DecisionLog
from abstain.llm.familiarity.familiarity import Familiarity, SelfFamiliarity
from abstain.serving.decision import Decision, DecisionReason, make_no_decision
from abstain.serving.explanation import Explanation
from abstain.serving.gate import DecisionInput, Gate, ScoredAnswer, UnreadAnswer, make_interaction_id, to_contexts
from abstain.serving.generate import explain_no_room, generate_answers
from abstain.serving.service.batching import Batcher
from abstain.serving.service.callers import Quota, get_current_caller
from abstain.serving.service.decision_inputs import (
    InputGatherer,
    PendingRequest,
    RawStates,
    RetrieveChunks,
    count_characters,
)
from abstain.serving.service.metrics import Metrics
from abstain.serving.service.recording import RecordedDecision, Recorder
from abstain.serving.service.redactions import Redactions
from abstain.serving.service.schemas import AnswerRequest, ContextsRequest, FeedbackRequest, GateRequest
from abstain.serving.service.shadow import ShadowGate
from abstain.serving.service.tries import Tries
from abstain.serving.service.version_follower import LoadedVersion, VersionFollower

WaitForDisconnect = Callable[[], Awaitable[object]]
"""Returns an awaitable that ends when the caller does not wait any more."""
OnText = Callable[[str], None]
"""Called with the answer so far while it is written."""
CALLER_ERROR_CODES = frozenset(
    {
        *(Code.BUSY, Code.TOO_LONG, Code.TOO_LARGE, Code.INVALID_ROW, Code.WRONG_FORMAT, Code.STATES_MISMATCH),
        *(Code.NOT_FINITE, Code.NOT_READABLE, Code.NO_ACCESS, Code.FAILED_CHECK),
    }
)
"""Errors that a caller can correct are raised; any other makes the decision `unavailable`."""
MIN_REDACTION_S = 0.25
"""Minimum time for redacting the texts of a decision that came at the end of its time."""
T = TypeVar("T")
_log = logging.getLogger("abstain.serve")


class GateService:
    """Decides by the live version, and logs and counts the decisions.

    Args:
        live: Follows the production version.
        log: The decision log.
        settings: Settings of the server.
        retrieve: Retrieves chunks; None if there is no index.
        shadow: Follows the shadowed candidate; None without a shadow.

    Attributes:
        metrics: Metrics of the server.
        gatherer: Gathers the inputs of decisions.
        row_quota: Number of log rows that one caller may write; whoever writes rows takes from it first.
        shadow: The shadow gate; None without a shadow.
    """

    def __init__(
        self,
        live: VersionFollower,
        log: DecisionLog,
        settings: ServeSettings,
        retrieve: RetrieveChunks | None = None,
        shadow: VersionFollower | None = None,
    ) -> None:
        self.live, self.log, self.settings = live, log, settings
        self.metrics = Metrics()
        self.gatherer = InputGatherer(log, settings, retrieve)
        self.row_quota = Quota(settings.caller.rows_per_minute, "rows of the decision log")
        self._tries = Tries(settings.caller.max_tries)
        self._redactions = Redactions(self.row_quota)
        self._recorder = Recorder(log, self.metrics, self._redactions)
        self._batcher = Batcher(settings.batch_size, settings.max_queued, settings.caller.max_queued)
        shadow_batcher = self._batcher if settings.shadow == "full" else None
        self.shadow = None if shadow is None else ShadowGate(shadow, log, self.metrics, shadow_batcher)
        self._familiarity: tuple[LoadedVersion, SelfFamiliarity] | None = None
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
        if error is not None and not isinstance(error, AbstainError):  # such a one was told to who asked
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

        async def gather_and_score(live: LoadedVersion | None) -> Decision | None:
            decision_input = await self._gather_input(pending, live, raw_states)
            if live is None or decision_input is None:
                return None
            pending.live, pending.scored = live, await self._score(live, decision_input)
            return self.gatherer.explain_missing_context(pending, pending.scored.decision)

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
        live = self.live.current
        if live is None or len(requests) < 2 or not live.gate.predictor.scorer.requires:
            return
        unread = sum(request.answer is not None and request.states is None for request in requests)
        self._batcher.check_capacity(get_current_caller(), unread)

    def check_queue(self, caller: str) -> None:
        """Check that one more request of a caller may wait for the base model.

        Args:
            caller: Name of the caller.

        Raises:
            AbstainError: Too many wait, in total or of this caller.
        """
        self._batcher.check_capacity(caller)

    async def _gather_input(
        self, pending: PendingRequest[GateRequest], live: LoadedVersion | None, raw_states: RawStates | None
    ) -> DecisionInput | None:
        """Return the input of the decision; None if no version is live."""
        await self.gatherer.gather_texts(pending)
        if pending.interaction is not None:
            self._begin_try(pending, pending.interaction.question)
        states = pending.request.states
        if live is None:
            await self.gatherer.discard_states_file(states)
            return None
        if states and states.path:
            self._batcher.check_capacity(get_current_caller())  # else the file would be gone when the caller asks again
        return await self.gatherer.build_decision_input(pending, live.gate, raw_states)

    def _begin_try(self, pending: PendingRequest[Any], question: str) -> None:
        pending.end_try = self._tries.begin(
            get_current_caller(), pending.request.conversation, question, pending.interaction_id
        )

    async def _score(self, live: LoadedVersion, decision_input: DecisionInput) -> ScoredAnswer:
        """Return the decision of the live version; the base model reads the answer if it has to."""
        scored = live.gate.score_without_model(decision_input)
        if isinstance(scored, UnreadAnswer):
            scored = await self._batcher.run(
                ("gate", live), live.gate.score_with_model, scored, caller=get_current_caller(), is_decision=True
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
            withheld = replace(
                self._make_unavailable_decision(self.live.current, pending.interaction_id, reason), show=False
            )
            without_texts = replace(pending, interaction=None, input_sha256=None)
            return await self._recorder.record(without_texts, withheld, source, trace, remaining_s)
        if self.shadow is not None and pending.live and pending.scored and not recorded.is_repeat:
            self.shadow.submit(pending.live, replace(pending.scored, decision=recorded.decision), pending.interaction)
        return recorded

    async def record_failure(
        self, request: GateRequest, error: AbstainError, source: str, *, may_show: bool = True
    ) -> Decision:
        """Record an "unavailable" decision after `decide` failed. No texts are stored.

        The answer is withheld, whatever `on_unavailable` says, if its id was used before, since its decision is
        unknown, or if the log cannot be written: nothing is shown that is not on record.

        Args:
            request: The failed request.
            error: Error that `decide` raised.
            source: "api" or the gateway's name.
            may_show: False withholds the answer in any case.

        Returns:
            The decision, logged if possible.
        """
        is_used_id = error.code is Code.FAILED_CHECK
        interaction_id = request.interaction_id if request.interaction_id and not is_used_id else make_interaction_id()
        pending = PendingRequest(interaction_id, request)
        reason = DecisionReason.from_error(error)
        decision = self._make_unavailable_decision(self.live.current, pending.interaction_id, reason)
        decision = replace(decision, show=decision.show and may_show and not is_used_id)
        try:
            return (await self._recorder.record(pending, decision, source, None, MIN_REDACTION_S)).decision
        except AbstainError as failure:
            _log.warning("a decision of %s is not in the log: %s", source, failure.message_with_code)
            return self.withhold(pending.interaction_id, error, source)

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
        decision = replace(self._make_unavailable_decision(self.live.current, interaction_id, reason), show=False)
        self._recorder.update_metrics(decision, source, time.perf_counter())
        return decision

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

        async def generate(live: LoadedVersion | None) -> Decision | None:
            self._begin_try(pending, question.question)
            if live is None:
                return None
            if reason := explain_no_room(live.gate.predictor, request.operation):
                raise AbstainError(Code.TOO_LONG, f"max_new_tokens {request.max_new_tokens} leaves no room: {reason}")
            settings: dict[str, Any] = {
                "operation": request.operation,
                "allow_no_context": request.allow_no_context,
                "on_text": on_text,
            }
            run = partial(generate_answers, live.gate, **settings)
            job = self._batcher.run(("answer", live, *settings.values()), run, question, caller=get_current_caller())
            generated = await _cancel_on_disconnect(job, wait_for_disconnect)
            pending.live, pending.scored = live, generated.scored
            if generated.interaction is not None:
                metadata = {name: getattr(request, name) for name in ("product", "line_of_business", "group")}
                pending.interaction = generated.interaction.model_copy(update=metadata)
            return generated.decision

        recorded = await self._decide_and_record(pending, generate, "answer", trace, self.settings.answer_timeout_s)
        return pending.interaction.answer if pending.interaction else "", recorded

    async def explain(self, interaction: Interaction, allow_no_context: bool = False) -> Explanation:
        """Decide about an answer that somebody tries, and explain the decision. It is neither logged nor counted.

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
        live = self._require_live()
        run = partial(_explain_all, live.gate)
        job = self._batcher.run(("explain", live), run, (interaction, allow_no_context), caller=get_current_caller())
        return await _run_with_timeout(self.settings.timeout_s, job)

    async def record_feedback(self, request: FeedbackRequest) -> str:
        """Record a thumb or a review.

        Args:
            request: The feedback.

        Returns:
            "recorded", or "duplicate" if the same feedback was recorded before.

        Raises:
            AbstainError: The id was used for other feedback, a text is too long or not redacted in time, or the log
                cannot be written.
        """
        now, thumb = datetime.now(UTC), None
        if request.thumb is not None:
            thumb = Thumb(
                interaction_id=request.interaction_id,
                given_at=now,
                thumb=request.thumb,
                user=request.user,
                comment=request.comment,
            )
        review_fields = request.model_dump(include={"reviewer", "complete", "correct", "truthful", "ideal_answer"})
        outcome = await self._write_row(
            len(request.comment or "") + len(request.ideal_answer or ""),
            self.log.record_feedback,
            request.feedback_id,
            thumb or Review(interaction_id=request.interaction_id, reviewed_at=now, **review_fields),
        )
        self.metrics.feedback.labels("review" if request.is_review else "thumb", outcome).inc()
        return outcome

    async def record_review(self, review: Review) -> str:
        """Record a review that was given on the page.

        Args:
            review: The review.

        Returns:
            "recorded", or "duplicate" if it equals its reviewer's last one.

        Raises:
            AbstainError: Its answer is neither in the queue nor in the log; and as in `record_feedback`.
        """
        outcome = await self._write_row(len(review.ideal_answer or ""), self.log.record_review, review)
        self.metrics.feedback.labels("review", outcome).inc()
        return outcome

    async def register_contexts(self, request: ContextsRequest) -> None:
        """Store the contexts that an answer of the current caller will use.

        Args:
            request: Call id and contexts.

        Raises:
            AbstainError: As in `record_feedback`.
        """
        length = count_characters(request.question, None, to_contexts(request.contexts))
        content = RegisteredCall(
            question=request.question, contexts=request.contexts, user=request.user, product=request.product
        )
        await self._write_row(
            length, self.log.register_call, get_current_caller(), request.call_id, content, request.ttl_s
        )

    async def _write_row(
        self, n_characters: int, write_row: Callable[..., Future[RecordOutcome]], *args: Any
    ) -> RecordOutcome:
        """Write a row that is no decision, as in `Redactions.redact_and_write`."""
        self.gatherer.check_text_length(n_characters)
        timeout_s = self.settings.timeout_s
        try:
            return await self._redactions.redact_and_write(n_characters, timeout_s, write_row, *args)
        except TimeoutError:
            reason = f"the texts were not redacted within {timeout_s:g} s: send less text, or the same again later"
            raise AbstainError(Code.NO_SERVICE, reason) from None

    async def measure_familiarity(
        self, instruction: str, wait_for_disconnect: WaitForDisconnect
    ) -> tuple[Familiarity, float | None]:
        """Measure how familiar the live version's base model is with an instruction.

        Args:
            instruction: The instruction.
            wait_for_disconnect: As in `answer`.

        Returns:
            The familiarity, and the threshold h if it is already known.

        Raises:
            AbstainError: No version is live, the extra `familiarity` is not installed, there is no result in time, or
                the caller has left.
        """
        live = self._require_live()
        if self._familiarity is None or self._familiarity[0] is not live:
            llm, source = live.gate.predictor.source.params, live.gate.predictor.source
            self._familiarity = live, SelfFamiliarity(llm.model, llm.layout, source.settings)
        scorer = self._familiarity[1]
        job = self._batcher.run(("familiarity", live), scorer.score, instruction, caller=get_current_caller())
        familiarity: Familiarity = await _run_with_timeout(
            self.settings.answer_timeout_s, _cancel_on_disconnect(job, wait_for_disconnect)
        )
        return familiarity, await asyncio.to_thread(scorer.get_cached_threshold)

    def _require_live(self) -> LoadedVersion:
        live, error = self.live.current, self.live.last_error
        if live is None:
            raise AbstainError(Code.NO_VERSION, error.message_with_code if error else "nothing is live")
        return live

    async def _decide_and_record(
        self,
        pending: PendingRequest[Any],
        decide: Callable[[LoadedVersion | None], Awaitable[Decision | None]],
        source: str,
        trace: TraceContext | None,
        timeout_s: float,
    ) -> RecordedDecision:
        """Return the logged decision; without one, whatever the reason, no try of its conversation is used up."""
        is_decided = False
        try:
            decision = await self._decide_in_time(pending.interaction_id, decide, timeout_s)
            recorded = await self._record(pending, decision, source, trace, timeout_s)
            is_decided = recorded.decision.decision != "unavailable"
            return recorded
        finally:
            if pending.end_try is not None:
                pending.end_try(is_decided)

    async def _decide_in_time(
        self,
        interaction_id: str,
        decide: Callable[[LoadedVersion | None], Awaitable[Decision | None]],
        timeout_s: float,
    ) -> Decision:
        """Return the decision of the live version; it is "unavailable", with the reason, if there is none in time."""
        live = self.live.current
        try:
            async with asyncio.timeout(timeout_s):
                decision = await decide(live)
            if decision is not None:
                return decision
            reason = DecisionReason.from_error(self.live.last_error or AbstainError(Code.NO_VERSION, "nothing is live"))
        except TimeoutError:
            reason = DecisionReason(Code.BUSY, f"there was no decision within {timeout_s:g} s")
        except CallerLeft as error:
            reason = DecisionReason.from_error(error)
        except AbstainError as error:
            if error.code in CALLER_ERROR_CODES:
                raise
            reason = DecisionReason.from_error(error)
        return self._make_unavailable_decision(live, interaction_id, reason)

    def _make_unavailable_decision(
        self, live: LoadedVersion | None, interaction_id: str, reason: DecisionReason
    ) -> Decision:
        if live is None:
            return make_no_decision(interaction_id, reason, show=self.settings.on_unavailable == "show")
        return live.gate.make_unavailable_decision(interaction_id, reason)

    def update_gauges(self) -> None:
        """Update the gauges, which are read instead of counted."""
        self.metrics.queued_requests.set(len(self._batcher))
        self.metrics.writable.set(self.log.last_error is None)
        self.metrics.replaced.set(self.log.database.n_replaced)
        self.metrics.live.clear()
        if self.live.current:
            self.metrics.live.labels(self.live.current.version_info.version).set(1)
        self.metrics.version_swaps.set(self.live.n_swaps)
        self.metrics.version_load_failures.set(self.live.n_failed_loads)
        self.metrics.shadowing.clear()
        if self.shadow is not None and self.shadow.follower.current:
            self.metrics.shadowing.labels(self.shadow.follower.current.version_info.version).set(1)

    def refresh(self) -> None:
        """Load the production version and the shadowed candidate if they have changed."""
        self.live.refresh()
        if self.shadow is not None:
            self.shadow.follower.refresh()


class CallerLeft(AbstainError):
    """The caller does not wait for the result any more."""

    def __init__(self) -> None:
        super().__init__(Code.BUSY, "who asked has left before the end")


async def _cancel_on_disconnect(work: Coroutine[Any, Any, T], wait_for_disconnect: WaitForDisconnect) -> T:
    """Return the result of `work`; if the caller leaves before, cancel it and raise `CallerLeft`."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise CallerLeft
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _run_with_timeout(timeout_s: float, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises `AbstainError` if there is none within `timeout_s`."""
    try:
        return await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        raise AbstainError(Code.BUSY, f"there was no result within {timeout_s:g} s: ask again later") from None


def _explain_all(gate: Gate, jobs: Sequence[tuple[Interaction, bool]]) -> list[Explanation]:
    return [gate.explain(row, allow_no_context) for row, allow_no_context in jobs]
