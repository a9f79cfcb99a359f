import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from abstain.config.params import RegressorFit, RegressorKind
from abstain.core.errors import AbstainError
from abstain.learning.estimators.regressors import kinds
from abstain.learning.estimators.regressors.columns import is_varying, select_columns, to_matrix
from abstain.learning.estimators.regressors.fitting import FittedRegressor, assign_folds, fit_regressor
from abstain.learning.estimators.regressors.kinds import PENALTIES, REGRESSOR_ALGORITHMS, RegressorTrainingSet
from abstain.learning.estimators.regressors.onnx_regressor import (
    BATCH,
    OnnxRegressor,
    measure_parity,
    to_onnx_regressor,
)
from tests.conftest import ROOT
from tests.tolerance import assert_near

every_kind = pytest.mark.parametrize("kind", REGRESSOR_ALGORITHMS)
PARAMS = RegressorFit(folds=4, seed=7, trees=40, max_features=0.5, min_leaf=3)
NAN = float("nan")


@pytest.fixture(scope="module", autouse=True)
def _few_rounds() -> Iterator[None]:
    """Boosting ends after 60 rounds, not 300: what is planted is learnt by then, and a fit costs a fifth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "MAX_ROUNDS", 60)
        yield


def make_planted(
    rows: int, seed: int, strength: float = 1.0, missing: float = 0.05
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Features (rows, 8), of which two move the score, the score in [0, 1], and 20 groups."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 8))
    known = np.tanh(values[:, 0]) + 0.5 * values[:, 1]
    score = np.clip(0.6 + 0.2 * strength * known + 0.05 * generator.normal(size=rows), 0, 1)
    scaled = 5 + 3 * values
    scaled[generator.random(values.shape) < missing] = np.nan
    names = [f"nll_{n}" for n in range(8)]
    groups = np.array([f"g-{row % 20}" for row in range(rows)], dtype=object)
    return pd.DataFrame(scaled, columns=names), score, groups


@cache
def fit(kind: RegressorKind) -> FittedRegressor:
    features, score, groups = make_planted(200, 1)
    return fit_regressor(kind, "cosine", features, score, np.ones(200), groups, PARAMS)


def compute_r2(true: np.ndarray, predicted: np.ndarray) -> float:
    return float(1 - ((true - predicted) ** 2).mean() / true.var())


@pytest.mark.heavy
@every_kind
def test_fit_regressor_learns_planted_signal(kind: RegressorKind) -> None:
    fitted = fit(kind)
    features, score, _ = make_planted(200, 1)
    assert fitted.out_of_fold.shape == (200,) and fitted.out_of_fold.dtype == np.float64
    assert compute_r2(score, fitted.out_of_fold) > 0.5
    others, their_score, _ = make_planted(150, 2)
    assert compute_r2(their_score, fitted.regressor.predict(others)) > 0.5
    assert fitted.out_of_fold.min() >= 0 and fitted.out_of_fold.max() <= 1
    assert compute_r2(score, fitted.regressor.predict(features)) > compute_r2(score, fitted.out_of_fold)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40), st.integers(2, 6))
def test_assign_folds_keeps_groups_whole(rows: list[tuple[int, bool]], folds: int) -> None:
    groups = np.array([f"g{group}" for group, _ in rows], dtype=object)
    counts = np.array([known for _, known in rows])
    of_known = len(set(groups[counts]))
    params = PARAMS.model_copy(update={"folds": folds})
    if of_known < 2:
        with pytest.raises(AbstainError, match=f"target cosine is known in only {of_known}: bring feedback on more"):
            assign_folds("cosine", groups, counts, params)
        return
    fold = assign_folds("cosine", groups, counts, params)
    assert len(fold) == len(rows)
    assert set(fold[counts]) == set(range(min(folds, of_known)))
    assert all(len(set(fold[groups == group])) == 1 for group in groups)
    assert np.array_equal(fold, assign_folds("cosine", groups, counts, params))


@pytest.mark.heavy
@every_kind
def test_fit_regressor_ignores_uncounted_rows(kind: RegressorKind) -> None:
    """Rows of weight 0 or of unknown target have a score all the same; rows without features have none."""
    features, score, groups = make_planted(150, 1)
    idle, unknown, unread = (np.arange(150) % every == 0 for every in (7, 11, 13))
    weight = np.where(idle, 0.0, 1.0)
    target = np.where(unknown, NAN, np.where(idle | unread, 1 - score, score))
    missing = features.mask(np.broadcast_to(unread[:, None], features.shape))
    fitted = fit_regressor(kind, "cosine", missing, target, weight, groups, PARAMS)
    counts = ~(idle | unknown | unread)
    alone = fit_regressor(kind, "cosine", features[counts], score[counts], weight[counts], groups[counts], PARAMS)
    assert fitted.regressor.metadata == alone.regressor.metadata
    assert fitted.regressor.metadata["rows"] == counts.sum()
    for scores in (fitted.out_of_fold, fitted.regressor.predict(missing)):
        assert np.isnan(scores).tolist() == unread.tolist()
    # The folds' rows stand in other places of larger arrays: a library may add up in another order.
    assert_near(fitted.out_of_fold[counts], alone.out_of_fold, np.float32)
    assert_near(fitted.regressor.predict(features), alone.regressor.predict(features), np.float32)
    assert fitted.parity == pytest.approx(alone.parity, abs=1e-6)
    scored = (idle | unknown) & ~unread
    assert compute_r2(score[scored], fitted.out_of_fold[scored]) > 0.3


@pytest.mark.heavy
@every_kind
def test_fit_regressor_selects_step_of_least_loss(kind: RegressorKind) -> None:
    """By hand: the paths of the folds, each of groups not seen, and the regressor of all rows at the step kept."""
    features, score, groups = make_planted(100, 3, strength=0.3)
    weight = np.where(np.arange(100) % 2, 1.0, 0.2)
    fitted = fit_regressor(kind, "cosine", features, score, weight, groups, PARAMS)
    values, entry = to_matrix(features, list(features)), REGRESSOR_ALGORITHMS[kind]
    fold = assign_folds("cosine", groups, np.ones(100, bool), PARAMS)
    paths = np.empty((len(entry.list_steps(PARAMS)), 100))
    for number in range(4):
        seen = fold != number
        train = RegressorTrainingSet(values[seen], score[seen], weight[seen])
        paths[:, ~seen] = entry.predict_path(train, values[~seen], PARAMS).clip(0, 1)
    best = int((weight * (paths - score) ** 2).sum(axis=1).argmin())
    step = entry.list_steps(PARAMS)[best]
    assert (best > 0) == (len(paths) > 1) and fitted.regressor.metadata["step"] == step
    assert_near(fitted.out_of_fold, paths[best], np.float32)
    whole = entry.fit(RegressorTrainingSet(values, score, weight), step, PARAMS).predict(values).clip(0, 1)
    assert np.abs(fitted.regressor.predict(features) - whole).max() == pytest.approx(fitted.parity, abs=1e-6)
    assert fitted.parity <= 1e-6


def test_fit_regressor_reports_dropped_columns() -> None:
    features, score, groups = make_planted(80, 1)
    weight = np.where(np.arange(80) < 60, 1.0, 0.0)
    features["instruction"] = 2.0
    features["only_elsewhere"] = np.where(np.arange(80) < 60, 1.0, np.arange(80))
    fitted = fit_regressor("linear", "cosine", features, score, weight, groups, PARAMS)
    assert dict(fitted.dropped) == {"instruction": 2.0, "only_elsewhere": 1.0}
    assert fitted.regressor.columns == tuple(f"nll_{n}" for n in range(8))


@pytest.mark.parametrize(
    ("target", "groups", "message"),
    [
        ([0.5] * 6, "abcabc", "cosine is 0.5 for all 6 .*regressors.targets"),
        ([0.5, 0.5, NAN, 0.5, 0.5, NAN], "abcabc", "cosine is 0.5 for all 4 "),
        ([NAN] * 6, "abcabc", "cosine is known for no training answer.*regressors.targets"),
        ([-0.2, 0.9, 0.5, 0.5, 0.5, 0.5], "abcabc", r"cosine is -0\.2 to 0\.9"),
    ],
)
def test_fit_regressor_unlearnable_target_raises(target: list[float], groups: str, message: str) -> None:
    features = pd.DataFrame({"a": np.arange(6.0)})
    with pytest.raises((AbstainError, ValueError), match=f"^[^\n]*{message}[^\n]*$"):
        fit_regressor("linear", "cosine", features, np.array(target), np.ones(6), np.array(list(groups)), PARAMS)


@pytest.mark.heavy
@every_kind
def test_fit_regressor_two_rows_are_enough(kind: RegressorKind) -> None:
    features = pd.DataFrame({"a": [1.0, 2.0]})
    fitted = fit_regressor(kind, "cosine", features, np.array([0.2, 0.8]), np.ones(2), np.array(["a", "b"]), PARAMS)
    assert fitted.out_of_fold == pytest.approx([0.8, 0.2])
    assert np.isfinite(fitted.regressor.predict(features)).all()


def list_digests(folder: Path) -> list[str]:
    """The digest of each kind's file and out-of-fold scores."""
    digests = []
    for kind in REGRESSOR_ALGORITHMS:
        fitted, file = fit(kind), folder / kind
        fitted.regressor.save(file)
        digests.append(hashlib.sha256(file.read_bytes() + fitted.out_of_fold.tobytes()).hexdigest())
    return digests


