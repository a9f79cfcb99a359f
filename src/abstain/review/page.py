"""The review page: one HTML file and two addresses, for the reviewer at this machine alone (docs/decisions/051)."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.review.review_file import ReviewEntry, ReviewFile, Stale

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")


def make_app(file: ReviewFile, port: int, token: str) -> FastAPI:
    """The page over `file`, for requests to this machine's `port`. Rows and verdicts are for who has the `token`.

    Other users of this machine reach the port, too, and can send any header, so the page itself says nothing.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    def require_token(authorization: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(403)

    @app.exception_handler(HTTPException)
    def refuse(_: Request, refused: HTTPException) -> JSONResponse:
        message = "open the address that `abstain review serve` has printed"
        return JSONResponse({"message": message}, refused.status_code)

    @app.get("/")
    def show() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/rows", dependencies=[Depends(require_token)])
    def rows() -> JSONResponse:
        try:
            return JSONResponse({"file": file.path.name, "rows": file.rows()}, headers=headers)
        except AbstainError as error:
            return JSONResponse({"message": error.coded}, 503)

    @app.post("/verdict", dependencies=[Depends(require_token)])
    def save(verdict: ReviewEntry, origin: Annotated[str, Header()] = "") -> JSONResponse:
        if origin not in [f"http://{name}:{port}" for name in NAMES]:
            return JSONResponse({"message": "only the page itself may write"}, 403)
        try:
            return JSONResponse({"row": file.save(verdict)})
        except Stale as stale:
            return JSONResponse({"message": str(stale), "row": stale.now}, 409)
        except AbstainError as error:
            return JSONResponse({"message": error.coded}, 503)
        except OSError as error:
            return JSONResponse({"message": f"{file.path} could not be written: {error.strerror}"}, 503)

    return app


def make_token() -> str:
    """A random token for one `serve`, which belongs into the fragment of the address: browsers do not send that."""
    return secrets.token_urlsafe(32)


def serve(file: ReviewFile, listening: socket.socket, token: str) -> None:
    """Serve the page on `listening` until it is interrupted."""
    app = make_app(file, listening.getsockname()[1], token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    with suppress(KeyboardInterrupt):  # which is how it is ended
        uvicorn.Server(config).run(sockets=[listening])


def listen(port: int) -> socket.socket:
    """A socket on this machine's `port`, 0 for any. Raises `AbstainError` where it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AbstainError(
            Code.NO_SERVICE, f"port {port} cannot be used ({error.strerror}): name another one with --port"
        ) from None


def open_browser(url: str, private: Path) -> None:
    """Open a browser with a window: one that runs in the terminal would take the keyboard from this program.

    It is sent to `url` by a file in the folder `private`: all users of the machine see the arguments of a process.
    """
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        file = private / "open.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">')
        webbrowser.open(file.as_uri())


def _policy(page: str) -> str:
    """The policy that allows only the page's own script and style, by digest, and requests to its own origin."""

    def digests(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in blocks)

    own = f"script-src {digests('script')}; style-src {digests('style')}; connect-src 'self'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
