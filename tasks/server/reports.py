"""Report pages of runs, stored beside the checkout and linked from the run: the Prefect UI cannot link to files.

`make up` serves `$ABSTAIN_HOME/reports` on this machine, read-only. Where another server serves that folder,
`ABSTAIN_REPORTS_URL` is its address; without a server, a link is the file's own path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from abstain.core.files import write_atomically
from tasks.server.addresses import HOST, PORT
from tasks.server.processes import address_of, answers, home, start

VARIABLE = "ABSTAIN_REPORTS_PORT"
NAME = "reports"


def folder() -> Path:
    return home() / "reports"


def port() -> str:
    """The port at which `make up` serves the folder: by default one above the UI's."""
    return os.environ.get(VARIABLE) or (str(int(PORT) + 1) if PORT.isdecimal() else PORT)


def serve(root: Path) -> str:
    """Serve the folder in the background; its address."""
    folder().mkdir(parents=True, exist_ok=True)
    address = f"http://{HOST}:{port()}"
    command = [sys.executable, "-m", "http.server", port(), "--bind", HOST, "--directory", str(folder())]
    start(NAME, command, root, ready=address, address=address)
    return address


def served_at() -> str | None:
    """The address that serves the folder; None where it is not served."""
    if given := os.environ.get("ABSTAIN_REPORTS_URL"):
        return given.rstrip("/")
    address = address_of(NAME)
    return address if address and answers(address) else None


def keep(run: str, name: str, page: str) -> str:
    """Write `page` as the report `name` of a run, and return its address."""
    file = folder() / run / f"{name}.html"
    write_atomically(file, page.encode())
    address = served_at()
    return f"{address}/{run}/{name}.html" if address else file.as_uri()
