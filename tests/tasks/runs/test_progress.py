from abstain_tasks.runs.progress import notify_observers, register_observer


def test_notify_observers_while_registered() -> None:
    calls: list[tuple[str, str]] = []
    with register_observer(lambda step, message: calls.append((step, message))):
        notify_observers("features", "progress 1/2")
    notify_observers("features", "ran")
    assert calls == [("features", "progress 1/2")]
