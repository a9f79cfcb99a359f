import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.contracts import Context, Thumb
from abstain.core.errors import AbstainError
from abstain.data.decision_log import log as module
from abstain.data.decision_log import queries, writes
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision, SamplingRates, make_decision_row
from abstain.data.decision_log.log import DecisionLog, LogQueueFull
from tests.data.builders import feedback, interaction, review
from tests.data.decision_log.builders import AT, KEY, bytes_in, decision, open_log, pseudonym, url_of

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


REDACTED = frozenset({"question", "answer", "comment"})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    opened = open_log(url_of(tmp_path))
    yield opened
    opened.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def code_of(future: Future[Any]) -> Code:
    error = future.exception(timeout=20)
    assert isinstance(error, AbstainError) and "\n" not in str(error)
    return error.code


def row_of(**changes: Any) -> dict[str, Any]:
    return make_decision_row(decision(**changes), lambda row: row, pseudonym, SamplingRates(0.15, 0.05), KEY)


@contextmanager
def held(log: DecisionLog) -> Iterator[None]:
    """Within the block the thread that writes is held up with the decision `first`: what comes has to wait for it."""
    with log.database.write_transaction():
        log.record_decision(decision("first"))
        while not log._queue.empty():
            time.sleep(0.001)
        yield


def test_what_is_recorded_is_found_with_its_feedback(log: DecisionLog) -> None:
    logged = decision(
        user="ann", decision="unavailable", shown=False, code="A206", reason="no context", confidence=None
    )
    assert log.record_decision(logged).result() == "recorded"
    replies = [feedback(user="u-1"), review(inclusion_probability=0.5)]
    assert [log.record_feedback(f"f-{at}", row).result() for at, row in enumerate(replies)] == ["recorded", "recorded"]
    found = queries.get_decision(log.database, "i-1")
    assert found and found.text_state == "kept" and found.sampling_rate == 0.15
    assert found.decision == replace(logged, user="u-ann", interaction=interaction(display="withheld"))
    assert found.feedback == (replies[0], review()), "no review of the log was drawn"
    assert queries.get_decision(log.database, "i-2") is None


def test_a_shown_answer_has_propensity_1_and_a_withheld_one_has_none(log: DecisionLog) -> None:
    for key, shown, kind in (("a", True, "show"), ("b", False, "abstain"), ("c", True, "unavailable")):
        log.record_decision(
            decision(key, shown, decision=kind, interaction=interaction(key, propensity=0.5, display="shown"))
        )
    log.record_decision(decision("d", False)).result()
    rows = [found.decision.interaction for key in "abcd" if (found := queries.get_decision(log.database, key))]
    assert [(row.display, row.propensity) for row in rows if row] == [
        ("shown", 1),
        ("withheld", None),
        ("shown", 1),
        ("withheld", None),
    ]


def test_the_same_request_is_known_and_the_first_decision_stays(log: DecisionLog) -> None:
    assert log.record_decision(decision()).result() == "recorded"
    again = decision(shown=False, confidence=0.1, duration_ms=9.0, interaction=interaction(asked_at=AT))
    assert log.record_decision(again).result() == "duplicate"
    assert code_of(log.record_decision(decision(interaction=interaction(answer="Ten euros.")))) is Code.ID_IN_USE
    assert code_of(log.record_decision(decision(interaction=None))) is Code.ID_IN_USE
    found = queries.get_decision(log.database, "i-1")
    assert found and found.decision == decision(interaction=interaction(display="shown", propensity=1.0))
    assert queries.count_decisions(log.database) == {"show": 1, "abstain": 0, "unavailable": 0, "feedback": 0}


