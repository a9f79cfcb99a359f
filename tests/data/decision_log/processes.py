"""Processes that log until they are killed, and what they had acknowledged.

python -m tests.data.decision_log.processes URL NAME
"""

import os
import random
import subprocess
import sys
import time
from contextlib import closing
from itertools import count

from abstain.core.contracts import Thumb
from abstain.data.decision_log import queries
from tests.conftest import ROOT
from tests.data.decision_log.builders import decision, open_log
from tests.factories import feedback


def kill_writers(url: str, names: list[str], seed: int) -> list[str]:
    """Kill processes that log, all at once at a random moment, and return the ids that they had acknowledged."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.data.decision_log.processes", url]
    writers = [
        subprocess.Popen([*command, name], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        first = [writer.stdout.readline().strip() for writer in writers]
        time.sleep(random.Random(seed).uniform(0.05, 0.5))
    finally:
        for writer in writers:
            writer.kill()
    return first + [key for writer in writers for key in writer.communicate()[0].split()]


def assert_acknowledged_rows(url: str, acknowledged: list[str]) -> None:
    """Assert that every acknowledged row is in the log, whole, and that the log can be opened."""
    with closing(open_log(url)) as log:
        assert acknowledged
        for key in acknowledged:
            details = queries.get_decision(log.database, key)
            assert details and details.decision.interaction and details.decision.interaction.interaction_id == key
            assert [row.comment for row in details.feedback if isinstance(row, Thumb)] == [key]
        counts = queries.count_decisions(log.database)
        assert counts["show"] >= len(acknowledged) <= counts["feedback"]


def write(url: str, name: str) -> None:
    """Log decisions and feedback until the end of the process, and print each id once it is acknowledged."""
    log = open_log(url)
    for number in count():
        key = f"{name}-{number}"
        futures = log.record_decision(decision(key)), log.record_feedback(f"f-{key}", feedback(key, comment=key))
        for future in futures:
            future.result()
        os.write(1, f"{key}\n".encode())  # whole lines: a line is written at once or not at all


if __name__ == "__main__":
    write(*sys.argv[1:])
