import threading
import time

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.server.webhook import deliver, describe_receiver, message, receiver
from tests.ports import free_port
from tests.tasks.receiver import Receiver


def test_deliver_retries_absent_or_broken_receiver() -> None:
    port = free_port()
    delivery = threading.Thread(target=deliver, args=(f"http://127.0.0.1:{port}", "hello", [0.05] * 200))
    delivery.start()
    time.sleep(0.1)
    with Receiver(port, statuses=[500, 429, 0, 503]) as webhook:
        delivery.join()
        assert webhook.texts == ["hello"] and webhook.statuses == []
        webhook.shutdown()


def test_deliver_failure_hides_secret() -> None:
    with Receiver(statuses=[500, 502, 404, 500]) as webhook:
        with pytest.raises(AbstainError, match="502") as broken:
            deliver(webhook.url, "hello", retry_delays_s=(0,))
        with pytest.raises(AbstainError, match="404"):  # not retried
            deliver(webhook.url, "hello", retry_delays_s=(0,))
        assert webhook.statuses == [500] and webhook.texts == []
        webhook.shutdown()
    with pytest.raises(AbstainError) as away:
        deliver("http://name:password@127.0.0.1:1/hook/secret", "hello", retry_delays_s=())
    for error in (broken, away):
        assert error.value.code == Code.NO_SERVICE
        assert not any(word in str(error.value) for word in ("secret", "password", "\n"))


def test_receiver_invalid_or_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("oncall@example.org", "ftp://example.org", "https://", "https://:8080/hook"):
        monkeypatch.setenv("ABSTAIN_ALERT_URL", bad)
        with pytest.raises(AbstainError, match="ABSTAIN_ALERT_URL"):
            receiver()
    monkeypatch.setenv("ABSTAIN_ALERT_URL", " ")
    assert receiver() == ""
    monkeypatch.delenv("ABSTAIN_ALERT_URL")
    assert receiver() is None
    assert describe_receiver("https://bot:pw@hooks.example.org/services/T0/secret") == "posted to hooks.example.org"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("CodedFailure: A105: batch rejected", "", "CodedFailure: A105: batch rejected"),
        ("Flow run failed: KeyError: 'x'", "", "A504: Flow run failed: KeyError: 'x'"),
        ("no rows", "A109", "A109: no rows"),
    ],
)
def test_message_has_code(text: str, code: str, line: str) -> None:
    assert message("title", text, code, "http://ui/run") == f"title\n{line}\nhttp://ui/run"
