import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.data.decision_log import log as module
from abstain.data.decision_log import queries, writes
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.decisions import LoggedDecision, SamplingRates, make_decision_row
from abstain.data.decision_log.log import DecisionLog, LogQueueFull
from tests.data.decision_log.builders import AT, bytes_in, decision, get_outcome, open_log, record, url_of
from tests.factories import feedback, interaction, review

pytestmark = pytest.mark.heavy

UNAVAILABLE = decision(shown=False, decision="unavailable", interaction=None)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def block_writer(log: DecisionLog) -> Iterator[None]:
    """Hold up the thread that writes, with the decision `first`: later rows have to wait for it."""
    with log.database.write_transaction():
        log.record_decision(decision("first"))
        while not log._queue.empty():
            time.sleep(0.001)
        yield


def test_record_decision_keeps_it_with_its_feedback(log: DecisionLog) -> None:
    logged = replace(UNAVAILABLE, user="ann", code="A206", confidence=None, interaction=interaction())
    rows = [feedback(user="u-1", comment="it's \x00 'quoted' \u2028 \U0001f600"), review(inclusion_probability=0.5)]
    assert record(log, logged) == ["recorded"]
    for number, row in enumerate(rows):
        assert log.record_feedback(f"f-{number}", row).result() == "recorded"
    details = queries.get_decision(log.database, "i-1")
    assert details.text_state == "kept" and details.sampling_rate == 0.15
    assert details.decision == replace(logged, user="u-ann", interaction=interaction(display="withheld"))
    assert details.feedback == (rows[0], review()), "a review of the log was not sampled"
    assert queries.get_decision(log.database, "i-2") is None


@pytest.mark.parametrize(
    ("shown", "kind", "display", "propensity"),
    [(False, "abstain", "withheld", None), (True, "abstain", "shown", 1), (True, "unavailable", "shown", 1)],
)
def test_record_decision_sets_display_and_propensity(
    log: DecisionLog, shown: bool, kind: str, display: str, propensity: float | None
) -> None:
    record(log, decision(shown=shown, decision=kind, interaction=interaction(propensity=0.5, display="shown")))
    row = queries.get_decision(log.database, "i-1").decision.interaction
    assert (row.display, row.propensity) == (display, propensity)


REPEATED = decision(shown=False, confidence=0.1, duration_ms=9.0, interaction=interaction(asked_at=AT))
TEN = decision(interaction=interaction(answer="Ten euros."))
BARE, OTHER = (decision(interaction=None, input_sha256=digest) for digest in ("5e", "ed"))
NEW, SAME, USED = "recorded", "duplicate", Code.ID_IN_USE


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize(
    ("rows", "outcomes", "kept"),
    [
        ([decision(), REPEATED, TEN, BARE], [NEW, SAME, USED, USED], 0),
        ([BARE, BARE, OTHER, decision()], [NEW, SAME, USED, USED], 0),
        ([UNAVAILABLE, replace(UNAVAILABLE, duration_ms=9.0)], [NEW, NEW], 1),
        ([UNAVAILABLE, BARE, OTHER, UNAVAILABLE], [NEW, NEW, USED, USED], 1),
        ([UNAVAILABLE, decision(), decision(), TEN, UNAVAILABLE], [NEW, NEW, SAME, USED, USED], 1),
        ([replace(UNAVAILABLE, input_sha256="5e"), OTHER], [NEW, USED], 0),
        ([decision(shown=False, decision="unavailable"), decision()], [NEW, SAME], 0),
    ],
)
def test_record_decision_keeps_the_first_of_any_input(
    log: DecisionLog, rows: list[LoggedDecision], outcomes: list[Any], kept: int, queued: bool
) -> None:
    if queued:  # all in one commit, otherwise one commit each
        with block_writer(log):
            futures = [log.record_decision(row) for row in rows]
        assert [get_outcome(future) for future in futures] == outcomes
    else:
        assert record(log, *rows) == outcomes
    details = queries.get_decision(log.database, "i-1")
    assert replace(details.decision, interaction=None) == replace(rows[kept], interaction=None, input_sha256=None)
    assert details.text_state == ("kept" if rows[kept].interaction else "none")
    assert sum(queries.count_decisions(log.database).values()) == 1 + queued


