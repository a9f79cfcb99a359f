from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from abstain.llm.features.cache_files import open_store
from tasks.fan_out import todo
from tasks.fan_out.todo import Heartbeat, LivenessMonitor, ShardQueue, sweep

KEY, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def batch(tmp_path: Path) -> ShardQueue:
    return ShardQueue(open_store(tmp_path), KEY)


def test_a_batch_sees_its_own_files_only(batch: ShardQueue, tmp_path: Path) -> None:
    batch.write("1f", "todo", "work")
    batch.write("1f", "done", "{}")
    ShardQueue(batch.store, OTHER).write("2f", "todo", "other")
    (tmp_path / "todo" / "mine.txt").touch()
    assert batch.names() == {"todo": {"1f"}, "done": {"1f"}, "beat": set()}
    assert batch.read("1f", "todo") == "work" and batch.read("2f", "todo") is None
    batch.clean()
    assert sorted(file.name for file in (tmp_path / "todo").iterdir()) == [f"{OTHER}.2f.todo", "mine.txt"]


def test_batches_of_killed_runs_go_after_a_day_and_no_living_one_does(batch: ShardQueue, tmp_path: Path) -> None:
    living = ShardQueue(batch.store, OTHER)
    for one in (batch, living):
        one.write("1f", "todo", "work")
    yesterday = time.time() - 25 * 3600
    for file in (tmp_path / "todo").iterdir():
        os.utime(file, (yesterday, yesterday))
    living.write("run", "beat", "{}")
    sweep(batch.store)
    assert batch.names()["todo"] == set() and living.names()["todo"] == {"1f"}


def test_a_pulse_beats_names_its_claim_and_ends(batch: ShardQueue) -> None:
    with Heartbeat(batch, "me", every=0.02) as pulse:
        assert batch.claim_of("me") is None
        pulse.claim("1f")
        assert batch.claim_of("me") == "1f"
        first, deadline = batch.read("me", "beat"), time.monotonic() + 10
        while batch.read("me", "beat") == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert batch.claim_of("me") is None and batch.names()["beat"] == set()


def test_silence_is_counted_by_the_watcher_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(todo.time, "monotonic", lambda: now[0])
    watch, heard = LivenessMonitor(), []
    for now[0], content in ((0.0, "a"), (5.0, "a"), (6.0, "b"), (9.0, "b")):
        heard.append(watch.silent("one", content))
    assert heard == [0, 5, 0, 3] and watch.silent("other", "b") == 0
