from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from abstain.core.errors import AbstainError
from abstain.learning.evaluation.leaderboard import CALIBRATION_METRICS, RANKING_METRICS, build_leaderboard
from abstain.learning.metrics import bootstrap as bootstrap_module
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, paired_difference
from tests.conftest import ROOT
from tests.learning.evaluation.builders import grouped

QA_FROM_HF = ROOT.parent / "shared" / "data" / "qa_from_hf" / "user_feedback.jsonl.gz"

CORRECT, SHARP, GROUPS = grouped(200, 25, 0)
BLIND = np.random.default_rng(0).random(200)
LOG_ODDS = {"probe": np.log(SHARP / (1 - SHARP)), "blind": 10 * BLIND - 40}
PROBABILITIES = {"probe": SHARP, "blind": BLIND}


def board(**changed: Any) -> pd.DataFrame:
    arguments: dict[str, Any] = {
        "correct": CORRECT,
        "scores": LOG_ODDS,
        "calibrated": PROBABILITIES,
        "groups": GROUPS,
        "weight": None,
        "resampling": BootstrapConfig(100, 1),
        "champion": "blind",
    }
    return build_leaderboard(**(arguments | changed)).set_index("scorer")


@pytest.mark.parametrize("weight", [None, np.where(CORRECT == 1, 1.0, 0.25)])
def test_ranking_is_measured_on_raw_confidences_and_guarantees_on_calibrated_ones(weight: np.ndarray | None) -> None:
    found = board(weight=weight)
    assert list(found.index) == ["probe", "blind"]
    for name in found.index:
        for metrics, confidences in ((RANKING_METRICS, LOG_ODDS), (CALIBRATION_METRICS, PROBABILITIES)):
            for metric, function in metrics.items():
                assert found.loc[name, metric] == function(CORRECT, confidences[name], weight)
                low, high = found.loc[name, [f"{metric}_low", f"{metric}_high"]]
                assert low <= found.loc[name, metric] <= high or metric == "withheld_at_15pct"
                assert low < high or metric == "withheld_at_15pct"
    assert found.loc["probe", "auroc_low"] > found.loc["blind", "auroc_high"]
    assert found["unscored"].tolist() == [0, 0]


def test_the_champion_is_compared_with_draw_by_draw() -> None:
    found = board()
    figures = {name: partial(RANKING_METRICS["auroc"], CORRECT, scores) for name, scores in LOG_ODDS.items()}
    drawn = bootstrap(figures, GROUPS, n_resamples=100, seed=1)
    difference = paired_difference(drawn["probe"], drawn["blind"])
    columns = ["auroc_difference", "auroc_difference_low", "auroc_difference_high", "chance_better"]
    assert found.loc["probe", columns].tolist() == pytest.approx(
        [difference.value, *difference.interval, difference.probability_positive]
    )
    assert found.loc["probe", "auroc_difference_low"] > 0 and found.loc["probe", "chance_better"] == 1
    assert found.loc["blind", columns].isna().all()
    turned = board(champion="probe")
    assert turned.loc["blind", "auroc_difference"] == pytest.approx(-difference.value)
    assert turned.loc["blind", "chance_better"] == 0
    assert board(champion=None)[columns].isna().all(axis=None)
    pd.testing.assert_frame_equal(board(champion=None).drop(columns=columns), found.drop(columns=columns))


def test_a_champion_that_is_no_scorer_is_named_with_those_that_are() -> None:
    with pytest.raises(AbstainError, match="^no scorer 'fusion' to compare with: choose one of blind, probe$"):
        board(champion="fusion")


def test_an_answer_without_a_score_is_withheld_and_counted() -> None:
    raw, probability = LOG_ODDS["probe"].copy(), SHARP.copy()
    raw[::4] = np.nan
    found = board(scores=LOG_ODDS | {"probe": raw}).loc["probe"]
    lowest, withheld = np.where(np.isnan(raw), -1e3, raw), np.where(np.isnan(raw), 0.0, probability)
    expected = board(scores=LOG_ODDS | {"probe": lowest}, calibrated=PROBABILITIES | {"probe": withheld}).loc["probe"]
    assert (found["unscored"], expected["unscored"]) == (50, 0)
    pd.testing.assert_series_equal(found.drop("unscored"), expected.drop("unscored"))
    assert found["auroc"] < board().loc["probe", "auroc"] - 0.05  # it is not left out

    probability[::4] = np.nan  # and so is one that the calibrator says nothing of
    said = board(calibrated=PROBABILITIES | {"probe": probability}).loc["probe"]
    pd.testing.assert_series_equal(said, found)