def test_digests_are_of_unredacted_texts_and_the_key(tmp_path: Path) -> None:
    texts = dict.fromkeys(("question", "answer", "comment"), "<X>")
    log = open_log(
        url_of(tmp_path),
        redact=lambda row: row.model_copy(update={k: v for k, v in texts.items() if k in row.model_fields_set}),
    )
    first, second = (decision(interaction=interaction(answer=answer)) for answer in ("Call 1.", "Call 2."))
    assert record(log, first, first, second) == ["recorded", "duplicate", Code.ID_IN_USE]
    rows = [feedback(comment=text) for text in ("mail a", "mail a", "mail b")]
    outcomes = [get_outcome(log.record_feedback("f", row)) for row in rows]
    assert outcomes == ["recorded", "duplicate", Code.ID_IN_USE]
    assert b"Call" not in bytes_in(tmp_path) and b"mail" not in bytes_in(tmp_path)
    log.close()
    with closing(open_log(url_of(tmp_path), key=b"of another home")) as other:
        assert record(other, first) == [Code.ID_IN_USE]


def test_record_feedback_is_recorded_once_by_its_id(log: DecisionLog) -> None:
    rows = [("f-1", "good", 1), ("f-1", "good", 2), ("f-1", "bad", 1), ("f-2", "good", 1)]
    with block_writer(log):  # all in one commit
        futures = [log.record_feedback(name, feedback(comment=text, days=days)) for name, text, days in rows]
    assert [get_outcome(future) for future in futures] == ["recorded", "duplicate", Code.ID_IN_USE, "recorded"]
    assert queries.count_decisions(log.database)["feedback"] == 2


def test_record_decision_invalid_rows_fail_alone(log: DecisionLog) -> None:
    record(log, decision())
    rows = [decision("a"), decision(interaction=interaction(answer="x")), decision("b", reason="\ud800"), decision("c")]
    futures = [log.record_decision(row) for row in rows]
    outcomes = ["recorded", Code.ID_IN_USE, Code.INVALID_ROW, "recorded"]
    assert [get_outcome(future) for future in futures] == outcomes
    assert [key for key in "abc" if queries.get_decision(log.database, key)] == ["a", "c"]


def test_record_decision_failed_redaction_or_id_fails_its_row(tmp_path: Path) -> None:
    def redact(row: Any) -> Any:
        if row.interaction_id == "b":
            raise AbstainError(Code.NO_PACKAGE, "no pipeline")
        return row

    with closing(open_log(url_of(tmp_path), redact=redact)) as log:
        with pytest.raises(AbstainError, match="no pipeline"):
            log.record_decision(decision("b"))
        with pytest.raises(ValueError, match="has its id"):
            log.record_decision(decision("i-1", interaction=interaction("i-2")))
        assert record(log, decision("a")) == ["recorded"]


def test_record_decision_commits_queued_rows_at_once(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    write_transaction = LogDatabase.write_transaction
    with block_writer(log):
        monkeypatch.setattr(LogDatabase, "write_transaction", lambda db: commits.append(1) or write_transaction(db))
        futures = [log.record_decision(decision(f"i-{number}")) for number in range(50)]
    assert {future.result() for future in futures} == {"recorded"}
    assert len(commits) == 1 and queries.count_decisions(log.database)["show"] == 51


def test_record_decision_full_queue_is_an_error_at_once(tmp_path: Path) -> None:
    with closing(open_log(url_of(tmp_path), pending=2)) as log:
        with block_writer(log):
            futures = [log.record_decision(decision("b")), log.record_feedback("f", feedback("b"))]
            with pytest.raises(LogQueueFull):
                log.record_decision(decision("c"))
        assert [future.result() for future in futures] == ["recorded"] * 2
        assert record(log, decision("c")) == ["recorded"]


def test_close_writes_queued_rows_and_rejects_later_ones(tmp_path: Path) -> None:
    log = open_log(url_of(tmp_path))
    futures = [log.record_decision(decision(f"i-{number}")) for number in range(200)]
    log.close()
    log.close()
    assert all(future.done() and future.result() == "recorded" for future in futures)
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.NO_SERVICE):
        log.record_decision(decision("late"))


