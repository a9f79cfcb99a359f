"""Report pages of runs, stored in the home and linked from the run, because the Prefect UI cannot link to files.

`make up` serves `$ABSTAIN_HOME/reports` on this machine, read-only. A report is found by the id of its run, which is
random and listed nowhere. A request with a foreign host name, as a page in the browser can cause one, is rejected. If
another server serves that folder, `ABSTAIN_REPORTS_URL` is its address; without a server, a link is the file's path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from abstain.core.files import write_atomically
from abstain_tasks.server.addresses import HOST, PORT
from abstain_tasks.server.processes import home, is_responding, read_note

if TYPE_CHECKING:
    from starlette.applications import Starlette

VARIABLE = "ABSTAIN_REPORTS_PORT"


def get_folder() -> Path:
    """Return the folder of the reports."""
    return home() / "reports"


def port() -> str:
    """Return the port at which `make up` serves the folder; by default one above the UI's."""
    return os.environ.get(VARIABLE) or (str(int(PORT) + 1) if PORT.isdecimal() else PORT)


def serve_here() -> None:
    """Serve the folder until it is interrupted."""
    import uvicorn

    get_folder().mkdir(parents=True, exist_ok=True)
    uvicorn.run(make_app(get_folder()), host=HOST, port=int(port()), log_level="warning", server_header=False)


def make_app(folder: Path) -> Starlette:
    """Make the application that serves the files of a folder.

    Args:
        folder: The folder.

    Returns:
        The application.
    """
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


def get_address() -> str | None:
    """Return the address that serves the folder; None if it is not served."""
    if url := os.environ.get("ABSTAIN_REPORTS_URL"):
        return url.rstrip("/")
    address = read_note().get("reports")
    return address if address and is_responding(address) else None


def write_page(run: str, name: str, page: str) -> str:
    """Write a report page of a run.

    Args:
        run: Id of the run.
        name: Name of the report.
        page: HTML.

    Returns:
        Its address.
    """
    file = get_folder() / run / f"{name}.html"
    write_atomically(file, page.encode())
    address = get_address()
    return f"{address}/{run}/{name}.html" if address else file.as_uri()
