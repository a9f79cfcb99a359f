from types import SimpleNamespace

import pytest

from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.status_page import sessions as module
from abstain.serving.status_page.sessions import SESSION_HOURS, Sessions

KEY, LINE = create_key("ann", ["ask"])


def test_get_visitor_after_the_session_hours_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sessions = 1000.0, Sessions(ApiKeys(text=LINE))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    session = sessions.log_in(KEY)
    now += 3600 * SESSION_HOURS - 1
    assert sessions.get_visitor(session).api_key.name == "ann"
    now += 1
    assert sessions.get_visitor(session) is None
    now -= 3600
    assert sessions.get_visitor(session) is None, "it is gone for good"
    assert [sessions.get_visitor(name) for name in (None, "", "made up")] == [None] * 3


def test_log_in_ends_the_oldest_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    sessions = Sessions(ApiKeys(text=LINE))
    names = [sessions.log_in(KEY) for _ in range(5)]
    assert [sessions.get_visitor(name) is not None for name in names] == [False, False, True, True, True]
