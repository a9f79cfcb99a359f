"""Which Prefect server a run reports to: the one that `make up` started, else one for the run's own duration."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

UI = "http://127.0.0.1:4200"


def is_running(url: str = UI) -> bool:
    """Whether a Prefect server answers at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def use_running_server() -> None:
    """Report to the server of `make up`, unless `PREFECT_API_URL` names another; call before importing prefect."""
    if "PREFECT_API_URL" not in os.environ and is_running():
        os.environ["PREFECT_API_URL"] = f"{UI}/api"
