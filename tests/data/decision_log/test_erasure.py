from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from abstain.core.codes import Code
from abstain.data.decision_log import expiry, queries
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import UserRows, erase_user, find_user_rows, purge_expired_texts
from abstain.data.decision_log.expiry import count_expired, delete_expired
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.schema import DECISIONS, FEEDBACK
from abstain.data.store.record_keys import make_interaction_identity
from tests.data.decision_log.builders import AT, bytes_in, decision, get_outcome, open_log, record, url_of
from tests.factories import feedback, interaction, review

NAMES = ("a", "b", "c", "f-1", "f-2", "f-3", "call", "d")
LATER = AT + timedelta(days=3650)


def make_text(name: str) -> str:
    """Make a text that fills pages of the database by itself."""
    return f"<{name}>" * 3000


@pytest.fixture
def log(tmp_path: Path, log: DecisionLog) -> DecisionLog:
    """Ann asked a and rated b, which Bob asked, who rated a; c is Bob's alone, and there is a review of it."""
    for key, user in (("a", "ann"), ("b", "bob"), ("c", "bob")):
        asked = interaction(key, question=make_text(key))
        record(log, decision(key, user=user, interaction=asked, decided_at=datetime.now(UTC)))
    log.record_feedback("f-1", feedback("b", user="u-ann", comment=make_text("f-1")))
    log.record_feedback("f-2", feedback("a", user="u-bob", comment=make_text("f-2")))
    log.record_feedback("f-3", review("c", ideal_answer=make_text("f-3"))).result()
    return log


def read_states(log: DecisionLog, keys: str = "abc") -> dict[str, tuple[str, str | None, int]]:
    """Read the state of the texts, the user and the number of feedback rows of each decision."""
    rows = {key: queries.get_decision(log.database, key) for key in keys}
    return {key: (row.text_state, row.decision.user, len(row.feedback)) for key, row in rows.items()}


def list_texts(folder: Path) -> set[str]:
    content = bytes_in(folder)
    return {name for name in NAMES if f"<{name}>".encode() in content}


def test_erase_user_removes_feedback_and_pseudonym(tmp_path: Path, log: DecisionLog) -> None:
    assert log.erase_user(["ann"], with_interactions=False) == 1
    assert read_states(log) == {"a": ("kept", None, 1), "b": ("kept", "u-bob", 0), "c": ("kept", "u-bob", 1)}
    assert list_texts(tmp_path) == {"a", "b", "c", "f-2", "f-3"}
    assert log.erase_user(["ann"], with_interactions=False) == 0
    record(log, decision("d", user="ann"))
    log.record_feedback("f-4", feedback("d", user="u-ann")).result()
    assert read_states(log, "d") == {"d": ("kept", "u-ann", 0)}, "a later question is logged"


def test_erase_user_with_interactions_removes_texts(tmp_path: Path, log: DecisionLog) -> None:
    assert log.erase_user(["u-ann"], with_interactions=True) == 4
    assert read_states(log) == {"a": ("erased", None, 0), "b": ("erased", None, 0), "c": ("kept", "u-bob", 1)}
    row = queries.get_decision(log.database, "a").decision
    assert (row.confidence, row.version) == (0.75, "v1.0.0")
    assert list_texts(tmp_path) == {"c", "f-3"} and log.database.n_replaced == 0


def test_reason_that_quotes_the_question_goes_with_its_texts(tmp_path: Path, log: DecisionLog) -> None:
    """And it is redacted as the question is; a reason with another code has no text of a user."""

    def redact(row: Any) -> Any:
        return row.model_copy(update={"question": row.question.replace("Ann Lee", "<PERSON>")})

    def read_reasons(*keys: str) -> list[str | None]:
        return [queries.get_decision(log.database, key).decision.reason for key in keys]

    log = open_log(url_of(tmp_path), redact=redact, keep_days=30)
    fields = {"reason": "the base model does not know Ann Lee", "interaction": None, "input_sha256": "its digest"}
    quoting, other = {**fields, "code": "A208"}, {**fields, "code": "A203", "reason": "too long"}
    record(log, decision("q-1", user="eve", **quoting), decision("q-2", **quoting), decision("q-3", **other))
    assert read_reasons("q-1", "q-2", "q-3") == [*["the base model does not know <PERSON>"] * 2, "too long"]
    log.erase_user(["u-eve"], with_interactions=True)
    record(log, decision("q-4", user="eve", **quoting))
    assert read_reasons("q-1", "q-4") == [None, None] and read_reasons("q-2")[0]
    log.purge_expired_texts(datetime.now(UTC) + timedelta(days=31))
    assert read_reasons("q-2", "q-3") == [None, "too long"]
    log.close()


