from __future__ import annotations

from tasks.runs.progress import observe, register_observer


def test_observers_hear_every_step_while_they_listen_and_no_longer() -> None:
    heard: list[tuple[str, str]] = []
    with register_observer(lambda step, says: heard.append((step, says))):
        observe("features", "progress 1/2")
    observe("features", "ran")
    assert heard == [("features", "progress 1/2")]