PRINT_DIGESTS = """
import sys
from pathlib import Path
from tests.learning.estimators.regressors import test_fitting
test_fitting.kinds.MAX_ROUNDS = 60
print(*test_fitting.list_digests(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_fit_regressor_is_reproducible_across_processes(tmp_path: Path) -> None:
    """This process, which has one core where several run the tests, and another one on two."""
    names = ("LOKY_MAX_CPU_COUNT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    other = tmp_path / "other"
    other.mkdir()
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS, other],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(names, "2"),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert printed.decode().split() == list_digests(tmp_path)


def make_training_set(rows: int, seed: int) -> RegressorTrainingSet:
    features, score, _ = make_planted(rows, seed)
    return RegressorTrainingSet(to_matrix(features, list(features)), score, np.ones(rows))


@pytest.mark.parametrize("kind", ["gradient_boosting", "linear"])
def test_predict_path_step_equals_fit_of_step(kind: RegressorKind) -> None:
    train, other = make_training_set(80, 1), make_training_set(30, 2).features
    entry = REGRESSOR_ALGORITHMS[kind]
    path, steps = entry.predict_path(train, other, PARAMS), entry.list_steps(PARAMS)
    assert path.shape == (len(steps), 30)
    for place in (0, 7, len(steps) - 1):
        np.testing.assert_allclose(path[place], entry.fit(train, steps[place], PARAMS).predict(other), atol=1e-12)


def test_predict_path_forest_uses_share_of_trees() -> None:
    train, other = make_training_set(80, 1), make_training_set(30, 2).features
    entry = REGRESSOR_ALGORITHMS["random_forest"]
    (path,) = entry.predict_path(train, other, PARAMS)
    assert entry.list_steps(PARAMS) == (40,)
    assert_near(path, entry.fit(train, 10, PARAMS).predict(other))
    assert len(entry.fit(train, 40, PARAMS).named_steps["regressor"].estimators_) == 40


def test_default_forest_has_the_defaults_of_scikit_learn() -> None:
    train, defaults = make_training_set(80, 1), RandomForestRegressor()
    forest = REGRESSOR_ALGORITHMS["default_forest"].fit(train, 10, PARAMS).named_steps["regressor"]
    changed = {name for name, value in forest.get_params().items() if value != defaults.get_params()[name]}
    assert changed == {"n_estimators", "random_state", "n_jobs"}


@every_kind
def test_regressors_impute_median_and_accept_empty_column(kind: RegressorKind) -> None:
    train, entry = make_training_set(80, 1), REGRESSOR_ALGORITHMS[kind]
    step = entry.list_steps(PARAMS)[-1] if kind == "linear" else 20
    pipeline = entry.fit(train, step, PARAMS)
    missing = np.full((1, 8), np.nan, np.float32)
    median = np.nanmedian(train.features, axis=0, keepdims=True)
    assert pipeline.predict(missing) == pytest.approx(pipeline.predict(median), abs=1e-6)
    train.features[:, 3] = np.nan
    assert np.isfinite(entry.fit(train, step, PARAMS).predict(make_training_set(10, 2).features)).all()


@every_kind
def test_regressors_follow_relative_weights(kind: RegressorKind) -> None:
    """A region in which half of the rows say 0 and half say 1, the latter with thrice the weight."""
    features, target = np.repeat(np.arange(4, dtype=np.float32), 60)[:, None], np.tile([0.0, 1.0], 120)
    weight = np.where(target == 1, 3.0, 1.0)
    step = {"gradient_boosting": 150, "linear": PENALTIES[-1]}.get(kind, 40)
    heavy, same = (
        REGRESSOR_ALGORITHMS[kind].fit(RegressorTrainingSet(features, target, given), step, PARAMS).predict(features)
        for given in (weight, weight / 7)
    )
    np.testing.assert_allclose(heavy, 0.75, atol=0.1)
    np.testing.assert_allclose(heavy, same, atol=1e-9)


def test_select_columns_drops_constant_columns() -> None:
    features = pd.DataFrame(
        {
            "instruction_mean": [2.5, 2.5, 2.5],
            "last_bits": np.float32([7, 7, 7]) + np.float32([0, 5e-7, -5e-7]),
            "answer_mean": [1.0, 2.0, NAN],
            "never": [NAN, NAN, NAN],
            "always_or_missing": [3.0, NAN, 3.0],
            "small": [1e-6, 2e-6, 0.0],
        }
    )
    kept, dropped = select_columns(features)
    assert kept == ("answer_mean", "small")
    assert dropped == {"instruction_mean": 2.5, "last_bits": 7.0, "never": None, "always_or_missing": 3.0}
    with pytest.raises(AbstainError, match="none of 2 features .* 3 "):
        select_columns(features[["instruction_mean", "never"]])
    with pytest.raises(AbstainError, match="none of 0 features"):
        select_columns(features[[]])


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6), st.floats(0.001, 1000))
def test_is_varying_is_independent_of_unit(values: list[float], unit: float) -> None:
    column = np.array(values)
    if len(set(values)) == 1:
        assert not is_varying(column)
    spread = np.ptp(column) / max(abs(column).max(), 1e-300)
    if spread > 1e-4 and abs(column).max() > 1e-200:
        assert is_varying(column) and is_varying(column * unit)


def test_to_matrix_selects_by_name_as_float32() -> None:
    features = pd.DataFrame(
        {"b": [1, 2], "a": [0.1, NAN], "c": pd.array([3, None], dtype="Int64"), "d": ["x", "y"], "e": [True, False]}
    )
    values = to_matrix(features, ["a", "b", "c", "e"])
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array([[0.1, 1, 3, 1], [NAN, 2, NAN, 0]], np.float32))
    assert to_matrix(features[:0], ["a"]).shape == (0, 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "gone"], "have 0 columns 'gone'"),
        (["twice"], "have 2 columns 'twice'"),
        (["objects", "word"], "'word' is no number in every row"),  # numbers are numbers, whatever the dtype
        (["a", "endless"], "'endless' is infinite, or beyond float32"),
        (["huge"], "'huge' is infinite, or beyond float32"),
    ],
)
def test_to_matrix_invalid_column_raises(columns: list[str], message: str) -> None:
    names = ["a", "twice", "twice", "word", "endless", "huge"]
    features = pd.DataFrame([[1.0, 1, 2, "x", 1, 1e39], [2.0, 3, 4, "y", np.inf, 1]], columns=names)
    with pytest.raises(AbstainError, match=message):
        to_matrix(features.assign(objects=pd.Series([1, 2.5], dtype=object)), columns)


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_file_round_trip(kind: RegressorKind, tmp_path: Path) -> None:
    fitted, file = fit(kind).regressor, tmp_path / "folder" / f"{kind}.onnx"
    fitted.save(file)
    loaded = OnnxRegressor(file.read_bytes())
    assert file.stat().st_size == fitted.n_bytes
    assert loaded.metadata == fitted.metadata
    assert (loaded.kind, loaded.target, loaded.columns) == (kind, "cosine", tuple(f"nll_{n}" for n in range(8)))
    assert (loaded.metadata["rows"], set(loaded.metadata["versions"])) == (200, {"scikit-learn", "skl2onnx"})
    others, _, _ = make_planted(60, 2)
    assert np.array_equal(loaded.predict(others), fitted.predict(others))
    onnx.checker.check_model(onnx.load(file), full_check=True)


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_matches_scikit_learn(kind: RegressorKind) -> None:
    features, score, _ = make_planted(200, 1)
    values, regressor, entry = to_matrix(features, list(features)), fit(kind).regressor, REGRESSOR_ALGORITHMS[kind]
    pipeline, elsewhere = (
        entry.fit(RegressorTrainingSet(values, target, np.ones(200)), regressor.metadata["step"], PARAMS)
        for target in (score, 1 - score)
    )
    assert fit(kind).parity <= 1e-6
    for missing in (0.0, 0.5, 0.9):
        assert measure_parity(pipeline, regressor, make_planted(200, 5, missing=missing)[0]) <= 1e-6
    assert measure_parity(elsewhere, regressor, features) > 0.1


@pytest.mark.parametrize("kind", ["random_forest", "gradient_boosting"])
def test_to_onnx_regressor_separates_neighbouring_floats(kind: RegressorKind) -> None:
    """Two values of a feature that differ in their last bit decide the score: a threshold rounded to float32 is one of them."""
    low = np.float32(5.1)
    high = np.nextafter(low, np.float32(6))
    values = np.tile(np.array([low, high, low * 2, high * 2], np.float32), 30)[:, None]
    score, features = np.tile([0.1, 0.9, 0.2, 0.8], 30), pd.DataFrame(values, columns=["a"])
    pipeline = REGRESSOR_ALGORITHMS[kind].fit(RegressorTrainingSet(values, score, np.ones(120)), 200, PARAMS)
    regressor = to_onnx_regressor(pipeline, {"kind": kind, "target": "cosine", "columns": ["a"]})
    assert measure_parity(pipeline, regressor, features) <= 1e-5  # 200 equal trees round alike
    np.testing.assert_allclose(regressor.predict(features), score, atol=0.05)


@pytest.mark.heavy
@every_kind
def test_onnx_regressor_predict_is_batch_invariant(kind: RegressorKind) -> None:
    regressor = fit(kind).regressor
    features, _, _ = make_planted(BATCH + 30, 4)
    together = regressor.predict(features)
    assert together.shape == (BATCH + 30,) and together.dtype == np.float64
    picked = [0, 1, BATCH - 1, BATCH, BATCH + 29]
    alone = np.concatenate([regressor.predict(features[at : at + 1]) for at in picked])
    np.testing.assert_allclose(alone, together[picked], atol=1e-6)
    shuffled = features[features.columns[::-1]].assign(unheard_of="text")
    assert_near(regressor.predict(shuffled), together, np.float32)
    assert regressor.predict(features[:0]).shape == (0,)
    extrapolated = np.concatenate([regressor.predict(features * scale) for scale in (1e4, -1e4)])
    assert extrapolated.min() >= 0 and extrapolated.max() <= 1
    assert kind != "linear" or {0.0, 1.0} <= set(extrapolated)