def test_answers_that_differ_in_what_is_redacted_are_two(tmp_path: Path) -> None:
    """Redaction makes one text of both, and the decision on one is not that on the other."""
    log = open_log(
        url_of(tmp_path),
        redact=lambda row: row.model_copy(update=dict.fromkeys(REDACTED & row.model_fields_set, "<X>")),
    )
    one, other = (decision(interaction=interaction(answer=answer)) for answer in ("Call 1.", "Call 2."))
    assert [log.record_decision(row).result() for row in (one, one)] == ["recorded", "duplicate"]
    assert code_of(log.record_decision(other)) is Code.ID_IN_USE
    assert [log.record_feedback("f", feedback(comment="mail a")).result() for _ in range(2)] == [
        "recorded",
        "duplicate",
    ]
    assert code_of(log.record_feedback("f", feedback(comment="mail b"))) is Code.ID_IN_USE
    assert b"Call" not in bytes_in(tmp_path) and b"mail" not in bytes_in(tmp_path)
    log.close()
    log = open_log(url_of(tmp_path), key=b"of another home")
    assert code_of(log.record_decision(one)) is Code.ID_IN_USE, "without its key nothing is recognized by a digest"
    log.close()


def test_without_texts_the_digest_of_what_was_given_tells_another_request(log: DecisionLog) -> None:
    def states(digest: str) -> LoggedDecision:
        return decision(interaction=None, input_sha256=digest)

    assert [log.record_decision(states(digest)).result() for digest in ("5e", "5e")] == ["recorded", "duplicate"]
    assert code_of(log.record_decision(states("ed"))) is Code.ID_IN_USE
    assert code_of(log.record_decision(decision())) is Code.ID_IN_USE
    found = queries.get_decision(log.database, "i-1")
    assert found and (found.text_state, found.decision.interaction) == ("none", None)


def test_a_decision_takes_the_place_of_one_of_which_nothing_is_known(log: DecisionLog) -> None:
    refused = decision(shown=False, decision="unavailable", interaction=None, duration_ms=1.0)
    assert log.record_decision(refused).result() == "recorded"
    assert log.record_decision(replace(refused, duration_ms=2.0)).result() == "recorded"
    found = queries.get_decision(log.database, "i-1")
    assert found and found.decision == replace(refused, duration_ms=2.0)
    assert log.record_decision(decision(interaction=None, input_sha256="5e")).result() == "recorded"
    assert code_of(log.record_decision(decision(interaction=None, input_sha256="ed"))) is Code.ID_IN_USE
    assert code_of(log.record_decision(refused)) is Code.ID_IN_USE
    found = queries.get_decision(log.database, "i-1")
    assert found and found.decision.decision == "show"
    assert queries.count_decisions(log.database) == {"show": 1, "abstain": 0, "unavailable": 0, "feedback": 0}


def test_an_unavailable_decision_about_a_known_answer_stays(log: DecisionLog) -> None:
    unavailable = decision(shown=False, decision="unavailable", interaction=None, input_sha256="5e")
    assert log.record_decision(unavailable).result() == "recorded"
    assert code_of(log.record_decision(decision(interaction=None, input_sha256="ed"))) is Code.ID_IN_USE
    log.record_decision(decision("i-2", shown=False, decision="unavailable")).result()
    assert log.record_decision(decision("i-2")).result() == "duplicate"


def test_what_waits_together_is_compared_in_its_order(log: DecisionLog) -> None:
    refused = decision(shown=False, decision="unavailable", interaction=None)
    rows = [refused, decision(), decision(), decision(interaction=interaction(answer="Ten euros.")), refused]
    with held(log):
        futures = [log.record_decision(row) for row in rows]
    assert [futures[at].result() for at in range(3)] == ["recorded", "recorded", "duplicate"]
    assert [code_of(futures[at]) for at in (3, 4)] == [Code.ID_IN_USE] * 2
    assert (
        queries.count_decisions(log.database)["show"] == 2 and queries.count_decisions(log.database)["unavailable"] == 0
    )


def test_feedback_is_recorded_once_by_its_id(log: DecisionLog) -> None:
    assert log.record_feedback("f-1", feedback(comment="good")).result() == "recorded"
    assert log.record_feedback("f-1", feedback(comment="good", days=2)).result() == "duplicate"
    assert code_of(log.record_feedback("f-1", feedback(comment="bad"))) is Code.ID_IN_USE
    assert log.record_feedback("f-2", feedback(comment="good")).result() == "recorded"
    assert queries.count_decisions(log.database)["feedback"] == 2


