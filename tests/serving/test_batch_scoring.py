from __future__ import annotations

import pytest

from abstain.llm.features.shard_job import LocalRunner
from abstain.serving.batch_scoring import BatchScores, score_backlog
from abstain.serving.predictor import Predictor
from tests.serving.builders import requests


def backlog(scorer: Predictor, at_most: int) -> BatchScores:
    """Of eight answers; the last of those that are not cached are the first to be read."""
    return score_backlog(scorer, lambda: requests(8), at_most, rank=lambda key: -int(key.removeprefix("i-")))


def test_what_is_cached_comes_first_and_so_many_of_the_others_are_read(scorer: Predictor) -> None:
    scorer.source.compute_missing(requests(3))
    found = backlog(scorer, at_most=2)
    assert (found.cached, found.computed, found.skipped) == (3, 2, 3)
    assert set(found.confidences) == {"i-0", "i-1", "i-2", "i-6", "i-7"}
    verdicts = {verdict.interaction_id: verdict.confidence for verdict in scorer.decide_interactions(requests(8))}
    for name, confidence in found.confidences.items():
        assert confidence == pytest.approx(verdicts[name], abs=1e-6)


def test_what_was_read_is_cached_the_next_time(scorer: Predictor) -> None:
    first, again = backlog(scorer, at_most=2), backlog(scorer, at_most=2)
    assert (again.cached, again.computed, again.skipped) == (2, 2, 4)
    assert first.confidences.items() <= again.confidences.items()


def test_what_is_cached_because_it_was_drawn_has_no_better_chance_than_its_like(scorer: Predictor) -> None:
    scorer.source.compute_missing(requests(4))
    found = score_backlog(
        scorer, lambda: requests(8), 2, rank=lambda key: {"i-1": 0, "i-6": 1}.get(key, 2), sampled_ids={"i-0", "i-1"}
    )
    assert set(found.confidences) == {"i-2", "i-3", "i-1", "i-6"}
    assert (found.cached, found.computed, found.skipped) == (2, 2, 4)


def test_the_base_model_is_not_even_loaded_where_nothing_is_to_be_read(
    scorer: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer.source.compute_missing(requests(8))
    monkeypatch.setattr(LocalRunner, "run", lambda self, shards: pytest.fail("nothing was to be read"))
    assert (backlog(scorer, at_most=5).cached, backlog(scorer, at_most=0).skipped) == (8, 0)


def test_what_the_base_model_cannot_read_has_no_confidence(scorer: Predictor) -> None:
    rows = requests(2)
    rows[0] = rows[0].model_copy(update={"answer": "x" * 600})
    found = score_backlog(scorer, lambda: rows, 5, rank=len)
    assert (set(found.confidences), found.skipped) == ({"i-1"}, 0)


def test_nothing_at_all(scorer: Predictor) -> None:
    assert score_backlog(scorer, list, 5, rank=len) == BatchScores({}, 0, 0, 0)
