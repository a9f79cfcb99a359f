"""Report pages of runs, stored beside the checkout and linked from the run: the Prefect UI cannot link to files.

`make up` serves `$ABSTAIN_HOME/reports` on this machine, read-only. A report is found by the id of its run, which is
random and nowhere listed; a request to a foreign name of this machine, as a page in the browser can cause one, is
refused. Where another server serves that folder, `ABSTAIN_REPORTS_URL` is its address; without a server, a link is the
file's own path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from abstain.core.files import write_atomically
from tasks.server.addresses import HOST, PORT
from tasks.server.processes import home, is_responding, note

if TYPE_CHECKING:
    from starlette.applications import Starlette

VARIABLE = "ABSTAIN_REPORTS_PORT"


def folder() -> Path:
    return home() / "reports"


def port() -> str:
    """The port at which `make up` serves the folder: by default one above the UI's."""
    return os.environ.get(VARIABLE) or (str(int(PORT) + 1) if PORT.isdecimal() else PORT)


def serve_here() -> None:
    """Serve the folder until it is interrupted."""
    import uvicorn

    folder().mkdir(parents=True, exist_ok=True)
    uvicorn.run(make_app(folder()), host=HOST, port=int(port()), log_level="warning", server_header=False)


def make_app(folder: Path) -> Starlette:
    """What is served of `folder`: its files, by their names."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    def say_what_this_is(_: Request) -> PlainTextResponse:
        return PlainTextResponse("Reports of Abstain's runs: each is linked from its run in the Prefect UI.\n")

    return Starlette(
        routes=[Route("/", say_what_this_is), Mount("/", StaticFiles(directory=folder))],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)],
    )


def served_at() -> str | None:
    """The address that serves the folder; None where it is not served."""
    if given := os.environ.get("ABSTAIN_REPORTS_URL"):
        return given.rstrip("/")
    address = note().get("reports")
    return address if address and is_responding(address) else None


def keep(run: str, name: str, page: str) -> str:
    """Write `page` as the report `name` of a run, and return its address."""
    file = folder() / run / f"{name}.html"
    write_atomically(file, page.encode())
    address = served_at()
    return f"{address}/{run}/{name}.html" if address else file.as_uri()
