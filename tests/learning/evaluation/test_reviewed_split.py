from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.records import CalibratorMetrics
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, calibrate_scores, compare_calibrators
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.calibration import Method, fit_calibrator

RESAMPLES = BootstrapConfig(200, 1)


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


def compare(holdout: ReviewedSplit, uncalibrated: list[str]) -> dict[str, CalibratorMetrics]:
    rows = compare_calibrators(make_reviewed(800, 0), holdout, "sure", uncalibrated, RESAMPLES)
    return {row.method: row for row in rows}


def test_calibrate_scores_on_validation_lowers_ece() -> None:
    holdout = make_reviewed(800, 1)
    calibrated = calibrate_scores(make_reviewed(800, 0), {"holdout": holdout.scores}, "isotonic")["holdout"]
    assert calibrated.index.equals(holdout.scores.index)
    before, after = (
        metrics.ece(holdout.correct, confidence, holdout.weight)
        for confidence in (holdout.get_raw_scores("sure"), calibrated["sure"].to_numpy())
    )
    assert after < before / 2


@pytest.mark.parametrize(("wrong_share", "method", "names"), [(0.4, "temperature", ["sure"]), (0.0, "isotonic", [])])
def test_calibrate_scores_too_few_answers_leave_scorer_out(
    wrong_share: float, method: Method, names: list[str]
) -> None:
    validation = make_reviewed(200, 0, wrong_share)
    assert list(calibrate_scores(validation, {"validation": validation.scores}, method)["validation"]) == names


def test_compare_calibrators_measures_every_method() -> None:
    holdout = make_reviewed(800, 1)
    by_method = compare(holdout, ["sure"])
    assert list(by_method) == ["none", "temperature", "isotonic", "venn_abers", "none, sure"]
    raw = metrics.brier(holdout.correct, holdout.get_raw_scores("sure"), holdout.weight)
    assert by_method["none"].brier == by_method["none, sure"].brier == pytest.approx(raw)
    assert all(row.ece_low <= row.ece_high for row in by_method.values())
    assert max(by_method[name].brier for name in ("temperature", "isotonic", "venn_abers")) < raw


@pytest.mark.parametrize("method", ["temperature", "isotonic", "venn_abers"])
def test_compare_calibrators_fits_on_validation_only(method: Method) -> None:
    validation, holdout = make_reviewed(800, 0), make_reviewed(300, 1, wrong_share=0.7)
    fitted = fit_calibrator(method, validation.get_raw_scores("sure"), validation.correct, validation.weight)
    expected = metrics.brier(holdout.correct, fitted.apply(holdout.get_raw_scores("sure")), holdout.weight)
    assert compare(holdout, [])[method].brier == pytest.approx(expected)


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


def test_evaluate_served_all_shown_correct_has_no_interval() -> None:
    reviewed = make_reviewed(400, 2)
    best = reviewed.get_raw_scores("sure")[reviewed.correct == 1].max()
    point = reviewed.evaluate_served("sure", best, RESAMPLES)
    assert (point.shown, point.shown_n_eff, point.shown_groups) == (1, 1, 1)
    assert {point.precision_low, point.precision_high, point.error_rate_low, point.error_rate_high} == {None}
