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
from tests.data.decision_log.builders import AT, decision, get_outcome, open_log, record
from tests.factories import feedback, interaction, review
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


def test_postgres_log_is_read_ingested_and_erased(url: str, log: DecisionLog) -> None:
    asked = interaction("a", question="Wie hoch? \U0001f600 \u2028 'x'")
    first, second = decision("a", user="ann", interaction=asked), decision("b", shown=False, duration_ms=5.0)
    futures = [log.record_decision(row) for row in (first, first, decision("c", reason="\x00"), second)]
    assert [get_outcome(future) for future in futures] == ["recorded", "duplicate", Code.INVALID_ROW, "recorded"]
    rated = feedback("a", user="u-ann", comment="\x00 it's")
    assert [log.record_feedback("f-1", rated).result() for _ in range(2)] == ["recorded", "duplicate"]
    details = queries.get_decision(log.database, "a")
    assert details.decision.interaction.question == asked.question and details.feedback == (rated,)
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
    assert [queries.get_decision(log.database, key).text_state for key in "ab"] == ["erased", "expired"]
    assert queries.count_decisions(log.database) == {"show": 1, "abstain": 1, "unavailable": 0, "feedback": 1}


def test_postgres_queue_is_shared_by_gates(url: str, log: DecisionLog) -> None:
    other, now = open_log(url), datetime.now(UTC)
    fill_queue(log.database, [SampledAnswer(interaction(key), 1 / 3) for key in "ab"], (), now)
    held = [hold_next_open(each.database, name) for each, name in ((log, "ann"), (other, "bob"), (log, "cy"))]
    assert [answer and answer.interaction.interaction_id for answer in held] == ["a", "b", None]
    futures = [each.record_review(review("a", reviewer="ann")) for each in (log, other)]
    assert sorted(future.result() for future in futures) == ["duplicate", "recorded"]
    fill_queue(other.database, [SampledAnswer(interaction("a"), 0.5)], (), now)
    assert count_progress(log.database) == (1, 2), "bob still has b"
    read = DecisionLogSource(name="decisions", url=url).read({})
    assert [row.review and row.review.inclusion_probability for row in read] == [1 / 3, 0.5]
    assert log.purge_expired_texts(now + timedelta(days=31)) == 4
    other.close()


def test_postgres_without_a_log_creates_no_tables(url: str) -> None:
    assert list(DecisionLogSource(name="decisions", url=url).read({})) == []
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_postgres_sequence_numbers_follow_commits(url: str) -> None:
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


def test_postgres_away_fails_rows_until_it_is_back() -> None:
    with tempfile.TemporaryDirectory(prefix="abstain-postgres-") as folder:
        Path(folder).chmod(0o755)
        with start_postgres(Path(folder) / "data") as url:
            log = open_log(url)
            assert record(log, decision("before")) == ["recorded"]
        assert record(log, decision("a")) == [Code.NO_SERVICE]
        with pytest.raises(AbstainError):
            queries.get_decision(log.database, "before")
        with start_postgres(Path(folder) / "data"):
            assert record(log, decision("a")) == ["recorded"]
            assert queries.get_decision(log.database, "before") and queries.count_decisions(log.database)["show"] == 2
            log.close()
