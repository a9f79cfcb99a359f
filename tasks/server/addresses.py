"""Addresses of this home's servers, and requests to them."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.server.processes import START_SECONDS, address_of, answers
from tasks.shell import QUIET
from tasks.workspace import project_root

HOST = "127.0.0.1"
PORT = os.environ.get("ABSTAIN_UI_PORT", "4200")
UI = f"http://{HOST}:{PORT}"
HEALTH = "/api/health"


def prepare_environment() -> None:
    """Runs write everything beside the checkout, Prefect's database too; no telemetry."""
    home = Path(os.environ.setdefault("ABSTAIN_HOME", str(project_root() / ".abstain"))).resolve()
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    os.environ.update(QUIET)


def running_server() -> str | None:
    """The address of this home's server; None where `make up` has not started one."""
    address = address_of("server")
    return address if address and answers(address + HEALTH) else None


def report_to(address: str) -> None:
    """Make Prefect, once it is imported, report to the server at `address`."""
    os.environ["PREFECT_API_URL"] = f"{address}/api"


def post(url: str, body: dict[str, Any]) -> Any:
    """The answer to `body`, both JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS) as reply:
        return json.load(reply)


def require_free_port(variable: str, port: str) -> None:
    """Raise `AbstainError` unless `port`, the value of the environment variable, can be served on."""
    try:
        with socket.create_server((HOST, int(port))):
            pass
    except (ValueError, OverflowError):
        raise AbstainError(Code.BAD_SETTING, f"environment variable {variable}: {port!r} is no port number") from None
    except OSError:
        raise AbstainError(
            Code.NO_SERVICE,
            f"port {port} is in use by another program: stop that, or take another port: {variable}=4300 make up",
        ) from None
