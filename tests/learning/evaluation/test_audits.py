import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.audits import audit_answers_shuffled, audit_context_removed
from abstain.learning.evaluation.examples import CHARACTERS, EXAMPLES, select_examples
from abstain.learning.metrics.bootstrap import BootstrapConfig
from tests.learning.evaluation.builders import make_grouped, make_split

CORRECT = np.array([1, 1, 0, 0])
SCORES = pd.DataFrame({"reads": [0.9, 0.8, 0.2, 0.1], "deaf": [0.9, 0.8, 0.2, 0.1]})
RESAMPLES = BootstrapConfig(200, 0)


def test_audit_context_removed_separates_use_of_context() -> None:
    changed = SCORES.assign(reads=[0.5, 0.1, 0.5, 0.1])
    reads, deaf = audit_context_removed(make_split(CORRECT, SCORES), changed, RESAMPLES)
    assert (reads.scorer, reads.auroc, reads.auroc_changed) == ("reads", 1.0, 0.5)
    assert (deaf.auroc, deaf.auroc_changed, deaf.auroc_lost) == (1.0, 1.0, 0.0)
    assert reads.mean == pytest.approx(0.5) and reads.mean_changed == pytest.approx(0.3)
    weighted, _ = audit_context_removed(make_split(CORRECT, SCORES, weight=np.array([3.0, 1, 1, 1])), SCORES, RESAMPLES)
    assert weighted.mean == weighted.mean_changed == pytest.approx((2.7 + 0.8 + 0.2 + 0.1) / 6)
    scores = pd.DataFrame({"silent": [np.nan] * 4})
    (silent,) = audit_context_removed(make_split(CORRECT, scores), scores, RESAMPLES)
    assert (silent.auroc, silent.mean) == (None, None)


def test_audit_context_removed_loss_is_paired() -> None:
    correct, confidence, groups = make_grouped(400, 50, 3)
    noise = 0.15 * np.random.default_rng(0).normal(size=400)
    changed = pd.DataFrame({"probe": confidence + noise})
    (row,) = audit_context_removed(make_split(correct, {"probe": confidence}, groups=groups), changed, RESAMPLES)
    assert row.auroc_lost == pytest.approx(row.auroc - row.auroc_changed)
    assert 0 < row.auroc_lost_low < row.auroc_lost < row.auroc_lost_high


def test_audit_answers_shuffled_compares_correct_answers() -> None:
    scores = {name: np.array([0.9, 0.6, 0.2, 0.1]) for name in ("probe", "other")}
    changed = pd.DataFrame({"probe": [0.7, 0.1, 0.95, 0.0], "other": [0.9, 0.6, 0.0, 0.0]})
    probe, other = audit_answers_shuffled(make_split(CORRECT, scores), changed, {"probe": 0.65})
    assert probe.auroc_against_shuffled == pytest.approx(0.75)  # 0.9 beats both, 0.6 beats one of two
    assert probe.shown_changed == pytest.approx(0.5)  # 0.7 and 0.95, of four
    assert probe.mean_correct == pytest.approx(0.75) and probe.mean_changed == pytest.approx(0.4)
    assert other.auroc_against_shuffled == 0.5 and other.shown_changed is None


def make_rows(correct: list[int], confidence: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame({"correct": correct, "confidence": confidence, "probability": confidence})
    return rows.assign(
        interaction_id=[f"i-{i}" for i in range(len(rows))],
        product="gold",
        question="Why?",
        answer="x" * (CHARACTERS + 5),
        ideal_answer=pd.Series([None] * len(rows), dtype=object),
    )


def test_select_examples_ranks_each_kind_few_and_short() -> None:
    examples = select_examples(make_rows([0, 0, 0, 1, 1, 0, 0], [0.1, 0.7, 0.9, 0.2, 0.8, 0.3, 0.5]), 0.5)
    ids = [[found.interaction_id for found in kind] for kind in (examples.caught, examples.missed, examples.withheld)]
    assert ids == [["i-0", "i-5"], ["i-2", "i-1", "i-6"], ["i-3"]], "an answer at the threshold is shown"
    rows = make_rows([0] * 20, [0.1] * 20)
    examples = select_examples(rows, 0.5)
    assert len(examples.caught) == EXAMPLES and examples.missed == []
    assert len(examples.caught[0].answer) == CHARACTERS and examples.caught[0].answer.endswith("…")
    assert examples.caught[0].ideal_answer is None
    assert select_examples(rows.sample(frac=1, random_state=0), 0.5) == examples, "it does not depend on the order"
