from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import UserRows, erase_user, find_user_rows
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.schema import DECISIONS
from abstain.data.store.record_keys import make_interaction_identity
from tests.data.builders import feedback, interaction, review
from tests.data.decision_log.builders import AT, bytes_in, decision, open_log, url_of


def secret(name: str) -> str:
    """A text that fills pages of the database by itself."""
    return f"<{name}>" * 3000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    """Ann asked a and rated b, which Bob asked, who rated a; c is Bob's alone, and there is a review of it."""
    opened = open_log(url_of(tmp_path), keep_days=30)
    for key, user in (("a", "ann"), ("b", "bob"), ("c", "bob")):
        asked = interaction(key, question=secret(key))
        opened.record_decision(decision(key, user=user, interaction=asked, decided_at=datetime.now(UTC)))
    opened.record_feedback("f-1", feedback("b", user="u-ann", comment=secret("f-1")))
    opened.record_feedback("f-2", feedback("a", user="u-bob", comment=secret("f-2")))
    opened.record_feedback("f-3", review("c", ideal_answer=secret("f-3"))).result()
    yield opened
    opened.close()


def texts(log: DecisionLog) -> dict[str, tuple[str, str | None, int]]:
    """By decision: whether its texts are there, the user, and how much feedback."""
    found = {key: queries.get_decision(log.database, key) for key in "abc"}
    return {key: (one.text_state, one.decision.user, len(one.feedback)) for key, one in found.items() if one}


def test_a_users_feedback_goes_and_nothing_tells_any_more_who_asked(tmp_path: Path, log: DecisionLog) -> None:
    assert log.erase_user(["ann"], with_interactions=False) == 1
    assert texts(log) == {"a": ("kept", None, 1), "b": ("kept", "u-bob", 0), "c": ("kept", "u-bob", 1)}
    assert b"<f-1>" not in bytes_in(tmp_path) and b"<f-2>" in bytes_in(tmp_path)
    assert log.erase_user(["ann"], with_interactions=False) == 0


def test_with_interactions_go_the_texts_of_what_they_asked_or_rated(tmp_path: Path, log: DecisionLog) -> None:
    assert log.erase_user(["u-ann"], with_interactions=True) == 4
    assert texts(log) == {"a": ("erased", None, 0), "b": ("erased", None, 0), "c": ("kept", "u-bob", 1)}
    found = queries.get_decision(log.database, "a")
    assert found and (found.decision.confidence, found.decision.version) == (0.75, "v1.0.0")
    everything = bytes_in(tmp_path)
    there = {name for name in ("a", "b", "c", "f-1", "f-2", "f-3") if f"<{name}>".encode() in everything}
    assert there == {"c", "f-3"}


def test_what_was_erased_does_not_come_back(tmp_path: Path, log: DecisionLog) -> None:
    log.erase_user(["ann"], with_interactions=True)
    later = [
        log.record_decision(decision("a", user="ann", interaction=interaction("a", question=secret("a")))),
        log.record_feedback("f-1", feedback("b", user="u-ann", comment="else")),
        log.record_decision(decision("d", user="ann", interaction=interaction("d", question="as Ann asked, later"))),
        log.record_feedback("f-4", feedback("c", user="u-ann", comment="as Ann said, later")),
        log.record_feedback("f-5", feedback("a", user="u-bob", comment="as Ann said, later")),
        log.record_feedback("f-6", feedback("d", user="u-bob", comment="as Ann said, later")),
    ]
    unread = log.record_decision(decision("a", shown=False, decision="unavailable", interaction=None)).exception()
    assert isinstance(unread, AbstainError), "nor is it answered as the erased one was"
    refused = later[0].exception()
    assert isinstance(refused, AbstainError) and refused.code is Code.ID_IN_USE, "it may be of another answer"
    assert [future.result() for future in later[1:]] == ["duplicate", *["recorded"] * 4]
    assert log.record_feedback("f-4", feedback("c", user="u-ann", comment="other")).result() == "duplicate"
    assert b", later" not in bytes_in(tmp_path)
    assert queries.count_decisions(log.database) == {"show": 4, "abstain": 0, "unavailable": 0, "feedback": 6}