def test_record_decision_cancelled_is_not_recorded(log: DecisionLog) -> None:
    with block_writer(log):
        assert log.record_decision(decision("b")).cancel()
    cancelled: Future[Any] = Future()
    assert cancelled.cancel()
    log.record_decision(decision("c"), cancelled)
    assert record(log, decision("d")) == ["recorded"]
    assert [key for key in ("first", "b", "c") if queries.get_decision(log.database, key)] == ["first"]


def test_get_call_returns_the_owners_last_until_it_expires(tmp_path: Path, log: DecisionLog) -> None:
    assert log.get_call("ann", "c") is None
    first, second = (RegisteredCall(question=text) for text in ("one", "two"))
    third = RegisteredCall(contexts=(Context(chunk_id="c1", text="one"), "two"), user="ann", product="cards")
    log.register_call("ann", "c", first, 60)
    log.register_call("ann", "c", second, 60)
    log.register_call("bob", "c", first, 60)
    log.register_call("ann", "d", first, -1).result()
    calls = [log.get_call(*key) for key in (("ann", "c"), ("bob", "c"), ("ann", "d"), ("cy", "c"))]
    assert calls == [second, first, None, None]
    log.register_call("ann", "c", third, 60).result()
    with closing(open_log(url_of(tmp_path))) as other:
        assert log.get_call("ann", "c") == other.get_call("ann", "c") == third.model_copy(update={"user": "u-ann"})


def test_register_call_limits_number_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner who registers one call again and again, or more than its share, displaces nobody else's."""
    monkeypatch.setattr(writes, "MAX_CALLS", 5)
    monkeypatch.setattr(module, "MAX_CALL_CHARS", 100)
    log = open_log(url_of(tmp_path), calls_each=3)

    def list_calls(owner: str) -> list[int]:
        return [number for number in range(5) if log.get_call(owner, f"c-{number}")]

    for owner, numbers in (("ann", (0, 1)), ("eve", (0, 0, 0, 0, 0, 0, 1, 2, 3, 4))):
        for number in numbers:
            log.register_call(owner, f"c-{number}", RegisteredCall(question="?"), 60).result()
    assert (list_calls("ann"), list_calls("eve")) == ([0, 1], [2, 3, 4])
    log.register_call("bob", "c-0", RegisteredCall(question="?"), 60).result()
    assert [list_calls(owner) for owner in ("ann", "eve", "bob")] == [[1], [2, 3, 4], [0]]
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.TOO_LARGE):
        log.register_call("ann", "c", RegisteredCall(contexts=("x" * 100,)), 60)
    log.close()


@pytest.mark.parametrize("shown", [True, False])
def test_make_decision_row_samples_a_share_by_the_id(shown: bool) -> None:
    """A higher rate takes what a lower one takes, and more; the rate of the other kind says nothing."""
    sampled: set[str] = set()
    for rate in (0.0, 0.05, 0.15, 0.5, 1.0):
        rates = SamplingRates(0.3, rate) if shown else SamplingRates(rate, 0.3)
        rows = [
            make_decision_row(decision(f"i-{at}", shown, interaction=None), lambda row: row, str, rates, b"key")
            for at in range(2000)
        ]
        assert {row["sampling_rate"] for row in rows} == {rate}
        before, sampled = sampled, {row["interaction_id"] for row in rows if row["sampled"]}
        assert before <= sampled and abs(len(sampled) / 2000 - rate) <= 4 * (rate * (1 - rate) / 2000) ** 0.5


