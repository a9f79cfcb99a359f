"""OpenTelemetry: incoming and outgoing trace context, and one event `gen_ai.evaluation.result` per decision.

Events are exported to `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._LOGS_ENDPOINT`) with the extra `otel`. Without these
variables only the API is imported, and an event costs microseconds and is dropped. Events contain no text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from opentelemetry import context, propagate
from opentelemetry._logs import LogRecord, SeverityNumber, get_logger, set_logger_provider

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.serving.decision import Decision

EVENT = "gen_ai.evaluation.result"
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
_logger = get_logger("abstain.serve")  # follows the provider that is set later


@contextmanager
def export_events() -> Iterator[None]:
    """Export events within the block if one of `ENDPOINT_VARIABLES` is set; leaving the block sends the remaining ones.

    Yields:
        None.

    Raises:
        AbstainError: The exporter is not installed.
    """
    if not any(map(os.environ.get, ENDPOINT_VARIABLES)):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    except ImportError:
        raise AbstainError(
            Code.NO_PACKAGE,
            f"{ENDPOINT_VARIABLES[0]} is set, and no exporter is installed: pip install 'abstain[otel]'",
        ) from None
    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def extract_trace_context(headers: Mapping[str, str]) -> context.Context:
    """Return the trace context in a request's headers (W3C `traceparent`, `tracestate`, `baggage`)."""
    return propagate.extract(headers)


def make_trace_headers(trace: context.Context) -> dict[str, str]:
    """Return the headers that pass on a trace context; none if the request had none."""
    carrier: MutableMapping[str, str] = {}
    propagate.inject(carrier, trace)
    return dict(carrier)


def emit_decision_event(decision: Decision, source: str, trace: context.Context | None) -> None:
    """Emit the event of one decision.

    Args:
        decision: The decision.
        source: "api" or the gateway's name.
        trace: Context of the parent span, if there is one.
    """
    attributes: dict[str, str | float | bool] = {
        "gen_ai.evaluation.name": "abstain.confidence",
        "gen_ai.evaluation.score.label": decision.decision,
        "abstain.interaction_id": decision.interaction_id,
        "abstain.shown": decision.show,
        "abstain.source": source,
    }
    if decision.confidence is not None:
        attributes["gen_ai.evaluation.score.value"] = decision.confidence
    if decision.threshold is not None:
        attributes["abstain.threshold"] = decision.threshold
    if decision.version is not None:
        attributes["abstain.version"] = decision.version
    if decision.reason:
        is_quote = decision.reason.code is Code.UNFAMILIAR  # of the question
        message = decision.reason.code.cause if is_quote else decision.reason.message
        attributes["gen_ai.evaluation.explanation"] = f"{decision.reason.code}: {message}"
    _logger.emit(LogRecord(event_name=EVENT, severity_number=SeverityNumber.INFO, attributes=attributes, context=trace))
