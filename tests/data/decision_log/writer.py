"""A process that logs decisions and feedback until it is killed, and prints the id of each once it is acknowledged.

python -m tests.data.decision_log.writer URL NAME
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from itertools import count
from typing import Any

from tests.data.builders import feedback
from tests.data.decision_log.builders import decision, open_log


def write(url: str, name: str) -> None:
    log = open_log(url)
    print("ready", flush=True)
    for at in count():
        key = f"{name}-{at}"
        futures: list[Future[Any]] = [
            log.record_decision(decision(key)),
            log.record_feedback(f"f-{key}", feedback(key, comment=key)),
        ]
        for future in futures:
            future.result()
        os.write(1, f"{key}\n".encode())  # whole lines: a line is written at once or not at all


if __name__ == "__main__":
    write(*sys.argv[1:])
