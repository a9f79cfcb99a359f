import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.data.store.profile import MEASURES, Profile
from abstain.data.validation.drift import compute_stability_index, select_newest_and_previous, validate_drift
from tests.checkout import shipped_params

QUALITY = shipped_params().quality.model_copy(update={"max_drift": 0.25, "min_drift_rows": 50})
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 500))


def make_profile(rows: int, **changed: dict[str, int]) -> Profile:
    """Make a profile with two classes for each measure, except for those `changed`."""
    counts = {name: {"32": rows // 2, "64": rows - rows // 2} for name in MEASURES}
    return Profile(rows=rows, counts=counts | {name.replace("_", " "): found for name, found in changed.items()})


@given(COUNTS, COUNTS)
def test_compute_stability_index_is_symmetric(one: dict[str, int], two: dict[str, int]) -> None:
    assert compute_stability_index(one, two) == pytest.approx(compute_stability_index(two, one))
    assert compute_stability_index(one, two) >= 0
    assert compute_stability_index(one, one) == 0


def test_compute_stability_index_large_samples() -> None:
    newest, previous = {"a": 600_000, "b": 400_000}, {"a": 500_000, "b": 500_000}
    assert compute_stability_index(newest, previous) == pytest.approx(0.1 * 0.18232 + 0.1 * 0.22314, abs=1e-4)
    assert compute_stability_index({}, previous) == 0


def test_compute_stability_index_ignores_chance() -> None:
    rng = random.Random(3)
    classes = [str(at) for at in range(10)]
    indices = [
        compute_stability_index(Counter(rng.choices(classes, k=50)), Counter(rng.choices(classes, k=2_000)))
        for _ in range(500)
    ]
    assert sum(index > 0.25 for index in indices) <= 10
    assert compute_stability_index({"en": 40, "de": 10}, {"en": 1_000}) > 0.25
    assert compute_stability_index({"en": 995, "de": 5}, {"en": 1_000}) < 0.1


def test_select_newest_and_previous_joins_small_batches() -> None:
    batches = [make_profile(rows) for rows in (100, 30, 10, 20, 30)]
    found = select_newest_and_previous(batches, 50)
    assert found is not None and [profile.rows for profile in found] == [50, 140]
    assert select_newest_and_previous(batches[1:], 50) is select_newest_and_previous([], 50) is None


@pytest.mark.slow
def test_validate_drift_new_language_is_warning() -> None:
    german = make_profile(100, question_language={"en": 50, "de": 50})
    result = validate_drift([make_profile(900, question_language={"en": 900}), german], QUALITY)
    assert result.success and result.rows == {"drift": 5}
    (line,) = result.format_warnings()
    assert line.startswith("A108 question language: 3.73 ") and line.endswith("0.25 allowed (quality.max_drift)")
    figures = result.drift
    assert figures is not None
    assert figures.rows == {"newest": 100, "previous": 900}
    assert figures.shift["question length"] == 0
    assert figures.newest["question language"] == {"en": 50, "de": 50}


def test_validate_drift_one_batch_is_not_judged() -> None:
    result = validate_drift([make_profile(900)], QUALITY)
    assert result.success and result.drift is None
    assert result.all_notes == (
        "drift: no rows, the suite was skipped",
        "drift: not judged before there are two batches of 50 interactions each",
    )
