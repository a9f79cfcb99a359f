"""Recording of a decision before it is answered: it is logged, counted, and emitted as an event."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from opentelemetry.context import Context as TraceContext

from abstain.core.codes import Code
from abstain.data.decision_log import queries
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.service.decision_inputs import PendingRequest, count_characters
from abstain.serving.service.metrics import Metrics
from abstain.serving.service.redactions import Redactions
from abstain.serving.service.telemetry import emit_decision_event


@dataclass(frozen=True)
class RecordedDecision:
    """A decision that is in the log.

    Attributes:
        decision: The decision.
        log_s: Time that logging took, in seconds.
        is_repeat: Whether it repeats an earlier decision.
    """

    decision: Decision
    log_s: float
    is_repeat: bool = False


class Recorder:
    """Records decisions in a log and in metrics.

    Args:
        log: The decision log.
        metrics: Metrics of the server.
        redactions: Redacts texts before the log takes them.
    """

    def __init__(self, log: DecisionLog, metrics: Metrics, redactions: Redactions) -> None:
        self._log, self._metrics, self._redactions = log, metrics, redactions

    async def record(
        self,
        pending: PendingRequest[Any],
        decision: Decision,
        source: str,
        trace: TraceContext | None,
        timeout_s: float,
    ) -> RecordedDecision:
        """Log a decision, count it, and emit its event.

        If the log has the decision already, the earlier one is returned, and it is not counted again.

        Args:
            pending: The request.
            decision: The decision.
            source: "api" or the gateway's name.
            trace: Trace context of the request.
            timeout_s: Maximum time for redacting the texts.

        Returns:
            The recorded decision.

        Raises:
            AbstainError: The log cannot take it.
            TimeoutError: The texts are not redacted in time.
        """
        logging_started_at = time.perf_counter()
        logged = LoggedDecision(
            interaction_id=decision.interaction_id,
            decided_at=datetime.now(UTC),
            decision=decision.decision,
            shown=decision.show,
            code=str(decision.reason.code) if decision.reason else None,
            reason=decision.reason.message if decision.reason else None,
            confidence=decision.confidence,
            probability=decision.probability,
            threshold=decision.threshold,
            version=decision.version,
            scorer="+".join(decision.components) or None,
            forward_tokens=decision.forward_tokens,
            duration_ms=1000 * (logging_started_at - pending.started_at),
            source=source,
            product=pending.request.product,
            user=pending.request.user,
            interaction=pending.interaction,
            input_sha256=pending.input_sha256,
        )
        interaction = pending.interaction
        n_characters = (
            count_characters(interaction.question, interaction.answer, interaction.contexts) if interaction else 0
        )
        outcome = await self._redactions.redact_and_write(n_characters, timeout_s, self._log.record_decision, logged)
        log_s = time.perf_counter() - logging_started_at
        if outcome == "duplicate":
            return RecordedDecision(await self._load_previous(decision), log_s, is_repeat=True)
        self.update_metrics(decision, source, pending.started_at)
        emit_decision_event(decision, source, trace)
        return RecordedDecision(decision, log_s)

    async def _load_previous(self, decision: Decision) -> Decision:
        """Return the logged decision of a repeated request, whatever would be decided now."""
        details = await asyncio.to_thread(queries.get_decision, self._log.database, decision.interaction_id)
        if details is None:  # it was there a moment ago
            return replace(decision, show=False)
        previous = details.decision
        is_same = previous.version == decision.version and previous.confidence == decision.confidence
        return replace(
            decision if is_same else replace(decision, probability_low=None, probability_high=None, feature_spec=None),
            decision=previous.decision,
            show=previous.shown,
            confidence=previous.confidence,
            probability=previous.probability,
            threshold=previous.threshold,
            version=previous.version,
            guarantee=decision.guarantee if previous.version == decision.version else None,
            components=tuple((previous.scorer or "").split("+")) if previous.scorer else (),
            forward_tokens=previous.forward_tokens,
            reason=DecisionReason(Code(previous.code), previous.reason or "") if previous.code else None,
        )

    def update_metrics(self, decision: Decision, source: str, started_at: float) -> None:
        """Count a decision in the metrics.

        Args:
            decision: The decision.
            source: "api" or the gateway's name.
            started_at: When its request came, by `time.perf_counter`.
        """
        show_label, code = "yes" if decision.show else "no", str(decision.reason.code) if decision.reason else ""
        self._metrics.decisions.labels(decision.decision, show_label, code, source, decision.version or "").inc()
        self._metrics.seconds.labels(source).observe(time.perf_counter() - started_at)
        self._metrics.tokens.inc(decision.forward_tokens)
