"""Who gets past the keys, the roles and the sessions of the gate server."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from abstain.serving.service.keys import ROLES, ApiKeys, create_key
from tests.attacks.conftest import Count
from tests.serving.clients import ASKED, BASE, QUESTION, bearer
from tests.serving.conftest import MakeService, Promote
from tests.serving.status_page.builders import make_server
from tests.serving.status_page.test_page import log_in, token_of

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

OPEN = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/")
API: dict[str, Any] = {
    "/v1/gate": ASKED,
    "/v1/gate/states": {},
    "/v1/answer": QUESTION,
    "/v1/feedback": {"feedback_id": "f", "interaction_id": "i", "thumb": "up"},
    "/v1/contexts": {"call_id": "c", "contexts": ["x"]},
    "/beta/litellm_basic_guardrail_api": {"input_type": "response", "texts": ["x"]},
    "/gateways/kgateway/request": {"body": {"messages": []}},
    "/gateways/kgateway/response": {"body": {"choices": []}},
    "/request": {"body": {"messages": []}},
    "/response": {"body": {"choices": []}},
    "/gateways/portkey": {"eventType": "afterRequestHook"},
}
SPELLINGS = [
    *("//v1/gate", "/v1//gate", "/V1/gate", "/v1/gate/", "/v1/%67ate", "/%761/gate", "/v1/./gate", "/x/../v1/gate"),
    *("/v1/gate;a", "/v1/gate%00", "/v1/gate?x", "/gateways/../v1/gate", "/v1%2fgate", "/beta/../v1/gate"),
]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """A key of each role, and one of all, by its name; their lines are in the file `keys`."""
    made = {role: create_key(role, [role]) for role in sorted(ROLES)} | {"all": create_key("all", ROLES)}
    (tmp_path / "keys").write_text("".join(f"{line}\n" for _, line in made.values()))
    return {name: key for name, (key, _) in made.items()}


@pytest.fixture
def client(make_service: MakeService, promote: Promote, tmp_path: Path, keys: dict[str, str]) -> Iterator[TestClient]:
    """A client of a server that withholds every answer."""
    promote(threshold="1.1")
    with TestClient(make_server(make_service(), ApiKeys(file=tmp_path / "keys")), BASE) as opened:
        yield opened


def test_server_answers_nothing_without_a_key(client: TestClient, keys: dict[str, str], assert_repelled: Count) -> None:
    key = keys["ask"]
    headers = [
        *({}, bearer(""), bearer("None"), bearer(key[:-1]), bearer(key.upper()), bearer(f"{key} x")),
        *({"Authorization": text} for text in ("", key, f"Basic {key}", f"Digest {key}")),
        *({"X-API-Key": key}, {"Cookie": f"abstain-gate={key}"}, {"X-Forwarded-For": "127.0.0.1"}),
    ]
    attempts = [client.post(path, json=body, headers=sent) for path, body in API.items() for sent in headers]
    attempts += [client.get("/v1/version", headers=sent) for sent in headers]
    assert_repelled("requests without a key", len(attempts), sum(one.status_code == 401 for one in attempts))
    found = {path: client.get(path).status_code for path in OPEN}
    assert found == {**dict.fromkeys(OPEN, 200), "/": 403}, "the page asks for a key"


def test_server_rejects_odd_spellings_of_a_path(client: TestClient, assert_repelled: Count) -> None:
    replies = [client.post(path, json=ASKED) for path in SPELLINGS]
    replies += [client.request(method, "/v1/gate") for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")]
    repelled = sum(400 <= one.status_code < 500 for one in replies)
    assert_repelled("odd paths and methods", len(replies), repelled)


def test_server_rejects_keys_of_another_role(client: TestClient, keys: dict[str, str], assert_repelled: Count) -> None:
    needed = {path: "feedback" if path == "/v1/feedback" else "ask" for path in API}
    attempts = [(role, path) for path in API for role in keys if role not in (needed[path], "all")]
    replies = [client.post(path, json=API[path], headers=bearer(keys[role])) for role, path in attempts]
    assert_repelled("keys of another role", len(replies), sum(one.status_code == 403 for one in replies))


def test_server_rejects_a_revoked_key_at_once(
    client: TestClient, keys: dict[str, str], tmp_path: Path, assert_repelled: Count
) -> None:
    """Also where size and time of the file stay, rewritten or replaced."""
    repelled, key, file = 0, keys["ask"], tmp_path / "keys"
    for target in (file, file.with_suffix(".new")):
        assert log_in(client, key).status_code == 200
        assert client.get("/v1/version", headers=bearer(key)).status_code == 200
        before, (new, other) = file.stat(), create_key("ask", ["ask"])
        lines = [other if line.startswith("ask ") else line for line in file.read_text().splitlines()]
        target.write_text("".join(f"{line}\n" for line in lines))
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        target.rename(file)
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        repelled += client.get("/v1/version", headers=bearer(key)).status_code == 401
        repelled += client.get("/").status_code == 403
        key = new
    assert_repelled("revoked keys", 4, repelled)


def test_sessions_cannot_be_invented_or_kept(client: TestClient, keys: dict[str, str], assert_repelled: Count) -> None:
    repelled = client.get("/", headers={"Cookie": "abstain-gate=made-up"}).status_code == 403
    form = {"token": token_of(client.get("/")), "key": keys["ask"]}
    nonce = client.cookies["abstain-gate-login"]
    client.cookies.clear()
    repelled += client.post("/login", data=form).status_code == 403
    cookie, wrong = {"Cookie": f"abstain-gate-login={nonce}"}, ("abstain_guess", "", "ask", "é", "x" * 10_000) * 10
    replies = [client.post("/login", data={**form, "key": key}, headers=cookie) for key in wrong]
    assert not any(word in reply.text for reply in replies for word in ("v1.0.0", "abstain_guess", "é", "xxx"))
    repelled += all(reply.status_code == 403 for reply in replies)
    log_in(client, keys["ask"])
    session = client.cookies["abstain-gate"]
    client.post("/logout", data={"token": token_of(client.get("/"))})
    client.cookies.clear()
    repelled += client.get("/", headers={"Cookie": f"abstain-gate={session}"}).status_code == 403
    assert_repelled("invented sessions", 4, repelled)
