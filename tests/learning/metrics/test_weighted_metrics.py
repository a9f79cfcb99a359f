import inspect
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as theirs

from abstain.learning.metrics import weighted_metrics as ours
from tests.learning.evaluation.builders import make_grouped

rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20).map(lambda n: n / 20)), min_size=1, max_size=30)


def make_arrays(rows: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([y for y, _ in rows]), np.array([c for _, c in rows])


def test_metrics_undefined_is_nan() -> None:
    nothing, ones, zeros = np.array([]), np.ones(3, int), np.zeros(3, int)
    confidence = np.array([0.1, 0.5, 0.9])
    undefined = [
        ours.auroc(ones, confidence),
        ours.auroc(zeros, confidence),
        ours.auprc(zeros, confidence),
        ours.error_recall(ones, confidence, max_withheld_share=0.5),  # there is no error to catch
        ours.error_recall_over_random(zeros, confidence, max_withheld_share=0.1),  # nothing fits into a tenth of three
        ours.precision(ones, confidence, threshold=0.95),
        ours.recall(zeros, confidence),
        ours.f1(zeros, confidence, threshold=0.95),
    ]
    assert np.isnan(undefined).all()
    assert ours.auprc(ones, confidence) == 1
    assert ours.f1(zeros, confidence) == ours.f1(ones, confidence, threshold=0.95) == 0
    for metric in EVERY.values():
        assert math.isnan(metric(nothing, nothing))
        assert np.isnan(metric(nothing, nothing, np.ones((4, 0)))).tolist() == [True] * 4


def test_ece_matches_hand_computation() -> None:
    """Two bins of 0.1: [0.2, 0.3) with accuracy 1/2, [0.9, 1.0] with accuracy 2/3; 1.0 belongs to the last bin."""
    correct = np.array([1, 0, 1, 1, 0])
    confidence = np.array([0.2, 0.24, 0.9, 0.95, 1.0])
    assert ours.reliability(correct, confidence) == [
        {"confidence": pytest.approx(0.22), "accuracy": 0.5, "rows": 2, "share": 0.4},
        {"confidence": pytest.approx(0.95), "accuracy": pytest.approx(2 / 3), "rows": 3, "share": 0.6},
    ]
    weighted = ours.reliability(correct, confidence, np.array([1.0, 1.0, 1.0, 0.5, 0.5]))
    assert [(b["rows"], b["share"]) for b in weighted] == [(2, 0.5), (3, 0.5)]
    assert ours.ece(correct, confidence) == pytest.approx((2 * 0.28 + 3 * (0.95 - 2 / 3)) / 5)
    assert [part["rows"] for part in ours.reliability(correct[:3], np.array([0.85, 0.95, 1.0]))] == [1, 2]


@given(rows)
def test_ece_is_between_overall_gap_and_one(rows: list[tuple[int, float]]) -> None:
    correct, confidence = make_arrays(rows)
    gap = abs(correct.mean() - confidence.mean())
    assert gap - 1e-9 <= ours.ece(correct, confidence) <= 1
    assert ours.ece(correct, confidence, n_bins=1) == pytest.approx(gap)
    assert sum(b["rows"] for b in ours.reliability(correct, confidence)) == len(rows)


def test_risk_coverage_matches_hand_computation() -> None:
    correct = np.array([0, 1, 1, 0])
    coverage, risk = ours.risk_coverage(correct, np.array([0.1, 0.9, 0.7, 0.8]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert ours.aurc(correct, np.array([0.1, 0.9, 0.7, 0.8])) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    tied = ours.risk_coverage(np.array([1, 0, 0, 1]), np.array([0.5, 0.5, 0.5, 0.9]))[1]
    assert tied == pytest.approx([0, 2 / 4, 2 / 4, 2 / 4])


@given(rows, st.randoms(use_true_random=False))
def test_risk_coverage_ignores_order_and_ends_at_error_rate(rows: list[tuple[int, float]], random) -> None:
    correct, confidence = make_arrays(rows)
    coverage, risk = ours.risk_coverage(correct, confidence)
    assert len(coverage) == len(risk) == len(rows)
    assert (coverage[-1], risk[-1]) == (1, pytest.approx(1 - correct.mean()))
    shuffled = random.sample(rows, len(rows))
    assert ours.risk_coverage(*make_arrays(shuffled))[1] == pytest.approx(risk)


ninths = st.integers(0, 9).map(lambda n: n / 9)
times = st.integers(0, 3).map(float)
weighted = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20).map(lambda n: n / 20), st.integers(1, 5)), min_size=1, max_size=30
)
RANKING = ("auroc", "auprc", "aurc", "error_recall", "withheld_share", "error_recall_over_random")
OTHERS = ("brier", "ece", "accuracy", "f1", "precision", "recall", "coverage")
EVERY: dict[str, ours.Metric] = {name: getattr(ours, name) for name in (*RANKING, *OTHERS)}


