"""The same log in PostgreSQL."""

import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.calls import RegisteredCall
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import find_user_rows
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.queue import SampledAnswer, count_progress, fill_queue, hold_next_open
from abstain.ingest.sources.decision_log import DecisionLogSource
from tests.data.builders import feedback, interaction, review
from tests.data.decision_log.builders import AT, decision, open_log
from tests.data.decision_log.processes import assert_all_there, kill_writers
from tests.postgres import database, start_postgres

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        yield url


@pytest.fixture
def log(url: str) -> Iterator[DecisionLog]:
    opened = open_log(url, withheld_sampling_rate=1.0, keep_days=30)
    yield opened
    opened.close()


def test_postgres_what_is_recorded_is_found_given_to_ingest_and_erased(url: str, log: DecisionLog) -> None:
    assert log.record_decision(decision("a", user="ann")).result() == "recorded"
    assert log.record_decision(decision("a", user="ann")).result() == "duplicate"
    assert log.record_decision(decision("b", shown=False, duration_ms=5.0)).result() == "recorded"
    assert log.record_feedback("f-1", feedback("a", user="u-ann", comment="\x00 it's")).result() == "recorded"
    assert log.record_feedback("f-1", feedback("a", user="u-ann", comment="\x00 it's")).result() == "duplicate"
    log.register_call("key", "c", RegisteredCall(question="one"), 60)
    log.register_call("key", "c", RegisteredCall(question="two"), 60).result()
    assert log.get_call("key", "c") == RegisteredCall(question="two")
    (step,) = queries.count_by_interval(log.database, AT, AT + timedelta(hours=1), timedelta(minutes=5))
    assert (step.start, step.show, step.abstain, step.p50_ms, step.p99_ms) == (AT, 1, 1, 3.0, 5.0)
    assert [row.interaction_id for row in queries.list_withheld(log.database, 5)] == ["b"]
    source = DecisionLogSource(name="decisions", url=url)
    reading = source.read({})
    assert [row.interaction and row.interaction.interaction_id for row in reading] == ["b", "a"]
    assert list(source.read(reading.outcome.state)) == []
    existing = LogDatabase.open_existing(url)
    assert existing and find_user_rows(existing, ["u-ann"]).feedback == 1
    assert log.erase_user(["ann"], with_interactions=True) == 2
    assert log.purge_expired_texts(AT + timedelta(days=31)) == 1
    found = [queries.get_decision(log.database, key) for key in "ab"]
    assert [one.text_state for one in found if one] == ["erased", "expired"]
    assert queries.count_decisions(log.database) == {"show": 1, "abstain": 1, "unavailable": 0, "feedback": 1}


def test_postgres_a_row_that_it_refuses_fails_alone(log: DecisionLog) -> None:
    futures = [
        log.record_decision(decision(key, reason=reason)) for key, reason in (("a", None), ("b", "\x00"), ("c", None))
    ]
    error = futures[1].exception()
    assert isinstance(error, AbstainError) and error.code is Code.INVALID_ROW
    assert [futures[at].result() for at in (0, 2)] == ["recorded"] * 2


def test_postgres_queue_is_shared_by_gates(url: str, log: DecisionLog) -> None:
    other, now = open_log(url), datetime.now(UTC)
    fill_queue(log.database, [SampledAnswer(interaction(key), 1 / 3) for key in "ab"], (), now)
    held = [hold_next_open(each.database, who) for each, who in ((log, "ann"), (other, "bob"), (log, "cy"))]
    assert [one and one.interaction.interaction_id for one in held] == ["a", "b", None]
    outcomes = [each.record_review(review("a", reviewer="ann")) for each in (log, other)]
    assert sorted(one.result() for one in outcomes) == ["duplicate", "recorded"]
    fill_queue(other.database, [SampledAnswer(interaction("a"), 0.5)], (), now)
    assert count_progress(log.database) == (1, 2), "bob still has b"
    read = DecisionLogSource(name="decisions", url=url).read({})
    assert [row.review and row.review.inclusion_probability for row in read] == [1 / 3, 0.5]
    assert log.purge_expired_texts(now + timedelta(days=31)) == 4
    other.close()


def test_postgres_where_no_server_has_logged_there_is_nothing(url: str) -> None:
    assert list(DecisionLogSource(name="decisions", url=url).read({})) == []
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_postgres_numbers_rise_in_the_order_of_commits(url: str) -> None:
    logs = [open_log(url, shown_sampling_rate=1.0) for _ in range(3)]
    source, seen, state = DecisionLogSource(name="decisions", url=url), [], {}
    futures = [log.record_decision(decision(f"{name}-{at}")) for at in range(300) for name, log in enumerate(logs)]
    while True:  # reads while they write: what has a lower number than one that was seen may not come later
        is_last = all(future.done() for future in futures)
        reading = source.read(state)
        seen += [row.interaction.interaction_id for row in reading if row.interaction]
        state = reading.outcome.state
        if is_last:
            break
    assert len(seen) == len(set(seen)) == 900
    for log in logs:
        log.close()


def test_postgres_what_was_acknowledged_survives_a_kill(url: str) -> None:
    acknowledged = kill_writers(url, ["a", "b"], seed=1)
    assert_all_there(url, acknowledged)


def test_postgres_while_it_is_away_rows_fail_and_later_ones_are_written() -> None:
    with tempfile.TemporaryDirectory(prefix="abstain-postgres-") as folder:
        Path(folder).chmod(0o755)
        with start_postgres(Path(folder) / "data") as url:
            log = open_log(url)
            assert log.record_decision(decision("before")).result() == "recorded"
        error = log.record_decision(decision("a")).exception()
        assert isinstance(error, AbstainError) and error.code is Code.NO_SERVICE and "\n" not in str(error)
        with pytest.raises(AbstainError):
            queries.get_decision(log.database, "before")
        with start_postgres(Path(folder) / "data"):
            assert log.record_decision(decision("a")).result() == "recorded"
            assert queries.get_decision(log.database, "before") and queries.count_decisions(log.database)["show"] == 2
            log.close()


def test_postgres_that_is_away_is_one_line_without_the_password() -> None:
    with pytest.raises(AbstainError) as refused:
        open_log("postgresql://ann:s3cret@127.0.0.1:9/log?sslpassword=hunter2")
    assert refused.value.code is Code.NO_SERVICE
    assert not re.search(r"s3cret|hunter2|\n", str(refused.value))


def test_postgres_texts_of_any_language_come_back(log: DecisionLog) -> None:
    asked = interaction("a", question="Wie hoch? \U0001f600 \u2028 'x'")
    log.record_decision(decision("a", interaction=asked))
    log.record_feedback("f", review("a", ideal_answer="Zehn €")).result()
    found = queries.get_decision(log.database, "a")
    assert found and found.decision.interaction and found.decision.interaction.question == asked.question
    assert found.feedback == (review("a", ideal_answer="Zehn €"),)