def test_a_scorer_that_says_nothing_has_no_figures_and_changes_none() -> None:
    nothing = np.full(200, np.nan)
    base_rate = {"silent": np.full(200, CORRECT.mean())}  # a calibrator's guess is not the scorer's
    found = board(scores=LOG_ODDS | {"silent": nothing}, calibrated=PROBABILITIES | base_rate)
    assert found.loc["silent", "unscored"] == 200
    assert found.loc["silent"].drop("unscored").isna().all()
    pd.testing.assert_frame_equal(found.drop("silent"), board())
    silent_champion = board(scores=LOG_ODDS | {"silent": nothing}, champion="silent")
    assert silent_champion[["auroc_difference", "chance_better"]].isna().all(axis=None)


@pytest.mark.parametrize("calibrated", [{}, {"probe": np.full(200, np.nan)}])
def test_a_scorer_without_a_calibrator_is_ranked_and_guarantees_nothing(calibrated: dict[str, np.ndarray]) -> None:
    found = board(calibrated={"blind": BLIND} | calibrated).loc["probe"]
    ranking, guarantees = (
        list(RANKING_METRICS),
        [name for metric in CALIBRATION_METRICS for name in (metric, f"{metric}_low")],
    )
    assert found[ranking].tolist() == pytest.approx(board().loc["probe", ranking].tolist())
    assert found[guarantees].isna().all()
    assert found["unscored"] == 0


def test_one_class_has_a_brier_score_and_no_ranking() -> None:
    found = board(correct=np.ones(200, int))
    undefined = [
        *(
            "auroc",
            "auroc_low",
            "error_recall_at_15pct",
            "error_recall_over_random",
            "auroc_difference",
            "chance_better",
        )
    ]
    assert found[undefined].isna().all(axis=None)
    assert found[["brier", "brier_low", "ece", "accuracy", "auprc"]].notna().all(axis=None)


@pytest.mark.skipif(not QA_FROM_HF.exists(), reason="../shared/data/qa_from_hf is not here")
def test_the_judged_systems_own_confidence_on_real_verdicts() -> None:
    """Its two log-probabilities rank its answers, by people's verdicts, as scikit-learn says, and better than chance."""
    with gzip.open(QA_FROM_HF, "rt", encoding="utf-8") as lines:
        frame = pd.DataFrame(json.loads(line) for line in lines)
    frame = frame[(frame["study"] == "long-term") & ~frame["model_answer"].str.startswith("[Unanswerable")]
    correct, scores = (frame["user_feedback"] == "Correct").to_numpy(int), frame[["log_prob", "class_log_prob"]]
    found = build_leaderboard(
        correct, scores, {}, frame["title"].to_numpy(), None, BootstrapConfig(300, 0), "log_prob"
    ).set_index("scorer")
    for name in scores:
        assert found.loc[name, "auroc"] == pytest.approx(roc_auc_score(correct, scores[name]))
        assert 0.6 < found.loc[name, "auroc_low"] < found.loc[name, "auroc_high"] < 0.8
        assert found.loc[name, "withheld_at_15pct"] == pytest.approx(0.15, abs=0.005)
        assert found.loc[name, "error_recall_over_random_low"] > 1.3
    other = found.loc["class_log_prob"]
    assert other["auroc_difference_low"] < other["auroc_difference"] < 0
    assert other["chance_better"] < 0.1


def test_leaderboard_of_many_draws_computes_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 scorers of 200 answers, 1,000 draws: a metric is called once for as many draws as are held at once."""
    calls: Counter[str] = Counter()
    for metrics in (RANKING_METRICS, CALIBRATION_METRICS):
        for name, metric in metrics.items():
            counted = lambda *given, name=name, metric=metric: calls.update([name]) or metric(*given)  # noqa: E731
            monkeypatch.setitem(metrics, name, counted)
    scores = {f"s{n}": SHARP + 0.01 * n for n in range(25)}
    found = board(scores=scores, calibrated={}, resampling=BootstrapConfig(1000, 1), champion="s3")
    assert len(found) == 25
    chunks = math.ceil(1000 / (bootstrap_module.MAX_BLOCK_WEIGHTS // 200))
    assert calls == dict.fromkeys(
        (*RANKING_METRICS, *CALIBRATION_METRICS), 25 * (chunks + 1)
    )  # and once for the figure itself
