"""The review queue: who gets which answer, what a review weighs, and what becomes of it all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries, queue
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.erasure import erase_user
from abstain.data.decision_log.log import DecisionLog
from abstain.data.decision_log.queue import (
    SampledAnswer,
    count_progress,
    fill_queue,
    find_queued,
    find_reviewed_ids,
    hold_next_open,
)
from abstain.data.store.record_keys import make_interaction_identity
from abstain.ingest.sources.decision_log import DecisionLogSource
from tests.data.builders import interaction, review
from tests.data.decision_log.builders import bytes_in, decision, open_log, url_of


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    opened = open_log(url_of(tmp_path), keep_days=30)
    yield opened
    opened.close()


def put(log: DecisionLog, *keys: str, probability: float = 1 / 3, moved: tuple[Review, ...] = ()) -> int:
    answers = [SampledAnswer(interaction(key, question=f"<{key}>" * 3000), probability) for key in keys]
    return fill_queue(log.database, answers, moved, datetime.now(UTC))


def shown_to(log: DecisionLog, reviewer: str, after: int = 0) -> str | None:
    found = hold_next_open(log.database, reviewer, after)
    return found.interaction.interaction_id if found else None


def place(log: DecisionLog, key: str) -> int:
    found = find_queued(log.database, key)
    assert found is not None
    return found.seq


def ingested(folder: Path) -> list[Review]:
    """What ingest reads of reviews, in the order of the log."""
    return [row.review for row in DecisionLogSource(name="decisions", url=url_of(folder)).read({}) if row.review]


def test_reviewers_get_different_answers_in_the_order_drawn(log: DecisionLog) -> None:
    assert put(log, "a", "b", "c") == 3 and count_progress(log.database) == (0, 3)
    assert [shown_to(log, who) for who in ("ann", "bob", "cy", "dee")] == ["a", "b", "c", None]
    assert shown_to(log, "ann") == "a", "she still has it"
    assert log.record_review(review("a", reviewer="ann")).result() == "recorded"
    assert shown_to(log, "ann") is None and count_progress(log.database) == (1, 3)


def test_a_skipped_answer_comes_back_and_is_free(log: DecisionLog) -> None:
    put(log, "a", "b")
    assert shown_to(log, "ann") == "a" and shown_to(log, "ann", place(log, "a")) == "b"
    assert shown_to(log, "bob") == "a"
    log.record_review(review("a", reviewer="bob")).result()
    assert shown_to(log, "ann", place(log, "b")) == "b", "there is no other"


def test_a_held_answer_is_free_after_its_time(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    put(log, "a")
    monkeypatch.setattr(queue, "HOLD_DURATION", timedelta(seconds=-1))
    assert shown_to(log, "ann") == shown_to(log, "bob") == "a"


def test_two_verdicts_on_one_answer_are_both_kept(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a")
    rows = [review("a", reviewer="ann"), review("a", reviewer="bob", right=False)]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda row: log.record_review(row).result(), rows)) == ["recorded"] * 2
    found = ingested(tmp_path)
    assert sorted((row.reviewer, row.correct, row.inclusion_probability) for row in found) == [
        ("ann", True, 1 / 3),
        ("bob", False, 1 / 3),
    ]


def test_a_verdict_that_comes_again_is_one_review(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a")
    yes, no = review("a", reviewer="ann"), review("a", reviewer="ann", right=False)
    outcomes = [log.record_review(row) for row in (yes, yes, no, no, yes)]
    assert [one.result() for one in outcomes] == ["recorded", "duplicate", "recorded", "duplicate", "recorded"]
    assert [row.correct for row in ingested(tmp_path)] == [True, False, True]


def test_the_weight_is_the_queues_whatever_is_given(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=7 / 23)
    log.record_decision(decision("w", shown=False)).result()
    for key in ("a", "w"):
        log.record_review(review(key, reviewer="ann", inclusion_probability=1e-6)).result()
    log.record_feedback("f-1", review("a", reviewer="eve", inclusion_probability=1e-6)).result()
    weights = {(row.interaction_id, row.reviewer): row.inclusion_probability for row in ingested(tmp_path)}
    assert weights == {("a", "ann"): 7 / 23, ("w", "ann"): None, ("a", "eve"): None}
    assert find_reviewed_ids(log.database) == {"a"}


def test_an_answer_that_nobody_put_there_is_refused(log: DecisionLog) -> None:
    put(log, "a")
    with pytest.raises(AbstainError, match="in the queue no more"):
        log.record_review(review("b", reviewer="ann")).result()
    for name in ("page/sampled/x", "PAGE/sampled/x"):
        with pytest.raises(AbstainError, match="ids that begin with page/"):
            log.record_feedback(name, review("a", reviewer="ann")).result()
    assert queries.count_decisions(log.database)["feedback"] == 0


def test_a_new_sample_replaces_all_but_held_answers(log: DecisionLog) -> None:
    put(log, "a", "b", "c")
    log.record_review(review("a", reviewer="ann")).result()
    assert shown_to(log, "bob") == "b"
    assert put(log, "d", "a") == 2
    assert count_progress(log.database) == (1, 3), "a is reviewed already, b is held, c has gone"
    assert [shown_to(log, who) for who in ("ann", "bob")] == ["d", "b"]


def test_a_moved_weight_comes_again_with_its_reviews(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", "b", probability=0.25)
    log.record_review(review("a", reviewer="ann")).result()
    log.record_review(review("b", reviewer="ann")).result()
    elsewhere = review("c", reviewer="cy", inclusion_probability=0.5)
    for _ in range(2):
        put(log, "a", "b", probability=0.5, moved=(elsewhere,))
    found = ingested(tmp_path)
    weights = [(row.interaction_id, row.inclusion_probability) for row in found]
    assert weights == [("a", 0.25), ("b", 0.25), ("a", 0.5), ("b", 0.5), ("c", 0.5)]
    assert found[2].reviewed_at - found[0].reviewed_at == timedelta(microseconds=1)
    log.record_review(review("a", reviewer="ann")).result()
    assert len(ingested(tmp_path)) == 5, "the same verdict, known with its new weight"


def test_a_corrected_verdict_keeps_its_weight(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=0.25)
    log.record_decision(decision("a", shown=False)).result()
    log.record_review(review("a", reviewer="ann")).result()
    put(log, "b")
    corrected = review("a", reviewer="ann", right=False)
    outcomes = [log.record_review(row).result() for row in (corrected, corrected, review("a", reviewer="bob"))]
    assert outcomes == ["recorded", "duplicate", "recorded"]
    weights = [(row.reviewer, row.correct, row.inclusion_probability) for row in ingested(tmp_path)]
    assert weights == [("ann", True, 0.25), ("ann", False, 0.25), ("bob", True, 0.25)]


def test_a_moved_weight_is_that_of_the_last_verdict(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", probability=0.25)
    first, last = review("a", reviewer="ann"), review("a", days=3, right=False, reviewer="ann")
    log.record_review(first).result()
    log.record_review(last).result()  # ingest does not know it yet
    for weight in (0.5, 0.5, 0.75):
        later = first.reviewed_at + timedelta(microseconds=1)
        moved = first.model_copy(update={"inclusion_probability": weight, "reviewed_at": later})
        put(log, "b", moved=(moved,))
    found = ingested(tmp_path)
    assert [row.inclusion_probability for row in found] == [0.25, 0.25, 0.5, 0.75]
    newest = max(found, key=lambda row: row.reviewed_at)
    assert newest is found[-1] and not newest.correct and newest.reviewed_at > last.reviewed_at


def test_an_id_that_postgres_cannot_hold_is_one_line(log: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(log, "a", "b\0c") == 2
    monkeypatch.setattr(LogDatabase, "is_file", False)
    with pytest.raises(AbstainError, match=r"as in the id 'b\\x00c': leave out --queue") as refused:
        put(log, "a", "b\0c")
    assert refused.value.code is Code.INVALID_ROW


def test_erasure_and_days_take_texts_from_the_queue(tmp_path: Path, log: DecisionLog) -> None:
    put(log, "a", "b")
    gone = {make_interaction_identity("a").hex()}
    assert erase_user(log.database, {"ann"}, {"u-ann"}, with_interactions=True, identities=gone) == 1
    assert find_queued(log.database, "a") is None and b"<a>" not in bytes_in(tmp_path)
    with pytest.raises(AbstainError, match="in the queue no more"):
        log.record_review(review("a", reviewer="ann")).result()
    assert log.purge_expired_texts(datetime.now(UTC) + timedelta(days=29)) == 0
    assert log.purge_expired_texts(datetime.now(UTC) + timedelta(days=31)) == 1
    assert count_progress(log.database) == (0, 0) and b"<b>" not in bytes_in(tmp_path)
