from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from abstain.data.store.dataset import DataStore
from abstain.review import question_drift as module
from abstain.review.question_drift import compute_nearest_distances, measure_question_drift
from tests.factories import row
from tests.review.test_candidates import take


def encode_letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """Texts by the letters that they are made of: enough to know near from far."""
    return np.array([[text.count(letter) for letter in "abcdef"] for text in texts], np.float32).reshape(-1, 6)


LETTERS = SimpleNamespace(encode=encode_letters)


def test_distance_to_trained_questions_is_small() -> None:
    trained_on = ["aaab", "aab", "aba", "abaa", "baaa", "cc", "ccc", "cccc", "cc c", "c c"]
    known, rare, new, half = compute_nearest_distances(["aaab", "cc", "ff", "fc"], trained_on, LETTERS)
    assert known < 0.05 and rare == pytest.approx(0, abs=1e-6), "rare, but trained on"
    assert new == pytest.approx(1) and 0.2 < half < 0.4


def test_distance_of_a_repeated_question_is_nan() -> None:
    found = compute_nearest_distances(["ff", "aa", "ff", "ff"], ["aa"] * 5, LETTERS)
    assert np.isnan(found).tolist() == [False, False, True, True]


def test_distance_to_nothing_is_nan() -> None:
    assert np.isnan(compute_nearest_distances(["a", "b"], [], LETTERS)).all()
    assert compute_nearest_distances([], ["a"], LETTERS).shape == (0,)


@given(st.lists(st.text("abcdef", min_size=1), min_size=1, max_size=20), st.lists(st.text("abcdef"), max_size=20))
def test_distance_is_independent_of_the_batch_size(questions: list[str], trained_on: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = compute_nearest_distances(questions, trained_on, LETTERS)
        patch.setattr(module, "BATCH_SIZE", 3)
        np.testing.assert_allclose(compute_nearest_distances(questions, trained_on, LETTERS), whole, atol=1e-6)
    assert np.nanmin([0.0, *whole]) >= -1e-6 and np.nanmax([0.0, *whole]) <= 2


def test_measure_question_drift_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(f"t{n}", question="aab") for n in range(6)] + [row("new", question="ff"), row("old", question="aab")]
    take(tmp_path / "data", *rows)
    store = DataStore(tmp_path / "data")
    found = measure_question_drift(store, {"new", "old", "gone"}, {f"t{n}" for n in range(6)}, LETTERS, seed=0)
    assert found["new"] == pytest.approx(1) and found["old"] == pytest.approx(0, abs=1e-6) and "gone" not in found
    monkeypatch.setattr(module, "MAX_COMPARED", 1)
    assert len(measure_question_drift(store, {"new", "old"}, {"t0", "t1"}, LETTERS, seed=0)) == 1
