from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.core.errors import AbstainError
from abstain.learning.evaluation.leaderboard import CALIBRATION_METRICS, RANKING_METRICS, build_leaderboard
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap, paired_difference
from tests.learning.evaluation.builders import make_grouped, make_split

CORRECT, SHARP, GROUPS = make_grouped(200, 25, 0)
BLIND = np.random.default_rng(0).random(200)
LOG_ODDS = {"probe": np.log(SHARP / (1 - SHARP)), "blind": 10 * BLIND - 40}
PROBABILITIES = {"probe": SHARP, "blind": BLIND}
DIFFERENCES = ["auroc_difference", "auroc_difference_low", "auroc_difference_high", "chance_better"]


def build(
    scores: Mapping[str, np.ndarray] = LOG_ODDS,
    calibrated: Mapping[str, np.ndarray] = PROBABILITIES,
    correct: np.ndarray = CORRECT,
    weight: np.ndarray | None = None,
    champion: str | None = "blind",
) -> pd.DataFrame:
    reviewed = make_split(correct, scores, calibrated, GROUPS, weight)
    board = build_leaderboard(reviewed, BootstrapConfig(100, 1), champion)
    return pd.DataFrame({name: row.to_dict() for name, row in board.items()}).T.astype(float)


@pytest.mark.parametrize("weight", [None, np.where(CORRECT == 1, 1.0, 0.25)])
def test_leaderboard_ranks_raw_and_calibrates_probabilities(weight: np.ndarray | None) -> None:
    board = build(weight=weight)
    assert list(board.index) == ["probe", "blind"] and board["unscored"].tolist() == [0, 0]
    for name in board.index:
        for metrics, confidences in ((RANKING_METRICS, LOG_ODDS), (CALIBRATION_METRICS, PROBABILITIES)):
            for metric, function in metrics.items():
                assert board.loc[name, metric] == function(CORRECT, confidences[name], weight)
                low, high = board.loc[name, [f"{metric}_low", f"{metric}_high"]]
                assert low <= board.loc[name, metric] <= high or metric == "withheld_at_15pct"
                assert low < high or metric == "withheld_at_15pct"
    assert board.loc["probe", "auroc_low"] > board.loc["blind", "auroc_high"]


def test_leaderboard_champion_difference_is_paired() -> None:
    board = build()
    statistics = {name: partial(RANKING_METRICS["auroc"], CORRECT, scores) for name, scores in LOG_ODDS.items()}
    estimates = bootstrap(statistics, GROUPS, n_resamples=100, seed=1)
    difference = paired_difference(estimates["probe"], estimates["blind"])
    assert board.loc["probe", DIFFERENCES].tolist() == pytest.approx(
        [difference.value, *difference.interval, difference.probability_positive]
    )
    assert board.loc["probe", "auroc_difference_low"] > 0 and board.loc["probe", "chance_better"] == 1
    assert board.loc["blind", DIFFERENCES].isna().all()
    reverse = build(champion="probe")
    assert reverse.loc["blind", "auroc_difference"] == pytest.approx(-difference.value)
    assert reverse.loc["blind", "chance_better"] == 0
    alone = build(champion=None)
    assert alone[DIFFERENCES].isna().all(axis=None)
    pd.testing.assert_frame_equal(alone.drop(columns=DIFFERENCES), board.drop(columns=DIFFERENCES))


def test_leaderboard_unknown_champion_lists_scorers() -> None:
    with pytest.raises(AbstainError, match="'fusion'.* blind, probe$"):
        build(champion="fusion")


def test_leaderboard_unscored_answer_is_withheld_and_counted() -> None:
    raw, probability = LOG_ODDS["probe"].copy(), SHARP.copy()
    raw[::4] = np.nan
    board = build(LOG_ODDS | {"probe": raw}).loc["probe"]
    lowest, withheld = np.where(np.isnan(raw), -1e3, raw), np.where(np.isnan(raw), 0.0, probability)
    expected = build(LOG_ODDS | {"probe": lowest}, PROBABILITIES | {"probe": withheld}).loc["probe"]
    assert (board["unscored"], expected["unscored"]) == (50, 0)
    pd.testing.assert_series_equal(board.drop("unscored"), expected.drop("unscored"))
    assert board["auroc"] < build().loc["probe", "auroc"] - 0.05, "it is not left out"
    probability[::4] = np.nan
    uncalibrated = build(calibrated=PROBABILITIES | {"probe": probability}).loc["probe"]
    pd.testing.assert_series_equal(uncalibrated, board)


def test_leaderboard_silent_scorer_is_undefined_and_harmless() -> None:
    scores = LOG_ODDS | {"silent": np.full(200, np.nan)}
    calibrated = PROBABILITIES | {"silent": np.full(200, CORRECT.mean())}  # not the scorer's own
    board = build(scores, calibrated)
    assert board.loc["silent", "unscored"] == 200
    assert board.loc["silent"].drop("unscored").isna().all()
    pd.testing.assert_frame_equal(board.drop("silent"), build())
    assert build(scores, champion="silent")[["auroc_difference", "chance_better"]].isna().all(axis=None)


@pytest.mark.parametrize("calibrated", [{}, {"probe": np.full(200, np.nan)}])
def test_leaderboard_uncalibrated_scorer_is_only_ranked(calibrated: dict[str, np.ndarray]) -> None:
    board = build(calibrated={"blind": BLIND} | calibrated).loc["probe"]
    ranking = list(RANKING_METRICS)
    assert board[ranking].tolist() == pytest.approx(build().loc["probe", ranking].tolist())
    assert board[[name for metric in CALIBRATION_METRICS for name in (metric, f"{metric}_low")]].isna().all()
    assert board["unscored"] == 0


def test_leaderboard_one_class_has_no_ranking() -> None:
    board = build(correct=np.ones(200, int))
    undefined = ["auroc", "auroc_low", "error_recall_at_15pct", "error_recall_over_random", *DIFFERENCES]
    assert board[undefined].isna().all(axis=None)
    assert board[["brier", "brier_low", "ece", "accuracy", "auprc"]].notna().all(axis=None)