@pytest.mark.heavy
@given(weighted)
def test_metrics_weight_equals_repeated_rows(rows: list[tuple[int, float, int]]) -> None:
    correct, confidence, times = (np.array(column) for column in zip(*rows, strict=True))
    for name, metric in EVERY.items():
        repeated = pytest.approx(metric(np.repeat(correct, times), np.repeat(confidence, times)), nan_ok=True)
        assert metric(correct, confidence, times.astype(float)) == repeated, name
        assert metric(correct, confidence, times / 7) == repeated, name  # the scale says nothing
    expected = ours.reliability(np.repeat(correct, times), np.repeat(confidence, times))
    for part, other in zip(ours.reliability(correct, confidence, times.astype(float)), expected, strict=True):
        assert {**part, "rows": 0} == pytest.approx({**other, "rows": 0})
    shown, risk = ours.risk_coverage(correct, confidence, times.astype(float))
    assert (np.diff(shown, prepend=0) * risk).sum() == pytest.approx(ours.aurc(correct, confidence, times))
    weights = np.stack([times, times[::-1]])
    assert ours.weighted_mean(correct, weights) == pytest.approx([np.average(correct, weights=row) for row in weights])


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 1), ninths | st.just(math.nan), *[times] * 3), min_size=1, max_size=20))
def test_metrics_resamples_equal_single_weights(rows: list[tuple[int, float, float, float, float]]) -> None:
    correct, confidence, *weights = (np.array(column) for column in zip(*rows, strict=True))
    for name, metric in EVERY.items():
        together = metric(correct, confidence, np.stack(weights))
        assert together.shape == (3,)
        for one, weight in zip(together, weights, strict=True):
            alone = metric(correct, confidence, weight)
            assert isinstance(alone, float)
            assert one == pytest.approx(alone, nan_ok=True), name
            drawn = weight > 0  # a row that was not drawn says nothing, not even that there is its confidence
            left_out = metric(correct[drawn], confidence[drawn], weight[drawn])
            assert np.isnan(confidence[drawn]).all() or one == pytest.approx(left_out, nan_ok=True), name


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 1), ninths, st.just(1.0) | st.floats(0.01, 1)), min_size=1, max_size=30))
def test_metrics_match_scikit_learn(rows: list[tuple[int, float, float]]) -> None:
    correct, confidence, weight = (np.array(column) for column in zip(*rows, strict=True))
    shown = confidence >= 0.5
    assert ours.coverage(correct, confidence, weight) == pytest.approx(np.average(shown, weights=weight))
    pairs = [(ours.brier, theirs.brier_score_loss, confidence), (ours.accuracy, theirs.accuracy_score, shown)]
    if 0 < correct.sum() < len(correct):
        pairs.append((ours.auroc, theirs.roc_auc_score, confidence))
    if correct.any():
        pairs.append((ours.auprc, theirs.average_precision_score, confidence))
        pairs += [(ours.recall, theirs.recall_score, shown), (ours.f1, theirs.f1_score, shown)]
    if shown.any():
        pairs.append((ours.precision, theirs.precision_score, shown))
    for metric, other, predicted in pairs:
        expected = other(correct, predicted, sample_weight=weight)
        assert metric(correct, confidence, weight) == pytest.approx(expected), metric


