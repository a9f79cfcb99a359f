from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.records import Slice
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, calibrate_scores, compare_calibrators
from abstain.learning.evaluation.slices import KIND, compute_auroc_by_slice, evaluate_slices, make_strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap
from abstain.learning.metrics.calibration import Method, fit_calibrator
from tests.learning.evaluation.builders import make_grouped, make_split

CORRECT, CONFIDENCE, GROUPS = make_grouped(400, 60, 0)
RAW, SHOWN = np.log(CONFIDENCE), CONFIDENCE >= 0.6
WEIGHT = np.where(np.arange(400) % 3 == 0, 0.5, 1.0)
REVIEWED = make_split(CORRECT, {"probe": RAW}, {"probe": CONFIDENCE}, GROUPS, WEIGHT)
PRODUCT = pd.DataFrame({"product": pd.Categorical(np.array(["gold", "blue"])[np.arange(400) % 2], ["gold", "blue"])})
NO_REFUSAL, NONE = np.zeros(400, bool), [None] * 400
RESAMPLES = BootstrapConfig(100, 3)


def evaluate(
    reviewed: ReviewedSplit = REVIEWED, strata: pd.DataFrame = PRODUCT, min_n_eff: int = 20
) -> dict[str, Slice]:
    slices = evaluate_slices(reviewed, "probe", np.log(0.6), strata, RESAMPLES, min_n_eff)
    return {part.slice: part for part in slices}


def make_slices(*sizes: int) -> pd.DataFrame:
    """400 rows in slices a, b ... of these sizes, the rest in the last."""
    names = np.repeat(list("abcdef"[: len(sizes) + 1]), [*sizes, 400 - sum(sizes)])
    return pd.DataFrame({"by": pd.Categorical(names)})


def change(**columns: np.ndarray) -> ReviewedSplit:
    return replace(REVIEWED, rows=REVIEWED.rows.assign(**columns))


def make_lengths(lengths: np.ndarray, refusals: np.ndarray = NO_REFUSAL) -> pd.DataFrame:
    return make_strata(NONE, NONE, np.zeros(400, int), lengths, refusals)


def test_slices_are_measured_on_their_own_rows() -> None:
    slices = evaluate()
    assert list(slices) == ["gold", "blue"]
    for name, row in slices.items():
        mask = (PRODUCT["product"] == name).to_numpy()
        correct, weight, shown = CORRECT[mask], WEIGHT[mask], SHOWN[mask]
        assert (row.by, row.rows, row.n_eff) == ("product", 200, metrics.effective_sample_size(weight))
        assert row.base_rate == metrics.weighted_mean(correct, weight)
        assert row.auroc == metrics.auroc(correct, RAW[mask], weight)
        statistic = {"": partial(metrics.auroc, correct, RAW[mask])}
        interval = bootstrap(statistic, GROUPS[mask], n_resamples=100, seed=3, weight=weight)[""].interval
        assert (row.auroc_low, row.auroc_high) == interval
        assert row.ece == metrics.ece(correct, CONFIDENCE[mask], weight)
        assert row.brier == metrics.brier(correct, CONFIDENCE[mask], weight)
        assert (row.shown, row.precision) == (shown.sum(), metrics.weighted_mean(correct[shown], weight[shown]))
        assert row.note == ""


def test_slices_small_slice_is_listed_without_metrics() -> None:
    slices = evaluate(replace(REVIEWED, sampling_weight=np.ones(400)), make_slices(19, 20))
    row = slices["a"]
    assert (row.rows, row.n_eff, row.shown) == (19, 19, SHOWN[:19].sum())
    assert {row.auroc, row.auroc_low, row.auroc_high, row.ece, row.brier, row.precision} == {None}
    assert row.note == "fewer than 20 answers: not judged"
    assert row.base_rate == pytest.approx(CORRECT[:19].mean())
    assert slices["b"].auroc is not None and slices["b"].precision is None
    assert slices["b"].note == "fewer than 20 shown answers: precision not judged"
    assert slices["c"].precision is not None and slices["c"].note == ""
    row = evaluate(replace(REVIEWED, sampling_weight=np.where(np.arange(400) < 3, 1, 0.01)), make_slices(100))["a"]
    assert (row.rows, row.note) == (100, "effective sample size below 20 answers: not judged")
    assert row.auroc is None


