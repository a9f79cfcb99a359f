"""Addresses of this home's servers, their key, and requests to them.

Whoever may call the API can make the worker run commands. So the servers that are started here require a key, created
once in the home, for every request except health checks, and no page of another origin may read an answer. A server
that others started has its own key: `PREFECT_API_AUTH_STRING`.
"""

from __future__ import annotations

import json
import os
import socket
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.secret_file import read_or_create_secret
from abstain_tasks.runs.shell import QUIET
from abstain_tasks.runs.workspace import project_root
from abstain_tasks.server.processes import START_SECONDS, home, is_responding, read_note

HOST = "127.0.0.1"
PORT = os.environ.get("ABSTAIN_UI_PORT", "4200")
UI = f"http://{HOST}:{PORT}"
HEALTH = "/api/health"


KEY = "PREFECT_API_AUTH_STRING"
"""The variable that Prefect's clients read the key from."""
VACUUM = "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"
"""The variable that tells a server which of its old records to delete."""
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
"""The variable that runs read the seconds between their heartbeats from."""
MIN_HEARTBEAT = 30
"""Of Prefect, in seconds."""


def prepare_environment() -> None:
    """Set the environment of runs: everything is written to the home, Prefect's database too; no telemetry."""
    home = Path(os.environ.setdefault("ABSTAIN_HOME", str(project_root() / ".abstain"))).resolve()
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    os.environ.update(QUIET)


def get_key_file() -> Path:
    """Return the file of the key."""
    return home() / "server.key"


def with_login(address: str) -> str:
    """Add to the address of this home's server how a person logs in.

    Args:
        address: The address.

    Returns:
        The text.
    """
    return f"{address} (log in with the text of {get_key_file()})"


def read_server_key() -> str:
    """Read the key of this home's servers; it is created if there is none.

    Returns:
        The key.

    Raises:
        AbstainError: The key is damaged or cannot be read.
    """
    file = get_key_file()
    try:
        key = read_or_create_secret(file)
    except OSError as error:
        raise AbstainError(
            Code.BAD_SETTING,
            f"{file}: the key of the Prefect server can be neither read nor made ({error.strerror}): "
            "make the file readable for its owner, you",
        ) from None
    if key is None:
        raise AbstainError(Code.BAD_SETTING, f"{file} holds no key: run `make down`, remove the file, and `make up`")
    return key


def make_server_environment(*origins: str) -> dict[str, str]:
    """Make the environment of a server that only holders of the key, and pages of `origins`, may call.

    Its own service deletes the runs that ended before the last `PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD`.

    Args:
        *origins: Accepted origins.

    Returns:
        The environment variables.
    """
    return {
        VACUUM: os.environ.get(VACUUM, "events,flow_runs"),
        "PREFECT_SERVER_API_AUTH_STRING": read_server_key(),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def find_running_server() -> str | None:
    """Return the address of this home's server; None if `make up` has not started one."""
    address = read_note().get("server")
    return address if address and is_responding(address + HEALTH) else None


def find_own_server() -> str | None:
    """Return the address of this home's server if runs report to it; None if `PREFECT_API_URL` names another one."""
    address = find_running_server()
    if address is None or os.environ.get("PREFECT_API_URL") in (None, f"{address}/api"):
        return address
    return None


def heartbeat() -> str:
    """Read the seconds between heartbeats from the environment.

    Returns:
        The seconds; "" for Prefect's default.

    Raises:
        AbstainError: The value is invalid.
    """
    seconds = os.environ.get(HEARTBEAT, "").strip()
    if seconds and not (seconds.isdecimal() and int(seconds) >= MIN_HEARTBEAT):
        raise AbstainError(
            Code.BAD_SETTING,
            f"environment variable {HEARTBEAT}: {seconds!r} is no whole number of seconds from {MIN_HEARTBEAT} on",
        )
    return seconds


def report_to(address: str) -> None:
    """Make Prefect, once it is imported, report to this home's server.

    Runs send heartbeats as often as the server of `make up` was started to expect them, whatever this environment says:
    a run that sends fewer would be marked as crashed while it runs.

    Args:
        address: The address of the server.
    """
    os.environ["PREFECT_API_URL"] = f"{address}/api"
    os.environ[KEY] = read_server_key()
    os.environ.pop(HEARTBEAT, None)
    if seconds := read_note().get("heartbeat"):
        os.environ[HEARTBEAT] = seconds


def require_key() -> None:
    """Check that the server at `PREFECT_API_URL` accepts our key, if it requires one.

    Prefect itself reports a server that cannot be reached.

    Raises:
        AbstainError: The server rejects our key.
    """
    url = os.environ["PREFECT_API_URL"]
    if os.environ.get("PREFECT_API_KEY"):  # Prefect Cloud
        return
    try:
        with urlopen(request(f"{url}/admin/version"), timeout=10):
            pass
    except HTTPError as error:
        if error.code == 401:
            raise AbstainError(
                Code.NO_SERVICE,
                f"the Prefect server at {url} requires a key: set {KEY} to the text of `server.key` in the home of "
                "the project that started it",
            ) from None
    except OSError:
        pass


def request(url: str, body: bytes | None = None) -> Request:
    """Make a request with the key to the server at `PREFECT_API_URL`.

    Args:
        url: The URL.
        body: Body of a POST request; None for GET.

    Returns:
        The request.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Basic {b64encode(key.encode()).decode()}"
    return Request(url, body, headers)


def post(url: str, body: dict[str, Any]) -> Any:
    """Post JSON to the server at `PREFECT_API_URL`.

    Args:
        url: The URL.
        body: The content.

    Returns:
        The parsed answer.
    """
    with urlopen(request(url, json.dumps(body).encode()), timeout=START_SECONDS) as reply:
        return json.load(reply)


def require_free_port(variable: str, port: str) -> None:
    """Require that a port can be served on.

    Args:
        variable: The environment variable that sets the port.
        port: Its value.

    Raises:
        AbstainError: It is no port number, or in use.
    """
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