def test_erase_user_keeps_later_texts_out(tmp_path: Path, log: DecisionLog) -> None:
    log.erase_user(["ann"], with_interactions=True)
    log.erase_user(["ann"], with_interactions=False)
    later = [
        log.record_decision(decision("a", user="ann", interaction=interaction("a", question=make_text("a")))),
        log.record_decision(decision("a", shown=False, decision="unavailable", interaction=None)),
        log.record_feedback("f-1", feedback("b", user="u-ann", comment="else")),
        log.record_decision(decision("d", user="ann", interaction=interaction("d", question="as Ann asked, later"))),
        log.record_feedback("f-4", feedback("c", user="u-ann", comment="as Ann said, later")),
        log.record_feedback("f-5", feedback("a", user="u-bob", comment="as Ann said, later")),
        log.record_feedback("f-6", feedback("d", user="u-bob", comment="as Ann said, later")),
        log.record_feedback("f-4", feedback("c", user="u-ann", comment="other")),
    ]
    outcomes = [Code.ID_IN_USE, Code.ID_IN_USE, "duplicate", *["recorded"] * 4, "duplicate"]
    assert [get_outcome(future) for future in later] == outcomes
    assert b", later" not in bytes_in(tmp_path) and read_states(log, "d") == {"d": ("erased", None, 0)}
    assert queries.count_decisions(log.database) == {"show": 4, "abstain": 0, "unavailable": 0, "feedback": 6}


