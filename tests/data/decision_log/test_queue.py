from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries, queue
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import erase_user, purge_expired_texts
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.queue import SampledAnswer, count_progress, fill_queue, find_queued, hold_next_open
from abstain.data.store.record_keys import make_interaction_identity
from tests.data.decision_log.builders import bytes_in, decision, get_outcome, read_reviews, record
from tests.factories import interaction, review


def put(log: DecisionLog, *keys: str, probability: float = 1 / 3, moved: tuple[Review, ...] = ()) -> int:
    answers = [SampledAnswer(interaction(key, question=f"<{key}>" * 3000), probability) for key in keys]
    return fill_queue(log.database, answers, moved, datetime.now(UTC))


def hold(log: DecisionLog, *reviewers: str, after: str = "") -> list[str | None]:
    """Hold the next answer, after that with the id `after`, for each reviewer, and return the ids."""
    place = find_queued(log.database, after).seq if after else 0
    held = [hold_next_open(log.database, reviewer, place) for reviewer in reviewers]
    return [answer and answer.interaction.interaction_id for answer in held]


def send(log: DecisionLog, *reviews: Review) -> list[Any]:
    return [get_outcome(log.record_review(row)) for row in reviews]


def test_hold_next_open_gives_reviewers_different_answers(log: DecisionLog) -> None:
    assert put(log, "a", "b", "c") == 3 and count_progress(log.database) == (0, 3)
    assert hold(log, "ann", "bob", "cy", "dee", "ann") == ["a", "b", "c", None, "a"]
    assert send(log, review("a", reviewer="ann")) == ["recorded"]
    assert hold(log, "ann") == [None] and count_progress(log.database) == (1, 3)


def test_hold_next_open_skipped_or_late_answer_is_free(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    put(log, "a", "b")
    assert [hold(log, "ann"), hold(log, "ann", after="a"), hold(log, "bob")] == [["a"], ["b"], ["a"]]
    send(log, review("a", reviewer="bob"))
    assert hold(log, "ann", after="b") == ["b"], "there is no other"
    monkeypatch.setattr(queue, "HOLD_DURATION", timedelta(seconds=-1))
    assert hold(log, "ann", "bob") == ["b", "b"]


def test_record_review_keeps_those_of_two_and_changed_minds(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a")
    yes, no, other = (
        review("a", reviewer=name, right=right) for name, right in (("ann", True), ("ann", False), ("bob", False))
    )
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda row: log.record_review(row).result(), (yes, other))) == ["recorded"] * 2
    assert send(log, yes, no, no, yes) == ["duplicate", "recorded", "duplicate", "recorded"]
    weights = [(row.reviewer, row.correct, row.inclusion_probability) for row in read_reviews(tmp_path)]
    assert sorted(weights[:2]) == [("ann", True, 1 / 3), ("bob", False, 1 / 3)]
    assert weights[2:] == [("ann", False, 1 / 3), ("ann", True, 1 / 3)]


def test_record_review_has_the_probability_of_the_queue(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=7 / 23)
    record(log, decision("w", shown=False))
    send(log, *(review(key, reviewer="ann", inclusion_probability=1e-6) for key in ("a", "w")))
    log.record_feedback("f-1", review("a", reviewer="eve", inclusion_probability=1e-6)).result()
    weights = {(row.interaction_id, row.reviewer): row.inclusion_probability for row in read_reviews(tmp_path)}
    assert weights == {("a", "ann"): 7 / 23, ("w", "ann"): None, ("a", "eve"): None}
    assert queue.find_reviewed_ids(log.database) == {"a"}


def test_record_review_of_an_unknown_answer_is_rejected(log: DecisionLog) -> None:
    put(log, "a")
    assert send(log, review("b", reviewer="ann")) == [Code.UNKNOWN_NAME]
    for name in ("page/sampled/x", "PAGE/sampled/x"):
        with pytest.raises(AbstainError, check=lambda error: error.code is Code.ID_IN_USE):
            log.record_feedback(name, review("a", reviewer="ann"))
    assert queries.count_decisions(log.database)["feedback"] == 0


def test_fill_queue_replaces_all_but_held_answers(log: DecisionLog) -> None:
    put(log, "a", "b", "c")
    send(log, review("a", reviewer="ann"))
    assert hold(log, "bob") == ["b"]
    assert put(log, "d", "a") == 2
    assert count_progress(log.database) == (1, 3), "a is reviewed already, b is held, c has gone"
    assert hold(log, "ann", "bob") == ["d", "b"]


def test_fill_queue_writes_reviews_again_with_a_new_weight(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", "b", probability=0.25)
    send(log, review("a", reviewer="ann"), review("b", reviewer="ann"))
    elsewhere = review("c", reviewer="cy", inclusion_probability=0.5)
    for _ in range(2):
        put(log, "a", "b", probability=0.5, moved=(elsewhere,))
    rows = read_reviews(tmp_path)
    weights = [(row.interaction_id, row.inclusion_probability) for row in rows]
    assert weights == [("a", 0.25), ("b", 0.25), ("a", 0.5), ("b", 0.5), ("c", 0.5)]
    assert rows[2].reviewed_at - rows[0].reviewed_at == timedelta(microseconds=1)
    assert send(log, review("a", reviewer="ann")) == ["duplicate"] and len(read_reviews(tmp_path)) == 5


def test_record_review_corrected_later_keeps_its_weight(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=0.25)
    record(log, decision("a", shown=False))
    send(log, review("a", reviewer="ann"))
    put(log, "b")
    corrected = review("a", reviewer="ann", right=False)
    assert send(log, corrected, corrected, review("a", reviewer="bob")) == ["recorded", "duplicate", "recorded"]
    weights = [(row.reviewer, row.correct, row.inclusion_probability) for row in read_reviews(tmp_path)]
    assert weights == [("ann", True, 0.25), ("ann", False, 0.25), ("bob", True, 0.25)]


def test_fill_queue_new_weight_is_that_of_the_last_review(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=0.25)
    first, last = review("a", reviewer="ann"), review("a", days=3, right=False, reviewer="ann")
    send(log, first, last)  # ingest does not know the last one yet
    for weight in (0.5, 0.5, 0.75):
        later = first.reviewed_at + timedelta(microseconds=1)
        put(log, "b", moved=(first.model_copy(update={"inclusion_probability": weight, "reviewed_at": later}),))
    rows = read_reviews(tmp_path)
    assert [row.inclusion_probability for row in rows] == [0.25, 0.25, 0.5, 0.75]
    newest = max(rows, key=lambda row: row.reviewed_at)
    assert newest is rows[-1] and not newest.correct and newest.reviewed_at > last.reviewed_at


def test_fill_queue_id_with_nul_is_rejected_by_postgres(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(log, "a", "b\0c") == 2
    monkeypatch.setattr(LogDatabase, "is_file", False)
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.INVALID_ROW):
        put(log, "a", "b\0c")


def test_erasure_and_purge_remove_queued_texts(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", "b")
    identities = {make_interaction_identity("a").hex()}
    assert erase_user(log.database, {"ann"}, {"u-ann"}, with_interactions=True, identities=identities) == 1
    assert find_queued(log.database, "a") is None and b"<a>" not in bytes_in(tmp_path)
    assert send(log, review("a", reviewer="ann")) == [Code.UNKNOWN_NAME]
    now = datetime.now(UTC)
    assert [purge_expired_texts(log.database, now + timedelta(days=days), 30) for days in (29, 31)] == [0, 1]
    assert count_progress(log.database) == (0, 0) and b"<b>" not in bytes_in(tmp_path)
