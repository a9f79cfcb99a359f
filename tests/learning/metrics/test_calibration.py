"""A calibrator against its definition, its library and the truth.

The table of docs/studies/thresholds.md: `python -m tests.learning.metrics.test_calibration 100`.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import (
    THINNING_SEED,
    Method,
    calibrator_from_dict,
    fit_calibrator,
    rejection_sample,
)
from abstain.learning.metrics.weighted_metrics import brier, ece, row_weights

METHODS: tuple[Method, ...] = ("none", "temperature", "isotonic", "venn_abers")
FITTED = METHODS[1:]
EVERYWHERE = np.unique(np.concatenate([np.linspace(0, 1, 401), np.nextafter(np.linspace(0, 1, 401), 0).clip(0)]))


def overconfident(rows: int, seed: int = 0, scale: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose logit is 1 / `scale` times too large."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(0.5, 2.5, rows)
    correct = generator.random(rows) < 1 / (1 + np.exp(-scale * logit))
    return 1 / (1 + np.exp(-logit)), correct.astype(int)


@st.composite
def samples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At least ten answers of either class; ties, zeros, ones and uneven weights are common."""
    right = draw(st.lists(st.booleans(), min_size=10, max_size=40))
    correct = np.array(right + [True] * 10 + [False] * 10, int)
    grid = st.one_of(st.integers(0, 10).map(lambda n: n / 10), st.floats(0, 1))
    confidence = np.array(draw(st.lists(grid, min_size=len(correct), max_size=len(correct))))
    weight = np.array(draw(st.lists(st.sampled_from([1.0, 0.9]), min_size=len(correct), max_size=len(correct))))
    return confidence, correct, weight


@pytest.mark.heavy
@pytest.mark.parametrize("method", METHODS)
@given(samples())
@settings(max_examples=40, deadline=None)
def test_every_calibrator_keeps_the_order_and_is_the_same_after_json(
    method: Method, sample: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    try:
        calibrator = fit_calibrator(method, *sample)
    except AbstainError:
        assert method == "venn_abers" and rejection_sample(sample[2], THINNING_SEED).sum() < len(
            sample[2]
        )  # too few were left
        return
    calibrated = calibrator.apply(EVERYWHERE)
    assert ((calibrated >= 0) & (calibrated <= 1)).all()
    assert (np.diff(calibrated) >= 0).all()
    again = calibrator_from_dict(json.loads(json.dumps(calibrator.to_dict())))
    assert again == calibrator
    assert np.array_equal(again.apply(EVERYWHERE), calibrated)
    allowed = calibrator.compute_interval(EVERYWHERE)
    assert (allowed is not None) == (method == "venn_abers")
    if allowed is not None:
        low, high = allowed
        assert (np.diff(low) >= 0).all() and (np.diff(high) >= 0).all()
        assert ((low <= calibrated + 1e-12) & (calibrated <= high + 1e-12)).all()
        assert np.array_equal(again.compute_interval(EVERYWHERE), allowed)


def test_none_leaves_confidences_as_they_are_and_learns_from_nothing() -> None:
    calibrator = fit_calibrator("none", np.array([0.3]), np.array([1]), None)
    assert calibrator.to_dict() == {"method": "none"}
    assert calibrator.apply(EVERYWHERE).tolist() == EVERYWHERE.tolist()


def test_temperature_finds_the_scale_that_made_the_data() -> None:
    confidence, correct = overconfident(40_000)
    assert fit_calibrator("temperature", confidence, correct).to_dict()["scale"] == pytest.approx(0.4, abs=0.01)


def test_temperature_of_answers_that_it_separates_fully_ends_somewhere() -> None:
    confidence, correct = np.repeat([0.2, 0.8], 20), np.repeat([0, 1], 20)
    assert fit_calibrator("temperature", confidence, correct).to_dict()["scale"] == pytest.approx(50, rel=1e-3)
    assert fit_calibrator("temperature", confidence, 1 - correct).to_dict()["scale"] == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("distinct", [12, 10_000])
def test_venn_abers_is_its_definition(distinct: int) -> None:
    """Two isotonic fits a new answer: one with it as a wrong one, one with it as a right one."""
    confidence, correct = overconfident(60)
    confidence = np.round(confidence * distinct) / distinct
    new = np.unique(np.concatenate([confidence, np.linspace(0, 1, 25)]))
    calibrator = fit_calibrator("venn_abers", confidence, correct)
    allowed = calibrator.compute_interval(new)
    assert allowed is not None
    for outcome, fitted in enumerate(allowed):
        for one, level in zip(new, fitted, strict=True):
            table = IsotonicRegression().fit(np.append(confidence, one), np.append(correct, outcome))
            assert level == pytest.approx(table.predict([one])[0], abs=1e-12)
    p0, p1 = allowed
    assert calibrator.apply(new) == pytest.approx(p1 / (1 - p0 + p1), abs=1e-12)


def test_venn_abers_is_stored_as_its_steps_and_not_row_by_row() -> None:
    confidence, correct = overconfident(5000)
    calibrator = fit_calibrator("venn_abers", confidence, correct)
    assert len(json.dumps(calibrator.to_dict())) < 20_000


def test_fitting_leaves_numpys_warnings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of Venn-Abers switches them off for the whole process when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "venn_abers"]:
        monkeypatch.delitem(sys.modules, name)
    before = np.geterr()
    fit_calibrator("venn_abers", *overconfident(100))
    assert "venn_abers" in sys.modules
    assert np.geterr() == before