def test_erase_user_includes_meanwhile_rows(tmp_path: Path, log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    write_transaction = LogDatabase.write_transaction
    asked = decision("d", user="ann", interaction=interaction("d", question=make_text("d")))

    def write_after_a_question(database: LogDatabase) -> AbstractContextManager[Connection]:
        monkeypatch.setattr(LogDatabase, "write_transaction", write_transaction)
        record(log, asked)
        return write_transaction(database)

    monkeypatch.setattr(LogDatabase, "write_transaction", write_after_a_question)
    log.erase_user(["ann"], with_interactions=True)
    assert read_states(log, "d") == {"d": ("erased", None, 0)} and "d" not in list_texts(tmp_path)


@pytest.mark.parametrize("with_interactions", [False, True])
def test_erase_user_removes_calls(tmp_path: Path, log: DecisionLog, with_interactions: bool) -> None:
    log.register_call("key", "call", RegisteredCall(question=make_text("call"), user="ann"), 60)
    log.register_call("key", "a", RegisteredCall(question="of an interaction that she asked"), 60)
    log.register_call("key", "other", RegisteredCall(question="Other?", user="bob"), 60).result()
    assert find_user_rows(log.database, ["u-ann"]).calls == 1
    log.erase_user(["ann"], with_interactions=with_interactions)
    assert log.get_call("key", "call") is None and log.get_call("key", "other")
    assert (log.get_call("key", "a") is None) is with_interactions and "call" not in list_texts(tmp_path)


def test_register_call_of_an_erased_user_stores_nothing(log: DecisionLog) -> None:
    log.erase_user(["ann"], with_interactions=True)
    log.erase_user(["bob"], with_interactions=False)
    log.register_call("key", "call", RegisteredCall(question="Before."), 60)
    for call_id, user in (("call", "ann"), ("of-bob", "bob")):
        log.register_call("key", call_id, RegisteredCall(question="Later?", user=user), 60).result()
    assert log.get_call("key", "call") is None and log.get_call("key", "of-bob")


def test_erase_user_removes_interactions_of_the_data(tmp_path: Path, log: DecisionLog) -> None:
    database = LogDatabase.open_existing(url_of(tmp_path))
    assert find_user_rows(database, ["u-ann"]) == UserRows(1, frozenset("ab"))
    identities = {make_interaction_identity("c").hex()}
    assert erase_user(database, ["u-carol"], ["u-carol"], with_interactions=False, identities=identities) == 0
    assert erase_user(database, ["u-carol"], ["u-carol"], with_interactions=True, identities=identities) == 2
    assert read_states(log)["c"] == ("erased", None, 0) and read_states(log)["a"][0] == "kept"


def test_purge_expired_texts_keeps_numbers(tmp_path: Path, log: DecisionLog) -> None:
    log = open_log(url_of(tmp_path), keep_days=30)
    before = queries.count_decisions(log.database)
    asked = interaction("old", question=make_text("d"))
    record(log, decision("old", user="ann", decided_at=AT - timedelta(days=2), interaction=asked))
    states = decision("states", decided_at=AT - timedelta(days=2), interaction=None, input_sha256="of its states")
    record(log, states)
    assert [log.purge_expired_texts(AT + timedelta(days=29)) for _ in range(2)] == [2, 0]
    row = queries.get_decision(log.database, "old")
    assert (row.text_state, row.decision.interaction, row.decision.user) == ("expired", None, None)
    assert row.decision.confidence == 0.75 and row.sampling_rate == 0.05
    assert queries.count_decisions(log.database) == {**before, "show": before["show"] + 2}
    log.register_call("key", "call", RegisteredCall(question=make_text("call")), 60).result()
    log.purge_expired_texts(datetime.now(UTC) + timedelta(seconds=61))
    assert log.get_call("key", "call") is None and not {"call", "d"} & list_texts(tmp_path)
    again = [decision("old", interaction=each) for each in (asked, interaction("old", answer="else"), None)]
    assert record(log, *again, states) == [Code.ID_IN_USE] * 4, "the digest went with the text"
    assert log.purge_expired_texts(datetime.now(UTC) + timedelta(days=31)) == 6
    assert list_texts(tmp_path) == set()
    assert get_outcome(log.record_feedback("f-1", feedback("b", comment="else"))) == "duplicate", "by its id alone"
    log.close()


def list_ids(database: LogDatabase) -> tuple[set[str], set[str]]:
    with database.read_transaction() as connection:
        decisions = connection.scalars(select(DECISIONS.c.interaction_id)).all()
        return set(decisions), set(connection.scalars(select(FEEDBACK.c.interaction_id)).all())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LogDatabase]:
    """Decisions of two versions and of none, each with a review; texts are gone except those of `new`."""
    with closing(open_log(url_of(tmp_path))) as log:
        for key, version in {"old": "v1.0.0", "live": "v1.1.0", "away": None, "new": "v1.0.0"}.items():
            record(log, decision(key, version=version, decided_at=LATER if key == "new" else AT))
            log.record_feedback(f"f-{key}", review(key)).result(10)
        record(log, decision("gone", user="u-1"))
        log.erase_user({"u-1"}, with_interactions=True)
        purge_expired_texts(log.database, AT + timedelta(days=3000), keep_days=90)
        yield log.database


def test_delete_expired_keeps_texts_and_live_version(database: LogDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "ROWS_PER_TRANSACTION", 1)  # so that there are several transactions
    assert count_expired(database, LATER, 400, "v1.1.0") == 5
    assert list_ids(database)[0] == {"old", "live", "away", "new", "gone"}
    assert delete_expired(database, LATER, 400, "v1.1.0") == 5
    decisions, feedback = list_ids(database)
    assert decisions == {"live", "new", "gone"}, "an erased id stays known"
    assert "live" in feedback and not {"old", "away"} & feedback, "feedback goes by its decision's version"
    later = LATER + timedelta(days=500)
    assert delete_expired(database, later, 400, "v1.1.0") == 0, "the text of new is kept"
    purge_expired_texts(database, later, keep_days=400)
    assert delete_expired(database, later, 400, "v1.1.0") == 1 and list_ids(database)[0] == {"live", "gone"}


def test_deleted_sequence_numbers_are_not_reused(database: LogDatabase, tmp_path: Path) -> None:
    with database.write_transaction() as connection:
        before = max(connection.scalars(select(DECISIONS.c.seq)).all())
        connection.execute(DECISIONS.delete())
    with closing(open_log(url_of(tmp_path))) as log:
        record(log, decision("next"))
    with database.read_transaction() as connection:
        assert connection.scalars(select(DECISIONS.c.seq)).all() == [before + 1], "who reads on would miss it"