def test_list_withheld_is_newest_first(log: DecisionLog) -> None:
    record(log, *(decision(f"i-{number}", number % 2 == 0) for number in range(6)))
    assert [row.interaction_id for row in queries.list_withheld(log.database, 2)] == ["i-5", "i-3"]


def test_count_by_interval_equals_the_rows(log: DecisionLog) -> None:
    """Durations are rounded to 0.1 ms below 100, to 1 below 1,000, else to 10."""
    rows = [(0, "show", True, 3.14159), (14, "abstain", False, 120.4), (15, "unavailable", True, 12345.6)]
    rows += [(59, "unavailable", False, float(number)) for number in range(1, 100)]
    rows += [(at, "show", True, 1.0) for at in (-1e-6, 60)]  # before and after
    for number, (minute, kind, shown, duration_ms) in enumerate(rows):
        decided_at = AT + timedelta(minutes=minute)
        record(log, decision(f"i-{number}", shown, decision=kind, decided_at=decided_at, duration_ms=duration_ms))
    steps = queries.count_by_interval(log.database, AT, AT + timedelta(hours=1), timedelta(minutes=15))
    assert [
        (row.start - AT, row.show, row.abstain, row.unavailable, row.shown, row.p50_ms, row.p99_ms) for row in steps
    ] == [
        (timedelta(0), 1, 1, 0, 1, 3.1, 120),
        (timedelta(minutes=15), 0, 0, 1, 1, 12350, 12350),
        (timedelta(minutes=45), 0, 0, 99, 0, 50, 99),
    ]
    with pytest.raises(ValueError, match="above 0"):
        queries.count_by_interval(log.database, AT, AT, timedelta(0))


def test_list_reviews_of_shown_selects_version_and_time(log: DecisionLog) -> None:
    others = [
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
    assert queries.list_reviews_of_shown(log.database, "v1.0.0", AT) == []


def test_find_reviewed_returns_ids_with_a_review(log: DecisionLog) -> None:
    for name, row in (("f-1", review("i-1")), ("f-2", feedback("i-2")), ("f-3", review("i-3"))):
        log.record_feedback(name, row).result()
    assert queries.find_reviewed(log.database, ["i-1", "i-2", "i-4"]) == {"i-1"}


def test_count_decisions_since_a_time(log: DecisionLog) -> None:
    record(log, decision("old", decided_at=AT - timedelta(days=1)), decision("new", shown=False))
    log.record_feedback("f", feedback("new")).result()
    assert queries.count_decisions(log.database, AT) == {"show": 0, "abstain": 1, "unavailable": 0, "feedback": 1}
    assert queries.count_decisions(log.database, datetime.now(UTC) + timedelta(days=1))["feedback"] == 0


def test_rows_are_redacted_before_the_disk(tmp_path: Path) -> None:
    secret = "4111 1111 1111 1111"

    def redact(row: Any) -> Any:
        return type(row).model_validate_json(row.to_json_line().replace(secret, "<CREDIT_CARD>"))

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


def test_open_purges_expired_texts(tmp_path: Path, log: DecisionLog) -> None:
    record(log, decision())
    with closing(open_log(url_of(tmp_path), keep_days=1)):  # AT is before yesterday
        wait_until(lambda: queries.get_decision(log.database, "i-1").text_state == "expired")


def test_two_logs_on_one_file_record_every_row_once(tmp_path: Path, log: DecisionLog) -> None:
    with closing(open_log(url_of(tmp_path))) as other:
        logs = (log, other)
        futures = [each.record_decision(decision(f"i-{number}")) for number in range(100) for each in logs]
        futures += [each.record_feedback(f"f-{number}", feedback()) for number in range(100) for each in logs]
        outcomes = [future.result() for future in futures]
    assert outcomes.count("recorded") == outcomes.count("duplicate") == 200
    assert queries.count_decisions(log.database) == {"show": 100, "abstain": 0, "unavailable": 0, "feedback": 100}