def test_what_the_user_asks_while_the_erasure_begins_goes_too(
    tmp_path: Path, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = LogDatabase.write_transaction
    asked = decision("d", user="ann", interaction=interaction("d", question=secret("d")))

    def after_a_question(database: LogDatabase) -> AbstractContextManager[Connection]:
        monkeypatch.setattr(LogDatabase, "write_transaction", writing)
        log.record_decision(asked).result()
        return writing(database)

    monkeypatch.setattr(LogDatabase, "write_transaction", after_a_question)
    log.erase_user(["ann"], with_interactions=True)
    found = queries.get_decision(log.database, "d")
    assert found and (found.text_state, found.decision.user) == ("erased", None)
    assert b"<d>" not in bytes_in(tmp_path)


@pytest.mark.parametrize("with_interactions", [False, True])
def test_the_users_calls_go_too(tmp_path: Path, log: DecisionLog, with_interactions: bool) -> None:
    log.register_call("key", "call", RegisteredCall(question=secret("call"), user="ann"), 60)
    log.register_call("key", "other", RegisteredCall(question=secret("other"), user="bob"), 60).result()
    database = LogDatabase.open_existing(url_of(tmp_path))
    assert database and find_user_rows(database, ["u-ann"]).calls == 1
    log.erase_user(["ann"], with_interactions=with_interactions)
    assert log.get_call("key", "call") is None and log.get_call("key", "other")
    assert b"<call>" not in bytes_in(tmp_path)


def test_the_call_of_an_interaction_that_goes_goes_too(tmp_path: Path, log: DecisionLog) -> None:
    log.register_call("key", "a", RegisteredCall(question=secret("call")), 60).result()
    log.erase_user(["ann"], with_interactions=True)
    assert log.get_call("key", "a") is None and b"<call>" not in bytes_in(tmp_path)


def test_a_later_call_of_who_was_erased_with_what_they_asked_is_not_remembered(log: DecisionLog) -> None:
    log.erase_user(["ann"], with_interactions=True)
    log.erase_user(["bob"], with_interactions=False)
    log.register_call("key", "call", RegisteredCall(question="Before."), 60)
    for call_id, user in (("call", "ann"), ("of-bob", "bob")):
        log.register_call("key", call_id, RegisteredCall(question="Later?", user=user), 60).result()
    assert log.get_call("key", "call") is None and log.get_call("key", "of-bob")


def test_without_interactions_a_later_question_is_logged(log: DecisionLog) -> None:
    log.erase_user(["ann"], with_interactions=False)
    log.record_decision(decision("d", user="ann")).result()
    log.record_feedback("f-4", feedback("d", user="u-ann")).result()
    found = queries.get_decision(log.database, "d")
    assert found and (found.text_state, found.feedback) == ("kept", ())


def test_once_with_interactions_remains_with_interactions(log: DecisionLog) -> None:
    for with_interactions in (True, False):
        log.erase_user(["ann"], with_interactions=with_interactions)
    log.record_decision(decision("d", user="ann")).result()
    found = queries.get_decision(log.database, "d")
    assert found and found.text_state == "erased"


def test_interactions_that_the_data_names_go_too(tmp_path: Path, log: DecisionLog) -> None:
    database = LogDatabase.open_existing(url_of(tmp_path))
    assert database
    assert find_user_rows(database, ["u-ann"]) == UserRows(1, frozenset("ab"))
    gone = {make_interaction_identity("c").hex()}
    assert erase_user(database, ["u-carol"], ["u-carol"], with_interactions=False, identities=gone) == 0
    assert erase_user(database, ["u-carol"], ["u-carol"], with_interactions=True, identities=gone) == 2
    assert texts(log)["c"] == ("erased", None, 0) and texts(log)["a"][0] == "kept"


def test_texts_expire_and_figures_stay(tmp_path: Path, log: DecisionLog) -> None:
    before = queries.count_decisions(log.database)
    old = decision(
        "old", user="ann", decided_at=AT - timedelta(days=2), interaction=interaction("old", question="so old")
    )
    log.record_decision(old).result()
    assert log.purge_expired_texts(AT + timedelta(days=29)) == 1
    assert log.purge_expired_texts(AT + timedelta(days=29)) == 0
    found = queries.get_decision(log.database, "old")
    assert found and (found.text_state, found.decision.interaction, found.decision.user) == ("expired", None, None)
    assert found.decision.confidence == 0.75 and found.sampling_rate == 0.05
    assert queries.count_decisions(log.database) == {**before, "show": before["show"] + 1}
    assert b"so old" not in bytes_in(tmp_path)
    log.register_call("key", "call", RegisteredCall(question=secret("call")), 60).result()
    log.purge_expired_texts(datetime.now(UTC) + timedelta(seconds=61))
    assert log.get_call("key", "call") is None and b"<call>" not in bytes_in(tmp_path)
    again = [
        log.record_decision(decision("old", interaction=interaction("old", **changes)))
        for changes in ({"question": "so old"}, {"answer": "else"})
    ]
    again.append(log.record_decision(decision("old", shown=False, decision="unavailable", interaction=None)))
    for refused in (future.exception() for future in again):
        assert isinstance(refused, AbstainError) and refused.code is Code.ID_IN_USE, "the digest went with the text"
    assert log.purge_expired_texts(datetime.now(UTC) + timedelta(days=31)) == 6
    assert b"<a>" not in bytes_in(tmp_path) and b"<f-3>" not in bytes_in(tmp_path)
    assert log.record_feedback("f-1", feedback("b", comment="else")).result() == "duplicate", "by its id alone"


def test_what_tells_an_answer_without_texts_expires_too(log: DecisionLog) -> None:
    """Its digest goes, and no other answer takes its place."""
    given = decision("old", decision="unavailable", interaction=None, input_sha256="of its states")
    log.record_decision(given).result()
    with log.database.read_transaction() as connection:
        assert connection.scalar(select(DECISIONS.c.digest).where(DECISIONS.c.interaction_id == "old"))
    assert [log.purge_expired_texts(AT + timedelta(days=31)) for _ in range(2)] == [1, 0]
    with log.database.read_transaction() as connection:
        assert connection.scalar(select(DECISIONS.c.digest).where(DECISIONS.c.interaction_id == "old")) is None
    for later in (given, decision("old")):
        refused = log.record_decision(later).exception()
        assert isinstance(refused, AbstainError) and refused.code is Code.ID_IN_USE


def test_a_log_that_is_there_counts_as_the_one_it_was(tmp_path: Path, log: DecisionLog) -> None:
    database = LogDatabase.open_existing(url_of(tmp_path))
    assert database and erase_user(database, ["u-ann"], ["u-ann"], with_interactions=True) == 4
    assert database.n_replaced == 0


def test_where_there_is_no_log_there_is_nothing_to_erase(tmp_path: Path) -> None:
    assert LogDatabase.open_existing(url_of(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "decisions.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(AbstainError) as refused:
        LogDatabase.open_existing(url_of(tmp_path))
    assert refused.value.code is Code.NO_SERVICE
