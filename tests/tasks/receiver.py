"""A webhook of this machine that keeps its messages, and is broken or away when it is told to be."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """Takes messages, but answers the first requests with `statuses`; 0: with what is no HTTP."""

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
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if not status:
            self.wfile.write(b"no status line\r\n\r\n")
            return
        if status == 200:
            self.server.alerts.append(json.loads(body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...
