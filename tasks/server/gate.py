"""The gate of `make up`: `abstain serve` in the background, which follows the registry.

Where nothing is in production yet it is up all the same, says so, and opens the first version that is promoted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tasks.server.addresses import HOST
from tasks.server.processes import address_of, answers, start

VARIABLE = "ABSTAIN_GATE_PORT"
NAME = "gate"
HEALTH = "/healthz"


def port() -> str:
    return os.environ.get(VARIABLE) or "8700"


def serve(root: Path) -> str:
    """Serve in the background; the address. Raises `AbstainError` where it does not start."""
    address = f"http://{HOST}:{port()}"
    command = [sys.executable, "-m", "abstain_cli.app", "serve", "--host", HOST, "--port", port()]
    start(NAME, command, root, ready=address + HEALTH, address=address)
    return address


def served_at() -> str | None:
    """The gate's address; None where it is not up."""
    address = address_of(NAME)
    return address if address and answers(address + HEALTH) else None
