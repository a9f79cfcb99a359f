import pytest

from abstain.llm.features.shard_job import LocalRunner
from abstain.serving.batch_scoring import BatchScores, score_backlog
from abstain.serving.predictor import Predictor
from tests.serving.builders import requests


def backlog(scorer: Predictor, at_most: int) -> BatchScores:
    """Of eight answers; the last of those that are not cached are the first to be read."""
    return score_backlog(scorer, lambda: requests(8), at_most, rank=lambda key: -int(key.removeprefix("i-")))


def test_score_backlog_reads_so_many_beyond_the_cache(scorer: Predictor) -> None:
    scorer.source.compute_missing(requests(3))
    scores = backlog(scorer, at_most=2)
    assert (scores.cached, scores.computed, scores.skipped) == (3, 2, 3)
    assert set(scores.confidences) == {"i-0", "i-1", "i-2", "i-6", "i-7"}
    alone = {decision.interaction_id: decision.confidence for decision in scorer.decide_interactions(requests(8))}
    assert scores.confidences == pytest.approx({key: alone[key] for key in scores.confidences}, abs=1e-6)


def test_score_backlog_caches_its_features(scorer: Predictor) -> None:
    first, again = backlog(scorer, at_most=2), backlog(scorer, at_most=2)
    assert (again.cached, again.computed, again.skipped) == (2, 2, 4)
    assert first.confidences.items() <= again.confidences.items()


def test_score_backlog_gives_sampled_rows_no_better_chance(scorer: Predictor) -> None:
    scorer.source.compute_missing(requests(4))
    scores = score_backlog(
        scorer, lambda: requests(8), 2, rank=lambda key: {"i-1": 0, "i-6": 1}.get(key, 2), sampled_ids={"i-0", "i-1"}
    )
    assert set(scores.confidences) == {"i-2", "i-3", "i-1", "i-6"}
    assert (scores.cached, scores.computed, scores.skipped) == (2, 2, 4)


def test_score_backlog_loads_no_model_for_nothing(scorer: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer.source.compute_missing(requests(8))
    monkeypatch.setattr(LocalRunner, "run", lambda self, shards: pytest.fail("nothing was to be read"))
    assert (backlog(scorer, at_most=5).cached, backlog(scorer, at_most=0).skipped) == (8, 0)


def test_score_backlog_has_no_confidence_of_unreadable(scorer: Predictor) -> None:
    rows = requests(2)
    rows[0] = rows[0].model_copy(update={"answer": "x" * 600})
    scores = score_backlog(scorer, lambda: rows, 5, rank=len)
    assert (set(scores.confidences), scores.skipped) == ({"i-1"}, 0)
    assert score_backlog(scorer, list, 5, rank=len) == BatchScores({}, 0, 0, 0)
