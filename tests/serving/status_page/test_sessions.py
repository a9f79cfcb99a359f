"""How long a session lasts, and how many there are; who gets one is in test_page.py."""

from __future__ import annotations

import pytest

from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.status_page import sessions as module
from abstain.serving.status_page.sessions import SESSION_HOURS, Sessions


class Clock:
    """A clock that goes by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def key() -> tuple[str, Sessions]:
    made, line = create_key("ann", ["ask"])
    return made, Sessions(ApiKeys(text=line))


def test_a_session_ends_after_its_hours(key: tuple[str, Sessions], clock: Clock) -> None:
    text, sessions = key
    session = sessions.log_in(text)
    clock.now += 3600 * SESSION_HOURS - 1
    visitor = sessions.get_visitor(session)
    assert visitor and visitor.api_key.name == "ann"
    clock.now += 1
    assert sessions.get_visitor(session) is None
    clock.now -= 3600
    assert sessions.get_visitor(session) is None, "it is gone for good"


def test_the_oldest_session_goes_for_one_more(key: tuple[str, Sessions], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    text, sessions = key
    opened = [sessions.log_in(text) for _ in range(5)]
    assert [sessions.get_visitor(one) is not None for one in opened] == [False, False, True, True, True]


def test_no_two_sessions_share_a_name_or_the_token_of_their_forms(key: tuple[str, Sessions]) -> None:
    text, sessions = key
    visitors = [sessions.get_visitor(sessions.log_in(text)) for _ in range(20)]
    assert len({one.session for one in visitors if one}) == len({one.form_token for one in visitors if one}) == 20
    assert len({Sessions(ApiKeys()).make_form_token("") for _ in range(5)}) == 5, "nor do two servers"


@pytest.mark.parametrize("session", [None, "", "made up"])
def test_who_has_no_session_is_nobody(key: tuple[str, Sessions], session: str | None) -> None:
    assert key[1].get_visitor(session) is None
