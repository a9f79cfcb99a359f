"""OpenTelemetry: trace context in and out, and one event `gen_ai.evaluation.result` a decision.

Only the API is imported: without an SDK and an exporter (extra `otel`, and its `OTEL_*` variables) an event costs
microseconds and goes nowhere. The event carries no text.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from opentelemetry import context, propagate
from opentelemetry._logs import LogRecord, SeverityNumber, get_logger

from abstain.serving.predictor import Decision

EVENT = "gen_ai.evaluation.result"
_logger = get_logger("abstain.serve")


def context_of(headers: Mapping[str, str]) -> context.Context:
    """The trace context that a request brings (W3C `traceparent`, `tracestate`, `baggage`)."""
    return propagate.extract(headers)


def trace_headers(of: context.Context) -> dict[str, str]:
    """The headers that carry the trace context on; none where the request brought none."""
    carrier: MutableMapping[str, str] = {}
    propagate.inject(carrier, of)
    return dict(carrier)


def emit(decision: Decision, source: str, of: context.Context | None) -> None:
    """The event of one decision, as a child of the span in `of`, where there is one."""
    attributes: dict[str, str | float | bool] = {
        "gen_ai.evaluation.name": "abstain.confidence",
        "gen_ai.evaluation.score.label": decision.decision,
        "abstain.interaction_id": decision.interaction_id,
        "abstain.version": decision.version,
        "abstain.shown": decision.show,
        "abstain.source": source,
    }
    if decision.confidence is not None:
        attributes["gen_ai.evaluation.score.value"] = decision.confidence
    if decision.threshold is not None:
        attributes["abstain.threshold"] = decision.threshold
    if decision.reason:
        attributes["gen_ai.evaluation.explanation"] = decision.reason
    _logger.emit(LogRecord(event_name=EVENT, severity_number=SeverityNumber.INFO, attributes=attributes, context=of))
