"""Addresses of this home's servers, the key that they ask for, and requests to them.

Whoever may call the API has commands run by the worker. So the servers that are started here require a key, made once
in the home, of every request but those for their health, and no page of another origin may read an answer. A server
that others started has a key of its own: `PREFECT_API_AUTH_STRING`.
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
from tasks.runs.shell import QUIET
from tasks.runs.workspace import project_root
from tasks.server.processes import START_SECONDS, home, is_responding, note

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
    """Runs write everything beside the checkout, Prefect's database too; no telemetry."""
    home = Path(os.environ.setdefault("ABSTAIN_HOME", str(project_root() / ".abstain"))).resolve()
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    os.environ.update(QUIET)


def key_file() -> Path:
    return home() / "server.key"


def with_login(address: str) -> str:
    """The address of this home's server, and how a person logs in there."""
    return f"{address} (log in with the text of {key_file()})"


def server_key() -> str:
    """The key of this home's servers, made where there is none. Raises `AbstainError` for one that is damaged."""
    file = key_file()
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
    """The environment of a server that only holders of the key may call, and pages of no other than `origins`.

    Its own service deletes the runs that ended before the last `PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD`.
    """
    return {
        VACUUM: os.environ.get(VACUUM, "events,flow_runs"),
        "PREFECT_SERVER_API_AUTH_STRING": server_key(),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def running_server() -> str | None:
    """The address of this home's server; None where `make up` has not started one."""
    address = note().get("server")
    return address if address and is_responding(address + HEALTH) else None


def own_server() -> str | None:
    """The address of this home's server where it is the one to report to: `PREFECT_API_URL` names no other."""
    address = running_server()
    if address is None or os.environ.get("PREFECT_API_URL") in (None, f"{address}/api"):
        return address
    return None


def heartbeat() -> str:
    """The seconds between heartbeats that this environment asks for, empty for Prefect's own. Raises `AbstainError`."""
    seconds = os.environ.get(HEARTBEAT, "").strip()
    if seconds and not (seconds.isdecimal() and int(seconds) >= MIN_HEARTBEAT):
        raise AbstainError(
            Code.BAD_SETTING,
            f"environment variable {HEARTBEAT}: {seconds!r} is no whole number of seconds from {MIN_HEARTBEAT} on",
        )
    return seconds


def report_to(address: str) -> None:
    """Make Prefect, once it is imported, report to this home's server at `address`.

    Runs send heartbeats as often as the server of `make up` was started to expect them, whatever this environment
    says: one that sends fewer would be marked as crashed while it runs.
    """
    os.environ["PREFECT_API_URL"] = f"{address}/api"
    os.environ[KEY] = server_key()
    os.environ.pop(HEARTBEAT, None)
    if seconds := note().get("heartbeat"):
        os.environ[HEARTBEAT] = seconds


def require_key() -> None:
    """Raise `AbstainError` where the server at `PREFECT_API_URL` requires a key, and refuses ours.

    Prefect reports a server that is not reached.
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
    """A request with the key, to the server at `PREFECT_API_URL`."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Basic {b64encode(key.encode()).decode()}"
    return Request(url, body, headers)


def post(url: str, body: dict[str, Any]) -> Any:
    """The answer to `body`, both JSON, of the server at `PREFECT_API_URL`."""
    with urlopen(request(url, json.dumps(body).encode()), timeout=START_SECONDS) as reply:
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
