"""Recording of what is no decision: thumbs, reviews, and the contexts of answers to come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from abstain.core.codes import Code
from abstain.core.contracts import Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.decisions import RecordOutcome
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.gate import to_contexts
from abstain.serving.service.callers import get_current_caller
from abstain.serving.service.decision_inputs import InputGatherer, count_characters
from abstain.serving.service.metrics import Metrics
from abstain.serving.service.redactions import Redactions
from abstain.serving.service.schemas import ContextsRequest, FeedbackRequest


class FeedbackRecorder:
    """Records feedback and contexts in the log.

    Args:
        log: The decision log.
        metrics: Metrics of the server.
        gatherer: Checks lengths of texts.
        redactions: Redacts texts before the log takes them.
        timeout_s: Maximum time for that, in seconds.
    """

    def __init__(
        self, log: DecisionLog, metrics: Metrics, gatherer: InputGatherer, redactions: Redactions, timeout_s: float
    ) -> None:
        self._log, self._metrics, self._gatherer = log, metrics, gatherer
        self._redactions, self._timeout_s = redactions, timeout_s

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
            self._log.record_feedback,
            request.feedback_id,
            thumb or Review(interaction_id=request.interaction_id, reviewed_at=now, **review_fields),
        )
        self._metrics.feedback.labels("review" if request.is_review else "thumb", outcome).inc()
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
        outcome = await self._write_row(len(review.ideal_answer or ""), self._log.record_review, review)
        self._metrics.feedback.labels("review", outcome).inc()
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
            length, self._log.register_call, get_current_caller(), request.call_id, content, request.ttl_s
        )

    async def _write_row(
        self, n_characters: int, write_row: Callable[..., Future[RecordOutcome]], *args: Any
    ) -> RecordOutcome:
        """Write a row that is no decision, as in `Redactions.redact_and_write`."""
        self._gatherer.check_text_length(n_characters)
        try:
            return await self._redactions.redact_and_write(n_characters, self._timeout_s, write_row, *args)
        except TimeoutError:
            reason = (
                f"the texts were not redacted within {self._timeout_s:g} s: send less text, or the same again later"
            )
            raise AbstainError(Code.NO_SERVICE, reason) from None
