"""A webhook of this machine that keeps its messages, and is broken or away when it is told to be."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """Takes messages, but answers the first requests with `statuses`."""

    def __init__(self, port: int = 0, statuses: list[int] | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.statuses = statuses or []
        self.alerts: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/secret"

    @property
    def texts(self) -> list[str]:
        return [alert["text"] for alert in self.alerts]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        if self.server.statuses:
            self.send_response(self.server.statuses.pop(0))
        else:
            self.server.alerts.append(json.loads(body))
            self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""


def free_address() -> int:
    """A port at which nothing listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])
