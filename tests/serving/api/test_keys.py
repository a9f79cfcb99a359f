from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from abstain.core.errors import AbstainError
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, get_allowed_hosts, require_loopback
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ROLES, ApiKeys, create_key, parse_keys
from tests.serving.api.conftest import BASE
from tests.serving.api.test_gate_route import ASKED

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

THUMB = {"feedback_id": "f-1", "interaction_id": "i-1", "thumb": "up"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def asker(file: Path) -> str:
    key, line = create_key("assistant", ["ask"])
    file.write_text(f"# who may ask\n\n{line}\n")
    return key


@pytest.fixture
def guarded(service: GateService, file: Path, asker: str) -> Iterator[TestClient]:
    with TestClient(make_app(service, ApiKeys(None, file)), BASE) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def replace(file: Path, *lines: str) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1_000_000))


def test_only_who_has_a_key_with_the_role_is_answered(guarded: TestClient, asker: str) -> None:
    for headers in ({}, bearer("abstain_wrong"), bearer(""), {"Authorization": f"Basic {asker}"}):
        refused = guarded.post("/v1/gate", json=ASKED, headers=headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert asker not in refused.text
    assert guarded.post("/v1/gate", json=ASKED, headers=bearer(asker)).status_code == 200
    refused = guarded.post("/v1/feedback", json=THUMB, headers=bearer(asker))
    assert refused.status_code == 403 and "feedback" in refused.json()["detail"]
    assert guarded.get("/healthz").status_code == guarded.get("/readyz").status_code == 200


def test_a_key_for_thumbs_gives_no_review(guarded: TestClient, file: Path) -> None:
    feedback_key, feedback_line = create_key("assistant-thumbs", ["feedback"])
    review_key, review_line = create_key("ann", ["review"])
    file.write_text(f"{file.read_text()}\n{feedback_line}\n{review_line}\n")
    thumb = {"feedback_id": "f-1", "interaction_id": "i-1", "thumb": "up"}
    review = {"feedback_id": "f-2", "interaction_id": "i-1"}
    review |= {"complete": True, "correct": True, "truthful": True}
    replies = [
        guarded.post("/v1/feedback", json=body, headers=bearer(key)).status_code
        for body, key in ((thumb, feedback_key), (review, feedback_key), (thumb, review_key), (review, review_key))
    ]
    assert replies == [200, 403, 403, 200]
    named = {name: {**review, "reviewer": name} for name in ("ann", "eve")}
    again = guarded.post("/v1/feedback", json=named["ann"], headers=bearer(review_key))
    assert again.json()["outcome"] == "duplicate", "the reviewer is the key's name"
    other = guarded.post("/v1/feedback", json=named["eve"], headers=bearer(review_key))
    assert other.status_code == 403 and other.json()["detail"].startswith("reviewer: with the key ann it is ann")


def test_two_keys_are_valid_while_one_replaces_the_other(guarded: TestClient, file: Path, asker: str) -> None:
    old = file.read_text().splitlines()[-1]
    new_key, new = create_key("assistant", ["ask"])
    replace(file, old, new)
    for key in (asker, new_key):
        assert guarded.post("/v1/gate", json=ASKED, headers=bearer(key)).status_code == 200
    replace(file, new)
    assert guarded.post("/v1/gate", json=ASKED, headers=bearer(asker)).status_code == 401
    assert guarded.post("/v1/gate", json=ASKED, headers=bearer(new_key)).status_code == 200


def test_a_file_that_became_damaged_or_is_gone_lets_nobody_in(guarded: TestClient, file: Path, asker: str) -> None:
    good = file.read_text()
    replace(file, good, "one two three")
    refused = guarded.post("/v1/gate", json=ASKED, headers=bearer(asker))
    assert refused.status_code == 503 and str(file.parent) not in refused.text
    file.unlink()
    refused = guarded.post("/v1/gate", json=ASKED, headers=bearer(asker))
    assert refused.status_code == 503 and str(file.parent) not in refused.text
    replace(file, good)
    assert guarded.post("/v1/gate", json=ASKED, headers=bearer(asker)).status_code == 200


def test_what_is_stored_of_a_key_does_not_contain_it() -> None:
    key, line = create_key("ann", ROLES)
    assert key.removeprefix("abstain_") not in line and parse_keys(line, "x")[0].roles == ROLES
    assert create_key("ann", ROLES)[0] != key


@pytest.mark.parametrize("line", ["ann", "ann ask", "ann root " + "0" * 64, "ann ask xyz", "a b ask " + "0" * 64])
def test_a_wrong_line_is_named_by_its_number_and_not_quoted(line: str) -> None:
    with pytest.raises(AbstainError, match="keys line 2: ") as refused:
        parse_keys(f"# keys\n{line}", "keys")
    assert line not in str(refused.value)


def test_without_keys_only_this_machine_is_listened_to() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        require_loopback(host, has_keys=False)
    for host in ("0.0.0.0", "::", "192.168.1.5", "gate.example", "::ffff:8.8.8.8"):
        with pytest.raises(AbstainError, match="abstain key"):
            require_loopback(host, has_keys=False)
        require_loopback(host, has_keys=True)


def test_a_page_of_another_site_cannot_use_a_server_without_keys(service: GateService) -> None:
    with TestClient(make_app(service, ApiKeys(), LOOPBACK_NAMES), BASE) as client:
        assert client.post("/v1/gate", json=ASKED).status_code == 200
        assert client.post("/v1/gate", json=ASKED, headers={"Origin": BASE}).status_code == 200
        assert client.post("/v1/gate", json=ASKED, headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.post("/v1/gate", json=ASKED, headers={"Origin": "null"}).status_code == 403
        assert client.post("/v1/gate", json=ASKED, headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.2", "http://127.0.0.2:8700"), ("::1", "http://[::1]:8700"), ("localhost", BASE)]
)
def test_a_server_without_keys_answers_at_the_address_that_it_listens_to(
    service: GateService, host: str, address: str
) -> None:
    with TestClient(make_app(service, ApiKeys(), get_allowed_hosts(host)), address) as client:
        assert client.post("/v1/gate", json=ASKED).status_code == 200
        assert client.post("/v1/gate", json=ASKED, headers={"Host": "evil.example"}).status_code == 400


def test_a_variable_that_is_set_and_holds_no_key_lets_nobody_in(service: GateService) -> None:
    assert ApiKeys("# rotate me").required and ApiKeys("# rotate me").authenticate("x") is None


def test_without_a_key_no_body_is_read(guarded: TestClient) -> None:
    longer = guarded.post("/v1/gate", content=b" " * 9 * 1024 * 1024)
    assert longer.status_code == 401, "the key comes before the limits of the body"
