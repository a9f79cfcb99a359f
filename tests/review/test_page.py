"""What the page's addresses take and refuse; how it works in a browser is in tests/flows/test_review.py."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from abstain.core.errors import AbstainError
from abstain.review import page as module
from abstain.review.page import listen, make_app, make_token, open_browser
from abstain.review.review_file import ReviewFile
from tests.data.builders import interaction
from tests.review.builders import cells_of, write_file

PORT = 8765
OWN = {"Origin": f"http://127.0.0.1:{PORT}"}
TOKEN = make_token()
MESSAGE = "open the address that `abstain review serve` has printed"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_file(tmp_path / "reviews.xlsx", interaction())


@pytest.fixture
def page(file: Path) -> TestClient:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(make_app(ReviewFile(file), PORT, TOKEN), base_url=f"http://127.0.0.1:{PORT}", headers=headers)


def verdict(page: TestClient, **changes: object) -> dict[str, object]:
    (row,) = page.get("/rows").json()["rows"]
    given = {"complete": True, "correct": False, "truthful": True, "ideal_answer": "", "reviewer": "Ann"}
    return {"row": row["row"], "version": row["version"], **given, **changes}


def test_verdict_is_written_and_a_stale_one_is_not(page: TestClient, file: Path) -> None:
    seen = verdict(page)
    reply = page.post("/verdict", json=seen, headers=OWN)
    assert reply.status_code == 200 and reply.json()["row"]["done"]
    stale = page.post("/verdict", json=seen | {"correct": True}, headers=OWN)
    assert (stale.status_code, stale.json()["row"]) == (409, reply.json()["row"]), "with what there is now"
    assert cells_of(file)[0]["correct"] == "no"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", f"http://127.0.0.1:{PORT + 1}", f"https://127.0.0.1:{PORT}"]
)
def test_another_site_cannot_write(page: TestClient, file: Path, origin: str) -> None:
    sent = verdict(page)
    before = file.read_bytes()
    assert page.post("/verdict", json=sent, headers={"Origin": origin} if origin else {}).status_code == 403
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "given",
    ["", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {make_token()}", f"Basic {TOKEN}", "é"],
    ids=["none", "empty", "longer", "another", "of another kind", "not ASCII"],  # the tokens differ from run to run
)
def test_another_user_of_this_machine_neither_reads_nor_writes(page: TestClient, file: Path, given: str) -> None:
    """Who has no token may send any other header."""
    sent, before = verdict(page), file.read_bytes()
    headers = {**OWN, "Authorization": given.encode()}
    for reply in (page.get("/rows", headers=headers), page.post("/verdict", json=sent, headers=headers)):
        assert reply.status_code == 403 and reply.json() == {"message": MESSAGE}
    assert file.read_bytes() == before
    assert file.name not in page.get("/", headers=headers).text


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", f"127.0.0.1.evil.example:{PORT}", ""])
def test_foreign_name_of_this_machine_gets_nothing(page: TestClient, file: Path, host: str) -> None:
    sent, before = verdict(page), file.read_bytes()
    for path in ("/", "/rows"):
        assert page.get(path, headers={"Host": host}).status_code == 400
    for headers in (OWN, {"Origin": f"http://{host}"}):
        assert page.post("/verdict", json=sent, headers={"Host": host, **headers}).status_code == 400
    assert file.read_bytes() == before


def test_localhost_is_this_machine_too(page: TestClient) -> None:
    host = f"localhost:{PORT}"
    assert page.get("/", headers={"Host": host}).status_code == 200
    reply = page.post("/verdict", json=verdict(page), headers={"Host": host, "Origin": f"http://{host}"})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"complete": "yes"},
        {"reviewer": ""},
        {"row": "2"},
        {"why": "random"},
        {"ideal_answer": "x" * 20_001},
        {"version": 1},
    ],
)
def test_malformed_verdict_is_refused(page: TestClient, file: Path, changes: dict[str, object]) -> None:
    before = file.read_bytes()
    assert page.post("/verdict", json=verdict(page, **changes), headers=OWN).status_code == 422
    assert file.read_bytes() == before


def test_missing_file_is_one_line(page: TestClient, file: Path) -> None:
    sent = verdict(page)
    file.unlink()
    for reply in (page.get("/rows"), page.post("/verdict", json=sent, headers=OWN)):
        assert reply.status_code == 503 and "cannot be read" in reply.json()["message"]


def test_page_is_one_file_that_loads_nothing(page: TestClient) -> None:
    reply = page.get("/")
    text = reply.text
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<img|<iframe|src=", text)
    assert re.findall(r"(?:fetch)\(\"([^\"]*)", text) == ["/verdict", "/rows"]
    assert "innerHTML" not in text, "texts are shown as texts"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in policy
    assert page.get("/docs").status_code == page.get("/openapi.json").status_code == 404


def test_taken_port_is_one_line() -> None:
    with (
        listen(0) as taken,
        pytest.raises(AbstainError, match=r"port \d+ cannot be used .* name another one with --port"),
    ):
        listen(taken.getsockname()[1])


def test_browser_of_a_terminal_is_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    open_browser("http://127.0.0.1:1/#secret", tmp_path)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    open_browser("http://127.0.0.1:2/#secret", tmp_path)
    assert opened == [(tmp_path / "open.html").as_uri()], "the token is no argument of a process"
    assert "url=http://127.0.0.1:1/#secret" in (tmp_path / "open.html").read_text()