def test_a_conflict_and_a_row_that_cannot_be_written_fail_alone(log: DecisionLog) -> None:
    log.record_decision(decision()).result()
    rows = [decision("a"), decision(interaction=interaction(answer="x")), decision("b", reason="\ud800"), decision("c")]
    futures = [log.record_decision(row) for row in rows]
    assert [futures[at].result() for at in (0, 3)] == ["recorded", "recorded"]
    assert [code_of(futures[at]) for at in (1, 2)] == [Code.ID_IN_USE, Code.INVALID_ROW]
    assert (
        queries.get_decision(log.database, "a")
        and queries.get_decision(log.database, "c")
        and not queries.get_decision(log.database, "b")
    )


def test_a_redaction_that_fails_fails_its_row_alone(tmp_path: Path) -> None:
    def redact(row: Any) -> Any:
        if row.interaction_id == "b":
            raise AbstainError(Code.NO_PACKAGE, "no pipeline")
        return row

    log = open_log(url_of(tmp_path), redact=redact)
    with pytest.raises(AbstainError, match="no pipeline"):
        log.record_decision(decision("b"))
    assert log.record_decision(decision("a")).result() == "recorded"
    log.close()


def test_all_that_waits_is_one_commit(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    writing = LogDatabase.write_transaction
    with held(log):
        monkeypatch.setattr(LogDatabase, "write_transaction", lambda self: commits.append(1) or writing(self))
        futures = [log.record_decision(decision(f"i-{at}")) for at in range(50)]
    assert {future.result() for future in futures} == {"recorded"}
    assert len(commits) == 1 and queries.count_decisions(log.database)["show"] == 51


def test_a_full_queue_is_an_error_at_once_and_later_rows_are_taken(tmp_path: Path) -> None:
    log = open_log(url_of(tmp_path), pending=2)
    with held(log):
        futures = [log.record_decision(decision("b")), log.record_feedback("f", feedback("b"))]
        with pytest.raises(LogQueueFull, match="2 rows wait for the decision log"):
            log.record_decision(decision("c"))
    assert [future.result() for future in futures] == ["recorded"] * 2
    assert log.record_decision(decision("c")).result() == "recorded"
    log.close()


def test_closing_writes_what_waits_and_refuses_what_comes_later(tmp_path: Path) -> None:
    log = open_log(url_of(tmp_path))
    futures = [log.record_decision(decision(f"i-{at}")) for at in range(200)]
    log.close()
    log.close()
    assert all(future.done() and future.result() == "recorded" for future in futures)
    with pytest.raises(AbstainError, match="log is closed"):
        log.record_decision(decision("late"))


def test_who_no_longer_waits_is_not_recorded(log: DecisionLog) -> None:
    with held(log):
        assert log.record_decision(decision("b")).cancel()
    late: Future[Any] = Future()
    assert late.cancel()
    log.record_decision(decision("c"), late)
    assert log.record_decision(decision("d")).result() == "recorded"
    assert queries.get_decision(log.database, "first")
    assert not queries.get_decision(log.database, "b") and not queries.get_decision(log.database, "c")


def test_a_decision_that_is_of_another_interaction_is_a_mistake_of_the_caller(log: DecisionLog) -> None:
    with pytest.raises(ValueError, match="has its id"):
        log.record_decision(decision("i-1", interaction=interaction("i-2")))


# Contexts of calls


def test_the_last_contexts_of_a_call_are_recalled_until_they_expire(log: DecisionLog) -> None:
    assert log.get_call("ann", "c") is None
    one, two, three = (RegisteredCall(question=text) for text in ("one", "two", "three"))
    log.register_call("ann", "c", one, 60)
    log.register_call("ann", "c", two, 60)
    log.register_call("ann", "d", one, -1).result()
    assert (log.get_call("ann", "c"), log.get_call("ann", "d")) == (two, None)
    log.register_call("ann", "c", three, 60).result()
    assert log.get_call("ann", "c") == three


def test_a_call_is_its_owners_alone(log: DecisionLog) -> None:
    for owner in ("ann", "bob"):
        log.register_call(owner, "c", RegisteredCall(question=owner), 60).result()
    found = [log.get_call(owner, "c") for owner in ("ann", "bob", "cy")]
    assert [one.question if one else None for one in found] == ["ann", "bob", None]


def test_what_is_recalled_is_what_was_remembered_with_the_user_by_pseudonym(log: DecisionLog) -> None:
    contexts = (Context(chunk_id="c1", text="one"), "two")
    log.register_call("ann", "c", RegisteredCall(question="Why?", contexts=contexts, user="ann", product="cards"), 60)
    log.register_call("ann", "d", RegisteredCall(contexts=("two",)), 60).result()
    assert log.get_call("ann", "c") == RegisteredCall(question="Why?", contexts=contexts, user="u-ann", product="cards")
    assert log.get_call("ann", "d") == RegisteredCall(contexts=("two",))


def test_another_process_recalls_what_one_has_registered(tmp_path: Path, log: DecisionLog) -> None:
    other = open_log(url_of(tmp_path))
    log.register_call("ann", "c", RegisteredCall(question="one"), 60).result()
    assert other.get_call("ann", "c") == RegisteredCall(question="one")
    other.close()


def test_contexts_are_bounded_in_number_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner who registers one call again and again, or more than its share, takes the place of nobody else's."""
    monkeypatch.setattr(writes, "MAX_CALLS", 5)
    monkeypatch.setattr(module, "MAX_CALL_CHARS", 100)
    log = open_log(url_of(tmp_path), calls_each=3)

    def kept(owner: str) -> list[int]:
        return [at for at in range(5) if log.get_call(owner, f"c-{at}")]

    for at in range(2):
        log.register_call("ann", f"c-{at}", RegisteredCall(question="?"), 60)
    for at in (0, 0, 0, 0, 0, 0, 1, 2, 3, 4):
        log.register_call("eve", f"c-{at}", RegisteredCall(question="?"), 60).result()
    assert (kept("ann"), kept("eve")) == ([0, 1], [2, 3, 4])
    log.register_call("bob", "c-0", RegisteredCall(question="?"), 60).result()
    assert (kept("ann"), kept("eve"), kept("bob")) == ([1], [2, 3, 4], [0]), "the oldest of all has gone"
    with pytest.raises(AbstainError, match="characters, 100 allowed"):
        log.register_call("ann", "c", RegisteredCall(contexts=("x" * 100,)), 60)
    log.close()


# Who is drawn


@given(st.text(min_size=1, max_size=20).filter(str.strip), st.booleans())
def test_a_larger_share_draws_the_same_and_more(key: str, shown: bool) -> None:
    def drawn(share: float) -> bool:
        told = decision(key, shown, interaction=None)
        row = make_decision_row(told, lambda row: row, pseudonym, SamplingRates(share, share), KEY)
        assert row["sampling_rate"] == share
        return bool(row["sampled"])

    draws = [drawn(share) for share in (0.0, 0.15, 0.5, 1.0)]
    assert draws == sorted(draws) and draws[0] is False and draws[-1] is True


@pytest.mark.parametrize(("shown", "share"), [(True, 0.05), (False, 0.15)])
def test_answers_are_sampled_at_their_rate(shown: bool, share: float) -> None:
    drawn = sum(row_of(key=f"i-{at}", shown=shown, interaction=None)["sampled"] for at in range(20_000))
    assert abs(drawn / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


# What is asked of the log


def test_newest_withheld_come_first(log: DecisionLog) -> None:
    for at in range(6):
        log.record_decision(decision(f"i-{at}", at % 2 == 0)).result()
    assert [row.interaction_id for row in queries.list_withheld(log.database, 2)] == ["i-5", "i-3"]


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 59), st.sampled_from(["show", "abstain", "unavailable"]), st.floats(0, 1e6))))
def test_figures_over_time_are_those_of_the_rows(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    log = open_log(url_of(tmp_path_factory.mktemp("log")))
    for at, (minute, kind, took) in enumerate(rows):
        moment = AT + timedelta(minutes=minute)
        log.record_decision(decision(f"i-{at}", decided_at=moment, decision=kind, duration_ms=took, interaction=None))
    log.record_decision(decision("before", decided_at=AT - timedelta(microseconds=1)))
    log.record_decision(decision("after", decided_at=AT + timedelta(hours=1))).result()
    steps = queries.count_by_interval(log.database, AT, AT + timedelta(hours=1), timedelta(minutes=15))
    log.close()
    expected = []
    for quarter in range(4):
        own = sorted(took for minute, _, took in rows if minute // 15 == quarter)
        kinds = [kind for minute, kind, _ in rows if minute // 15 == quarter]
        if own:
            counts = (*map(kinds.count, ("show", "abstain", "unavailable")), len(kinds))
            p50, p99 = (rounded(own[-(-len(own) * percent // 100) - 1]) for percent in (50, 99))
            expected.append((AT + quarter * timedelta(minutes=15), *counts, p50, p99))
    found = [(one.start, one.show, one.abstain, one.unavailable, one.shown, one.p50_ms, one.p99_ms) for one in steps]
    assert found == expected


def rounded(duration_ms: float) -> Any:
    """To 0.1 ms below 100, to 1 below 1,000, else to 10."""
    return pytest.approx(duration_ms, abs=0.0501 if duration_ms < 100 else 0.501 if duration_ms < 1000 else 5.01)


def test_figures_tell_how_many_were_shown_without_a_decision(log: DecisionLog) -> None:
    for at, shown in enumerate((True, True, False)):
        log.record_decision(decision(f"i-{at}", shown, decision="unavailable")).result()
    (step,) = queries.count_by_interval(log.database, AT, AT + timedelta(hours=1), timedelta(hours=1))
    assert (step.show, step.unavailable, step.shown) == (0, 3, 2)


def test_reviews_of_what_a_version_showed_are_found(log: DecisionLog) -> None:
    """Not those of another version, of an earlier decision, or of what it withheld or could not decide."""
    others: list[dict[str, Any]] = [
        {"version": "v0.9.0"},
        {"decided_at": AT - timedelta(seconds=1)},
        {"shown": False},
        {"decision": "unavailable", "shown": True},
    ]
    for number, changes in enumerate([{}, *others]):
        log.record_decision(decision(f"i-{number}", **changes))
        log.record_feedback(f"f-{number}", review(f"i-{number}"))
    log.record_feedback("thumb", feedback("i-0"))
    log.record_feedback("again", review("i-0", right=False)).result()
    assert queries.list_reviews_of_shown(log.database, "v1.0.0", AT) == [review("i-0"), review("i-0", right=False)]
    log.purge_expired_texts(datetime.now(UTC) + timedelta(days=40_000))
    assert queries.list_reviews_of_shown(log.database, "v1.0.0", AT) == [], "verdicts go with the texts"


def test_reviewed_are_those_with_a_review(log: DecisionLog) -> None:
    log.record_feedback("f-1", review("i-1"))
    log.record_feedback("f-2", feedback("i-2"))
    log.record_feedback("f-3", review("i-3")).result()
    assert queries.find_reviewed(log.database, ["i-1", "i-2", "i-4"]) == {"i-1"}


def test_counts_are_of_the_decisions_since_a_moment(log: DecisionLog) -> None:
    log.record_decision(decision("old", decided_at=AT - timedelta(days=1)))
    log.record_decision(decision("new", shown=False))
    log.record_feedback("f", feedback("new")).result()
    assert queries.count_decisions(log.database, AT) == {"show": 0, "abstain": 1, "unavailable": 0, "feedback": 1}
    assert queries.count_decisions(log.database, datetime.now(UTC) + timedelta(days=1))["feedback"] == 0


def test_a_step_of_no_length_is_a_mistake_of_the_caller(log: DecisionLog) -> None:
    with pytest.raises(ValueError, match="above 0"):
        queries.count_by_interval(log.database, AT, AT, timedelta(0))


# The database


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = open_log(url_of(tmp_path / "home"))
        log.record_decision(decision()).result()
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "home").iterdir()}
    assert modes == dict.fromkeys(["decisions.sqlite", "decisions.sqlite-wal", "decisions.sqlite-shm"], 0o600)
    log.close()


def test_redaction_comes_before_the_disk(tmp_path: Path) -> None:
    secret = "4111 1111 1111 1111"

    def redact(row: Any) -> Any:
        text = row.to_json_line().replace(secret, "<CREDIT_CARD>")
        return type(row).model_validate_json(text)

    log = open_log(url_of(tmp_path), redact=redact)
    asked = interaction(question=f"Is {secret} mine?", answer=f"{secret} is.")
    futures = [
        log.record_decision(decision(interaction=asked, user="ann@example.org")),
        log.record_feedback("f-1", feedback(comment=f"my {secret}")),
        log.record_feedback("f-2", review(ideal_answer=f"it is {secret}")),
        log.register_call("key", "c", RegisteredCall(question=f"Is {secret} mine?", contexts=(f"{secret} is.",)), 60),
    ]
    assert [future.result() for future in futures] == ["recorded"] * 4
    assert (tmp_path / "decisions.sqlite-wal").stat().st_size > 0
    assert secret.encode() not in bytes_in(tmp_path) and bytes_in(tmp_path).count(b"<CREDIT_CARD>") >= 6
    assert b"u-ann@example.org" in bytes_in(tmp_path)
    log.close()
    assert secret.encode() not in bytes_in(tmp_path)


def test_another_layout_is_one_line(tmp_path: Path) -> None:
    open_log(url_of(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / "decisions.sqlite")) as connection, connection:
        connection.execute("UPDATE decision_log SET content = '1' WHERE name = 'version'")
    for opening in (open_log, LogDatabase.open_existing):
        with pytest.raises(AbstainError, match="its layout has version 1, this release knows 4") as refused:
            opening(url_of(tmp_path))
        assert refused.value.code is Code.VERSION_MISMATCH and "\n" not in str(refused.value)


def test_a_place_that_cannot_be_written_and_a_file_that_is_no_database_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(AbstainError, match=r"not a database") as refused:
        open_log(f"sqlite:///{tmp_path / 'file'}")
    assert refused.value.code is Code.NO_SERVICE
    with pytest.raises(AbstainError) as refused:
        open_log(f"sqlite:///{tmp_path / 'file' / 'decisions.sqlite'}")
    assert refused.value.code is Code.NOT_WRITABLE


@pytest.mark.parametrize(
    "url", ["mysql://ann:s3cret@h/d", "s3cret", "postgresql://ann:s3cret@h:port/d", "postgresql://ann:p@s3cret@h/d"]
)
def test_a_url_that_is_none_of_postgresql_is_not_quoted(url: str) -> None:
    with pytest.raises(AbstainError, match="write postgresql://") as refused:
        open_log(url)
    assert refused.value.code is Code.BAD_SETTING and "s3cret" not in str(refused.value)


def test_while_the_database_is_away_rows_fail_and_later_ones_are_written(
    tmp_path: Path, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.record_decision(decision("before")).result()
    with closing(sqlite3.connect(tmp_path / "decisions.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        log.database._engine.dispose()
        monkeypatch.setattr("abstain.data.decision_log.database._PRAGMAS", ("busy_timeout=1",))
        other.execute("BEGIN EXCLUSIVE")
        away = [log.record_decision(decision("a")), log.record_feedback("f", feedback("a"))]
        assert [code_of(future) for future in away] == [Code.NO_SERVICE] * 2
        assert log.last_error == str(away[0].exception().message_with_code)
        other.execute("ROLLBACK")
        other.execute("PRAGMA locking_mode=NORMAL")
        other.execute("SELECT count(*) FROM decision_log").fetchone()
    assert log.record_decision(decision("a")).result() == "recorded" and log.last_error is None
    assert queries.count_decisions(log.database) == {"show": 2, "abstain": 0, "unavailable": 0, "feedback": 0}


def test_a_log_that_takes_no_rows_is_noticed_before_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers learn no place; the server's log has it."""
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    log = open_log(url_of(tmp_path))
    file = tmp_path / "decisions.sqlite"
    for name in ("decisions.sqlite-wal", "decisions.sqlite-shm", "decisions.sqlite"):
        (tmp_path / name).unlink(missing_ok=True)
    file.write_bytes(b"junk" * 5000)
    wait_until(lambda: log.last_error is not None)
    with pytest.raises(AbstainError) as refused:
        queries.get_decision(log.database, "i-1")
    for told in (log.last_error, str(refused.value)):
        assert "see the server's log" in (told or "") and str(tmp_path) not in (told or "")
    assert f"decision log {file}: file is not a database" in caplog.text
    file.unlink()
    wait_until(lambda: log.last_error is None)
    assert log.record_decision(decision()).result() == "recorded"
    log.close()


def test_a_file_that_was_removed_is_made_anew(
    tmp_path: Path, log: DecisionLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.record_decision(decision("a")).result()
    for file in tmp_path.iterdir():
        file.unlink()
    assert log.record_decision(decision("b")).result() == "recorded"
    assert log.database.n_replaced == 1 and "the file was removed or replaced" in caplog.text
    other = open_log(url_of(tmp_path))
    assert queries.get_decision(other.database, "b") and not queries.get_decision(other.database, "a")
    other.close()


def test_threads_that_write_count_a_removed_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = LogDatabase.open(url_of(tmp_path))
    for file in tmp_path.iterdir():
        file.unlink()
    prepare = database._create_tables
    monkeypatch.setattr(database, "_create_tables", lambda: time.sleep(0.1) or prepare())

    def write(_: int) -> None:
        with database.write_transaction():
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert database.n_replaced == 1


@pytest.mark.parametrize(
    ("often", "of", "failing"),
    [
        ("CHECK_INTERVAL_S", LogDatabase, "write_transaction"),
        ("PURGE_INTERVAL_S", module.erasure, "purge_expired_texts"),
    ],
)
def test_the_thread_that_writes_survives_a_defect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    often: str,
    of: Any,
    failing: str,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(module, often, 0.02)
        log = open_log(url_of(tmp_path))
        patch.setattr(of, failing, fail)
        wait_until(lambda: "a defect" in caplog.text)
    assert log.record_decision(decision()).result(20) == "recorded"
    log.close()


def test_the_log_purges_itself(tmp_path: Path) -> None:
    log = open_log(url_of(tmp_path))
    log.record_decision(decision()).result()
    log.close()
    log = open_log(url_of(tmp_path), keep_days=1)  # AT is before yesterday
    deadline = time.monotonic() + 20
    while (
        (found := queries.get_decision(log.database, "i-1"))
        and found.text_state == "kept"
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert found and found.text_state == "expired"
    log.close()


def test_two_logs_on_one_file_record_every_row_once(tmp_path: Path) -> None:
    logs = [open_log(url_of(tmp_path)) for _ in range(2)]
    futures = [log.record_decision(decision(f"i-{at}")) for at in range(100) for log in logs]
    futures += [log.record_feedback(f"f-{at}", feedback(f"i-{at}")) for at in range(100) for log in logs]
    outcomes = [future.result() for future in futures]
    assert outcomes.count("recorded") == outcomes.count("duplicate") == 200
    assert queries.count_decisions(logs[0].database) == {"show": 100, "abstain": 0, "unavailable": 0, "feedback": 100}
    for log in logs:
        log.close()


def test_feedback_of_any_text_comes_back(log: DecisionLog) -> None:
    comment = "it's \x00 'quoted' \u2028 \U0001f600"
    log.record_feedback("f", feedback(comment=comment)).result()
    log.record_decision(decision()).result()
    found = queries.get_decision(log.database, "i-1")
    assert found and isinstance(found.feedback[0], Thumb) and found.feedback[0].comment == comment
