"""Processes that log until they are killed, and what they had acknowledged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

from abstain.core.contracts import Thumb
from abstain.data.decision_log import queries
from tests.conftest import ROOT
from tests.data.decision_log.builders import open_log


def kill_writers(url: str, names: list[str], seed: int) -> list[str]:
    """The ids that processes called `names` acknowledged until they were killed, all at once, at a random moment."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.data.decision_log.writer", url]
    writers = [
        subprocess.Popen([*command, name], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        for writer in writers:
            assert writer.stdout and writer.stdout.readline() == "ready\n"
        first = [writer.stdout.readline().strip() for writer in writers if writer.stdout]
        time.sleep(random.Random(seed).uniform(0.05, 0.5))
    finally:
        for writer in writers:
            writer.kill()
    return first + [key for writer in writers for key in writer.communicate()[0].split()]


def assert_all_there(url: str, acknowledged: list[str]) -> None:
    """Every acknowledged row is in the log, whole, and rows can be logged again."""
    log = open_log(url)
    assert acknowledged
    for key in acknowledged:
        found = queries.get_decision(log.database, key)
        assert found and found.decision.interaction and found.decision.interaction.interaction_id == key
        assert [row.comment for row in found.feedback if isinstance(row, Thumb)] == [key]
    counts = queries.count_decisions(log.database)
    assert counts["show"] >= len(acknowledged) <= counts["feedback"]
    log.close()
