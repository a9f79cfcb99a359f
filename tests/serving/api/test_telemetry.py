"""One OpenTelemetry event a decision, in the trace of the request, without any text."""

import gzip
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from pytest import MonkeyPatch

from abstain.serving.service import telemetry
from tests.serving.clients import ASKED, GateClient

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_decision_event_is_in_the_trace_of_its_request(client: GateClient, monkeypatch: MonkeyPatch) -> None:
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr(telemetry, "_logger", provider.get_logger("abstain.serve"))
    shown = client.post(
        "/v1/gate",
        json={**ASKED, "interaction_id": "i-1"},
        headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"},
    ).json()
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


@pytest.mark.heavy
def test_export_events_sends_to_a_receiver() -> None:
    """By a process of its own: a provider can be set once."""
    received: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = (
        "from abstain.serving.service.telemetry import emit_decision_event, export_events\n"
        "from abstain.serving.decision import Decision\n"
        "with export_events():\n"
        "    emit_decision_event(Decision.unavailable('i-1', None), 'api', None)\n"
    )
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **own}, check=True, timeout=120)
    server.shutdown()
    ((path, content),) = received
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    assert path == "/v1/logs" and b"gen_ai.evaluation.result" in content and b"i-1" in content
