"""What happens to a decision before it is answered: it is logged, counted, and told as an event."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from opentelemetry.context import Context as TraceContext

from abstain.core.errors import parse_error_line
from abstain.data.decision_log import queries
from abstain.data.decision_log.decisions import LoggedDecision
from abstain.data.decision_log.log import DecisionLog
from abstain.serving.api.decision_inputs import PendingRequest, length_of
from abstain.serving.api.metrics import Metrics
from abstain.serving.api.redactions import Redactions
from abstain.serving.api.telemetry import emit_decision_event
from abstain.serving.decision import Decision


@dataclass(frozen=True)
class RecordedDecision:
    """A decision, the seconds that its log took, and whether it is one that was there before."""

    decision: Decision
    log_s: float
    is_repeat: bool = False


class Recorder:
    """Records decisions in `log` and `metrics`."""

    def __init__(self, log: DecisionLog, metrics: Metrics, redactions: Redactions) -> None:
        self._log, self._metrics, self._redactions = log, metrics, redactions

    async def record(
        self, pending: PendingRequest[Any], decision: Decision, source: str, trace: TraceContext | None, seconds: float
    ) -> RecordedDecision:
        """Log `decision`, count it, and emit its event; one that the log knew is answered as it was, and not counted.

        Raises `AbstainError` where the log cannot take it, and `TimeoutError` where its texts are not redacted within
        `seconds`.
        """
        before_log = time.perf_counter()
        logged = LoggedDecision(
            interaction_id=decision.interaction_id,
            decided_at=datetime.now(UTC),
            decision=decision.decision,
            shown=decision.show,
            code=_get_reason_code(decision),
            reason=decision.reason,
            confidence=decision.confidence,
            probability=decision.probability,
            threshold=decision.threshold,
            version=decision.version or None,
            scorer="+".join(decision.signals) or None,
            forward_tokens=decision.forward_tokens,
            took_ms=1000 * (before_log - pending.started_at),
            source=source,
            product=pending.request.product,
            user=pending.request.user,
            interaction=pending.row,
            input_sha256=pending.given_sha256,
        )
        row = pending.row
        characters = length_of(row.question, row.answer, row.contexts) if row else 0
        outcome = await self._redactions.bring(characters, seconds, self._log.record_decision, logged)
        log_s = time.perf_counter() - before_log
        if outcome == "known":
            return RecordedDecision(await self._load_previous(decision), log_s, is_repeat=True)
        self.update_metrics(decision, source, pending.started_at)
        emit_decision_event(decision, source, trace)
        return RecordedDecision(decision, log_s)

    async def _load_previous(self, decision: Decision) -> Decision:
        """The decision that the log has for a request that came again, whatever would be decided now."""
        found = await asyncio.to_thread(queries.get_decision, self._log.database, decision.interaction_id)
        if found is None:  # it was there a moment ago
            return replace(decision, show=False)
        before = found.decision
        same = before.version == decision.version and before.confidence == decision.confidence
        return replace(
            decision if same else replace(decision, probability_low=None, probability_high=None, feature_spec=None),
            decision=before.decision,
            show=before.shown,
            confidence=before.confidence,
            probability=before.probability,
            threshold=before.threshold,
            version=before.version or "",
            signals=tuple((before.scorer or "").split("+")) if before.scorer else (),
            forward_tokens=before.forward_tokens,
            reason=before.reason,
        )

    def update_metrics(self, decision: Decision, source: str, started_at: float) -> None:
        """Count `decision` in the figures; `started_at`: when its request came, by `time.perf_counter`."""
        shown, code = "yes" if decision.show else "no", _get_reason_code(decision) or ""
        self._metrics.decisions.labels(decision.decision, shown, code, source, decision.version).inc()
        self._metrics.seconds.labels(source).observe(time.perf_counter() - started_at)
        self._metrics.tokens.inc(decision.forward_tokens)


def _get_reason_code(decision: Decision) -> str | None:
    """The code of its reason, None where it has none."""
    found = parse_error_line(decision.reason) if decision.reason else None
    return str(found.code) if found else None
