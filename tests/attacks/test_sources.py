"""Who writes into a source, or answers for a web server, stops no other source and has no other host asked."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.sources.export import ExportSource
from abstain.ingest.sources.files import FileSource, make_explicit_sources
from abstain_tasks.server.webhook import deliver
from tests.attacks.conftest import Count
from tests.checkout import ROOT
from tests.factories import NOW, PARAMS, accept_all, row, write_lines

REDIRECTS = (301, 302, 303, 307, 308)
MOST_SECONDS = 3.0
"""Of the processor: it takes half a second, and took seven."""
MAPPING = """
format: langfuse
interaction_id: trace_id
answers: {asked_at: start_time, question: input, answer: "join(' ', output)", model: model}
"""
ANSWER = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-10-05T09:00:00Z",
    "input": "What?",
    "output": ["That."],
    "model": "m@1",
}


class Web(ThreadingHTTPServer):
    """A web server that answers with `status`, and a redirect `to`; it notes what it was asked."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.status, self.to = content, 200, ""
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Web)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(f"{self.command} {self.path}")
        is_redirect = self.server.to and self.path == "/begin.jsonl"
        self.send_response(self.server.status if is_redirect else 200)
        if is_redirect:
            self.send_header("Location", self.server.to)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.content)

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""


@contextmanager
def serving(content: bytes = b"") -> Iterator[Web]:
    with Web(content) as web:
        yield web
        web.shutdown()


def test_deliver_follows_no_redirect(assert_repelled: Count) -> None:
    refused = 0
    with serving() as receiver, serving() as inner:
        places = [f"{inner.url}/latest/meta-data", f"{receiver.url}/elsewhere", "file:///etc/passwd"]
        for receiver.status in REDIRECTS:
            for receiver.to in places:
                with pytest.raises(AbstainError, match=f"{receiver.status}.*ABSTAIN_ALERT_URL"):
                    deliver(f"{receiver.url}/begin.jsonl", "text", retry_delays_s=())
                refused += receiver.asked == ["POST /begin.jsonl"] and inner.asked == []
                receiver.asked.clear()
    assert_repelled("redirects of a webhook", len(REDIRECTS) * len(places), refused)


def test_source_follows_no_redirect_to_another_host(assert_repelled: Count) -> None:
    line, refused = json.dumps(row("secret")).encode(), 0
    with serving(line) as outer, serving(line) as inner:
        (source,) = make_explicit_sources([f"{outer.url}/begin.jsonl"])
        places = [f"{inner.url}/x.jsonl", "http://169.254.169.254/x", f"http://localhost:{inner.server_port}/x.jsonl"]
        for outer.status in REDIRECTS:
            for outer.to in places:
                with pytest.raises(AbstainError, match="redirects to another host"):
                    list(source.read({}))
                refused += inner.asked == []
        outer.to = "/moved.jsonl"
        assert [found.interaction is not None for found in source.read({})] == [True], "its own host may redirect"
    assert_repelled("redirects of a source", len(REDIRECTS) * len(places), refused)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[FileSource, ExportSource]:
    """An inbox with one answer, and an export that has one more."""
    for folder in ("inbox", "export"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    write_lines(tmp_path / "inbox" / "a.jsonl", row("i-1"))
    write_lines(tmp_path / "export" / "a.jsonl", ANSWER)
    inbox = FileSource(name="inbox", url=str(tmp_path / "inbox"))
    return inbox, ExportSource(name="tool", url=str(tmp_path / "export"), mapping=str(tmp_path / "mapping.yaml"))


UNFIT: dict[str, list[dict[str, Any]]] = {
    "a mapped field is in no record": [{key: value for key, value in ANSWER.items() if key != "input"}],
    "an expression does not fit": [ANSWER, {**ANSWER, "traceId": "u", "output": [1, 2]}],
}


def test_ingest_goes_on_with_an_unfit_export(
    sources: tuple[FileSource, ExportSource], tmp_path: Path, assert_repelled: Count
) -> None:
    params = PARAMS.model_copy(update={"min_failed_rows": 5})
    for number, records in enumerate(UNFIT.values()):
        data = tmp_path / f"data-{number}"
        write_lines(tmp_path / "export" / "a.jsonl", *records)

        def take() -> tuple[int, int, list[str]]:
            report = ingest(sources, data, params, NOW, validate=accept_all, incremental=True)  # noqa: B023
            return report.accepted, report.quarantined, list(report.reasons)

        accepted, refused, reasons = take()
        assert (accepted, refused) == (1, 1) and reasons[0].startswith(f"{Code.BAD_SETTING} file: ")
        assert take() == (0, 0, []), "it is not read again until it changes"
        write_lines(tmp_path / "export" / "a.jsonl", ANSWER)
        assert take() == (1, 0, [])
    assert_repelled("exports that stop all sources", len(UNFIT), len(UNFIT))


@pytest.mark.heavy
def test_ingest_rejects_a_key_of_4_mb_in_a_moment(tmp_path: Path, assert_repelled: Count) -> None:
    params = load_params(ROOT / "params.yaml")
    privacy, quick = Privacy.from_params(params.privacy, Settings(home=tmp_path / "home")), 0
    keys = ["k" * 3_900_000, "123 " * 970_000, "a@b.c " * 600_000, "1" * 3_900_000]
    for number, key in enumerate(keys):
        file = write_lines(tmp_path / f"{number}.jsonl", {key: 1})
        began = time.process_time()
        report = ingest(
            make_explicit_sources([str(file)]), tmp_path / f"of-{number}", params.validation, NOW, privacy=privacy
        )
        quick += report.quarantined == 1 and time.process_time() - began < MOST_SECONDS
    assert_repelled("keys of 4 million characters", len(keys), quick)