@pytest.mark.parametrize("method", FITTED)
def test_confidences_become_probabilities(method: Method) -> None:
    calibrator = fit_calibrator(method, *overconfident(2000))
    confidence, correct = overconfident(20_000, seed=1)
    calibrated = calibrator.apply(confidence)
    assert ece(correct, confidence) > 0.13
    assert ece(correct, calibrated) < 0.03
    assert brier(correct, calibrated) < brier(correct, confidence) - 0.015


@pytest.mark.parametrize("method", FITTED)
def test_an_unevenly_reviewed_sample_is_calibrated_for_all_answers(method: Method) -> None:
    """Wrong answers were reviewed nine times as often: believed as they are, they make every answer look worse."""
    generator = np.random.default_rng(2)
    confidence, correct = overconfident(30_000)
    inclusion = np.where(correct == 1, 0.1, 0.9)
    reviewed = generator.random(len(correct)) < inclusion
    weight = row_weights(inclusion[reviewed])
    weighted = fit_calibrator(method, confidence[reviewed], correct[reviewed], weight).apply(confidence)
    unweighted = fit_calibrator(method, confidence[reviewed], correct[reviewed]).apply(confidence)
    assert ece(correct, weighted) < 0.03
    assert ece(correct, unweighted) > 0.05


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_a_weight_stands_for_that_many_answers(method: Method) -> None:
    confidence, correct = overconfident(200)
    weight = np.random.default_rng(0).integers(1, 5, 200)
    whole = fit_calibrator(method, np.repeat(confidence, weight), np.repeat(correct, weight))
    assert fit_calibrator(method, confidence, correct, weight).apply(EVERYWHERE) == pytest.approx(
        whole.apply(EVERYWHERE), abs=1e-5
    )


@pytest.mark.parametrize("method", METHODS)
def test_nan_stays_nan_and_float32_and_no_rows_are_taken(method: Method) -> None:
    calibrator = fit_calibrator(method, *overconfident(100))
    assert np.isnan(calibrator.apply(np.array([0.2, np.nan, 0.9]))).tolist() == [False, True, False]
    allowed = calibrator.compute_interval(np.array([np.nan, 0.5]))
    assert allowed is None or np.isnan(allowed).tolist() == [[True, False], [True, False]]
    assert calibrator.apply(np.array([0.5], np.float32)).dtype == np.float64
    assert calibrator.apply(np.array([])).shape == (0,)


@pytest.mark.parametrize("method", FITTED)
@pytest.mark.parametrize(("right", "wrong", "says"), [(50, 0, "only 0 are incorrect"), (9, 40, "only 9 are correct")])
def test_too_few_of_a_class_say_what_to_bring(method: Method, right: int, wrong: int, says: str) -> None:
    correct = np.repeat([1, 0], [right, wrong])
    message = f"^calibration by {method} needs 10 correct and 10 incorrect reviewed answers, and {says} .of {right + wrong}.: bring"
    with pytest.raises(AbstainError, match=message):
        fit_calibrator(method, np.linspace(0, 1, right + wrong), correct)


def test_rows_that_are_worth_too_few_say_so() -> None:
    confidence, correct = overconfident(100)
    weight = np.full(100, 0.1)
    weight[0] = 1
    with pytest.raises(AbstainError, match=r"by venn_abers .* \(of 100, \d+ after thinning\): bring"):
        fit_calibrator("venn_abers", confidence, correct, weight)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("confidence", "correct", "weight", "says"),
    [
        (np.nan, 1, 1, "^1 of 60 reviewed answers have a confidence that is not in"),
        (1.5, 1, 1, "confidence that is not in"),
        (0.5, np.nan, 1, "^1 of 60 reviewed answers have a label that is neither 0 nor 1"),
        (0.5, 0.5, 1, "label that is neither 0 nor 1"),
        (0.5, 1, 0, "weight that is not above 0"),
        (0.5, 1, np.inf, "weight that is not above 0"),
    ],
)
def test_a_value_that_is_none_is_refused(
    method: Method, confidence: float, correct: float, weight: float, says: str
) -> None:
    good, verdicts = overconfident(59)
    with pytest.raises(AbstainError, match=says):
        fit_calibrator(
            method, np.append(good, confidence), np.append(verdicts, correct), np.append(np.ones(59), weight)
        )


