from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.reviewed_split import ReviewedSplit, calibrate_scores, compare_calibrators
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.calibration import Method, fit_calibrator


def judged(rows: int, seed: int, wrong_share: float = 0.4) -> ReviewedSplit:
    """A scorer that is sure of itself, twice as sure as it may be, and one that is silent but on three answers."""
    generator = np.random.default_rng(seed)
    correct = (generator.random(rows) > wrong_share).astype(int)
    logit = (2 * correct - 1) + 1.5 * generator.normal(size=rows)
    index = pd.RangeIndex(10, 10 + rows)
    scores = pd.DataFrame({"sure": 1 / (1 + np.exp(-4 * logit)), "silent": np.nan}, index)
    scores.iloc[:3, 1] = 0.5
    frame = {"correct": correct, "inclusion_probability": np.where(np.arange(rows) % 2, 0.5, 1.0), "sampled": True}
    return ReviewedSplit(pd.DataFrame({**frame, "group": np.arange(rows) % 15}, index), scores, scores)


def test_probabilities_come_from_the_validation_split_and_are_better_ones() -> None:
    validation, holdout = judged(800, 0), judged(800, 1)
    found = calibrate_scores(validation, {"holdout": holdout.scores}, "isotonic")["holdout"]
    assert found.index.equals(holdout.scores.index)
    before, after = (
        metrics.ece(holdout.correct, of, holdout.weight)
        for of in (holdout.get_raw_scores("sure"), found["sure"].to_numpy())
    )
    assert after < before / 2


def test_a_scorer_that_says_too_little_is_not_calibrated() -> None:
    validation = judged(200, 0)
    found = calibrate_scores(validation, {"validation": validation.scores}, "temperature")["validation"]
    assert list(found) == ["sure"]


def test_too_few_answers_of_a_class_calibrate_nothing() -> None:
    validation = judged(200, 0, wrong_share=0.0)
    assert calibrate_scores(validation, {"validation": validation.scores}, "isotonic")["validation"].empty


def test_every_method_is_measured_on_the_hold_out() -> None:
    validation, holdout = judged(800, 0), judged(800, 1)
    rows = compare_calibrators(validation, holdout, "sure", ["sure"], BootstrapConfig(200, 1))
    by_method = {row["method"]: row for row in rows}
    assert list(by_method) == ["none", "temperature", "isotonic", "venn_abers", "none, sure"]
    assert by_method["none"]["brier"] == pytest.approx(
        metrics.brier(holdout.correct, holdout.get_raw_scores("sure"), holdout.weight)
    )
    assert all(row["ece_low"] <= row["ece_high"] for row in rows)
    assert (
        max(by_method[name]["brier"] for name in ("temperature", "isotonic", "venn_abers")) < by_method["none"]["brier"]
    )


@pytest.mark.parametrize("method", ["temperature", "isotonic", "venn_abers"])
def test_what_is_measured_on_the_hold_out_was_fitted_without_it(method: Method) -> None:
    validation, holdout = judged(800, 0), judged(300, 1, wrong_share=0.7)
    fitted = fit_calibrator(method, validation.get_raw_scores("sure"), validation.correct, validation.weight)
    expected = metrics.brier(holdout.correct, fitted.apply(holdout.get_raw_scores("sure")), holdout.weight)
    found = {row["method"]: row for row in compare_calibrators(validation, holdout, "sure", [], BootstrapConfig(2, 1))}
    assert found[method]["brier"] == pytest.approx(expected)


def test_weights_are_those_of_the_inclusion_probabilities() -> None:
    assert judged(4, 0).weight.tolist() == [0.5, 1.0, 0.5, 1.0]


def test_answers_that_count_keep_their_scores() -> None:
    whole = judged(300, 0)
    whole = replace(whole, rows=whole.rows.assign(sampled=np.arange(300) % 3 == 1))
    counted, apart = whole.split_by_sampling()
    for part, places in ((counted, np.arange(300) % 3 == 1), (apart, np.arange(300) % 3 != 1)):
        np.testing.assert_array_equal(part.get_raw_scores("sure"), whole.get_raw_scores("sure")[places])
        np.testing.assert_array_equal(part.get_probabilities("sure"), whole.get_probabilities("sure")[places])
        np.testing.assert_array_equal(part.correct, whole.correct[places])
    assert len(whole.split_by_sampling(sampled_only=False)[0].rows) == 300


def test_what_is_shown_has_an_interval_around_its_precision_and_error_rate() -> None:
    part = judged(400, 2)
    bounds = part.summarize_shown("sure", 0.5, BootstrapConfig(200, 1))
    shown = part.get_raw_scores("sure") >= 0.5
    precision = metrics.weighted_mean(part.correct[shown], part.weight[shown])
    assert bounds["precision_low"] < precision < bounds["precision_high"]
    assert (
        bounds["error_rate_low"]
        < metrics.weighted_mean(shown * (1 - part.correct), part.weight)
        < bounds["error_rate_high"]
    )
    assert bounds["shown"] == shown.sum() > bounds["shown_n_eff"] > 0.8 * shown.sum()


def test_where_all_that_is_shown_is_right_there_is_no_interval() -> None:
    part = judged(400, 2)
    best = part.get_raw_scores("sure")[part.correct == 1].max()
    found = part.summarize_shown("sure", best, BootstrapConfig(200, 1))
    assert found["shown"] == 1 == found["shown_n_eff"]
    assert all(np.isnan(value) for name, value in found.items() if name.endswith(("_low", "_high")))
