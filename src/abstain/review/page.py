"""The review page: one HTML file and two addresses, for the reviewer at this machine and nobody else.

Three decisions:

* It listens on 127.0.0.1 alone, answers only requests that were sent to that name (no foreign name that resolves to
  it), and takes verdicts only from its own page (`Origin`): another site in the same browser can neither read nor
  write.
* The page loads nothing, and the browser is told to refuse if it tried to (`Content-Security-Policy`). Texts are shown
  as text, never as markup.
* Every verdict goes to `Desk.save` at once; the page keeps none.
"""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from contextlib import suppress
from importlib import resources
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from abstain.core.errors import AbstainError
from abstain.review.review_file import Desk, Stale, Verdict

HOST = "127.0.0.1"


def make_app(desk: Desk, port: int) -> FastAPI:
    """The page over `desk`, for requests to this machine's `port`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OwnPageOnly, port=port)
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    @app.get("/")
    def show() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/rows")
    def rows() -> JSONResponse:
        try:
            return JSONResponse({"file": desk.path.name, "rows": desk.rows()}, headers=headers)
        except AbstainError as error:
            return JSONResponse({"says": str(error)}, 503)

    @app.post("/verdict")
    def save(verdict: Verdict) -> JSONResponse:
        try:
            return JSONResponse({"row": desk.save(verdict)})
        except Stale as stale:
            return JSONResponse({"says": str(stale), "row": stale.now}, 409)
        except AbstainError as error:
            return JSONResponse({"says": str(error)}, 503)
        except OSError as error:
            return JSONResponse({"says": f"{desk.path} could not be written: {error.strerror}"}, 503)

    return app


def serve(desk: Desk, listening: socket.socket) -> None:
    """Serve the page on `listening` until it is interrupted."""
    app = make_app(desk, listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    with suppress(KeyboardInterrupt):  # which is how it is ended
        uvicorn.Server(config).run(sockets=[listening])


def listen(port: int) -> socket.socket:
    """A socket on this machine's `port`, 0 for any. Raises `AbstainError` where it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AbstainError(f"port {port} cannot be used ({error.strerror}): name another one with --port") from None


class OwnPageOnly:
    """Refuses what was not sent to this machine by name or address, and writes that are not of the page itself."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await JSONResponse({"says": refusal}, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers: dict[bytes, Any] = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if host not in self._hosts:
            return "this page is for this machine alone"
        if scope["method"] not in ("GET", "HEAD") and origin != f"http://{host}":
            return "only the page itself may write"
        return None


def _policy(page: str) -> str:
    """Nothing but the page's own script and style, known by their digests, and requests to where it came from."""

    def digests(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in found)

    own = f"script-src {digests('script')}; style-src {digests('style')}; connect-src 'self'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