def test_arrays_of_different_lengths_and_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        fit_calibrator("isotonic", np.zeros(3), np.zeros(2))
    with pytest.raises(AbstainError, match="^unknown calibration 'platt': choose one of none, temperature"):
        fit_calibrator("platt", np.zeros(3), np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"method": "platt"},
        {"method": "temperature"},
        {"method": "temperature", "scale": -1.0},
        {"method": "temperature", "scale": "a"},
        {"method": "isotonic", "knots": [0.1, 0.9], "values": [0.8]},
        {"method": "isotonic", "knots": [0.1, 0.9], "values": [0.8, 0.1]},
        {"method": "venn_abers", "p0_knots": [0.5], "p0_values": [0.1], "p1_knots": [0.5], "p1_values": [0.4, 0.9]},
    ],
)
def test_a_broken_record_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(AbstainError, match="^the stored calibration is damaged or incomplete: export the probe again$"):
        calibrator_from_dict(stored)


def test_thinning_equal_weights_keeps_every_row_and_none_stays_none() -> None:
    assert rejection_sample(np.full(50, 0.3), 0).all()
    assert rejection_sample(np.array([]), 0).shape == (0,)


def test_thinned_rows_are_an_even_sample() -> None:
    generator = np.random.default_rng(5)
    right = generator.random(50_000) < 0.7
    inclusion = np.where(right, 0.2, 0.9)
    reviewed = generator.random(50_000) < inclusion
    kept = rejection_sample(row_weights(inclusion[reviewed]), 1)
    assert right[reviewed].mean() == pytest.approx(0.342, abs=0.01)
    assert right[reviewed][kept].mean() == pytest.approx(0.7, abs=0.015)


def test_rejection_sample_is_that_of_its_seed() -> None:
    weight = np.linspace(0.1, 1, 100)
    assert np.array_equal(rejection_sample(weight, 3), rejection_sample(weight, 3))
    assert not np.array_equal(rejection_sample(weight, 3), rejection_sample(weight, 4))


@pytest.mark.parametrize("method", FITTED)
def test_fit_calibrator_accepts_ten_of_each_class(method: Method) -> None:
    assert fit_calibrator(method, np.linspace(0, 1, 20), np.repeat([0, 1], 10)).method == method


def biased(rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that say too little of liked answers, and the probabilities that they stand for."""
    liked = generator.random(rows) < 0.7
    confidence = np.where(liked, generator.beta(5, 2, rows), generator.beta(3, 3, rows))
    of_liked, of_others = 0.7 * beta.pdf(confidence, 5, 2), 0.3 * beta.pdf(confidence, 3, 3)
    right = of_liked * (0.25 + 0.75 * confidence**0.8) + of_others * (0.05 + 0.85 * confidence)
    return confidence, right / (of_liked + of_others)


def scaled(rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose logit is 2.5 times too large, and the probabilities that they stand for."""
    logit = generator.normal(0.5, 2.5, rows)
    return 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(-0.4 * logit))


def main(samples: int) -> None:
    """How far each method is from the true probability (root mean square), and the width of Venn-Abers' interval."""
    for name, drawn in (("overconfident", scaled), ("biased", biased)):
        new, truth = drawn(20_000, np.random.default_rng(99))
        print(f"| {name} | raw | {np.sqrt(np.mean((new - truth) ** 2)):.3f} |")
        for rows in (50, 100, 200, 500, 1000, 5000):
            away: dict[str, list[float]] = {method: [] for method in FITTED}
            width = []
            for sample in range(samples):
                generator = np.random.default_rng([rows, sample])
                confidence, probability = drawn(rows, generator)
                correct = (generator.random(rows) < probability).astype(int)
                if not 10 <= correct.sum() <= rows - 10:
                    continue
                for method in FITTED:
                    calibrator = fit_calibrator(method, confidence, correct)
                    away[method].append(float(np.sqrt(np.mean((calibrator.apply(new) - truth) ** 2))))
                low, high = calibrator.compute_interval(new) or (new, new)
                width.append(float(np.mean(high - low)))
            figures = " | ".join(f"{np.mean(values):.3f}" for values in away.values())
            print(f"| {name} | {rows} | {figures} | {np.mean(width):.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
