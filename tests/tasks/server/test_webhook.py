"""Messages reach a webhook that is broken or away for a moment, once; no secret of its URL is printed."""

from __future__ import annotations

import threading
import time

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.server.webhook import deliver, describe_receiver, message, receiver
from tests.tasks.receiver import Receiver, free_address


def test_broken_receiver_gets_one_message_later() -> None:
    with Receiver(statuses=[500, 429, 0, 503]) as webhook:
        deliver(webhook.url, "hello", retry_delays_s=(0, 0, 0, 0))
        assert webhook.texts == ["hello"] and webhook.statuses == []
        webhook.shutdown()


def test_receiver_that_is_away_gets_one_message_later() -> None:
    port = free_address()
    delivery = threading.Thread(target=deliver, args=(f"http://127.0.0.1:{port}", "hello", [0.05] * 200))
    delivery.start()
    time.sleep(0.1)
    with Receiver(port) as webhook:
        delivery.join()
        assert webhook.texts == ["hello"]
        webhook.shutdown()


def test_undelivered_message_is_one_line_without_the_secret() -> None:
    with Receiver(statuses=[500, 502, 404, 500]) as webhook:
        with pytest.raises(AbstainError, match="did not take an alert: it answers 502") as broken:
            deliver(webhook.url, "hello", retry_delays_s=(0,))
        with pytest.raises(AbstainError, match="it answers 404"):  # asked once: it would be the same again
            deliver(webhook.url, "hello", retry_delays_s=(0,))
        assert webhook.statuses == [500] and webhook.texts == []
        webhook.shutdown()
    with pytest.raises(AbstainError, match="it is not reached") as away:
        deliver("http://name:password@127.0.0.1:1/hook/secret", "hello", retry_delays_s=())
    for error in (broken, away):
        assert error.value.code == Code.NO_SERVICE
        assert not any(word in str(error.value) for word in ("secret", "password", "\n"))


def test_receiver_of_an_invalid_or_old_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("oncall@example.org", "ftp://example.org", "https://", "https://:8080/hook"):
        monkeypatch.setenv("ABSTAIN_ALERT_URL", bad)
        with pytest.raises(AbstainError, match=r"^environment variable ABSTAIN_ALERT_URL: not an http\(s\) URL$"):
            receiver()
    monkeypatch.setenv("ABSTAIN_ALERT_URL", " ")
    assert receiver() == ""
    monkeypatch.delenv("ABSTAIN_ALERT_URL")
    assert receiver() is None
    assert describe_receiver("https://bot:pw@hooks.example.org/services/T0/secret") == "posted to hooks.example.org"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (
            "Flow run failed: CodedFailure: A105: batch refused",
            "",
            "Flow run failed: CodedFailure: A105: batch refused",
        ),
        ("Flow run failed: KeyError: 'x'", "", "A504: Flow run failed: KeyError: 'x'"),
        ("", "", "A504: "),
        ("no rows", "A109", "A109: no rows"),
    ],
)
def test_message_has_a_code_whatever_it_is_about(text: str, code: str, line: str) -> None:
    assert message("title", text, code, "http://ui/run") == f"title\n{line}\nhttp://ui/run"
