"""Who writes into a source, or answers for a web server, stops no other source, reads no other file and asks no other host.

Rows that are rejected are kept without what an erasure could not find.
"""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import parse_line
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.privacy.policy import MAX_MESSAGE_CHARACTERS, Privacy
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources.export import ExportSource
from abstain.ingest.sources.files import FileSource, make_explicit_sources
from abstain.serving.state_files import read_and_delete
from abstain_tasks.server.webhook import deliver
from tests.attacks.conftest import Count
from tests.checkout import ROOT
from tests.factories import NOW, PARAMS, accept_all, row, write_lines
from tests.ingest.privacy.builders import SHIPPED

FILE, USER, SECRET = "secret.safetensors", "ann-4711", "ann@example.org"
KEYS = [
    *("user", "User", "\uff35\uff33\uff25\uff32", "us\u00ader", "us\u200ber", "user ", "us\u00e9r", "user\x00"),
    "\U0001d42eser",
]
"""Spellings of a key, of which a thumb may have the first."""
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

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


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


def test_deliver_follows_no_redirect(assert_repelled: Count) -> None:
    refused = 0
    with Web() as receiver, Web() as inner:
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
    with Web(line) as outer, Web(line) as inner:
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


@pytest.mark.heavy
def test_ingest_goes_on_with_an_unfit_export(tmp_path: Path, assert_repelled: Count) -> None:
    """The mapped field is in no record, or its expression does not fit."""
    export = tmp_path / "export" / "a.jsonl"
    for folder in ("inbox", "export"):
        (tmp_path / folder).mkdir()
    write_lines(tmp_path / "mapping.yaml", MAPPING)
    write_lines(tmp_path / "inbox" / "a.jsonl", row("i-1"))
    sources = (
        FileSource(name="inbox", url=str(tmp_path / "inbox")),
        ExportSource(name="tool", url=str(export.parent), mapping=str(tmp_path / "mapping.yaml")),
    )
    params = PARAMS.model_copy(update={"min_failed_rows": 5})
    attempts = (
        [{name: ANSWER[name] for name in ANSWER.keys() - {"input"}}],
        [ANSWER, {**ANSWER, "traceId": "u", "output": [1, 2]}],
    )
    for number, records in enumerate(attempts):
        taken = []
        for content in (records, None, [ANSWER]):
            if content:
                write_lines(export, *content)
            report = ingest(sources, tmp_path / f"data-{number}", params, NOW, validate=accept_all, incremental=True)
            taken.append((report.accepted, report.quarantined, [reason.partition(":")[0] for reason in report.reasons]))
        assert taken == [(1, 1, [f"{Code.BAD_SETTING} file"]), (0, 0, []), (1, 0, [])], "read again where changed"
    assert_repelled("exports that stop all sources", len(attempts), len(attempts))


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


def test_read_and_delete_rejects_paths_out_of_the_folder(tmp_path: Path, assert_repelled: Count) -> None:
    folder, secret = tmp_path / "states", tmp_path / FILE
    folder.mkdir()
    secret.write_bytes(b"secret")
    (tmp_path / f"{FILE}.lock").touch()
    (folder / "link.safetensors").symlink_to(secret)
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "device.safetensors").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.safetensors")
    paths = [
        *(f"../{FILE}", str(secret), f"{folder}/../{FILE}", f"x/../../{FILE}", f"out/{FILE}", f"/{secret}"),
        *("link.safetensors", "loop.safetensors", "device.safetensors", "pipe.safetensors", "/etc/passwd", "/dev/zero"),
        *("..", ".", "", "/", "\0", "a\0.safetensors", f"file://{secret}", f"~/{FILE}", f"%2e%2e/{FILE}"),
        *(f"..\\{FILE}", "x" * 5000 + ".safetensors", "\ud800.safetensors", f"{FILE}\n", f"{FILE}/"),
    ]
    began, repelled = time.monotonic(), 0
    for path in paths:
        with pytest.raises(AbstainError):
            read_and_delete(path, folder, 1000, wait_s=0.1)
        repelled += time.monotonic() - began < 2
        began = time.monotonic()
    assert secret.read_bytes() == b"secret" and (folder / "link.safetensors").is_symlink()
    assert (tmp_path / f"{FILE}.lock").exists()
    assert_repelled("paths outside the folder", len(paths), repelled)


def test_quarantine_keeps_no_misspelled_user(assert_repelled: Count) -> None:
    """An erasure could not find it by a key that is none of the contract's."""
    privacy, repelled = Privacy(Redactor(SHIPPED)), 0
    for key in KEYS:
        fields = {"interaction_id": "i", "given_at": "2026-11-20", "thumb": "sideways", key: USER, "comment": SECRET}
        row = privacy.apply(parse_line(json.dumps(fields).encode(), "inbox", 1))
        kept = QuarantinedRow.from_row(row, map(privacy.redact_reason, row.reasons))
        repelled += kept.raw is None and USER not in kept.to_json_line() and SECRET not in kept.to_json_line()
    assert_repelled("misspelled keys of user ids", len(KEYS), repelled)


def test_redact_message_keeps_no_identifier_at_its_cut(assert_repelled: Count) -> None:
    privacy, repelled = Privacy(Redactor(SHIPPED)), 0
    lengths = range(MAX_MESSAGE_CHARACTERS - 40, MAX_MESSAGE_CHARACTERS + 400, 4)
    for length in lengths:
        shown = privacy.redact_message("x" * 7 + " y" * (length // 2) + f" {SECRET} " + "z" * 5000)
        repelled += "ann" not in shown and len(shown) <= MAX_MESSAGE_CHARACTERS + 1
    assert_repelled("identifiers in cut messages", len(lengths), repelled)
