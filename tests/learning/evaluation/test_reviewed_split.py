from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.reviewed_split import ReviewedSplit, calibrate_scores, compare_calibrators
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.calibration import Method, fit_calibrator

RESAMPLES = BootstrapConfig(200, 1)
FITTED: tuple[Method, ...] = ("temperature", "isotonic", "venn_abers")


def make_reviewed(rows: int, seed: int, wrong_share: float = 0.4) -> ReviewedSplit:
    """A scorer that is twice as sure as it may be, and one that is silent but on three answers."""
    generator = np.random.default_rng(seed)
    correct = (generator.random(rows) > wrong_share).astype(int)
    logit = (2 * correct - 1) + 1.5 * generator.normal(size=rows)
    index = pd.RangeIndex(10, 10 + rows)
    scores = pd.DataFrame({"sure": 1 / (1 + np.exp(-4 * logit)), "silent": np.nan}, index)
    scores.iloc[:3, 1] = 0.5
    frame = {"correct": correct, "inclusion_probability": np.where(np.arange(rows) % 2, 0.5, 1.0), "sampled": True}
    return ReviewedSplit(pd.DataFrame({**frame, "group": np.arange(rows) % 15}, index), scores, scores)


def test_calibrate_scores_on_validation_lowers_ece() -> None:
    validation, holdout = make_reviewed(800, 0), make_reviewed(800, 1)
    calibrated = calibrate_scores(validation, {"holdout": holdout.scores}, "isotonic")["holdout"]
    assert calibrated.index.equals(holdout.scores.index)
    before, after = (
        metrics.ece(holdout.correct, confidence, holdout.weight)
        for confidence in (holdout.get_raw_scores("sure"), calibrated["sure"].to_numpy())
    )
    assert after < before / 2
    assert list(calibrated) == ["sure"], "too few answers have a score of the other one"
    all_right = make_reviewed(200, 0, wrong_share=0.0)
    assert list(calibrate_scores(all_right, {"validation": all_right.scores}, "isotonic")["validation"]) == []


def test_compare_calibrators_fits_every_method_on_validation() -> None:
    validation, holdout = make_reviewed(800, 0), make_reviewed(800, 1)
    by_method = {row.method: row for row in compare_calibrators(validation, holdout, "sure", ["sure"], RESAMPLES)}
    raw, weighted = holdout.get_raw_scores("sure"), partial(metrics.brier, holdout.correct, weight=holdout.weight)
    assert list(by_method) == ["none", *FITTED, "none, sure"]
    assert by_method["none"].brier == by_method["none, sure"].brier == pytest.approx(weighted(raw))
    assert all(row.ece_low <= row.ece_high for row in by_method.values())
    for method in FITTED:
        fitted = fit_calibrator(method, validation.get_raw_scores("sure"), validation.correct, validation.weight)
        assert by_method[method].brier == pytest.approx(weighted(fitted.apply(raw)))
        assert by_method[method].brier < by_method["none"].brier


def test_reviewed_split_parts_keep_their_rows_and_weights() -> None:
    whole = make_reviewed(300, 0)
    mask = np.arange(300) % 3 == 1
    whole = replace(whole, rows=whole.rows.assign(sampled=mask))
    sampled, self_selected = whole.split_by_sampling()
    for part, rows in ((sampled, mask), (self_selected, ~mask), (whole.subset(mask), mask)):
        np.testing.assert_array_equal(part.get_raw_scores("sure"), whole.get_raw_scores("sure")[rows])
        np.testing.assert_array_equal(part.get_probabilities("sure"), whole.get_probabilities("sure")[rows])
        np.testing.assert_array_equal(part.correct, whole.correct[rows])
    assert len(whole.split_by_sampling(sampled_only=False)[0].rows) == 300
    assert whole.subset(np.arange(300) % 2 == 0).weight.tolist() == [0.5] * 150, "not scaled anew"


def test_evaluate_served_counts_shown_with_intervals() -> None:
    reviewed = make_reviewed(400, 2)
    point = reviewed.evaluate_served("sure", 0.5, RESAMPLES)
    shown = reviewed.get_raw_scores("sure") >= 0.5
    error_rate = metrics.weighted_mean(shown * (1 - reviewed.correct), reviewed.weight)
    assert point.precision == metrics.weighted_mean(reviewed.correct[shown], reviewed.weight[shown])
    assert point.precision_low < point.precision < point.precision_high
    assert point.error_rate_low < error_rate < point.error_rate_high
    assert point.shown == shown.sum() > point.shown_n_eff > 0.8 * shown.sum()
    assert point.shown_groups == 15
    best = reviewed.get_raw_scores("sure")[reviewed.correct == 1].max()
    point = reviewed.evaluate_served("sure", best, RESAMPLES)
    assert (point.shown, point.shown_n_eff, point.shown_groups) == (1, 1, 1)
    assert {point.precision_low, point.precision_high, point.error_rate_low, point.error_rate_high} == {None}
