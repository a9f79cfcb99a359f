from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from abstain.evaluate import metrics
from abstain.evaluate.leaderboard import METRICS, fit_baselines, leaderboard, reviewed, threshold_table

GENERATOR = np.random.default_rng(0)
CORRECT = GENERATOR.integers(2, size=200)
SHARP = np.clip(0.5 + 0.3 * (2 * CORRECT - 1) + 0.2 * GENERATOR.normal(size=200), 0, 1)
BLIND = GENERATOR.random(200)
GROUPS = np.array([f"g{n % 25}" for n in range(200)])


def test_every_scorer_gets_every_metric_and_an_interval_around_its_auroc() -> None:
    board = leaderboard(CORRECT, {"probe": SHARP, "blind": BLIND}, GROUPS, draws=100, seed=1).set_index("scorer")
    assert list(board.index) == ["probe", "blind"]
    for name, confidence in (("probe", SHARP), ("blind", BLIND)):
        for metric, function in METRICS.items():
            assert board.loc[name, metric] == function(CORRECT, confidence)
        assert board.loc[name, "auroc_low"] < board.loc[name, "auroc"] < board.loc[name, "auroc_high"]
    assert board.loc["probe", "auroc_low"] > 0.9 > board.loc["blind", "auroc_high"]
    drawn = metrics.bootstrap(metrics.auroc, CORRECT, {"probe": SHARP}, GROUPS, 100, 1)["probe"]
    assert (board.loc["probe", "auroc_low"], board.loc["probe", "auroc_high"]) == metrics.interval(drawn)


def test_the_length_baseline_learns_length_and_the_base_rate_is_weighted() -> None:
    tokens = GENERATOR.integers(1, 100, size=400)
    correct = (tokens + 10 * GENERATOR.normal(size=400) < 50).astype(int)
    weight = np.where(correct == 1, 1.0, 0.5)
    baselines = fit_baselines(tokens, correct, weight)
    scores = baselines.scores(np.array([1, 50, 99]))
    short, middle, long = scores["length_only"]
    assert short > 0.9 > middle > 0.1 > long
    assert scores["base_rate"] == pytest.approx(np.full(3, weight[correct == 1].sum() / weight.sum()))


def test_weights_move_the_length_baseline() -> None:
    tokens, correct = np.array([5, 5, 50, 50] * 10), np.array([1, 0, 1, 0] * 10)
    favour_short = np.where((tokens == 5) == (correct == 1), 1.0, 0.05)
    at_5, at_50 = fit_baselines(tokens, correct, favour_short).scores(np.array([5, 50]))["length_only"]
    assert at_5 > 0.7 > 0.3 > at_50
    assert fit_baselines(tokens, correct, np.ones(40)).scores(np.array([5]))["length_only"] == pytest.approx(0.5)


def test_only_experts_labels_are_tested_on() -> None:
    frame = pd.DataFrame({"source": ["thumb", "sme", "thumb", "sme"], "row": range(4)})
    assert reviewed(frame)["row"].tolist() == [1, 3]
    thumbs = frame[frame["source"] == "thumb"]
    assert reviewed(thumbs).empty


def test_the_threshold_table_by_hand() -> None:
    table = threshold_table(np.array([1, 0, 1, 1]), np.array([0.95, 0.45, 0.35, 0.05]), tuned=0.35)
    assert table["threshold"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert table["threshold"][table["tuned"]].tolist() == [0.35]
    row = table.set_index("threshold").loc
    assert row[0.0, ["precision", "recall", "display_rate", "mask_rate"]].tolist() == [0.75, 1, 1, 0]
    assert row[0.35, ["precision", "recall", "mask_rate"]].tolist() == pytest.approx([2 / 3, 2 / 3, 0.25])
    assert row[0.9, ["precision", "recall", "mask_rate"]].tolist() == pytest.approx([1, 1 / 3, 0.75])


@pytest.mark.parametrize("tuned", [0.3, 0.3 + 1e-12, 0.0, 1.0])
def test_a_tuned_threshold_stands_in_the_table_once(tuned: float) -> None:
    table = threshold_table(CORRECT, SHARP, tuned)
    assert table["tuned"].sum() == 1
    assert table["threshold"].is_monotonic_increasing


def test_a_threshold_that_shows_nothing_has_no_precision() -> None:
    table = threshold_table(np.array([1, 0]), np.array([0.1, 0.2]), 0.95)
    assert np.isnan(table["precision"].iloc[-1])
    assert table["mask_rate"].iloc[-1] == 1


def test_weights_reach_every_figure_of_both_tables() -> None:
    weight = np.where(CORRECT == 1, 1.0, 0.25)
    scores = {"probe": SHARP, "blind": BLIND}
    board = leaderboard(CORRECT, scores, GROUPS, 50, 1, weight).set_index("scorer")
    for name, confidence in scores.items():
        for metric, function in METRICS.items():
            assert board.loc[name, metric] == function(CORRECT, confidence, weight)
    drawn = metrics.bootstrap(metrics.auroc, CORRECT, scores, GROUPS, 50, 1, weight)["probe"]
    assert (board.loc["probe", "auroc_low"], board.loc["probe", "auroc_high"]) == metrics.interval(drawn)
    everything_shown = threshold_table(CORRECT, SHARP, 0.5, weight).iloc[0]
    assert everything_shown["precision"] == pytest.approx(metrics.mean(CORRECT, weight))
    assert everything_shown["precision"] > CORRECT.mean() + 0.2
    pd.testing.assert_frame_equal(
        leaderboard(CORRECT, scores, GROUPS, 50, 1, np.ones(200)), leaderboard(CORRECT, scores, GROUPS, 50, 1)
    )
    pd.testing.assert_frame_equal(
        threshold_table(CORRECT, SHARP, 0.5, np.ones(200)), threshold_table(CORRECT, SHARP, 0.5), check_exact=True
    )
