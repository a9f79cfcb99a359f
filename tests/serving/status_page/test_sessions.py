from types import SimpleNamespace

import pytest

from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.status_page import sessions as module
from abstain.serving.status_page.sessions import SESSION_HOURS, Sessions


@pytest.fixture
def key() -> tuple[str, Sessions]:
    text, line = create_key("ann", ["ask"])
    return text, Sessions(ApiKeys(text=line))


def test_get_visitor_after_the_session_hours_is_none(
    key: tuple[str, Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    text, sessions = key
    session = sessions.log_in(text)
    now += 3600 * SESSION_HOURS - 1
    assert sessions.get_visitor(session).api_key.name == "ann"
    now += 1
    assert sessions.get_visitor(session) is None
    now -= 3600
    assert sessions.get_visitor(session) is None, "it is gone for good"


def test_log_in_ends_the_oldest_session(key: tuple[str, Sessions], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    text, sessions = key
    names = [sessions.log_in(text) for _ in range(5)]
    assert [sessions.get_visitor(name) is not None for name in names] == [False, False, True, True, True]


def test_sessions_and_form_tokens_are_unique(key: tuple[str, Sessions]) -> None:
    text, sessions = key
    visitors = [sessions.get_visitor(sessions.log_in(text)) for _ in range(20)]
    assert len({visitor.session for visitor in visitors}) == len({visitor.form_token for visitor in visitors}) == 20
    assert len({Sessions(ApiKeys()).make_form_token("") for _ in range(5)}) == 5, "nor do two servers share one"


@pytest.mark.parametrize("session", [None, "", "made up"])
def test_get_visitor_without_a_session_is_none(key: tuple[str, Sessions], session: str | None) -> None:
    assert key[1].get_visitor(session) is None
