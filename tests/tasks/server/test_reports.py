import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from starlette.testclient import TestClient

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.server import addresses, reports
from abstain_tasks.server.webhook import deliver, describe_receiver, message, receiver
from tests.ports import free_port
from tests.tasks.receiver import Receiver


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "a home"))
    monkeypatch.delenv("ABSTAIN_REPORTS_URL", raising=False)
    monkeypatch.delenv("ABSTAIN_REPORTS_PORT", raising=False)
    return tmp_path / "a home"


def test_write_page_links_to_file_or_reports_url(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = reports.write_page("run-1", "validation", "<p>é</p>")
    file = home / "reports" / "run-1" / "validation.html"
    assert Path(unquote(urlsplit(address).path)) == file
    assert file.read_text(encoding="utf-8") == "<p>é</p>"
    assert reports.write_page("run-1", "validation", "<p>again</p>") == address
    assert file.read_text(encoding="utf-8") == "<p>again</p>"
    monkeypatch.setenv("ABSTAIN_REPORTS_URL", "https://reports.example.org/abstain/")
    assert reports.write_page("run-1", "ingest", "x") == "https://reports.example.org/abstain/run-1/ingest.html"


def test_get_address_dead_server_is_none(home: Path) -> None:
    home.mkdir()
    (home / "up.json").write_text('{"reports": "http://127.0.0.1:1"}')  # left by a machine that was switched off
    assert reports.get_address() is None


def test_reports_app_serves_known_pages_only(home: Path) -> None:
    reports.write_page("run-1", "validation", "<p>figures</p>")
    (home / "secret").write_text("beside the reports")
    (home / "reports" / "linked").symlink_to(home / "secret")
    page = TestClient(reports.make_app(home / "reports"), base_url="http://127.0.0.1:4201", follow_redirects=False)
    name = "/run-1/validation.html"
    assert page.get(name).text == "<p>figures</p>" == page.get(name, headers={"Host": "localhost:4201"}).text
    assert "run-1" not in page.get("/").text
    for hidden in ("/run-1", "/run-1/", "/linked", "/../secret", "/%2e%2e/secret", "/run-1/%2e%2e/%2e%2e/secret"):
        assert page.get(hidden).status_code == 404
    for host in ("rebound.evil.example", "127.0.0.1.evil.example:4201"):
        assert page.get(name, headers={"Host": host}).status_code == 400


def test_reports_port_default_and_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reports.port() == str(int(addresses.PORT) + 1)
    monkeypatch.setenv("ABSTAIN_REPORTS_PORT", "5000")
    assert reports.port() == "5000"
    for bad in ("http", "70000", "-1"):
        with pytest.raises(AbstainError, match=f"ABSTAIN_REPORTS_PORT: '{bad}'"):
            addresses.require_free_port(reports.VARIABLE, bad)


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