def test_slices_one_class_or_group_has_no_auroc_or_interval() -> None:
    first = np.arange(400) < 100
    row = evaluate(change(correct=np.where(first, 1, CORRECT)), make_slices(100))["a"]
    assert row.note == "one class only"
    assert {row.auroc, row.auroc_low, row.auroc_high} == {None}
    assert row.precision == 1 and None not in (row.ece, row.brier)
    row = evaluate(change(group=np.where(first, 0, GROUPS)), make_slices(100))["a"]
    assert row.note == "one group only: no interval"
    assert row.auroc is not None and row.auroc_low is row.auroc_high is None


def test_slices_unscored_slice_has_no_metrics() -> None:
    raw, probability = (np.where(np.arange(400) < 100, np.nan, values) for values in (RAW, CONFIDENCE))
    reviewed = make_split(CORRECT, {"probe": raw}, {"probe": probability}, GROUPS, WEIGHT)
    row = evaluate(reviewed, make_slices(100))["a"]
    assert row.note.split("; ") == [
        "no answer has a score",
        "no answer has a probability",
        "fewer than 20 shown answers: precision not judged",
    ]
    assert {row.auroc, row.auroc_low, row.ece, row.brier, row.precision} == {None}
    assert row.shown == 0


def test_strata_are_ordered_and_name_missing_values() -> None:
    lines, chunks, lengths = [None, None, float("nan"), None], np.array([10, 2, 0, 2]), np.array([5, 6, 7, 80])
    strata = make_strata(["gold", None, "blue", "gold"], lines, chunks, lengths, NO_REFUSAL[:4])
    assert {name: list(strata[name].cat.categories) for name in strata} == {
        "product": ["blue", "gold", "not given"],
        "line of business": ["not given"],
        "retrieved chunks": ["0", "2", "10"],
        "answer length": [f"{length} to {length} characters" for length in lengths],
    }
    assert strata["product"].tolist() == ["gold", "not given", "blue", "gold"]
    assert strata["retrieved chunks"].tolist() == ["10", "2", "0", "2"]


def test_strata_lengths_fall_into_quartiles() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 401))
    stratum = make_lengths(lengths)["answer length"]
    assert list(stratum.cat.categories) == [f"{n + 1} to {n + 100} characters" for n in (0, 100, 200, 300)]
    assert stratum.value_counts(sort=False).tolist() == [100] * 4
    assert sorted(lengths[stratum == "1 to 100 characters"]) == list(range(1, 101))
    many_equal = make_lengths(np.where(lengths < 300, 8, lengths))["answer length"]
    assert many_equal.cat.categories[0] == "8 to 8 characters"
    assert many_equal.value_counts()["8 to 8 characters"] == 299
    assert list(make_lengths(np.full(400, 8))["answer length"].cat.categories) == ["8 to 8 characters"]
    assert make_strata([], [], np.array([], int), np.array([], int), NO_REFUSAL[:0]).empty


def test_auroc_by_slice_measures_every_scorer() -> None:
    refusals, silent = np.arange(400) < 15, np.where(np.arange(400) % 5 == 0, np.nan, CONFIDENCE)
    kinds, scores = make_lengths(np.full(400, 8), refusals)[KIND], {"sure": CONFIDENCE, "silent": silent}
    reviewed = make_split(CORRECT, scores, groups=GROUPS, weight=WEIGHT)
    answers, few = compute_auroc_by_slice(reviewed, kinds, RESAMPLES, 20)
    assert (few.slice, few.rows, few.scorers) == ("refusals", 15, {})
    assert compute_auroc_by_slice(reviewed, kinds, RESAMPLES, 5)[1].scorers.keys() == set(scores)
    assert (answers.slice, answers.rows, kinds.name) == ("answers", 385, "kind of answer")
    for name, values in scores.items():
        row = answers.scorers[name]
        assert row.auroc == metrics.auroc(CORRECT[~refusals], values[~refusals], WEIGHT[~refusals])
        assert row.auroc_low < row.auroc < row.auroc_high
    assert answers.scorers["silent"].auroc < answers.scorers["sure"].auroc


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
