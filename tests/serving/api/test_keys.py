from collections.abc import Iterator
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.serving.api.server import get_allowed_hosts, require_loopback
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key, parse_keys
from tests.serving.clients import ASKED, BASE, GateClient, bearer

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


@pytest.fixture
def asker(tmp_path: Path) -> str:
    key, line = create_key("assistant", ["ask"])
    (tmp_path / "keys").write_text(f"# who may ask\n\n{line}\n")
    return key


@pytest.fixture
def guarded(service: GateService, tmp_path: Path, asker: str) -> Iterator[GateClient]:
    with GateClient(service, ApiKeys(None, tmp_path / "keys")) as client:
        yield client


def ask(client: GateClient, key: str) -> int:
    return client.post("/v1/gate", json=ASKED, headers=bearer(key)).status_code


def test_keys_overlap_while_one_replaces_the_other(guarded: GateClient, tmp_path: Path, asker: str) -> None:
    file = tmp_path / "keys"
    new_key, new = create_key("assistant", ["ask"])
    file.write_text(f"{file.read_text()}{new}\n")
    assert [ask(guarded, key) for key in (asker, new_key)] == [200, 200]
    file.write_text(new)
    assert [ask(guarded, key) for key in (asker, new_key)] == [401, 200]
    rejected = guarded.post("/v1/gate", json=ASKED, headers=bearer(asker))
    assert rejected.headers["www-authenticate"] == "Bearer" and asker not in rejected.text


def test_damaged_or_missing_key_file_admits_no_key(guarded: GateClient, tmp_path: Path, asker: str) -> None:
    file = tmp_path / "keys"
    good = file.read_text()
    file.write_text(f"{good}one two three")
    for break_file in (lambda: None, file.unlink):
        break_file()
        rejected = guarded.post("/v1/gate", json=ASKED, headers=bearer(asker))
        assert rejected.status_code == 503 and str(file.parent) not in rejected.text
    file.write_text(good)
    assert ask(guarded, asker) == 200


def test_parse_keys_names_a_wrong_line_without_its_text() -> None:
    for line in ("ann", "ann ask", "ann root " + "0" * 64, "ann ask xyz", "a b ask " + "0" * 64):
        with pytest.raises(AbstainError, match="keys line 2: ") as rejected:
            parse_keys(f"# keys\n{line}", "keys")
        assert line not in str(rejected.value)
    assert ApiKeys("# rotate me").required and ApiKeys("# rotate me").authenticate("x") is None


def test_require_loopback_rejects_other_hosts_without_keys() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        require_loopback(host, has_keys=False)
    for host in ("0.0.0.0", "::", "192.168.1.5", "gate.example", "::ffff:8.8.8.8"):
        with pytest.raises(AbstainError, match="abstain key"):
            require_loopback(host, has_keys=False)
        require_loopback(host, has_keys=True)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.2", "http://127.0.0.2:8700"), ("::1", "http://[::1]:8700"), ("localhost", BASE)]
)
def test_server_without_keys_answers_at_its_own_address(service: GateService, host: str, address: str) -> None:
    with GateClient(service, names=get_allowed_hosts(host), address=address) as client:
        headers = [{}, {"Origin": address}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}]
        replies = [client.post("/v1/gate", json=ASKED, headers=sent).status_code for sent in headers]
    assert replies == [200, 200, 400, 403]