@given(
    st.lists(st.tuples(st.integers(0, 1), ninths | st.just(math.nan), st.integers(1, 5)), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.15, 0.5, 0.9]),
)
def test_error_recall_uses_best_allowed_threshold(rows: list[tuple[int, float, int]], share: float) -> None:
    correct, confidence, weight = (np.array(column, float) for column in zip(*rows, strict=True))
    assume(not np.isnan(confidence).all())
    below = [np.zeros(len(rows), bool)]
    below += [~(confidence >= t) for t in [*np.unique(confidence[~np.isnan(confidence)]), math.inf]]
    allowed = [mask for mask in below if weight[mask].sum() <= share * weight.sum() + 1e-9]
    most = max(allowed, key=lambda mask: weight[mask].sum())
    of_all, errors = weight[most].sum() / weight.sum(), (weight * (1 - correct)).sum()
    assert ours.withheld_share(correct, confidence, weight, max_withheld_share=share) == pytest.approx(of_all)
    found = ours.error_recall(correct, confidence, weight, max_withheld_share=share)
    if not errors or not of_all:
        assert math.isnan(found)
        return
    assert found == pytest.approx((weight * (1 - correct))[most].sum() / errors)
    over_random = ours.error_recall_over_random(correct, confidence, weight, max_withheld_share=share)
    assert math.isnan(over_random) if of_all == 0 else over_random == pytest.approx(found / of_all)


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 1), ninths), min_size=1, max_size=20))
def test_ranking_metrics_depend_on_order_only(rows: list[tuple[int, float]]) -> None:
    correct, confidence = make_arrays(rows)
    with np.errstate(divide="ignore"):
        scales = [np.log(confidence), 1e6 * confidence - 3, np.exp(confidence)]
    for name in RANKING:
        found = pytest.approx(EVERY[name](correct, confidence), nan_ok=True)
        assert [EVERY[name](correct, scale) for scale in scales] == [found] * 3, name


@given(st.lists(st.tuples(st.integers(0, 1), ninths | st.just(math.nan)), min_size=1, max_size=20))
def test_metrics_nan_confidence_counts_as_withheld(rows: list[tuple[int, float]]) -> None:
    correct, confidence = make_arrays(rows)
    for name, metric in EVERY.items():
        found = metric(correct, confidence)
        withheld = metric(correct, np.nan_to_num(confidence, nan=-1.0 if name in RANKING else 0.0))
        expected = math.nan if np.isnan(confidence).all() else withheld
        assert found == pytest.approx(expected, nan_ok=True), name


@pytest.mark.parametrize("metric", EVERY.values(), ids=EVERY)
def test_metrics_wrong_lengths_or_labels_raise(metric: ours.Metric) -> None:
    confidence = np.array([0.1, 0.5, 0.9])
    for correct, weight in (([0, 1, 1, 1], None), ([0, 1, 1], np.ones(2)), ([0, 1, 1], np.ones((3, 2)))):
        with pytest.raises(ValueError, match="differ in length"):
            metric(np.array(correct), confidence, weight)
    for label in (2, 0.5, math.nan):
        with pytest.raises(ValueError, match="neither 0 nor 1"):
            metric(np.array([0, 1, label]), confidence)


def test_metric_signature_is_that_of_a_caller() -> None:
    assert str(inspect.signature(ours.error_recall)).replace("'", "") == (
        "(correct: np.ndarray, confidence: np.ndarray, weight: Weight = None, *, max_withheld_share: float = 0.15)"
        " -> float | np.ndarray"
    )


