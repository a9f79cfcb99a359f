"""The gate as a service, apart from HTTP: decide, log, count. The API's routes and the gateways' adapters call it.

A decision is acknowledged once it is in the log. Where the log cannot take it, the caller gets an error instead.
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
from abstain.data.decision_log.decisions import Recorded
from abstain.data.decision_log.log import DecisionLog
from abstain.llm.familiarity.familiarity import Familiarity, SelfFamiliarity
from abstain.serving.api.batching import Batcher
from abstain.serving.api.callers import Quota, current_caller
from abstain.serving.api.decision_inputs import InputGatherer, PendingRequest, RawStates, RetrieveChunks, length_of
from abstain.serving.api.metrics import Metrics
from abstain.serving.api.recording import RecordedDecision, Recorder
from abstain.serving.api.redactions import Redactions
from abstain.serving.api.schemas import AnswerRequest, ContextsRequest, FeedbackRequest, GateRequest
from abstain.serving.api.shadow import ShadowGate
from abstain.serving.api.tries import Tries
from abstain.serving.api.version_follower import LoadedVersion, VersionFollower
from abstain.serving.decision import Decision, no_decision
from abstain.serving.explanation import Explanation
from abstain.serving.gate import DecisionInput, Gate, ScoredAnswer, UnreadAnswer, make_interaction_id, to_contexts
from abstain.serving.generate import explain_no_room, generate_answers

Leaving = Callable[[], Awaitable[object]]
"""What it returns ends when nobody waits any more for what was asked."""
OnText = Callable[[str], None]
"""Is given more and more of an answer while it is written."""
CALLER_ERROR_CODES = frozenset(
    {
        *(Code.BUSY, Code.TOO_LONG, Code.TOO_LARGE, Code.INVALID_ROW, Code.WRONG_FORMAT, Code.STATES_MISMATCH),
        *(Code.NOT_FINITE, Code.NOT_READABLE, Code.NO_ACCESS, Code.FAILED_CHECK),
    }
)
"""What a caller can do something about is an error; whatever else goes wrong makes the decision `unavailable`."""
LEAST_S = 0.25
"""How long the texts of a decision may be redacted that has come at the end of its time."""
T = TypeVar("T")
_log = logging.getLogger("abstain.serve")


class GateService:
    """Decisions of the live version, logged and counted.

    `rows`: how many the log takes of one caller; who brings some asks there first.
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
        self.rows = Quota(settings.caller.rows_a_minute, "rows of the decision log")
        self._tries = Tries(settings.caller.tries)
        self._redactions = Redactions(self.rows)
        self._recorder = Recorder(log, self.metrics, self._redactions)
        self._batcher = Batcher(settings.batch, settings.waiting, settings.caller.waiting)
        own_passes = self._batcher if settings.shadow == "full" else None
        self.shadow = None if shadow is None else ShadowGate(shadow, log, self.metrics, own_passes)
        self._familiarity: tuple[LoadedVersion, SelfFamiliarity] | None = None
        self._started: set[asyncio.Task[Any]] = set()

    def start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is finished even where nobody waits for it any more."""
        task = asyncio.create_task(work)
        self._started.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._started.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AbstainError):  # such a one was told to who asked
            _log.error("an answer has failed", exc_info=error)

    async def close(self) -> None:
        """Finish what is running, then the log."""
        await asyncio.gather(*self._started, return_exceptions=True)
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
        body: RawStates | None = None,
        timeout_s: float | None = None,
    ) -> RecordedDecision:
        """The decision about an answer, logged.

        Args:
            source: `api` or the gateway's name, for the log.
            body: states that came as the body of the request.
            timeout_s: a shorter time than that of the settings.

        Raises:
            AbstainError: Texts are missing or too long, states are refused, the queue is full, the id was used for
                another answer, or the log cannot be written.
        """
        pending = PendingRequest(request.interaction_id or make_interaction_id(), request)
        self.gatherer.validate_texts(request, has_body=body is not None)

        async def gather_and_score(live: LoadedVersion | None) -> Decision | None:
            decision_input = await self._gather(pending, live, body)
            if live is None or decision_input is None:
                return None
            pending.live, pending.scored = live, await self._score(live, decision_input)
            return self.gatherer.explain_lack_of_context(pending, pending.scored.decision)

        within = min(timeout_s or self.settings.timeout_s, self.settings.timeout_s)
        return await self._decide_and_record(pending, gather_and_score, source, trace, within)

    def require_room(self, requests: Sequence[GateRequest]) -> None:
        """Raise `AbstainError` where not all of several requests find room to wait for the base model.

        So none of them is decided about, and logged, that its caller is not told of. Those with states need none.
        """
        live = self.live.current
        if live is None or len(requests) < 2 or not live.gate.predictor.scorer.requires:
            return
        unread = sum(request.answer is not None and request.states is None for request in requests)
        self._batcher.check_capacity(current_caller(), unread)

    async def _gather(
        self, pending: PendingRequest[GateRequest], live: LoadedVersion | None, body: RawStates | None
    ) -> DecisionInput | None:
        """What the decision rests on; None where nothing is live."""
        await self.gatherer.gather_texts(pending)
        if pending.row is not None:
            self._begin_try(pending, pending.row.question)
        states = pending.request.states
        if live is None:
            await self.gatherer.discard_states_file(states)
            return None
        if states and states.path:
            self._batcher.check_capacity(current_caller())  # else the file would be gone when the caller asks again
        return await self.gatherer.gather_given(pending, live.gate, body)

    def _begin_try(self, pending: PendingRequest[Any], question: str) -> None:
        pending.end_try = self._tries.begin(current_caller(), pending.request.conversation, question, pending.key)

    async def _score(self, live: LoadedVersion, decision_input: DecisionInput) -> ScoredAnswer:
        """The decision of the version that is live, by the base model where it has to read the answer."""
        scored = live.gate.score_without_model(decision_input)
        if isinstance(scored, UnreadAnswer):
            scored = await self._batcher.run(
                ("gate", live), live.gate.score_with_model, scored, caller=current_caller(), is_decision=True
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
        """Log the decision, and give the shadow what production has just decided about.

        An answer whose texts are not redacted in what is left of `timeout_s` is withheld, and logged without them.
        """
        left = max(LEAST_S, timeout_s - (time.perf_counter() - pending.started_at))
        try:
            timed = await self._recorder.record(pending, decision, source, trace, left)
        except TimeoutError:
            reason = f"{Code.BUSY}: its texts were not redacted within {timeout_s:g} s"
            withheld = replace(self._unavailable(self.live.current, pending.key, reason), show=False)
            unread = replace(pending, row=None, given_sha256=None)
            return await self._recorder.record(unread, withheld, source, trace, left)
        if self.shadow is not None and pending.live and pending.scored and not timed.is_repeat:
            self.shadow.submit(pending.live, replace(pending.scored, decision=timed.decision), pending.row)
        return timed

    async def record_failure(
        self, request: GateRequest, error: AbstainError, source: str, *, may_show: bool = True
    ) -> Decision:
        """`unavailable`, for an answer that `decide` raised `error` about: logged without texts, if it can be.

        An id that was used before does not make another answer one that may be shown: it is withheld, whatever
        `on_unavailable` says, since its decision is not known. So is one that the log cannot take, and any without
        `may_show`.
        """
        used = error.code is Code.FAILED_CHECK
        key = request.interaction_id if request.interaction_id and not used else make_interaction_id()
        pending = PendingRequest(key, request)
        decision = self._unavailable(self.live.current, pending.key, error.message_with_code)
        decision = replace(decision, show=decision.show and may_show and not used)
        try:
            return (await self._recorder.record(pending, decision, source, None, LEAST_S)).decision
        except AbstainError as failure:
            _log.warning("a decision of %s is not in the log: %s", source, failure.message_with_code)
            return self.withhold(pending.key, error, source)

    def withhold(self, key: str, error: AbstainError, source: str) -> Decision:
        """`unavailable`, for an answer whose decision the log does not take: what is not in it is not shown."""
        decision = replace(self._unavailable(self.live.current, key, error.message_with_code), show=False)
        self._recorder.update_metrics(decision, source, time.perf_counter())
        return decision

    async def answer(
        self,
        request: AnswerRequest,
        leaving: Leaving,
        trace: TraceContext | None = None,
        on_text: OnText | None = None,
    ) -> tuple[str, RecordedDecision]:
        """The base model's answer and the decision about it, logged.

        Args:
            leaving: what ends when nobody waits for the answer any more: it is not written to its end then.
            on_text: called from another thread.

        Raises:
            AbstainError: As `decide` does.
        """
        pending = PendingRequest(request.interaction_id or make_interaction_id(), request)
        question = Question(
            interaction_id=pending.key, question=request.question, contexts=to_contexts(request.contexts)
        )
        self.gatherer.check_text_length(length_of(question.question, None, question.contexts))

        async def generate(live: LoadedVersion | None) -> Decision | None:
            self._begin_try(pending, question.question)
            if live is None:
                return None
            if excess := explain_no_room(live.gate.predictor, request.to_operation):
                raise AbstainError(Code.TOO_LONG, f"max_new_tokens {request.max_new_tokens} leaves no room: {excess}")
            settings: dict[str, Any] = {
                "ask": request.to_operation,
                "no_context": request.no_context,
                "on_text": on_text,
            }
            run = partial(generate_answers, live.gate, **settings)
            asked = self._batcher.run(("answer", live, *settings.values()), run, question, caller=current_caller())
            generated = await _unless_left(asked, leaving)
            pending.live, pending.scored = live, generated.scored
            if generated.row is not None:
                more = {name: getattr(request, name) for name in ("product", "line_of_business", "group")}
                pending.row = generated.row.model_copy(update=more)
            return generated.decision

        timed = await self._decide_and_record(pending, generate, "answer", trace, self.settings.answer_timeout_s)
        return pending.row.answer if pending.row else "", timed

    async def explain(self, row: Interaction, no_context: bool = False) -> Explanation:
        """The decision about an answer that somebody tries, with its parts: neither logged nor counted.

        Raises `AbstainError` for texts that are too long, where nothing is live, and where there is no decision in
        time.
        """
        self.gatherer.check_text_length(length_of(row.question, row.answer, row.contexts))
        live = self._require_live()
        run = partial(_explain_all, live.gate)
        asked = self._batcher.run(("explain", live), run, (row, no_context), caller=current_caller())
        return await _run_with_timeout(self.settings.timeout_s, asked)

    async def record_feedback(self, given: FeedbackRequest) -> str:
        """Record a thumb or a review: `recorded`, or `is_repeat` where it was before.

        Raises `AbstainError` where the id was used for another one, for a text that is too long or is not redacted in
        time, and where the log cannot be written.
        """
        now, row = datetime.now(UTC), None
        if given.thumb is not None:
            row = Thumb(
                interaction_id=given.interaction_id,
                given_at=now,
                thumb=given.thumb,
                user=given.user,
                comment=given.comment,
            )
        verdicts = given.model_dump(include={"reviewer", "complete", "correct", "truthful", "ideal_answer"})
        outcome = await self._bring(
            len(given.comment or "") + len(given.ideal_answer or ""),
            self.log.record_feedback,
            given.feedback_id,
            row or Review(interaction_id=given.interaction_id, reviewed_at=now, **verdicts),
        )
        self.metrics.feedback.labels("review" if given.is_review else "thumb", outcome).inc()
        return outcome

    async def review(self, row: Review) -> str:
        """Record a review that was given on the page: `recorded`, or `is_repeat` where it is its reviewer's last one.

        Raises `AbstainError` where its answer is neither in the queue nor in the log, and as `record_feedback`.
        """
        outcome = await self._bring(len(row.ideal_answer or ""), self.log.review, row)
        self.metrics.feedback.labels("review", outcome).inc()
        return outcome

    async def register_contexts(self, given: ContextsRequest) -> None:
        """Remember what an answer of this caller will rest on. Raises `AbstainError` as `record_feedback`."""
        length = length_of(given.question, None, to_contexts(given.contexts))
        content = RegisteredCall(
            question=given.question, contexts=given.contexts, user=given.user, product=given.product
        )
        await self._bring(length, self.log.register_call, current_caller(), given.call_id, content, given.ttl_s)

    async def _bring(self, characters: int, put: Callable[..., Future[Recorded]], *given: Any) -> Recorded:
        """What becomes of a row that is no decision, as `Redactions.bring` says."""
        self.gatherer.check_text_length(characters)
        within = self.settings.timeout_s
        try:
            return await self._redactions.bring(characters, within, put, *given)
        except TimeoutError:
            late = f"the texts were not redacted within {within:g} s: send less text, or the same again later"
            raise AbstainError(Code.NO_SERVICE, late) from None

    async def familiarity(self, instruction: str, leaving: Leaving) -> tuple[Familiarity, float | None]:
        """How familiar the live version's base model is with an instruction, and h where it is known already.

        `leaving`: as of `answer`. Raises `AbstainError` where nothing is live, where the extra `familiarity` is not
        installed, and where it is not known in time, or nobody waits for it any more.
        """
        live = self._require_live()
        if self._familiarity is None or self._familiarity[0] is not live:
            llm, source = live.gate.predictor.source.params, live.gate.predictor.source
            self._familiarity = live, SelfFamiliarity(llm.model, llm.layout, source.settings)
        scorer = self._familiarity[1]
        asked = self._batcher.run(("familiarity", live), scorer.score, instruction, caller=current_caller())
        found: Familiarity = await _run_with_timeout(self.settings.answer_timeout_s, _unless_left(asked, leaving))
        return found, await asyncio.to_thread(scorer.known_threshold)

    def _require_live(self) -> LoadedVersion:
        live = self.live.current
        if live is None:
            raise AbstainError(Code.NO_VERSION, self.live.last_error or "nothing is live")
        return live

    async def _decide_and_record(
        self,
        pending: PendingRequest[Any],
        decide: Callable[[LoadedVersion | None], Awaitable[Decision | None]],
        source: str,
        trace: TraceContext | None,
        timeout_s: float,
    ) -> RecordedDecision:
        """The decision, logged; where there is none, whatever the reason, no try of its conversation is used up."""
        is_decided = False
        try:
            decision = await self._decide_in_time(pending.key, decide, timeout_s)
            timed = await self._record(pending, decision, source, trace, timeout_s)
            is_decided = timed.decision.decision != "unavailable"
            return timed
        finally:
            if pending.end_try is not None:
                pending.end_try(is_decided)

    async def _decide_in_time(
        self, key: str, decide: Callable[[LoadedVersion | None], Awaitable[Decision | None]], timeout_s: float
    ) -> Decision:
        """The decision of the live version: `unavailable`, with the reason, where there is none in time."""
        live = self.live.current
        try:
            async with asyncio.timeout(timeout_s):
                decision = await decide(live)
            if decision is not None:
                return decision
            reason = self.live.last_error or f"{Code.NO_VERSION}: nothing is live"
        except TimeoutError:
            reason = f"{Code.BUSY}: there was no decision within {timeout_s:g} s"
        except CallerLeft as error:
            reason = error.message_with_code
        except AbstainError as error:
            if error.code in CALLER_ERROR_CODES:
                raise
            reason = error.message_with_code
        return self._unavailable(live, key, reason)

    def _unavailable(self, live: LoadedVersion | None, key: str, reason: str) -> Decision:
        if live is None:
            return no_decision(key, reason, show=self.settings.on_unavailable == "show")
        return live.gate.unavailable(key, reason)

    def update_gauges(self) -> None:
        """Bring the figures up to date that are read, not counted."""
        self.metrics.waiting.set(len(self._batcher))
        self.metrics.writable.set(self.log.trouble is None)
        self.metrics.replaced.set(self.log.database.replaced)
        self.metrics.live.clear()
        if self.live.current:
            self.metrics.live.labels(self.live.current.version_info.version).set(1)
        self.metrics.swaps.set(self.live.n_swaps)
        self.metrics.refused.set(self.live.n_failed_loads)
        self.metrics.shadowing.clear()
        if self.shadow is not None and self.shadow.follower.current:
            self.metrics.shadowing.labels(self.shadow.follower.current.version_info.version).set(1)

    def refresh(self) -> None:
        """Follow the registry, and what is its shadow."""
        self.live.refresh()
        if self.shadow is not None:
            self.shadow.follower.refresh()


class CallerLeft(AbstainError):
    """Nobody waits any more for what was asked."""

    def __init__(self) -> None:
        super().__init__(Code.BUSY, "who asked has left before the end")


async def _unless_left(work: Coroutine[Any, Any, T], leaving: Leaving) -> T:
    """The result of `work`, which is cancelled where that of `leaving` ends before it. Raises `CallerLeft` then."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(leaving())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise CallerLeft
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _run_with_timeout(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. Raises `AbstainError` where there is none within `seconds`."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise AbstainError(Code.BUSY, f"there was no result within {seconds:g} s: ask again later") from None


def _explain_all(gate: Gate, jobs: Sequence[tuple[Interaction, bool]]) -> list[Explanation]:
    return [gate.explain(row, no_context) for row, no_context in jobs]
