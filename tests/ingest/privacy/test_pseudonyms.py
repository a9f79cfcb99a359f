import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.ingest.privacy.pseudonyms import Pseudonyms, load_user_key

KEY = "k" * 32
NAMES = Pseudonyms(KEY.encode())


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ABSTAIN_USER_KEY", "ABSTAIN_ORIGIN", "ABSTAIN_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_pseudonym_never_changes() -> None:
    # printf 'u\0ann@example.org' | openssl dgst -sha256 -hmac kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
    assert NAMES.pseudonymize_user("ann@example.org") == "u-da247b9ca004d84769f5"
    assert NAMES.pseudonymize_user("") == ""


@given(st.text(min_size=1))
def test_pseudonym_of_a_pseudonym_is_itself(name: str) -> None:
    for change, kind in ((NAMES.pseudonymize_user, "u"), (NAMES.pseudonymize_reviewer, "r")):
        pseudonym = change(name)
        assert change(pseudonym) == pseudonym
        assert not pseudonym or (len(pseudonym) == 22 and pseudonym[:2] == f"{kind}-" and int(pseudonym[2:], 16) >= 0)


def test_pseudonym_depends_on_key_role_and_normalized_name() -> None:
    people = ["ann", "Ann", "ann2", "u-17", "u-0123", "u-0123456789abcdef012g"]
    others = {NAMES.pseudonymize_reviewer("ann"), Pseudonyms(b"l" * 32).pseudonymize_user("ann")}
    assert len({*map(NAMES.pseudonymize_user, people), *others}) == len(people) + 2
    spellings = [set(map(NAMES.pseudonymize_user, names)) for names in ((" ann ", "ann"), ("Jose\u0301", "José"))]
    assert list(map(len, spellings)) == [1, 1] and NAMES.pseudonymize_user("Jose") not in spellings[1]


def test_load_user_key_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ABSTAIN_USER_KEY", f" {KEY}\n")
    monkeypatch.setenv("ABSTAIN_ORIGIN", "git@example.org:team/abstain.git")
    assert load_user_key(Settings(home=tmp_path)) == KEY.encode()
    assert list(tmp_path.iterdir()) == []
    assert KEY not in f"{Settings()!r} {Settings().model_dump()} {Settings().model_dump_json()}"


def test_load_user_key_makes_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_USER_KEY", "")
    settings = Settings(home=tmp_path / "a" / "home")
    key = load_user_key(settings)
    file = settings.user_key_file
    assert len(key) == 64 and file.read_bytes() == key + b"\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    assert load_user_key(settings) == key != load_user_key(Settings(home=tmp_path / "other"))


@pytest.mark.parametrize(("value", "problem"), [("", "ABSTAIN_ORIGIN"), ("hunter2", "7 .*32 ")])
def test_origin_key_must_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, problem: str) -> None:
    monkeypatch.setenv("ABSTAIN_USER_KEY", value)
    with pytest.raises(AbstainError, match=f"^ABSTAIN_USER_KEY .*{problem}") as caught:
        load_user_key(Settings(home=tmp_path, origin_url="git@example.org:team/abstain.git"))
    assert "hunter2" not in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff" * 64, KEY.encode()])
def test_load_user_key_damaged_file_raises(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "user.key").write_bytes(content)
    with pytest.raises(AbstainError, match="user.key holds no key"):
        load_user_key(Settings(home=tmp_path))
    assert (tmp_path / "user.key").read_bytes() == content


def test_load_user_key_home_that_cannot_hold_a_key_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "user.key").mkdir()
    for home in (tmp_path / "file", tmp_path):
        with pytest.raises(AbstainError, match="ABSTAIN_USER_KEY"):
            load_user_key(Settings(home=home))


def test_load_user_key_made_at_once_is_one_key(tmp_path: Path) -> None:
    begin, homes = Barrier(3), [tmp_path / f"{number}" for number in range(50)]

    def load_all(_: int) -> list[bytes]:
        begin.wait()
        return [load_user_key(Settings(home=home)) for home in homes]

    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(load_all, range(3)))
    assert loaded == [[(home / "user.key").read_bytes().strip() for home in homes]] * 3
    assert {file.name for home in homes for file in home.iterdir()} == {"user.key"}
