from __future__ import annotations

from abstain_tasks.runs.progress import notify_observers, register_observer


def test_observers_hear_every_step_while_they_listen_and_no_longer() -> None:
    heard: list[tuple[str, str]] = []
    with register_observer(lambda step, says: heard.append((step, says))):
        notify_observers("features", "progress 1/2")
    notify_observers("features", "ran")
    assert heard == [("features", "progress 1/2")]
