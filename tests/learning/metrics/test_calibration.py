import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from abstain.core.errors import AbstainError
from abstain.learning.metrics.calibration import (
    THINNING_SEED,
    Method,
    calibrator_from_dict,
    fit_calibrator,
    rejection_sample,
)
from abstain.learning.metrics.weighted_metrics import ece, row_weights

METHODS: tuple[Method, ...] = ("none", "temperature", "isotonic", "venn_abers")
FITTED = METHODS[1:]
EVERYWHERE = np.unique(np.concatenate([np.linspace(0, 1, 401), np.nextafter(np.linspace(0, 1, 401), 0).clip(0)]))


def make_overconfident(rows: int, seed: int = 0, scale: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose logit is 1 / `scale` times too large."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(0.5, 2.5, rows)
    correct = generator.random(rows) < 1 / (1 + np.exp(-scale * logit))
    return 1 / (1 + np.exp(-logit)), correct.astype(int)


@st.composite
def draw_samples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At least ten answers of either class; ties, zeros, ones and uneven weights are common."""
    correct = draw(st.lists(st.booleans(), min_size=10, max_size=40)) + [True] * 10 + [False] * 10
    grid = st.one_of(st.integers(0, 10).map(lambda n: n / 10), st.floats(0, 1))
    rows = len(correct)
    confidence = draw(st.lists(grid, min_size=rows, max_size=rows))
    weight = draw(st.lists(st.sampled_from([1.0, 0.9]), min_size=rows, max_size=rows))
    return np.array(confidence), np.array(correct, int), np.array(weight)


@pytest.mark.heavy
@pytest.mark.parametrize("method", METHODS)
@given(draw_samples())
@settings(max_examples=40, deadline=None)
def test_calibrators_are_monotone_and_survive_json(
    method: Method, sample: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    try:
        calibrator = fit_calibrator(method, *sample)
    except AbstainError:
        assert method == "venn_abers" and not rejection_sample(sample[2], THINNING_SEED).all()  # too few were left
        return
    calibrated = calibrator.apply(EVERYWHERE)
    assert ((calibrated >= 0) & (calibrated <= 1)).all() and (np.diff(calibrated) >= 0).all()
    again = calibrator_from_dict(json.loads(json.dumps(calibrator.to_dict())))
    assert again == calibrator and np.array_equal(again.apply(EVERYWHERE), calibrated)
    allowed = calibrator.compute_interval(EVERYWHERE)
    assert (allowed is not None) == (method == "venn_abers")
    if allowed is not None:
        low, high = allowed
        assert (np.diff(low) >= 0).all() and (np.diff(high) >= 0).all()
        assert ((low <= calibrated + 1e-12) & (calibrated <= high + 1e-12)).all()
        assert np.array_equal(again.compute_interval(EVERYWHERE), allowed)


def test_fit_temperature_recovers_scale_within_bounds() -> None:
    assert fit_calibrator("temperature", *make_overconfident(40_000)).to_dict()["scale"] == pytest.approx(0.4, abs=0.01)
    confidence, correct = np.repeat([0.2, 0.8], 20), np.repeat([0, 1], 20)
    for verdicts, bound in ((correct, 50), (1 - correct, 0.02)):
        scale = fit_calibrator("temperature", confidence, verdicts).to_dict()["scale"]
        assert scale == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("distinct", [12, 10_000])
def test_fit_venn_abers_matches_definition(distinct: int) -> None:
    """Two isotonic fits a new answer: one with it as a wrong one, one with it as a right one."""
    confidence, correct = make_overconfident(60)
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


def test_fit_calibrator_keeps_numpy_error_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of Venn-Abers switches them off for the whole process when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "venn_abers"]:
        monkeypatch.delitem(sys.modules, name)
    before = np.geterr()
    fit_calibrator("venn_abers", *make_overconfident(100))
    assert "venn_abers" in sys.modules
    assert np.geterr() == before


@pytest.mark.parametrize("method", FITTED)
def test_fit_calibrator_weights_undo_uneven_reviews(method: Method) -> None:
    """Wrong answers were reviewed nine times as often: believed as they are, they make every answer look worse."""
    confidence, correct = make_overconfident(30_000)
    inclusion = np.where(correct == 1, 0.1, 0.9)
    reviewed = np.random.default_rng(2).random(len(correct)) < inclusion
    weighted, unweighted = (
        fit_calibrator(method, confidence[reviewed], correct[reviewed], weight).apply(confidence)
        for weight in (row_weights(inclusion[reviewed]), None)
    )
    assert ece(correct, weighted) < 0.03
    assert ece(correct, unweighted) > 0.05


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_fit_calibrator_weight_equals_repeated_rows(method: Method) -> None:
    confidence, correct = make_overconfident(200)
    weight = np.random.default_rng(0).integers(1, 5, 200)
    whole = fit_calibrator(method, np.repeat(confidence, weight), np.repeat(correct, weight)).apply(EVERYWHERE)
    weighted = fit_calibrator(method, confidence, correct, weight).apply(EVERYWHERE)
    assert weighted == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_calibrators_accept_nan_float32_and_no_rows(method: Method) -> None:
    calibrator = fit_calibrator(method, *make_overconfident(100))
    assert np.isnan(calibrator.apply(np.array([0.2, np.nan, 0.9]))).tolist() == [False, True, False]
    allowed = calibrator.compute_interval(np.array([np.nan, 0.5]))
    assert allowed is None or np.isnan(allowed).tolist() == [[True, False], [True, False]]
    assert calibrator.apply(np.array([0.5], np.float32)).dtype == np.float64
    assert calibrator.apply(np.array([])).shape == (0,)
    if method == "none":
        assert calibrator.to_dict() == {"method": "none"}
        assert calibrator.apply(EVERYWHERE).tolist() == EVERYWHERE.tolist()


@pytest.mark.parametrize("method", FITTED)
def test_fit_calibrator_too_few_of_a_class_raises(method: Method) -> None:
    assert fit_calibrator(method, np.linspace(0, 1, 20), np.repeat([0, 1], 10)).method == method
    for right, wrong, rest in ((50, 0, "only 0 are incorrect"), (9, 40, "only 9 are correct")):
        with pytest.raises(AbstainError, match=f"by {method} .* {rest} .of {right + wrong}"):
            fit_calibrator(method, np.linspace(0, 1, right + wrong), np.repeat([1, 0], [right, wrong]))
    if method == "venn_abers":
        with pytest.raises(AbstainError, match=r"\(of 100, \d+ after thinning\)"):
            fit_calibrator(method, *make_overconfident(100), np.where(np.arange(100) == 0, 1, 0.1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("confidence", "correct", "weight", "named"),
    [
        (np.nan, 1, 1, "^1 of 60 reviewed answers have a confidence that is not in"),
        (1.5, 1, 1, "confidence that is not in"),
        (0.5, np.nan, 1, "^1 of 60 reviewed answers have a label that is neither 0 nor 1"),
        (0.5, 0.5, 1, "label that is neither 0 nor 1"),
        (0.5, 1, 0, "weight that is not above 0"),
        (0.5, 1, np.inf, "weight that is not above 0"),
    ],
)
def test_fit_calibrator_invalid_value_raises(
    method: Method, confidence: float, correct: float, weight: float, named: str
) -> None:
    rows = zip((*make_overconfident(59), np.ones(59)), (confidence, correct, weight), strict=True)
    with pytest.raises(AbstainError, match=named):
        fit_calibrator(method, *(np.append(good, bad) for good, bad in rows))


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"method": "platt"},
        {"method": "temperature"},
        {"method": "temperature", "scale": -1.0},
        {"method": "isotonic", "knots": [0.1, 0.9], "values": [0.8]},
        {"method": "isotonic", "knots": [0.1, 0.9], "values": [0.8, 0.1]},
        {"method": "venn_abers", "p0_knots": [0.5], "p0_values": [0.1], "p1_knots": [0.5], "p1_values": [0.4, 0.9]},
    ],
)
def test_calibrator_from_dict_damaged_record_raises(stored: dict[str, object]) -> None:
    with pytest.raises(AbstainError, match="^the stored calibration is damaged or incomplete: export the probe again$"):
        calibrator_from_dict(stored)


def test_fit_calibrator_wrong_arguments_raise() -> None:
    with pytest.raises(ValueError, match="shape"):
        fit_calibrator("isotonic", np.zeros(3), np.zeros(2))
    with pytest.raises(AbstainError, match="'platt'.* none, temperature"):
        fit_calibrator("platt", np.zeros(3), np.zeros(3))  # type: ignore[arg-type]


def test_rejection_sample_is_that_of_its_seed() -> None:
    weight = np.linspace(0.1, 1, 100)
    assert np.array_equal(rejection_sample(weight, 3), rejection_sample(weight, 3))
    assert not np.array_equal(rejection_sample(weight, 3), rejection_sample(weight, 4))
    assert rejection_sample(np.full(50, 0.3), 0).all() and rejection_sample(np.array([]), 0).shape == (0,)
