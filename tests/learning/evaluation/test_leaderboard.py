from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.core.errors import AbstainError
from abstain.learning.evaluation.leaderboard import CALIBRATION_METRICS, RANKING_METRICS, build_leaderboard
from abstain.learning.evaluation.scorer_choice import choose_cheapest_of_best
from abstain.learning.metrics.bootstrap import BootstrapConfig, Estimate, bootstrap, paired_difference
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
    board, reverse, alone = build(), build(champion="probe"), build(champion=None)
    statistics = {name: partial(RANKING_METRICS["auroc"], CORRECT, scores) for name, scores in LOG_ODDS.items()}
    estimates = bootstrap(statistics, GROUPS, n_resamples=100, seed=1)
    difference = paired_difference(estimates["probe"], estimates["blind"])
    expected = [difference.value, *difference.interval, difference.probability_positive]
    assert board.loc["probe", DIFFERENCES].tolist() == pytest.approx(expected)
    assert board.loc["probe", "auroc_difference_low"] > 0 and board.loc["probe", "chance_better"] == 1
    assert board.loc["blind", DIFFERENCES].isna().all()
    assert reverse.loc["blind", "auroc_difference"] == pytest.approx(-difference.value)
    assert reverse.loc["blind", "chance_better"] == 0
    assert alone[DIFFERENCES].isna().all(axis=None)
    pd.testing.assert_frame_equal(alone.drop(columns=DIFFERENCES), board.drop(columns=DIFFERENCES))
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


def make_estimate(value: float, *noise: float) -> Estimate:
    return Estimate(value, value + np.array(noise))


VARYING = (-0.02, 0.02)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (make_estimate(0.80, 0, 0), make_estimate(0.81, *VARYING), 10),  # 0.01 lost, standard error 0.02
        (make_estimate(0.78, 0, 0), make_estimate(0.81, *VARYING), 20),  # 0.03 lost
        (make_estimate(0.80, -0.1, 0.1), make_estimate(0.81, -0.1, 0.1), 20),  # both vary, but together: paired
        (make_estimate(0.82, 0, 0), make_estimate(0.81, 0, 0), 10),
        (make_estimate(0.8, np.nan), make_estimate(0.9, np.nan), 20),  # one group: the error is unknown
    ],
)
def test_choose_cheapest_within_standard_error(first: Estimate, second: Estimate, chosen: int) -> None:
    assert choose_cheapest_of_best({10: first, 20: second}, {10: 10, 20: 20}) == chosen


def test_choose_cheapest_equal_costs_or_unknown_error() -> None:
    aurocs = {"mlp": make_estimate(0.80, 0.05, -0.05), "residual": make_estimate(0.81, 0, 0)}
    assert choose_cheapest_of_best(aurocs, {"mlp": 3, "residual": 3}) == "residual", "the better one"
    unknown = {"probe": make_estimate(0.8, np.nan), "fusion": make_estimate(0.9, np.nan)}
    assert choose_cheapest_of_best(unknown, COSTS, ["probe"]) == "probe", "what is in use stays"


COSTS = {"writer": 0.0, "probe": 50.0, "log_prob": 80.0, "fusion": 200.0}


@pytest.mark.parametrize(
    ("in_use", "chosen"),
    [
        ([], "probe"),  # 0.02 lost, standard error 0.02
        (["probe"], "probe"),
        (["fusion"], "fusion"),  # dearer, but nothing gains over it
        (["log_prob"], "log_prob"),  # 0.015 lost is within the error
        (["writer"], "probe"),  # 0.1 lost is not
        (["gone"], "probe"),  # cannot be served any more
        (["writer", "fusion"], "fusion"),
        (["log_prob", "fusion"], "log_prob"),  # the cheaper one of the kind, of those within the error
    ],
)
def test_choose_cheapest_keeps_candidate_in_use(in_use: list[str], chosen: str) -> None:
    aurocs = {
        "writer": make_estimate(0.75, *VARYING),
        "probe": make_estimate(0.83, *VARYING),
        "log_prob": make_estimate(0.835, *VARYING),
        "fusion": make_estimate(0.85, 0, 0),
    }
    assert choose_cheapest_of_best(aurocs, COSTS, in_use) == chosen
