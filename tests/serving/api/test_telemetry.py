import gzip
from unittest.mock import Mock

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from pytest import MonkeyPatch
from requests import Response

from abstain.serving.decision import Decision
from abstain.serving.service import telemetry
from tests.serving.clients import ASKED, GateClient

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_decision_event_is_in_the_trace_of_its_request(client: GateClient, monkeypatch: MonkeyPatch) -> None:
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(telemetry, "_logger", provider.get_logger("abstain.serve"))
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    shown = client.post("/v1/gate", json={**ASKED, "interaction_id": "i-1"}, headers=headers).json()
    client.decide(contexts=[])
    decided, unavailable = (event.log_record for event in exporter.get_finished_logs())
    assert decided.event_name == "gen_ai.evaluation.result"
    assert f"{decided.trace_id:032x}" == TRACE
    attributes = dict(decided.attributes or {})
    assert attributes["gen_ai.evaluation.score.label"] == shown["decision"]
    assert attributes["gen_ai.evaluation.score.value"] == shown["confidence"]
    assert attributes["abstain.interaction_id"] == "i-1"
    assert "The fee is 5." not in str(attributes)
    assert dict(unavailable.attributes or {})["gen_ai.evaluation.score.label"] == "unavailable"


def test_export_events_sends_to_the_endpoint(monkeypatch: MonkeyPatch) -> None:
    reply = Response()
    reply.status_code = 200
    send = Mock(return_value=reply)
    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", send)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    follow = lambda provider: monkeypatch.setattr(telemetry, "_logger", provider.get_logger("abstain.serve"))  # noqa: E731
    monkeypatch.setattr(telemetry, "set_logger_provider", follow)  # which can be done once in a process
    with telemetry.export_events():
        telemetry.emit_decision_event(Decision.unavailable("i-1", None), "api", None)
    (request,) = send.call_args.args
    content = gzip.decompress(request.body) if request.body[:2] == b"\x1f\x8b" else request.body
    assert request.url == "http://collector:4318/v1/logs"
    assert b"gen_ai.evaluation.result" in content and b"i-1" in content