def test_calibration_metrics_reject_non_probabilities() -> None:
    correct, log_probability = np.array([1, 0]), np.array([-0.1, -3.2])
    for metric in (ours.brier, ours.ece, ours.reliability):
        with pytest.raises(ValueError, match=r"-3\.2 to -0\.1 are not probabilities"):
            metric(correct, log_probability)
    with pytest.raises(ValueError, match="0 to 1.01"):
        ours.brier(correct, np.array([1.01, 0.0]))
    assert ours.brier(correct, np.array([1 + 1e-7, 0.0])) == 0  # single precision


@given(rows, st.sampled_from([np.nan, 1.0, 0.3, 1 / 7]))
def test_metrics_equal_weights_change_no_bit(rows: list[tuple[int, float]], probability: float) -> None:
    correct, confidence = make_arrays(rows)
    weight = ours.row_weights(np.full(len(rows), probability))
    for name, metric in EVERY.items():
        plain = metric(correct, confidence)
        assert metric(correct, confidence, weight) == plain or math.isnan(plain), name
    table = ours.reliability(correct, confidence)
    assert ours.reliability(correct, confidence, weight) == table
    curve = ours.risk_coverage(correct, confidence)
    pairs = zip(ours.risk_coverage(correct, confidence, weight), curve, strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)
    assert ours.effective_sample_size(weight) == len(rows)
    gaps = sum(b["rows"] * abs(b["confidence"] - b["accuracy"]) for b in table)
    assert ours.ece(correct, confidence) == pytest.approx(gaps / len(rows))
    assert ours.aurc(correct, confidence) == pytest.approx(curve[1].mean())


def test_row_weights_and_effective_sample_size_match_definition() -> None:
    assert ours.row_weights(np.array([0.5, 1.0, np.nan, 0.1])) == pytest.approx([0.2, 0.1, 0.1, 1.0])
    assert ours.row_weights(np.array([])).tolist() == []
    assert ours.row_weights(np.full(3, np.nan)).tolist() == [1, 1, 1]
    assert ours.effective_sample_size(np.array([1.0, 1.0, 1.0, 1.0])) == 4
    assert ours.effective_sample_size(np.full(20, 0.3)) == 20  # 20.000000000000004 would be another figure than 20
    assert ours.effective_sample_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert ours.effective_sample_size(np.array([])) == 0


def test_error_recall_vs_best_is_relative_to_number_of_errors() -> None:
    """Of ten answers the two least confident are withheld."""
    correct = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    confidence = np.array([0.1, 0.2, 0.8, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85])
    assert ours.error_recall(correct, confidence, max_withheld_share=0.2) == pytest.approx(0.5)
    assert ours.error_recall_vs_best(correct, confidence, max_withheld_share=0.2) == pytest.approx(1.0)
    few = np.array([0, *[1] * 9])
    assert ours.error_recall_vs_best(few, confidence, max_withheld_share=0.2) == pytest.approx(1.0)


def test_metrics_weights_undo_uneven_sampling() -> None:
    """Wrong answers are reviewed five times as often as right ones; the weighted figures are those of all answers."""
    generator = np.random.default_rng(3)
    correct, confidence, _ = make_grouped(40_000, 400, 3)
    probability = np.where(correct == 1, 0.1, 0.5)
    drawn = generator.random(len(correct)) < probability
    weight = ours.row_weights(probability[drawn])
    assert ours.weighted_mean(correct[drawn]) < 0.3 < 0.55 < ours.weighted_mean(correct)
    assert ours.weighted_mean(correct[drawn], weight) == pytest.approx(ours.weighted_mean(correct), abs=0.02)
    for name in ("brier", "ece", "auprc", "aurc"):
        whole, naive = EVERY[name](correct, confidence), EVERY[name](correct[drawn], confidence[drawn])
        assert EVERY[name](correct[drawn], confidence[drawn], weight) == pytest.approx(whole, abs=0.02), name
        assert name == "brier" or abs(naive - whole) > 0.03, name
