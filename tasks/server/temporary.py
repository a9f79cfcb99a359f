"""The server of a run: that of `make up` if it is up, otherwise one that starts and ends with the run."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.runs.shell import environment
from abstain_tasks.runs.workspace import project_root
from abstain_tasks.server import webhook
from abstain_tasks.server.addresses import (
    HEALTH,
    HOST,
    find_own_server,
    make_server_environment,
    post,
    report_to,
    require_key,
)
from abstain_tasks.server.automations import FLOWS
from abstain_tasks.server.processes import START_SECONDS, STOP_SECONDS, get_log_path, hold_server_lock, is_responding

NAME = "temporary-server"
NO_AUTOMATIONS = {"PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false"}
"""It has those of `make up` in its database, but no worker to run what they start."""


@contextmanager
def server_for_run() -> Iterator[None]:
    """Give this process a server to report to; import the flow in the block, so that imports and the start overlap.

    That is `PREFECT_API_URL` if it is set, else the server of `make up`, else a temporary one. The block must be
    entered before prefect is imported, which reads the variable once.

    Yields:
        Nothing.

    Raises:
        AbstainError: No server starts, or it rejects our key.
    """
    if address := find_own_server():
        report_to(address)
        yield
        return
    if "PREFECT_API_URL" in os.environ:
        require_key()
        yield
        return
    webhook.receiver()  # an invalid one is reported before the run
    with hold_server_lock("starting"):
        process, address = _start()
        report_to(address)
        yield
        if not is_responding(address + HEALTH, timeout=START_SECONDS):
            process.kill()
            raise AbstainError(Code.NO_SERVICE, f"the temporary server did not start: see {get_log_path(NAME)}")


def serve_child(port: int) -> None:
    """Serve the API of the temporary server on an inherited socket until standard input closes.

    Args:
        port: File descriptor of the socket.
    """
    import uvicorn
    from prefect.server.api.server import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error"))

    def stop_with_parent() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True
        time.sleep(STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=port)])


def _start() -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on its own port; it ends when our end of its standard input closes, however this process ends.

    This process binds the port, so that no other can take it, and requests before the server is ready wait for it.
    """
    with socket.create_server((HOST, 0)) as port, get_log_path(NAME).open("ab") as log:
        address = f"http://{HOST}:{port.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "abstain_tasks.server", "child", str(port.fileno())],
            env=environment(project_root()) | make_server_environment(address) | NO_AUTOMATIONS,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[port.fileno()],
            start_new_session=True,  # Ctrl-C is for the run, which still has to report that it was stopped
        )
    atexit.register(_stop, process, address, datetime.now(UTC))
    return process, address


def _stop(process: subprocess.Popen[bytes], address: str, began: datetime) -> None:
    if url := webhook.receiver():
        _alert_failures(address, began, url)
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _alert_failures(address: str, began: datetime, url: str) -> None:
    """Post the failed runs of this process to `url`, as the automations of a permanent server do."""
    if not is_responding(address + HEALTH):
        return
    failed = {"state": {"type": {"any_": ["FAILED", "CRASHED"]}}, "start_time": {"after_": began.isoformat()}}
    for name in FLOWS:
        flow_filter = {"flow_runs": failed, "flows": {"name": {"any_": [name]}}}
        for run in post(f"{address}/api/flow_runs/filter", flow_filter):
            title = f"{name}: run {run['name']} has {run['state']['name'].lower()}"
            try:
                webhook.deliver(
                    url, webhook.message(title, run["state"]["message"] or ""), webhook.SHORT_RETRY_DELAYS_S
                )
            except AbstainError as error:
                print(f"error {error.message_with_code}", file=sys.stderr)
